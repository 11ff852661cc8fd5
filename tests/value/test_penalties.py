"""What acts on parameters in every update: each changes what it names, by its formula, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from steadyq.nets import MLP, Ensemble, MinAtarNet, Network
from steadyq.value.estimators import Scalar
from steadyq.value.flat import Flat
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Greedy
from steadyq.value.optim import Adam
from steadyq.value.penalties import Penalties, normalised, orthogonal
from steadyq.value.shapes import Batch, DrawLayout

MEMBERS, ACTIONS, COUNT = 2, 3, 4
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "mlp": (MLP((5,), ACTIONS, (8, 7)), (5,)),
    "mlp, norm": (MLP((5,), ACTIONS, (8, 7), norm="layer"), (5,)),
    "minatar, norm": (MinAtarNet((2, 6, 6), ACTIONS, 4, 8, norm="layer"), (2, 6, 6)),
}


def learner_of(name: str, **penalties: Any) -> tuple[Learner, Batch]:
    network, shape = NETWORKS[name]
    settings = Settings(Adam(rate=1e-2), clip=1e9, tau=0.1, hard_copy_every=0, penalties=Penalties(**penalties))
    generator = torch.Generator().manual_seed(0)
    see, index = torch.rand(2, COUNT, *shape, generator=generator), torch.arange(COUNT)
    ones, reward = torch.ones(COUNT), torch.randn(COUNT, generator=generator)
    batch = Batch(see[0], index % ACTIONS, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    ensemble = Ensemble(network, MEMBERS, ACTIONS, 1)
    return Learner(ensemble, Scalar(), Greedy(), settings, torch.Generator().manual_seed(1)), batch


DRAW = DrawLayout(MEMBERS, COUNT).plain(rate=1e-2)


@pytest.mark.parametrize("penalties", [{"pull": 0.3}, {"parseval": 0.2}, {"pull": 0.3, "parseval": 0.2}], ids=str)
def test_the_gradient_is_that_of_the_loss_and_the_penalty(penalties: dict[str, float]) -> None:
    learner, batch = learner_of("mlp", **penalties)
    plain, _ = learner_of("mlp")
    for one in (learner, plain):
        with torch.no_grad():
            for name, p in one.online.items():  # away from where it began
                p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name)))
    leaves = {name: p.clone().requires_grad_() for name, p in learner.online.items()}
    penalty = torch.zeros(())
    for name, p in leaves.items():
        penalty = penalty + penalties.get("pull", 0.0) * (p - learner.initial[name]).square().sum()
    for name in ("fc1", "fc2"):
        for w in leaves[f"{name}.weight"]:
            penalty = penalty + penalties.get("parseval", 0.0) * (w @ w.T - torch.eye(len(w))).square().sum()
    slopes = torch.autograd.grad(penalty, list(leaves.values()), materialize_grads=True)
    learner.update(batch, DRAW)
    losses = plain.update(batch, DRAW)
    for name, slope in zip(leaves, slopes, strict=True):
        expected = plain.adam.first[name] + 0.1 * slope
        torch.testing.assert_close(learner.adam.first[name], expected, rtol=1e-4, atol=1e-6)
        if "pull" not in penalties and name not in ("fc1.weight", "fc2.weight"):
            assert not slope.any()  # outputs and biases are left alone
    again, _ = learner_of("mlp", **penalties)
    assert torch.equal(again.initial["fc1.weight"], learner.initial["fc1.weight"])  # drawn alike by the same seed
    assert losses.priority.shape == (COUNT,)


@pytest.mark.parametrize("name", ["mlp, norm", "minatar, norm"])
@pytest.mark.parametrize("flat", [False, True])
def test_weights_before_a_norm_keep_their_size_and_all_else_is_free(name: str, flat: bool) -> None:
    learner, batch = learner_of(name, project=True)
    free, _ = learner_of(name)
    if flat:  # as on a GPU
        for one in (learner, free):
            one.flat = Flat(one.online, one.settings.adam, torch.float32, ())
            one.online = one.online_low = one.flat.online
            one.target, one.adam = one.flat.target, one.flat.adam
            one.target_low = one.target
    before = {key: p.clone() for key, p in learner.online.items()}
    learner.update(batch, DRAW)
    free.update(batch, DRAW)
    held = {f"{key}.weight" for key in normalised(learner.ensemble.network)}
    assert held == {"mlp, norm": {"fc1.weight", "fc2.weight"}, "minatar, norm": {"conv.weight", "hidden.weight"}}[name]
    for key, p in learner.online.items():
        if key not in held:
            torch.testing.assert_close(p, free.online[key])
            continue
        for member in range(MEMBERS):
            first, now, other = before[key][member], p[member], free.online[key][member]
            assert float(now.norm()) == pytest.approx(float(first.norm()), rel=1e-5)
            torch.testing.assert_close(now / now.norm(), other / other.norm())  # the direction is what was learned
            assert abs(float(other.norm() / first.norm()) - 1) > 1e-4


def test_which_layers_a_penalty_takes() -> None:
    network = NETWORKS["minatar, norm"][0]
    assert orthogonal(network) == ["hidden"]
    assert normalised(network) == ["conv", "hidden"]
    assert normalised(NETWORKS["mlp"][0]) == []
    learner, _ = learner_of("mlp")
    assert learner.initial == {}  # nothing is kept where nothing pulls
    assert Penalties().gradient(learner.online, {}, NETWORKS["mlp"][0]) == {}
    assert replace(Penalties(), project=True).active
