"""Where a function of tensors becomes a CUDA graph or, on a CPU, a compiled program; where the host waits for a GPU."""

import gc
import os
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyq.device.program import Program, complaint


class Captured:
    """Calls `function(tensor) -> tensor`; on a GPU, after a few ordinary calls, replays it as one graph; on a CPU, if
    it is to be `compiled`, as one program.

    The function may change state in place at fixed addresses, and must take everything that varies through its one
    argument, of fixed shape: a graph replays frozen random state. The first calls run ordinarily because kernels are
    chosen and memory is taken then; they are real calls, with the same effect as later ones.
    """

    warm_calls = 3

    def __init__(self, function: Callable[[Tensor], Tensor], device: torch.device, compiled: bool = False) -> None:
        self.function, self.device, self.compiled = function, device, compiled
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, argument: Tensor) -> Tensor:
        """Call the function, or replay it with `argument` copied into the graph's own input."""
        if self.device.type != "cuda":
            if self.compiled:
                self._compile(argument)
            return self.function(argument)
        if self.calls == 0:
            self.argument = argument.to(self.device, copy=True)
        elif argument.shape != self.argument.shape:
            raise ValueError(f"captured for shape {tuple(self.argument.shape)}, called with {tuple(argument.shape)}")
        else:
            self.argument.copy_(argument, non_blocking=True)
        self.calls += 1
        if self.calls <= self.warm_calls:
            return self._aside()
        if self.graph is None:
            gc.collect()  # a graph of an earlier run, freed while this one is captured, would spoil it
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.result = self.function(self.argument)
            self.graph = graph
        self.graph.replay()
        return self.result

    @property
    def compiles(self) -> bool:
        """Whether it is a compiled program, or will be one from its first call on."""
        return self.compiled or isinstance(self.function, Program)

    def _compile(self, argument: Tensor) -> None:
        """Call a program from now on; what cannot be compiled goes on as it is."""
        self.compiled = False
        try:
            self.function = Program(self.function, argument)
        except Exception as error:
            warnings.warn(f"goes on uncompiled, which is slower: {complaint(error)}", stacklevel=2)

    def _aside(self) -> Tensor:
        """Run on a side stream, as capturing wants of what comes before it."""
        stream = _aside(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.function(self.argument)
        torch.cuda.current_stream().wait_stream(stream)
        return result


@cache
def _aside(device: torch.device) -> Any:
    """One stream for all that is not captured yet: each keeps the memory it was given."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Put an array on the device, without waiting for what is under way there."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Readback:
    """A tensor on its way from the device to the host; reading it waits for it alone, not for work given later.

    CUDA waits by spinning. Processes that share a GPU wait most of the time and would take a core each from whatever
    else the machine does, so they look every `nap` seconds instead.
    """

    nap = 1e-4

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        if tensor.is_cuda:
            self.tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensor.copy_(tensor, non_blocking=True)
            self.there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.there.record()

    def numpy(self) -> NDArray[Any]:
        """Wait, and return it."""
        if hasattr(self, "there"):
            while "CUDA_MPS_PIPE_DIRECTORY" in os.environ and not self.there.query():  # type: ignore[no-untyped-call]
                time.sleep(self.nap)
            self.there.synchronize()
        array: NDArray[Any] = self.tensor.numpy()
        return array
