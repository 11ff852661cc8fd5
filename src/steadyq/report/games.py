"""How the evaluation games are distributed: a mean hides an agent that wins half of its games and loses the rest."""

from collections.abc import Sequence

import numpy as np

from steadyq.report.markup import Markup, tag
from steadyq.report.words import figure, shown_name
from steadyq.suite.variants import Cell, Comparison

BINS, WIDTH, HEIGHT, OVER = 20, 320, 96, 13
"""Bars of a histogram, the size of its drawing area, and the room over the bars for their counts."""


def histograms(comparison: Comparison) -> Markup | None:
    """A small histogram for every variant on every environment that was evaluated; one axis per environment."""
    drawn = []
    for env in comparison.envs:
        cells = [cell for cell in comparison.on(env) if cell.scores]
        if cells:
            marks = [cell.random for cell in cells if cell.random is not None]
            edges = bin_edges([*marks, *(score for cell in cells for score in played(cell))])
            drawn += [_one(comparison, cell, edges) for cell in cells]
    if not drawn:
        return None
    return tag(
        "section",
        tag("h2", "Evaluation games", id="games"),
        tag(
            "p",
            "How many of the evaluation games ended with which return, all seeds together. The line is their mean, the "
            "dotted one the random policy's.",
            class_="explains",
        ),
        tag("div", drawn, class_="games"),
        class_="card",
        aria_labelledby="games",
    )


def played(cell: Cell) -> list[float]:
    """The return of every evaluation game."""
    return [score for run in cell.runs if run.result for score in run.result["returns"]]


def bin_edges(scores: Sequence[float]) -> list[float]:
    """Edges of equal bins that hold all these and zero, so that bars of different pages compare."""
    low, high = min(0.0, *scores), max(0.0, *scores)
    return [float(edge) for edge in np.linspace(low, high if high > low else low + 1, BINS + 1)]


def _one(comparison: Comparison, cell: Cell, edges: list[float]) -> Markup:
    scores = played(cell)
    counts, _ = np.histogram(scores, edges)
    random = [run.result["random_return"] for run in cell.runs if run.result]
    mean = sum(scores) / len(scores)
    words = (
        f"{len(scores)} games, {len(random)} seed{'s' * (len(random) > 1)}: lowest {figure(min(scores))}, "
        f"median {figure(float(np.median(scores)))}, mean {figure(mean)}, highest {figure(max(scores))}"
    )
    below = HEIGHT + 14
    bars = [_bar(place, int(count), int(max(counts)), edges) for place, count in enumerate(counts) if count]
    drawing = tag(
        "svg",
        [bar for bar, _ in bars],
        tag("path", class_="ref", d=f"M{_at(sum(random) / len(random), edges):.1f} {OVER}V{HEIGHT}"),
        tag("path", class_="mean", d=f"M{_at(mean, edges):.1f} {OVER}V{HEIGHT}"),
        tag("path", class_="floor", d=f"M0 {HEIGHT}H{WIDTH}"),
        [count for _, count in bars],
        tag("text", figure(edges[0]), class_="label", y=below),
        tag("text", figure(edges[-1]), class_="label", x=WIDTH, y=below, text_anchor="end"),
        viewBox=f"0 -2 {WIDTH} {HEIGHT + 20}",
        role="img",
        aria_label=words,
    )
    many = len(comparison.cells) > 1
    name = f"{shown_name(cell.env)}, {comparison.labels[cell.variant]}" if many else ""
    return tag(
        "figure",
        tag("figcaption", tag("i", class_="key", data_key=cell.variant) if many else None, name),
        drawing,
        tag("p", f"{words}.", class_="explains"),
        class_=f"s{cell.variant % 7}",
        data_variant=cell.variant,
    )


def _bar(place: int, count: int, most: int, edges: list[float]) -> tuple[Markup, Markup]:
    """A bar, and how many games it stands for."""
    wide, tall = WIDTH / BINS, count * (HEIGHT - OVER) / most
    words = f"{count} from {figure(edges[place])} to {figure(edges[place + 1])}"
    top = HEIGHT - tall
    bar = tag(
        "rect",
        tag("title", words),
        class_="bar",
        x=f"{place * wide + 0.5:.1f}",
        y=f"{top:.1f}",
        width=f"{wide - 1:.1f}",
        height=f"{tall:.1f}",
    )
    middle = {"x": f"{(place + 0.5) * wide:.1f}", "y": f"{top - 3:.1f}", "text_anchor": "middle"}
    return bar, tag("text", count, class_="count", **middle)


def _at(score: float, edges: list[float]) -> float:
    return WIDTH * min(1.0, max(0.0, (score - edges[0]) / (edges[-1] - edges[0])))
