"""Plasticity injection: values stay as they are, the fresh head alone learns, and until then nothing is different."""

import copy
from dataclasses import replace
from typing import Literal

import pytest
import torch

from steadyq.monitor.diagnostics import plasticity_probe
from steadyq.monitor.rows import row
from steadyq.monitor.watch import activation_scores, snapshot
from steadyq.nets import MLP, Ensemble, Impala, MinAtarNet
from steadyq.nets.encoders import Described
from steadyq.nets.forms import FORMS
from steadyq.nets.injection import Injected
from steadyq.nets.prior import WithPrior
from steadyq.value.estimators import Implicit, Scalar
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Double
from steadyq.value.optim import Adam
from steadyq.value.penalties import Penalties, orthogonal
from steadyq.value.regulation import Evidence, Inject, Periodic, Regulation
from steadyq.value.shapes import Batch, DrawLayout, Params

MEMBERS, ACTIONS, COUNT = 2, 3, 4
NETWORKS: dict[str, tuple[Described, tuple[int, ...]]] = {
    "mlp, norm": (MLP((5,), ACTIONS, (8, 7), norm="layer"), (5,)),
    "minatar, crelu": (MinAtarNet((2, 6, 6), ACTIONS, 4, 8, activation="crelu"), (2, 6, 6)),
    "minatar, spectral": (MinAtarNet((2, 6, 6), ACTIONS, 4, 8, spectral=True), (2, 6, 6)),
    "impala, dueling": (Impala((2, 6, 6), ACTIONS, 1, 8, dueling=True), (2, 6, 6)),
    "mlp, implicit": (MLP((5,), ACTIONS, (8, 7), cosines=6), (5,)),
}


def learner_of(name: str, injected: bool = True, prior: bool = False) -> tuple[Learner, Batch, DrawLayout]:
    network, shape = NETWORKS[name]
    settings = Settings(
        Adam(rate=1e-2, decay=0.1), clip=10.0, tau=0.1, hard_copy_every=0, penalties=Penalties(pull=0.01, parseval=0.01)
    )
    whole = Injected(network) if injected else network
    ensemble = Ensemble(WithPrior(whole, 2.0) if prior else whole, MEMBERS, ACTIONS, 1)
    generator = torch.Generator().manual_seed(0)
    see, index = torch.rand(2, COUNT, *shape, generator=generator), torch.arange(COUNT)
    ones, reward = torch.ones(COUNT), torch.randn(COUNT, generator=generator)
    batch = Batch(see[0], index % ACTIONS, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    estimator = Implicit(5, 32) if network.cosines else Scalar()
    learner = Learner(ensemble, estimator, Double(), settings, torch.Generator().manual_seed(1))
    return learner, batch, DrawLayout(MEMBERS, COUNT, samples=5 if network.cosines else 0)


def update(learner: Learner, batch: Batch, layout: DrawLayout) -> None:
    draw = layout.plain(rate=1e-2)
    if layout.samples:
        draw = replace(draw, taus=torch.rand(2, COUNT, 5, generator=torch.Generator().manual_seed(learner.updates)))
    learner.update(batch, draw)
    learner.updates += 1


def inject(learner: Learner, target: Literal["synchronise", "own"] = "own") -> list[dict[str, object]]:
    layers = learner.ensemble.network.monitored
    evidence = Evidence(layers, torch.ones(MEMBERS, len(layers)))
    return Regulation(Periodic(3, 3), Inject(), target)(learner, evidence, torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", NETWORKS)
def test_until_then_all_is_as_without_it_bit_for_bit(name: str) -> None:
    learner, batch, layout = learner_of(name)
    plain, _, _ = learner_of(name, injected=False)
    for _ in range(3):
        update(learner, batch, layout)
        update(plain, batch, layout)
    for key, p in plain.online.items():
        assert torch.equal(learner.online[key], p), key
        assert torch.equal(learner.target[key], plain.target[key]), key
    others = learner.online.keys() - plain.online.keys()
    assert others
    assert not any(learner.online[key].any() for key in others if not key.endswith((".left", ".right")))


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_values_stay_and_only_the_fresh_head_and_the_encoder_learn_on(name: str, prior: bool) -> None:
    learner, batch, layout = learner_of(name, prior=prior)
    for _ in range(3):
        update(learner, batch, layout)
    network, values = NETWORKS[name][0], []
    head = [
        key for key in learner.online if not key.startswith("prior.") and network.group(key.rsplit(".", 1)[0]) == "head"
    ]
    head = [key for key in head if not key.startswith(("kept.", "copy."))]
    groups = (learner.online, learner.target, learner.adam.first, learner.adam.second, learner.adam.step)
    places = [p.data_ptr() for group in groups for p in group.values()]
    before = copy.deepcopy(learner.online)
    for params in (learner.online, learner.target):
        values.append(learner.values(params, batch.observation).z)
    events = inject(learner)
    assert events == [{"kind": "inject", "trigger": "periodic", "scope": "head", "strength": 1.0}]
    for params, old in zip((learner.online, learner.target), values, strict=True):  # own: the target's stay too
        torch.testing.assert_close(learner.values(params, batch.observation).z, old, rtol=1e-4, atol=1e-5)
    for key, p in learner.online.items():
        if key in head:
            if not key.endswith((".norm.weight", ".norm.bias")):
                assert not torch.equal(p, before[key])
            assert torch.equal(p, learner.online[f"copy.{key}"])
            assert torch.equal(before[key], learner.online[f"kept.{key}"])
            if key in learner.adam.first:
                assert not learner.adam.first[key].any()
                assert not learner.adam.step[key].any()
        elif not key.startswith(("kept.", "copy.")):
            assert torch.equal(p, before[key]), key
    assert [p.data_ptr() for group in groups for p in group.values()] == places

    now = copy.deepcopy(learner.online)
    for _ in range(3):
        update(learner, batch, layout)
    for key, p in learner.online.items():
        if key.endswith((".left", ".right")):
            continue
        assert torch.equal(p, now[key]) == (key in learner.ensemble.still), key


def heads_by_hand(learner: Learner, x: torch.Tensor) -> torch.Tensor:
    """head(x) + new_a(x) - new_b(x), each head behind the one encoder as a network of its own."""
    network = learner.ensemble.network
    assert isinstance(network, Injected)
    plain = replace(learner.ensemble, network=network.network, form="loop")
    found = []
    for twin in ("", "kept.", "copy."):
        params: Params = {key: learner.online.get(f"{twin}{key}", learner.online[key]) for key in plain.shapes()}
        found.append(plain.forward(params, x))
    return found[0] + found[1] - found[2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_form_adds_up_three_heads(name: str, form: str) -> None:
    learner, batch, layout = learner_of(name)
    inject(learner)
    update(learner, batch, layout)
    ensemble = replace(learner.ensemble, form=form)  # type: ignore[arg-type]
    expected = heads_by_hand(learner, batch.observation)
    torch.testing.assert_close(ensemble.forward(learner.online, batch.observation), expected, rtol=1e-4, atol=1e-5)


def test_gradients_reach_the_encoder_through_the_kept_head_and_not_through_the_copy() -> None:
    learner, batch, _ = learner_of("mlp, norm")
    inject(learner)
    ensemble = learner.ensemble

    def slope(**scaled: float) -> torch.Tensor:
        params = {
            key: (p * next((s for twin, s in scaled.items() if key.startswith(f"{twin}.head")), 1.0))
            .detach()
            .requires_grad_()
            for key, p in learner.online.items()
        }
        total = ensemble.forward(params, batch.observation).sum()
        (found,) = torch.autograd.grad(total, params["fc1.weight"])
        return found

    assert torch.equal(slope(), slope(copy=3.0))
    assert not torch.allclose(slope(), slope(kept=3.0))


def test_a_synchronised_target_is_the_online_network() -> None:
    learner, batch, layout = learner_of("minatar, crelu")
    for _ in range(3):
        update(learner, batch, layout)
    inject(learner, "synchronise")
    assert all(torch.equal(learner.target[key], p) for key, p in learner.online.items())


def test_the_monitor_sees_what_learns() -> None:
    learner, batch, layout = learner_of("minatar, crelu")
    inject(learner)
    assert set(activation_scores(learner.ensemble, learner.online, batch.observation)) == {"conv", "hidden"}
    assert orthogonal(learner.ensemble.network) == ["hidden"]
    found = row(snapshot(learner, batch, layout.plain(), learner.online))
    assert set(found["layers"]) == {"conv", "hidden", "head"}
    own = [p for key, p in learner.online.items() if not key.startswith(("kept.", "copy."))]
    norm = torch.stack([torch.cat([p[member].flatten() for p in own]).norm() for member in range(MEMBERS)]).mean()
    assert found["weight_norm"] == pytest.approx(float(norm), rel=1e-4)
    left = plasticity_probe(
        learner.ensemble.forward, learner.online, batch.observation, generator=torch.Generator(), steps=50, rate=1e-2
    )
    assert (left < 0.9).all()  # it can learn, and what is fixed is in nobody's way
