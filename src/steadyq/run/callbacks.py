"""What a user's own code is told while a run trains, and how it stops one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from steadyq.agent import Agent
    from steadyq.run.step import Training


class FinishedGame(NamedTuple):
    """A game that ended in training."""

    step: int
    """When it ended, in steps of the run."""
    lane: int
    score: float
    """Its raw return."""
    steps: int


class Evaluation(NamedTuple):
    """An evaluation on the way: full games, the same ones every time."""

    step: int
    mean_return: float
    standard_error: float | None
    episodes: int
    best: bool
    """Whether no earlier evaluation of the run was as good."""


class Live:
    """A run that is training, as callbacks see it."""

    def __init__(self, training: "Training", path: Path) -> None:
        self._training, self.path = training, path
        self.stopped: str | None = None
        """Why it was asked to stop, if it was."""

    @property
    def step(self) -> int:
        """Steps made so far, all lanes together."""
        return self._training.step_count

    @property
    def steps(self) -> int:
        """Steps it was asked for."""
        return self._training.recipe.steps

    @property
    def games(self) -> int:
        """Games finished so far."""
        return self._training.games

    def agent(self) -> "Agent":
        """The agent as it acts now; it goes on learning."""
        return self._training.agent()

    def stop(self, why: str = "a callback stopped it") -> None:
        """End the training after this step: the run is evaluated and finished, and its result says why."""
        self.stopped = why


class Callback:
    """Override what you want to hear about; all of it is called between steps, so that nothing here changes a run.

    `run.stop("why")` ends the training early. A run that continues after a kill begins with callbacks as they are given
    to it: what one of them remembers is its own.
    """

    def on_step(self, run: Live) -> None:
        """After every step of all lanes, and the learning that was due with it."""

    def on_game(self, run: Live, game: FinishedGame) -> None:
        """After a game has ended in training."""

    def on_row(self, run: Live, row: dict[str, Any]) -> None:
        """After a row of metrics.jsonl was written (docs/metrics.md), every `record.every` steps."""

    def on_evaluation(self, run: Live, evaluation: Evaluation) -> None:
        """After an evaluation on the way, every `evaluation.every` steps."""
