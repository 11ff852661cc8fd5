"""Watching our own learner: it sees what is there and changes nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from steadyq import RunFolder, presets
from steadyq.monitor import watch
from steadyq.monitor.returns import Returns
from steadyq.monitor.rows import row as diagnostics_row
from steadyq.monitor.watch import Tap, Watch, snapshot
from steadyq.nets import MLP, Ensemble, Impala, MinAtarNet, ResNet
from steadyq.nets.units import members_first, unit_scores, unit_sizes
from steadyq.recipe import Recipe
from steadyq.run.loop import train
from steadyq.value.estimators import Categorical, Quantile
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Controlled, Greedy
from steadyq.value.optim import Adam
from steadyq.value.shapes import Batch, DrawLayout, Values

SMALL: dict[str, Any] = {
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "replay.warmup": 64,
    "replay.batch": 8,
    "replay.ratio": 2,
    "replay.every": 3,
    "regulation.every": 50,
    "regulation.threshold": 1.1,
    "record.every": 50,
    "record.tensorboard": False,
    "record.keep_replay": True,
    "monitor.every": 40,
    "monitor.batch": 16,
    "evaluation.episodes": 1,
    "evaluation.random_episodes": 1,
    "compute.device": "cpu",
    "compute.threads": 1,
}
SCALAR = {name: value for name, value in SMALL.items() if name != "estimator.quantiles"}


def recipe(env: str = "CartPole-v1", **more: Any) -> Recipe:
    return presets.steady(env).override({**SMALL, "steps": 300, "network.hidden": (16,), **more})


@pytest.mark.parametrize("env", ["CartPole-v1", "MinAtar/Breakout"])
def test_monitoring_changes_no_bit_of_training(env: str, tmp_path: Path) -> None:
    train(recipe(env), run=tmp_path / "on")
    train(recipe(env, **{"monitor.every": 0}), run=tmp_path / "off")
    on, off = (RunFolder(tmp_path / name) for name in ("on", "off"))
    for name in ("online", "target", "adam_first", "adam_second", "replay"):
        one, other = (load_file(folder.checkpoints()[-1] / f"{name}.safetensors") for folder in (on, off))
        assert all(torch.equal(one[key], other[key]) for key in other), name
    assert [{**row, "seconds": 0} for row in on.metrics()] == [{**row, "seconds": 0} for row in off.metrics()]
    assert on.result is not None
    assert off.result is not None
    assert on.result["resets"] == off.result["resets"] > 0
    assert len(on.diagnostics()) == 7
    assert off.diagnostics() == []


def test_rows_come_with_the_first_update_after_each_interval(tmp_path: Path) -> None:
    rows = train(recipe(), run=tmp_path / "run").diagnostics()
    assert [row["step"] for row in rows] == [66, 81, 120, 162, 201, 240, 282]
    last = rows[-1]
    assert 0 < last["update_ratio"] < 0.1
    assert last["return_best"] > 1
    assert last["layers"].keys() == {"fc1", "head"}
    assert len(last["members"]["churn"]) == 2
    assert last["same_action_unrewarded"] is None  # every step of CartPole is rewarded
    metrics = RunFolder(tmp_path / "run").metrics()[-1]
    assert metrics["same_action_unrewarded"] is None
    assert 0 < metrics["same_action_rewarded"] < 1
    assert metrics["return_10"] != metrics["return_100"]


def learner_of(ensemble: Ensemble) -> Learner:
    settings = Settings(Adam(1e-3), clip=10.0, tau=0.1, hard_copy_every=0)
    return Learner(ensemble, Quantile(3), Controlled(), settings, torch.Generator().manual_seed(0))


def batch_of(shape: tuple[int, ...], size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(1)
    now, after = (torch.rand(size, *shape, generator=generator) for _ in range(2))
    action = torch.randint(0, 2, (size,), generator=generator)
    reward = torch.randint(0, 2, (size,), generator=generator).float()
    ones, index = torch.ones(size), torch.arange(size)
    return Batch(now, action, reward, 0.9 * ones, after, ones, index, index, reward > 0)


NETWORKS = {
    "mlp": (MLP((4,), 6, (7, 5)), (4,)),
    "minatar": (MinAtarNet((3, 5, 5), 6, 4, 6), (3, 5, 5)),
    "resnet": (ResNet((2, 16, 16), 6, 1, 8, (2, 2, 2, 2)), (2, 16, 16)),
    "impala": (Impala((2, 9, 9), 6, 1, 8, renormalise=True, dueling=True, atoms=3), (2, 9, 9)),
    "mlp, norm": (MLP((4,), 6, (7, 5), norm="layer"), (4,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_snapshot_equals_plain_autograd_on_each_member(name: str) -> None:
    network, shape = NETWORKS[name]
    learner, batch = learner_of(Ensemble(network, 3, 2, 3)), batch_of(shape)
    draw = DrawLayout(3, 8).plain(order=[1, 2, 0], forbid=True)
    shot = snapshot(learner, batch, draw, None)
    assert torch.equal(shot.q, learner.values(learner.online, batch.observation).q)
    leaves = {name: p.detach().requires_grad_() for name, p in learner.online.items()}
    loss, _ = learner.loss(learner.values(leaves, batch.observation), batch, shot.y, draw)
    gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    for key, g in gradient.items():
        assert torch.allclose(shot.gradients[key], g, atol=1e-6), key
    assert shot.features.shape[:2] == (3, 8)

    # The other form runs members one by one and must show the same units.
    looped = learner_of(dataclasses.replace(learner.ensemble, form="loop"))
    twin = snapshot(looped, batch, draw, None)
    assert twin.scores.keys() == twin.gradient_scores.keys() == shot.scores.keys() == shot.gradient_scores.keys()
    tap = Tap()
    z = learner.ensemble.forward(leaves, batch.observation, tap.around)
    loss, _ = learner.loss(Values(z, z.mean(-1)), batch, shot.y, draw)
    outputs = [y for (y,) in tap.outputs.values()]
    found = torch.autograd.grad(loss, outputs)
    for key, y, g in zip(tap.outputs, outputs, found, strict=True):
        values, slope = (members_first([part], learner.ensemble) for part in (y.detach(), g * (y > 0)))
        for mine, others, plain in (
            (shot.scores, twin.scores, values),
            (shot.gradient_scores, twin.gradient_scores, slope),
        ):
            assert torch.allclose(mine[key], unit_scores(unit_sizes(plain)), atol=1e-5), key
            assert torch.allclose(mine[key], others[key], atol=1e-4), key
        # What reaches a layer's units sums to its bias gradient.
        # A block's ReLU stands behind its shortcut too, with the same gradient; a pre-activation's, or one behind a
        # normalisation, behind more than the layer.
        if not key.endswith(("conv2", "stage1.conv", "stage2.conv", "stage3.conv")) and "norm" not in name:
            assert torch.allclose(slope.flatten(3).sum(3).sum(1) if slope.dim() > 3 else slope.sum(1),
                                  gradient[f"{key}.bias"], atol=1e-5), key  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_looked_at_in_pieces_shows_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = NETWORKS[name]
    learner, batch = learner_of(Ensemble(network, 3, 2, 3)), batch_of(shape)
    draw = DrawLayout(3, 8).plain(order=[1, 2, 0], forbid=True)
    previous = {name: p + 0.01 for name, p in learner.online.items()}
    whole = snapshot(learner, batch, draw, previous)
    outputs = 3 * sum(layer.written for layer in network.layers.values())
    monkeypatch.setitem(watch.PIECE, "cpu", 8 * 4 * outputs / 2.6)
    assert watch.states_together(learner.ensemble, 8, "cpu") == 3
    pieces = snapshot(learner, batch, draw, previous)
    for field in dataclasses.fields(whole):
        if field.name in ("layers", "estimator"):
            continue
        one, other = getattr(whole, field.name), getattr(pieces, field.name)
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6, msg=lambda text, n=field.name: f"{n}: {text}")


def test_only_rows_of_large_ensembles_are_looked_at_in_pieces() -> None:
    def together(members: int, scale: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> int:
        network = ResNet((4, 84, 84), 18 * 51, scale)
        return watch.states_together(Ensemble(network, members, 18, 51, dtype=dtype), 128, device)

    assert [together(4, scale) for scale in (1, 2, 4)] == [128, 128, 128]
    assert [together(16, scale) for scale in (1, 2, 4)] == [128, 64, 32]
    assert together(16, 4, torch.float32) == 16
    assert together(4, 1, torch.float32, "cpu") == 32
    assert together(10**5, 4) == 1


def test_returns_of_finished_trajectories() -> None:
    returns = Returns(lanes=2, gamma=0.5)
    none = np.zeros(2, bool)
    assert returns.columns() == {"return_mean": None, "return_best": None}
    returns.add(np.array([1.0, 0.0]), none, none)
    returns.add(np.array([2.0, 0.0]), np.array([True, False]), none)  # G = 2, 2
    assert returns.columns() == {"return_mean": 2.0, "return_best": 2.0}
    for _ in range(3):
        returns.add(np.array([0.0, 0.0]), none, none)
    # Lane 1 is cut after six steps of reward 0 0 0 0 0 8: with three or fewer left, more than a tenth is unseen.
    returns.add(np.array([0.0, 8.0]), none, np.array([False, True]))
    assert returns.finished[-1] == (0.25 + 0.5 + 1.0, 1.0, 3)  # G_0, G_1, G_2
    assert returns.columns() == {"return_mean": (4 + 1.75) / 5, "return_best": 2.0}

    twin = Returns(lanes=2, gamma=0.5)
    twin.restore(returns.state())
    for each in (returns, twin):
        each.add(np.array([16.0, 1.0]), np.array([True, False]), none)
    assert twin.columns() == returns.columns()
    assert twin.open.rewards == returns.open.rewards == [[], [1.0]]


def test_only_the_last_trajectories_count_but_the_best_stays() -> None:
    returns = Returns(lanes=1, gamma=0.9, keep=2)
    over = np.ones(1, bool)
    for reward in (9.0, 1.0, 3.0):
        returns.add(np.array([reward]), over, ~over)
    assert returns.columns() == {"return_mean": 2.0, "return_best": 9.0}


def test_due_once_in_each_interval() -> None:
    watch = Watch(every=10, batch=4, seed=0, lanes=1, gamma=0.9)
    assert not watch.due(9)
    assert watch.due(12)
    watch.measured = 12
    assert not watch.due(19)
    assert watch.due(20)


def test_a_measurement_waits_while_the_target_is_being_copied(tmp_path: Path) -> None:
    """Right after a hard copy the two networks are the same, and would look like no target network."""
    changes = {**SCALAR, "ensemble.members": 1, "replay.every": 1, "replay.ratio": 1, "optim.hard_copy_every": 16}
    run = train(presets.dqn("CartPole-v1").override({**changes, "steps": 130}), run=tmp_path / "run")
    rows = run.diagnostics()
    # Step 80 makes update 16 and copies; step 120 makes update 56 and does not.
    assert [row["step"] for row in rows] == [65, 81, 120]
    assert all(row["target_gap_relative"] > 0 for row in rows)


@pytest.mark.parametrize(("every", "ratio"), [(1, 1), (1, 4), (2, 4), (4, 4)])
def test_copies_in_step_with_the_replay_ratio_do_not_end_the_measuring(every: int, ratio: int, tmp_path: Path) -> None:
    changes = {**SCALAR, "ensemble.members": 1, "replay.every": 1, "replay.ratio": ratio}
    changes["optim.hard_copy_every"] = every
    run = train(presets.dqn("CartPole-v1").override({**changes, "steps": 130}), run=tmp_path / "run")
    rows = run.diagnostics()
    assert [row["step"] for row in rows] == [65, 80, 120]
    assert all((row["target_gap_relative"] > 0) == (every > 1) for row in rows)  # copied every time: no target network
    assert run.metrics()[-1]["updates"] == ratio * (run.metrics()[-1]["step"] - 64)


def test_a_categorical_run_logs_returns_and_no_probabilities(tmp_path: Path) -> None:
    """Values of CartPole begin near 0 and targets near 1 + gamma x 0; a mean over 51 probabilities would say 1/51."""
    changes = {**SCALAR, "ensemble.members": 1, "network.hidden": (16,), "steps": 300, "regulation.threshold": 6.0}
    folder = train(presets.c51("CartPole-v1").override(changes), run=tmp_path / "run")
    for row in folder.metrics()[1:]:
        assert 0.5 < row["target"] - row["q_taken"] < 1.2, row["step"]
        assert row["q_taken"] <= row["q_max"]
        assert row["clipped"] == 0.0
        assert 1.0 < row["loss"] < 5.0  # a cross-entropy over 51 returns: near log 51 = 3.9
    values = [row["q_taken"] for row in folder.metrics()[1:]]
    assert values[-1] > values[0] + 0.2  # it learns that steps are worth something
    for row in folder.diagnostics():
        assert "crossing" not in row
        assert "crossing" not in row["members"]
        assert 0.5 < row["td_error"] < 1.5
        assert -1 < row["q_taken"] < 5
        assert row["q_top"] >= row["q_greedy"] >= row["q_taken"]
        assert row["target_gap"] < 1
    assert len(folder.diagnostics()) > 4


@pytest.mark.parametrize("preset", ["qr_dqn", "dqn", "c51"])
def test_crossing_is_logged_of_quantiles_alone(preset: str, tmp_path: Path) -> None:
    changes = {**SCALAR, "ensemble.members": 1, "network.hidden": (8,), "steps": 90, "regulation.threshold": 6.0}
    rows = train(getattr(presets, preset)("CartPole-v1").override(changes), run=tmp_path / "run").diagnostics()
    assert rows
    assert all(("crossing" in row) == (preset == "qr_dqn") for row in rows)


def test_a_row_of_a_categorical_learner_by_hand() -> None:
    """Two certain members: every figure in units of return."""
    network = MLP((4,), 2 * 5, (3,))
    learner = Learner(
        Ensemble(network, 2, 2, 5), Categorical(5, 0.0, 4.0), Greedy(), Settings(Adam(1e-3), 10.0, 0.1, 0),
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    sure = torch.full((2, 2, 5), -30.0)  # member 0 is sure of 1 and 2, member 1 of 3 and 0
    for member, returns in enumerate(((1, 2), (3, 0))):
        for action, value in enumerate(returns):
            sure[member, action, value] = 30.0
    for params in (learner.online, learner.target):
        params["head.weight"].zero_()
        params["head.bias"].copy_(sure.view(2, 10))
    batch = dataclasses.replace(
        batch_of((4,), 2), action=torch.tensor([0, 1]), reward=torch.tensor([0.5, -1.0]),
        discount=torch.tensor([0.5, 0.0]), rewarded=torch.tensor([True, False]),
    )  # fmt: skip
    learner.ceiling.fill_(2.0)
    draw = DrawLayout(2, 2).plain()
    # Targets: 0.5 + max / 2 = 1.5 and 2, the second held by the ceiling; and -1, which the grid cuts off at 0.
    found = diagnostics_row(snapshot(learner, batch, draw, None))
    assert found["q_taken"] == pytest.approx((2 + 1) / 2)  # of the mean (2, 1) over members: action 0, then 1
    assert found["q_greedy"] == pytest.approx(2.0)
    assert found["members"]["td_error"] == pytest.approx([(0.5 + 2) / 2, (1 + 0) / 2])
    assert found["members"]["clipped"] == pytest.approx([0.25, 0.5])  # of member 0 half the odds of one target
    measures = learner.update(batch, draw).measures
    assert float(measures["target"]) == pytest.approx((1.5 + 2 + 0 + 0) / 4)
    assert float(measures["q_taken"]) == pytest.approx((1 + 2 + 3 + 0) / 4)
    assert float(measures["q_max"]) == pytest.approx((2 + 3) / 2)
    assert float(measures["clipped"]) == pytest.approx((0.5 + 1 + 0 + 0) / 4)
