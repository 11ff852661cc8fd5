"""Priors: added to values in every form, never learned, never reset."""

from dataclasses import replace

import pytest
import torch

from steadyq.monitor.watch import activation_scores, snapshot
from steadyq.nets import MLP, Ensemble, Impala, MinAtarNet, Network
from steadyq.nets.forms import FORMS
from steadyq.nets.prior import WithPrior
from steadyq.value.estimators import Scalar
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Double
from steadyq.value.optim import Adam
from steadyq.value.regulation import Evidence, Intervention, Periodic, Regulation, Reinitialise, ShrinkPerturb
from steadyq.value.shapes import Batch, DrawLayout

MEMBERS, ACTIONS, COUNT = 2, 3, 4
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "mlp, norm": (MLP((5,), ACTIONS, (8, 7), norm="layer"), (5,)),
    "minatar": (MinAtarNet((2, 6, 6), ACTIONS, 4, 8), (2, 6, 6)),
    "impala": (Impala((2, 6, 6), ACTIONS, 1, 8, dueling=True), (2, 6, 6)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_the_networks_plus_the_scaled_priors(name: str, form: str) -> None:
    network, shape = NETWORKS[name]
    both = Ensemble(WithPrior(network, 3.0), MEMBERS, ACTIONS, 1, form=form)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    params = both.initial(generator)
    x = torch.randn(COUNT, *shape, generator=generator)
    plain = replace(both, network=network, form="loop")
    twins = {key.removeprefix("prior."): p for key, p in params.items() if key.startswith("prior.")}
    own, prior = (plain.forward({key: part[key] for key in twins}, x) for part in (params, twins))
    torch.testing.assert_close(both.forward(params, x), own + 3.0 * prior, rtol=1e-4, atol=1e-5)
    assert (own - prior).abs().max() > 0.01  # a draw of its own


def learner_of(name: str) -> tuple[Learner, Batch]:
    network, shape = NETWORKS[name]
    settings = Settings(Adam(rate=1e-2), clip=10.0, tau=0.5, hard_copy_every=0)
    ensemble = Ensemble(WithPrior(network, 3.0), MEMBERS, ACTIONS, 1)
    generator = torch.Generator().manual_seed(0)
    see, index = torch.rand(2, COUNT, *shape, generator=generator), torch.arange(COUNT)
    ones, reward = torch.ones(COUNT), torch.randn(COUNT, generator=generator)
    batch = Batch(see[0], index % ACTIONS, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    return Learner(ensemble, Scalar(), Double(), settings, torch.Generator().manual_seed(1)), batch


@pytest.mark.parametrize("name", NETWORKS)
def test_priors_neither_learn_nor_move_and_all_else_does(name: str) -> None:
    learner, batch = learner_of(name)
    before = {key: p.clone() for key, p in learner.online.items()}
    for _ in range(3):
        learner.update(batch, DrawLayout(MEMBERS, COUNT).plain(rate=1e-2))
    for key, p in learner.online.items():
        assert torch.equal(p, before[key]) == key.startswith("prior."), key
        if key.startswith("prior."):
            assert torch.equal(learner.target[key], p)


@pytest.mark.parametrize("intervention", [Reinitialise(), ShrinkPerturb()], ids=["reinitialise", "shrink_perturb"])
def test_scheduled_resets_leave_priors_alone(intervention: Intervention) -> None:
    learner, _ = learner_of("impala")
    before = {key: p.clone() for key, p in learner.online.items()}
    layers = learner.ensemble.network.monitored
    seen = Evidence(layers, torch.ones(MEMBERS, len(layers)))
    events = Regulation(Periodic(10), intervention, "own")(learner, seen, torch.Generator().manual_seed(5))
    assert {event["scope"] for event in events} == {"encoder", "head"}
    for key, p in learner.online.items():
        untouched = key.startswith("prior.")
        assert torch.equal(p, before[key]) == untouched, key
        assert torch.equal(learner.target[key], before[key]) == untouched, key


@pytest.mark.parametrize("name", NETWORKS)
def test_units_are_measured_where_something_learns(name: str) -> None:
    learner, batch = learner_of(name)
    shot = snapshot(learner, batch, DrawLayout(MEMBERS, COUNT).plain(), None)
    scores = activation_scores(learner.ensemble, learner.online, batch.observation)
    plain = Ensemble(NETWORKS[name][0], MEMBERS, ACTIONS, 1)
    own = {key: p for key, p in learner.online.items() if not key.startswith("prior.")}
    expected = activation_scores(plain, own, batch.observation)
    assert scores.keys() == shot.scores.keys() == shot.gradient_scores.keys() == expected.keys()
    for key, score in expected.items():
        torch.testing.assert_close(scores[key], score)
    assert shot.features.shape[:2] == (MEMBERS, COUNT)
