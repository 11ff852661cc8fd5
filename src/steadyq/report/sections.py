"""The page's sections, top to bottom, each a function from `Page` to HTML; a section without content is nothing."""

import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from steadyq.monitor.verdict import LEVELS, SAID, Finding
from steadyq.report.charts import CHARTS, Chart
from steadyq.report.facts import runs
from steadyq.report.games import histograms
from steadyq.report.markup import Child, Markup, joined, tag
from steadyq.report.page import Page
from steadyq.report.page_data import has_data
from steadyq.report.words import figure, planned_words, shown_name
from steadyq.run.progress import clock, games_said, plural
from steadyq.scores.tables import Cell as TableCell
from steadyq.scores.tables import Table
from steadyq.suite.runs import Run
from steadyq.suite.tables import ScoreRow, score_rows, times_random
from steadyq.suite.variants import Comparison, exceptions, plain

VIDEO_BYTES = 6_000_000
"""A larger video is linked, not embedded."""

FEW_NAMES = 3
"""More names of runs than these are shown on request."""

STACKED = 12
"""A table with more columns scrolls sideways on a phone; others become lists there."""

HEADS = ("environment", "variant", "score of each seed", "mean", "95% interval", "random", "times random", "resets")
NUMERIC = ("mean", "random", "times random", "resets")


def header(page: Page) -> Markup:
    """Title, what the page is about, the numbers that matter, what is missing, the video."""
    lede: Child = _single_lede(page.single) if page.single else _many_lede(page.comparison)
    if page.study:
        lede = [tag("strong", page.study.question), " ", page.study.state]
    tiles = _single_tiles(page.single) if page.single else _many_tiles(page.comparison)
    return tag(
        "header",
        tag(
            "div",
            tag("p", "SteadyQ ", tag("span", "report"), class_="brand"),
            tag("h1", page.title),
            tag("p", lede, class_="lede"),
            tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in tiles], class_="tiles"),
            [tag("p", said, class_="notice", role="note") for said in _notices(page.comparison)],
        ),
        _video(page),
    )


def _single_lede(run: Run) -> Child:
    if run.watched and run.result is None:
        return f"{run.last_step:,} steps of {run.recipe.preset}, watched by the stability monitor."
    result = run.result
    if result is None:
        return f"{run.last_step:,} of {run.recipe.steps:,} steps so far; the evaluation comes at the end."
    changes = ", ".join(f"{name} {plain(value)}" for name, value in run.learning_changes if name != "steps")
    return [
        f"After {run.last_step:,} steps the agent scores ",
        tag("strong", figure(result["mean_return"])),
        f" on average over {games_said(result)}; a random policy scores {figure(result['random_return'])}.",
        f" Changed from the preset: {changes}." if changes else "",
    ]


def _many_lede(comparison: Comparison) -> str:
    shared = set.intersection(*(set(run.learning_changes) for run in comparison.runs))
    common = [change for change in comparison.runs[0].learning_changes if change in shared]
    protocols = dict.fromkeys(run.recipe.protocol.label for run in comparison.runs if not run.watched)
    text = "Lines are means over seeds, bands their 95% bootstrap interval; thin lines are single seeds."
    if protocols:
        text += f" Protocol {', '.join(protocols)}."
    if common:
        text += " All runs share " + ", ".join(f"{name} {plain(value)}" for name, value in common) + "."
    return text


def _single_tiles(run: Run) -> list[tuple[str, str]]:
    counts, result = run.counts, run.result
    tiles = []
    if result:
        ratio = times_random(result["mean_return"], result["random_return"])
        tiles += [("evaluation", figure(result["mean_return"])), ("random policy", figure(result["random_return"]))]
        tiles += [("times random", f"{ratio:.1f}\u00d7")] if ratio is not None else []
    counted = (("steps", "step"), ("updates", "updates"), ("layer resets", "resets"))
    tiles += [(name, f"{int(counts[key]):,}") for name, key in counted if key in counts]
    return [*tiles, *([("training time", clock(counts["seconds"]))] if "seconds" in counts else [])]


def _many_tiles(comparison: Comparison) -> list[tuple[str, str]]:
    runs = comparison.runs
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
        ("training time", clock(sum(run.counts.get("seconds", 0.0) for run in runs))),
    ]


def _notices(comparison: Comparison) -> list[str]:
    said = [
        f"{run.path.name} diverged at step {run.events.diverged[-1]['step']:,}: {run.events.diverged[-1]['message']}"
        for run in comparison.runs
        if run.events.diverged
    ]
    unfinished = [
        f"{run.path.name} ({run.last_step:,} of {run.recipe.steps:,} steps)"
        for run in comparison.runs
        if run.result is None and not run.watched and not run.events.diverged
    ]
    lost = [
        f"{run.path.name} (its last row is of step {int(run.metrics.steps[-1]) if len(run.metrics) else 0:,})"
        for run in comparison.runs
        if run.lost_rows
    ]
    return [
        *said,
        *([f"Not finished: {', '.join(unfinished)}."] if unfinished else []),
        *([f"Rows of metrics.jsonl are missing: {', '.join(lost)}."] if lost else []),
    ]


def _video(page: Page) -> Child:
    if page.video is None:
        return None
    caption = page.caption or "One full game of the trained agent."
    below = [caption, " ", tag("a", page.video.name, href=page.link(page.video))]
    if page.video.stat().st_size > VIDEO_BYTES:
        return tag("p", below, class_="explains")
    content = base64.b64encode(page.video.read_bytes()).decode()
    if page.video.suffix == ".gif":
        shown = tag("img", alt=caption, src=f"data:image/gif;base64,{content}")
    else:
        source = f"data:video/mp4;base64,{content}"
        shown = tag("video", controls=True, muted=True, loop=True, playsinline=True, aria_label=caption, src=source)
    return tag("figure", shown, tag("figcaption", below, class_="explains"), class_="video")


def study(page: Page) -> Child:
    """A sweep's figures and tables: the same as in its files."""
    if page.study is None:
        return None
    prefix = f"{page.study.title}: "  # in the files each table stands alone; here the page says it
    titles = [table.title.removeprefix(prefix) for table in page.study.tables]
    return [
        [_drawing(file, words, page.study.shaded) for file, words in page.study.figures],
        [
            _table(table, title[:1].upper() + title[1:], number)
            for number, (table, title) in enumerate(zip(page.study.tables, titles, strict=True))
        ],
    ]


def _drawing(file: Path, words: str, shaded: bool) -> Markup:
    content = base64.b64encode(file.read_bytes()).decode()
    return tag(
        "figure",
        _scroll(tag("img", alt=words, src=f"data:image/svg+xml;base64,{content}"), label="Figure, scrolls sideways"),
        tag("p", "The figure scrolls sideways; the charts below fit the screen.", class_="explains narrow"),
        class_="card drawing" + " shaded" * shaded,
        id=f"drawing-{file.stem}",
    )


def _scroll(*content: Child, label: str = "", by: str = "") -> Markup:
    """What may be wider than the screen: it scrolls by itself, also with the keyboard."""
    names = {"aria_label": label} if label else {"aria_labelledby": by}
    return tag("div", *content, class_="scroll", tabindex=0, role="region", **names)


def _heads(names: Iterable[str], right: Iterable[bool]) -> Markup:
    cells = [
        tag("th", name, scope="col", class_="number" if numeric else None)
        for name, numeric in zip(names, right, strict=True)
    ]
    return tag("thead", tag("tr", cells))


def _table(table: Table, title: str, number: int) -> Markup:
    numeric = [any(isinstance(row[c].value, int | float) for row in table.rows) for c in range(len(table.columns))]
    rows = [
        tag(
            "tr",
            tag("th", str(first.value), scope="row"),
            [_cell(*each) for each in zip(others, table.columns[1:], numeric[1:], strict=True)],
            class_="ours" if place in table.ours else None,
        )
        for place, (first, *others) in enumerate(table.rows)
    ]
    name = f"table-{number}"
    heads = _heads((column.strip() for column in table.columns), numeric)
    stacked = len(table.columns) <= STACKED
    return tag(
        "section",
        tag("h2", title, id=name),
        _scroll(tag("table", heads, tag("tbody", rows), class_=f"results{' stacked' * stacked}"), by=name),
        [tag("p", _note(note), class_="explains") for note in table.notes],
        class_="card",
        aria_labelledby=name,
    )


def _cell(cell: TableCell, head: str, right: bool) -> Markup:
    shown = cell.text.removeprefix("*") if cell.value not in (None, "") else "\u2013"
    number = "number" if right else None
    return tag("td", tag("strong", shown) if cell.best else shown, class_=number, data_label=head.strip())


def _note(note: str) -> Child:
    if note.startswith("> "):
        return [tag("span", "Shaded", class_="ours"), ": ", note[2:]]
    return [tag("strong", "Bold"), ": ", note[2:]] if note.startswith("* ") else note


def scores(page: Page) -> Child:
    """What every seed scored at the end."""
    comparison = page.comparison
    if page.single or not any(cell.scores for cell in comparison.cells):
        return None
    heads = _heads(HEADS, (head in NUMERIC for head in HEADS))
    rows = tag("tbody", [_score_row(row) for row in score_rows(comparison)])
    return tag(
        "section",
        tag("h2", "Scores of every seed" if page.study else "Final scores", id="scores"),
        tag(
            "p",
            "Mean raw return of full games with the final weights and no exploration. The interval is a percentile "
            "bootstrap over seeds." + exceptions(comparison.runs),
            class_="explains",
        ),
        _scroll(tag("table", heads, rows, class_="scores"), by="scores"),
        class_="card",
        aria_labelledby="scores",
    )


def _score_row(row: ScoreRow) -> Markup:
    seeds = joined(
        (
            tag(
                "span",
                tag("small", f"seed {run.seed}"),
                f" {figure(run.result['mean_return']) if run.result else 'unfinished'}",
                class_="seed",
            )
            for run in row.cell.runs
        ),
        " ",
    )
    interval = "one seed" if len(row.cell.runs) == 1 else ""
    if row.interval:
        interval = f"{figure(row.interval[0])} to {figure(row.interval[1])}, n = {len(row.scores)}"
    columns: tuple[Child, ...] = (
        seeds,
        None if row.mean is None else tag("strong", figure(row.mean)),
        interval,
        None if row.random is None else figure(row.random),
        None if row.times_random is None else f"{row.times_random:.1f}",
        None if row.resets is None else f"{row.resets:,}",
    )
    values = [
        tag("td", value, data_label=head, class_="number" if head in NUMERIC else None)
        for head, value in zip(HEADS[2:], columns, strict=True)
    ]
    env = tag("td", shown_name(row.cell.env))
    return tag(
        "tr", env, tag("th", _key(row.cell.variant), row.label, scope="row"), values, data_variant=row.cell.variant
    )


def _key(variant: int) -> Markup:
    """Where the script puts the variant's colour and marker."""
    return tag("i", class_="key", data_key=variant)


def verdict(page: Page) -> Child:
    """The findings of every run in words, those with findings first."""
    judged = [(cell, run, run.verdict()) for cell in page.comparison.cells for run in cell.runs]
    if all(found.state == "not measured" for _, _, found in judged):
        return None
    blocks: list[Child] = [
        [
            None if page.single else tag("h3", _key(cell.variant), run.path.name),
            tag("ul", [_finding(each, opened=page.single is not None) for each in found.findings], class_="findings"),
        ]
        for cell, run, found in judged
        if found.findings
    ]
    for state, words in SAID.items():
        runs = [run for _, run, found in judged if found.state == state]
        if runs and state != "unstable":
            blocks.append(_said(f"{words[:1].upper()}{words[1:]}", [run.path.name for run in runs], page.single))
    blocks.append(_planned(page))
    return tag(
        "section",
        tag("h2", "Verdict", id="verdict"),
        tag(
            "p",
            "What the measurements say about stability: since which step, how strongly (the figure against its "
            "threshold), by which of the three mechanisms, and which switch to try.",
            class_="explains",
        ),
        blocks,
        class_="card verdict",
        aria_labelledby="verdict",
    )


def _said(words: str, names: list[str], single: Run | None) -> Markup:
    """What is said of some runs at once; many names are folded away."""
    if single or len(names) <= FEW_NAMES:
        return tag("p", words, f": {', '.join(names)}" if not single else "", ".")
    return tag("details", tag("summary", f"{words} in {len(names)} runs"), tag("p", f"{', '.join(names)}."))


def _planned(page: Page) -> Child:
    """The planned resets of every run, and how long each took to regain its score."""
    said = [(run, text) for cell in page.comparison.cells for run in cell.runs if (text := planned_words(run))]
    if not said:
        return None
    heading = "Planned resets are no alarm; what each cost, in steps until ten games scored as the ten before"
    if page.single:
        return tag("p", f"{heading}: {said[0][1]}", class_="explains")
    lines = [tag("li", tag("strong", run.path.name), f": {text}") for run, text in said]
    return tag("details", tag("summary", f"{heading}: {plural(len(said), 'run')}"), tag("ul", lines))


def _finding(finding: Finding, opened: bool) -> Markup:
    switches = [tag("li", tag("code", option), " ", why) for option, why in finding.switches]
    tries = tag("ul", switches) if switches else tag("p", finding.advice())
    level = tag("span", LEVELS[finding.mechanism], class_="level")
    return tag(
        "li",
        tag("p", tag("strong", finding.name), " ", level, class_="name"),
        tag("p", f"{finding.what} {finding.when()}{finding.against()}"),
        tag("details", tag("summary", "What to try"), tries, class_="try", open=opened),
        class_=finding.mechanism,
    )


def charts(page: Page) -> Markup:
    """Where the script draws, with what each chart shows in words."""
    envs = page.data["envs"]
    shown = [chart for chart in CHARTS if any(has_data(chart, entry) for entry in envs)]
    if not shown:
        return tag("section", tag("h2", "Charts"), tag("p", "No measurements yet."), class_="card", id="charts")
    overview = [
        tag("h3", "Return on every environment", class_="group"),
        tag("div", [_figure(CHARTS[0], entry, env=number) for number, entry in enumerate(envs)], class_="grid small"),
        tag("h3", "All measures, one environment at a time", class_="group"),
    ]
    nothing = [
        tag("p", tag("strong", f"{chart.title}:"), f" {said}", class_="explains apart")
        for chart in CHARTS
        if chart not in shown and (said := _everywhere(chart, envs))
    ]
    return tag(
        "section",
        tag("h2", "What happened while it learned", id="charts-title"),
        tag(
            "p",
            "Drag across a chart to zoom all of them to those steps; double-click to see everything again. With the "
            "keyboard: arrow keys move the cursor, + and - zoom, 0 resets. Click a legend entry to hide its line.",
            class_="explains",
        ),
        tag("div", class_="toolbar", role="group", aria_label="What the charts show"),
        overview if len(envs) > 1 else None,
        tag("div", [_figure(chart, envs[0]) for chart in shown], class_="grid"),
        nothing,
        tag(
            "noscript",
            tag("p", "The charts need JavaScript; their numbers are in words under each title.", class_="notice"),
        ),
        id="charts",
        aria_labelledby="charts-title",
    )


def _everywhere(chart: Chart, envs: list[dict[str, Any]]) -> str:
    said: dict[str, str] = {entry["name"]: words for entry in envs if (words := entry["words"][chart.id])}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return " ".join(f"{name}: {words}" for name, words in said.items())


def _figure(chart: Chart, entry: dict[str, Any], env: int | None = None) -> Markup:
    title = chart.title if env is None else entry["name"]
    explains = tag("p", chart.explains, class_="explains") if env is None else None
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), explains),
        tag("div", class_="legend"),
        tag("div", class_="plot", tabindex=0, role="group", aria_roledescription="chart", aria_label=title),
        tag("details", tag("summary", "In words"), tag("p", entry["words"][chart.id]), class_="words"),
        class_="card chart" + " wide" * (chart.wide and env is None),
        id=f"chart-{chart.id}" if env is None else f"chart-{chart.id}-{env}",
        data_chart=chart.id,
        data_env=env,
    )


def games(page: Page) -> Child:
    """How the evaluation games are distributed."""
    return histograms(page.comparison)


def footer(page: Page) -> Markup:
    """Who wrote it."""
    from steadyq import __version__

    return tag("footer", tag("p", f"Written by SteadyQ {__version__}. The file is complete: it loads nothing else."))


SECTIONS: tuple[Callable[[Page], Child], ...] = (header, study, scores, verdict, charts, games, runs, footer)


def body(page: Page) -> list[Child]:
    """All of the page that is seen."""
    skip = tag("a", "Skip to the charts", class_="skip", href="#charts")
    return [skip, tag("main", [section(page) for section in SECTIONS])]
