"""What the page's script draws, as JSON: charts, variants, and per environment the grid, the curves and the words."""

import math
from collections import Counter
from typing import Any

from steadyq.report.charts import CHARTS, Chart
from steadyq.report.curves import Curve, curve, grid_of
from steadyq.report.spikes import spike_map
from steadyq.report.words import chart_words, shown_name
from steadyq.suite.columns import Array
from steadyq.suite.variants import Cell, Comparison

HEATMAP_COLUMNS = 150


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
    cells, grid, fine = comparison.on(env), grid_of(comparison, env), grid_of(comparison, env, "return_10")
    columns = {line.column for chart in CHARTS for line in chart.lines}
    curves: dict[int, dict[str, Curve]] = {}
    for cell in cells:
        found = {column: curve(cell, column, fine if column == "return_10" else grid) for column in sorted(columns)}
        curves[cell.variant] = {column: each for column, each in found.items() if each is not None}
    spikes, resets = _spikes(cells), _resets(cells)
    entry: dict[str, Any] = {
        "name": shown_name(env),
        "steps": numbers(grid),
        "fine": numbers(fine) if len(fine) != len(grid) else None,
        "last": max(1, *(run.last_step for cell in cells for run in cell.runs)),
        "seeds": {cell.variant: [run.seed for run in cell.runs] for cell in cells},
        "curves": {v: {name: _pack(each) for name, each in own.items()} for v, own in curves.items()},
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
        chart.id: " ".join(
            chart_words(chart, comparison, cells, curves, fine if chart.id == "return" else grid, spikes, resets)
        )
        for chart in CHARTS
    }
    return entry


def _pack(drawn: Curve) -> dict[str, Any]:
    packed: dict[str, Any] = {"mean": numbers(drawn.mean)}
    if drawn.low is not None and drawn.high is not None:
        packed |= {"low": numbers(drawn.low), "high": numbers(drawn.high)}
        packed["seeds"] = [numbers(values) for values in drawn.seeds]
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
            "threshold": _short(cell.runs[0].recipe.regulation.threshold),
        }
        for cell, found in maps
    }
    return {"panels": panels} if panels else None


def _resets(cells: list[Cell]) -> dict[str, Any] | None:
    """Marks [step, layer, members reset], by variant."""
    marks: dict[int, list[list[int]]] = {}
    layers: list[str] = []
    for cell in cells:
        found: Counter[tuple[int, str]] = Counter()
        for run in cell.runs:
            layers += [name for each in run.events.spikes[:1] for name in each.layers if name not in layers]
            found.update((reset.step, reset.layer) for reset in run.events.resets)
        layers += [layer for layer in dict.fromkeys(layer for _, layer in found) if layer not in layers]
        marks[cell.variant] = [[step, layers.index(layer), count] for (step, layer), count in sorted(found.items())]
    return {"layers": layers, "marks": marks} if any(marks.values()) else None


def has_data(chart: Chart, entry: dict[str, Any]) -> bool:
    """Whether an environment has anything to draw in a chart."""
    if chart.kind == "heatmap":
        return entry["spikes"] is not None
    if chart.kind == "timeline":
        return entry["resets"] is not None
    return any(line.column in own for own in entry["curves"].values() for line in chart.lines)
