"""A sweep's progress as a person sees it."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steadyq.run.progress import clock, plural
from steadyq.suite.plan import Entry, last_row

SHOW_SECONDS, PLAIN_SECONDS = 1.0, 15.0


class Board:
    """One table of progress: live in a terminal, elsewhere a line for each change and one now and then."""

    def __init__(self, entries: Sequence[Entry], console: Console) -> None:
        self.entries, self.console = entries, console
        self.began, self.shown = time.monotonic(), 0.0
        self.done_before = self._done()
        self.live: Live | None = None

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self.live = Live(self._table(), console=self.console, auto_refresh=False, transient=True)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    def say(self, text: str) -> None:
        """Print one line above the table."""
        self.console.print(Text(text), soft_wrap=True)

    def show(self) -> None:
        """Refresh the table, at most once a second."""
        now = time.monotonic()
        if now - self.shown < (SHOW_SECONDS if self.live else PLAIN_SECONDS):
            return
        self.shown = now
        for entry in self.entries:
            if entry.state == "running" and (row := last_row(entry.folder.path / "metrics.jsonl")):
                entry.reached(row)
        if self.live:
            self.live.update(self._table(), refresh=True)
        else:
            self.console.print(self._summary())

    def _done(self) -> float:
        return sum(entry.cost * entry.share for entry in self.entries)

    def _summary(self) -> str:
        states = [entry.state for entry in self.entries]
        parts = [
            f"{states.count('finished')} of {plural(len(states), 'run')} finished",
            f"{states.count('running')} running",
        ]
        for state in ("elsewhere", "diverged", "failed"):
            parts += [f"{states.count(state)} {state}"] * (state in states)
        rates = [entry.rate for entry in self.entries if entry.state == "running" and entry.rate]
        if len(rates) > 1:
            parts.append(f"{sum(rates):,.0f} steps/s together")
        gained = self._done() - self.done_before
        if gained > 0:
            left = sum(entry.cost * (1 - entry.share) for entry in self.entries if entry.state != "failed")
            parts.append(f"about {clock((time.monotonic() - self.began) * left / gained)} left")
        return " · ".join(parts)

    def _table(self) -> Group:
        table = Table("run", "steps", "", "return of last 10 games", box=None, pad_edge=False)
        for entry in self.entries:
            if entry.state == "running":
                steps = entry.run.recipe.steps
                score = f"{entry.score:.2f}" if entry.score is not None else ""
                table.add_row(entry.run.name, f"{entry.step:,} of {steps:,}", f"{entry.share:.0%}", score)
        return Group(table, Text(self._summary()))
