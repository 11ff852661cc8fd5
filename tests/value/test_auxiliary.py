"""The self-predictive loss by hand, and an update with it against plain autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from steadyq.nets import MLP, Ensemble, Impala
from steadyq.value.auxiliary import SelfPrediction
from steadyq.value.estimators import Quantile
from steadyq.value.learner import MEASURES, Learner, Settings
from steadyq.value.operators import Greedy, take
from steadyq.value.optim import Adam
from steadyq.value.regulation import Evidence, Periodic, Regulation, ShrinkPerturb
from steadyq.value.shapes import Batch, DrawLayout, Future

ACTIONS, ATOMS, COUNT, STEPS, MEMBERS = 3, 4, 6, 2, 2
NETWORKS = {
    "mlp": (MLP((5,), ACTIONS * ATOMS, (8, 7), transition=ACTIONS), (5,)),
    "impala": (Impala((2, 6, 6), ACTIONS * ATOMS, 1, 8, renormalise=True, transition=ACTIONS), (2, 6, 6)),
}


def batch_of(shape: tuple[int, ...], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    see = torch.rand(2 + STEPS, COUNT, *shape, generator=generator)
    action = torch.randint(ACTIONS, (STEPS, COUNT), generator=generator)
    known = torch.ones(STEPS, COUNT, dtype=torch.bool)
    known[1, 0] = known[:, 1] = False  # ended after one step, and at once
    reward, index = torch.randn(COUNT, generator=generator), torch.arange(COUNT)
    weight = 0.2 + 0.8 * torch.rand(COUNT, generator=generator)
    return Batch(
        see[0], action[0], reward, torch.full((COUNT,), 0.9), see[1], weight, index, index, reward > 0,
        future=Future(see[2:], action, known),
    )  # fmt: skip


def learner_of(name: str, weight: float | None = 2.0) -> Learner:
    ensemble = Ensemble(NETWORKS[name][0], MEMBERS, ACTIONS, ATOMS)
    auxiliary = None if weight is None else SelfPrediction(STEPS, weight)
    settings = Settings(Adam(rate=1e-3), clip=1e9, tau=0.05, hard_copy_every=0)
    learner = Learner(
        ensemble, Quantile(ATOMS), Greedy(), settings, torch.Generator().manual_seed(0), auxiliary=auxiliary
    )
    with torch.no_grad():
        for p in learner.target.values():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    return learner


def test_the_loss_by_hand() -> None:
    """One member, two steps, three samples: the same direction, a right angle, the opposite one, and what is masked."""
    predicted = torch.tensor([[[[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]], [[1.0, 1.0], [5.0, 0.0], [0.0, 1.0]]]])
    goal = torch.tensor([[[[7.0, 0.0], [1.0, 0.0], [-4.0, 0.0]], [[1.0, 0.0], [5.0, 0.0], [1.0, 0.0]]]])
    batch = batch_of((5,))
    known = torch.tensor([[True, True, True], [True, True, False]])
    assert batch.future is not None
    batch = replace(batch, future=replace(batch.future, known=known))
    found = SelfPrediction(2).loss(predicted, goal, batch)
    diagonal = 2 - 2 * np.sqrt(0.5)
    assert found[0].tolist() == pytest.approx([(0 + diagonal) / 2, (2 + 0) / 2, 4 / 2], abs=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_is_the_gradient_of_both_losses_with_the_targets_held(name: str) -> None:
    learner, batch = learner_of(name), batch_of(NETWORKS[name][1])
    assert batch.future is not None
    keep = np.ones((MEMBERS, COUNT))
    keep[0, :3] = 0
    layout = DrawLayout(MEMBERS, COUNT, keep=COUNT)
    draw = layout.plain(keep=keep, rate=1e-3)
    leaves = {key: p.clone().requires_grad_() for key, p in learner.online.items()}
    with torch.no_grad():
        y, _, _ = learner.targets(batch, draw)
    z = take(learner.ensemble.forward(leaves, batch.observation), batch.action.expand(MEMBERS, -1))
    values = Quantile(ATOMS).loss(z, y)
    ahead = torch.zeros(MEMBERS, COUNT)
    _, predicted = learner.ensemble.predict(leaves, batch.observation, batch.future.action)
    for step in range(STEPS):
        goal = learner.ensemble.project(learner.target, batch.future.observation[step]).detach()
        cosine = functional.cosine_similarity(predicted[:, step], goal, dim=-1)
        ahead = ahead + (2 - 2 * cosine) * batch.future.known[step] / STEPS
    loss = (batch.weight * ((values + 2.0 * ahead) * torch.from_numpy(keep).float()).sum(0)).mean()
    gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    update = learner.update(batch, draw)
    for key, g in gradient.items():
        torch.testing.assert_close(learner.adam.first[key], 0.1 * g, rtol=1e-3, atol=1e-6)
        assert g.abs().sum() > 0, key  # encoder, transition, projection, predictor and outputs all learn
    torch.testing.assert_close(update.priority, values.detach().mean(0))  # samples are judged by their values alone
    torch.testing.assert_close(update.measures["auxiliary"], (batch.weight * ahead.detach()).mean())
    assert tuple(update.measures) == ("auxiliary", *MEASURES)
    assert set(update.measures) == set(learner.measured)


def test_with_weight_zero_values_learn_as_without_it_and_the_model_stays() -> None:
    with_it, without = learner_of("impala", 0.0), learner_of("impala", None)
    batch, draw = batch_of((2, 6, 6)), DrawLayout(MEMBERS, COUNT).plain(rate=1e-3)
    before = {key: p.clone() for key, p in with_it.online.items()}
    with_it.update(batch, draw)
    leaves = {key: p.clone().requires_grad_() for key, p in without.online.items()}
    y, _, _ = without.targets(batch, draw)
    loss, _ = without.loss(without.values(leaves, batch.observation), batch, y, draw)
    gradient = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    for key, g in zip(leaves, gradient, strict=True):
        torch.testing.assert_close(with_it.adam.first[key], 0.1 * g, rtol=1e-4, atol=1e-7)
        if key.startswith(("transition", "predictor")):
            assert torch.equal(with_it.online[key], before[key])


def test_what_lies_beyond_the_end_changes_nothing() -> None:
    found = []
    for noise in (0.0, 5.0):
        learner, batch = learner_of("mlp"), batch_of((5,))
        assert batch.future is not None
        seen = torch.where(batch.future.known[..., None], batch.future.observation, noise)
        action = torch.where(batch.future.known, batch.future.action, int(noise > 0))
        action[0] = batch.action  # the transition's own action is always known
        learner.update(replace(batch, future=Future(seen, action, batch.future.known)), DrawLayout(2, COUNT).plain())
        found.append(learner.online)
    for key, p in found[0].items():
        torch.testing.assert_close(p, found[1][key], rtol=0, atol=1e-7)


def test_a_vector_without_length_has_a_bounded_gradient() -> None:
    predicted = torch.zeros(1, STEPS, COUNT, 3, requires_grad=True)
    goal = torch.ones(1, STEPS, COUNT, 3)
    loss = SelfPrediction(STEPS).loss(predicted, goal, batch_of((5,)))
    (slope,) = torch.autograd.grad(loss.sum(), predicted)
    assert slope.isfinite().all()
    assert loss.isfinite().all()


def test_a_batch_without_its_future_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the steps after a batch"):
        learner_of("mlp").update(replace(batch_of((5,)), future=None), DrawLayout(2, COUNT).plain())


def test_a_scheduled_reset_treats_the_transition_as_encoder_and_the_predictor_as_head() -> None:
    learner = learner_of("impala")
    before = {key: p.clone() for key, p in learner.online.items()}
    rule = Regulation(Periodic(10), ShrinkPerturb(encoder=0.0, head=1.0), "own")
    layers = learner.ensemble.network.monitored
    rule(learner, Evidence(layers, torch.ones(MEMBERS, len(layers))), torch.Generator().manual_seed(5))
    changed = {key.rsplit(".", 1)[0] for key, p in learner.online.items() if not torch.equal(p, before[key])}
    assert changed == {"hidden", "head", "predictor"}
