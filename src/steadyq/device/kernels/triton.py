"""Triton where it is installed: it ships with the CUDA builds of PyTorch only."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, device

__all__ = ["available", "compiles", "compiling_ahead", "jit", "launch", "only_compiling", "tl", "triton"]

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    tl = None

try:
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:  # an older Triton compiles one kernel after the other
    AsyncCompileMode = None

_only_compiles: ContextVar[bool] = ContextVar("only_compiles", default=False)

jit: Any = (lambda function: function) if triton is None else triton.jit


@jit
def _probe(x):  # type: ignore[no-untyped-def]
    tl.store(x, 0.0)


def compiles(where: device) -> bool:
    """Whether kernels can be compiled for the device."""
    return triton is not None and where.type == "cuda"


def available(x: Tensor) -> bool:
    """Whether kernels can take `x`: Triton is there, and a GPU, or Triton's interpreter."""
    return triton is not None and (x.is_cuda or type(_probe).__name__ == "InterpretedFunction")


def only_compiling() -> bool:
    """Whether kernels are compiled and do not run: what they would write holds anything."""
    return _only_compiles.get()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel; within `compiling_ahead`, compile it alone."""
    if _only_compiles.get():
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def compiling_ahead(where: device) -> Iterator[None]:
    """Within the block kernels are compiled, side by side, and do not run: what they would write stays as it was.

    For a first pass over what will run in earnest, on things to throw away: a minute of compilation takes seconds.
    """
    if AsyncCompileMode is None or where.type != "cuda":
        yield
        return
    alone = torch.autograd.set_multithreading_enabled(False)  # gradients in this thread, which the mode is of
    with alone, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads, AsyncCompileMode(threads):
        token = _only_compiles.set(True)
        try:
            yield
        finally:
            _only_compiles.reset(token)
