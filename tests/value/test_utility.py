"""Continual backprop: utilities, ages and what falls due by a loop over single units; what a replacement touches."""

import copy

import pytest
import torch
from torch import Tensor

from steadyq.nets import MLP, Ensemble, Layered, MinAtarNet, Network
from steadyq.nets.forms import FORMS
from steadyq.value.estimators import Scalar
from steadyq.value.flat import Flat
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Greedy
from steadyq.value.optim import Adam
from steadyq.value.regulation import Always, Evidence, Regulation, Replace
from steadyq.value.shapes import Batch, DrawLayout
from steadyq.value.utility import Replacement

MEMBERS, ACTIONS, COUNT = 2, 3, 4
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "mlp, dueling": (MLP((5,), ACTIONS, (8, 7), dueling=True), (5,)),
    "minatar": (MinAtarNet((2, 5, 5), ACTIONS, 3, 6), (2, 5, 5)),
    "layers, crelu": (
        Layered((2, 6, 6), ACTIONS, ("conv 3 3 1 1", "conv 4 3 2", "linear 6"), activation="crelu"),
        (2, 6, 6),
    ),
}
FOLLOWING = {
    "mlp, dueling": {"fc1": ("fc2",), "fc2": ("value", "advantage")},
    "minatar": {"conv": ("hidden",), "hidden": ("head",)},
    "layers, crelu": {"conv1": ("conv2",), "conv2": ("fc1",), "fc1": ("head",)},
}
DRAW = DrawLayout(MEMBERS, COUNT).plain(rate=1e-2)


def learner_of(name: str, settings: Replacement, form: str = "stacked", flat: bool = False) -> Learner:
    network, _ = NETWORKS[name]
    plain = Settings(Adam(rate=1e-2), clip=10.0, tau=0.1, hard_copy_every=0, unit_steps=True, replacement=settings)
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1, form=form)  # type: ignore[arg-type]
    learner = Learner(ensemble, Scalar(), Greedy(), plain, torch.Generator().manual_seed(1))
    if flat:  # as on a GPU
        learner.flat = Flat(learner.online, plain.adam, torch.float32, (), True)
        learner.online = learner.online_low = learner.flat.online
        learner.target, learner.adam = learner.flat.target, learner.flat.adam
        learner.target_low = learner.target
    return learner


def batch_of(name: str, seed: int) -> Batch:
    shape, generator = NETWORKS[name][1], torch.Generator().manual_seed(seed)
    see, index = torch.rand(2, COUNT, *shape, generator=generator), torch.arange(COUNT)
    ones, reward = torch.ones(COUNT), torch.randn(COUNT, generator=generator)
    return Batch(see[0], index % ACTIONS, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)


class _Looking:
    """What one member's hidden layers put out, [batch, part, ...], by ordinary calls."""

    def __init__(self, name: str, learner: Learner) -> None:
        self.name, self.learner = name, learner

    def __call__(self, member: int, x: Tensor) -> dict[str, Tensor]:
        own, found = {key: p[member] for key, p in self.learner.online.items()}, dict[str, Tensor]()
        network = self.learner.ensemble.network
        for layer in FOLLOWING[self.name]:
            weight, bias, kind = own[f"{layer}.weight"], own[f"{layer}.bias"], network.layers[layer]
            if weight.dim() == 4:
                x = torch.nn.functional.conv2d(x, weight, bias, kind.stride, kind.padding)  # type: ignore[union-attr]
            else:
                x = x.flatten(1) @ weight.T + bias
            if "crelu" in self.name:
                x = torch.stack((x.relu(), (-x).relu()), 2).flatten(1, 2)
            x = x.relu()
            found[layer] = x
        return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_utilities_by_a_loop_over_units(name: str, form: str) -> None:
    rate, maturity, decay, updates = 0.3, 2, 0.9, 6
    learner = learner_of(name, Replacement(rate, maturity, decay), form)
    utility, network = learner.utility, learner.ensemble.network
    assert utility is not None
    value: dict[tuple[str, int, int], float] = {}
    mean: dict[tuple[str, int, int], float] = {}
    owed: dict[tuple[str, int], float] = {}
    parts = 2 if "crelu" in name else 1
    for step in range(updates):
        batch = batch_of(name, step)
        seen = [_Looking(name, learner)(member, batch.observation) for member in range(MEMBERS)]
        learner.update(batch, DRAW)
        for layer, readers in FOLLOWING[name].items():
            for member in range(MEMBERS):
                own = {reader: learner.online[f"{reader}.weight"][member] for reader in readers}
                for unit in range(network.layers[layer].outputs):
                    contribution = 0.0
                    for part in range(unit * parts, (unit + 1) * parts):
                        put_out = float(seen[member][layer][:, part].mean())
                        sizes = []
                        for weight in own.values():
                            each = weight.shape[1] // (network.layers[layer].outputs * parts)
                            sizes.append(weight[:, part * each : (part + 1) * each].abs().flatten())
                        contribution += put_out * float(torch.cat(sizes).mean())
                        key = (layer, member, part)
                        mean[key] = decay * mean.get(key, 0.0) + (1 - decay) * put_out
                    key = (layer, member, unit)
                    value[key] = decay * value.get(key, 0.0) + (1 - decay) * contribution
                mature = network.layers[layer].outputs if step + 1 > maturity else 0
                owed[layer, member] = owed.get((layer, member), 0.0) + rate * mature
    for layer in FOLLOWING[name]:
        units = network.layers[layer].outputs
        for member in range(MEMBERS):
            found = utility.value[layer][member].tolist()
            assert found == pytest.approx([value[layer, member, unit] for unit in range(units)], rel=1e-4, abs=1e-7)
            found = utility.mean[layer][member].tolist()
            assert found == pytest.approx([mean[layer, member, p] for p in range(units * parts)], rel=1e-4, abs=1e-7)
            due = min(owed[layer, member], units)
            assert float(utility.owed[layer][member]) == pytest.approx(due)
            corrected = [value[layer, member, unit] / (1 - decay**updates) for unit in range(units)]
            worst = sorted(range(units), key=corrected.__getitem__)[: int(due + 1e-9)]
            assert utility.least(layer)[member].nonzero().flatten().tolist() == sorted(worst)
        assert utility.age[layer].tolist() == [[updates] * units] * MEMBERS


@pytest.mark.parametrize("flat", [False, True], ids=["tensors", "buffer"])
@pytest.mark.parametrize(("name", "layer"), [(name, layer) for name in NETWORKS for layer in FOLLOWING[name]])
def test_a_replacement_touches_the_due_units_alone_and_their_readers_make_up(name: str, layer: str, flat: bool) -> None:
    learner = learner_of(name, Replacement(0.0, 2, 0.9), flat=flat)
    utility, network = learner.utility, learner.ensemble.network
    assert utility is not None
    for step in range(4):
        learner.update(batch_of(name, step), DRAW)
    readers = FOLLOWING[name][layer]
    utility.owed[layer][1] = 2.4
    units = utility.least(layer)
    assert units.sum(1).tolist() == [0, 2]
    chosen = units[1].nonzero().flatten().tolist()
    kept, usual = copy.deepcopy(utility.state()), utility.usual(layer)[1]
    groups = (learner.online, learner.adam.first, learner.adam.second, learner.adam.step)
    before, target = [copy.deepcopy(group) for group in groups], copy.deepcopy(learner.target)
    places = [p.data_ptr() for group in (*groups, utility.state()) for p in group.values()]
    evidence = Evidence(network.monitored, torch.ones(MEMBERS, len(network.monitored)), utility=utility)
    events = Regulation(Always(), Replace(), "keep")(learner, evidence, torch.Generator().manual_seed(5))
    about = {"kind": "replace", "trigger": "none", "scope": "layer", "strength": 1.0}
    assert events == [about | {"member": 1, "layer": layer, "units": 2}]

    count = network.layers[layer].outputs
    touched = {key: torch.zeros(p.shape, dtype=torch.bool) for key, p in before[0].items()}
    touched[f"{layer}.weight"][1, chosen] = touched[f"{layer}.bias"][1, chosen] = True
    lost = {}
    for reader in readers:
        weight = before[0][f"{reader}.weight"][1]
        each = weight.shape[1] // count
        columns = [column for unit in chosen for column in range(unit * each, (unit + 1) * each)]
        touched[f"{reader}.weight"][1][:, columns] = True
        assert not learner.online[f"{reader}.weight"][1][:, columns].any()
        spread = usual.repeat_interleave(weight.shape[1] // len(usual))
        lost[reader] = sum(weight[:, [c]].flatten(1).sum(1) * spread[c] for c in columns)
    for group, old in zip(groups, before, strict=True):
        for key, p in group.items():
            moved = [key == f"{reader}.bias" for reader in readers]
            if group is learner.online and any(moved):
                reader = key.removesuffix(".bias")
                torch.testing.assert_close(p[1] - old[key][1], lost[reader], rtol=1e-4, atol=1e-6)
                assert torch.equal(p[0], old[key][0])
                continue
            assert torch.equal(p[~touched[key]], old[key][~touched[key]]), key
            if group is not learner.online:
                assert not p[touched[key]].any()
    assert not learner.online[f"{layer}.bias"][1, chosen].any()
    assert not torch.equal(learner.online[f"{layer}.weight"][1, chosen], before[0][f"{layer}.weight"][1, chosen])
    assert all(torch.equal(p, target[key]) for key, p in learner.target.items())
    for key, p in utility.state().items():
        if not key.startswith(f"{layer}:"):
            assert torch.equal(p, kept[key]), key
    assert utility.age[layer][1, chosen].tolist() == [0, 0]
    assert float(utility.owed[layer][1]) == pytest.approx(0.4)
    assert not utility.least(layer).any()
    assert [p.data_ptr() for group in (*groups, utility.state()) for p in group.values()] == places


def test_the_average_output_does_not_move_with_a_replacement() -> None:
    """What a reader takes into its bias is what the unit put out on average: with a constant unit nothing changes."""
    learner = learner_of("minatar", Replacement(0.0, 2, 0.9))
    utility = learner.utility
    assert utility is not None
    with torch.no_grad():
        learner.online["hidden.weight"][:, 2] = 0
        learner.online["hidden.bias"][:, 2] = 0.7
    x = batch_of("minatar", 0).observation
    for _ in range(4):
        utility.add_(utility.put_out(learner.online, x), learner.online)
    utility.value["hidden"][:, 2] = -1.0
    utility.owed["hidden"].fill_(1)
    before = learner.ensemble.forward(learner.online, x)
    evidence = Evidence(("hidden",), torch.ones(MEMBERS, 1), utility=utility)
    assert len(Regulation(Always(), Replace(), "keep")(learner, evidence, torch.Generator())) == MEMBERS
    torch.testing.assert_close(learner.ensemble.forward(learner.online, x), before, rtol=1e-4, atol=1e-5)


def test_young_units_are_left_alone_and_nobody_owes_more_than_a_layer() -> None:
    learner = learner_of("minatar", Replacement(1.0, 3, 0.9))
    utility = learner.utility
    assert utility is not None
    for step in range(3):
        learner.update(batch_of("minatar", step), DRAW)
        assert not any(utility.due(name).any() for name in utility.age)
    for step in range(5):
        learner.update(batch_of("minatar", step), DRAW)
    assert utility.owed["hidden"].tolist() == [6.0, 6.0]
    utility.age["hidden"][0, :4] = 1
    assert utility.due("hidden").tolist() == [2, 6]


def test_it_needs_a_learner_that_follows_utilities() -> None:
    with pytest.raises(ValueError, match="replacement"):
        Replace().units("hidden", Evidence((), torch.ones(1, 0)))
