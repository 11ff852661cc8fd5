"""Process settings for training small networks on a CPU."""

import contextlib
import ctypes

import torch

LARGE = 500_000_000
"""Multiply-adds of one forward pass above which more threads pay."""

MALLOC_TRIM, MALLOC_MMAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD


def prepare_process(threads: int) -> None:
    """Prepare this process for training on `threads` CPU threads.

    Flushing denormals: the moments of unused weights decay into them, which are slow. Keeping freed
    memory: by default glibc hands large tensors back to the system after every update and faults them in again.
    """
    torch.set_flush_denormal(True)
    with contextlib.suppress(OSError, AttributeError):  # another C library: slower, not wrong
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(MALLOC_MMAP, 1 << 30)
        mallopt(MALLOC_TRIM, (1 << 31) - 1)
    torch.set_num_threads(threads)


def threads_for(multiplications: int, wanted: int = 0) -> int:
    """Return how many threads an update should use: what is wanted, else one for small work and all for large.

    Small products gain little from a second thread, and lose far more when another process wants its core: the threads
    of a parallel region wait for each other spinning.
    """
    if wanted:
        return wanted
    return 1 if multiplications < LARGE else torch.get_num_threads()
