"""How the evaluation games are distributed: a mean hides an agent that wins half of its games and loses the rest."""

from collections.abc import Sequence
from html import escape

import numpy as np

from steadyq.report.charts import figure, shown_name
from steadyq.report.curves import Cell, Comparison

BINS, WIDTH, HEIGHT = 20, 320, 96
"""Bars of a histogram, and the size of its drawing area; below it stands a line of labels."""


def histograms(comparison: Comparison) -> str:
    """A small histogram for every variant on every environment that was evaluated; one axis per environment."""
    drawn = []
    for env in comparison.envs:
        cells = [cell for cell in comparison.on(env) if cell.scores]
        if cells:
            edges = bin_edges([score for cell in cells for score in played(cell)])
            drawn += [_one(comparison, cell, edges) for cell in cells]
    if not drawn:
        return ""
    return f"""<section class="card" aria-labelledby="games">
<h2 id="games">Evaluation games</h2>
<p class="explains">How many of the evaluation games ended with which return, all seeds together. The line is their
mean, the dotted one the random policy's.</p>
<div class="games">{"".join(drawn)}</div>
</section>"""


def played(cell: Cell) -> list[float]:
    """The return of every evaluation game."""
    return [score for run in cell.runs if run.result for score in run.result["returns"]]


def bin_edges(scores: Sequence[float]) -> list[float]:
    """Edges of equal bins that hold all scores and zero, so that bars of different pages compare."""
    low, high = min(0.0, *scores), max(0.0, *scores)
    return [float(edge) for edge in np.linspace(low, high if high > low else low + 1, BINS + 1)]


def _one(comparison: Comparison, cell: Cell, edges: list[float]) -> str:
    scores = played(cell)
    counts, _ = np.histogram(scores, edges)
    tall, wide = HEIGHT / max(counts), WIDTH / BINS
    bars = "".join(
        f'<rect class="bar" x="{i * wide + 0.5:.1f}" y="{HEIGHT - count * tall:.1f}" width="{wide - 1:.1f}" '
        f'height="{count * tall:.1f}"><title>{count} from {figure(edges[i])} to {figure(edges[i + 1])}</title></rect>'
        for i, count in enumerate(counts)
        if count
    )
    mean = sum(scores) / len(scores)
    random = [run.result["random_return"] for run in cell.runs if run.result]
    words = (
        f"{len(scores)} games, {len(random)} seed{'s' * (len(random) > 1)}: lowest {figure(min(scores))}, "
        f"median {figure(float(np.median(scores)))}, mean {figure(mean)}, highest {figure(max(scores))}"
    )
    many = len(comparison.cells) > 1
    name = f"{shown_name(cell.env)}, {comparison.labels[cell.variant]}" if many else ""
    key = f'<i class="key" data-key="{cell.variant}"></i>' if many else ""
    return f"""<figure class="s{cell.variant % 7}" data-variant="{cell.variant}">
<figcaption>{key}{escape(name)}</figcaption>
<svg viewBox="0 -2 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{escape(words)}">{bars}
<path class="ref" d="M{_at(sum(random) / len(random), edges):.1f} 0V{HEIGHT}"/>
<path class="mean" d="M{_at(mean, edges):.1f} 0V{HEIGHT}"/>
<path class="floor" d="M0 {HEIGHT}H{WIDTH}"/>
<text class="label" y="{HEIGHT + 14}">{figure(edges[0])}</text>
<text class="label" x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{figure(edges[-1])}</text></svg>
<p class="explains">{escape(words)}.</p></figure>"""


def _at(score: float, edges: list[float]) -> float:
    return WIDTH * min(1.0, max(0.0, (score - edges[0]) / (edges[-1] - edges[0])))
