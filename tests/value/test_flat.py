"""Parameters in one buffer learn what separate tensors learn."""

from typing import Any

import pytest
import torch

from steadyq.device.kernels.adam import BLOCK
from steadyq.nets import MLP, Ensemble, Network, ResNet
from steadyq.value import flat as module
from steadyq.value.estimators import Quantile
from steadyq.value.flat import Flat
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Controlled
from steadyq.value.optim import Adam
from steadyq.value.regulation import Evidence, Regulation, Reinitialise, Spike
from steadyq.value.shapes import Batch, DrawLayout

ATOMS, ACTIONS, MEMBERS, COUNT = 5, 3, 2, 6
IMAGE = (2, 9, 9)
LAYOUT = DrawLayout(MEMBERS, COUNT, keep=COUNT)
NETWORKS: dict[str, Network] = {
    "mlp": MLP((2 * 9 * 9,), ACTIONS * ATOMS, (40, 30)),
    "resnet": ResNet(IMAGE, ACTIONS * ATOMS, scale=1, head_multiple=8),
}


def learner_of(
    kind: str, dtype: torch.dtype = torch.float32, hard_copy_every: int = 0, decay: float = 0.0, by_unit: bool = False
) -> Learner:
    adam = Adam(rate=1e-3, decay=decay)
    settings = Settings(adam=adam, clip=0.05, tau=0.1, hard_copy_every=hard_copy_every, unit_steps=by_unit)
    ensemble = Ensemble(NETWORKS[kind], MEMBERS, ACTIONS, ATOMS, dtype=dtype)
    return Learner(ensemble, Quantile(ATOMS), Controlled(), settings, torch.Generator().manual_seed(0))


def flattened(learner: Learner) -> Learner:
    """The same learner with its parameters in one buffer, as on a GPU."""
    settings, ensemble = learner.settings, learner.ensemble
    learner.flat = flat = Flat(learner.online, settings.adam, ensemble.dtype, ensemble.exact, settings.unit_steps)
    learner.online, learner.target, learner.adam = flat.online, flat.target, flat.adam
    learner.online_low, learner.target_low = flat.online_low, flat.target_low
    return learner


def update(learner: Learner, seed: int, **drawn: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    shape = IMAGE if isinstance(learner.ensemble.network, ResNet) else (2 * 9 * 9,)
    see = torch.randn(2, COUNT, *shape, generator=generator)
    action = torch.randint(ACTIONS, (COUNT,), generator=generator)
    reward = torch.rand(COUNT, generator=generator)
    ones, index = torch.ones(COUNT), torch.arange(COUNT)
    batch = Batch(see[0], action, reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    found = learner.update(batch, LAYOUT.plain(order=[1, 0], forbid=True, **{"rate": 1e-3, **drawn}))
    learner.count()
    return found


@pytest.mark.parametrize("large", [1, 500, 1 << 20])
@pytest.mark.parametrize("hard", [0, 2])
@pytest.mark.parametrize("kind", NETWORKS)
def test_one_buffer_learns_what_separate_tensors_learn(
    kind: str, hard: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients left in place, joined, and mixed; clipped; a layer reset on the way."""
    monkeypatch.setattr(module, "LARGE", large)
    plain, flat = learner_of(kind, hard_copy_every=hard), flattened(learner_of(kind, hard_copy_every=hard))
    layers = plain.ensemble.network.monitored
    for step in range(4):
        theirs, mine = update(plain, step), update(flat, step)
        torch.testing.assert_close(mine.priority, theirs.priority, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mine.measures["gradient_norm"], theirs.measures["gradient_norm"])
        if step == 1:
            spikes = torch.ones(MEMBERS, len(layers))
            spikes[1, 0] = 7.0
            reset = Regulation(Spike(6.0), Reinitialise())
            for one in (plain, flat):
                reset(one, Evidence(layers, spikes), torch.Generator().manual_seed(9))
    for name in plain.online:
        torch.testing.assert_close(flat.online[name], plain.online[name], rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(flat.target[name], plain.target[name], rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(flat.adam.step[name], plain.adam.step[name])
    assert flat.adam.step[f"{layers[0]}.weight"].tolist() == [4, 2]


def test_low_precision_copies_follow_and_the_last_layer_stays_exact() -> None:
    learner = learner_of("mlp", torch.float16)
    flat = learner.flat
    assert flat is not None
    before = learner.online["fc1.weight"].clone()
    for step in range(3):
        update(learner, step)
    assert not torch.equal(learner.online["fc1.weight"], before)
    for name, p in learner.online.items():
        for low, full in ((learner.online_low[name], p), (learner.target_low[name], learner.target[name])):
            if name.startswith("head"):
                assert low.data_ptr() == full.data_ptr()
            else:
                assert low.dtype == torch.float16
                torch.testing.assert_close(low, full.half(), rtol=0, atol=0)
    learner.online["fc1.weight"].fill_(0.25)
    learner.refresh()
    assert learner.online_low["fc1.weight"].eq(0.25).all()


@pytest.mark.parametrize("target", ["synchronise", "own", "keep"])
def test_low_precision_copies_show_a_reset_at_once(target: Any) -> None:
    learner = learner_of("mlp", torch.float16)
    update(learner, 0)
    layers = learner.ensemble.network.monitored
    before = learner.online_low["fc1.weight"].clone()
    spikes = torch.full((MEMBERS, len(layers)), 7.0)
    Regulation(Spike(6.0), Reinitialise(), target)(learner, Evidence(layers, spikes), torch.Generator().manual_seed(9))
    assert not torch.equal(learner.online_low["fc1.weight"], before)
    for name, p in learner.online.items():
        for low, full in ((learner.online_low[name], p), (learner.target_low[name], learner.target[name])):
            torch.testing.assert_close(low, full.to(low.dtype), rtol=0, atol=0)


def test_half_precision_learns_nearly_what_float32_learns() -> None:
    full, half = learner_of("mlp"), learner_of("mlp", torch.float16)
    for step in range(3):
        theirs, mine = update(full, step), update(half, step)
        torch.testing.assert_close(mine.priority, theirs.priority, rtol=1e-2, atol=1e-4)
    start = learner_of("mlp").online
    one, other = (torch.cat([(x.online[n] - start[n]).flatten() for n in start]) for x in (full, half))
    assert torch.cosine_similarity(one, other, dim=0) > 0.98


def test_gradients_of_the_last_layer_are_not_rounded() -> None:
    learner = learner_of("mlp", torch.float16)
    flat = learner.flat
    assert flat is not None
    gradient = {name: torch.full_like(p, 1 + 2**-20) for name, p in learner.online.items()}
    stretches = flat.runs({name: g if name in flat.exact else g.half() for name, g in gradient.items()})
    assert [(start, g.dtype) for start, g in stretches] == [
        (0, torch.float16),
        (flat.starts["head.weight"], torch.float32),
    ]
    assert stretches[1][1].max() == 1 + 2**-20


def test_every_tensor_has_its_own_stretch_and_keeps_its_shape() -> None:
    learner = flattened(learner_of("resnet"))
    flat = learner.flat
    assert flat is not None
    assert flat.size % BLOCK == 0
    for index, (name, p) in enumerate(learner.online.items()):
        p.fill_(index + 1.0)
        assert flat.starts[name] % BLOCK == 0
        own = flat.buffers["online"] == index + 1
        assert int(own.sum()) == p.numel()
        blocks = own.view(MEMBERS, -1, BLOCK).any(2)
        assert all((flat.segment[row] == index).all() for row in blocks)


@pytest.mark.parametrize("by_unit", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("kind", NETWORKS)
def test_members_at_rest_decay_and_rates_reach_the_buffer(kind: str, decay: float, by_unit: bool) -> None:
    plain = learner_of(kind, decay=decay, by_unit=by_unit)
    flat = flattened(learner_of(kind, decay=decay, by_unit=by_unit))
    some = [[1, 0, 0, 1, 1, 0], [0, 1, 0, 1, 0, 0]]
    draws: list[dict[str, Any]] = [{"keep": [[1.0], [0.0]]}, {"keep": some}, {"rate": 1e-4}, {"keep": 0.0}]
    for step, drawn in enumerate(draws):
        theirs, mine = update(plain, step, **drawn), update(flat, step, **drawn)
        torch.testing.assert_close(mine.priority, theirs.priority, rtol=1e-4, atol=1e-6)
    for name in plain.online:
        for ours, others in (
            (flat.online, plain.online),
            (flat.target, plain.target),
            (flat.adam.first, plain.adam.first),
            (flat.adam.second, plain.adam.second),
            (flat.adam.step, plain.adam.step),
        ):
            torch.testing.assert_close(ours[name], others[name], rtol=1e-4, atol=2e-6)
        assert [float(step.max()) for step in flat.adam.step[name]] == [3, 2]
