"""One HTML file that shows a run, or compares many: it needs no network, no server and no other file.

The page is a list of sections, each a function from `Page` to HTML; the charts are declared in charts.py and drawn
by page.js from JSON in the page. Numbers and words are in the HTML itself, so the page says what it shows without
its script, to a screen reader, and on paper.
"""

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from steadyq.errors import UserError
from steadyq.monitor.verdict import LEVELS, Finding, Thresholds, findings
from steadyq.recipe import flatten
from steadyq.report.charts import CHARTS, Chart, figure, has_data, page_data, shown_name
from steadyq.report.curves import Cell, Comparison, Run, compare, exceptions, mean_of, plain
from steadyq.report.games import histograms
from steadyq.run.files import replace_text
from steadyq.run.progress import clock, games_said
from steadyq.scores.statistics import mean_interval
from steadyq.scores.tables import Cell as TableCell
from steadyq.scores.tables import Table

VIDEO_BYTES = 6_000_000
"""A larger video is linked, not embedded."""

HEADS = ("environment", "variant", "score of each seed", "mean", "95% interval", "random", "times random", "resets")
NUMERIC = ("mean", "random", "times random", "resets")

RAW_FILES = ("recipe.toml", "meta.json", "metrics.jsonl", "diagnostics.jsonl", "events.jsonl", "result.json")


@dataclass(frozen=True)
class StudyPart:
    """What a sweep adds to the page about its runs."""

    title: str
    question: str
    state: str
    """Games, seeds, protocol, and how much has finished."""
    names: Mapping[Path, str]
    """The variant of each run."""
    tables: Sequence[Table]
    figures: Sequence[tuple[Path, str]]
    """SVG files, each with what it shows in words."""
    shaded: bool = False
    """Whether colours in the figures are values: dark mode then leaves them as they are."""


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    video: Path | None = None,
    caption: str = "",
    study: StudyPart | None = None,
) -> None:
    """Write a page about the given run folders; several are grouped into variants and compared.

    `video` is embedded with its `caption`, and so are the tables and figures of a `study`. The file is replaced whole
    or not at all.
    """
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: the report needs a file name such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"no folder {out.parent} to write {out.name} into")
    if video is not None and (not video.is_file() or video.suffix not in (".mp4", ".gif")):
        raise UserError(f"--video {video}: not an .mp4 or .gif file that is there")
    comparison = compare(runs, study.names if study else None)
    page = Page(comparison, page_data(comparison), out.parent, video, caption, study)
    replace_text(out, page.html())


@dataclass(frozen=True)
class Page:
    """What the sections are made from."""

    comparison: Comparison
    data: dict[str, Any]
    folder: Path
    video: Path | None = None
    caption: str = ""
    study: StudyPart | None = None

    @property
    def single(self) -> Run | None:
        """The run, if there is only one."""
        runs = self.comparison.runs
        return runs[0] if len(runs) == 1 and self.study is None else None

    @property
    def title(self) -> str:
        """What the page is about, in a few words."""
        if self.study:
            return self.study.title
        names = ", ".join(map(shown_name, self.comparison.envs[:3])) + (
            " and more" if len(self.comparison.envs) > 3 else ""
        )
        labels = self.comparison.labels
        return f"{labels[0]} on {names}" if len(labels) == 1 else f"{len(labels)} variants on {names}"

    def link(self, file: Path) -> str:
        """A file's address relative to the page."""
        return quote(os.path.relpath(file.resolve(), self.folder.resolve()).replace(os.sep, "/"))

    def html(self) -> str:
        """The whole page."""
        data = json.dumps(self.data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        body = "\n".join(section for build in SECTIONS if (section := build(self)))
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:; media-src data:">
<link rel="icon" href="data:,">
<title>{escape(self.title)} · SteadyQ</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#charts">Skip to the charts</a>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _header(page: Page) -> str:
    lede = _single_lede(page.single) if page.single else _many_lede(page.comparison)
    if page.study:
        lede = f"<strong>{escape(page.study.question)}</strong> {escape(page.study.state)}"
    tiles = _single_tiles(page.single) if page.single else _many_tiles(page.comparison)
    boxes = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in tiles)
    notes = "".join(f'<p class="notice" role="note">{escape(text)}</p>' for text in _notices(page.comparison))
    return f"""<header>
<div>
<p class="brand">SteadyQ <span>report</span></p>
<h1>{escape(page.title)}</h1>
<p class="lede">{lede}</p>
<dl class="tiles">{boxes}</dl>
{notes}
</div>
{_video(page)}
</header>"""


def _single_lede(run: Run) -> str:
    if run.watched:
        return f"{run.last_step:,} steps of {escape(run.recipe.preset)}, watched by the stability monitor."
    if run.result is None:
        return f"{run.last_step:,} of {run.recipe.steps:,} steps so far; the evaluation comes at the end."
    result = run.result
    text = (
        f"After {result['steps']:,} steps the agent scores <strong>{figure(result['mean_return'])}</strong> on average "
        f"over {games_said(result)}; a random policy scores {figure(result['random_return'])}."
    )
    changes = ", ".join(f"{escape(name)} {escape(plain(v))}" for name, v in run.learning_changes if name != "steps")
    return text + (f" Changed from the preset: {changes}." if changes else "")


def _many_lede(comparison: Comparison) -> str:
    shared = set.intersection(*(set(run.learning_changes) for run in comparison.runs))
    common = [change for change in comparison.runs[0].learning_changes if change in shared]
    protocols = dict.fromkeys(run.recipe.protocol.label for run in comparison.runs if not run.watched)
    text = "Lines are means over seeds, bands their 95% bootstrap interval; thin lines are single seeds."
    if protocols:
        text += f" Protocol {', '.join(map(escape, protocols))}."
    if common:
        text += " All runs share " + ", ".join(f"{escape(name)} {escape(plain(value))}" for name, value in common) + "."
    return text


def _single_tiles(run: Run) -> list[tuple[str, str]]:
    row, result = (run.rows[-1] if run.rows else {}), run.result
    tiles = []
    if result:
        ratio = times_random(result["mean_return"], result["random_return"])
        tiles += [("evaluation", figure(result["mean_return"])), ("random policy", figure(result["random_return"]))]
        tiles += [("times random", f"{ratio:.1f}\u00d7")] if ratio is not None else []
    return [
        *tiles,
        ("steps", f"{row.get('step', 0):,}"),
        ("updates", f"{row.get('updates', 0):,}"),
        *([("layer resets", f"{row['resets']:,}")] if "resets" in row else []),
        ("training time", clock(float(row.get("seconds", 0)))),
    ]


def _many_tiles(comparison: Comparison) -> list[tuple[str, str]]:
    runs = comparison.runs
    seconds = sum(float(run.rows[-1].get("seconds", 0)) for run in runs if run.rows)
    return [
        *(
            (name if count == 1 else f"{name}s", f"{count}")
            for name, count in (
                ("run", len(runs)),
                ("variant", len(comparison.labels)),
                ("environment", len(comparison.envs)),
                ("seed", len({run.seed for run in runs})),
            )
        ),
        ("steps", f"{sum(run.last_step for run in runs):,}"),
        ("training time", clock(seconds)),
    ]


def _notices(comparison: Comparison) -> list[str]:
    diverged = [(run, events[-1]) for run in comparison.runs if (events := run.of("diverged"))]
    said = [f"{run.path.name} diverged at step {event['step']:,}: {event['message']}" for run, event in diverged]
    unfinished = [run for run in comparison.runs if run.result is None and not run.watched and not run.of("diverged")]
    names = ", ".join(f"{run.path.name} ({run.last_step:,} of {run.recipe.steps:,} steps)" for run in unfinished)
    return [*said, *([f"Not finished: {names}."] if names else [])]


def times_random(score: float, baseline: float) -> float | None:
    """How many times the random policy's score, where that means something."""
    return score / baseline if baseline > 0 and score >= 0 else None


def _video(page: Page) -> str:
    if page.video is None:
        return ""
    caption = escape(page.caption or "One full game of the trained agent.")
    link = f'<a href="{page.link(page.video)}">{escape(page.video.name)}</a>'
    if page.video.stat().st_size > VIDEO_BYTES:
        return f'<p class="explains">{caption} {link}</p>'
    content = base64.b64encode(page.video.read_bytes()).decode()
    if page.video.suffix == ".gif":
        shown = f'<img alt="{caption}" src="data:image/gif;base64,{content}">'
    else:
        shown = f'<video controls muted loop playsinline aria-label="{caption}" src="data:video/mp4;base64,{content}">'
        shown += "</video>"
    return f'<figure class="video">{shown}<figcaption class="explains">{caption} {link}</figcaption></figure>'


def _study(page: Page) -> str:
    """A sweep's figures and tables: the same as in its files."""
    if page.study is None:
        return ""
    figures = "".join(_drawing(file, words, page.study.shaded) for file, words in page.study.figures)
    prefix = f"{page.study.title}: "  # in the files each table stands alone; here the page says it
    titles = [table.title.removeprefix(prefix) for table in page.study.tables]
    tables = (
        _table(table, title[:1].upper() + title[1:], number)
        for number, (table, title) in enumerate(zip(page.study.tables, titles, strict=True))
    )
    return figures + "".join(tables)


def _drawing(file: Path, words: str, shaded: bool) -> str:
    content = base64.b64encode(file.read_bytes()).decode()
    return f"""<figure class="card drawing{" shaded" * shaded}" id="drawing-{escape(file.stem)}">
<div class="scroll" tabindex="0" role="region" aria-label="Figure, scrolls sideways">
<img alt="{escape(words)}" src="data:image/svg+xml;base64,{content}"></div>
</figure>"""


def _table(table: Table, title: str, number: int) -> str:
    numeric = [any(isinstance(row[c].value, int | float) for row in table.rows) for c in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{" class=number" * right}>{escape(name.strip())}</th>'
        for name, right in zip(table.columns, numeric, strict=True)
    )
    rows = ""
    for first, *others in table.rows:
        cells = "".join(_cell(cell, right) for cell, right in zip(others, numeric[1:], strict=True))
        rows += f'<tr><th scope="row">{escape(str(first.value))}</th>{cells}</tr>'
    notes = "".join(f'<p class="explains">{_note(note)}</p>' for note in table.notes)
    return f"""<section class="card" aria-labelledby="table-{number}">
<h2 id="table-{number}">{escape(title)}</h2>
<div class="scroll" tabindex="0" role="region" aria-labelledby="table-{number}"><table class="results">
<thead><tr>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
{notes}
</section>"""


def _cell(cell: TableCell, right: bool) -> str:
    text = escape(cell.text.removeprefix("*")) if cell.value not in (None, "") else "\u2013"
    return f"<td{' class=number' * right}>{f'<strong>{text}</strong>' if cell.best else text}</td>"


def _note(note: str) -> str:
    return f"<strong>Bold</strong>: {escape(note[2:])}" if note.startswith("* ") else escape(note)


def _scores(page: Page) -> str:
    comparison = page.comparison
    if page.single or not any(cell.scores for cell in comparison.cells):
        return ""
    rows = []
    for env in comparison.envs:
        rows += [_score_row(comparison, cell) for cell in comparison.on(env)]
    cells = "".join(f'<th scope="col"{" class=number" * (head in NUMERIC)}>{head}</th>' for head in HEADS)
    return f"""<section class="card" aria-labelledby="scores">
<h2 id="scores">{"Scores of every seed" if page.study else "Final scores"}</h2>
<p class="explains">Mean raw return of full games with the final weights. The interval is a
percentile bootstrap over seeds.{escape(exceptions(comparison.runs))}</p>
<div class="scroll" tabindex="0" role="region" aria-labelledby="scores"><table class="scores">
<thead><tr>{cells}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>
</section>"""


def _score_row(comparison: Comparison, cell: Cell) -> str:
    seeds = " ".join(
        f'<span class="seed"><small>seed {run.seed}</small> '
        f"{figure(run.result['mean_return']) if run.result else 'unfinished'}</span>"
        for run in cell.runs
    )
    scores = cell.scores
    mean = sum(scores) / len(scores) if scores else None
    interval = "one seed" if len(cell.runs) == 1 else ""
    if len(scores) > 1:
        low, high = mean_interval(scores)
        interval = f"{figure(float(low))} to {figure(float(high))}, n = {len(scores)}"
    baseline = mean_of(cell, lambda result: result["random_return"])
    ratio = times_random(mean, baseline) if mean is not None and baseline is not None else None
    resets = [run.rows[-1]["resets"] for run in cell.runs if run.rows and "resets" in run.rows[-1]]
    columns = (
        seeds,
        f"<strong>{figure(mean)}</strong>" if mean is not None else "",
        interval,
        figure(baseline) if baseline is not None else "",
        f"{ratio:.1f}" if ratio is not None else "",
        f"{sum(resets):,}" if resets else "",
    )
    values = "".join(
        f'<td data-label="{head}"{" class=number" * (head in NUMERIC)}>{value}</td>'
        for head, value in zip(HEADS[2:], columns, strict=True)
    )
    key = f'<i class="key" data-key="{cell.variant}"></i>'
    return (
        f'<tr data-variant="{cell.variant}"><td>{escape(shown_name(cell.env))}</td>'
        f'<th scope="row">{key}{escape(comparison.labels[cell.variant])}</th>{values}</tr>'
    )


def verdict(run: Run, thresholds: Thresholds | None = None) -> list[Finding]:
    """What is unstable in a run."""
    settings = flatten(run.recipe.to_dict()) if run.meta is None else None
    found = findings(run.diagnostics, run.events, thresholds=thresholds, settings=settings)
    return found if run.meta is None else [finding.in_words() for finding in found]


def judgeable(run: Run, thresholds: Thresholds | None = None) -> bool:
    """Whether there are as many measurements as rules need in a row."""
    return len(run.diagnostics) >= (thresholds or Thresholds()).rows


def _verdict(page: Page) -> str:
    """The findings of every run in words, those with findings first."""
    watched = [
        (cell, run) for cell in page.comparison.cells for run in cell.runs if run.diagnostics or run.of("diverged")
    ]
    if not watched:
        return ""
    judged = sorted(((cell, run, verdict(run)) for cell, run in watched), key=lambda entry: not entry[2])
    blocks = ""
    for cell, run, found in judged:
        if found:
            key = f'<i class="key" data-key="{cell.variant}"></i>'
            name = "" if page.single else f"<h3>{key}{escape(run.path.name)}</h3>"
            listed = "".join(_finding(finding, opened=page.single is not None) for finding in found)
            blocks += f'{name}<ul class="findings">{listed}</ul>'
    for words, runs in (
        ("Nothing unstable was found", [run for _, run, found in judged if not found and judgeable(run)]),
        ("Too few measurements to judge", [run for _, run, found in judged if not found and not judgeable(run)]),
        ("Not measured", [run for run in page.comparison.runs if run not in [run for _, run in watched]]),
    ):
        if runs:
            names = "" if page.single else f": {', '.join(run.path.name for run in runs)}"
            blocks += f"<p>{words}{escape(names)}.</p>"
    return f"""<section class="card verdict" aria-labelledby="verdict">
<h2 id="verdict">Verdict</h2>
<p class="explains">What the measurements say about stability: since which step, how strongly (the figure against its
threshold), by which of the three mechanisms, and which switch to try.</p>
{blocks}
</section>"""


def _finding(finding: Finding, opened: bool) -> str:
    switches = "".join(f"<li><code>{escape(option)}</code> {escape(why)}</li>" for option, why in finding.switches)
    tries = f"<ul>{switches}</ul>" if switches else f"<p>{escape(finding.advice())}</p>"
    return f"""<li class="{finding.mechanism}">
<p class="name"><strong>{escape(finding.name)}</strong> <span class="level">{LEVELS[finding.mechanism]}</span></p>
<p>{escape(finding.what)} {escape(finding.when())}{escape(finding.against())}</p>
<details class="try"{" open" * opened}><summary>What to try</summary>{tries}</details></li>"""


def _charts(page: Page) -> str:
    envs = page.data["envs"]
    shown = [chart for chart in CHARTS if any(has_data(chart, entry) for entry in envs)]
    empty = [chart for chart in CHARTS if chart not in shown]
    if not shown:
        return '<section class="card" id="charts"><h2>Charts</h2><p>No measurements yet.</p></section>'
    overview = ""
    if len(envs) > 1:
        small = "".join(_figure(CHARTS[0], entry, env=number) for number, entry in enumerate(envs))
        overview = f'<h3 class="group">Return on every environment</h3><div class="grid small">{small}</div>'
        overview += '<h3 class="group">All measures, one environment at a time</h3>'
    figures = "".join(_figure(chart, envs[0]) for chart in shown)
    nothing = "".join(
        f'<p class="explains apart"><strong>{escape(chart.title)}:</strong> {escape(said)}</p>'
        for chart in empty
        if (said := _everywhere(chart, envs))
    )
    return f"""<section id="charts" aria-labelledby="charts-title">
<h2 id="charts-title">What happened while it learned</h2>
<p class="explains">Drag across a chart to zoom all of them to those steps; double-click to see everything again. With
the keyboard: arrow keys move the cursor, + and - zoom, 0 resets. Click a legend entry to hide its line.</p>
<div class="toolbar" role="group" aria-label="What the charts show"></div>
{overview}
<div class="grid">{figures}</div>
{nothing}
<noscript><p class="notice">The charts need JavaScript; their numbers are in words under each title.</p></noscript>
</section>"""


def _everywhere(chart: Chart, envs: list[dict[str, Any]]) -> str:
    said: dict[str, str] = {entry["name"]: words for entry in envs if (words := entry["words"][chart.id])}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return " ".join(f"{name}: {words}" for name, words in said.items())


def _figure(chart: Chart, entry: dict[str, Any], env: int | None = None) -> str:
    name = chart.id if env is None else f"{chart.id}-{env}"
    title = chart.title if env is None else entry["name"]
    fixed = "" if env is None else f' data-env="{env}"'
    explains = f'<p class="explains">{escape(chart.explains)}</p>' if env is None else ""
    return f"""<figure class="card chart{" wide" * (chart.wide and env is None)}" id="chart-{name}" \
data-chart="{chart.id}"{fixed}>
<figcaption><h3>{escape(title)}</h3>{explains}</figcaption>
<div class="legend"></div>
<div class="plot" tabindex="0" role="group" aria-roledescription="chart" aria-label="{escape(title)}"></div>
<details class="words"><summary>In words</summary><p>{escape(entry["words"][chart.id])}</p></details>
</figure>"""


def _runs(page: Page) -> str:
    runs = page.comparison.runs
    title = "The run" if page.single else "The runs"
    blocks = "".join(_run(page, run, opened=len(runs) == 1) for run in runs)
    return f'<section id="runs" aria-labelledby="runs-title"><h2 id="runs-title">{title}</h2>{blocks}</section>'


def _run(page: Page, run: Run, opened: bool) -> str:
    recipe, result = run.recipe, run.result or {}
    row: dict[str, Any] = run.rows[-1] if run.rows else {}
    facts: list[tuple[str, str]] = [("environment", escape(recipe.env))]
    if run.meta is not None:
        said = {name: value for name, value in run.meta.items() if name not in ("env", "protocol")}
        facts += [(escape(name), escape(plain(value))) for name, value in said.items()]
        if "protocol" in run.meta:
            facts.append(("protocol", "<br>".join(map(escape, recipe.protocol.lines()))))
    else:
        changes = "<br>".join(f"{escape(name)} {escape(plain(value))}" for name, value in run.changes.items())
        facts += [
            ("preset", f"{escape(recipe.preset)}, scale {escape(recipe.scale)}, seed {recipe.seed}"),
            ("changed from the preset", changes or "nothing"),
            ("protocol", "<br>".join(map(escape, recipe.protocol.lines()))),
        ]
    sizes = (("steps", "step"), ("frames", "frames"), ("updates", "updates"), ("games", "games"))
    facts.append(
        ("size", ", ".join(f"{row[column]:,} {name}" for name, column in sizes if column in row) or "nothing yet")
    )
    if result:
        hardware, versions = result.get("hardware", {}), result.get("versions", {})
        scores = sorted(result["returns"])
        facts += [
            (
                "evaluation",
                f"mean {figure(result['mean_return'])} over {games_said(result)} (lowest "
                f"{figure(scores[0])}, median {figure(float(np.median(scores)))}, highest {figure(scores[-1])}); "
                f"random policy {figure(result['random_return'])} over {result['random_episodes']}",
            ),
            ("training time", clock(float(result["wall_seconds"]))),
            (
                "hardware",
                escape(
                    f"{hardware.get('gpu') or 'no GPU'}; {hardware.get('cpu') or 'unknown CPU'}, "
                    f"{hardware.get('cores')} cores"
                ),
            ),
            ("versions", escape(", ".join(f"{name} {version}" for name, version in versions.items()))),
            ("commit", f"<code>{escape(str(result.get('commit') or 'unknown'))}</code>"),
        ]
        if result.get("command"):
            facts.append(("command", f"<code>{escape(result['command'])}</code>"))
    files = [f'<a href="{page.link(run.path / name)}">{name}</a>' for name in RAW_FILES if (run.path / name).is_file()]
    facts.append(("raw files", " · ".join(files)))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    toml = f'<pre tabindex="0">{escape(recipe.to_toml())}</pre>'
    details = "" if run.meta is not None else f'<details class="recipe"><summary>Recipe</summary>{toml}</details>'
    label = page.comparison.labels[next(c.variant for c in page.comparison.cells if run in c.runs)]
    return f"""<details class="card run"{" open" * opened}>
<summary>{escape(shown_name(recipe.env))} · {escape(label)} · seed {recipe.seed}</summary>
<dl class="facts">{listed}</dl>
{details}
</details>"""


def _footer(page: Page) -> str:
    from steadyq import __version__

    return f"<footer><p>Written by SteadyQ {__version__}. The file is complete: it loads nothing else.</p></footer>"


def _games(page: Page) -> str:
    return histograms(page.comparison)


SECTIONS: tuple[Callable[[Page], str], ...] = (_header, _study, _scores, _verdict, _charts, _games, _runs, _footer)


def _asset(name: str) -> str:
    return resources.files("steadyq.report").joinpath(name).read_text(encoding="utf-8")
