"""Deliberately sick and ordinary healthy runs, and what `steadyq diagnose` says of each: writes docs/diagnose.md.

python studies/diagnose.py --runs runs/diagnose            trains what is missing, then writes the page
python studies/diagnose.py --runs runs/diagnose --only lr  trains one of them
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import steadyq as sq


@dataclass(frozen=True)
class Case:
    """One run, and what was said about it before it was made."""

    name: str
    what: str
    preset: str
    env: str
    steps: int
    expected: str
    """A mechanism, or nothing."""
    changes: dict[str, Any] = field(default_factory=dict)


COMMON = {"evaluation.episodes": 20, "record.checkpoint_every": 5000, "record.tensorboard": False}

CASES = (
    Case("steady-cartpole", "steady", "steady", "CartPole-v1", 15_000, "nothing"),
    Case("steady-breakout", "steady", "steady", "MinAtar/Breakout", 15_000, "nothing"),
    Case("double-cartpole", "double_dqn", "double_dqn", "CartPole-v1", 15_000, "nothing"),
    Case("qr-cartpole", "qr_dqn", "qr_dqn", "CartPole-v1", 15_000, "nothing"),
    Case(
        "trap",
        "steady, constraint and ceiling off, dense reward",
        "steady",
        "CartPole-v1",
        15_000,
        "operator",
        {"operator.forbid": "none", "operator.ceiling": "none"},
    ),
    Case("rate", "dqn, learning rate 50 times the preset's", "dqn", "CartPole-v1", 10_000, "parameter",
         {"optim.rate": 0.05}),
    Case("ratio", "dqn, replay ratio 16, no resets", "dqn", "CartPole-v1", 6_000, "parameter", {"replay.ratio": 16}),
    Case("no-target", "dqn, no target network", "dqn", "CartPole-v1", 10_000, "operator", {"optim.tau": 1.0}),
    Case("asterix", "dqn, sparse reward: values run ahead of returns", "dqn", "MinAtar/Asterix", 20_000, "operator"),
)  # fmt: skip


def train(case: Case, runs: Path) -> sq.RunFolder:
    """Train a case, or take it from its folder."""
    recipe = sq.presets.PRESETS[case.preset](case.env, steps=case.steps, **COMMON, **case.changes)
    return sq.train(recipe, run=runs / case.name)


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/diagnose"))
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    for case in CASES:
        if not options.only or case.name in options.only:
            train(case, options.runs)


if __name__ == "__main__":
    main()
