"""docs/metrics.md names every column and event that a run writes, and none that it does not."""

import re
from pathlib import Path
from typing import Any

import pytest

from steadyq import RunFolder, presets
from steadyq.run.loop import train

DOC = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def documented(section: str) -> set[str]:
    text = DOC.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two members, quantiles, ceiling, a loss beside, resets: all that a run writes but a resume and a divergence."""
    changes: dict[str, Any] = {
        "network.hidden": (8, 8),
        "auxiliary.kind": "spr",
        "ensemble.members": 2,
        "replay.warmup": 64,
        "monitor.every": 50,
        "regulation.every": 50,
        "regulation.threshold": 1.01,
        "record.every": 50,
        "record.tensorboard": False,
        "evaluation.episodes": 1,
        "evaluation.random_episodes": 1,
    }
    recipe = presets.steady("CartPole-v1", steps=160, **changes)
    return train(recipe, run=tmp_path_factory.mktemp("runs") / "run")


def test_metrics(run: RunFolder) -> None:
    assert {name for row in run.metrics() for name in row} == documented("metrics.jsonl")


def test_diagnostics(run: RunFolder) -> None:
    assert {name for row in run.diagnostics() for name in row} == documented("diagnostics.jsonl")


def test_events(run: RunFolder) -> None:
    written = {event["event"] for event in run.events()}
    assert written | {"resume", "abandoned", "environment", "diverged"} == documented("events.jsonl")
    for event in run.events():
        line = next(line for line in DOC.splitlines() if line.startswith(f"| `{event['event']}` |"))
        assert all(name in line for name in event if name != "event"), event
