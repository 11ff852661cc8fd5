"""How many runs share a GPU, decided from the rows that runs write."""

import json
from pathlib import Path

import pytest

from steadyq.suite.sharing import Sharing


class Machine:
    """Runs that write rows, `speed(runs)` steps a second for all of them together."""

    def __init__(self, folder: Path, sharing: Sharing, speeds: dict[int, float]) -> None:
        self.folder, self.sharing, self.speeds = folder, sharing, speeds
        self.folders: list[Path] = []
        self.at: dict[Path, tuple[float, float]] = {}
        self.said: list[str] = []

    def go(self, rounds: int) -> None:
        """Fill the slots, let every run learn for eight seconds, look; again and again."""
        for _ in range(rounds):
            while len(self.folders) < self.sharing.runs * self.sharing.gpus:
                path = self.folder / str(len(self.folders))
                path.mkdir()
                self.folders.append(path)
                self.at[path] = (0.0, 0.0)
            for path in self.folders:
                step, seconds = self.at[path]
                self.at[path] = (step + 8 * self.speeds[len(self.folders)] / len(self.folders), seconds + 8)
                row = {"step": self.at[path][0], "seconds": self.at[path][1], "updates": max(0, self.at[path][0] - 100)}
                with open(path / "metrics.jsonl", "a") as file:
                    file.write(json.dumps(row) + "\n")
            if words := self.sharing.look([[path] for path in self.folders]):
                self.said.append(words)


def test_runs_double_until_twice_as_many_are_no_faster(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Sharing(1, 16, lambda: 0.05), {1: 400, 2: 520, 4: 600, 8: 610})
    machine.go(40)
    assert machine.sharing.runs == 4
    assert machine.said == [
        "4 runs on each GPU: twice as many are no faster (400 steps/s with 1, 520 steps/s with 2, "
        "600 steps/s with 4, 610 steps/s with 8)"
    ]


def test_memory_ends_it_before_it_is_full(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Sharing(1, 16, lambda: 0.2 * machine.sharing.runs), {1: 400, 2: 520, 4: 600, 8: 700})
    machine.go(40)
    assert machine.sharing.runs == 4
    assert machine.said == [
        "4 runs on each GPU: 4 take 80% of its memory (400 steps/s with 1, 520 steps/s with 2, 600 steps/s with 4)"
    ]


@pytest.mark.parametrize(
    ("most", "runs", "why"), [(3, 3, "there are no more runs or cores"), (1, 1, ""), (2, 2, "there are no more")]
)
def test_no_more_than_there_are_runs_and_cores(tmp_path: Path, most: int, runs: int, why: str) -> None:
    machine = Machine(tmp_path, Sharing(2, most, lambda: 0.01), {2: 400, 4: 800, 6: 1200, 8: 1600})
    machine.go(30)
    assert machine.sharing.runs == runs
    assert all(why in words for words in machine.said)
    assert len(machine.said) == (most > 1)


def test_a_gpu_whose_memory_nobody_tells_keeps_one_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Sharing(1, 8, lambda: None), {1: 400})
    machine.go(10)
    assert machine.sharing.runs == 1
    assert "nvidia-smi does not say" in machine.said[0]


def test_speed_is_read_only_while_every_slot_is_taken_and_every_run_learns(tmp_path: Path) -> None:
    sharing = Sharing(2, 8, lambda: 0.01)
    machine = Machine(tmp_path, sharing, {2: 10, 4: 10})
    machine.go(2)  # nobody has learned yet
    assert sharing.tried == []
    assert sharing.look([machine.folders[:1]]) == ""
    machine.go(30)
    assert sharing.tried == [(1, pytest.approx(10)), (2, pytest.approx(10))]
