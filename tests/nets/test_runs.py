"""A stack that several runs share: each run's members see its part of a batch, and say what they say alone."""

from dataclasses import replace

import pytest
import torch
from test_noisy import NETWORKS as NOISY
from test_prediction import NETWORKS as PREDICTING
from torch import Tensor

from steadyq.nets import MLP, Ensemble, Impala, Layered, MinAtarNet, Network, ResNet
from steadyq.nets.forms import Form
from steadyq.nets.layered import data_efficient

RUNS, MEMBERS, ACTIONS, ATOMS, COUNT = 3, 2, 4, 5, 6
OUTPUTS = ACTIONS * ATOMS
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "mlp": (MLP((6,), OUTPUTS, (16, 8)), (6,)),
    "mlp over an image": (MLP((2, 3, 4), OUTPUTS, (16,)), (2, 3, 4)),
    "minatar": (MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16), (4, 10, 10)),
    "minatar, crelu, norm": (
        MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16, activation="crelu", norm="layer"),
        (4, 10, 10),
    ),
    "minatar, dueling": (
        MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16, dueling=True, atoms=ATOMS),
        (4, 10, 10),
    ),
    "resnet": (ResNet((4, 12, 12), OUTPUTS, scale=1, head_multiple=8, renormalise=True), (4, 12, 12)),
    "impala, spectral": (Impala((4, 12, 12), OUTPUTS, 1, 8, spectral=True), (4, 12, 12)),
    "implicit": (MinAtarNet((4, 10, 10), ACTIONS, channels=8, hidden=16, cosines=8), (4, 10, 10)),
    "implicit mlp": (MLP((6,), ACTIONS, (16, 8), cosines=8), (6,)),
} | {f"noisy {name}": case for name, case in NOISY.items()}


@pytest.mark.parametrize("form", ["stacked", "kernels"])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_run_sees_its_own_part_of_the_batch(name: str, form: Form) -> None:
    network, shape = NETWORKS[name]
    atoms = 1 if network.cosines else ATOMS
    generator = torch.Generator().manual_seed(0)
    alone = Ensemble(network, MEMBERS, ACTIONS, atoms, form=form)
    together = replace(alone, members=RUNS * MEMBERS, runs=RUNS)
    each = [alone.initial(generator) for _ in range(RUNS)]
    params = {name: torch.cat([own[name] for own in each]).requires_grad_() for name in each[0]}
    x = torch.randn(RUNS, COUNT, *shape, generator=generator)
    noise = torch.randn(RUNS, MEMBERS, alone.noise_size, generator=generator)
    taus = torch.rand(RUNS, COUNT, 7, generator=generator)
    for of_each in (taus, None):
        asked = None if of_each is None else of_each.flatten(0, 1)
        z = together.forward(params, x.flatten(0, 1), taus=asked, noise=noise.flatten(0, 1))
        slope = torch.randn(z.shape, generator=generator)
        gradient = dict(
            zip(params, torch.autograd.grad(z, list(params.values()), slope, allow_unused=True), strict=True)
        )
        for run, own in enumerate(each):
            leaves = {name: p.clone().requires_grad_() for name, p in own.items()}
            wanted = alone.forward(leaves, x[run], taus=None if of_each is None else of_each[run], noise=noise[run])
            rows = slice(run * COUNT, (run + 1) * COUNT)
            torch.testing.assert_close(z[:, rows], wanted, atol=1e-5, rtol=1e-5)
            found = torch.autograd.grad(wanted, list(leaves.values()), slope[:, rows], allow_unused=True)
            for name, own_gradient in zip(leaves, found, strict=True):
                if own_gradient is None:
                    assert gradient[name] is None
                    continue
                members = slice(run * MEMBERS, (run + 1) * MEMBERS)
                torch.testing.assert_close(gradient[name][members], own_gradient, atol=1e-4, rtol=1e-4)


CONTRASTING: dict[str, tuple[Network, tuple[int, ...]]] = {
    "mlp, contrast": (MLP((6,), OUTPUTS, (16, 8), contrast=5), (6,)),
    "impala, average, contrast": (Impala((4, 12, 12), OUTPUTS, 1, 8, contrast=5, pooling="average"), (4, 12, 12)),
    "data-efficient": (Layered((2, 26, 25), OUTPUTS, data_efficient((2, 26, 25), 7), contrast=5), (2, 26, 25)),
}


@pytest.mark.parametrize("form", ["stacked", "kernels"])
@pytest.mark.parametrize("name", [*PREDICTING, *CONTRASTING])
def test_each_run_predicts_and_contrasts_its_own_part_of_the_batch(name: str, form: Form) -> None:
    network, shape = (PREDICTING | CONTRASTING)[name]
    generator, steps = torch.Generator().manual_seed(0), 3
    alone = Ensemble(network, MEMBERS, ACTIONS, ATOMS, form=form)
    together = replace(alone, members=RUNS * MEMBERS, runs=RUNS)
    each = [alone.initial(generator) for _ in range(RUNS)]
    params = {name: torch.cat([own[name] for own in each]).requires_grad_() for name in each[0]}
    x = torch.randn(steps, RUNS * COUNT, *shape, generator=generator)
    action = torch.randint(ACTIONS, (steps, RUNS * COUNT), generator=generator)

    def said(ensemble: Ensemble, params: dict[str, Tensor], part: slice) -> list[Tensor]:
        if not network.transition:
            return [ensemble.contrast(params, x[0, part], query=query).movedim(1, 0) for query in (False, True)]
        z, predicted = ensemble.predict(params, x[0, part], action[:, part])
        projected = ensemble.project(params, x[:, part])
        return [z.movedim(1, 0), predicted.movedim(2, 0), projected.movedim(2, 0)]  # samples first

    found = said(together, params, slice(None))
    slopes = [torch.randn(part.shape, generator=generator) for part in found]
    gradient = torch.autograd.grad(found, list(params.values()), slopes, allow_unused=True)
    for run, own in enumerate(each):
        rows, members = slice(run * COUNT, (run + 1) * COUNT), slice(run * MEMBERS, (run + 1) * MEMBERS)
        leaves = {name: p.clone().requires_grad_() for name, p in own.items()}
        wanted = said(alone, leaves, rows)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine[rows], theirs, atol=1e-5, rtol=1e-4)
        own_gradient = torch.autograd.grad(wanted, list(leaves.values()), [s[rows] for s in slopes], allow_unused=True)
        for whole, part in zip(gradient, own_gradient, strict=True):
            assert (whole is None) == (part is None)
            if part is not None:
                torch.testing.assert_close(whole[members], part, atol=1e-3, rtol=1e-3)
