"""A callback of your own, and a run that ends when it is good enough.

    python examples/early_stop.py

For a target or a plateau no callback is needed: `evaluation.target` and `evaluation.patience` stop a run, also after it
was killed and continued. A callback hears the rest.
"""

import argparse
from collections import deque
from typing import Any

import steadyq as sq
from steadyq.run.callbacks import Evaluation, FinishedGame, Live


class Solved(sq.Callback):
    """Prints a line now and then, and stops once a hundred training games in a row were good."""

    def __init__(self, score: float, games: int = 100) -> None:
        self.score, self.last = score, deque[float](maxlen=games)

    def on_game(self, run: Live, game: FinishedGame) -> None:
        """After every game of training, exploration included."""
        self.last.append(game.score)
        mean = sum(self.last) / len(self.last)
        if len(self.last) == self.last.maxlen and mean >= self.score:
            run.stop(f"the last {len(self.last)} games scored {mean:.1f} on average")

    def on_row(self, run: Live, row: dict[str, Any]) -> None:
        """After every row of metrics.jsonl; docs/metrics.md has the columns."""
        if "q_max" in row:
            print(f"  step {row['step']:,}: return {row['return_10']}, Q {row['q_max']:.2f}, loss {row['loss']:.4f}")

    def on_evaluation(self, run: Live, evaluation: Evaluation) -> None:
        """After every evaluation on the way; `run.agent()` acts as it does now."""
        print(f"  evaluation: {evaluation.mean_return:.1f}{' (best)' if evaluation.best else ''}")


def main() -> None:
    """Train until it is solved."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=50_000)
    options.add_argument("--score", type=float, default=195.0)
    options.add_argument("--games", type=int, default=100)
    options.add_argument("--out", default="runs/early-stop")
    given = options.parse_args()

    run = sq.train(
        "steady",
        env="CartPole-v1",
        steps=given.steps,
        options={"operator.forbid": "auto", "evaluation.every": 5000, "evaluation.target": 495.0},
        callbacks=[Solved(given.score, given.games)],
        run=given.out,
    )
    result = run.result
    assert result is not None
    print(f"{result['steps']:,} steps: {result['mean_return']:.1f}. {result.get('stopped', 'it ran to its end')}")


if __name__ == "__main__":
    main()
