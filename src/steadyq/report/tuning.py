"""A search for a recipe as a page: what was tried, what mattered, and the best of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from steadyq.recipe import Recipe
from steadyq.report.markup import Child, document, tag
from steadyq.run.files import replace_text

BAR = 40
"""Letters of the longest bar."""


@dataclass(frozen=True)
class Trial:
    """What was tried, and what came of it."""

    number: int
    score: float | None
    state: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Tuned:
    """Everything that the page shows."""

    recipe: Recipe
    trials: Sequence[Trial]
    seeds: int
    importances: Mapping[str, float]
    checked: Sequence[tuple[str, str]]
    """Lines about the comparison on fresh seeds: what, and its figure."""


def write_page(tuned: Tuned, out: Path) -> None:
    """Write the page, whole or not at all."""
    best = max((trial for trial in tuned.trials if trial.score is not None), key=lambda trial: trial.score or 0.0)
    ended = [trial for trial in tuned.trials if trial.score is not None]
    title = f"Tuning {tuned.recipe.preset} on {tuned.recipe.env}"
    tiles = [
        (f"{best.score:.2f}", f"best mean return, trial {best.number}, {tuned.seeds} seeds"),
        (str(len(ended)), "trials to their end"),
        (str(len(tuned.trials) - len(ended)), "cut short or failed"),
        *((figure, what) for what, figure in tuned.checked),
    ]
    parts: list[Child] = [
        tag("h1", title),
        tag("p", f"{tuned.recipe.steps:,} steps a run. The best score of a search is too good by the search itself: "
            "what counts is the comparison on seeds that it never saw.", class_="lede"),
        tag("dl", [tag("div", tag("dt", what), tag("dd", figure)) for figure, what in tiles], class_="tiles"),
        tag("section", tag("h2", "What mattered"), _bars(tuned.importances), class_="card"),
        tag("section", tag("h2", "All trials"), _table(tuned.trials), class_="card"),
        tag("section", tag("h2", "The best recipe"), tag("pre", tuned.recipe.to_toml()), class_="card"),
    ]  # fmt: skip
    style = resources.files("steadyq.report").joinpath("page.css").read_text(encoding="utf-8")
    replace_text(out, document(f"{title} · SteadyQ", tag("main", parts), {}, style=style, script=""))


def _bars(importances: Mapping[str, float]) -> Child:
    if not importances:
        return tag("p", "Too few trials came to their end to say.")
    most = max(importances.values()) or 1.0
    lines = []
    for name, share in importances.items():
        bar = "█" * round(BAR * share / most)
        lines.append(f"{name:<24} {bar:<{BAR}} {share:.0%}")
    note = "Share of the differences in rank between trials that each option alone explains, chance taken off."
    return [tag("p", note), tag("pre", "\n".join(lines))]


def _table(trials: Sequence[Trial]) -> Child:
    names = list(dict.fromkeys(name for trial in trials for name in trial.changes))
    head = tag("tr", [tag("th", word) for word in ("trial", "mean return", *names)])
    order = sorted(trials, key=lambda trial: (trial.score is None, -(trial.score or 0.0), trial.number))
    rows = []
    for trial in order:
        score = f"{trial.score:.2f}" if trial.score is not None else trial.state
        values = [trial.changes.get(name, "") for name in names]
        shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        rows.append(tag("tr", [tag("td", word) for word in (str(trial.number), score, *shown)]))
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="scroll")
