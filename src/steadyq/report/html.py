"""One HTML file that shows a run, or compares many: it needs no network, no server and no other file.

The page is a list of sections (sections.py), each a function from `Page` to HTML; the charts are declared in charts.py
and drawn by page.js from JSON in the page. Numbers and words are in the HTML itself, so the page says what it shows
without its script, to a screen reader, and on paper. All text enters it through markup.py.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from steadyq.errors import UserError
from steadyq.report.markup import document
from steadyq.report.page import Page, StudyPart
from steadyq.report.page_data import page_data
from steadyq.report.sections import body
from steadyq.run.files import replace_text
from steadyq.suite.runs import Run, read_runs
from steadyq.suite.variants import group


def write_report(
    runs: Sequence[Path | str | Run],
    out: Path | str,
    *,
    video: Path | None = None,
    caption: str = "",
    study: StudyPart | None = None,
) -> None:
    """Write a page about runs, folders or archives of them; several are grouped into variants and compared.

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
    comparison = group(read_runs(runs), study.names if study else None)
    page = Page(comparison, page_data(comparison), out.parent, video, caption, study)
    title, style, script = f"{page.title} · SteadyQ", _asset("page.css"), _asset("page.js")
    replace_text(out, document(title, body(page), page.data, style=style, script=script))


def _asset(name: str) -> str:
    return resources.files("steadyq.report").joinpath(name).read_text(encoding="utf-8")
