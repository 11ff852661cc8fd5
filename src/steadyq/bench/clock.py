"""One way to time a function."""

import statistics
import time
from collections.abc import Callable, Mapping
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


def side_by_side(
    functions: Mapping[str, Callable[[], Any]], device: torch.device, *, rounds: int = 15, budget: float = 0.4
) -> dict[str, list[float]]:
    """Milliseconds of one call of each, round by round in turn: what slows the machine slows them all."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        _seconds(function, 5, device)
    calls = {name: max(1, int(budget / _seconds(each, 3, device))) for name, each in functions.items()}
    for _ in range(rounds):
        for name, function in functions.items():
            found[name].append(_seconds(function, calls[name], device) * 1e3)
    return found


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
