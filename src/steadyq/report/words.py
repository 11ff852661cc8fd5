"""What a page shows, said in words and numbers: for those who do not see a chart, and for its title."""

import math
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from steadyq.report.charts import Chart, Unit
from steadyq.report.curves import Curve
from steadyq.run.progress import plural
from steadyq.suite.columns import Array, Reset
from steadyq.suite.recovery import recoveries
from steadyq.suite.runs import Run
from steadyq.suite.variants import Cell, Comparison


def shown_name(env: str) -> str:
    """The environment as a person says it."""
    return env.removeprefix("Gymnasium/")


def chart_words(
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
    for reference in chart.references(cells) if said else ():
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
    limit = panel["threshold"] or "none"
    return [
        f"highest ratio of a single member {np.nanmax(top):.2f}, layer {panel['layers'][layer]}, "
        f"at step {panel['steps'][when]:,.0f}; threshold {limit}. At the end, mean by layer: {ends}."
    ]


def _reset_words(runs: tuple[Run, ...]) -> str:
    counts = Counter(reset.layer for run in runs for reset in run.events.resets if not reset.planned)
    said = []
    if counts:
        each = ", ".join(f"{layer} {count}" for layer, count in counts.most_common())
        said.append(f"{plural(counts.total(), 'reset')} ({each}).")
    for run in runs:
        if text := planned_words(run):
            said.append(f"seed {run.seed}: {text}" if len(runs) > 1 else text)
    return " ".join(said) or "no layer was reset."


def planned_words(run: Run) -> str:
    """What was reset as planned, and how long the run took to play as before; empty where nothing was."""
    planned = [reset for reset in run.events.resets if reset.planned]
    if not planned:
        return ""
    times = len(run.events.planned)
    strengths = dict.fromkeys(map(_drawn, planned))
    parts = [
        f"step {each.step:,}: last games {figure(each.before)} before, "
        + ("not regained" if each.regained is None else f"regained {each.regained:,} steps later")
        for each in recoveries(run)
    ]
    return f"{times} planned ({', '.join(strengths)}). " + "; ".join(parts) + "." * bool(parts)


def _drawn(reset: Reset) -> str:
    return f"units of {reset.layer} drawn anew" if reset.by_unit else f"{reset.layer} {reset.strength:.0%} drawn anew"


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
