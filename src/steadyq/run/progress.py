"""What a person sees while a run trains: one live line in a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from steadyq.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from steadyq.run.step import Training

LIVE_SECONDS, PLAIN_SECONDS = 0.25, 15.0
BAR, WIDE = 24, 120
"""Width of a bar, on a terminal of so many columns; a third of it on a narrower one."""


class SafeConsole(Console):
    """Prints what it is given, brackets and names of files included; a line with colours asks for `markup`.

    Names and messages come from files of anybody: control characters in them are spelt out, not sent to the terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "soft_wrap": True, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as Rich does; what Rich itself tells the terminal is not text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave it to the command: Rich would end the process, and a run that trains in it."""
        raise


class Display:
    """Told about everything a person may want to see; this one shows nothing."""

    gone = False
    """Whether nobody can see it any more: the terminal or the pipe was closed."""

    def note(self, text: str) -> None:
        """Show one line."""

    @contextmanager
    def live(self, steps: int) -> Iterator[None]:
        """Show progress within the block."""
        yield

    def step(self, training: "Training", row: dict[str, Any] | None) -> None:
        """Take note of one step; `row` is the metrics row if one was due."""

    @contextmanager
    def evaluating(self, games: int) -> Iterator[Callable[[int], None]]:
        """Show progress of the evaluation; the block calls back with games played."""
        yield lambda played: None

    def finished(self, result: dict[str, Any]) -> None:
        """Show the result."""


class Terminal(Display):
    """Shows a progress bar with the numbers that matter."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or SafeConsole()
        self.progress: Progress | None = None
        self.last_shown = 0.0
        self.steps = 0
        self.rate_mark = (0.0, 0, 0)  # time, step and update of the last shown line
        self.rates = (0.0, 0.0)

    def note(self, text: str) -> None:
        """Print one line."""
        with self._shown():
            self.console.print(text, soft_wrap=not self.console.is_terminal)  # a terminal breaks lines inside words

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Within the block something is printed; a terminal that was closed is no error of the run's."""
        try:
            yield
        except OSError:
            self.gone = True

    @contextmanager
    def live(self, steps: int) -> Iterator[None]:
        """Show the bar in a terminal; elsewhere print a line every few seconds."""
        self.steps, self.rate_mark = steps, (0.0, 0, 0)
        if not self.console.is_terminal:
            yield
            return
        self.progress = self._bar("{task.percentage:>3.0f}%", "{task.description}")
        self.progress.add_task("starting", total=steps)
        with self._running(self.progress):
            yield
        self.progress = None

    def step(self, training: "Training", row: dict[str, Any] | None) -> None:
        """Refresh the line at most a few times a second."""
        now = time.monotonic()
        pause = LIVE_SECONDS if self.progress else PLAIN_SECONDS
        last = training.step_count >= self.steps
        if now - self.last_shown < pause and not last:
            return
        self.last_shown = now
        then, step, update = self.rate_mark
        if training.learner.updates and not update:
            self.rates = (0.0, 0.0)  # steps of the warm-up say nothing about those that learn
        elif then and now > then:
            measured = ((training.step_count - step) / (now - then), (training.learner.updates - update) / (now - then))
            smooth = 0.2 if self.rates[0] else 1.0
            (old_steps, old_updates), (new_steps, new_updates) = self.rates, measured
            self.rates = (
                old_steps + smooth * (new_steps - old_steps),
                old_updates + smooth * (new_updates - old_updates),
            )
        self.rate_mark = (now, training.step_count, training.learner.updates)
        line = describe(training, self.steps, self.rates)
        if self.progress:
            bar = BAR if self.console.width >= WIDE else BAR // 3
            line = describe(training, self.steps, self.rates, self.console.width - bar - len(" 100% ") - 1)
        with self._shown():
            if self.progress:
                task = self.progress.task_ids[0]
                self.progress.update(task, completed=training.step_count, description=line, refresh=True)
            else:
                self.console.print(f"{100 * training.step_count / self.steps:3.0f}%  {line}")

    @contextmanager
    def evaluating(self, games: int) -> Iterator[Callable[[int], None]]:
        """Show games played."""
        if not self.console.is_terminal or self.gone:
            self.note(f"evaluating: {plural(games, 'full game')}")
            yield lambda played: None
            return
        progress = self._bar("{task.completed}/{task.total} evaluation games", transient=True)
        task = progress.add_task("", total=games)

        def update(played: int) -> None:
            with self._shown():
                progress.update(task, completed=played, refresh=True)

        with self._running(progress):
            yield update

    def _bar(self, *texts: str, transient: bool = False) -> "Progress":
        """A bar and texts beside it; loaded here, because commands that show none start sooner without."""
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(bar_width=BAR if self.console.width >= WIDE else BAR // 3), *map(TextColumn, texts))
        return Progress(*columns, console=self.console, transient=transient, auto_refresh=False)

    @contextmanager
    def _running(self, progress: "Progress") -> Iterator[None]:
        """Show a bar within the block."""
        with self._shown():
            progress.start()
        try:
            yield
        finally:
            with self._shown():
                progress.stop()

    def finished(self, result: dict[str, Any]) -> None:
        """Print the evaluation beside the random policy."""
        with self._shown():
            self.console.print(
                f"[bold]evaluation[/]  mean return [bold]{result['mean_return']:.2f}[/] over "
                f"{games_said(result)}   (random policy: {result['random_return']:.2f} over "
                f"{plural(result['random_episodes'], 'game')})",
                markup=True,
                soft_wrap=not self.console.is_terminal,
            )
            if text := other_means(result):
                self.console.print(f"            {text}", soft_wrap=not self.console.is_terminal)


def games_said(result: Mapping[str, Any]) -> str:
    """How many games a mean rests on, how few different ones where they repeat, and the exploration in them."""
    games = result["episodes"]
    few = result.get("different_games", games)
    said = [plural(games, "full game")]
    if few < games:
        said.append("all the same" if few == 1 else f"{few} different")
    if (epsilon := result.get("evaluation_epsilon")) is not None:
        said.append(f"epsilon {epsilon:g}")
    if result.get("evaluated_networks") == "target":
        said.append("target networks")
    return ", ".join(said)


def mean_of_last(games: int, scores: Iterable[float]) -> float | None:
    """Mean score of the last finished games, if there are any."""
    last = list(scores)[-games:]
    return sum(last) / len(last) if last else None


def other_means(result: Mapping[str, Any]) -> str:
    """The figures that others report in place of a mean over all evaluation games."""
    parts = []
    if result["episodes"] > 10:
        parts.append(f"first 10 games: {result['first_10_mean_return']:.2f}")
    if result.get("training_return_10") is not None:
        parts.append(f"last {min(10, result.get('games', 10))} training games: {result['training_return_10']:.2f}")
    return "   ".join(parts)


def describe(training: "Training", steps: int, rates: tuple[float, float], width: int = 1000) -> str:
    """One line: where the run is, how it plays, how fast it learns, how long it will take; what fits into the width."""
    recent, games = mean_of_last(10, training.recent), min(len(training.recent), 10)
    rate, what = (rates[1], "updates") if rates[1] else (rates[0], "steps")
    parts = {  # in the order they are shown
        "steps": f"{training.step_count:,} step{'s' * (training.step_count != 1)}",
        "return": "" if recent is None else f"return {recent:.1f}",
        "games": "" if recent is None else f"(last {games} games)",
        "epsilon": f"eps {training.epsilon.at(training.step_count):.2f}",
        "rate": f"{rate:.{0 if rate >= 10 else 1 if rate >= 1 else 2}f} {what}/s" if rates[0] else "",
        "left": f"{clock((steps - training.step_count) / rates[0])} left" if rates[0] and rates[1] else "",
        "resets": f"{training.resets} resets",
    }
    kept: dict[str, str] = {}
    for name in ("steps", "return", "left", "rate", "epsilon", "resets", "games"):  # what matters most first
        tried = {part: text for part, text in parts.items() if text and (part in kept or part == name)}
        if len(_joined(tried)) <= width:
            kept = tried
    return _joined(kept)


def _joined(parts: Mapping[str, str]) -> str:
    return " · ".join(parts.values()).replace(" · (last", " (last")


def plural(number: int, what: str) -> str:
    """One run, two runs, in figures."""
    return f"{number} {what}{'s' * (number != 1)}"


def clock(seconds: float) -> str:
    """Seconds as 42 s, 7 min or 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
