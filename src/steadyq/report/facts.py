"""The page's last section: what every run was, from its recipe to its commit, and where its raw files are."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steadyq.report.markup import Child, Markup, joined, tag
from steadyq.report.page import Page
from steadyq.report.words import figure, shown_name
from steadyq.run.progress import clock, games_said
from steadyq.suite.runs import Run
from steadyq.suite.variants import plain

RAW_FILES = ("recipe.toml", "meta.json", "metrics.jsonl", "diagnostics.jsonl", "events.jsonl", "result.json")

BREAK = tag("br")


def runs(page: Page) -> Markup:
    """What every run was: protocol, changes, hardware, versions, command, raw files, recipe."""
    own = page.comparison.runs
    return tag(
        "section",
        tag("h2", "The run" if page.single else "The runs", id="runs-title"),
        [_run(page, run, opened=len(own) == 1) for run in own],
        id="runs",
        aria_labelledby="runs-title",
    )


def _run(page: Page, run: Run, opened: bool) -> Markup:
    recipe = run.recipe
    facts: list[tuple[str, Child]] = [("environment", recipe.env)]
    if run.meta is not None:
        facts += [(name, plain(value)) for name, value in run.meta.items() if name not in ("env", "protocol")]
        if "protocol" in run.meta:
            facts.append(("protocol", joined(recipe.protocol.lines(), BREAK)))
    else:
        changes = joined((f"{name} {plain(value)}" for name, value in run.changes.items()), BREAK)
        facts += [
            ("preset", f"{recipe.preset}, scale {recipe.scale}, seed {recipe.seed}"),
            ("changed from the preset", changes or "nothing"),
            ("protocol", joined(recipe.protocol.lines(), BREAK)),
        ]
    counts = run.counts
    sizes = (("steps", "step"), ("frames", "frames"), ("updates", "updates"), ("games", "games"))
    size = ", ".join(f"{int(counts[key]):,} {name}" for name, key in sizes if counts.get(key) is not None)
    facts += [("size", size), *_evaluation(run), ("raw files", _raw_files(page, run))]
    toml = tag("pre", recipe.to_toml(), tabindex=0)
    details = None if run.meta is not None else tag("details", tag("summary", "Recipe"), toml, class_="recipe")
    label = page.comparison.labels[next(cell.variant for cell in page.comparison.cells if run in cell.runs)]
    return tag(
        "details",
        tag("summary", f"{shown_name(recipe.env)} · {label} · seed {recipe.seed}"),
        tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in facts], class_="facts"),
        details,
        class_="card run",
        open=opened,
    )


def _on_the_way(result: Mapping[str, Any]) -> list[tuple[str, Child]]:
    """The best evaluation on the way, and why the run ended early if it did."""
    found: list[tuple[str, Child]] = []
    if result.get("evaluations"):
        best = f"{figure(result['best_return'])} at step {result['best_step']:,}"
        found.append(("on the way", f"best of {result['evaluations']} evaluations: {best}"))
    if why := result.get("stopped"):
        found.append(("stopped early", str(why)))
    return found


def _evaluation(run: Run) -> list[tuple[str, Child]]:
    if run.result is None:
        return []
    result = run.result
    hardware, versions = result.get("hardware") or {}, result.get("versions") or {}
    played = sorted(result["returns"])
    facts: list[tuple[str, Child]] = [
        (
            "evaluation",
            f"mean {figure(result['mean_return'])} over {games_said(result)} (lowest {figure(played[0])}, median "
            f"{figure(float(np.median(played)))}, highest {figure(played[-1])}); random policy "
            f"{figure(result['random_return'])} over {result.get('random_episodes', 'some')}",
        ),
        *_on_the_way(result),
        ("training time", clock(run.counts.get("seconds", 0.0))),
        (
            "hardware",
            f"{hardware.get('gpu') or 'no GPU'}; {hardware.get('cpu') or 'unknown CPU'}, {hardware.get('cores')} cores",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", tag("code", result.get("commit") or "unknown")),
    ]
    return facts + ([("command", tag("code", result["command"]))] if result.get("command") else [])


def _raw_files(page: Page, run: Run) -> Child:
    if run.archive is not None:
        inside = run.path.relative_to(run.archive)
        return [tag("a", run.archive.name, href=page.link(run.archive)), f", {inside}"]
    names = [name for name in RAW_FILES if (run.path / name).is_file()]
    return joined((tag("a", name, href=page.link(run.path / name)) for name in names), " · ")
