"""Figures for pages that cannot be interactive: panels of curves with their interval over seeds, as SVG, PNG or PDF."""

import importlib
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyq.errors import UserError
from steadyq.report.charts import CHARTS
from steadyq.report.curves import aggregate, on_grid, series, step_grid
from steadyq.report.words import shown_name
from steadyq.suite.columns import Array
from steadyq.suite.runs import Run

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""Okabe-Ito, without its yellow (too light on white)."""

DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
FORMATS = (".svg", ".png", ".pdf")

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.edgecolor": "#666666",
    "axes.titlelocation": "left",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "svg.fonttype": "none",
    "svg.hashsalt": "steadyq",  # the same runs give the same bytes
}

AXES = {line.column: chart.y for chart in reversed(CHARTS) for line in chart.lines} | {
    "q_taken": "mean Q(s, a), discounted return",
    "q_max": "mean of the largest Q(s, ·), discounted return",
    "ceiling": "best discounted return so far",
}


def compare(
    variants: Mapping[str, Sequence[Run]],
    columns: Sequence[str],
    out: Path | str,
    *,
    title: str = "",
    axes: Mapping[str, str] | None = None,
) -> None:
    """Draw one panel per column of metrics.jsonl: per variant the mean over seeds and its 95% bootstrap interval.

    All runs must be of one environment and protocol, which the figure states with the number of seeds; `axes` renames
    a column's axis.
    """
    out = Path(out)
    if out.suffix not in FORMATS:
        raise UserError(f"cannot write {out.name}: a figure's name must end in {', '.join(FORMATS)}")
    everyone = [run for runs in variants.values() for run in runs]
    if not everyone or not all(variants.values()) or not columns:
        raise UserError("a figure needs at least one run of every variant and one column")
    if len({(run.recipe.env, run.recipe.protocol) for run in everyone}) > 1:
        raise UserError("the runs of one figure must share their environment and protocol")
    for column in columns:
        if not any(len(series(run, column)[0]) for run in everyone):
            known = sorted({"step", *(name for run in everyone for name in run.metrics.columns)})
            raise UserError(f"no run has {column!r}: choose among {', '.join(known)}")

    matplotlib = drawing()
    with matplotlib.rc_context(STYLE):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.9 * len(columns) + 0.4, 3.5), layout="constrained")
        FigureCanvasAgg(figure)
        panels = np.atleast_1d(figure.subplots(1, len(columns)))
        for panel, column in zip(panels, columns, strict=True):
            grid = step_grid(everyone, column=column)
            for index, runs in enumerate(variants.values()):
                draw_curve(panel, index, runs, column, grid)
            panel.set_ylabel((axes or {}).get(column) or AXES.get(column, column))
            finish_axes(panel, grid)
        figure.legend(
            panels[0].lines,
            [f"{name} ({len(runs)} seed{'s' * (len(runs) > 1)})" for name, runs in variants.items()],
            title=title or shown_name(everyone[0].recipe.env),
            title_fontproperties={"weight": "bold", "size": 11},
            alignment="left",
            loc="outside upper left",
            ncols=min(3, len(variants)),
            frameon=False,
            borderaxespad=0.2,
        )
        say_below(figure, _statement(everyone, variants), 65 * len(columns))
        save(figure, out)


def drawing() -> Any:
    """matplotlib, or one line saying how to get it; pages draw their charts without."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError as missing:
        raise UserError("a figure needs the extra: pip install 'steadyq[figures]'") from missing


def say_below(figure: Any, said: str, width: int) -> None:
    """Put what a figure shows below it, in lines of so many letters."""
    wrapped = "\n".join(textwrap.wrap(said, width))
    figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=7.5, color="#555555")


def save(figure: Any, out: Path) -> None:
    """Write a figure without its date, so that the same runs give the same bytes."""
    metadata = {"Date": None} if out.suffix == ".svg" else {"CreationDate": None} if out.suffix == ".pdf" else {}
    figure.savefig(out, dpi=200, metadata=metadata)


def draw_curve(panel: Any, index: int, runs: Sequence[Run], column: str, grid: Array, *, width: float = 1.7) -> None:
    """Draw a variant: the mean over its seeds, and the interval of that mean as a band."""
    curve = aggregate(np.stack([on_grid(*series(run, column), grid) for run in runs]))
    if curve.low is not None:
        panel.fill_between(grid, curve.low, curve.high, color=colour(index), alpha=0.18, linewidth=0)
    panel.plot(grid, curve.mean, color=colour(index), linestyle=dashes(index), linewidth=width)


def finish_axes(panel: Any, grid: Array) -> None:
    """Name the steps, and let the values begin at zero where none is below."""
    panel.set_xlabel("environment steps")
    if len(grid):
        panel.set_xlim(0, grid[-1])
    panel.xaxis.set_major_formatter(thousands)
    panel.margins(y=0.06)
    if all(not (line.get_ydata() < 0).any() for line in panel.lines):
        panel.set_ylim(bottom=0)


def colour(index: int) -> str:
    """A variant's colour."""
    return PALETTE[index % len(PALETTE)]


def dashes(index: int) -> Any:
    """A variant's line style, for those who do not see its colour."""
    return DASHES[index % len(DASHES)]


def thousands(step: float, place: object = None) -> str:
    """A number of steps, short."""
    if not step:
        return "0"
    return f"{step / 1e6:g}M" if step >= 1e6 else f"{step / 1e3:g}k" if step >= 1e3 else f"{step:g}"


def _statement(everyone: Sequence[Run], variants: Mapping[str, Sequence[Run]]) -> str:
    recipe = everyone[0].recipe
    band = "; band: 95% bootstrap interval over seeds" if any(len(runs) > 1 for runs in variants.values()) else ""
    return (
        f"{shown_name(recipe.env)}, protocol {recipe.protocol.label}, preset"
        f"{'s' * (len({run.recipe.preset for run in everyone}) > 1)} "
        f"{', '.join(dict.fromkeys(run.made_by for run in everyone))}. "
        f"Line: mean over seeds{band}."
    )
