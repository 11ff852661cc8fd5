"""Which charts a report shows, as a list, and the data each of them draws.

A further diagnostic is one more `Chart` here. Its columns are read from metrics.jsonl, or from diagnostics.jsonl where
they begin with `diagnostics.`; a chart without data is left out, and what the picture shows is also said in words
(for those who do not see it).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

import numpy as np

from steadyq.report.curves import Array, Cell, Comparison, Curve, Run, actions, mean_of
from steadyq.report.spikes import spike_map

HEATMAP_COLUMNS = 150

Unit = Literal["", "share"]


@dataclass(frozen=True)
class Line:
    """One column of metrics.jsonl in a chart."""

    column: str
    label: str
    short: str = ""
    """Label at the line's end."""
    quiet: bool = False
    """A bound or context line: thin, without interval."""


@dataclass(frozen=True)
class Reference:
    """A level a reader compares with: a horizontal line, or a mark at a variant's end."""

    label: str
    value: float
    variant: int | None = None
    step: int | None = None
    """Where the mark stands."""


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    id: str
    title: str
    explains: str
    """One or two sentences: what is drawn, and what to look for."""
    y: str = ""
    """Axis label."""
    lines: tuple[Line, ...] = ()
    kind: Literal["lines", "heatmap", "timeline"] = "lines"
    unit: Unit = ""
    log: bool = False
    zero: bool = True
    """Whether the axis includes zero."""
    wide: bool = False
    references: Callable[[list[Cell]], list[Reference]] = lambda cells: []


def _evaluation(cells: list[Cell]) -> list[Reference]:
    found = [
        Reference(
            "evaluation",
            float(np.mean(cell.scores)),
            variant=cell.variant,
            step=max(int(run.result.get("steps", run.last_step)) for run in cell.runs if run.result),
        )
        for cell in cells
        if cell.scores
    ]
    baseline = [r for cell in cells if (r := mean_of(cell, lambda result: result["random_return"])) is not None]
    return [*found, *([Reference("random policy", float(np.mean(baseline)))] if baseline else [])]


def _chance(cells: list[Cell]) -> list[Reference]:
    number = actions(cells[0].runs[0])
    return [Reference(f"chance, 1 of {number} actions", 1 / number)] if number else []


def _clip(cells: list[Cell]) -> list[Reference]:
    limits = {run.recipe.optim.clip for cell in cells for run in cell.runs if run.meta is None}
    return [Reference("clipped above", limit) for limit in sorted(limits)]


CHARTS: tuple[Chart, ...] = (
    Chart(
        "return",
        "Return",
        "Mean raw return of the last 10 training games, exploration included. The diamond is the evaluation at the "
        "end: full games, final weights.",
        y="return of the last 10 games",
        lines=(Line("return_10", "last 10 games"),),
        references=_evaluation,
        wide=True,
    ),
    Chart(
        "value",
        "Value estimates",
        "Mean Q of the sampled transitions in the learner's discounted reward. A stable learner stays near the returns "
        "it really gets; Q that climbs past the best discounted return ever finished (the ceiling) is overestimation.",
        y="Q, discounted return",
        lines=(
            Line("q_taken", "Q(s, a) of the action taken", "Q(s, a)"),
            Line("q_max", "largest Q(s, ·)", "max Q"),
            Line("ceiling", "best discounted return so far", "ceiling", quiet=True),
        ),
    ),
    Chart(
        "same_action",
        "Same-action share",
        "How often the greedy action in the next state is the action just taken. Far above chance after a reward is "
        "the feedback loop that lets an action bootstrap from itself.",
        y="share of sampled transitions",
        lines=(
            Line("same_action", "all"),
            Line("same_action_rewarded", "after a reward", "reward"),
            Line("same_action_unrewarded", "without reward", "no reward"),
        ),
        unit="share",
        references=_chance,
    ),
    Chart(
        "spikes",
        "Spike ratio of each layer",
        "Largest weight over the 99th percentile of the layer's weights, mean over members and seeds. Weights that run "
        "away from their layer make the network brittle; a dot marks where a single member passed the threshold.",
        kind="heatmap",
    ),
    Chart(
        "resets",
        "Layer resets",
        "Each mark is a layer of one or more members that was reinitialised because its spike ratio passed the "
        "threshold.",
        kind="timeline",
    ),
    Chart(
        "spread",
        "Ensemble disagreement",
        "Standard deviation of Q(s, a) between members. It should shrink as members agree and never collapse to zero "
        "early.",
        y="spread of Q between members",
        lines=(Line("q_spread", "spread"),),
    ),
    Chart(
        "loss",
        "Loss",
        "Weighted loss per member and transition, on a logarithmic axis.",
        y="loss",
        lines=(Line("loss", "loss"),),
        log=True,
    ),
    Chart(
        "gradient",
        "Gradient norm",
        "Mean over members before clipping, on a logarithmic axis.",
        y="gradient norm",
        lines=(Line("gradient_norm", "gradient norm"),),
        log=True,
        references=_clip,
    ),
    Chart(
        "clipped",
        "What the limits hold back",
        "Share of targets held at the ceiling, and share of updates in which a member's gradient was clipped.",
        y="share",
        lines=(
            Line("clipped", "targets at the ceiling", "targets"),
            Line("gradient_clipped", "gradients clipped", "gradients"),
        ),
        unit="share",
    ),
    Chart(
        "overestimation",
        "Values against returns",
        "Greedy value on transitions drawn uniformly from replay, beside the discounted returns that finished games "
        "really gave. Values far above both lines cannot be earned.",
        y="discounted return",
        lines=(
            Line("diagnostics.q_greedy", "greedy value", "value"),
            Line("diagnostics.return_mean", "mean return of the last 20 trajectories", "return"),
            Line("diagnostics.return_best", "best return so far", "best", quiet=True),
        ),
    ),
    Chart(
        "decisions",
        "How firmly it decides",
        "Chance that noise of the measured size turns the greedy action, share of states whose greedy action a single "
        "update turns, and share of members that vote against the ensemble.",
        y="share of states",
        lines=(
            Line("diagnostics.flip_probability", "noise turns the action", "noise"),
            Line("diagnostics.churn", "one update turns the action", "update"),
            Line("diagnostics.vote_split", "members vote against", "votes"),
        ),
        unit="share",
    ),
    Chart(
        "units",
        "Units that no longer work",
        "Share of units that hardly fire (below a tenth of their layer's mean), and of units that hardly any gradient "
        "reaches.",
        y="share of units",
        lines=(
            Line("diagnostics.dormant", "hardly fire", "fire"),
            Line("diagnostics.dormant_gradient", "hardly learn", "learn"),
        ),
        unit="share",
    ),
    Chart(
        "rank",
        "Rank of the features",
        "How many directions the last hidden layer uses for 99% of its output's weight. A collapse to a few means that "
        "the network no longer tells states apart.",
        y="effective rank",
        lines=(Line("diagnostics.effective_rank", "effective rank", "rank"),),
    ),
    Chart(
        "update_size",
        "Size of an update",
        "Norm of one update over the norm of the weights, on a logarithmic axis. About a thousandth is usual.",
        y="update over weights",
        lines=(Line("diagnostics.update_ratio", "update over weights", "ratio"),),
        log=True,
    ),
    Chart(
        "target_gap",
        "Distance to the target network",
        "Online minus target values over the spread of values, on a logarithmic axis. Nothing drawn means that the two "
        "are the same.",
        y="relative distance",
        lines=(Line("diagnostics.target_gap_relative", "online from target", "distance"),),
        log=True,
    ),
    Chart(
        "experience",
        "Exploration and rewards",
        "Probability of a random action, and share of sampled transitions with a reward.",
        y="share",
        lines=(
            Line("epsilon", "random actions (epsilon)", "epsilon"),
            Line("rewarded", "rewarded transitions", "rewarded"),
        ),
        unit="share",
    ),
)


def page_data(comparison: Comparison) -> dict[str, Any]:
    """Everything the page draws: charts, variants, and per environment the grid, the curves and the words."""
    return {
        "variants": list(comparison.labels),
        "charts": [_declare(chart) for chart in CHARTS],
        "envs": [_environment(comparison, env) for env in comparison.envs],
    }


def _declare(chart: Chart) -> dict[str, Any]:
    lines = [
        {"column": line.column, "label": line.label, "short": line.short or line.label, "quiet": line.quiet}
        for line in chart.lines
    ]
    return {
        "id": chart.id,
        "title": chart.title,
        "kind": chart.kind,
        "y": chart.y,
        "lines": lines,
        "unit": chart.unit,
        "log": chart.log,
        "zero": chart.zero,
    }


def _environment(comparison: Comparison, env: str) -> dict[str, Any]:
    cells, grid = comparison.on(env), comparison.grid(env)
    columns = {line.column for chart in CHARTS for line in chart.lines}
    curves: dict[int, dict[str, Curve]] = {}
    for cell in cells:
        found = {column: cell.curve(column, grid) for column in sorted(columns)}
        curves[cell.variant] = {column: curve for column, curve in found.items() if curve is not None}
    spikes, resets = _spikes(cells), _resets(cells)
    entry: dict[str, Any] = {
        "name": shown_name(env),
        "steps": numbers(grid),
        "last": float(max([*(run.recipe.steps for cell in cells for run in cell.runs if run.result), *grid[-1:], 1])),
        "seeds": {cell.variant: [run.seed for run in cell.runs] for cell in cells},
        "curves": {v: {name: _pack(curve) for name, curve in own.items()} for v, own in curves.items()},
        "references": {
            chart.id: [
                {"label": r.label, "value": _short(r.value), "variant": r.variant, "step": r.step} for r in levels
            ]
            for chart in CHARTS
            if (levels := chart.references(cells))
        },
        "spikes": spikes,
        "resets": resets,
    }
    entry["words"] = {
        chart.id: " ".join(_words(chart, comparison, cells, curves, grid, spikes, resets)) for chart in CHARTS
    }
    return entry


def shown_name(env: str) -> str:
    """The environment as a person says it."""
    return env.removeprefix("Gymnasium/")


def _pack(curve: Curve) -> dict[str, Any]:
    packed: dict[str, Any] = {"mean": numbers(curve.mean)}
    if curve.low is not None and curve.high is not None:
        packed |= {"low": numbers(curve.low), "high": numbers(curve.high)}
        packed["seeds"] = [numbers(values) for values in curve.seeds]
    return packed


def numbers(values: Array) -> list[float | None]:
    """Five significant digits: what a chart can show; None where there is no value."""
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _spikes(cells: list[Cell]) -> dict[str, Any] | None:
    """Layers x time: mean over members and seeds, the highest member, and the threshold."""
    maps = [(cell, found) for cell in cells if (found := spike_map(cell.runs, HEATMAP_COLUMNS)) is not None]
    panels = {
        cell.variant: {
            "layers": found.layers,
            "steps": numbers(found.steps),
            "mean": [numbers(row) for row in found.mean.T],
            "top": [numbers(row) for row in found.top.T],
            "threshold": cell.runs[0].recipe.regulation.threshold,
        }
        for cell, found in maps
    }
    return {"panels": panels} if panels else None


def _resets(cells: list[Cell]) -> dict[str, Any] | None:
    """Marks [step, layer, members reset, highest ratio], by variant."""
    marks: dict[int, list[list[float]]] = {}
    layers: list[str] = []
    for cell in cells:
        found: dict[tuple[int, str], list[float]] = {}
        for run in cell.runs:
            layers += [name for event in run.of("spikes")[:1] for name in event["layers"] if name not in layers]
            for event in run.of("reset"):
                found.setdefault((event["step"], event["layer"]), []).append(event["ratio"] or 0.0)
        layers += [layer for _, layer in found if layer not in layers]
        marks[cell.variant] = [
            [step, layers.index(layer), len(ratios), round(max(ratios), 2)]
            for (step, layer), ratios in sorted(found.items())
        ]
    return {"layers": layers, "marks": marks} if any(marks.values()) else None


def has_data(chart: Chart, entry: dict[str, Any]) -> bool:
    """Whether an environment has anything to draw in a chart."""
    if chart.kind == "heatmap":
        return entry["spikes"] is not None
    if chart.kind == "timeline":
        return entry["resets"] is not None
    return any(line.column in own for own in entry["curves"].values() for line in chart.lines)


def _words(
    chart: Chart,
    comparison: Comparison,
    cells: list[Cell],
    curves: dict[int, dict[str, Curve]],
    grid: Array,
    spikes: dict[str, Any] | None,
    resets: dict[str, Any] | None,
) -> list[str]:
    """What the chart shows, in sentences with numbers."""
    if chart.kind == "timeline" and resets is None:
        return ["No layer was reset."]
    said: list[str] = []
    several = len(cells) > 1
    for cell in cells:
        name = f"{comparison.labels[cell.variant]}: " if several else ""
        if chart.kind == "heatmap":
            said += [name + text for text in _heatmap_words(spikes, cell.variant)]
        elif chart.kind == "timeline":
            said.append(name + _reset_words(cell.runs))
        else:
            for line in chart.lines:
                curve = curves[cell.variant].get(line.column)
                if curve is not None and (text := curve_words(curve, grid, chart.unit)):
                    said.append(f"{name}{line.label}: {text}.")
    for reference in chart.references(cells):
        name = f"{comparison.labels[reference.variant]}: " if several and reference.variant is not None else ""
        said.append(f"{name}{reference.label}: {figure(reference.value, chart.unit)}.")
    return said


def curve_words(curve: Curve, grid: Array, unit: Unit = "") -> str:
    """First, last and highest value of a curve, with the interval at the end."""
    known = np.flatnonzero(np.isfinite(curve.mean))
    if not len(known):
        return ""
    first, last = known[0], known[-1]
    top = known[np.argmax(curve.mean[known])]
    text = (
        f"{figure(curve.mean[first], unit)} at step {grid[first]:,.0f}, "
        f"{figure(curve.mean[last], unit)} at step {grid[last]:,.0f}"
    )
    if curve.low is not None and curve.high is not None:
        text += f" (95% interval {figure(curve.low[last], unit)} to {figure(curve.high[last], unit)})"
    if top not in (first, last):
        text += f", highest {figure(curve.mean[top], unit)} at step {grid[top]:,.0f}"
    return text


def _heatmap_words(spikes: dict[str, Any] | None, variant: int) -> list[str]:
    if spikes is None or variant not in spikes["panels"]:
        return []
    panel = spikes["panels"][variant]
    top = np.array(panel["top"], float)
    if not np.isfinite(top).any():
        return []
    layer, when = np.unravel_index(int(np.nanargmax(top)), top.shape)
    ends = "; ".join(
        f"{name} {'not finite' if row[-1] is None else f'{row[-1]:.2f}'}"
        for name, row in zip(panel["layers"], panel["mean"], strict=True)
    )
    return [
        f"highest ratio of a single member {np.nanmax(top):.2f}, layer {panel['layers'][layer]}, "
        f"at step {panel['steps'][when]:,.0f}; threshold {panel['threshold']:g}. At the end, mean by layer: {ends}."
    ]


def _reset_words(runs: tuple[Run, ...]) -> str:
    counts: dict[str, int] = {}
    for run in runs:
        for event in run.of("reset"):
            counts[event["layer"]] = counts.get(event["layer"], 0) + 1
    if not counts:
        return "no layer was reset."
    each = ", ".join(f"{layer} {count}" for layer, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"{sum(counts.values()):,} resets ({each})."


def figure(value: float, unit: Unit = "") -> str:
    """A number as text."""
    if unit == "share":
        return f"{100 * value:.1f}%"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 or not value:
        return f"{math.floor(value + 0.5):,}"
    exact = Decimal(value)  # ties away from zero, as the page's own script rounds
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_HALF_UP)):.3g}"
