"""How many runs share a GPU: twice as many, as long as memory holds them and all of them together get more done."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steadyq.run.progress import plural
from steadyq.suite.plan import last_row

SECONDS = 20.0
"""Of a run's own clock, at least, between the two rows that its speed is read from."""
GAIN = 1.05
"""Twice the runs must get so much more done, or they only wait for each other."""
FULL = 0.9
"""Share of a GPU's memory that runs may take: they take a little more now and then, for diagnostics."""


class Pace:
    """How fast runs are together, read from the rows that they write."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.first: dict[Path, dict[str, Any]] = {}

    def together(self, folders: Sequence[Path]) -> float | None:
        """Steps a second of all runs, or None while one of them has not learned for long enough beside the others."""
        rows = {folder: last_row(folder / "metrics.jsonl") for folder in folders}
        learning = {folder: row for folder, row in rows.items() if row and row.get("updates")}
        if len(learning) < len(rows):
            return None
        if self.first.keys() != learning.keys():
            self.first = learning
            return None
        spans = {folder: row["seconds"] - self.first[folder]["seconds"] for folder, row in learning.items()}
        if min(spans.values()) < self.seconds:
            return None
        return float(sum((learning[folder]["step"] - self.first[folder]["step"]) / spans[folder] for folder in spans))


class Sharing:
    """Begins with one run on each GPU, and doubles while that pays.

    Speeds are read from the runs' own rows once every slot is taken and every run learns; nothing runs for measurement
    alone. Where twice the runs turn out no faster, the surplus finishes and is not replaced.
    """

    def __init__(self, gpus: int, most: int, memory: Callable[[], float | None] | None = None) -> None:
        self.gpus, self.most = gpus, max(1, most)
        self.memory = memory or memory_taken
        self.runs = 1  # on each GPU
        self.tried: list[tuple[int, float]] = []  # runs on each GPU, steps a second of all runs together
        self.settled = self.most == 1
        self.pace = Pace()

    def look(self, running: Sequence[Sequence[Path]]) -> str:
        """Read how the running runs get on, process by process, and decide; returns what there is to say."""
        folders = [folder for process in running for folder in process]
        if self.settled or len(running) < self.runs * self.gpus or (speed := self.pace.together(folders)) is None:
            return ""
        self.tried.append((self.runs, speed))
        taken, more = self.memory(), min(2 * self.runs, self.most)
        if len(self.tried) > 1 and speed < GAIN * self.tried[-2][1]:
            return self._settle(self.tried[-2][0], "twice as many are no faster")
        if more == self.runs:
            return self._settle(self.runs, "there are no more runs or cores")
        if taken is None:
            return self._settle(self.runs, "nvidia-smi does not say how much memory is taken; see --gpus-per-run")
        if taken * more / self.runs > FULL:
            return self._settle(self.runs, f"{self.runs} take {taken:.0%} of its memory")
        self.runs, self.pace = more, Pace()
        return ""

    def _settle(self, runs: int, why: str) -> str:
        self.runs, self.settled = runs, True
        tried = ", ".join(f"{speed:,.0f} steps/s with {count}" for count, speed in self.tried)
        return f"{plural(runs, 'run')} on each GPU: {why} ({tried})"


def memory_taken() -> float | None:
    """The share of its memory that the fullest GPU has taken; None where nvidia-smi does not say."""
    query = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        return max(float(used) / float(total) for used, total in (line.split(",") for line in said.splitlines()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
