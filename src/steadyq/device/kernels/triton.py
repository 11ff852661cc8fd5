"""Triton where it is installed: it ships with the CUDA builds of PyTorch only."""

from typing import Any

from torch import Tensor, device

__all__ = ["available", "compiles", "jit", "tl", "triton"]

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
    tl = None

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
