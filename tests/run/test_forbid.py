"""Where the choice of `operator.forbid` can matter at all: only where a step is rewarded that does not end the game."""

from pathlib import Path
from typing import Any

import pytest
import torch

import steadyq as sq

SMALL: dict[str, Any] = {
    "steps": 120, "replay.warmup": 64, "replay.every": 4, "replay.batch": 8, "replay.capacity": 120,
    "network.hidden": (8,), "ensemble.members": 2, "estimator.quantiles": 5, "monitor.every": 0,
    "record.tensorboard": False, "evaluation.episodes": 1, "evaluation.random_episodes": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("game", "steps", "rewarded", "matters"),
    [
        ("Acrobot-v1", 120, False, False),
        ("MountainCar-v0", 120, False, False),
        ("FrozenLake-v1", 800, True, False),  # the goal alone, which ends the game
        ("CartPole-v1", 120, True, True),
    ],
)
def test_runs_differ_only_where_a_step_on_the_way_is_rewarded(
    game: str, steps: int, rewarded: bool, matters: bool, tmp_path: Path
) -> None:
    learned = []
    for forbid in ("rewarded", "none"):
        changes = {"steps": steps, "replay.capacity": steps, "record.every": steps, "operator.forbid": forbid}
        run = sq.train(sq.presets.steady(game, "tiny", **{**SMALL, **changes}), run=tmp_path / forbid)
        assert (run.metrics()[-1]["rewarded"] > 0) is rewarded
        learned.append(run.weights()[0])
    assert all(torch.equal(tensor, learned[1][name]) for name, tensor in learned[0].items()) is not matters
