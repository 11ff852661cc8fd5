"""What the sections of a page are made from."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from steadyq.report.words import shown_name
from steadyq.scores.tables import Table
from steadyq.suite.runs import Run
from steadyq.suite.variants import Comparison


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
