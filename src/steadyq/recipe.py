"""The whole configuration of a run: one tree of frozen dataclasses, to and from TOML, with typed overrides.

Every field is also a dotted option of the command line (`--replay.ratio 2`); the text below a field is its help.
Values that cannot work raise `UserError` when the recipe is built, before anything is written.
"""

import dataclasses
import math
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import tyro

from steadyq.envs.protocol import Protocol
from steadyq.errors import UserError, nearest
from steadyq.fields import (
    MOST_GAMES,
    Owners,
    Scheduled,
    coerce,
    default_of,
    flatten,
    merge,
    read_toml,
    refuse_foreign,
    toml,
    within,
    within_schedule,
)
from steadyq.schedule import Schedule

LAYOUT = 3
"""Of a recipe's file; an older one is upgraded when it is read."""


class Upgraded(UserWarning):
    """A recipe of an older layout was read; the message says what was renamed."""


@dataclass(frozen=True)
class NetworkSection:
    """What approximates the values of one member."""

    kind: Literal["resnet", "impala", "minatar", "cnn", "der", "mlp", "joined", "layers", "own"] = "resnet"
    """resnet: the paper's encoder; impala: that of IMPALA and BBF; minatar: one convolution and one hidden layer; cnn:
    DQN's three convolutions; der: data-efficient Rainbow's two; mlp: fully connected; joined: images each as in cnn,
    other things through a hidden layer, then together; layers: as `layers` describes; own: `factory`'s.
    """
    scale: int = 4
    """Width factor s of the resnet: channels 8s, 16s, 32s, 64s."""
    head_multiple: int = 128
    """The resnet's projection is head_multiple x scale wide: 128 by the paper's layer table, 512 by its text."""
    strides: tuple[int, int, int, int] = (1, 2, 2, 2)
    """Strides of the resnet's four stages: 1 2 2 2 for Atari, 2 2 2 2 for Procgen."""
    channels: int = 16
    """Channels of the minatar convolution."""
    hidden: tuple[int, ...] = (128,)
    """Hidden layers of the mlp; the minatar, cnn, der and impala networks use the first. Of joined the first is the
    width of each part's own, the others (or the same again) read them together.
    """
    width: int = 4
    """Width factor of the impala encoder: channels 16, 32 and 32 times it."""
    dueling: bool = False
    """Values and advantages from layers of their own, joined as V + A - mean A."""
    noisy: float = 0.0
    """Noise in the weights of the hidden layer and the outputs, drawn anew for each update and each step and learned
    (NoisyNet): it begins at this over the root of a layer's inputs; 0 for none. Evaluation has none.
    """
    norm: Literal["none", "layer"] = "none"
    """layer: LayerNorm after every layer but shortcuts and outputs, over all features of a sample."""
    activation: Literal["relu", "crelu"] = "relu"
    """What follows a hidden layer: ReLU, or each unit's ReLU(x) and ReLU(-x), which make its readers twice as wide."""
    pooling: Literal["flatten", "average"] = "flatten"
    """What the hidden layer of a network for images reads: all positions, or each channel's mean over them."""
    renormalise: bool = False
    """Stretch the latent of a network for images to between 0 and 1, sample by sample, as SPR and BBF do."""
    initial: Literal["torch", "xavier"] = "torch"
    """How weights are drawn: as PyTorch does, or by Xavier's uniform rule with biases zero, as BBF does."""
    layers: tuple[str, ...] = ()
    """Layers one after another: 'conv CHANNELS SIZE STRIDE [PADDING]' and 'linear UNITS', the last one linear."""
    factory: str = ""
    """A function of your own, module:name, that is told the observation's shape and the number of outputs and returns a
    torch.nn.Module or a description of layers (docs/own.md).
    """

    owners: ClassVar[Owners] = {
        "scale": ("kind", ("resnet",)),
        "head_multiple": ("kind", ("resnet",)),
        "strides": ("kind", ("resnet",)),
        "channels": ("kind", ("minatar",)),
        "hidden": ("kind", ("minatar", "impala", "cnn", "der", "mlp", "joined")),
        "width": ("kind", ("impala",)),
        "pooling": ("kind", ("resnet", "impala", "cnn", "der")),
        "renormalise": ("kind", ("resnet", "impala", "cnn", "der")),
        "dueling": ("kind", ("resnet", "impala", "minatar", "cnn", "der", "mlp", "joined", "layers")),
        "noisy": ("kind", ("resnet", "impala", "minatar", "cnn", "der", "mlp", "joined", "layers")),
        "norm": ("kind", ("resnet", "impala", "minatar", "cnn", "der", "mlp", "joined", "layers")),
        "activation": ("kind", ("impala", "minatar", "cnn", "der", "mlp", "layers", "resnet")),
        "initial": ("kind", ("resnet", "impala", "minatar", "cnn", "der", "mlp", "joined", "layers")),
        "layers": ("kind", ("layers",)),
        "factory": ("kind", ("own",)),
    }

    def __post_init__(self) -> None:
        """Check ranges, and refuse fields that the kind does not have."""
        within("network.scale", self.scale, 1, 16)
        within("network.head_multiple", self.head_multiple, 1)
        within("network.channels", self.channels, 1)
        within("network.width", self.width, 1, 16)
        within("network.noisy", self.noisy, 0, 100)
        if not self.hidden:
            raise UserError("network.hidden needs at least one layer, for example 128")
        for size in self.hidden:
            within("network.hidden", size, 1)
        for stride in self.strides:
            within("network.strides", stride, 1, 2)
        refuse_foreign(self, "network")
        if self.activation == "crelu" and self.kind == "resnet":
            raise UserError(
                "network.activation crelu contradicts network.kind resnet: its shortcuts would add an image that is "
                "twice as wide (use impala)"
            )


@dataclass(frozen=True)
class EnsembleSection:
    """How many independent networks learn side by side."""

    members: int = 16
    """Independent networks; all see the same batch."""
    act: Literal["mean", "minimum", "member", "optimistic"] = "mean"
    """By which value they act: the mean, the least, that of one member an episode, or the mean plus their spread."""
    bonus: float = 1.0
    """Standard deviations between members that an optimistic ensemble adds."""
    learn: Literal["all", "one", "some"] = "all"
    """Which members learn from a transition: all; one, drawn for the whole update; or some, by a mask that is drawn for
    each transition once, so that a member never learns from the others.
    """
    share: float = 0.5
    """Chance that a member learns from a transition, where only some do."""
    prior: float = 0.0
    """What a fixed random network of its own is multiplied by and added to each member's values; 0 for none."""
    certainty: float = 0.0
    """Let a sample weigh sigmoid(-certainty x spread of the members' bootstraps) + 1/2 as in SUNRISE; 0 for 1."""

    owners: ClassVar[Owners] = {"bonus": ("act", ("optimistic",)), "share": ("learn", ("some",))}

    def __post_init__(self) -> None:
        """Check ranges, and refuse fields that the chosen rules do not have."""
        within("ensemble.members", self.members, 1, 256)
        within("ensemble.share", self.share, 1e-6, 1)
        within("ensemble.prior", self.prior, 0)
        within("ensemble.certainty", self.certainty, 0)
        refuse_foreign(self, "ensemble")


@dataclass(frozen=True)
class OperatorSection:
    """Axis 1: which action, and whose value, goes into the bootstrap target."""

    kind: Literal["controlled", "greedy", "double", "maxmin", "rem", "ebql", "tqc", "softmax", "munchausen"] = (
        "controlled"
    )
    """controlled: the paper's; greedy: the target network selects and values; double: the online network selects;
    maxmin: the best of the members' least values; rem: a random mixture of all members; ebql: the others value what a
    member selects; tqc: all members' quantiles without the largest; softmax: actions by their odds; munchausen: that,
    and a reward for the action's own odds.
    """
    exchange: Literal["derangement", "permutation", "none"] = "derangement"
    """Whose selected action a member values: always another's, any permutation's, or its own."""
    forbid: Literal["rewarded", "auto", "none"] = "rewarded"
    """Forbid re-selecting the action that was just rewarded: always, only while rewards are rare, or never."""
    forbid_until: Literal["one_step", "any_step"] = "one_step"
    """With n-step returns the bootstrap is n steps away: forbid only while n is 1, or at any n."""
    selector: Literal["target", "online"] = "target"
    """Which networks select the bootstrap action."""
    ceiling: Literal["running_max", "none"] = "running_max"
    """Hold targets below the best discounted return of a finished trajectory, or do not."""
    snapshots: int = 1
    """Copies of the target networks, the last ones, whose mean is their value (Averaged DQN)."""
    subset: int = 0
    """Members drawn for an update of which maxmin takes the least (REDQ); 0 for all."""
    drop: int = 2
    """Quantiles a member, the largest of all pooled, that tqc leaves out."""
    temperature: float = 0.03
    """Of the odds of actions, in units of value."""
    scale: float = 0.9
    """What munchausen multiplies the log of the action's odds by, after the temperature."""
    least: float = -1.0
    """Below which that is cut."""

    owners: ClassVar[Owners] = {
        "subset": ("kind", ("maxmin",)),
        "drop": ("kind", ("tqc",)),
        "temperature": ("kind", ("softmax", "munchausen")),
        "scale": ("kind", ("munchausen",)),
        "least": ("kind", ("munchausen",)),
    }

    def __post_init__(self) -> None:
        """Check ranges, and refuse switches that the chosen operator does not have."""
        within("operator.snapshots", self.snapshots, 1, 100)
        within("operator.subset", self.subset, 0, 256)
        within("operator.drop", self.drop, 0, 999)
        within("operator.temperature", self.temperature, 1e-6)
        within("operator.scale", self.scale, 0, 1)
        within("operator.least", self.least, -1e6, 0)
        refuse_foreign(self, "operator")
        if self.kind != "controlled":
            neutrals = {"exchange": "none", "forbid": "none", "forbid_until": "one_step", "selector": "target"}
            for name, neutral in neutrals.items():
                if getattr(self, name) != neutral:
                    raise UserError(
                        f"operator.{name} {getattr(self, name)} contradicts operator.kind {self.kind}: "
                        f"only the controlled operator has it (set operator.{name} {neutral})"
                    )


@dataclass(frozen=True)
class EstimatorSection:
    """Axis 2: how a return is represented and regressed."""

    kind: Literal["quantile", "scalar", "categorical", "implicit", "hl_gauss"] = "quantile"
    """quantile: a distribution by its quantiles; scalar: its mean alone; categorical: by probabilities on a grid;
    implicit: by whichever quantiles the network is asked for (IQN); hl_gauss: the mean, regressed by classification.
    """
    quantiles: int = 51
    """Quantiles per action."""
    kappa: float = 1.0
    """Where the Huber loss turns from quadratic to linear."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over predicted quantiles: mean is the paper's 1/K^2, sum is QR-DQN's, K times as large."""
    atoms: int = 51
    """Returns, or intervals of them, whose probabilities a categorical or hl_gauss estimator predicts."""
    low: float = -10.0
    """The least return."""
    high: float = 10.0
    """The largest."""
    samples: int = 64
    """Quantiles drawn for each sample and network in an update, where they are implicit."""
    fixed: int = 32
    """Evenly spaced quantiles by which an implicit estimator acts."""
    cosines: int = 64
    """Size of the embedding of a quantile."""
    smoothing: float = 0.75
    """Standard deviation of hl_gauss's targets, in widths of an interval."""

    owners: ClassVar[Owners] = {
        "quantiles": ("kind", ("quantile",)),
        "kappa": ("kind", ("quantile", "scalar", "implicit")),
        "reduction": ("kind", ("quantile", "implicit")),
        "atoms": ("kind", ("categorical", "hl_gauss")),
        "low": ("kind", ("categorical", "hl_gauss")),
        "high": ("kind", ("categorical", "hl_gauss")),
        "samples": ("kind", ("implicit",)),
        "fixed": ("kind", ("implicit",)),
        "cosines": ("kind", ("implicit",)),
        "smoothing": ("kind", ("hl_gauss",)),
    }

    def __post_init__(self) -> None:
        """Check ranges, and refuse fields that the kind does not have."""
        within("estimator.quantiles", self.quantiles, 1, 1000)
        within("estimator.kappa", self.kappa, 1e-6)
        within("estimator.atoms", self.atoms, 2, 1000)
        for name in ("samples", "fixed", "cosines"):
            within(f"estimator.{name}", getattr(self, name), 1, 1000)
        within("estimator.smoothing", self.smoothing, 0.01, 100)
        if not self.low < self.high:
            raise UserError(f"estimator.low {self.low:g} must be below estimator.high {self.high:g}")
        refuse_foreign(self, "estimator")


@dataclass(frozen=True)
class AuxiliarySection:
    """A loss beside the values', which asks the encoder for more than they do."""

    kind: Literal["none", "spr", "curl"] = "none"
    """spr: each member predicts what its target network will make of the next observations (SPR); curl: each tells
    which of a batch's states it is shown, by what a slower copy of it makes of another view (CURL).
    """
    steps: int = 5
    """How far it looks ahead."""
    weight: float = 5.0
    """What it is multiplied by."""
    units: int = 128
    """Numbers by which curl compares two states."""
    momentum: float = 0.999
    """Share of itself that the slower copy keeps in an update."""
    shift: int = 4
    """Pixels by which each of the two views is shifted at random, each way; 0 shows the state itself twice."""

    owners: ClassVar[Owners] = {
        "steps": ("kind", ("spr",)),
        "weight": ("kind", ("spr", "curl")),
        "units": ("kind", ("curl",)),
        "momentum": ("kind", ("curl",)),
        "shift": ("kind", ("curl",)),
    }

    @property
    def future(self) -> int:
        """Steps after a transition that replay must hand out with it."""
        return self.steps if self.kind == "spr" else 0

    @property
    def compared(self) -> int:
        """Pixels by which two views of a state are shifted that are compared."""
        return self.shift if self.kind == "curl" else 0

    def __post_init__(self) -> None:
        """Check ranges, and refuse fields that the kind does not have."""
        within("auxiliary.steps", self.steps, 1, 100)
        within("auxiliary.weight", self.weight, 0)
        within("auxiliary.units", self.units, 1, 4096)
        within("auxiliary.momentum", self.momentum, 1e-6, 1)
        within("auxiliary.shift", self.shift, 0, 64)
        refuse_foreign(self, "auxiliary")


@dataclass(frozen=True)
class RegulationSection:
    """Axis 3: when layers are intervened on, and how. Spike ratios are measured and logged either way."""

    trigger: Literal["spike", "periodic", "dormant", "verdict", "none"] = "spike"
    """spike: layers whose largest weight ran away; periodic: all, every `period` updates; dormant: with dead units;
    verdict: those that a finding of the monitor is about; none: all, with every measurement.
    """
    intervention: Literal["reinitialise", "shrink_perturb", "recycle", "replace", "inject", "answer", "none"] = (
        "reinitialise"
    )
    """Draw layers anew, blend them with a fresh draw, redraw their dormant or (replace) their least useful units, put a
    fresh head beside the learned one, answer each finding by what answers it, or only measure.
    """
    threshold: float = 6.0
    """Spike ratio max|W| / quantile(|W|) above which a layer is intervened on."""
    quantile: float = 0.99
    """The quantile in the ratio."""
    every: int = 1000
    """Steps between measurements (per lane)."""
    period: int = 40_000
    """Updates between periodic interventions."""
    last: int = 0
    """Updates after which no periodic intervention begins; 0 for no end."""
    dormant: float = 0.1
    """A unit is dormant if its mean output is at most this share of its layer's: what triggers, or is recycled."""
    dormant_share: float = 0.0
    """Share of dormant units above which a layer is intervened on."""
    encoder: float = 0.5
    """Share of a fresh draw in the encoder's layers after shrink_perturb; 0 leaves them alone."""
    head: float = 1.0
    """The same for the last hidden layer and the outputs."""
    replacement: float = 1e-4
    """Share of a layer's mature units that falls due to be replaced with every update, the least useful first."""
    maturity: int = 10_000
    """Updates after which a unit may be replaced."""
    target: Literal["synchronise", "own", "keep"] = "synchronise"
    """The member's target network: copied from the online one, intervened on with a draw of its own, or left alone."""
    pull: float = 0.0
    """In every update: weight of the squared distance from the initial parameters (L2 init); 0 for none."""
    parseval: float = 0.0
    """In every update: weight of |W W^T - I|^2 of hidden linear layers; 0 for none."""
    project: bool = False
    """After every update: bring weights before a LayerNorm back to their initial size (normalise-and-project)."""
    spectral: bool = False
    """In every forward pass: divide weights by their largest singular value, which one power iteration an update
    follows: of convolutions in residual blocks, of the last hidden layer where there are none.
    """

    owners: ClassVar[Owners] = {
        "threshold": ("trigger", ("spike",)),
        "period": ("trigger", ("periodic",)),
        "last": ("trigger", ("periodic",)),
        "dormant_share": ("trigger", ("dormant",)),
        "encoder": ("intervention", ("shrink_perturb",)),
        "head": ("intervention", ("shrink_perturb",)),
        "replacement": ("intervention", ("replace",)),
        "maturity": ("intervention", ("replace",)),
    }

    def __post_init__(self) -> None:
        """Check ranges, and refuse what the trigger or the intervention does not have."""
        within("regulation.threshold", self.threshold, 1)
        within("regulation.quantile", self.quantile, 0.01, 1)
        within("regulation.every", self.every, 1)
        within("regulation.period", self.period, 1)
        within("regulation.last", self.last, 0)
        within("regulation.dormant", self.dormant, 0, 1)
        within("regulation.dormant_share", self.dormant_share, 0, 1)
        within("regulation.encoder", self.encoder, 0, 1)
        within("regulation.head", self.head, 0, 1)
        within("regulation.replacement", self.replacement, 0, 1)
        within("regulation.maturity", self.maturity, 0)
        within("regulation.pull", self.pull, 0)
        within("regulation.parseval", self.parseval, 0)
        refuse_foreign(self, "regulation")
        does, when = f"regulation.intervention {self.intervention}", f"regulation.trigger {self.trigger}"
        wrong: list[tuple[bool, str]] = [
            (
                self.dormant != default_of(self, "dormant") and "dormant" not in when and "recycle" not in does,
                f"regulation.dormant {self.dormant:g} contradicts {when} and {does}: only dormant or recycle has it",
            ),
            (
                self.intervention == "answer" and self.trigger != "verdict",
                f"{does} contradicts {when}: it answers the monitor's findings (set regulation.trigger verdict)",
            ),
            (
                self.intervention in ("reinitialise", "shrink_perturb") and self.trigger == "none",
                f"{does} contradicts {when}: all layers would be redrawn with every measurement (set "
                "regulation.trigger periodic)",
            ),
            (
                self.intervention == "inject" and self.trigger != "periodic",
                f"{does} contradicts {when}: it happens once at a stated time (set regulation.trigger periodic, and "
                "regulation.period to that many updates)",
            ),
            (
                self.intervention == "inject" and self.last > 0,
                f"regulation.last {self.last} contradicts {does}: it happens once, after regulation.period updates",
            ),
            (
                self.intervention == "inject" and self.target == "keep",
                f"regulation.target keep contradicts {does}: a target with another head would be averaged with the new "
                "one (use synchronise or own)",
            ),
            (
                self.intervention == "replace" and self.target != "keep",
                f"regulation.target {self.target} contradicts {does}: units are replaced all the time, and the target "
                "would never lag behind (set regulation.target keep)",
            ),
        ]
        for found, message in wrong:
            if found:
                raise UserError(message)


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
    n_step: Scheduled = 1
    """Rewards summed before the bootstrap; may be a schedule, rounded."""
    overlap: bool = False
    """Bootstrap from the state in which the last of n steps was taken, so that its reward counts twice: the slip in the
    replay behind the published scores of DrQ(eps), SR-SPR and BBF, to measure what it does."""
    alpha: float = 0.6
    """Prioritisation exponent; 0 samples uniformly."""
    beta: float = 0.4
    """Importance-weight exponent."""
    epsilon: float = 1e-6
    """Added to every priority."""
    shift: int = 0
    """Pixels by which sampled images are shifted at random, each way; 0 for none."""
    intensity: float = 0.0
    """Spread of the random number that sampled images are multiplied by; 0 for none."""
    dataset: str = ""
    """Learn from this Minari dataset (folder or name) and play nothing; a step is then one chance to learn."""

    @property
    def largest_n(self) -> int:
        """The largest n of the n-step return."""
        return round(Schedule.of(self.n_step).largest)

    def __post_init__(self) -> None:
        """Check ranges and that learning can start."""
        within("replay.batch", self.batch, 1)
        within("replay.ratio", self.ratio, 1, 1024)
        within("replay.every", self.every, 1)
        within_schedule(self, "replay", "n_step", 1, 100)
        if self.overlap and Schedule.of(self.n_step).smallest < 2:
            raise UserError(f"replay.overlap needs a replay.n_step of 2 or more, got {self.n_step}")
        within("replay.shift", self.shift, 0, 64)
        within("replay.intensity", self.intensity, 0, 0.49)  # twice that is taken off at most
        within("replay.alpha", self.alpha, 0, 2)
        within("replay.beta", self.beta, 0, 2)
        within("replay.epsilon", self.epsilon, 1e-12 if self.alpha else 0)  # of probability 0 nothing returns
        within("replay.capacity", self.capacity, 2 * self.batch)
        within("replay.warmup", self.warmup, self.batch, self.capacity)


@dataclass(frozen=True)
class OptimSection:
    """The optimizer and the target network."""

    gamma: Scheduled = 0.99
    """Discount per step; may be a schedule, an exponential one of 1 - gamma."""
    rate: Scheduled = 1e-4
    """Adam's learning rate; may be a schedule."""
    beta1: float = 0.9
    """Decay of Adam's first moment."""
    beta2: float = 0.999
    """Decay of Adam's second moment."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    decay: float = 0.0
    """Weight decay apart from the gradient (AdamW), of weights but not of biases."""
    clip: float = 10.0
    """Largest gradient norm of one member."""
    tau: float = 0.005
    """Polyak step of the target networks after each update."""
    hard_copy_every: int = 0
    """If not 0, copy the target every so many updates instead of the Polyak step."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within_schedule(self, "optim", "gamma", 0, 1)
        within_schedule(self, "optim", "rate", 0, 1)
        within("optim.decay", self.decay, 0, 1000)
        within("optim.beta1", self.beta1, 0, 0.99999)
        within("optim.beta2", self.beta2, 0, 0.999999)
        within("optim.epsilon", self.epsilon, 0)
        within("optim.clip", self.clip, 1e-9)
        within("optim.tau", self.tau, 0, 1)
        within("optim.hard_copy_every", self.hard_copy_every, 0)


@dataclass(frozen=True)
class ExploreSection:
    """How the agent acts while it learns."""

    epsilon: Scheduled = "1 -> 0.01 linear 2001 steps"
    """Share of random actions; may be a schedule."""
    act_with: Literal["online", "target"] = "online"
    """Which networks act, in training and in evaluation."""

    def __post_init__(self) -> None:
        """Check ranges."""
        within_schedule(self, "explore", "epsilon", 0, 1)


@dataclass(frozen=True)
class EvaluationSection:
    """Full games, with `epsilon` alone to explore: at the end of a run by its last weights, and on the way if asked."""

    episodes: int = 100
    """Games played by the agent."""
    random_episodes: int = 20
    """Games of a uniformly random policy under the same protocol; played where none are stored for it."""
    epsilon: float = 0.0
    """Chance of a uniform action in place of the agent's: without any, an Atari emulator plays the same few games."""
    every: int = 0
    """Steps between evaluations on the way, the best of whose weights are kept; 0 makes none."""
    interim_episodes: int = 10
    """Games of each evaluation on the way: the same ones every time, and others than those at the end."""
    target: float = math.inf
    """Stop training once an evaluation on the way has this mean return."""
    patience: int = 0
    """Stop training after so many evaluations on the way without a better one; 0 never does."""

    def __post_init__(self) -> None:
        """Check ranges, and that what stops a run can happen."""
        counts = {name: getattr(self, name) for name in ("episodes", "random_episodes", "interim_episodes")}
        for name, games in counts.items():
            within(f"evaluation.{name}", games, 1)
            within(f"evaluation.{name}", games, 1, MOST_GAMES)
        within("evaluation.epsilon", self.epsilon, 0, 1)
        within("evaluation.every", self.every, 0)
        within("evaluation.patience", self.patience, 0)
        if math.isnan(self.target):
            raise UserError("evaluation.target must be a number")
        for name in ("target", "patience"):
            if getattr(self, name) != default_of(self, name) and not self.every:
                raise UserError(
                    f"evaluation.{name} needs evaluations on the way: set evaluation.every, for instance to 5000"
                )


@dataclass(frozen=True)
class RecordSection:
    """What a run writes while it trains."""

    every: int = 1000
    """Steps between rows of metrics."""
    checkpoint_every: int = 10_000
    """Steps between checkpoints."""
    keep_replay: bool = False
    """Keep the replay buffer of a finished run, so that it can be trained longer; up to 32 MB it is kept anyway."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: bool = False
    """Log to Weights & Biases (needs the extra `wandb`)."""
    mlflow: bool = False
    """Log to MLflow (needs the extra `mlflow`), where MLFLOW_TRACKING_URI says."""
    trackio: bool = False
    """Log to Trackio on this machine (needs the extra `trackio`)."""

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
    """What layers but the last compute in; parameters and Adam stay in fp32. auto: bf16 for a resnet or impala on a
    GPU.
    """
    form: Literal["auto", "kernels", "stacked", "loop"] = "auto"
    """How members run: all at once in our GPU kernels or in grouped layers, or one after another (the reference)."""
    compile: Literal["auto", "always", "never"] = "auto"
    """On a CPU: compile updates and acting, in half a minute the first time. auto: small networks, from 20,000 updates
    on, where a C++ compiler is found.
    """

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
    """Preset this recipe begins as (`steadyq presets` lists them)."""
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
    auxiliary: AuxiliarySection = field(default_factory=AuxiliarySection)
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
        n, what = self.replay.largest_n, "n_step"
        if n < self.auxiliary.future:
            n, what = self.auxiliary.future, "auxiliary.steps"
        if slots < n + self.protocol.stack:
            raise UserError(
                f"replay.capacity {self.replay.capacity} leaves {slots} steps for each of {self.protocol.lanes} lanes: "
                f"{what} {n} and stack {self.protocol.stack} need more"
            )
        first = self.protocol.lanes * n
        if self.replay.warmup < first:
            raise UserError(
                f"replay.warmup {self.replay.warmup} ends before the first {n}-step transition of "
                f"{self.protocol.lanes} lanes is complete: make it at least {first}"
            )

        _check_crossing(self)

    @property
    def updates(self) -> int:
        """Gradient updates of the whole run."""
        lanes, warmup = (1, 0) if self.replay.dataset else (self.protocol.lanes, self.replay.warmup)
        return max(0, self.steps - warmup) // lanes // self.replay.every * self.replay.ratio

    @property
    def more_passes(self) -> bool:
        """Whether an update takes more than a pass or two of each network: its size then says little of its cost."""
        more = self.auxiliary.kind != "none" or self.estimator.kind == "implicit"
        return more or self.ensemble.prior > 0 or self.operator.snapshots > 1

    def override(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return a recipe with dotted fields changed: `override({"replay.ratio": 2})`. Unknown names raise."""
        nested: dict[str, Any] = {}
        for name, value in changes.items():
            section, _, leaf = name.rpartition(".")
            if section:
                nested.setdefault(section, {})[leaf] = value
            else:
                nested[leaf] = value
        return merge(self, nested, "")

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """The recipe as TOML, one table per section."""
        plain = {k: v for k, v in self.to_dict().items() if not isinstance(v, dict)}
        lines = [f"layout = {LAYOUT}", *(f"{name} = {toml(value)}" for name, value in plain.items())]
        for name, table in self.to_dict().items():
            if isinstance(table, dict):
                lines += ["", f"[{name}]", *(f"{key} = {toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> "Recipe":
        """Read a recipe written by `to_toml`; unknown or ill-typed fields raise, an older layout is upgraded."""
        table = read_toml(text, "not a recipe")
        missing = [name for name in ("env", "protocol") if name not in table]
        if missing:
            raise UserError(f"not a recipe: no {missing[0]!r} in it")
        layout = table.pop("layout", 1)
        if layout in range(1, LAYOUT):
            table = _from_older_layout(table)
        elif layout != LAYOUT:
            raise UserError(f"a recipe of layout {layout!r} is not one of this version, which reads 1 to {LAYOUT}")
        blank = cls(env=str(table["env"]), protocol=_build_protocol(table["protocol"]))
        return merge(blank, table, "")

    def differences(self, other: "Recipe") -> list[str]:
        """Fields in which two runs differ, `name: mine != theirs`; where it computes does not count."""
        mine, theirs = flatten(self.to_dict()), flatten(other.to_dict())
        return [
            f"{name}: {mine.get(name)} != {theirs.get(name)}"
            for name in mine | theirs
            if not name.startswith("compute.") and mine.get(name) != theirs.get(name)
        ]


def _check_crossing(recipe: Recipe) -> None:
    """Raise where two sections contradict each other, saying why."""
    operator, ensemble, estimator = recipe.operator, recipe.ensemble, recipe.estimator
    kind, members = f"operator.kind {operator.kind}", ensemble.members
    logits = estimator.kind in ("categorical", "hl_gauss")
    why = "it is added to values, and there they are logits (use scalar, quantile or implicit)"
    atoms = {"quantile": ("quantiles", estimator.quantiles), "implicit": ("samples", estimator.samples)}
    name, count = atoms.get(estimator.kind, ("", 0))
    prior, certainty = f"ensemble.prior {ensemble.prior:g}", f"ensemble.certainty {ensemble.certainty:g}"
    own = recipe.network.kind == "own"
    asked = [
        *([f"estimator.kind {estimator.kind}"] if estimator.kind == "implicit" else []),
        *([f"auxiliary.kind {recipe.auxiliary.kind}"] if recipe.auxiliary.kind != "none" else []),
        *([prior] if ensemble.prior > 0 else []),
        *(["regulation.intervention inject"] if recipe.regulation.intervention == "inject" else []),
        *(["regulation.spectral"] if recipe.regulation.spectral else []),
    ]
    wrong: list[tuple[bool, str]] = [
        (own and len(asked) > 0, f"network.kind own contradicts {''.join(asked[:1])}: it would add layers to it"),
        (
            operator.kind == "tqc" and not name,
            f"{kind} contradicts estimator.kind {estimator.kind}: it pools quantiles (use quantile or implicit)",
        ),
        (
            operator.kind == "tqc" and operator.drop >= count,
            f"operator.drop {operator.drop} leaves none of estimator.{name} {count}: make it smaller",
        ),
        (operator.kind == "munchausen" and logits, f"{kind} contradicts estimator.kind {estimator.kind}: {why}"),
        (
            operator.kind == "ebql" and members < 2,
            f"{kind} needs others to value what a member selects: make ensemble.members at least 2",
        ),
        (
            operator.kind == "rem" and ensemble.learn != "all",
            f"{kind} contradicts ensemble.learn {ensemble.learn}: all members are one mixture (use all)",
        ),
        (
            operator.subset > members,
            f"operator.subset {operator.subset} is more than ensemble.members {members}: make it at most that",
        ),
        (
            operator.snapshots > 1 and not recipe.optim.hard_copy_every,
            f"operator.snapshots {operator.snapshots} contradicts optim.hard_copy_every 0: a target that moves with "
            f"every update has no copies (set optim.hard_copy_every)",
        ),
        (ensemble.prior > 0 and logits, f"{prior} contradicts estimator.kind {estimator.kind}: {why}"),
        (
            ensemble.prior > 0 and recipe.optim.decay > 0,
            f"{prior} contradicts optim.decay {recipe.optim.decay:g}: a prior must not fade",
        ),
        (
            ensemble.prior > 0 and recipe.auxiliary.kind != "none",
            f"{prior} contradicts auxiliary.kind {recipe.auxiliary.kind}: a prior has no latent to predict",
        ),
        (
            recipe.regulation.intervention == "inject" and recipe.auxiliary.kind != "none",
            f"regulation.intervention inject contradicts auxiliary.kind {recipe.auxiliary.kind}: its loss reads the "
            "head that would be fresh",
        ),
        (
            recipe.regulation.intervention in ("inject", "replace") and recipe.network.noisy > 0,
            f"regulation.intervention {recipe.regulation.intervention} contradicts network.noisy "
            f"{recipe.network.noisy:g}: values with noise in them could not stay what they were",
        ),
        (
            ensemble.prior > 0 and recipe.network.noisy > 0,
            f"{prior} contradicts network.noisy {recipe.network.noisy:g}: a prior must not change",
        ),
        (
            recipe.auxiliary.kind == "curl" and recipe.replay.batch < 2,
            f"auxiliary.kind curl contradicts replay.batch {recipe.replay.batch}: it tells a batch's states apart "
            f"(make it at least 2)",
        ),
        (
            recipe.regulation.trigger == "verdict" and recipe.monitor.every == 0,
            "regulation.trigger verdict contradicts monitor.every 0: the monitor must measure to find anything",
        ),
        (
            recipe.regulation.project and recipe.network.norm == "none",
            "regulation.project contradicts network.norm none: only behind a LayerNorm a weight's size does not matter "
            "(set network.norm layer)",
        ),
        (
            ensemble.certainty > 0 and members < 2,
            f"{certainty} needs members that may differ: make ensemble.members at least 2",
        ),
    ]
    for found, message in wrong:
        if found:
            raise UserError(message)


def switches(recipe: Recipe) -> set[str]:
    """The dotted names of fields that decide which others there are."""
    sections = {name: value for name, value in vars(recipe).items() if dataclasses.is_dataclass(value)}
    return {
        f"{name}.{switch}"
        for name, section in sections.items()
        for switch, _ in getattr(section, "owners", {}).values()
    }


def _from_older_layout(table: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as written before: in layout 1 epsilon had three fields, in 2 a network's kind kept others' fields."""
    new = {name: dict(value) if isinstance(value, Mapping) else value for name, value in table.items()}
    explore, said = new.get("explore"), []
    if isinstance(explore, dict) and (old := explore.keys() & {"start", "end", "decay_steps"}):
        start, end, over = (explore.pop(name, default) for name, default in EXPLORE_1.items())
        explore["epsilon"] = f"{start} -> {end} linear {over} steps" if start != end else start
        said.append(f"{', '.join(f'explore.{name}' for name in EXPLORE_1 if name in old)} became explore.epsilon")
    for name, section in (("estimator", EstimatorSection), ("network", NetworkSection)):
        given = new.get(name)
        if not isinstance(given, dict):
            continue
        for leaf, (switch, kinds) in getattr(section, "owners", {}).items():
            if leaf in given and given.get(switch, default_of(section, switch)) not in kinds:
                del given[leaf]
    if said:
        warnings.warn(Upgraded(f"recipe of an older layout: {'; '.join(said)}"), stacklevel=2)
    return new


EXPLORE_1 = {"start": 1.0, "end": 0.01, "decay_steps": 2001}


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
