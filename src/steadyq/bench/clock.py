"""One way to time a function."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ROUNDS = 5
"""A figure is the median of so many rounds."""


def milliseconds(function: Callable[[], Any], device: torch.device, *, budget: float = 1.0, warm: int = 5) -> float:
    """Median time of one call, over rounds of as many calls as fit in `budget` seconds altogether."""
    for _ in range(warm):
        function()
    calls = max(1, int(budget / ROUNDS / max(_seconds(function, 1, device), 1e-6)))
    return statistics.median(_seconds(function, calls, device) for _ in range(ROUNDS)) * 1e3


def _seconds(function: Callable[[], Any], calls: int, device: torch.device) -> float:
    wait_for(device)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    wait_for(device)
    return (time.perf_counter() - start) / calls


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
