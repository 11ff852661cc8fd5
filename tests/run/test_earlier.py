"""What earlier runs of a process leave in memory is freed once it is worth the time."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

import steadyq as sq
from steadyq.run import loop

SMALL: dict[str, Any] = {
    "steps": 70, "replay.warmup": 64, "replay.batch": 4, "replay.capacity": 80, "network.hidden": (4,),
    "ensemble.members": 1, "operator.exchange": "none", "monitor.every": 0, "record.tensorboard": False,
    "evaluation.episodes": 1, "evaluation.random_episodes": 1,
}  # fmt: skip


@pytest.mark.parametrize(("small", "freed"), [(0, True), (2**30, False)])
def test_large_replay_buffers_of_earlier_runs_are_freed(
    small: int, freed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SMALL_REPLAY", small)
    rings: list[weakref.ref[Any]] = []
    build = loop.Training

    class Noted(build):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any) -> None:
            self.found = [ring() is None for ring in rings]
            super().__init__(*args)
            rings.append(weakref.ref(self.ring))
            self.itself = self  # as a captured function and its owner refer to each other
            found.append(self.found)

    found: list[list[bool]] = []
    monkeypatch.setattr(loop, "Training", Noted)
    gc.collect()
    gc.disable()
    try:
        for number in range(2):
            sq.train(sq.presets.steady("CartPole-v1", "tiny", **SMALL), run=tmp_path / str(number))
    finally:
        gc.enable()
    assert found == [[], [freed]]
