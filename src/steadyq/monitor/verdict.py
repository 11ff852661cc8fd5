"""What a run's measurements say, in words: what is unstable, since when, how strongly, why, and what to try.

A rule reads one figure from every row and holds it against a threshold. It becomes a finding once the figure has
stayed beyond it for several rows in a row: single rows are noisy, and early training is wild everywhere.
docs/diagnose.md shows on which runs the thresholds were set.

A planned reset redraws weights on purpose, and figures of a young network are wild again. Soon after it a row beyond
its threshold is not held against the run where the reset itself moves the figure there (`Rule.settles`); what is beyond
it later is named. To know of resets therefore never adds a finding.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from steadyq.monitor import switches
from steadyq.monitor.advice import in_their_words
from steadyq.monitor.switches import Offer
from steadyq.recipe import Recipe

Row = Mapping[str, Any]
Mechanism = Literal["operator", "estimator", "parameter"]

LEVELS: dict[Mechanism, str] = {
    "operator": "operator level",
    "estimator": "estimator level",
    "parameter": "parameter dynamics",
}
"""The paper's names of the three mechanisms."""


@dataclass(frozen=True)
class Thresholds:
    """Where a figure becomes a finding; docs/diagnose.md has the healthy and sick figures behind each."""

    rows: int = 3
    """Rows in a row beyond a threshold before it counts."""
    overestimation: float = 2.0
    """Greedy value above realised return, in units of the return."""
    beyond: float = 1.0
    """Greedy value over the best return ever earned: more than all of it has no support."""
    coupling: float = 0.25
    """Same-action share after a reward above what independence gives, at the lower end of its interval."""
    target_gap: float = 1e-3
    """Least distance between online and target values, in units of the values' spread."""
    clipped: float = 0.5
    """Share of targets held at the ceiling."""
    flip: float = 0.35
    """Chance that noise of the measured size turns the greedy action, where values are mostly noise."""
    churn: float = 0.25
    """Share of states whose greedy action one update turns."""
    td_tail: float = 50.0
    """99th percentile of TD errors over their median, where errors are large."""
    spike: float = 6.0
    """Largest weight of a layer over its 99th percentile: the paper's reset threshold."""
    dormant: float = 0.9
    """Share of units that hardly fire."""
    rank: float = 0.05
    """Least effective rank of the features, as a share of the possible."""
    update: float = 0.05
    """Size of one update over the size of the weights."""
    growth: float = 2.0
    """Growth of the weight norm in 1,000 steps, in units of its first measured value."""
    settling: float = 0.5
    """How long a planned reset excuses what it moves: a share of the time since the one before, or the run's start."""


@dataclass(frozen=True)
class Finding:
    """One thing that is unstable."""

    name: str
    mechanism: Mechanism
    what: str
    since: int
    until: int | None
    """Step of the last row beyond the threshold, if later rows were back within it."""
    worst: float
    threshold: float
    switches: tuple[tuple[str, str], ...]
    """What to try: (options that are set together, why); without a dot it is advice in words."""

    @property
    def strength(self) -> float:
        """How many times the threshold; for a lower bound, how many times below."""
        low, high = sorted((abs(self.worst), abs(self.threshold)))
        return high / max(low, 1e-12)

    def when(self) -> str:
        """The steps it was seen at."""
        if self.since == self.until:
            return f"at step {self.since:,}"
        return f"since step {self.since:,}" + (f" until step {self.until:,}" if self.until is not None else "")

    def against(self) -> str:
        """How strongly, where that is a number."""
        return f": {number(self.worst)} against {number(self.threshold)}" if math.isfinite(self.worst) else ""

    def words(self) -> str:
        """One sentence."""
        return f"{self.what} {self.when()}{self.against()} ({LEVELS[self.mechanism]})"

    def in_words(self, parameters: Mapping[str, Any]) -> "Finding":
        """The same for somebody else's code: advice with the names of its parameters instead of our options."""
        return replace(self, switches=in_their_words(self.switches, parameters))

    def advice(self) -> str:
        """What to try, or that everything offered is already switched on."""
        tried = [f"{option} ({why})" if why else option for option, why in self.switches]
        return "try " + "; ".join(tried) if tried else "every switch we know of is already set, or does not fit here"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        worst = self.worst if math.isfinite(self.worst) else None  # JSON has no infinity
        switches = [list(pair) for pair in self.switches]
        return {**asdict(self), "worst": worst, "switches": switches, "words": self.words()}


Figure = Callable[[Sequence[Row], int], float | None]
"""A figure of the row at an index, given all rows; None where it is not defined."""


@dataclass(frozen=True)
class Rule:
    """A figure, the threshold it is held against, and what it means."""

    name: str
    mechanism: Mechanism
    what: str
    figure: Figure
    threshold: str
    offers: tuple[Offer, ...]
    below: bool = False
    """Whether the finding is a figure below its threshold."""
    at_once: bool = False
    """Whether one row is enough."""
    settles: bool = False
    """Whether a planned reset itself moves the figure towards its threshold (docs/diagnose.md has what resets moved).

    An update that is too large is so from fresh weights too, as every run's first one is judged.
    """
    unless: Callable[[Recipe], bool] = lambda recipe: False
    """Recipes in which the figure may be what it likes."""


def overestimation(rows: Sequence[Row], at: int) -> float | None:
    """(Q - G) / |G|: greedy value above the return realised, in units of it; a tenth of the best return at least."""
    row = rows[at]
    q, mean, best = row.get("q_greedy"), row.get("return_mean"), row.get("return_best")
    if q is None or mean is None or best is None:
        return None
    scale = max(abs(mean), 0.1 * abs(best))
    return (q - mean) / scale if scale > 0 else None


def beyond(rows: Sequence[Row], at: int) -> float | None:
    """Q / max G: the mean greedy value over the best return of any state; not defined where all returns are costs."""
    q, best = rows[at].get("q_greedy"), rows[at].get("return_best")
    return q / best if q is not None and best is not None and best > 0 else None


def coupling(rows: Sequence[Row], at: int) -> float | None:
    """How much more often the greedy action at s' is the rewarded one than without the reward, or than by chance.

    The share after a reward is taken at the lower end of its 95% interval (plus-four): where rewards are rare it rests
    on a handful of transitions. Counts only while values stand above returns: actions also repeat where that is right.
    """
    row = rows[at]
    after, without = row.get("same_action_rewarded"), row.get("same_action_unrewarded")
    if after is None:
        return None
    if not (overestimation(rows, at) or 0) > 0:
        return None
    if row["rewarded"] > 0.95 or without is None:
        without = row["same_action_chance"]
    count = row["rewarded"] * row.get("transitions", 128)  # 128: the default, where a row does not say
    share = (after * count + 2) / (count + 4)
    return float(share - 2 * math.sqrt(share * (1 - share) / (count + 4)) - without)


def where_it_matters(name: str, size: str) -> Figure:
    """A column, counted only in rows whose `size` is at least half of what values differ by between states; else 0.

    Ratios of errors to errors and of noise to action gaps are large wherever most states are learned well or many
    actions are worth the same. Both are healthy while errors and noise are small next to the values themselves. Not
    defined before values differ by a twentieth of the best return: nothing has been learned yet.
    """

    def figure(rows: Sequence[Row], at: int) -> float | None:
        value, error, spread = (rows[at].get(key) for key in (name, size, "q_spread_states"))
        if value is None or error is None or spread is None or spread < 0.05 * abs(rows[at].get("return_best") or 0):
            return None
        return float(value) if error >= 0.5 * spread else 0.0

    return figure


def rank_share(rows: Sequence[Row], at: int) -> float | None:
    """Effective rank of the features as a share of what batch and width allow."""
    rank, possible = rows[at].get("effective_rank"), rows[at].get("rank_possible")
    return rank / possible if rank is not None and possible else None


def growth(rows: Sequence[Row], at: int) -> float | None:
    """What the weight norm gained in 1,000 steps since the row before, in units of the first row's norm."""
    if at == 0:
        return None
    now, then, first = (rows[i].get("weight_norm") for i in (at, at - 1, 0))
    if now is None or then is None or not first or rows[at]["step"] <= rows[at - 1]["step"]:
        return None
    return float((now - then) / first / (rows[at]["step"] - rows[at - 1]["step"]) * 1000)


def target_gap(rows: Sequence[Row], at: int) -> float | None:
    """Distance of online and target values; 0 where the target was the online network at every update looked at.

    A target that is copied between two updates is equal when the next begins and an update away when that is over. One
    that is copied now and then may have been just before the row was measured, which says nothing.
    """
    gap, same = rows[at].get("target_gap_relative"), rows[at].get("target_same")
    if same is None:
        return gap
    return 0.0 if same == 1 else gap or None


def column(name: str) -> Figure:
    """The figure that stands in the row."""
    return lambda rows, at: rows[at].get(name)


RULES: tuple[Rule, ...] = (
    Rule(
        "overestimation",
        "operator",
        "values run ahead of the returns really earned",
        overestimation,
        "overestimation",
        (switches.CEILING, switches.EXCHANGE, switches.FORBID, switches.SLOW),
        settles=True,
    ),
    Rule(
        "beyond the best return",
        "operator",
        "values are higher than any return ever earned",
        beyond,
        "beyond",
        (switches.CEILING, switches.FORBID, switches.FEWER.because("the loop turns once per update")),
    ),
    Rule(
        "coupling",
        "operator",
        "a rewarded action is chosen again at the next state far more often than chance",
        coupling,
        "coupling",
        (switches.FORBID.because("breaks the loop from reward to bootstrap"),),
        unless=lambda recipe: recipe.operator.forbid == "rewarded",
    ),
    Rule(
        "no target network",
        "operator",
        "targets follow the online network at once",
        target_gap,
        "target_gap",
        (switches.SLOW, switches.COPIES),
        below=True,
    ),
    Rule(
        "ceiling reached",
        "operator",
        "most targets are held down by the ceiling",
        column("clipped"),
        "clipped",
        (switches.FORBID.because("less upward pressure"), switches.GAMMA),
    ),
    Rule(
        "undecided policy",
        "estimator",
        "values are mostly noise, which turns the greedy action",
        where_it_matters("flip_probability", "noise"),
        "flip",
        (switches.AVERAGE, switches.QUANTILE.because("a calmer regression"), switches.BATCH),
    ),
    Rule(
        "policy churn",
        "estimator",
        "a single update turns the greedy action of many states",
        column("churn"),
        "churn",
        (switches.RATE, switches.AVERAGE),
        settles=True,
    ),
    Rule(
        "heavy tails",
        "estimator",
        "a few transitions carry almost all of the TD error",
        where_it_matters("td_tail", "td_error"),
        "td_tail",
        (switches.QUANTILE.because("robust to outliers"), switches.RATE),
    ),
    Rule(
        "weight spikes",
        "parameter",
        "single weights tower above their layer",
        column("spike"),
        "spike",
        (
            switches.REDRAW,
            switches.ANSWER,
            switches.PARSEVAL.because("lowered spikes on both games tried"),
            switches.LAYER_NORM.because("lowered spikes in most of what was tried"),
            switches.FEWER,
            switches.SELDOM,
        ),
        settles=True,
    ),
    Rule(
        "dormant units",
        "parameter",
        "almost all units have gone silent",
        column("dormant"),
        "dormant",
        (
            switches.RECYCLE,
            switches.ANSWER,
            switches.LAYER_NORM.because("fewer were dormant on both games tried"),
            switches.CRELU.because("of both signs of a unit one fires"),
            switches.RATE,
        ),
        settles=True,
    ),
    Rule(
        "rank collapse",
        "parameter",
        "features of different states have become nearly the same",
        rank_share,
        "rank",
        (
            switches.LAYER_NORM.because("raised ranks on both games tried"),
            switches.CRELU.because("raised ranks on both games tried"),
            switches.ANSWER,
            switches.RATE,
            switches.FEWER,
            switches.SELDOM,
        ),
        below=True,
        settles=True,
    ),
    Rule(
        "violent updates",
        "parameter",
        "one update changes the weights by a large share of their size",
        column("update_ratio"),
        "update",
        (switches.RATE, switches.CLIP),
        at_once=True,
    ),
    Rule(
        "growing weights",
        "parameter",
        "the weights keep growing",
        growth,
        "growth",
        (
            switches.DECAY.because("smaller weights on both games tried"),
            switches.SHRINK,
            switches.ANSWER,
            switches.RATE,
            switches.FEWER,
            switches.SELDOM,
        ),
        settles=True,
    ),
)


def findings(
    diagnostics: Sequence[Row],
    events: Iterable[Row] = (),
    *,
    thresholds: Thresholds | None = None,
    recipe: Recipe | None = None,
    planned: Sequence[int] = (),
) -> list[Finding]:
    """What is unstable, earliest first; an empty list means nothing is.

    What is offered against it are options that the `recipe` takes and does not have. `planned` are the steps of planned
    resets so far, in order.
    """
    thresholds, diagnostics = thresholds or Thresholds(), list(diagnostics)  # a list is read sooner, once for each rule
    excused = unsettled(diagnostics, planned, thresholds.settling)
    found = [finding for rule in RULES if (finding := _judge(rule, diagnostics, excused, thresholds, recipe))]
    stops = [_divergence(event, recipe) for event in events if event.get("event") == "diverged"]
    found += stops or _lost(diagnostics, recipe)
    return sorted(found, key=lambda finding: (finding.since, -finding.strength))


def unsettled(rows: Sequence[Row], planned: Sequence[int], settling: float) -> list[bool]:
    """Which rows lie soon after a planned reset; one of the same step was measured before it."""
    steps = [0, *planned]
    ends = [-math.inf, *(step + settling * (step - before) for before, step in itertools.pairwise(steps))]
    return [row["step"] <= ends[max(0, bisect.bisect_left(steps, row["step"]) - 1)] for row in rows]


State = Literal["unstable", "stable", "too few", "not measured"]

SAID: dict[State, str] = {
    "unstable": "something is unstable",
    "stable": "nothing unstable was found",
    "too few": "too few measurements to judge",
    "not measured": "not measured",
}
"""What a verdict comes to, in words: silence of the rules means something only where they had enough to read."""


@dataclass(frozen=True)
class Verdict:
    """What is unstable, and whether there was enough to say so."""

    findings: tuple[Finding, ...]
    measurements: int
    enough: bool
    """Whether there are as many measurements as every rule needs in a row."""

    @property
    def state(self) -> State:
        """What it comes to."""
        if self.findings:
            return "unstable"
        return "stable" if self.enough else "too few" if self.measurements else "not measured"


def judge(
    diagnostics: Sequence[Row],
    events: Iterable[Row] = (),
    *,
    thresholds: Thresholds | None = None,
    recipe: Recipe | None = None,
    planned: Sequence[int] = (),
    parameters: Mapping[str, Any] | None = None,
) -> Verdict:
    """The verdict on a run; without a `recipe` it is somebody else's code, and advice speaks of its `parameters`."""
    thresholds = thresholds or Thresholds()
    found = findings(diagnostics, events, thresholds=thresholds, recipe=recipe, planned=planned)
    if recipe is None:
        found = [finding.in_words(parameters or {}) for finding in found]
    count = unsettled(diagnostics, planned, thresholds.settling).count(False)
    return Verdict(tuple(found), len(diagnostics), count > thresholds.rows)  # growth takes one more


def _judge(
    rule: Rule, rows: Sequence[Row], excused: Sequence[bool], thresholds: Thresholds, recipe: Recipe | None
) -> Finding | None:
    if recipe is not None and rule.unless(recipe):
        return None
    limit = float(getattr(thresholds, rule.threshold))
    series: list[tuple[int, float, bool]] = []
    for i, row in enumerate(rows):
        if (value := rule.figure(rows, i)) is None:
            continue
        hit = value < limit if rule.below else value > limit
        if not (hit and rule.settles and excused[i]):
            series.append((int(row["step"]), value, hit))
    need = 1 if rule.at_once else thresholds.rows
    beyond = [hit for *_, hit in series]
    start = next((i for i in range(len(series) - need + 1) if all(beyond[i : i + need])), None)
    if start is None:
        return None
    last = max(i for i, hit in enumerate(beyond) if hit)
    over = [value for _, value, hit in series[start:] if hit]
    return Finding(
        rule.name,
        rule.mechanism,
        rule.what,
        since=series[start][0],
        until=None if last == len(series) - 1 else series[last][0],
        worst=min(over) if rule.below else max(over),
        threshold=limit,
        switches=switches.taken_by(rule.offers, recipe),
    )


def sustained(rule: Rule, rows: Sequence[Row], count: int) -> float | None:
    """The worst level that a rule's figure kept for `count` rows in a row: what is held against the threshold."""
    values = [value for i in range(len(rows)) if (value := rule.figure(rows, i)) is not None]
    count = 1 if rule.at_once else count
    windows = [values[i : i + count] for i in range(len(values) - count + 1)]
    if not windows:
        return None
    return min(map(max, windows)) if rule.below else max(map(min, windows))


def _lost(rows: Sequence[Row], recipe: Recipe | None) -> list[Finding]:
    """Divergence that nobody stopped at: rows say None where a value or a weight is no longer a number."""
    lost = (row for row in rows if any(key in row and row[key] is None for key in ("q_greedy", "weight_norm")))
    return [_divergence(row, recipe, "values or weights are no longer finite") for row in itertools.islice(lost, 1)]


def _divergence(event: Row, recipe: Recipe | None, what: str = "") -> Finding:
    return Finding(
        "divergence",
        "parameter",
        what or f"training stopped, {event.get('message', 'not finite')},",
        since=int(event["step"]),
        until=None,
        worst=math.inf,
        threshold=0.0,
        switches=switches.taken_by((switches.RATE, switches.CLIP), recipe),
    )


def planned_resets(events: Iterable[Row]) -> list[int]:
    """The steps at which the events of a run say that something was reset as planned."""
    return sorted({int(row["step"]) for row in events if row["event"] == "reset" and row.get("trigger") == "periodic"})


class Alarms:
    """Says each finding once, as it rises; looks back over the last rows only."""

    def __init__(
        self,
        rows: Sequence[Row] = (),
        *,
        recipe: Recipe | None = None,
        planned: Sequence[int] = (),
        keep: int = 50,
    ) -> None:
        self.recipe, self.keep = recipe, keep
        self.planned = list(planned)
        """Steps of the planned resets so far."""
        self.first = rows[:1]
        self.rows = list(rows[-keep:])
        self.raised = {finding.name for finding in self._now()}

    def add(self, row: Row) -> list[Finding]:
        """Take one more row; returns the findings that are new with it."""
        self.first = self.first or [row]
        self.rows = [*self.rows, row][-self.keep :]
        new = [finding for finding in self._now() if finding.name not in self.raised]
        self.raised |= {finding.name for finding in new}
        return new

    def _now(self) -> list[Finding]:
        rows = self.rows if not self.first or self.first[0] in self.rows[:1] else [*self.first, *self.rows]
        return findings(rows, recipe=self.recipe, planned=self.planned)


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
