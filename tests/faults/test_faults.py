"""A small count of every kind of fault, as CI runs it; `make faults` runs many, `python -m tests.faults --full` all."""

from pathlib import Path

import pytest
from counting import Count
from damage import damage_folders
from fuzz import fuzz
from kills import kill_runs, kill_sweeps


def nothing_broken(count: Count, at_least: int) -> None:
    assert not count.broken, "\n\n".join([count.line(), *count.broken[:5]])
    assert count.total >= at_least


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kills"), [("CartPole", 12), ("MinAtar", 6), ("Atari", 2), ("Procgen", 2)])
def test_kills(backend: str, kills: int, tmp_path: Path) -> None:
    if backend == "Procgen":
        pytest.importorskip("envpool", reason="envpool is not installed (the extra procgen)")
    nothing_broken(kill_runs(backend, kills, seed=0, place=tmp_path), kills)


@pytest.mark.slow
def test_kills_of_a_sweep(tmp_path: Path) -> None:
    nothing_broken(kill_sweeps(2, seed=0, place=tmp_path), 2)


def test_damaged_folders(tmp_path: Path) -> None:
    nothing_broken(damage_folders(100, seed=0, place=tmp_path), 100)


def test_fuzzed_inputs(tmp_path: Path) -> None:
    nothing_broken(fuzz(400, seed=0, place=tmp_path), 400)
