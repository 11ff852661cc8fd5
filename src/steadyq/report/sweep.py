"""A sweep as tables, figures and a page: what `steadyq report SWEEP` writes."""

import json
from pathlib import Path

from steadyq.errors import UserError, nearest
from steadyq.report import plots
from steadyq.report.curves import series
from steadyq.report.html import write_report
from steadyq.report.page import StudyPart
from steadyq.report.spikes import spike_map
from steadyq.run.files import refuse_links, replace_text
from steadyq.scores.tables import Table
from steadyq.suite.archive import split, without_ending
from steadyq.suite.remedies import effects
from steadyq.suite.study import STUDY_FILE, file_name
from steadyq.suite.summaries import summaries
from steadyq.suite.sweep import Sweep, read_sweep, state
from steadyq.suite.tables import tables

LAYOUTS = (".svg", ".png", ".pdf")


def write_sweep_report(path: Path | str, out: Path | None = None) -> tuple[list[Table], list[Path]]:
    """Write tables, figures and the interactive page of a sweep into a folder; returns the tables and the files."""
    sweep = read_sweep(path)
    inside = split(sweep.path) is not None
    out = out or (Path(f"{without_ending(sweep.path)}-report") if inside else sweep.path / "report")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: a sweep's report needs a folder")
    if not any(len(run.metrics) or run.result for run in sweep.runs):
        raise UserError(f"{sweep.path} has no measurements yet")
    check_columns(sweep)
    found = tables(sweep)
    refuse_links(out)
    out.mkdir(parents=True, exist_ok=True)
    refuse_links(*out.iterdir())
    files = [out / "tables.txt", out / "tables.json"]
    replace_text(files[0], "\n".join(table.text(width=160) for table in found))
    replace_text(files[1], json.dumps([json.loads(table.json()) for table in found], ensure_ascii=False, indent=1))
    drawn = figures(sweep, out)
    part = StudyPart(
        title=sweep.study.title,
        question=sweep.study.question,
        state=state(sweep),
        names=sweep.names,
        tables=found,
        figures=[(file, words) for file, words in drawn.items() if file.suffix == ".svg"],
        shaded=sweep.study.figure == "spikes",
    )
    write_report(sweep.runs, page := out / "report.html", study=part)
    return found, [*files, *drawn, page]


def check_columns(sweep: Sweep) -> None:
    """Raise if runs have finished, and the figure wants nothing that they could have."""
    columns = sweep.study.columns
    known = {name for run in sweep.runs if run.result for name in run.metrics.columns}
    wanted = {column for column in columns if column in known or len(series(sweep.runs[0], column)[0])}
    if known and sweep.study.figure == "curves" and not wanted:
        raise UserError(
            f"{sweep.path / STUDY_FILE}: no run has the figure's column {columns[0]!r}: {nearest(columns[0], known)}"
        )


def figures(sweep: Sweep, out: Path) -> dict[Path, str]:
    """Draw the study's figure as SVG, PNG and PDF, spike ratios one for each game; returns what each file shows."""
    study = sweep.study
    cells = {env: v for env, v in sweep.cells.items() if any(len(run.metrics) for runs in v.values() for run in runs)}
    drawn: dict[Path, str] = {}
    if study.figure == "spikes":
        for env, variants in cells.items():
            if all(spike_map(runs) is None for runs in variants.values()):
                continue  # nothing has been measured yet
            game = env.partition("/")[2] if len(cells) > 1 else ""
            outs = [out / f"{file_name(study.name or 'figure', game)}{suffix}" for suffix in LAYOUTS]
            plots.draw_spikes(env, variants, outs, title=study.title)
            words = f"{study.title}: spike ratio of every layer over time. {plots.facts({env: variants})}"
            drawn |= dict.fromkeys(outs, words)
        return drawn
    if study.figure == "remedies":
        outs = [out / f"{file_name(study.name or 'figure')}{suffix}" for suffix in LAYOUTS]
        plots.draw_remedies(cells, effects(sweep), outs, title=study.title)
        return dict.fromkeys(outs, f"{study.title}: remedies x mechanisms. {plots.facts(cells)} {plots.REMEDIES}")
    if not any(len(series(run, column)[0]) for run in sweep.runs for column in study.columns):
        return drawn  # no game has finished yet
    outs = [out / f"{file_name(study.name or 'figure')}{suffix}" for suffix in LAYOUTS]
    panels = summaries(sweep)
    plots.draw_curves(cells, study.columns, outs, title=study.title, summaries=panels)
    words = f"{study.title}: {', '.join(study.columns)} of every game. {plots.statement(cells, panels)}"
    return dict.fromkeys(outs, words)
