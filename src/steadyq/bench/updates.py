"""One update in every form: how long, in which parts, in how much memory."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steadyq.bench.clock import milliseconds
from steadyq.device.capture import Captured
from steadyq.device.kernels.loss import quantile_huber_reference
from steadyq.envs.vector import EnvSpec
from steadyq.monitor.watch import Watch
from steadyq.nets import Ensemble, Impala, MinAtarNet, Network, ResNet
from steadyq.nets.forms import Form, Stacked
from steadyq.nets.layers import Conv
from steadyq.recipe import MonitorSection
from steadyq.replay.priority import Sampling
from steadyq.replay.ring import Ring
from steadyq.run.update import Learning
from steadyq.value.estimators import Quantile
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Controlled, take
from steadyq.value.optim import Adam
from steadyq.value.shapes import DrawLayout, Params, Values

BATCH, ATOMS = 32, 51
Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
SETTINGS = Settings(Adam(1e-4), clip=10.0, tau=0.005, hard_copy_every=0)


@dataclass(frozen=True)
class Case:
    """What is timed: an ensemble on an environment's shapes, with a full replay buffer."""

    members: int
    scale: int = 0  # of the ResNet; 0 is the MinAtar network
    capacity: int = 100_000
    atoms: int = ATOMS
    width: int = 0  # of BBF's IMPALA encoder, in place of the ResNet

    @property
    def spec(self) -> EnvSpec:
        """Atari with all 18 actions, or MinAtar Breakout."""
        if self.scale or self.width:
            return _spec((1, 84, 84), "uint8", 255.0, stack=4, actions=18)
        return _spec((4, 10, 10), "float32", 1.0, stack=1, actions=6)

    @property
    def network(self) -> Network:
        """One member."""
        spec, (channels, height, width) = self.spec, self.spec.observation_shape
        outputs, image = spec.num_actions * self.atoms, (channels, height, width)
        if self.width:
            return Impala(
                image, outputs, self.width, atoms=self.atoms, dueling=True, renormalise=True, initial="xavier"
            )
        return ResNet(image, outputs, self.scale) if self.scale else MinAtarNet(image, outputs)

    def ensemble(self, form: Form, dtype: torch.dtype = torch.float32) -> Ensemble:
        """All members in a form."""
        actions, pixel_max = self.spec.num_actions, self.spec.pixel_max
        return Ensemble(self.network, self.members, actions, self.atoms, pixel_max, form, dtype)

    def learner(self, form: Form, dtype: torch.dtype, device: torch.device, kind: type[Learner] = Learner) -> Learner:
        """The ensemble's learner in a form."""
        estimator, generator = Quantile(self.atoms), torch.Generator().manual_seed(0)
        return kind(self.ensemble(form, dtype), estimator, Controlled(), SETTINGS, generator, device)

    def ring(self, device: torch.device) -> Ring:
        """A replay buffer full of noise."""
        return noisy(Ring(self.spec, self.capacity, sampling=Sampling(), device=device), self.spec, self.capacity)


def noisy(ring: Ring, spec: EnvSpec, capacity: int) -> Ring:
    """The ring, full of noise."""
    if spec.frame_dtype == "uint8":
        ring.frame.random_(0, int(spec.pixel_max) + 1)
    else:
        ring.frame.bernoulli_(0.1)
    ring.action.random_(0, spec.num_actions)
    ring.reward.random_(-1, 2)
    ring.age.fill_(100)
    ring.priorities.mass[:capacity].uniform_(0.1, 1.0)
    return ring


def _spec(frame: tuple[int, int, int], dtype: Any, pixel_max: float, *, stack: int, actions: int) -> EnvSpec:
    names = tuple(f"action {i}" for i in range(actions))
    return EnvSpec(
        name="noise", frame_shape=frame, frame_dtype=dtype, pixel_max=pixel_max, stack=stack, num_actions=actions,
        lanes=1, action_names=names, frames_per_step=1,
    )  # fmt: skip


class Draws:
    """Fresh randomness for every update, as training draws it."""

    def __init__(self, members: int) -> None:
        self.rng, self.layout = np.random.default_rng(0), DrawLayout(members, BATCH)

    def __call__(self) -> Tensor:
        """One packed draw."""
        drawn = {"uniform": self.rng.random(BATCH), "order": np.roll(np.arange(self.layout.members), 1)}
        decided = {"forbid": True, "rate": SETTINGS.adam.rate}
        return torch.from_numpy(self.layout.pack(**self.layout.nothing | drawn | decided))


class PlainLoop:
    """What one would write: for each member a network, a backward pass, a clip and a `torch.optim.Adam`, in float32."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.ring, self.draws = case, case.ring(device), Draws(case.members)
        self.estimator, self.operator = Quantile(case.atoms), Controlled()
        self.one = replace(case.ensemble("loop"), members=1)
        initial = case.ensemble("loop").initial(torch.Generator().manual_seed(0))
        self.online: list[Params] = [
            {name: p[i : i + 1].to(device).clone().requires_grad_() for name, p in initial.items()}
            for i in range(case.members)
        ]
        self.target = [{name: p.detach().clone() for name, p in one.items()} for one in self.online]
        self.adams = [torch.optim.Adam(list(one.values()), lr=1e-4) for one in self.online]
        self.ceiling = torch.full((), torch.inf, device=device)
        self.device = device

    def __call__(self) -> None:
        """One update."""
        draw = self.draws.layout.unpack(self.draws().to(self.device))
        batch = self.ring.sample(draw)
        estimator = self.estimator
        with torch.no_grad():
            z = torch.cat([self.one.forward(one, batch.next_observation) for one in self.target])
            values = Values(z, estimator.q(z))
            z_next = self.operator(values, values, batch, draw)
            y = estimator.backup(z_next, batch.reward, batch.discount, self.ceiling)
        priority = torch.zeros(BATCH, device=self.device)
        for i, (online, target, adam) in enumerate(zip(self.online, self.target, self.adams, strict=True)):
            z = take(self.one.forward(online, batch.observation), batch.action[None])
            each = quantile_huber_reference(z, y[i : i + 1])
            adam.zero_grad()
            (batch.weight * each[0]).mean().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(list(online.values()), SETTINGS.clip)
            adam.step()
            priority += each[0].detach() / self.case.members
            with torch.no_grad():
                for name, p in target.items():
                    p.lerp_(online[name], SETTINGS.tau)
        self.ring.priorities.update(batch.index, batch.stamp, priority)


class CompiledGrouped(Learner):
    """Grouped convolutions in channels-last order under `torch.compile`: PyTorch's own way to run members at once."""

    def values(
        self, params: Params, observation: Tensor, taus: Tensor | None = None, noise: Tensor | None = None
    ) -> Values:
        """Distributions and means at the observations."""
        if not hasattr(self, "compiled"):
            torch.compiler.reset()  # or a few scales in one process exhaust what may be compiled of one function
            self.compiled = torch.compile(self.forward, dynamic=False)
        z = self.compiled(params, observation)
        return Values(z, self.estimator.q(z))

    def forward(self, params: Params, observation: Tensor) -> Tensor:
        """What is compiled."""
        ensemble = self.ensemble
        x = (observation.to(ensemble.dtype) / ensemble.pixel_max).contiguous(memory_format=torch.channels_last)
        run = ChannelsLast(partial(ensemble.layer, params), ensemble.members, x)
        return ensemble.network.wire(run, x).view(ensemble.members, len(x), ensemble.actions, ensemble.atoms)


@dataclass(frozen=True)
class ChannelsLast(Stacked):
    """The stacked form with weights in channels-last order, and x W^T where ours is W x^T."""

    def layer(self, name: str, x: Tensor, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """A grouped convolution or a batched matrix product."""
        kind, weight, bias = self.layers(name)
        if isinstance(kind, Conv):
            flat = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            groups = 1 if x is self.observation else self.members
            y = functional.conv2d(x, flat, bias.flatten(), kind.stride, kind.padding, groups=groups)
        else:
            x = self.members_first(x) if x.dim() == 4 else x
            y = torch.baddbmm(bias[:, None], x.to(weight.dtype), weight.transpose(1, 2))
        y = y if residual is None else y + residual
        return functional.relu(y) if relu else y


def update_of(learner: Learner, ring: Ring) -> Callable[[], None]:
    """A whole update as training runs it: draw, sample, learn, set priorities; captured on a GPU."""
    draws = Draws(learner.ensemble.members)
    learning = Learning(learner, ring, draws.layout)
    return lambda: learning(draws())


def act_of(learner: Learner, case: Case) -> Callable[[], Any]:
    """Choose one action, from an observation on the device to a number on the host."""
    device, shape = learner.device, case.spec.observation_shape
    values = Captured(torch.no_grad()(lambda x: learner.values(learner.online_low, x).q.mean(0)), device)
    x = torch.zeros(1, *shape, dtype=getattr(torch, case.spec.frame_dtype), device=device)
    return lambda: values(x).argmax(-1).cpu()


def diagnostics_of(learner: Learner, ring: Ring) -> Callable[[], Any]:
    """One row of diagnostics as training measures it, its copy of the parameters included."""
    members, device = learner.ensemble.members, learner.device
    watch = Watch(every=1, batch=MonitorSection().batch, seed=0, lanes=1, gamma=0.99)
    draw = DrawLayout(members, BATCH).plain(device, order=np.roll(np.arange(members), 1), forbid=True)

    def measure() -> dict[str, Any]:
        watch.before(learner)
        return watch.measure(1, learner, ring, draw)

    return measure


def parts_of(learner: Learner, ring: Ring) -> dict[str, Callable[[], Any]]:
    """The parts of an update, each captured alone on fixed inputs."""
    device, draws = learner.device, Draws(learner.ensemble.members)
    drawn = draws().to(device)
    draw = draws.layout.unpack(drawn)
    batch = ring.sample(draw)
    y, target, _ = learner.targets(batch, draw)

    def gradient() -> tuple[Params, Tensor, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in learner.online_low.items()}
        now = learner.values(leaves, batch.observation)
        loss, each = learner.loss(now, batch, y, draw)
        found = torch.autograd.grad(loss, list(leaves.values()))
        return dict(zip(leaves, found, strict=True)), each.detach(), now.q.detach()

    found, each, q = gradient()

    @torch.no_grad()
    def record() -> Tensor:
        ring.priorities.update(batch.index, batch.stamp, each.mean(0))
        return torch.stack(list(learner.measure(batch, target, y, each, q).values()))

    functions: dict[str, Callable[[], Any]] = {
        "sample": lambda: ring.sample(draw).weight,
        "targets": lambda: learner.targets(batch, draw)[0],
        "loss and gradient": lambda: gradient()[1],
        "clip, Adam, Polyak, copies": lambda: learner.step_(found, draw),
        "priorities, measures": record,
    }

    def captured(function: Callable[[], Any]) -> Callable[[], Any]:
        run = Captured(lambda _: function(), device)
        return lambda: run(drawn)

    return {name: captured(function) for name, function in functions.items()}


@dataclass(frozen=True)
class Rates:
    """What the device does at best: operations and bytes per second, measured."""

    bf16_flops: float
    bytes_per_second: float

    @classmethod
    def measure(cls, device: torch.device, side: int = 8192) -> "Rates":
        """Time a large product and a large copy."""
        a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
        product = milliseconds(lambda: a @ a, device, budget=0.5)
        source = torch.empty(1 << 30, device=device, dtype=torch.uint8)
        target = torch.empty_like(source)
        copy = milliseconds(lambda: target.copy_(source), device, budget=0.5)
        return cls(2 * side**3 / product * 1e3, 2 * source.numel() / copy * 1e3)


OPTIMIZER_BYTES = 38
"""Per parameter: read value, two moments, target and a bf16 gradient; write the four back, and two bf16 copies."""


def floors(case: Case, rates: Rates) -> dict[str, float]:
    """Milliseconds below which the large parts of an update cannot fall: arithmetic, or bytes, at the best rates."""
    layers = list(case.network.layers.values())
    each = [2e3 * layer.multiplications * case.members * BATCH / rates.bf16_flops for layer in layers]
    forward, stem = sum(each), each[0]  # no gradient of the stem's input is made
    parameters = sum(math.prod(layer.weight_shape) + layer.outputs for layer in layers) * case.members
    step = 1e3 * OPTIMIZER_BYTES * parameters / rates.bytes_per_second
    return {"targets": forward, "loss and gradient": 3 * forward - stem, "clip, Adam, Polyak, copies": step}


@contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Measure the most GPU memory meanwhile, beyond that before, in GB: taken by tensors, and held by PyTorch."""
    found: dict[str, float] = {}
    if device.type == "cuda":
        gc.collect()  # a captured function and its owner refer to each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    yield found
    if device.type == "cuda":
        found["peak_gb"] = round((torch.cuda.max_memory_allocated() - before) / 1e9, 2)
        found["held_gb"] = round((torch.cuda.max_memory_reserved() - held) / 1e9, 2)


def backends(tf32: bool, *, search: bool) -> None:
    """Whether float32 products may be rounded to TF32, and whether cuDNN times its algorithms to choose (training
    takes those it suggests, so that a continued run repeats itself).
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = search


def timed_form(
    case: Case, form: Form, precision: Precision, device: torch.device, *, compiled: bool = False, detail: bool = False
) -> dict[str, Any]:
    """Time one form: the update, and with `detail` its parts, acting and a row of diagnostics."""
    backends(precision != "fp32", search=compiled)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with peak_memory(device) as memory:
        learner = case.learner(form, dtype, device, CompiledGrouped if compiled else Learner)
        ring = case.ring(device)
        row: dict[str, Any] = {"update_ms": milliseconds(update_of(learner, ring), device)}
    row |= memory
    if detail:
        row["parts_ms"] = {
            name: milliseconds(part, device, budget=0.3) for name, part in parts_of(learner, ring).items()
        }
        row["act_ms"] = milliseconds(act_of(learner, case), device, budget=0.3)
        with peak_memory(device) as memory:
            row["diagnostics_ms"] = milliseconds(diagnostics_of(learner, ring), device, budget=0.3, warm=2)
        row |= {f"diagnostics_{name}": gb for name, gb in memory.items()}
    return row
