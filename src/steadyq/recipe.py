"""The whole configuration of a run: one tree of frozen dataclasses, to and from TOML, with typed overrides.

Every field is also a dotted option of the command line (`--replay.ratio 2`); the text below a field is its help.
Values that cannot work raise `UserError` when the recipe is built, before anything is written.
"""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import tyro

from steadyq.envs.protocol import Protocol
from steadyq.errors import UserError, nearest, one_line, shown

T = TypeVar("T")

MOST = 10**15
"""Of anything that is counted and has no limit of its own: more is a slip of the finger."""
MOST_GAMES = 10**6


def within(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raise unless low <= value <= high."""
    if high == float("inf") and value > MOST and isinstance(value, int):
        raise UserError(f"{name} must be at most {MOST:.15g}, got {shown(value)}")
    if not low <= value <= high:
        span = f"at least {low:.15g}" if high == float("inf") else f"between {low:.15g} and {high:.15g}"
        given = f"{value:.15g}" if abs(value) < 1e300 else shown(value)  # Python writes no larger integer as a float
        raise UserError(f"{name} must be {span}, got {given}")


@dataclass(frozen=True)
class NetworkSection:
    """What approximates the values of one member."""

    kind: Literal["resnet", "minatar", "mlp"] = "resnet"
    """resnet: the paper's encoder; minatar: one convolution and one hidden layer; mlp: fully connected."""
    scale: int = 4
    """Width factor s of the resnet: channels 8s, 16s, 32s, 64s."""
    head_multiple: int = 128
    """The resnet's projection is head_multiple x scale wide: 128 by the paper's layer table, 512 by its text."""
    strides: tuple[int, int, int, int] = (1, 2, 2, 2)
    """Strides of the resnet's four stages: 1 2 2 2 for Atari, 2 2 2 2 for Procgen."""
    channels: int = 16
    """Channels of the minatar convolution."""
    hidden: tuple[int, ...] = (128,)
    """Hidden layers of the mlp; the minatar network uses the first."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("network.scale", self.scale, 1, 16)
        within("network.head_multiple", self.head_multiple, 1)
        within("network.channels", self.channels, 1)
        if not self.hidden:
            raise UserError("network.hidden needs at least one layer, for example 128")
        for size in self.hidden:
            within("network.hidden", size, 1)
        for stride in self.strides:
            within("network.strides", stride, 1, 2)


@dataclass(frozen=True)
class EnsembleSection:
    """How many independent networks learn side by side."""

    members: int = 16
    """Independent networks; all see the same batch and act by their mean value."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("ensemble.members", self.members, 1, 256)


@dataclass(frozen=True)
class OperatorSection:
    """Axis 1: which action, and whose value, goes into the bootstrap target."""

    kind: Literal["controlled", "greedy", "double"] = "controlled"
    """controlled: the paper's; greedy: the target network selects and values; double: the online network selects."""
    exchange: Literal["derangement", "permutation", "none"] = "derangement"
    """Whose selected action a member values: always another's, any permutation's, or its own."""
    forbid: Literal["rewarded", "auto", "none"] = "rewarded"
    """Forbid re-selecting the action that was just rewarded: always, only while rewards are rare, or never."""
    selector: Literal["target", "online"] = "target"
    """Which networks select the bootstrap action."""
    ceiling: Literal["running_max", "none"] = "running_max"
    """Hold targets below the best discounted return of a finished trajectory, or do not."""

    def __post_init__(self) -> None:
        """Refuse switches that the chosen operator does not have."""
        if self.kind != "controlled":
            for name, neutral in (("exchange", "none"), ("forbid", "none"), ("selector", "target")):
                if getattr(self, name) != neutral:
                    raise UserError(
                        f"operator.{name} {getattr(self, name)} contradicts operator.kind {self.kind}: "
                        f"only the controlled operator has it (set operator.{name} {neutral})"
                    )


@dataclass(frozen=True)
class EstimatorSection:
    """Axis 2: how a return is represented and regressed."""

    kind: Literal["quantile", "scalar"] = "quantile"
    """quantile: a distribution by its quantiles; scalar: its mean alone."""
    quantiles: int = 51
    """Quantiles per action."""
    kappa: float = 1.0
    """Where the Huber loss turns from quadratic to linear."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over predicted quantiles: mean is the paper's 1/K^2, sum is QR-DQN's, K times as large."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("estimator.quantiles", self.quantiles, 1, 1000)
        within("estimator.kappa", self.kappa, 1e-6)


@dataclass(frozen=True)
class RegulationSection:
    """Axis 3: when a layer is reset. Spike ratios are measured and logged either way."""

    intervention: Literal["reinitialise", "none"] = "reinitialise"
    """What happens to a member's layer above the threshold."""
    threshold: float = 6.0
    """Spike ratio max|W| / quantile(|W|) above which a layer is reset."""
    quantile: float = 0.99
    """The quantile in the ratio."""
    every: int = 1000
    """Steps between measurements (per lane)."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("regulation.threshold", self.threshold, 1)
        within("regulation.quantile", self.quantile, 0.01, 1)
        within("regulation.every", self.every, 1)


@dataclass(frozen=True)
class ReplaySection:
    """Where experience is kept and how often it is reused."""

    capacity: int = 100_000
    """Transitions kept."""
    warmup: int = 2000
    """Steps before learning starts."""
    batch: int = 32
    """Transitions per update, shared by all members."""
    ratio: int = 4
    """Gradient updates per step of all lanes together; with one lane, the paper's replay ratio."""
    every: int = 1
    """Steps (per lane) between learning."""
    n_step: int = 1
    """Rewards summed before the bootstrap."""
    alpha: float = 0.6
    """Prioritisation exponent; 0 samples uniformly."""
    beta: float = 0.4
    """Importance-weight exponent."""
    epsilon: float = 1e-6
    """Added to every priority."""

    def __post_init__(self) -> None:
        """Check ranges and that learning can start."""
        within("replay.batch", self.batch, 1)
        within("replay.ratio", self.ratio, 1, 1024)
        within("replay.every", self.every, 1)
        within("replay.n_step", self.n_step, 1, 100)
        within("replay.alpha", self.alpha, 0, 2)
        within("replay.beta", self.beta, 0, 2)
        within("replay.epsilon", self.epsilon, 1e-12 if self.alpha else 0)  # of probability 0 nothing returns
        within("replay.capacity", self.capacity, 2 * self.batch)
        within("replay.warmup", self.warmup, self.batch, self.capacity)


@dataclass(frozen=True)
class OptimSection:
    """The optimizer and the target network."""

    gamma: float = 0.99
    """Discount per step."""
    rate: float = 1e-4
    """Adam's learning rate."""
    beta1: float = 0.9
    """Decay of Adam's first moment."""
    beta2: float = 0.999
    """Decay of Adam's second moment."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    clip: float = 10.0
    """Largest gradient norm of one member."""
    tau: float = 0.005
    """Polyak step of the target networks after each update."""
    hard_copy_every: int = 0
    """If not 0, copy the target every so many updates instead of the Polyak step."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("optim.gamma", self.gamma, 0, 1)
        within("optim.rate", self.rate, 0, 1)
        within("optim.beta1", self.beta1, 0, 0.99999)
        within("optim.beta2", self.beta2, 0, 0.999999)
        within("optim.epsilon", self.epsilon, 0)
        within("optim.clip", self.clip, 1e-9)
        within("optim.tau", self.tau, 0, 1)
        within("optim.hard_copy_every", self.hard_copy_every, 0)


@dataclass(frozen=True)
class ExploreSection:
    """How the agent acts while it learns."""

    start: float = 1.0
    """First epsilon."""
    end: float = 0.01
    """Last epsilon."""
    decay_steps: int = 2001
    """Steps over which epsilon falls."""
    act_with: Literal["online", "target"] = "online"
    """Which networks act in training; evaluation plays the online ones."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("explore.start", self.start, 0, 1)
        within("explore.end", self.end, 0, 1)
        within("explore.decay_steps", self.decay_steps, 1)
        if self.end > self.start:
            raise UserError(f"explore.end {self.end:g} is above explore.start {self.start:g}: epsilon only falls")


@dataclass(frozen=True)
class EvaluationSection:
    """The evaluation at the end of a run: full games, no exploration, final weights."""

    episodes: int = 100
    """Games played by the agent."""
    random_episodes: int = 20
    """Games played by a uniformly random policy under the same protocol."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, games in (("episodes", self.episodes), ("random_episodes", self.random_episodes)):
            within(f"evaluation.{name}", games, 1)
            within(f"evaluation.{name}", games, 1, MOST_GAMES)


@dataclass(frozen=True)
class RecordSection:
    """What a run writes while it trains."""

    every: int = 1000
    """Steps between rows of metrics."""
    checkpoint_every: int = 10_000
    """Steps between checkpoints."""
    keep_replay: bool = False
    """Keep the replay buffer in the last checkpoint after the run has finished."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: bool = False
    """Log to Weights & Biases (needs the extra `wandb`)."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("record.every", self.every, 1)
        within("record.checkpoint_every", self.checkpoint_every, 1)


@dataclass(frozen=True)
class MonitorSection:
    """Instability diagnostics while a run trains; they watch and never change what is learned."""

    every: int = 1000
    """Steps between rows of diagnostics; 0 measures none."""
    batch: int = 128
    """Transitions drawn uniformly from replay for one row."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("monitor.every", self.every, 0)
        within("monitor.batch", self.batch, 2, 4096)


@dataclass(frozen=True)
class ComputeSection:
    """Where it runs; not part of what a run is, so a run may continue elsewhere."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU if there is one; CUDA_VISIBLE_DEVICES says which, of several."""
    threads: int = 0
    """CPU threads; 0 takes one for small networks and all cores for large ones."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """What layers but the last compute in; parameters and Adam stay in fp32. auto: bf16 for a resnet on a GPU."""
    form: Literal["auto", "kernels", "stacked", "loop"] = "auto"
    """How members run: all at once in our GPU kernels or in grouped layers, or one after another (the reference)."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within("compute.threads", self.threads, 0, 1024)


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a run."""

    env: Annotated[str, tyro.conf.Positional]
    """Environment: MinAtar/<Game>, Atari/<Game>, Procgen/<Game>, or a Gymnasium id."""
    protocol: Protocol
    preset: str = "steady"
    """Preset this recipe begins as: steady, dqn, double_dqn, qr_dqn (see `steadyq presets`)."""
    scale: str = "tiny"
    """Scale this recipe begins as: tiny, small or paper; without it small for Atari and Procgen, tiny elsewhere."""
    steps: int = 100_000
    """Environment steps, all lanes together (frames are steps x frame skip)."""
    seed: int = 0
    """Seed of everything random."""
    network: NetworkSection = field(default_factory=NetworkSection)
    ensemble: EnsembleSection = field(default_factory=EnsembleSection)
    operator: OperatorSection = field(default_factory=OperatorSection)
    estimator: EstimatorSection = field(default_factory=EstimatorSection)
    regulation: RegulationSection = field(default_factory=RegulationSection)
    replay: ReplaySection = field(default_factory=ReplaySection)
    optim: OptimSection = field(default_factory=OptimSection)
    explore: ExploreSection = field(default_factory=ExploreSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    record: RecordSection = field(default_factory=RecordSection)
    monitor: MonitorSection = field(default_factory=MonitorSection)
    compute: ComputeSection = field(default_factory=ComputeSection)

    def __post_init__(self) -> None:
        """Check what no section can check alone."""
        within("steps", self.steps, 1)
        within("seed", self.seed, 0, 2**31 - 1)
        slots = self.replay.capacity // self.protocol.lanes
        if slots < self.replay.n_step + self.protocol.stack:
            raise UserError(
                f"replay.capacity {self.replay.capacity} leaves {slots} steps for each of {self.protocol.lanes} lanes: "
                f"n_step {self.replay.n_step} and stack {self.protocol.stack} need more"
            )
        first = self.protocol.lanes * self.replay.n_step
        if self.replay.warmup < first:
            raise UserError(
                f"replay.warmup {self.replay.warmup} ends before the first {self.replay.n_step}-step transition of "
                f"{self.protocol.lanes} lanes is complete: make it at least {first}"
            )

    def override(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return a recipe with dotted fields changed: `override({"replay.ratio": 2})`. Unknown names raise."""
        nested: dict[str, Any] = {}
        for name, value in changes.items():
            section, _, leaf = name.rpartition(".")
            if section:
                nested.setdefault(section, {})[leaf] = value
            else:
                nested[leaf] = value
        return _merge(self, nested, "")

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """The recipe as TOML, one table per section."""
        plain = {k: v for k, v in self.to_dict().items() if not isinstance(v, dict)}
        lines = [f"{name} = {toml(value)}" for name, value in plain.items()]
        for name, table in self.to_dict().items():
            if isinstance(table, dict):
                lines += ["", f"[{name}]", *(f"{key} = {toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> "Recipe":
        """Read a recipe written by `to_toml`; unknown or ill-typed fields raise."""
        table = read_toml(text, "not a recipe")
        missing = [name for name in ("env", "protocol") if name not in table]
        if missing:
            raise UserError(f"not a recipe: no {missing[0]!r} in it")
        blank = cls(env=str(table["env"]), protocol=_build_protocol(table["protocol"]))
        return _merge(blank, table, "")

    def differences(self, other: "Recipe") -> list[str]:
        """Fields in which two runs differ, `name: mine != theirs`; where it computes does not count."""
        mine, theirs = flatten(self.to_dict()), flatten(other.to_dict())
        return [
            f"{name}: {mine.get(name)} != {theirs.get(name)}"
            for name in mine | theirs
            if not name.startswith("compute.") and mine.get(name) != theirs.get(name)
        ]


def read_toml(text: str, wrong: str) -> dict[str, Any]:
    """The tables of a TOML text; what is none raises with the words that say what it should have been."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{wrong}: tables within tables without end") from None
    except ValueError as error:  # besides what TOML says: a whole number of thousands of digits
        raise UserError(f"{wrong}: {one_line(error)}") from None


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted names."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _build_protocol(table: Any) -> Protocol:
    if not isinstance(table, Mapping):
        raise UserError("not a recipe: [protocol] must be a table")
    hints = typing.get_type_hints(Protocol)
    known = {f.name for f in dataclasses.fields(Protocol)}
    for name in table:
        if name not in known:
            raise UserError(f"unknown option protocol.{name}: {nearest(name, known)}")
    if "name" not in table:
        raise UserError("not a recipe: no 'name' in [protocol]")
    return Protocol(**{name: coerce(value, hints[name], f"protocol.{name}") for name, value in table.items()})


def _merge(section: T, changes: Mapping[str, Any], prefix: str) -> T:
    hints = typing.get_type_hints(type(section))
    known = {f.name for f in dataclasses.fields(section)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise UserError(f"unknown option {prefix}{name}: {nearest(name, known)}")
        current = getattr(section, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UserError(
                    f"{prefix}{name} is a section: set one of its fields, such as {prefix}{name}."
                    f"{dataclasses.fields(current)[0].name}"
                )
            values[name] = _merge(current, value, f"{prefix}{name}.")
        else:
            values[name] = coerce(value, hints[name], prefix + name)
    return dataclasses.replace(section, **values)  # type: ignore[type-var]


def coerce(value: Any, kind: Any, name: str) -> Any:
    """Return value as the field's type, from TOML, Python or command-line text; raise naming what would be right."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            # 'gpu' is no misspelt 'cpu', nor 'float32' a misspelt 'tf32'.
            raise UserError(f"{name} cannot be {shown(value)}: {nearest(str(value), map(str, choices), cutoff=0.75)}")
        return value
    if origin is tuple:
        parts = value.replace(",", " ").split() if isinstance(value, str) else value
        inner = typing.get_args(kind)
        if not isinstance(parts, list | tuple) or (inner[-1] is not Ellipsis and len(parts) != len(inner)):
            count = "one or more" if inner[-1] is Ellipsis else len(inner)
            raise UserError(f"{name} needs {count} whole numbers, got {shown(value)}")
        return tuple(coerce(part, inner[0], name) for part in parts)
    if isinstance(kind, types.UnionType):
        return value
    try:
        if kind is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            return int(value.replace("_", "")) if isinstance(value, str) else int(value)
        if kind is float:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
    except (ValueError, TypeError, KeyError, OverflowError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        raise UserError(f"{name} must be {words[kind]}, got {shown(value)}") from None
    if not isinstance(value, str):
        raise UserError(f"{name} must be text, got {shown(value)}")
    return value


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one that JSON leaves as it is
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value)
