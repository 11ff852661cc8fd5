"""Axis 3, parameter dynamics: when a layer needs intervention, and which.

A regulation is a trigger (which layers of which members?) times an intervention (what happens to them), followed by a
fixed tail: Adam's moments and step counts of what was touched are cleared, the target follows by its own rule, and
where the intervention was scheduled the recipe's schedules start again. Measuring is a pure function that works without
any intervention. Everything is written in place: captured graphs keep their addresses.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, assert_never

import torch
from torch import Tensor

from steadyq.nets.ensemble import Ensemble
from steadyq.nets.injection import COPY, KEPT
from steadyq.nets.layers import FIXED, SIGMA
from steadyq.nets.spectral import SETTLING, VECTORS
from steadyq.nets.units import dormant_fraction, reading_columns
from steadyq.value.learner import Learner
from steadyq.value.optim import along
from steadyq.value.shapes import Params
from steadyq.value.utility import Utility

Mask = dict[str, Tensor]
"""Which members' layers, by the layer's name: [member] bool, on the CPU."""

Touched = dict[str, Tensor]
"""Which parameters were written, by name: [member], or a mask that broadcasts over [member, ...]."""


@dataclass(frozen=True)
class Evidence:
    """What triggers and interventions look at."""

    layers: tuple[str, ...]  # monitored
    spikes: Tensor  # [member, layer] on the CPU
    scores: Params = field(default_factory=dict)  # of hidden layers' units, [member, unit], if asked for
    findings: tuple[str, ...] = ()  # of the monitor's verdict, those that stand now, if asked for
    utility: Utility | None = None  # of hidden layers' units, where it is followed


class Trigger(Protocol):
    """Decides which layers are intervened on."""

    name: ClassVar[str]
    scheduled: ClassVar[bool]  # planned beforehand: schedules start again, and it is no alarm
    reads_units: ClassVar[bool]
    reads_findings: ClassVar[bool]  # asked only when the monitor has found something

    def due(self, measuring: bool, updates: int, since: int) -> bool:
        """Whether to look now: spikes are measured, after so many updates, so many since the last scheduled reset."""

    def __call__(self, evidence: Evidence, ensemble: Ensemble) -> Mask:
        """Which layers."""


class Intervention(Protocol):
    """Writes one set of parameters."""

    name: ClassVar[str]
    reads_units: ClassVar[bool]

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Intervene on the masked layers, and say what was touched."""

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """Share of the layer that is drawn anew, or of each of its units where single ones are."""

    def units(self, layer: str, evidence: Evidence) -> Tensor | None:
        """Which units of each member's layer it would redraw, [member, unit]; None where it takes layers as a whole."""


@dataclass(frozen=True)
class Spike:
    """Layers whose largest weight has run away from the bulk: the paper's trigger."""

    threshold: float = 6.0
    name: ClassVar[str] = "spike"
    scheduled: ClassVar[bool] = False
    reads_units: ClassVar[bool] = False
    reads_findings: ClassVar[bool] = False

    def due(self, measuring: bool, updates: int, since: int) -> bool:
        """With every measurement."""
        return measuring

    def __call__(self, evidence: Evidence, ensemble: Ensemble) -> Mask:
        """Monitored layers above the threshold."""
        return dict(zip(evidence.layers, (evidence.spikes > self.threshold).unbind(1), strict=True))


@dataclass(frozen=True)
class Periodic:
    """All layers, whenever the updates pass a multiple of `every`, the last one at most `last` (0: no end)."""

    every: int = 40_000
    last: int = 0
    name: ClassVar[str] = "periodic"
    scheduled: ClassVar[bool] = True
    reads_units: ClassVar[bool] = False
    reads_findings: ClassVar[bool] = False

    def due(self, measuring: bool, updates: int, since: int) -> bool:
        """When a multiple has been reached since the last time: updates may come several at once."""
        turn = updates // self.every
        return turn > (updates - since) // self.every and (self.last == 0 or turn * self.every <= self.last)

    def __call__(self, evidence: Evidence, ensemble: Ensemble) -> Mask:
        """Every layer of every member."""
        return {name: torch.ones(ensemble.members, dtype=torch.bool) for name in ensemble.network.layers}


@dataclass(frozen=True)
class Dormant:
    """Hidden layers of which more than `share` of the units score at most `threshold` (ReDo's score)."""

    threshold: float = 0.1
    share: float = 0.0
    name: ClassVar[str] = "dormant"
    scheduled: ClassVar[bool] = False
    reads_units: ClassVar[bool] = True
    reads_findings: ClassVar[bool] = False

    def due(self, measuring: bool, updates: int, since: int) -> bool:
        """With every measurement."""
        return measuring

    def __call__(self, evidence: Evidence, ensemble: Ensemble) -> Mask:
        """Layers whose units are read by named layers alone."""
        readers = ensemble.network.readers
        return {
            name: (dormant_fraction(scores, self.threshold) > self.share).cpu()
            for name, scores in evidence.scores.items()
            if name in readers
        }


@dataclass(frozen=True)
class Verdict:
    """The layers that a standing finding of the monitor is about: the alarm itself is the trigger."""

    name: ClassVar[str] = "verdict"
    scheduled: ClassVar[bool] = False
    reads_units: ClassVar[bool] = True
    reads_findings: ClassVar[bool] = True

    def due(self, measuring: bool, updates: int, since: int) -> bool:
        """Whenever something has been found."""
        return True

    def __call__(self, evidence: Evidence, ensemble: Ensemble) -> Mask:
        """All layers of any finding that has an answer."""
        found: Mask = {}
        for finding in evidence.findings:
            for name, hit in accused(finding, evidence, ensemble).items():
                found[name] = found[name] | hit if name in found else hit
        return found


@dataclass(frozen=True)
class Always:
    """Every layer with every measurement: no trigger at all, for what decides itself what to touch."""

    name: ClassVar[str] = "none"
    scheduled: ClassVar[bool] = False
    reads_units: ClassVar[bool] = False
    reads_findings: ClassVar[bool] = False

    def due(self, measuring: bool, updates: int, since: int) -> bool:
        """With every measurement."""
        return measuring

    def __call__(self, evidence: Evidence, ensemble: Ensemble) -> Mask:
        """Every layer of every member."""
        return {name: torch.ones(ensemble.members, dtype=torch.bool) for name in ensemble.network.layers}


class Whole:
    """What interventions share that take layers as a whole."""

    reads_units: ClassVar[bool] = False

    def units(self, layer: str, evidence: Evidence) -> Tensor | None:
        """None: whole layers."""
        return None


@dataclass(frozen=True)
class Reinitialise(Whole):
    """Draw weight and bias anew."""

    name: ClassVar[str] = "reinitialise"

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Write fresh draws over the masked members' layers."""
        return _blend_(mask, params, ensemble, generator, self.strength)

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """All of what learns."""
        return 0.0 if ensemble.network.group(layer) in FIXED else 1.0


@dataclass(frozen=True)
class ShrinkPerturb(Whole):
    """w <- (1 - strength) w + strength x fresh draw, with a strength for each group of layers."""

    encoder: float = 0.5
    head: float = 1.0
    name: ClassVar[str] = "shrink_perturb"

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Blend the masked members' layers with fresh draws."""
        return _blend_(mask, params, ensemble, generator, self.strength)

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """The layer's group's."""
        group = ensemble.network.group(layer)
        match group:
            case "encoder":
                return self.encoder
            case "head":
                return self.head
            case "prior" | "kept":
                return 0.0
        assert_never(group)


@dataclass(frozen=True)
class Recycle:
    """ReDo: dormant units get fresh incoming weights and a bias of zero, and outgoing weights of zero; noise that comes
    in begins again, noise that goes out is zero too.
    """

    threshold: float = 0.1
    name: ClassVar[str] = "recycle"
    reads_units: ClassVar[bool] = True

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Recycle the dormant units of the masked members' layers."""
        touched = Touched()
        for name, hit in mask.items():
            units = self.units(name, evidence) & hit.to(evidence.scores[name].device)[:, None]
            if units.any():
                _redraw_(name, units, params, ensemble, generator, touched)
        _settle_(touched, params, ensemble)
        return touched

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """Whole units, where it is known who reads them."""
        return 1.0 if layer in ensemble.network.readers else 0.0

    def units(self, layer: str, evidence: Evidence) -> Tensor:
        """The dormant ones."""
        return evidence.scores[layer] <= self.threshold


@dataclass(frozen=True)
class Replace:
    """Continual backprop: the least useful units that are due are drawn anew as by `Recycle`.

    Before their outgoing weights become 0, whoever reads them takes what they put out on average into its bias.
    """

    name: ClassVar[str] = "replace"
    reads_units: ClassVar[bool] = False

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Replace what is due in the masked members' layers."""
        utility, touched = _followed(evidence), Touched()
        for name, hit in mask.items():
            units = self.units(name, evidence) & hit.to(utility.age[name].device)[:, None]
            if not units.any():
                continue
            lost = utility.usual(name) * units.repeat_interleave(utility.mean[name].shape[1] // units.shape[1], 1)
            for reader in ensemble.network.readers[name]:
                layer, weight, _ = ensemble.layer(params, reader)  # as it computes, perhaps normalised
                columns = reading_columns(lost.to(weight.device), layer)
                params[f"{reader}.bias"] += (weight * columns).flatten(2).sum(2)
            _redraw_(name, units, params, ensemble, generator, touched)
            utility.renew_(name, units)
        _settle_(touched, params, ensemble)
        return touched

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """Whole units, where it is known who reads them."""
        return 1.0 if layer in ensemble.network.readers else 0.0

    def units(self, layer: str, evidence: Evidence) -> Tensor:
        """The least useful ones that are due."""
        return _followed(evidence).least(layer)


@dataclass(frozen=True)
class Inject(Whole):
    """Plasticity injection: what the head has learned is kept as it is, and a fresh head learns what is missing.

    The fresh head's copy is taken away again, so that values stay what they were; see `nets/injection.py`.
    """

    name: ClassVar[str] = "inject"

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Inject into the masked members' heads."""
        _copy_(mask, params, KEPT)
        touched = _blend_(mask, params, ensemble, generator, self.strength)
        _copy_(mask, params, COPY)
        return touched

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """All of the head."""
        return 1.0 if ensemble.network.group(layer) == "head" else 0.0


@dataclass(frozen=True)
class Answer(Whole):
    """To every finding of the monitor the intervention that answers it, on the layers that it is about."""

    name: ClassVar[str] = "answer"

    def __call__(
        self, mask: Mask, params: Params, ensemble: Ensemble, evidence: Evidence, generator: torch.Generator
    ) -> Touched:
        """Intervene finding by finding."""
        touched = Touched()
        for finding in evidence.findings:
            accusing = {name: hit for name, hit in accused(finding, evidence, ensemble).items() if name in mask}
            if any(hit.any() for hit in accusing.values()):
                own = ANSWERS[finding](accusing, params, ensemble, evidence, generator)
                for name, where in own.items():
                    p = params[name]
                    each = along(where, p) if where.dim() == 1 else where
                    _join(touched, name, each.to(p.device).expand_as(p))
        return touched

    def strength(self, layer: str, ensemble: Ensemble) -> float:
        """All of what learns."""
        return 0.0 if ensemble.network.group(layer) in FIXED else 1.0


ANSWERS: dict[str, Intervention] = {
    "weight spikes": Reinitialise(),
    "dormant units": Recycle(),
    "rank collapse": Reinitialise(),
    "growing weights": ShrinkPerturb(encoder=0.2, head=0.2),
}
"""By the monitor's name of a finding. Updates that are too large, and a divergence, no redrawn layer would answer."""


def accused(finding: str, evidence: Evidence, ensemble: Ensemble) -> Mask:
    """The layers that a finding is about; none where it has no answer."""
    network, everybody = ensemble.network, torch.ones(ensemble.members, dtype=torch.bool)
    match finding:
        case "weight spikes":
            return Spike()(evidence, ensemble)
        case "dormant units":
            return Dormant()(evidence, ensemble)
        case "rank collapse":  # of the features that the outputs read
            return {name: everybody for name in network.layers if network.group(name) == "head"}
        case "growing weights":
            return {name: everybody for name in network.layers}
        case _:
            return {}


@dataclass(frozen=True)
class Regulation:
    """When, what, and what becomes of the target networks: synchronised, given a draw of their own, or left alone."""

    trigger: Trigger
    intervention: Intervention
    target: Literal["synchronise", "own", "keep"] = "synchronise"

    @torch.no_grad()
    def __call__(self, learner: Learner, evidence: Evidence, generator: torch.Generator) -> list[dict[str, Any]]:
        """Intervene where the trigger says so, then the tail; returns what happened, for the log."""
        ensemble = learner.ensemble
        if self.trigger.scheduled:
            learner.restart()
        hits = self.trigger(evidence, ensemble)
        mask = {name: hit for name, hit in hits.items() if self.intervention.strength(name, ensemble) > 0}
        counts = {name: self.counted(name, evidence) for name in mask}
        mask = {name: hit if (count := counts[name]) is None else hit & (count > 0) for name, hit in mask.items()}
        if not any(hit.any() for hit in mask.values()):
            return []
        touched = self.intervention(mask, learner.online, ensemble, evidence, generator)
        for name, where in touched.items():
            learner.adam.clear_(name, where.to(learner.online[name].device))
        match self.target:
            case "synchronise":
                for follower in learner.followers:
                    synchronise_(torch.stack(list(mask.values())).any(0), follower, learner.online)
            case "own":
                for follower in learner.followers:
                    self.intervention(mask, follower, ensemble, evidence, generator)
            case "keep":
                pass
            case _:
                assert_never(self.target)
        learner.refresh()
        return self.events(mask, counts, ensemble, evidence)

    def counted(self, layer: str, evidence: Evidence) -> Tensor | None:
        """How many units of each member's layer would be redrawn, [member] on the CPU, where single ones are."""
        units = self.intervention.units(layer, evidence)
        return None if units is None else units.sum(1).cpu()

    def events(
        self, mask: Mask, counts: Mapping[str, Tensor | None], ensemble: Ensemble, evidence: Evidence
    ) -> list[dict[str, Any]]:
        """One for each group where the whole ensemble was scheduled, one for each member's layer otherwise."""
        about: dict[str, Any] = {"kind": self.intervention.name, "trigger": self.trigger.name}
        if self.trigger.reads_findings:
            about["findings"] = list(evidence.findings)
        if self.trigger.scheduled and all(count is None for count in counts.values()):
            groups = {
                ensemble.network.group(name): self.intervention.strength(name, ensemble)
                for name, hit in mask.items()
                if hit.any()
            }
            return [about | {"scope": group, "strength": strength} for group, strength in groups.items()]
        found = []
        for name, hit in mask.items():
            for member in hit.nonzero().flatten().tolist():
                place: dict[str, Any] = {"scope": "layer", "member": member, "layer": name}
                strength = {"strength": self.intervention.strength(name, ensemble)}
                found.append(about | place | strength | _measured(name, member, counts[name], evidence))
        return sorted(found, key=lambda event: event["member"])


def _measured(name: str, member: int, count: Tensor | None, evidence: Evidence) -> dict[str, Any]:
    if count is not None:
        return {"units": int(count[member])}
    ratio = float(evidence.spikes[member, evidence.layers.index(name)]) if name in evidence.layers else math.nan
    return {"ratio": round(ratio, 4) if math.isfinite(ratio) else None}


def _followed(evidence: Evidence) -> Utility:
    if evidence.utility is None:
        raise ValueError("units are replaced by their utility: start the learner with Settings(replacement=...)")
    return evidence.utility


def _redraw_(
    name: str, units: Tensor, params: Params, ensemble: Ensemble, generator: torch.Generator, touched: Touched
) -> None:
    """Give units[member, unit] fresh incoming weights, a bias of zero, and outgoing weights of zero."""
    network = ensemble.network
    fresh, _ = ensemble.initial_layer(network.layers[name], generator)
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    rows = units.view(*units.shape, *[1] * (weight.dim() - 2)).to(weight.device)
    weight.copy_(torch.where(rows, fresh.to(weight.device), weight))
    bias.masked_fill_(units.to(bias.device), 0)
    _join(touched, f"{name}.weight", rows.expand_as(weight))
    _join(touched, f"{name}.bias", units.to(bias.device))
    _renew_noise_(name, units, params, ensemble, generator, touched)
    for reader in network.readers[name]:
        outgoing = params[f"{reader}.weight"]
        columns = reading_columns(units.to(outgoing.device), network.layers[reader])
        outgoing.masked_fill_(columns, 0)
        _join(touched, f"{reader}.weight", columns.expand_as(outgoing))


def _copy_(mask: Mask, params: Params, twin: str) -> None:
    """Copy all that the masked members' layers have over their twins."""
    for name, hit in mask.items():
        for part in ("weight", "bias", *VECTORS):
            if (p := params.get(f"{name}.{part}")) is not None:
                other = params[f"{twin}{name}.{part}"]
                other.copy_(torch.where(along(hit, p).to(p.device), p, other))


def _settle_(touched: Touched, params: Params, ensemble: Ensemble) -> None:
    """Let the singular vectors of weights that were written find their place."""
    for name in ensemble.network.spectral_layers:
        if (where := touched.get(f"{name}.weight")) is not None:
            ensemble.iterate_(params, name, SETTLING, where if where.dim() == 1 else where.flatten(1).any(1))


def _blend_(mask: Mask, params: Params, ensemble: Ensemble, generator: torch.Generator, strength: Any) -> Touched:
    """Move the masked layers towards a fresh draw by each layer's strength.

    A layer is drawn for all members and written under the mask, so the random stream does not depend on which were hit.
    """
    touched = Touched()
    for name, hit in with_noise(mask, ensemble).items():
        share = strength(name, ensemble)
        if not hit.any():
            continue
        fresh = ensemble.initial_layer(ensemble.network.layers[name], generator)
        for part, drawn in zip(("weight", "bias"), fresh, strict=True):
            key = f"{name}.{part}"
            p, where = params[key], along(hit, drawn).to(params[key].device)
            p.copy_(torch.where(where, p.lerp(drawn.to(p.device), share), p))
            touched[key] = hit
    _settle_(touched, params, ensemble)
    return touched


def with_noise(mask: Mask, ensemble: Ensemble) -> Mask:
    """The masked layers, each with its noise where it has any."""
    layers = ensemble.network.layers
    return mask | {name + SIGMA: hit for name, hit in mask.items() if name + SIGMA in layers}


def _renew_noise_(
    name: str, units: Tensor, params: Params, ensemble: Ensemble, generator: torch.Generator, touched: Touched
) -> None:
    """Where a layer has noise, that of these of its units begins again."""
    layer = ensemble.network.layers.get(name + SIGMA)
    for part, begun in zip(("weight", "bias"), ensemble.initial_layer(layer, generator) if layer else (), strict=False):
        noise = params[f"{name}{SIGMA}.{part}"]
        where = units.view(*units.shape, *[1] * (noise.dim() - 2)).to(noise.device)
        noise.copy_(torch.where(where, begun.to(noise.device), noise))
        _join(touched, f"{name}{SIGMA}.{part}", where.expand_as(noise))


def _join(touched: Touched, name: str, where: Tensor) -> None:
    touched[name] = touched[name] | where if name in touched else where.clone()


@torch.no_grad()
def synchronise_(members: Tensor, target: Params, online: Params) -> None:
    """Copy the online network of the given members over their target network."""
    for name, p in target.items():
        p[members] = online[name][members]


@torch.no_grad()
def spike_ratio(weight: Tensor, quantile: float = 0.99) -> Tensor:
    """Return max|W| / quantile(|W|) of each member of weight[member, ...] (Eq. l.297), [member].

    Linear interpolation as in `torch.quantile`, which itself refuses more than 2^24 elements.
    """
    size = weight.abs().flatten(1)
    count = size.shape[1]
    position = quantile * (count - 1)
    below, above = math.floor(position), math.ceil(position)
    top = size.topk(count - below, dim=1).values  # descending: top[:, 0] is the maximum
    low, high = top[:, count - 1 - below], top[:, count - 1 - above]
    bulk = torch.lerp(low, high, position - below)
    return top[:, 0] / bulk.clamp_min(torch.finfo(bulk.dtype).tiny)


@torch.no_grad()
def spike_ratios(params: Mapping[str, Tensor], layers: tuple[str, ...], quantile: float = 0.99) -> Tensor:
    """Return the spike ratio of every monitored layer's weights, [member, layer]."""
    return torch.stack([spike_ratio(params[f"{name}.weight"], quantile) for name in layers], dim=1)
