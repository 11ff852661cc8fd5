"""Spectral normalisation: the numbers of torch's own, in every form, for the layers that sources name and no others."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parametrizations

from steadyq.nets import MLP, Ensemble, Impala, MinAtarNet, Network, ResNet
from steadyq.nets.encoders import Described
from steadyq.nets.forms import FORMS
from steadyq.nets.injection import Injected
from steadyq.nets.prior import WithPrior
from steadyq.nets.spectral import divided, iterated
from steadyq.value.estimators import Scalar
from steadyq.value.flat import Flat
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Greedy
from steadyq.value.optim import Adam
from steadyq.value.penalties import Penalties
from steadyq.value.regulation import Evidence, Regulation, Reinitialise, Spike
from steadyq.value.shapes import Batch, DrawLayout

MEMBERS, ACTIONS, COUNT = 2, 3, 4
NETWORKS: dict[str, tuple[Described, tuple[int, ...]]] = {
    "mlp": (MLP((5,), ACTIONS, (8, 7), spectral=True), (5,)),
    "minatar, norm": (MinAtarNet((2, 6, 6), ACTIONS, 4, 8, spectral=True, norm="layer"), (2, 6, 6)),
    "impala, dueling": (Impala((2, 6, 6), ACTIONS, 1, 8, spectral=True, dueling=True), (2, 6, 6)),
    "resnet": (ResNet((2, 6, 6), ACTIONS, 1, 4, spectral=True), (2, 6, 6)),
}
DRAW = DrawLayout(MEMBERS, COUNT).plain(rate=1e-2)


def test_which_layers_are_normalised() -> None:
    assert NETWORKS["mlp"][0].spectral_layers == ("fc2",)
    assert NETWORKS["minatar, norm"][0].spectral_layers == ("hidden",)
    blocks = NETWORKS["impala, dueling"][0].spectral_layers  # neither stage1.conv and its like, nor linear layers
    assert blocks == tuple(f"stage{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1) for c in (1, 2))
    blocks = NETWORKS["resnet"][0].spectral_layers  # neither stem nor shortcuts
    assert blocks == tuple(f"l{s}.{b}.conv{c}" for s in (1, 2, 3, 4) for b in (0, 1) for c in (1, 2))
    for network, _ in NETWORKS.values():
        assert replace(network, spectral=False).spectral_layers == ()
        assert WithPrior(network, 2.0).spectral_layers == network.spectral_layers


@pytest.mark.parametrize("shape", [(6, 4), (5, 3, 3, 3)])
def test_an_iteration_and_a_division_are_torchs(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(4, 6) if len(shape) == 2 else torch.nn.Conv2d(3, 5, 3)
    module = parametrizations.spectral_norm(plain).eval()
    rule = module.parametrizations.weight[0]
    raw = module.parametrizations.weight.original.detach().clone()
    left, right = rule._u.clone()[None], rule._v.clone()[None]
    torch.testing.assert_close(divided(raw[None], left, right)[0], module.weight)
    for _ in range(3):
        raw += 0.1 * torch.randn(shape)  # as learning moves it
        with torch.no_grad():
            module.parametrizations.weight.original.copy_(raw)
        module.train()
        theirs = module.weight  # one iteration, then the division
        module.eval()
        left, right = iterated(raw[None], left, right, 1)
        torch.testing.assert_close(left[0], rule._u)
        torch.testing.assert_close(right[0], rule._v)
        own = raw.clone().requires_grad_()
        ours = divided(own[None], left, right)[0]
        torch.testing.assert_close(ours, theirs)
        toward = torch.randn(shape)
        (slope,) = torch.autograd.grad((ours * toward).sum(), own)
        (their,) = torch.autograd.grad((theirs * toward).sum(), module.parametrizations.weight.original)
        torch.testing.assert_close(slope, their)


def test_after_many_iterations_the_largest_singular_value_is_one() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(MEMBERS, 6, 3, 3, 3, generator=generator) * torch.tensor([0.1, 9.0]).view(2, 1, 1, 1, 1)
    left, right = torch.randn(MEMBERS, 6, generator=generator), torch.randn(MEMBERS, 27, generator=generator)
    left, right = iterated(weight, left, right, 300)
    for member in range(MEMBERS):
        by_svd = weight[member] / torch.linalg.svdvals(weight[member].flatten(1))[0]
        torch.testing.assert_close(divided(weight, left, right)[member], by_svd, rtol=1e-4, atol=1e-6)
    assert not divided(torch.zeros_like(weight), left, right).any()  # nothing is nothing, and no division by zero


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_form_runs_the_network_with_divided_weights(name: str, form: str) -> None:
    network, shape = NETWORKS[name]
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1, form=form)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    assert {key: tuple(p.shape) for key, p in params.items()} == ensemble.shapes()
    x = torch.rand(COUNT, *shape, generator=generator)
    by_hand = dict(params)
    for layer in network.spectral_layers:
        for member in range(MEMBERS):
            value = params[f"{layer}.left"][member] @ params[f"{layer}.weight"][member].flatten(1)
            value = value @ params[f"{layer}.right"][member]
            largest = torch.linalg.svdvals(params[f"{layer}.weight"][member].flatten(1))[0]
            assert 0.8 < float(value / largest) <= 1.0001  # settled at the start
            if member == 0:
                by_hand[f"{layer}.weight"] = params[f"{layer}.weight"].clone()
            by_hand[f"{layer}.weight"][member] /= value
    plain = Ensemble(replace(network, spectral=False), MEMBERS, ACTIONS, 1, form="loop")
    torch.testing.assert_close(ensemble.forward(params, x), plain.forward(by_hand, x), rtol=1e-4, atol=1e-5)


def learner_of(network: Network, shape: tuple[int, ...], **more: object) -> tuple[Learner, Batch]:
    settings = replace(Settings(Adam(rate=1e-2, decay=0.1), clip=10.0, tau=0.1, hard_copy_every=0), **more)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    see, index = torch.rand(2, COUNT, *shape, generator=generator), torch.arange(COUNT)
    ones, reward = torch.ones(COUNT), torch.randn(COUNT, generator=generator)
    batch = Batch(see[0], index % ACTIONS, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1)
    return Learner(ensemble, Scalar(), Greedy(), settings, torch.Generator().manual_seed(1)), batch


@pytest.mark.parametrize("flat", [False, True], ids=["tensors", "buffer"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_ends_in_one_iteration_of_both_networks_vectors_in_place(name: str, flat: bool) -> None:
    network, shape = NETWORKS[name]
    learner, batch = learner_of(network, shape, penalties=Penalties(pull=0.1))
    if flat:  # as on a GPU
        still = learner.ensemble.still
        learner.flat = Flat(learner.online, learner.settings.adam, torch.float32, (), False, still)
        learner.online = learner.online_low = learner.flat.online
        learner.target, learner.adam = learner.flat.target, learner.flat.adam
        learner.target_low = learner.target
    places = [p.data_ptr() for params in (learner.online, learner.target) for p in params.values()]
    for _ in range(3):
        before = copy.deepcopy(learner.online)
        behind = copy.deepcopy(learner.target)
        learner.update(batch, DRAW)
        for layer in network.spectral_layers:
            weight = learner.online[f"{layer}.weight"]
            assert not torch.equal(weight, before[f"{layer}.weight"])
            left, right = iterated(weight, before[f"{layer}.left"], before[f"{layer}.right"], 1)
            torch.testing.assert_close(learner.online[f"{layer}.left"], left)
            torch.testing.assert_close(learner.online[f"{layer}.right"], right)
            started = behind[f"{layer}.right"].lerp(before[f"{layer}.right"], 0.1)  # Polyak, then its own iteration
            left, _ = iterated(learner.target[f"{layer}.weight"], left, started, 1)
            torch.testing.assert_close(learner.target[f"{layer}.left"], left)
    for vector in learner.ensemble.vectors:
        assert not learner.adam.first[vector].any()
    assert [p.data_ptr() for params in (learner.online, learner.target) for p in params.values()] == places


def test_without_it_nothing_is_different() -> None:
    plain, _batch = learner_of(MLP((5,), ACTIONS, (8, 7)), (5,))
    assert not plain.ensemble.vectors
    assert not plain.ensemble.still
    assert set(plain.online) == {f"{name}.{part}" for name in ("fc1", "fc2", "head") for part in ("weight", "bias")}


def test_the_vectors_of_a_redrawn_layer_settle_and_others_stay() -> None:
    network, shape = NETWORKS["resnet"]
    learner, batch = learner_of(network, shape)
    learner.update(batch, DRAW)
    before = copy.deepcopy(learner.online)
    spikes = torch.ones(MEMBERS, len(network.monitored))
    spikes[1, network.monitored.index("l2.0.conv2")] = 9.0
    Regulation(Spike(), Reinitialise())(learner, Evidence(network.monitored, spikes), torch.Generator().manual_seed(5))
    for key, p in learner.online.items():
        for member in range(MEMBERS):
            touched = member == 1 and key.startswith("l2.0.conv2.")
            assert torch.equal(p[member], before[key][member]) != touched, (key, member)
    largest = torch.linalg.svdvals(learner.online["l2.0.conv2.weight"][1].flatten(1))[0]
    _, weight, _ = learner.ensemble.layer(learner.online, "l2.0.conv2")
    assert float(torch.linalg.svdvals(weight[1].flatten(1))[0]) == pytest.approx(1.0, abs=0.2)
    assert float(largest) > 0


def test_an_injected_head_is_normalised_as_it_was() -> None:
    network, _shape = NETWORKS["mlp"]
    assert Injected(network).spectral_layers == ("fc2", "kept.fc2", "copy.fc2")
