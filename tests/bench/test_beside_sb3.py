"""Stable-Baselines3 beside ours: what is set equal is equal, and its runs are read like ours."""

from pathlib import Path

import pytest
import torch
from scripts import script

from steadyq import envs
from steadyq.build import draw_layout, learner_for
from steadyq.suite.runs import read_runs
from steadyq.value.shapes import Batch

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


@pytest.mark.parametrize("preset", ["dqn", "qr_dqn"])
def test_one_update_of_theirs_and_of_ours_are_the_same(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same weights, on the same batch: where curves differ, it is not the update."""
    import sb3_contrib
    import stable_baselines3
    from stable_baselines3.common.buffers import ReplayBufferSamples

    beside = script("beside_sb3")
    recipe = beside.recipe_for(preset, "Gymnasium/CartPole-v1", 0)
    kind = stable_baselines3.DQN if preset == "dqn" else sb3_contrib.QRDQN
    theirs = kind("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **beside.settings_for(recipe))
    theirs._logger = stable_baselines3.common.logger.configure(format_strings=[])
    spec = envs.spec(recipe.env, recipe.protocol)
    ours = learner_for(recipe, spec, torch.Generator().manual_seed(0), torch.device("cpu"))
    atoms = ours.estimator.atoms

    def as_ours(network: torch.nn.Module) -> list[torch.Tensor]:
        *hidden, weight, bias = (p.detach() for p in network.parameters())
        last = [
            p.view(atoms, 2, -1).transpose(0, 1).reshape(p.shape) for p in (weight, bias)
        ]  # atoms vary fastest here
        return [*hidden, *last]

    online, target = (theirs.q_net, theirs.q_net_target) if preset == "dqn" else (
        theirs.quantile_net, theirs.quantile_net_target
    )  # fmt: skip
    with torch.no_grad():
        for p in target.parameters():
            p.add_(0.05 * torch.randn_like(p))
        for params, network in ((ours.online, online), (ours.target, target)):
            for p, other in zip(params.values(), as_ours(network), strict=True):
                p[0].copy_(other)
    seen, after = torch.randn(32, 4), torch.randn(32, 4)
    action, reward, over = torch.randint(2, (32,)), 20 * torch.randn(32), (torch.rand(32) < 0.2).float()
    sample = ReplayBufferSamples(seen, action[:, None], after, over[:, None], reward[:, None])
    monkeypatch.setattr(theirs.replay_buffer, "sample", lambda *a, **b: sample)
    one, index = torch.ones(32), torch.arange(32)
    batch = Batch(seen, action, reward, 0.99 * (1 - over), after, one, index, index, reward > 0)
    draw = draw_layout(recipe, spec).plain(rate=recipe.optim.rate)
    for _ in range(5):
        theirs.train(1, 32)
        theirs._on_step()
        ours.update(batch, draw)
    for params, network in ((ours.online, online), (ours.target, target)):
        for (name, p), other in zip(params.items(), as_ours(network), strict=True):
            torch.testing.assert_close(p[0], other, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
