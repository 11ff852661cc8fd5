"""Other people's networks, as they write them: every figure equals one by hand, or the network is refused in a line."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import steadyq as sq
from steadyq.monitor.attach import StabilityMonitor

GAMMA = 0.9


def transitions(size: int = 32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    now, after = (torch.randn(size, 4, generator=generator) for _ in range(2))
    action = torch.randint(0, 3, (size, 1), generator=generator)
    reward = torch.randint(0, 2, (size, 1), generator=generator).float()
    return now, action, reward, after, torch.zeros(size, 1)


def measured(path: Path, q: nn.Module, target: nn.Module | None = None, **more: Any) -> dict[str, Any]:
    row = StabilityMonitor(q, target, path=path, gamma=GAMMA, **more).update(*transitions())
    assert row is not None
    return row


def dormant(values: Tensor) -> float:
    """Share of units, last, whose mean size is at most a tenth of the layer's mean."""
    size = values.abs().flatten(0, -2).mean(0)
    return (size <= 0.1 * size.mean()).double().mean().item()


def rank(features: Tensor) -> int:
    """Fewest singular values that hold 99% of their sum."""
    singular = torch.linalg.svdvals(features.double())
    return int((singular.cumsum(0) < 0.99 * singular.sum()).sum()) + 1


def huber(error: Tensor) -> Tensor:
    return functional.smooth_l1_loss(error, torch.zeros_like(error))


def norm_of_gradient(loss: Tensor, network: nn.Module) -> float:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]).norm().item()


def check_values(row: dict[str, Any], q: Tensor, q_next: Tensor) -> None:
    """Values, gap and TD error of Q [batch, action] at s and of the target's at s'."""
    _, action, reward, _, _ = transitions()
    error = reward.squeeze(1) + GAMMA * q_next.max(1).values - q.gather(1, action).squeeze(1)
    top = q.topk(2, 1).values
    for name, value in {
        "q_taken": q.gather(1, action),
        "q_greedy": top[:, 0],
        "action_gap": top[:, 0] - top[:, 1],
        "td_error": error.abs(),
        "same_action": (q_next.argmax(1) == action.squeeze(1)).float(),
    }.items():
        assert row[name] == pytest.approx(value.mean().item(), rel=1e-4), name


def seeded(make: Any, dead: str = "") -> Any:
    torch.manual_seed(0)
    network = make()
    if dead:
        with torch.no_grad():
            network.get_submodule(dead).bias[:5] = -100.0
    return network


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


class Functional(nn.Module):
    """Activations called as functions, as in CleanRL and most papers' code."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.gelu(self.two(torch.relu(self.one(x)))))


class Dueling(nn.Module):
    """Two streams, the layers of both before the activations of either, values last."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 16)
        self.value, self.advantage = nn.Linear(16, 8), nn.Linear(16, 12)
        self.v, self.a = nn.Linear(8, 1), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x).relu()
        value, advantage = self.value(h), self.advantage(h)
        value, advantage = functional.relu(value), functional.relu(advantage)
        a = self.a(advantage)
        return self.v(value) + a - a.mean(1, keepdim=True)


class LayerNormed(nn.Module):
    """Linear, LayerNorm, ReLU: BRO's and SimBa's order, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(4, 16), nn.LayerNorm(16)
        self.two, self.norm_two = nn.Linear(16, 16), nn.LayerNorm(16)
        self.out = nn.Linear(16, 3)

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.relu(self.norm(self.one(x)))
        return one, torch.relu(one + self.norm_two(self.two(one)))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x)[1])


class Distributional(nn.Module):
    """C51 of three actions and eleven atoms."""

    def __init__(self, probabilities: bool) -> None:
        super().__init__()
        self.body, self.probabilities = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 33)), probabilities

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.body(x).view(-1, 3, 11)
        return z.softmax(-1) if self.probabilities else z


class Implicit(nn.Module):
    """IQN: values of the quantiles it is asked for, with random ones where it is asked for none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.embedding, self.out = nn.Linear(4, 16), nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, taus: Tensor | None = None) -> tuple[Tensor, Tensor]:
        taus = torch.rand(len(x), 7) if taus is None else taus.expand(len(x), -1)
        waves = torch.cos(torch.pi * taus[..., None] * torch.arange(6))
        h = torch.relu(self.encoder(x))[:, None] * torch.relu(self.embedding(waves))
        return self.out(h), taus  # [batch, quantile, action]


def test_functions_as_activations(tmp_path: Path) -> None:
    q, target = seeded(Functional, "one"), Functional()
    row = measured(tmp_path / "run", q, target)
    now, _, _, after, _ = transitions()
    check_values(row, q(now), target(after))
    one = torch.relu(q.one(now))
    two = functional.gelu(q.two(one))
    assert row["layers"]["one"]["dormant"] == pytest.approx(dormant(one), rel=1e-5)
    assert row["layers"]["two"]["dormant"] == pytest.approx(dormant(two))
    assert "dormant" not in row["layers"]["out"]
    assert row["effective_rank"] == rank(two)


def test_a_compiled_network_is_measured_like_the_plain_one(tmp_path: Path) -> None:
    ran: list[nn.Module] = []

    def backend(graph: nn.Module, given: list[Tensor]) -> Callable[..., Any]:
        """As PyTorch's own, in a second: what it makes of a graph is of no account where it is not to be run."""
        return lambda *tensors: (ran.append(graph), graph(*tensors))[1]

    q, target = seeded(mlp, "0"), mlp()
    rows = {"plain": measured(tmp_path / "plain", q, target)}
    compiled, inside, in_place = torch.compile(q, backend=backend), seeded(mlp, "0"), seeded(mlp, "0")
    inside[2] = torch.compile(inside[2], backend=backend)
    in_place.compile(backend=backend)
    now = transitions()[0]
    for network in (compiled, inside, in_place):
        network(now).sum().backward()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    before = len(ran)
    rows["compiled"] = measured(tmp_path / "compiled", compiled, torch.compile(target, backend=backend))
    if hasattr(torch.compiler, "set_stance"):
        rows["in place"] = measured(tmp_path / "in place", in_place, target)
        rows["inside"] = measured(tmp_path / "inside", inside, target)
        rows["inside"]["layers"]["2"] = rows["inside"]["layers"].pop("2._orig_mod")
    else:
        for network in (in_place, inside):
            with pytest.raises(sq.UserError, match="is compiled in place, and PyTorch"):
                measured(tmp_path / "refused", network, target)
    assert len(ran) == before  # measured are the layers as they were written
    for network in (compiled, inside, in_place):
        network(now).sum().backward()
    assert len(ran) == 2 * before > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0  # nothing was compiled anew
    for kind, row in rows.items():
        assert row["effective_rank"] == rank(q[:4](now)), kind
        assert row["layers"]["0"]["dormant"] == pytest.approx(dormant(q[:2](now)), rel=1e-5), kind
        row.pop("spike_layer")
        assert row == rows["plain"], kind
    assert '"name": "Sequential"' in (tmp_path / "compiled" / "meta.json").read_text()


def test_both_streams_of_a_dueling_network(tmp_path: Path) -> None:
    q, target = seeded(Dueling, "value"), Dueling()
    row = measured(tmp_path / "run", q, target)
    now, _, _, after, _ = transitions()
    check_values(row, q(now), target(after))
    h = q.trunk(now).relu()
    value, advantage = q.value(h).relu(), q.advantage(h).relu()
    assert row["layers"]["value"]["dormant"] == pytest.approx(dormant(value), rel=1e-5)
    assert row["layers"]["advantage"]["dormant"] == pytest.approx(dormant(advantage))
    assert row["effective_rank"] == rank(torch.cat([value, advantage], 1))  # what the two heads read
    assert row["rank_possible"] == 20
    assert {name for name, layer in row["layers"].items() if "dormant" in layer} == {"trunk", "value", "advantage"}


def test_layer_norm_between_a_layer_and_its_activation(tmp_path: Path) -> None:
    q, target = seeded(LayerNormed), LayerNormed()
    with torch.no_grad():
        q.norm.bias[:5] = -100.0  # dead after the normalisation, not before
    row = measured(tmp_path / "run", q, target)
    now, _, _, after, _ = transitions()
    check_values(row, q(now), target(after))
    one, two = q.hidden(now)
    assert row["layers"]["one"]["dormant"] == pytest.approx(dormant(one), rel=1e-5)
    assert row["layers"]["two"]["dormant"] == pytest.approx(dormant(two))
    assert row["effective_rank"] == rank(two)
    before = q.one(now)
    slope = torch.autograd.grad(_scalar_loss(q, target, q.out(_from(q, before))), before)[0]
    assert row["layers"]["one"]["dormant_gradient"] == pytest.approx(dormant(slope))


def _from(q: LayerNormed, before: Tensor) -> Tensor:
    one = torch.relu(q.norm(before))
    return torch.relu(one + q.norm_two(q.two(one)))


def _scalar_loss(q: nn.Module, target: nn.Module, values: Tensor) -> Tensor:
    _, action, reward, after, _ = transitions()
    with torch.no_grad():
        y = reward.squeeze(1) + GAMMA * target(after).max(1).values
    return huber(y - values.gather(1, action).squeeze(1))


def test_an_encoder_that_two_heads_and_the_target_share(tmp_path: Path) -> None:
    encoder = seeded(lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU()), "0")

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.q, self.reward = encoder, nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.encoder(x)
            return self.q(h), self.reward(h)

    q, target = Shared(), Shared()
    with pytest.raises(sq.UserError, match="Shared puts out a tuple: pass values="):
        measured(tmp_path / "refused", q, target)
    row = measured(tmp_path / "run", q, target, values=lambda network, x: network(x)[0])
    now, _, _, after, _ = transitions()
    check_values(row, q(now)[0], target(after)[0])
    assert row["layers"]["encoder.0"]["dormant"] == pytest.approx(dormant(encoder(now)), rel=1e-5)
    assert row["effective_rank"] == rank(encoder(now))
    assert row["dormant"] == row["layers"]["encoder.0"]["dormant"]
    loss = _scalar_loss(q, lambda x: target(x)[0], q(now)[0])  # type: ignore[arg-type]
    own = torch.autograd.grad(loss, [*encoder.parameters(), *q.q.parameters()])
    assert row["gradient_norm"] == pytest.approx(torch.cat([g.flatten() for g in own]).norm().item(), rel=1e-4)


@pytest.mark.parametrize("probabilities", [False, True])
def test_c51(probabilities: bool, tmp_path: Path) -> None:
    q, target = seeded(lambda: Distributional(probabilities)), Distributional(probabilities)
    with pytest.raises(sq.UserError, match=r"puts out \[32, 3, 11\] .*support=\(low, high\)"):
        measured(tmp_path / "refused", q, target)
    row = measured(tmp_path / "run", q, target, support=(-2.0, 8.0))
    now, action, reward, after, _ = transitions()
    support = torch.arange(-2.0, 9.0)
    chances, after_chances = (x if probabilities else x.softmax(-1) for x in (q(now), target(after)))
    values, next_values = (chances * support).sum(-1), (after_chances * support).sum(-1)
    best = next_values.argmax(1)
    projected = torch.zeros(32, 11)
    for i in range(32):
        for chance, atom in zip(after_chances[i, best[i]], support, strict=True):
            place = (reward[i, 0] + GAMMA * atom).clamp(-2, 8) + 2
            low = min(int(place.floor()), 9)
            projected[i, low] += chance.item() * (1 - (place - low))
            projected[i, low + 1] += chance.item() * (place - low)
    taken = chances[torch.arange(32), action.squeeze(1)]
    error = (projected * support).sum(-1) - (taken * support).sum(-1)
    assert row["q_greedy"] == pytest.approx(values.max(1).values.mean().item(), rel=1e-4)
    assert row["td_error"] == pytest.approx(error.abs().mean().item(), rel=1e-4)
    loss = -(projected.detach() * taken.log()).sum(1).mean()
    assert row["gradient_norm"] == pytest.approx(norm_of_gradient(loss, q), rel=1e-3)
    assert "crossing" not in row


def test_iqn(tmp_path: Path) -> None:
    q, target = seeded(Implicit), Implicit()
    with pytest.raises(sq.UserError, match="Implicit puts out a tuple: pass values="):
        measured(tmp_path / "refused", q, target)
    taus = (torch.arange(8) + 0.5) / 8
    row = measured(
        tmp_path / "run", q, target, values=lambda network, x: network(x, taus)[0].transpose(1, 2), quantiles=True
    )
    now, _, _, after, _ = transitions()
    z, z_next = q(now, taus)[0], target(after, taus)[0]
    check_values(row, z.mean(1), z_next.mean(1))
    assert row["crossing"] == pytest.approx((z[:, 1:] < z[:, :-1]).float().mean().item(), rel=1e-4)
    assert row["layers"]["encoder"]["dormant"] == pytest.approx(dormant(torch.relu(q.encoder(now))))
    waves = torch.cos(torch.pi * taus[:, None] * torch.arange(6))
    embedded = torch.relu(q.embedding(waves))
    assert row["layers"]["embedding"]["dormant"] == pytest.approx(dormant(embedded))
    assert row["effective_rank"] == rank((torch.relu(q.encoder(now))[:, None] * embedded).flatten(0, 1))
    # Quantiles drawn anew at each call: the same ones in every look of a row, so that nothing seems to move.
    optimizer = torch.optim.SGD(q.parameters(), lr=0.0)
    monitor = StabilityMonitor(
        q, target, optimizer, path=tmp_path / "random", gamma=GAMMA, values=lambda network, x: network(x)[0].mean(1)
    )
    optimizer.step()
    drawn = monitor.update(*transitions())
    assert drawn is not None
    assert drawn["churn"] == drawn["noise"] == 0


def test_what_does_not_give_values_is_told_how(tmp_path: Path) -> None:
    class Asked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor, taus: Tensor) -> Tensor:
            return self.body(x)

    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = mlp()

    for network, said in ((Asked(), "missing 1 required positional"), (Silent(), 'missing the required "forward"')):
        with pytest.raises(sq.UserError, match=f"cannot be called with an observation alone .*{said}.*pass values="):
            measured(tmp_path / "refused", network)
    q = mlp()
    for values, said in (
        (lambda network, x: network(x).repeat(7, 1), r"puts out \[224, 3\] for 32 observations"),
        (lambda network, x: network(x)[:, :2], "actions go from 0 to 2, and the network values 2"),
        (lambda network, x: network(x).detach(), "no layer of Sequential was seen at work"),
        (lambda network, x: torch.ones(len(x), 3), "no layer of Sequential was seen at work"),
    ):
        with pytest.raises(sq.UserError, match=said):
            measured(tmp_path / "refused", q, values=values)
    for wrong in ({"support": (1.0, 1.0)}, {"support": (0.0, 1.0), "quantiles": True}):
        with pytest.raises(sq.UserError, match="support is"):
            measured(tmp_path / "wrong", q, **wrong)
    with pytest.raises(sq.UserError, match="not \\[batch, action, atom\\]"):
        measured(tmp_path / "flat", q, quantiles=True)


def test_an_activation_that_nobody_knows_is_named(tmp_path: Path) -> None:
    class Snake(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.sin().square()

    q = nn.Sequential(nn.Linear(4, 8), Snake(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match="knows no activation after 0: dormant units are not measured there"):
        row = measured(tmp_path / "run", q)
    assert "dormant" not in row["layers"]["0"]
    assert row["dormant"] == row["layers"]["2"]["dormant"]


def test_frozen_clamped_and_computed_layers(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weight_mu = nn.Parameter(torch.randn(outputs, inputs))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.weight_mu + 0.1 * torch.randn(self.weight_mu.shape))

    class Rainbow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.body, self.head = nn.Linear(4, 16).requires_grad_(False), nn.Linear(16, 16), Noisy(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.frozen(x).clamp(min=0)).relu())

    q = seeded(Rainbow, "frozen")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = measured(tmp_path / "run", q)
    one = torch.relu(q.frozen(transitions()[0]))
    assert row["layers"]["frozen"]["dormant"] == pytest.approx(dormant(one), rel=1e-5)
    assert row["effective_rank"] == rank(torch.relu(q.body(one)))  # what the noisy head reads
    assert row["layers"].keys() == {"frozen", "body"}


def test_several_positions_of_a_convolution(tmp_path: Path) -> None:
    q = seeded(
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 6, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    )
    with torch.no_grad():
        q[1].bias[:2] = -100.0
    row = measured(tmp_path / "run", q)
    h = q[:3](transitions()[0])
    assert row["layers"]["1"]["dormant"] == pytest.approx(dormant(h.permute(0, 2, 3, 1)), rel=1e-5)
    assert row["effective_rank"] == rank(h.flatten(1))
