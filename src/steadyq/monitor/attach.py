"""The same diagnostics for any torch Q-network in anyone's training loop."""

import json
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steadyq.errors import UserError, one_line
from steadyq.fields import within
from steadyq.monitor.returns import Returns
from steadyq.monitor.rows import Snapshot, row
from steadyq.monitor.tape import Call, Tape, features
from steadyq.nets.units import unit_scores, unit_sizes
from steadyq.run.files import append_row, read_text, replace_text
from steadyq.value.estimators import Categorical, Estimator, Quantile, Scalar
from steadyq.value.operators import take

Values = Callable[[nn.Module, Tensor], Tensor]
"""`values(network, observation)` gives Q as [batch, action], or a distribution as [batch, action, atom]."""

WATCHED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
HOW = (
    "pass values=, a function of (network, observation) that returns Q as [batch, action], or atoms as "
    "[batch, action, atom] with quantiles=True or, for C51's probabilities or logits, support=(low, high)"
)
RESULT = "result.json"
NOTED = 16
"""Updates after each measurement at which the target network is compared with the online one."""
ENOUGH = 8
"""Of these, how many make a share: a copy now and then is equal at single updates."""


class StabilityMonitor:
    """Watches a Q-network while your own loop trains it, and writes a folder that `steadyq report` and `diagnose` read.

        monitor = sq.StabilityMonitor(q_network, target_network, optimizer, gamma=0.99, path="runs/mine")
        ...
        monitor.step(reward, terminated, truncated)                                   # after every environment step
        ...
        monitor.update(observation, action, reward, next_observation, terminated)     # after every optimizer step

    Nothing of yours is changed: no gradient is accumulated, no random number is drawn, train and eval mode are put
    back. `update` measures only when `every` steps have passed; in between it returns at once. A compiled network is
    measured by its original module, uncompiled.

    `parameters` are your settings by your own names (`vars(args)`): advice then speaks of them. `resume` is how many
    environment steps a checkpoint of yours had done: the folder's rows up to there are kept, and the run goes on.
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
        quantiles: bool = False,
        support: tuple[float, float] | None = None,
        parameters: Mapping[str, Any] | None = None,
        name: str = "",
        env: str = "",
        seed: int = 0,
        resume: int | None = None,
    ) -> None:
        within("every", every, 1)
        within("lanes", lanes, 1)
        within("gamma", gamma, 0, 1)
        if support is not None and (quantiles or not support[0] < support[1]):
            raise UserError(f"support is (lowest, highest return) of C51's atoms, without quantiles; got {support}")
        self.network, self.gamma, self.every, self.double = _original(q_network), gamma, every, double
        if not _watched(self.network):
            raise UserError(
                f"StabilityMonitor watches the Linear and Conv layers inside a module, and "
                f"{type(self.network).__name__} has none that trains (a single layer: put it into nn.Sequential)"
            )
        self.target = self.network if target_network is None else _original(target_network)
        self.values, self.quantiles, self.support = values, quantiles, support
        self.path = Path(path)
        self.meta: dict[str, Any] = {
            "name": name or type(self.network).__name__,
            "env": env,
            "seed": seed,
            "gamma": gamma,
            "target network": self.target is not self.network,
            "torch": torch.__version__,
        }
        self.meta["parameters"] = _settings(parameters, optimizer)
        self.returns = Returns(lanes, gamma)
        self.scores, self.recent = np.zeros(lanes), deque[float](maxlen=10)
        self.steps = self.updates = self.games = self.measured = 0
        self.looked = False  # whether anything was measured
        self.noted = self.same = 0  # updates since, and at how many of them the target was the online network
        self.before: dict[str, Tensor] | None = None
        self.began = time.monotonic()
        self._open(resume)
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._before_update())

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

    def finish(self, returns: Sequence[float], random_returns: Sequence[float]) -> None:
        """Write the result of an evaluation of yours, whole games of your agent and of a random policy, so that
        `steadyq compare` sets the run beside others. Going on in the folder puts it aside as result-STEPS.json.
        """
        for name, scores in (("returns", returns), ("random_returns", random_returns)):
            if not len(scores) or not np.isfinite(scores).all():
                raise UserError(f"finish: {name} must be the finite scores of one game or more")
        found = {
            "env": self.meta["env"],
            "seed": self.meta["seed"],
            "steps": self.steps,
            "updates": self.updates,
            "games": self.games,
            "returns": [float(score) for score in returns],
            "mean_return": float(np.mean(returns)),
            "random_return": float(np.mean(random_returns)),
            "random_episodes": len(random_returns),
            "training_return_10": sum(self.recent) / len(self.recent) if self.recent else None,
            "wall_seconds": round(time.monotonic() - self.began, 1),
        }
        replace_text(self.path / RESULT, json.dumps(found, indent=2) + "\n")

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
        if isinstance(observation, dict | tuple):
            raise UserError(f"update: observation is a {type(observation).__name__}, and one tensor is watched")
        observation, next_observation = (torch.as_tensor(x, device=device) for x in (observation, next_observation))
        action = torch.as_tensor(action, device=device).reshape(-1).long()
        reward, terminated = (torch.as_tensor(x, device=device).reshape(-1).float() for x in (reward, terminated))
        with _untouched(self.network, self.target, device):
            shot = self.snapshot(observation, action, reward, next_observation, terminated)
        measured = {"step": self.steps, **self.returns.columns(), **row(shot)}
        if self.noted >= ENOUGH:
            measured["target_same"] = self.same / self.noted
        self.before, self.measured, self.looked = None, self.steps, True
        self.noted = self.same = 0
        self._append("diagnostics", {**measured, "seconds": round(time.perf_counter() - start, 5)})
        self._record(measured, shot)
        return measured

    def snapshot(
        self, observation: Tensor, action: Tensor, reward: Tensor, next_observation: Tensor, terminated: Tensor
    ) -> Snapshot:
        """Look at the network on the given transitions."""
        with torch.no_grad():
            z_next = self._z(self.target, next_observation)
            actions = z_next.shape[2]
            if actions < 2:
                raise UserError("the network values a single action: there is no choice to watch")
            if not 0 <= int(action.min()) <= int(action.max()) < actions:
                raise UserError(
                    f"actions go from {int(action.min())} to {int(action.max())}, and the network values {actions}: is "
                    "what it puts out [batch, action]?"
                )
            estimator = self._estimator(z_next.shape[-1])
            q_next = estimator.q(z_next)
            selecting = estimator.q(self._z(self.network, next_observation)) if self.double else q_next
            discount = self.gamma * (1 - terminated)
            no_ceiling = torch.tensor(torch.inf, device=reward.device)
            y = estimator.backup(take(z_next, selecting.argmax(-1)), reward, discount, no_ceiling)
            q_target = estimator.q(self._z(self.target, observation))
            q_before = None if self.before is None else estimator.q(self._z_of(self.before, observation))
        tape = Tape(self.network)
        params = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            with tape:
                z = self._z(self.network, observation)
            heads = tape.behind(z)
            if not heads:
                raise UserError(
                    f"no layer of {type(self.network).__name__} was seen at work: values= has to call the network it "
                    "is given, uncompiled and with gradients"
                )
            hidden = tape.hidden(z)
            if not self.looked:
                _say_unknown(hidden)
            hidden = [call for call in hidden if call.fired is not None]
            each = estimator.loss(take(z, action[None]), y)
            inputs = [*(call.output for call in hidden), *params.values()]
            found = torch.autograd.grad(each.sum(0).mean(), inputs, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
        units: dict[str, list[Tensor]] = {}
        slopes: dict[str, list[Tensor]] = {}
        for call, slope in zip(hidden, gradients, strict=False):
            assert call.fired is not None
            units.setdefault(call.name, []).append(call.units(call.fired))
            slopes.setdefault(call.name, []).append(call.units(slope))
        return Snapshot(
            action=action,
            rewarded=reward > 0,
            estimator=estimator,
            z=z.detach(),
            q=estimator.q(z.detach()),
            q_target=q_target,
            q_next=q_next,
            y=y,
            features=features(heads)[None],
            weights={name: p.detach()[None] for name, p in params.items()},
            gradients={name: g[None] for name, g in zip(params, gradients[len(hidden) :], strict=True)},
            layers=_watched(self.network),
            q_before=q_before,
            weights_before=None
            if self.before is None
            else {name: self.before[name][None] for name in params if name in self.before},
            scores={name: unit_scores(unit_sizes(torch.cat(parts)[None])) for name, parts in units.items()},
            gradient_scores={name: unit_scores(unit_sizes(torch.cat(parts)[None])) for name, parts in slopes.items()},
        )

    def _z(self, network: nn.Module, observation: Tensor) -> Tensor:
        """Values as [1, batch, action, atom]; whatever is random in them is the same each time in a row."""
        _draw_alike(self.steps, observation.device)
        if self.values is not None:
            z = self.values(network, observation)
        else:
            try:
                z = network(observation)
            except (TypeError, NotImplementedError) as problem:
                raise UserError(
                    f"{type(network).__name__} cannot be called with an observation alone ({one_line(problem)}): {HOW}"
                ) from problem
        if not isinstance(z, Tensor):
            raise UserError(f"{type(network).__name__} puts out a {type(z).__name__}: {HOW}")
        atoms = self.quantiles or self.support is not None
        if z.dim() != (3 if atoms else 2) or len(z) != len(observation):
            wanted = "[batch, action, atom]" if atoms else "[batch, action]"
            raise UserError(
                f"{type(network).__name__} puts out {list(z.shape)} for {len(observation)} observations, not {wanted}: "
                f"{HOW}"
            )
        z = z.float()
        return (_logits(z) if self.support else z if atoms else z[..., None])[None]

    def _z_of(self, params: dict[str, Tensor], observation: Tensor) -> Tensor:
        """Values with other parameters in place of the network's."""
        held = _Held(self.network, lambda network: self._z(network, observation))
        z: Tensor = torch.func.functional_call(held, {f"network.{name}": p for name, p in params.items()}, ())
        return z

    def _estimator(self, atoms: int) -> Estimator:
        """What the numbers of the network mean."""
        if self.support is not None:
            return Categorical(atoms, *self.support)
        return Quantile(atoms) if self.quantiles else Scalar()

    def _before_update(self) -> None:
        if self.due:
            self.before = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        if self.noted < NOTED:
            self.noted += 1
            self.same += _equal(self.network, self.target)

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

    def _open(self, resume: int | None) -> None:
        """Begin a folder, or go on in it."""
        meta, events = self.path / "meta.json", self.path / "events.jsonl"
        if self.path.is_dir() and {meta} <= {*self.path.iterdir()} <= {meta, events}:
            events.unlink(missing_ok=True)  # a loop that ended before its first measurement
            meta.unlink()
        used = self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))
        if used and not (self.path.is_dir() and meta.is_file()):
            raise UserError(f"{self.path} is not an empty folder: choose another path")
        if used and resume is None:
            raise UserError(
                f"{self.path} holds a watched run: choose another path, or pass resume=STEPS to go on with it from a "
                "checkpoint of yours that had made so many environment steps"
            )
        if resume is not None:
            within("resume", resume, 0)
            self.steps = self.measured = resume
        if used:
            self._continue(json.loads(read_text(meta)))
        else:
            self.path.mkdir(parents=True, exist_ok=True)
        self._write_meta()

    def _continue(self, had: Any) -> None:
        """Take up what the folder's rows say, up to the step that is resumed; later ones are cut off."""
        for key in ("name", "env", "seed", "gamma"):
            there = had.get(key) if isinstance(had, dict) else None
            if there != self.meta[key]:
                raise UserError(f"{self.path} holds another run: {key} is {there!r} there and {self.meta[key]!r} here")
        self.meta = {**had, **self.meta}
        if (earlier := self.path / RESULT).is_file():
            steps = json.loads(read_text(earlier)).get("steps")
            earlier.rename(self.path / f"result-{steps}.json")
        logs = {log: self._cut(log) for log in ("diagnostics", "metrics", "events")}
        if logs["diagnostics"]:
            last = logs["diagnostics"][-1]
            self.looked, self.measured = True, int(last["step"])
            if (best := last.get("return_best")) is not None:
                self.returns.best = float(best)
        if logs["metrics"]:
            self.updates = int(logs["metrics"][-1]["updates"])
            self.began -= float(logs["metrics"][-1]["seconds"])
        scores = [row["score"] for row in logs["events"] if row["event"] == "game"]
        self.games = len(scores)
        self.recent.extend(scores[-10:])
        self._append("events", {"event": "resume", "step": self.steps})

    def _cut(self, log: str) -> list[dict[str, Any]]:
        """Rows of a log up to the step that is resumed, all that is left of it; a killed run's half line goes too."""
        file, kept = self.path / f"{log}.jsonl", list[tuple[str, dict[str, Any]]]()
        if not file.is_file():
            return []
        for line in read_text(file).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if row["step"] > self.steps:
                break
            kept.append((line, row))
        replace_text(file, "".join(f"{line}\n" for line, _ in kept))
        return [row for _, row in kept]

    def _append(self, log: str, values: dict[str, Any]) -> None:
        with open(self.path / f"{log}.jsonl", "a") as file:
            append_row(file, values)

    def _write_meta(self) -> None:
        replace_text(self.path / "meta.json", json.dumps(self.meta, indent=2) + "\n")


def _original(network: Any) -> nn.Module:
    """The module inside `torch.compile`'s and the parallel wrappers: the same parameters, and hooks that are called."""
    while True:
        if type(network).__name__ == "OptimizedModule":
            network = network._orig_mod
        elif isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
            network = network.module
        else:
            assert isinstance(network, nn.Module)
            return network


def _watched(network: nn.Module) -> tuple[str, ...]:
    """Layers whose weights train, by name."""
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    layers = (name for name, layer in network.named_modules() if name and isinstance(layer, WATCHED))
    return tuple(name for name in layers if f"{name}.weight" in trained)


def _settings(parameters: Mapping[str, Any] | None, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """The run's settings that are plain values, by its own names; without any, the optimizer's learning rate."""
    if parameters is None:
        parameters = {} if optimizer is None else {"lr": float(optimizer.param_groups[0]["lr"])}
    return {str(name): value for name, value in parameters.items() if isinstance(value, str | bool | int | float)}


def _say_unknown(hidden: list[Call]) -> None:
    """Warn of layers whose units cannot be measured."""
    if unknown := list(dict.fromkeys(call.name for call in hidden if call.fired is None)):
        warnings.warn(
            f"StabilityMonitor knows no activation after {', '.join(unknown)}: dormant units are not measured there",
            stacklevel=5,
        )


def _logits(z: Tensor) -> Tensor:
    """C51's logits, of probabilities or of logits."""
    given = z.detach()
    chances = bool((given >= 0).all()) and torch.allclose(given.sum(-1), torch.ones_like(given[..., 0]), atol=1e-3)
    return z.clamp_min(1e-30).log() if chances else z


def _equal(network: nn.Module, target: nn.Module) -> bool:
    """Whether the target has the same parameters now."""
    if network is target:
        return True
    theirs = dict(target.named_parameters())
    pairs = ((p, theirs.get(name)) for name, p in network.named_parameters())
    return all(q is not None and p.shape == q.shape and torch.equal(p, q.to(p.device)) for p, q in pairs)


def _draw_alike(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


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
    with torch.random.fork_rng(devices=devices), _uncompiled(network, target):
        network.eval()
        target.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


def _uncompiled(*networks: nn.Module) -> Any:
    """A block in which compiled parts run as they were written: what a layer does inside them cannot be seen."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    if hasattr(torch.compiler, "set_stance"):  # from PyTorch 2.6
        return torch.compiler.set_stance("force_eager")
    for network in networks:
        for name, module in network.named_modules():
            if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
                raise UserError(
                    f"{name or type(network).__name__} is compiled in place, and PyTorch {torch.__version__} cannot "
                    "run it uncompiled for a measurement: use torch.compile(network), or PyTorch 2.6"
                )
    return nullcontext()
