"""The auxiliary losses by hand and by brute force, and updates with them against plain autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from steadyq.nets import MLP, Ensemble, Impala, Layered
from steadyq.nets.layered import data_efficient
from steadyq.value.auxiliary import Contrastive, SelfPrediction
from steadyq.value.estimators import Quantile
from steadyq.value.learner import MEASURES, Learner, Settings
from steadyq.value.operators import Greedy, take
from steadyq.value.optim import Adam
from steadyq.value.regulation import Evidence, Periodic, Regulation, Reinitialise, ShrinkPerturb, Spike
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
        goal = learner.ensemble.project(learner.target, batch.future.observation[step : step + 1])[:, 0].detach()
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
    assert set(update.measures) == set(learner.measured) == {*MEASURES, "auxiliary"}


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


# -- the contrastive loss ---------------------------------------------------------------------------------------------

UNITS, MOMENTUM = 6, 0.9
CONTRASTED = {
    "mlp": (MLP((5,), ACTIONS * ATOMS, (8, 7), contrast=UNITS, noisy=0.5), (5,)),
    "data-efficient": (
        Layered((2, 26, 25), ACTIONS * ATOMS, data_efficient((2, 26, 25), 7), contrast=UNITS),
        (2, 26, 25),
    ),
    "impala, average": (Impala((2, 6, 6), ACTIONS * ATOMS, 1, 7, contrast=UNITS, pooling="average"), (2, 6, 6)),
}


def contrasting(name: str, weight: float = 2.0, members: int = MEMBERS) -> Learner:
    """A learner whose slower copy is neither the online network nor the target."""
    ensemble = Ensemble(CONTRASTED[name][0], members, ACTIONS, ATOMS)
    settings = Settings(Adam(rate=1e-3), clip=1e9, tau=0.05, hard_copy_every=0)
    auxiliary = Contrastive(weight, MOMENTUM)
    learner = Learner(
        ensemble, Quantile(ATOMS), Greedy(), settings, torch.Generator().manual_seed(0), auxiliary=auxiliary
    )
    with torch.no_grad():
        for seed, follower in enumerate(learner.followers):
            for p in follower.values():
                p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
    return learner


def with_views(shape: tuple[int, ...]) -> Batch:
    views = torch.rand(2, COUNT, *shape, generator=torch.Generator().manual_seed(7))
    return replace(batch_of(shape), future=None, views=views)


def normalised(x: Tensor, own: dict[str, Tensor], name: str) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:]) * own[f"{name}.norm.weight"] + own[f"{name}.norm.bias"]


def key_by_hand(own: dict[str, Tensor], latent: Tensor) -> Tensor:
    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, own[f"{name}.weight"], own[f"{name}.bias"])

    hidden = normalised(linear("contrast.1", latent.flatten(1)), own, "contrast.1").relu()
    return normalised(linear("contrast.2", hidden), own, "contrast.2")


def test_the_contrastive_loss_by_hand() -> None:
    """Two samples, one member: products 30, 10 and 0, 20, a tenth of them as logits."""
    queries, keys = torch.tensor([[[3.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[10.0, 0.0], [10 / 3, 10.0]]])
    found = Contrastive().loss(queries, keys, batch_of((5,)))[0].tolist()
    expected = [-np.log(np.exp(3) / (np.exp(3) + np.exp(1))), -np.log(np.exp(2) / (np.exp(0) + np.exp(2)))]
    assert found == pytest.approx(expected, rel=1e-6)


def test_an_encoder_that_tells_nothing_apart_loses_the_log_of_the_batch() -> None:
    same = torch.ones(MEMBERS, COUNT, UNITS)
    found = Contrastive().loss(same, same, batch_of((5,)))
    torch.testing.assert_close(found, torch.full((MEMBERS, COUNT), float(np.log(COUNT))))


def test_the_contrastive_loss_of_a_data_efficient_network_by_brute_force() -> None:
    learner, batch = contrasting("data-efficient"), with_views((2, 26, 25))
    auxiliary, ensemble = learner.auxiliary, learner.ensemble
    assert auxiliary is not None
    assert batch.views is not None
    goal = auxiliary.goal(ensemble, learner.slow, batch)
    z, predicted = auxiliary.predict(ensemble, learner.online, batch)
    torch.testing.assert_close(z, ensemble.forward(learner.online, batch.observation))  # values see s as it is
    found = auxiliary.loss(predicted, goal, batch)

    def latent(own: dict[str, Tensor], images: Tensor) -> Tensor:
        for name in ("conv1", "conv2"):
            images = functional.conv2d(images, own[f"{name}.weight"], own[f"{name}.bias"], stride=5).relu()
        return images

    for member in range(MEMBERS):
        online, slow = ({key: p[member] for key, p in part.items()} for part in (learner.online, learner.slow))
        queries = key_by_hand(online, latent(online, batch.views[0]))
        queries = functional.linear(queries, online["contrast.product.weight"], online["contrast.product.bias"])
        keys = key_by_hand(slow, latent(slow, batch.views[1]))
        for i in range(COUNT):
            logits = torch.stack([0.1 * (queries[i] * keys[j]).sum() for j in range(COUNT)])
            expected = float(-logits[i] + logits.exp().sum().log())
            assert float(found[member, i]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", CONTRASTED)
def test_the_forms_agree_in_queries_and_keys(name: str) -> None:
    learner, shape = contrasting(name), CONTRASTED[name][1]
    x = torch.rand(COUNT, *shape, generator=torch.Generator().manual_seed(3))
    for query in (False, True):
        found = [
            replace(learner.ensemble, form=form).contrast(learner.online, x, query=query)  # type: ignore[arg-type]
            for form in ("loop", "stacked", "kernels")
        ]
        assert found[0].shape == (MEMBERS, COUNT, UNITS)
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", CONTRASTED)
def test_an_update_contrasts_with_the_slower_copy_which_then_follows(name: str) -> None:
    learner, batch = contrasting(name), with_views(CONTRASTED[name][1])
    assert batch.views is not None
    keep = np.ones((MEMBERS, COUNT))
    keep[0, :3] = 0
    layout = DrawLayout(MEMBERS, COUNT, keep=COUNT, noise=learner.ensemble.noise_size)
    noise = np.random.default_rng(0).standard_normal((2, MEMBERS, layout.noise))
    draw = layout.plain(keep=keep, rate=1e-3, noise=noise)
    leaves = {key: p.clone().requires_grad_() for key, p in learner.online.items()}
    slow = {key: p.clone() for key, p in learner.slow.items()}
    with torch.no_grad():
        y, _, _ = learner.targets(batch, draw)
        keys = learner.ensemble.contrast(slow, batch.views[1], query=False)
    z = learner.ensemble.forward(leaves, batch.observation, noise=draw.noise[0])
    values = Quantile(ATOMS).loss(take(z, batch.action.expand(MEMBERS, -1)), y)
    queries = learner.ensemble.contrast(leaves, batch.views[0], query=True)
    own = torch.arange(COUNT)
    beyond = torch.stack([
        functional.cross_entropy(0.1 * queries[m] @ keys[m].T, own, reduction="none") for m in range(MEMBERS)
    ])  # fmt: skip
    loss = (batch.weight * ((values + 2.0 * beyond) * torch.from_numpy(keep).float()).sum(0)).mean()
    gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    update = learner.update(batch, draw)
    for key, g in gradient.items():
        torch.testing.assert_close(learner.adam.first[key], 0.1 * g, rtol=1e-3, atol=1e-6)
        assert g.abs().sum() > 0, key
        torch.testing.assert_close(learner.slow[key], MOMENTUM * slow[key] + (1 - MOMENTUM) * learner.online[key])
    torch.testing.assert_close(update.priority, values.detach().mean(0))
    torch.testing.assert_close(update.measures["auxiliary"], (batch.weight * beyond.detach()).mean())


def test_without_views_a_state_is_shown_twice() -> None:
    batch = replace(with_views((5,)), views=None)
    for view in Contrastive().views(batch):
        assert torch.equal(view, batch.observation)


def test_members_are_contrasted_with_their_own_keys() -> None:
    """A member's loss does not know what another makes of the states."""
    learner, batch = contrasting("impala, average"), with_views((2, 6, 6))
    auxiliary = learner.auxiliary
    assert auxiliary is not None

    def losses() -> Tensor:
        goal = auxiliary.goal(learner.ensemble, learner.slow, batch)
        return auxiliary.loss(auxiliary.predict(learner.ensemble, learner.online, batch)[1], goal, batch)

    before = losses()
    for p in (*learner.online.values(), *learner.slow.values()):
        p[1] *= 1.5
    after = losses()
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_resets_treat_projection_and_product_as_head_and_reach_the_slower_copy() -> None:
    learner = contrasting("impala, average")
    before = {key: p.clone() for key, p in learner.online.items()}
    layers = learner.ensemble.network.monitored
    assert not any(name.startswith("contrast") for name in layers)
    slow = {key: p.clone() for key, p in learner.slow.items()}
    rule = Regulation(Periodic(10), ShrinkPerturb(encoder=0.0, head=1.0), "own")
    rule(learner, Evidence(layers, torch.ones(MEMBERS, len(layers))), torch.Generator().manual_seed(5))
    head = {"hidden", "head", "contrast.1", "contrast.2", "contrast.product"}
    norms = {"contrast.1.norm", "contrast.2.norm"}  # these were drawn as they were
    changed = {key.rsplit(".", 1)[0] for key, p in learner.online.items() if not torch.equal(p, before[key])}
    assert changed == head
    assert {key.rsplit(".", 1)[0] for key, p in learner.slow.items() if not torch.equal(p, slow[key])} == head | norms
    spikes = torch.ones(MEMBERS, len(layers))
    spikes[1, layers.index("hidden")] = 10.0
    Regulation(Spike(6.0), Reinitialise())(learner, Evidence(layers, spikes), torch.Generator().manual_seed(5))
    for key, p in learner.online.items():
        assert torch.equal(learner.slow[key][1], p[1]), key
    assert not torch.equal(learner.slow["hidden.weight"][0], learner.online["hidden.weight"][0])
