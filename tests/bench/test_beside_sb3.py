"""Stable-Baselines3 beside ours: what is set equal is equal, and its runs are read like ours."""

from pathlib import Path

import pytest
from scripts import script

from steadyq.suite.runs import read_runs

pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed: pip install 'steadyq[sb3]'")


def test_their_settings_are_those_of_our_recipe() -> None:
    beside = script("beside_sb3")
    recipe = beside.recipe_for("qr_dqn", "MinAtar/Breakout", 0)
    settings = beside.settings_for(recipe)
    assert (settings["learning_rate"], settings["tau"], settings["target_update_interval"]) == (5e-4, 0.005, 1)
    assert (settings["batch_size"], settings["train_freq"], settings["gradient_steps"]) == (32, 1, 1)
    assert (settings["learning_starts"], settings["buffer_size"], settings["max_grad_norm"]) == (1000, 100_000, 10.0)
    assert settings["exploration_fraction"] * recipe.steps == 10_000
    assert (settings["exploration_initial_eps"], settings["exploration_final_eps"]) == (1.0, 0.01)
    policy = settings["policy_kwargs"]
    assert (policy["n_quantiles"], policy["optimizer_kwargs"]) == (21, {"eps": 1e-8, "betas": (0.9, 0.999)})
    assert recipe.estimator.reduction == "sum"
    assert (
        "n_quantiles" not in beside.settings_for(beside.recipe_for("dqn", "Gymnasium/CartPole-v1", 0))["policy_kwargs"]
    )


@pytest.mark.parametrize(("preset", "env"), [("dqn", "Gymnasium/CartPole-v1"), ("qr_dqn", "MinAtar/Breakout")])
def test_their_runs_stand_beside_ours(preset: str, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = script("beside_sb3")
    monkeypatch.setitem(beside.STEPS, env, 300)
    small = {"replay.warmup": 64, "replay.capacity": 500, "record.every": 50, "evaluation.episodes": 2}
    monkeypatch.setattr(beside, "COMMON", {**beside.COMMON, **small, "explore.epsilon": "1 -> 0.01 linear 100 steps"})
    monkeypatch.setattr(beside, "SEEDS", (3,))
    monkeypatch.setattr(beside, "ARCHIVE", tmp_path / "beside.tar.xz")
    monkeypatch.setattr(beside, "PRESETS", {preset: beside.PRESETS[preset]})
    beside.train_all(tmp_path / "runs", env, beside.SEEDS)
    beside.train_all(tmp_path / "runs", env, beside.SEEDS)  # what has finished stays
    learners = beside.by_learner(read_runs([beside.ARCHIVE]), env)
    assert list(learners) == [preset, beside.PRESETS[preset]]
    (ours,), (theirs,) = learners.values()
    assert ours.recipe.protocol == theirs.recipe.protocol
    assert (ours.result["episodes"], ours.result["random_return"]) == (
        theirs.result["episodes"],
        theirs.result["random_return"],
    )
    assert abs(ours.result["updates"] - theirs.result["updates"]) <= 1
    assert theirs.metrics.steps.tolist() == [50, 100, 150, 200, 250, 300]
    assert theirs.metrics[-1]["epsilon"] == pytest.approx(0.01)
    assert theirs.result["games"] == len(theirs.events.games[0])
    assert f"`{beside.PRESETS[preset]}`" in beside.table(read_runs([beside.ARCHIVE]))
