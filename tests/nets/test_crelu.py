"""CReLU: both signs of every unit, by brute force, in every form and network; and units that are counted as one."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from steadyq.errors import UserError
from steadyq.monitor.rows import row
from steadyq.monitor.watch import activation_scores, snapshot
from steadyq.nets import MLP, Ensemble, Impala, Layered, MinAtarNet, ResNet
from steadyq.nets.encoders import Described
from steadyq.nets.forms import FORMS
from steadyq.nets.units import reading_columns
from steadyq.value.estimators import Scalar
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Greedy
from steadyq.value.optim import Adam
from steadyq.value.regulation import Dormant, Evidence, Recycle, Regulation
from steadyq.value.shapes import Batch, DrawLayout, Params

MEMBERS, ACTIONS, COUNT = 2, 3, 5
NETWORKS: dict[str, tuple[Described, tuple[int, ...]]] = {
    "mlp": (MLP((5,), ACTIONS, (8, 7), activation="crelu"), (5,)),
    "mlp, norm": (MLP((5,), ACTIONS, (8, 7), activation="crelu", norm="layer"), (5,)),
    "minatar": (MinAtarNet((2, 6, 6), ACTIONS, 4, 8, activation="crelu"), (2, 6, 6)),
    "impala": (Impala((2, 6, 6), ACTIONS, 1, 8, activation="crelu", dueling=True), (2, 6, 6)),
    "layers": (
        Layered((2, 6, 6), ACTIONS, ("conv 3 3 1 1", "conv 4 3 2", "linear 8"), activation="crelu", cosines=6),
        (2, 6, 6),
    ),
    "cnn, spr": (
        Layered((2, 6, 6), ACTIONS, ("conv 3 3 1 1", "conv 4 3 2", "linear 8"), activation="crelu", transition=ACTIONS),
        (2, 6, 6),
    ),
}


def both(x: torch.Tensor) -> torch.Tensor:
    """The parts of each unit of x[batch, unit, ...] one after another, unit by unit."""
    return torch.stack([part for unit in x.unbind(1) for part in (unit.clamp_min(0), (-unit).clamp_min(0))], 1)


def test_the_minatar_network_by_brute_force() -> None:
    network, shape = NETWORKS["minatar"]
    assert (network.layers["hidden"].inputs, network.layers["head"].inputs) == (2 * 4 * 4 * 4, 2 * 8)
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1)
    generator = torch.Generator().manual_seed(0)
    params, x = ensemble.initial(generator), torch.rand(COUNT, *shape, generator=generator)
    z = ensemble.forward(params, x)
    for member in range(MEMBERS):
        own = {key: p[member] for key, p in params.items()}
        h = both(functional.conv2d(x, own["conv.weight"], own["conv.bias"]))
        h = both(h.flatten(1) @ own["hidden.weight"].T + own["hidden.bias"])
        torch.testing.assert_close(z[member, :, :, 0], h @ own["head.weight"].T + own["head.bias"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_form_says_the_same(name: str, form: str) -> None:
    network, shape = NETWORKS[name]
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1, form=form)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    params, x = ensemble.initial(generator), torch.rand(COUNT, *shape, generator=generator)
    plain = replace(ensemble, form="loop")
    torch.testing.assert_close(ensemble.forward(params, x), plain.forward(params, x), rtol=1e-4, atol=1e-5)
    if network.transition:
        actions = torch.arange(2 * COUNT).view(2, COUNT) % ACTIONS
        for mine, theirs in zip(ensemble.predict(params, x, actions), plain.predict(params, x, actions), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_resnet_says_why_not() -> None:
    with pytest.raises(UserError, match="its shortcuts would add an image that is twice as wide"):
        _ = ResNet((2, 6, 6), ACTIONS, 1, 4, activation="crelu").layers


def learner_of(name: str, form: str = "stacked") -> tuple[Learner, Batch]:
    network, shape = NETWORKS[name]
    settings = Settings(Adam(rate=1e-2), clip=10.0, tau=0.1, hard_copy_every=0, unit_steps=True)
    generator = torch.Generator().manual_seed(0)
    see, index = torch.rand(2, COUNT, *shape, generator=generator), torch.arange(COUNT)
    ones, reward = torch.ones(COUNT), torch.randn(COUNT, generator=generator)
    batch = Batch(see[0], index % ACTIONS, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1, form=form)  # type: ignore[arg-type]
    return Learner(ensemble, Scalar(), Greedy(), settings, torch.Generator().manual_seed(1)), batch


def silence(params: Params, name: str, member: int, unit: int) -> None:
    with torch.no_grad():
        params[f"{name}.weight"][member, unit] = 0
        params[f"{name}.bias"][member, unit] = 0


@pytest.mark.parametrize("form", FORMS)
def test_a_unit_is_as_large_as_both_its_parts_and_dormant_if_both_are_nothing(form: str) -> None:
    learner, batch = learner_of("minatar", form)
    silence(learner.online, "hidden", 1, 3)
    with torch.no_grad():  # always negative: with a ReLU it would be dead
        learner.online["hidden.weight"][0, 2] = 0
        learner.online["hidden.bias"][0, 2] = -1.0
    scores = activation_scores(learner.ensemble, learner.online, batch.observation)
    assert {key: tuple(s.shape) for key, s in scores.items()} == {"conv": (2, 4), "hidden": (2, 8)}
    assert (scores["hidden"] <= 0.1).nonzero().tolist() == [[1, 3]]
    own = {key: p[0] for key, p in learner.online.items()}
    x = both(functional.conv2d(batch.observation, own["conv.weight"], own["conv.bias"])).flatten(1)
    size = (x @ own["hidden.weight"].T + own["hidden.bias"]).abs().mean(0).double()
    torch.testing.assert_close(scores["hidden"][0], size / size.mean(), rtol=1e-4, atol=1e-5)
    draw = DrawLayout(MEMBERS, COUNT).plain()
    found = row(snapshot(learner, batch, draw, None))
    assert found["layers"]["hidden"]["dormant"] == pytest.approx(1 / 16)
    assert found["layers"]["hidden"]["dormant_gradient"] >= 0
    assert found["rank_possible"] == min(COUNT, 16)  # what the outputs read is twice as wide


def test_a_recycled_unit_is_read_by_nobody_in_both_its_parts() -> None:
    learner, batch = learner_of("layers")
    for layer in ("conv1", "conv2", "fc1"):
        silence(learner.online, layer, 1, 2)
    before = {key: p.clone() for key, p in learner.online.items()}
    network = learner.ensemble.network
    scores = activation_scores(learner.ensemble, learner.online, batch.observation)
    evidence = Evidence(network.monitored, torch.ones(MEMBERS, len(network.monitored)), scores)
    events = Regulation(Dormant(1e-9), Recycle(1e-9), "keep")(learner, evidence, torch.Generator().manual_seed(3))
    assert {(e["layer"], e["member"], e["units"]) for e in events} == {(n, 1, 1) for n in ("conv1", "conv2", "fc1")}
    unit = {n: torch.zeros(MEMBERS, network.layers[n].outputs, dtype=torch.bool) for n in ("conv1", "conv2", "fc1")}
    for marked in unit.values():
        marked[1, 2] = True
    touched = {key: torch.zeros(p.shape, dtype=torch.bool) for key, p in before.items()}
    for layer, reader, each in (("conv1", "conv2", 2), ("conv2", "fc1", 2 * 2 * 2), ("fc1", "head", 2)):
        touched[f"{layer}.weight"][1, 2] = True
        columns = reading_columns(unit[layer], network.layers[reader])
        assert columns[1].flatten().nonzero().flatten().tolist() == list(range(2 * each, 3 * each))
        touched[f"{reader}.weight"] |= columns
        rows = [r for r in range(network.layers[reader].outputs) if r != 2 or reader == "head"]  # 2 is redrawn itself
        assert not learner.online[f"{reader}.weight"][1][rows, 2 * each : 3 * each].any()
    for key, p in learner.online.items():
        assert torch.equal(p[~touched[key]], before[key][~touched[key]]), key
