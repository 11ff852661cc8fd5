"""Commands that read what runs have written."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from steadyq.cli.options import parse
from steadyq.cli.terminal import OUT, check_file
from steadyq.errors import UserError, printable
from steadyq.fields import within
from steadyq.monitor.verdict import LEVELS, SAID, Thresholds
from steadyq.schedule import Schedule

if TYPE_CHECKING:
    from steadyq.suite.runs import Run


@dataclass(frozen=True)
class ReportOptions:
    """Write one page about one or more runs: curves, diagnostics, scores; opens offline in any browser."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders or archives of them (.tar.xz); runs that differ only in their seed are drawn together. Or a sweep."""
    out: Path | None = None
    """The page, by default report.html; for a sweep the folder of its report, by default SWEEP/report."""
    video: Path | None = None
    """An .mp4 to show in it, as `steadyq play` writes."""


def report(words: list[str]) -> int:
    """Write one page about one or more runs: `steadyq report RUN... --out report.html`."""
    options = parse(ReportOptions, words)

    from steadyq.report.html import write_report
    from steadyq.suite.sweep import is_sweep

    if len(options.runs) == 1 and is_sweep(options.runs[0]):
        if options.video:
            raise UserError(f"--video: the report of a sweep shows none; name one of the runs in {options.runs[0]}")
        return _report_sweep(options.runs[0], options.out)
    out = options.out or Path("report.html")
    check_file("--out", out)
    write_report(options.runs, out, video=options.video)
    OUT.print(f"report: {out}")
    return 0


def _report_sweep(path: Path, out: Path | None) -> int:
    """Print a sweep's tables and write them with its figures and its page."""
    from steadyq.report.sweep import write_sweep_report
    from steadyq.scores.tables import render

    tables, files = write_sweep_report(path, out)
    for table in tables:
        render(table, OUT)
    for file in files:
        OUT.print(f"wrote {file}", soft_wrap=True)
    return 0


@dataclass(frozen=True)
class DiagnoseOptions:
    """Say what is unstable in a run, since which step, how strongly, by which mechanism, and what to try."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder, ours or one that the stability monitor wrote for other code; or one in an archive, A.tar.xz/NAME."""
    json: bool = False
    """Print the findings as JSON."""
    probe: bool = False
    """Also measure plasticity: how well the newest weights still fit random targets, beside fresh ones."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """Where a figure becomes a finding."""


def diagnose(words: list[str]) -> int:
    """Say what is unstable in a run, and what to try: `steadyq diagnose RUN`."""
    options = parse(DiagnoseOptions, words)

    from steadyq.report.words import planned_words
    from steadyq.run.progress import plural
    from steadyq.suite.runs import read_runs

    for name, value in dataclasses.asdict(options.thresholds).items():
        within(f"--thresholds.{name}".replace("_", "-"), value, 1 if name == "rows" else 0)
    run, *others = read_runs([options.run])
    if others:
        raise UserError(f"{options.run} holds {1 + len(others)} runs: name one, as in {run.path}")
    verdict = run.verdict(options.thresholds)
    if verdict.state == "not measured":
        raise UserError(f"{options.run} has no diagnostics: {_why_none(run)}")
    last = run.diagnostics[-1]["step"] if verdict.measurements else 0
    probe = _probe(options.run) if options.probe else None
    if options.json:
        record = {
            "run": str(options.run),
            "measurements": verdict.measurements,
            "last_step": last,
            "enough": verdict.enough,
            "findings": [finding.to_dict() for finding in verdict.findings],
            "planned_resets": run.events.planned,
            "thresholds": dataclasses.asdict(options.thresholds),
        }
        print(json.dumps(record | ({"probe": probe} if probe else {}), indent=2))
        return 0
    measured = f"{plural(verdict.measurements, 'measurement')} to step {last:,}"
    OUT.print(Text.assemble((run.recipe.env, "bold"), f"  {run.recipe.preset}, {measured}"))
    if not verdict.enough:
        away = " that do not follow a planned reset soon" if run.events.planned else ""
        OUT.print(f"{SAID['too few']}: it takes {options.thresholds.rows + 1}{away}", style="yellow")
    elif verdict.state == "stable":
        OUT.print(f"{SAID['stable']} in {verdict.measurements} measurements", style="green")
    for finding in verdict.findings:
        OUT.print(Text.assemble((finding.name, "red"), f"  {LEVELS[finding.mechanism]}"), soft_wrap=True)
        OUT.print(f"  {finding.what} {finding.when()}{finding.against()}", soft_wrap=True)
        OUT.print(f"  {finding.advice()}", soft_wrap=True)
    if planned := planned_words(run):
        OUT.print(f"planned resets, no alarm in themselves: {planned}", soft_wrap=True)
    if probe:
        OUT.print(
            f"plasticity probe: {probe['trained']:.0%} of the error to random targets is left after {probe['steps']} "
            f"updates, {probe['fresh']:.0%} from fresh weights"
        )
    return 0


def _why_none(run: "Run") -> str:
    """What keeps a run without diagnostics."""
    if run.meta is not None:
        return "the monitor has seen no update"
    if run.recipe.monitor.every == 0:
        return "train it with monitor.every above 0"
    if run.counts.get("updates"):
        return "it learned, but has no diagnostics.jsonl, or an empty one"
    return f"it has made no update so far (replay.warmup {run.recipe.replay.warmup:,})"


def _probe(path: Path) -> dict[str, Any]:
    """Fit random targets from the newest weights and from fresh ones, on observations of a random policy."""
    import torch

    from steadyq import envs
    from steadyq.agent import load
    from steadyq.monitor.diagnostics import plasticity_probe
    from steadyq.run.explore import FrameStack
    from steadyq.run.folder import RunFolder

    steps, size = 100, 128
    recipe = RunFolder(path).recipe
    agent = load(path, "cpu", networks="online")
    env = envs.make(recipe.env, recipe.protocol, seed=recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    stack = FrameStack(env.spec)
    seen: list[torch.Tensor] = []
    observation = stack.push(env.reset())
    while len(seen) * env.spec.lanes < size:
        seen.append(observation.clone())
        action = torch.randint(env.spec.num_actions, (env.spec.lanes,), generator=generator).numpy()
        step = env.step(action)
        observation = stack.push(step.frame, step.restart)
    env.close()
    forward, shown, rate = agent.ensemble.forward, torch.cat(seen)[:size], Schedule.of(recipe.optim.rate).end
    left = {
        name: plasticity_probe(
            forward, params, shown, generator=torch.Generator().manual_seed(0), steps=steps, rate=rate
        )
        for name, params in (("trained", agent.params), ("fresh", agent.ensemble.initial(generator)))
    }
    return {"steps": steps, **{name: float(values.mean()) for name, values in left.items()}}


@dataclass(frozen=True)
class CompareOptions:
    """Print the scores of several runs by environment, variant and seed; draw their curves."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or archives of them (.tar.xz); runs that differ only in their seed are one variant. A sweep's folder
    or archive alone has the variants of its study."""
    figure: Path | None = None
    """Also draw curves into this file (.svg, .png or .pdf); the runs must then share one environment."""
    columns: tuple[str, ...] = ()
    """Columns of metrics.jsonl to draw, one panel each; by default return_10 and q_taken."""
    title: str = ""
    """Title of the figure."""
    at: int | None = None
    """In place of evaluations the mean of the last ten training games up to this step, of all runs that have come so
    far."""
    markdown: bool = False
    """Print the table as Markdown."""


def compare(words: list[str]) -> int:
    """Print scores of several runs with intervals over seeds: `steadyq compare RUN...`."""
    options = parse(CompareOptions, words)

    from steadyq.report import figures
    from steadyq.report.words import shown_name
    from steadyq.suite.runs import read_runs
    from steadyq.suite.sweep import is_sweep, read_sweep
    from steadyq.suite.tables import score_rows
    from steadyq.suite.variants import group

    if not options.runs:
        raise UserError("compare needs run folders, for example `steadyq compare runs/*`")
    if options.at is not None and options.at < 1:
        raise UserError(f"--at is {options.at}; it must be a step, 1 or more")
    logs = options.figure is not None or options.at is not None
    if len(options.runs) == 1 and is_sweep(options.runs[0]):
        sweep = read_sweep(options.runs[0], logs)
        comparison = group(sweep.runs, sweep.names)
    else:
        comparison = group(read_runs(options.runs, logs))
    games = sorted({cell.env for cell in comparison.cells})
    check_file("--figure", options.figure)
    if (options.columns or options.title) and not options.figure:
        raise UserError("--columns and --title are those of a figure: name its file with --figure")
    if options.figure and len(games) > 1:
        raise UserError(f"--figure draws runs of one environment, these are of {', '.join(games)}")
    columns = ("environment", "variant", "seeds", "mean return of each seed", "mean", "95% interval", "random")
    rows: list[tuple[str, ...]] = []
    for row in score_rows(comparison, options.at):
        finished, begun = len(row.scores), len(row.cell.runs)
        shown = (
            row.cell.env,
            row.label,
            f"{finished}"
            + (f" of {begun} {'finished' if options.at is None else 'so far'}" if finished < begun else ""),
            " ".join(f"{score:.2f}" for score in row.scores),
            f"{row.mean:.2f}" if row.mean is not None else "-",
            f"{row.interval[0]:.2f} to {row.interval[1]:.2f}" if row.interval else "-",
            f"{row.random:.2f}" if row.random is not None else "-",
        )
        rows.append(shown)
    if options.markdown:
        for line in (columns, ("---",) * len(columns), *rows):
            print(printable("| " + " | ".join(line) + " |"))
        return 0
    rows = [(shown_name(env), *rest) for env, *rest in rows]
    longest = [max(len(word) for row in rows for word in row[i].split() or [""]) for i in range(len(columns))]
    table = Table(box=None)
    for name, size in zip(columns, longest, strict=True):
        table.add_column(name, overflow="fold", min_width=min(size, 16))  # words of that size stay whole
    for cells in rows:
        table.add_row(*cells)
    OUT.print(table)
    what = "its evaluation games" if options.at is None else f"its last ten training games up to step {options.at:,}"
    OUT.print(f"each seed: mean over {what}; interval: percentile bootstrap over seeds")
    if options.figure:
        variants = {comparison.labels[cell.variant]: cell.runs for cell in comparison.cells}
        figures.compare(variants, options.columns or ("return_10", "q_taken"), options.figure, title=options.title)
        OUT.print(f"figure: {options.figure}")
    return 0
