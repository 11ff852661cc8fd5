"""Where the choice of `operator.forbid` can matter at all: only where a step is rewarded that does not end the game."""

from pathlib import Path
from typing import Any

import pytest
import torch

import steadyq as sq

SMALL: dict[str, Any] = {
    "steps": 120, "replay.warmup": 64, "replay.batch": 8, "replay.capacity": 120, "network.hidden": (8,),
    "ensemble.members": 2, "estimator.quantiles": 5, "monitor.every": 0, "record.tensorboard": False,
    "evaluation.episodes": 1, "evaluation.random_episodes": 1,
}  # fmt: skip


@pytest.mark.parametrize(("game", "matters"), [("Acrobot-v1", False), ("MountainCar-v0", False), ("CartPole-v1", True)])
def test_runs_differ_only_where_a_step_on_the_way_is_rewarded(game: str, matters: bool, tmp_path: Path) -> None:
    learned = []
    for forbid in ("rewarded", "none"):
        recipe = sq.presets.steady(game, "tiny", **SMALL, **{"operator.forbid": forbid})
        learned.append(sq.train(recipe, run=tmp_path / forbid).weights()[0])
    assert all(torch.equal(tensor, learned[1][name]) for name, tensor in learned[0].items()) is not matters
