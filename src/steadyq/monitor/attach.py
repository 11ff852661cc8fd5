"""The same diagnostics for any torch Q-network in anyone's training loop."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steadyq.errors import UserError
from steadyq.fields import within
from steadyq.monitor.returns import Returns
from steadyq.monitor.rows import Snapshot, row
from steadyq.nets.units import unit_scores, unit_sizes
from steadyq.run.files import append_row, replace_text
from steadyq.value.estimators import Quantile, Scalar
from steadyq.value.operators import take

Values = Callable[[nn.Module, Tensor], Tensor]
"""`values(network, observation)` gives Q as [batch, action], or quantiles as [batch, action, quantile]."""

ACTIVATIONS = (
    nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus,
)  # fmt: skip
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class StabilityMonitor:
    """Watches a Q-network while your own loop trains it, and writes a folder that `steadyq report` and `diagnose` read.

        monitor = sq.StabilityMonitor(q_network, target_network, optimizer, gamma=0.99, path="runs/mine")
        ...
        monitor.step(reward, terminated, truncated)                                   # after every environment step
        ...
        monitor.update(observation, action, reward, next_observation, terminated)     # after every optimizer step

    Nothing of yours is changed: no gradient is accumulated, no random number is drawn, train and eval mode are put
    back. `update` measures only when `every` steps have passed; in between it returns at once.
    """

    def __init__(
        self,
        q_network: nn.Module,
        target_network: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        path: Path | str,
        gamma: float = 0.99,
        every: int = 1000,
        lanes: int = 1,
        double: bool = False,
        values: Values | None = None,
        name: str = "",
        env: str = "",
        seed: int = 0,
    ) -> None:
        within("every", every, 1)
        within("lanes", lanes, 1)
        within("gamma", gamma, 0, 1)
        if not _watched(q_network):
            raise UserError(
                f"StabilityMonitor watches the Linear and Conv layers inside a module, and {type(q_network).__name__} "
                "has none that trains (a single layer: put it into nn.Sequential)"
            )
        self.network, self.gamma, self.every, self.double = q_network, gamma, every, double
        self.target = q_network if target_network is None else target_network
        self.values = values or (lambda network, observation: network(observation))
        self.path = Path(path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(f"{self.path} is not an empty folder: choose another path")
        self.path.mkdir(parents=True, exist_ok=True)
        self.meta: dict[str, Any] = {
            "name": name or type(q_network).__name__,
            "env": env,
            "seed": seed,
            "gamma": gamma,
            "target network": target_network is not None,
            "torch": torch.__version__,
        }
        self._write_meta()
        self.returns = Returns(lanes, gamma)
        self.scores, self.recent = np.zeros(lanes), deque[float](maxlen=10)
        self.steps = self.updates = self.games = self.measured = 0
        self.looked = False  # whether anything was measured
        self.before: dict[str, Tensor] | None = None
        self.began = time.monotonic()
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._keep())

    def step(self, reward: Any, terminated: Any, truncated: Any = False) -> None:
        """Take note of one step of every environment, in the learner's rewards."""
        lanes = len(self.scores)
        for name, given in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(given) not in ((), (1,), (lanes,)):
                raise UserError(f"step: {name} has shape {np.shape(given)}, and the monitor watches {lanes} lanes")
        rewards = np.broadcast_to(np.asarray(reward, float), (lanes,))
        ended, cut = (np.broadcast_to(np.asarray(flag, bool), (lanes,)) for flag in (terminated, truncated))
        self.steps += lanes
        self.returns.add(rewards, ended, cut)
        self.scores += rewards
        for lane in np.flatnonzero(ended | cut):
            self.games += 1
            self.recent.append(float(self.scores[lane]))
            self._append("events", {"event": "game", "step": self.steps, "lane": int(lane), "score": self.recent[-1]})
            self.scores[lane] = 0.0

    @property
    def due(self) -> bool:
        """Whether the next `update` measures: the first one does, and one every so many steps."""
        return not self.looked or self.steps // self.every != self.measured // self.every

    def update(
        self, observation: Any, action: Any, reward: Any, next_observation: Any, terminated: Any
    ) -> dict[str, Any] | None:
        """Take note of one update; measures on the given transitions if that is due, and returns the row."""
        self.updates += 1
        if not self.due:
            return None
        start = time.perf_counter()
        device = next(self.network.parameters()).device
        observation, next_observation = (torch.as_tensor(x, device=device) for x in (observation, next_observation))
        action = torch.as_tensor(action, device=device).reshape(-1).long()
        reward, terminated = (torch.as_tensor(x, device=device).reshape(-1).float() for x in (reward, terminated))
        with _untouched(self.network, self.target, device):
            shot = self.snapshot(observation, action, reward, next_observation, terminated)
        self.before, self.measured, self.looked = None, self.steps, True
        measured = {"step": self.steps, **self.returns.columns(), **row(shot)}
        self._append("diagnostics", {**measured, "seconds": round(time.perf_counter() - start, 5)})
        self._record(measured, shot)
        return measured

    def snapshot(
        self, observation: Tensor, action: Tensor, reward: Tensor, next_observation: Tensor, terminated: Tensor
    ) -> Snapshot:
        """Look at the network on the given transitions."""
        with torch.no_grad():
            z_next = self._z(self.target, next_observation)
            if z_next.shape[2] < 2:
                raise UserError("the network values a single action: there is no choice to watch")
            q_next = z_next.mean(-1)
            selecting = self._z(self.network, next_observation).mean(-1) if self.double else q_next
            discount = self.gamma * (1 - terminated)
            estimator = Quantile(z_next.shape[-1]) if z_next.shape[-1] > 1 else Scalar()
            no_ceiling = torch.tensor(torch.inf, device=reward.device)
            y = estimator.backup(take(z_next, selecting.argmax(-1)), reward, discount, no_ceiling)
            q_target = estimator.q(self._z(self.target, observation))
            q_before = None if self.before is None else estimator.q(self._z_of(self.before, observation))
        tape = Tape(self.network)
        params = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        with torch.enable_grad(), tape:
            z = self._z(self.network, observation)
            each = estimator.loss(take(z, action[None]), y)
            inputs = [*tape.before_activation.values(), *params.values()]
            found = torch.autograd.grad(each.sum(0).mean(), inputs, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
        slopes = dict(zip(tape.before_activation, gradients, strict=False))
        weights = {name: p.detach()[None] for name, p in params.items()}
        return Snapshot(
            action=action,
            rewarded=reward > 0,
            estimator=estimator,
            z=z.detach(),
            q=estimator.q(z.detach()),
            q_target=q_target,
            q_next=q_next,
            y=y,
            features=tape.features.detach().flatten(1)[None],
            weights=weights,
            gradients={name: g[None] for name, g in zip(params, gradients[len(slopes) :], strict=True)},
            layers=_watched(self.network),
            q_before=q_before,
            weights_before=None
            if self.before is None
            else {name: self.before[name][None] for name in params if name in self.before},
            scores={name: unit_scores(unit_sizes(x.detach()[None])) for name, x in tape.activations().items()},
            gradient_scores={name: unit_scores(unit_sizes(g[None])) for name, g in slopes.items()},
        )

    def _z(self, network: nn.Module, observation: Tensor) -> Tensor:
        """Values as [1, batch, action, atom]."""
        z = self.values(network, observation)
        return (z if z.dim() == 3 else z[..., None])[None]

    def _z_of(self, params: dict[str, Tensor], observation: Tensor) -> Tensor:
        """Values with other parameters in place of the network's."""
        held = _Held(self.network, lambda network: self._z(network, observation))
        z: Tensor = torch.func.functional_call(held, {f"network.{name}": p for name, p in params.items()}, ())
        return z

    def _keep(self) -> None:
        if self.due:
            self.before = {name: p.detach().clone() for name, p in self.network.named_parameters()}

    def _record(self, measured: dict[str, Any], shot: Snapshot) -> None:
        """Metrics and events, as our own runs write them."""
        if "actions" not in self.meta:
            self.meta |= {"actions": shot.q.shape[2], "quantiles": shot.z.shape[3]}
            self._write_meta()
        self._append(
            "metrics",
            {
                "step": self.steps,
                "updates": self.updates,
                "games": self.games,
                "return_10": sum(self.recent) / len(self.recent) if self.recent else None,
                "q_taken": measured["q_taken"],
                "q_max": measured["q_greedy"],
                "same_action": measured["same_action"],
                "gradient_norm": measured["gradient_norm"],
                "seconds": round(time.monotonic() - self.began, 3),
            },
        )
        ratios = [[measured["layers"][name]["spike"] for name in shot.layers]]
        self._append("events", {"event": "spikes", "step": self.steps, "layers": list(shot.layers), "ratios": ratios})

    def _append(self, log: str, values: dict[str, Any]) -> None:
        with open(self.path / f"{log}.jsonl", "a") as file:
            append_row(file, values)

    def _write_meta(self) -> None:
        replace_text(self.path / "meta.json", json.dumps(self.meta, indent=2) + "\n")


def _watched(network: nn.Module) -> tuple[str, ...]:
    """Layers whose weights train, by name."""
    named = network.named_modules()
    return tuple(name for name, layer in named if name and isinstance(layer, LAYERS) and layer.weight.requires_grad)


class Tape:
    """Within its block, keeps what the network's layers and activation modules put out.

    A layer's units are what the first activation module after it puts out. A network that calls its activations as
    functions has no such modules: its hidden layers are then taken to be followed by a ReLU.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.outputs: dict[str, Tensor] = {}
        self.fired: dict[str, Tensor] = {}
        self.latest = ""
        self.features = torch.zeros(1, 1)
        self.hooks: list[Any] = []

    def __enter__(self) -> "Tape":
        for name, module in self.network.named_modules():
            if isinstance(module, LAYERS):
                self.hooks.append(module.register_forward_hook(self._layer(name)))
            elif isinstance(module, ACTIVATIONS):
                self.hooks.append(module.register_forward_hook(self._activation))
        return self

    def __exit__(self, *_: Any) -> None:
        for hook in self.hooks:
            hook.remove()

    def _layer(self, name: str) -> Callable[..., Tensor]:
        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            self.outputs[name], self.latest, self.features = output, name, inputs[0]
            return output.clone()  # an activation in place must not overwrite what is kept

        return keep

    def _activation(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.fired.setdefault(self.latest, output)

    @property
    def before_activation(self) -> dict[str, Tensor]:
        """Hidden layers' outputs before their activation."""
        if self.fired:
            return {name: self.outputs[name] for name in self.fired if name}
        return {name: output for name, output in self.outputs.items() if name != self.latest}

    def activations(self) -> dict[str, Tensor]:
        """Hidden layers' units."""
        if self.fired:
            return {name: output for name, output in self.fired.items() if name}
        return {name: output.relu() for name, output in self.before_activation.items()}


class _Held(nn.Module):
    """Calls a function of a network, so that the network's parameters can be replaced for the call."""

    def __init__(self, network: nn.Module, function: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self) -> Tensor:
        """Call it."""
        return self.function(self.network)


@contextmanager
def _untouched(network: nn.Module, target: nn.Module, device: torch.device) -> Iterator[None]:
    """Look without leaving a trace: modes are put back, and the random stream goes on as if nothing had been drawn."""
    modes = {module: module.training for root in (network, target) for module in root.modules()}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        network.eval()
        target.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
