"""Figures of a sweep: curves of every game by variant with a summary panel, spike ratios of all layers, remedies.

Every figure states its games, seeds and protocol. Seeds are the only replication: bands and bars resample them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyq.errors import UserError
from steadyq.report.curves import series, step_grid
from steadyq.report.figures import (
    AXES,
    FORMATS,
    STYLE,
    colour,
    dashes,
    draw_curve,
    drawing,
    finish_axes,
    save,
    say_below,
    thousands,
)
from steadyq.report.spikes import spike_map
from steadyq.report.words import shown_name
from steadyq.run.progress import plural
from steadyq.suite.remedies import LAST, MEASURES, Effects
from steadyq.suite.runs import Run
from steadyq.suite.study import NO_REMEDY
from steadyq.suite.summaries import Points, Profile
from steadyq.suite.sweep import which_seeds

AXES_HERE = {
    **AXES,
    "resets_per_check": "layer resets per check",
    "same_action": "same action (share)",
    "same_action_rewarded": "same action after a reward (share)",
    "same_action_unrewarded": "same action without reward (share)",
}
ACROSS, PANEL, MOST_IN_A_ROW = 6, (2.9, 2.35), 5

Cells = Mapping[str, Mapping[str, Sequence[Run]]]
"""Runs by environment and variant, each by seed."""


def draw_curves(
    cells: Cells,
    columns: Sequence[str],
    outs: Sequence[Path],
    *,
    title: str,
    summaries: Sequence[Points | Profile] = (),
) -> None:
    """Draw a row of panels for each column of metrics.jsonl, one for each game; the summaries stand to their right.

    A row has one quantity and its own axes; summaries go one to a row where there are rows enough, else side by side.
    """
    runs = _check(cells, outs)
    drawn = [column for column in columns if any(len(series(run, column)[0]) for run in runs)]
    if not drawn:
        raise UserError(f"no run has any of {', '.join(columns)} yet: there is nothing to draw")
    labels = list(dict.fromkeys(label for variants in cells.values() for label in variants))
    games = list(cells)
    stacked = len(games) <= MOST_IN_A_ROW and 0 < len(summaries) <= len(drawn)
    beside = [summaries[row : row + 1] if stacked else summaries if row == 0 else () for row in range(len(drawn))]
    across = len(games) + max(map(len, beside)) if len(games) <= MOST_IN_A_ROW else ACROSS
    heights = [-(-(len(games) + len(extra)) // across) for extra in beside]

    matplotlib = drawing()
    with matplotlib.rc_context(STYLE):
        figure, panels = _figure(sum(heights), across)
        for block, column in enumerate(drawn):
            own = panels[sum(heights[:block]) : sum(heights[: block + 1])].ravel()
            for panel in own[len(games) + len(beside[block]) :]:
                panel.set_axis_off()
            for place, env in enumerate(games):
                _curves(own[place], cells[env], labels, column)
                own[place].set_title(shown_name(env), fontsize=9)
                if place % across == 0:
                    own[place].set_ylabel(AXES_HERE.get(column, column))
            for place, summary in enumerate(beside[block], len(games)):
                if isinstance(summary, Points):
                    _points(own[place], summary)
                else:
                    _profile(own[place], summary, labels)
        handles = [
            matplotlib.lines.Line2D([], [], color=colour(i), linestyle=dashes(i), linewidth=1.7)
            for i in range(len(labels))
        ]
        _words(figure, title, handles, labels, statement(cells, summaries), across)
        for out in outs:
            save(figure, out)


def draw_spikes(env: str, variants: Mapping[str, Sequence[Run]], outs: Sequence[Path], *, title: str) -> None:
    """Draw layers x time for each variant on one colour scale, and each layer's ratio at the end as the summary."""
    _check({env: variants}, outs)
    maps = {label: found for label, runs in variants.items() if (found := spike_map(runs)) is not None}
    if not maps:
        raise UserError(f"{env}: no spike ratio has been measured yet")
    layers = next(iter(maps.values())).layers
    across = 3 if len(maps) % 3 == 0 else min(len(maps), 4)
    high = max(float(values[np.isfinite(values)].max(initial=1.01)) for values in (each.mean for each in maps.values()))

    matplotlib = drawing()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        from matplotlib.colors import LogNorm

        figure, panels = _figure(-(-len(maps) // across), across + 1, panel=(3.2, 0.13 * len(layers) + 1.1))
        norm = LogNorm(1.0, high)
        for place, (label, found) in enumerate(maps.items()):
            steps = found.steps
            panel = panels[place // across][place % across]
            edges = np.concatenate([[max(0.0, 2 * steps[0] - steps[1]) if len(steps) > 1 else 0.0], steps])
            image = panel.pcolormesh(edges, np.arange(len(layers) + 1), found.mean.T, norm=norm, cmap="viridis")
            panel.set_title(f"{label} ({plural(len(variants[label]), 'seed')})", fontsize=9)
            panel.invert_yaxis()
            panel.set_yticks(np.arange(len(layers)) + 0.5, layers if place % across == 0 else [], fontsize=6)
            panel.xaxis.set_major_formatter(thousands)
            if place + across >= len(maps):
                panel.set_xlabel("environment steps")
        for spare in range(len(maps), across * len(panels)):
            panels[spare // across][spare % across].set_axis_off()
        for row in panels[1:]:
            row[across].set_axis_off()
        last = panels[0][across]
        for index, found in enumerate(maps.values()):
            ends = found.mean[-max(1, len(found.steps) // 10) :].mean(0)
            last.plot(ends, np.arange(len(layers)), color=colour(index), linestyle=dashes(index), linewidth=1.4)
        last.invert_yaxis()
        last.set_yticks(np.arange(len(layers)), [])
        last.grid(True)
        last.set_title("each layer, last tenth", fontsize=9)
        last.set_xlabel("spike ratio")
        bar = figure.colorbar(image, ax=panels[:, :across], label="spike ratio", shrink=0.9)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        bar.ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
        handles = last.lines
        said = facts({env: variants}) + " Colour and lines: mean over members and seeds; one logarithmic colour scale."
        _words(figure, f"{title}: {shown_name(env)}", handles, list(maps), said, across + 1)
        for out in outs:
            save(figure, out)


REMEDIES = (
    f"Numbers: mean over seeds of the evaluation score, and of diagnostics over the last {LAST:.0%} of the steps. "
    "Colour: chance that a run with the remedy lies above one without, bold where its 95% bootstrap interval over "
    "seeds leaves out one half (not corrected for looking at many)."
)
"""What a figure of remedies shows."""


def draw_remedies(cells: Cells, effects: Effects, outs: Sequence[Path], *, title: str) -> None:
    """Draw remedies x measures, a row of panels for each game and a column for each setup."""
    _check(cells, outs)
    setups = list(dict.fromkeys(setup for own in effects.values() for setup in own))
    remedies = list(dict.fromkeys(remedy for own in effects.values() for each in own.values() for remedy in each))
    remedies = [NO_REMEDY, *(remedy for remedy in remedies if remedy != NO_REMEDY)]
    size = (0.42 * len(MEASURES) + 0.6, 0.19 * len(remedies) + 0.9)
    matplotlib = drawing()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure, panels = _figure(len(effects), len(setups), panel=size)
        for row, (env, own) in enumerate(effects.items()):
            for column, setup in enumerate(setups):
                panel, found = panels[row][column], own.get(setup, {})
                chances = np.full((len(remedies), len(MEASURES)), np.nan)
                for y, remedy in enumerate(remedies):
                    for x, measure in enumerate(MEASURES):
                        effect = found.get(remedy, {}).get(measure.name)
                        if effect is None:
                            continue
                        chances[y, x] = np.nan if effect.chance is None else effect.chance
                        weight = "bold" if effect.sure else "normal"
                        dark = effect.chance is not None and abs(effect.chance - 0.5) > 0.4
                        shown = {"fontsize": 4.6, "fontweight": weight, "color": "white" if dark else "#222222"}
                        panel.text(x, y, f"{effect.mean:.3g}", ha="center", va="center", **shown)
                image = panel.imshow(chances, vmin=0, vmax=1, cmap="PuOr", aspect="auto")
                panel.set_title(f"{shown_name(env)}, {setup}", fontsize=8)
                panel.set_yticks(range(len(remedies)), remedies if column == 0 else [], fontsize=6)
                names = [measure.name for measure in MEASURES]
                panel.set_xticks(range(len(names)), names, fontsize=6, rotation=45, ha="right")
                groups = [measure.mechanism for measure in MEASURES]
                for x in (x for x in range(1, len(groups)) if groups[x] != groups[x - 1]):
                    panel.axvline(x - 0.5, color="#666666", linewidth=0.8)
        bar = figure.colorbar(image, ax=panels, shrink=0.5, aspect=30)
        bar.set_label("chance to lie above 'none'", fontsize=7)
        bar.ax.tick_params(labelsize=6)
        _words(figure, title, [], [], f"{facts(cells)} {REMEDIES}", max(1, round(len(setups) * size[0] / 3.2)))
        for out in outs:
            save(figure, out)


def facts(cells: Cells) -> str:
    """Games, seeds, protocol, preset and steps of a figure, and how many of its runs have not finished."""
    runs = [run for variants in cells.values() for each in variants.values() for run in each]
    games, seeds = list(cells), which_seeds(runs)
    counts = sorted({len(each) for variants in cells.values() for each in variants.values()})
    unfinished = sum(run.result is None for run in runs)
    presets = ", ".join(dict.fromkeys(run.made_by for run in runs))
    protocols = ", ".join(dict.fromkeys(run.recipe.protocol.label for run in runs))
    named = ", ".join(map(shown_name, games)) if len(games) <= MOST_IN_A_ROW else f"{len(games)} games"
    each = f" ({counts[0]} to {counts[-1]} of each variant)" if len(counts) > 1 else ""
    steps = max(run.recipe.steps for run in runs)
    text = f"{named}; {seeds}{each}; protocol {protocols}; preset {presets}; {steps:,} steps."
    return text + (f" {unfinished} of {len(runs)} runs have not finished." if unfinished else "")


def statement(cells: Cells, summaries: Sequence[Points | Profile]) -> str:
    """The facts of a figure of curves, and what its lines, bands and summaries are."""
    several = any(len(each) > 1 for variants in cells.values() for each in variants.values())
    text = facts(cells) + " Line: mean over seeds"
    text += "; band: 95% bootstrap interval over seeds." if several else "."
    points = [summary for summary in summaries if isinstance(summary, Points)]
    text += "".join(f" {each.title}: {each.what}, of finished runs." for each in points)
    if points:
        bars = "; bars: 95% bootstrap interval over seeds" if all(each.low is not None for each in points) else ""
        text += f" Divided by the best variant's mean on the same game; thin: games, thick: their mean{bars}."
    if any(isinstance(summary, Profile) for summary in summaries):
        text += " Score distribution: share of finished runs whose normalised evaluation score exceeds the value."
    return text


def _check(cells: Cells, outs: Sequence[Path]) -> list[Run]:
    for out in outs:
        if out.suffix not in FORMATS:
            raise UserError(f"cannot write {out.name}: a figure's name must end in {', '.join(FORMATS)}")
    runs = [run for variants in cells.values() for each in variants.values() for run in each]
    if not runs:
        raise UserError("a figure needs at least one run")
    return runs


def _figure(rows: int, across: int, panel: tuple[float, float] = PANEL) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panel[0] * across + 0.3, panel[1] * rows + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, across, squeeze=False)


def _curves(panel: Any, variants: Mapping[str, Sequence[Run]], labels: Sequence[str], column: str) -> None:
    grid = step_grid([run for runs in variants.values() for run in runs], column=column)
    for label, runs in variants.items():
        draw_curve(panel, labels.index(label), runs, column, grid, width=1.5)
    finish_axes(panel, grid)


def _points(panel: Any, points: Points) -> None:
    x = list(points.positions)
    for index, (env, values) in enumerate(points.by_game.items()):
        panel.plot(
            x, values, color="#888888", linestyle=dashes(index), linewidth=0.9, marker=".", label=shown_name(env)
        )
    error = None
    if points.low is not None and points.high is not None:
        below = np.subtract(points.mean, points.low)
        above = np.subtract(points.high, points.mean)
        error = np.maximum(np.stack([below, above]), 0.0)
    joined = "-" if points.numeric else "none"  # between unordered variants there is nothing
    panel.errorbar(
        x, points.mean, yerr=error, color="#000000", ls=joined, lw=2, elinewidth=2, marker="o", markersize=5, capsize=3
    )
    if points.numeric:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_minor_locator(_nothing())
    else:
        panel.set_xlim(min(x) - 0.4, max(x) + 0.4)
    panel.set_xticks(x, points.ticks, fontsize=8 if points.numeric else 7)
    panel.set_ylim(bottom=min(0.0, *points.mean))
    if 1 < len(points.by_game) <= MOST_IN_A_ROW:
        panel.legend(fontsize=6.5, frameon=False, loc="lower left", handlelength=2.6)
    panel.set_title(points.title, fontsize=9)
    panel.set_ylabel("share of the best variant's")
    panel.set_xlabel(points.axis)


def _profile(panel: Any, profile: Profile, labels: Sequence[str]) -> None:
    for label, shares in profile.shares.items():
        index = labels.index(label)
        if label in profile.bands:
            low, high = profile.bands[label]
            panel.fill_between(profile.thresholds, low, high, color=colour(index), alpha=0.18, linewidth=0)
        panel.plot(profile.thresholds, shares, color=colour(index), linestyle=dashes(index), linewidth=1.5)
    panel.set_ylim(0, 1)
    panel.set_title("Score distribution", fontsize=9)
    panel.set_xlabel(profile.axis)
    panel.set_ylabel("share of runs above")


def _words(figure: Any, title: str, handles: Any, labels: Sequence[str], said: str, across: int) -> None:
    figure.legend(
        handles,
        labels,
        title=title,
        title_fontproperties={"weight": "bold", "size": 11},
        alignment="left",
        loc="outside upper left",
        ncols=min(len(labels), 2 * across),
        frameon=False,
        borderaxespad=0.2,
    )
    say_below(figure, said, 52 * across)


def _nothing() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
