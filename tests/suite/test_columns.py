"""Logs as columns: the same numbers as in the rows, a fraction of their size, and nothing that is no log."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored import stored

from steadyq import RunFolder
from steadyq.errors import UserError
from steadyq.run.logs import rows
from steadyq.suite import columns
from steadyq.suite.columns import read_columns, read_events
from steadyq.suite.runs import read

RUN = "Atari-Breakout-bf16-seed0"


def log(file: Path, content: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in content))
    return file


@pytest.mark.parametrize("name", ["metrics", "diagnostics"])
def test_columns_hold_what_the_rows_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "AT_ONCE", 7)  # several parts of a log of a hundred rows
    folder = RunFolder(stored("atari") / RUN)
    found = getattr(read(folder.path), name)
    content = getattr(folder, name)()
    assert len(found) == len(content) > 50
    for row, expected in zip(found, content, strict=True):
        for key, value in expected.items():
            if isinstance(value, int | float):
                assert row[key] == value
            elif value is None:
                assert row[key] is None
            else:
                assert key not in row


def test_events_hold_games_spikes_and_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "AT_ONCE", 7)
    folder = RunFolder(stored("atari") / RUN)
    found, content = read(folder.path).events, folder.events()
    by_kind = {kind: [row for row in content if row["event"] == kind] for kind in ("game", "spikes", "reset")}
    assert [*zip(*found.games, strict=True)] == [(row["step"], row["score"]) for row in by_kind["game"]]
    assert [(reset.step, reset.layer) for reset in found.resets] == [(r["step"], r["layer"]) for r in by_kind["reset"]]
    (spikes,) = found.spikes
    assert list(spikes.layers) == by_kind["spikes"][0]["layers"]
    np.testing.assert_allclose(spikes.mean, [np.mean(row["ratios"], axis=0) for row in by_kind["spikes"]])
    np.testing.assert_allclose(spikes.top, [np.max(row["ratios"], axis=0) for row in by_kind["spikes"]])
    assert found.last_step == content[-1]["step"]


def test_a_column_that_comes_and_goes_has_gaps(tmp_path: Path) -> None:
    file = log(
        tmp_path / "metrics.jsonl", [{"step": 1}, {"step": 2, "loss": 3}, {"loss": None, "step": 4}, {"step": 5}]
    )
    found = read_columns(file, rows(file, "metrics"))
    assert [row["step"] for row in found] == [1, 2, 4, 5]
    assert [row["loss"] for row in found] == [None, 3, None, None]
    steps, values = found.series("loss")
    assert (steps.tolist(), values.tolist()) == ([2], [3])
    assert [row.get("loss") for row in found[1:3]] == [3, None]
    assert found[-1].get("nothing") is None
    assert len(found.series("nothing")[0]) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"step": 1}, {"step": 2, "loss": 10**400}], "line 2 has too large a number for loss"),
        ([{"step": 1}, {"step": 2, "loss": [1]}], r"line 2 has \[1\] for loss, which is no number"),
        ([{"step": 5}, {"step": 4}], "line 2 goes back from step 5 to 4"),
        ([{"step": 1}, {"step": math.inf}], "line 2 is not a row with a step"),
        ([{"step": 1}, {"step": -1}], "line 2 is not a row with a step"),
        ([{"step": 1}, {"step": True}], "line 2 is not a row with a step"),
        ([{"step": 1}, {f"column {i}": i for i in range(500)} | {"step": 2}], "line 2 has more columns than a log has"),
    ],
)
def test_what_no_log_holds_is_named(content: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    file = log(tmp_path / "metrics.jsonl", content)
    with pytest.raises(UserError, match=rf"metrics.jsonl is damaged: {said}"):
        read_columns(file, rows(file, "metrics"))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"score": 1.0}, "no event"),
        ({"event": ["game"], "score": 1.0}, r"\['game'\] for event, which is no text"),
        ({"event": "game"}, "no score"),
        ({"event": "game", "score": "1"}, "'1' for score, which is no number"),
        ({"event": "reset", "layer": 3}, "3 for layer, which is no text"),
        ({"event": "spikes", "layers": "ab", "ratios": [[1, 2]]}, "'ab' for layers, which is no list of names"),
        ({"event": "spikes", "layers": ["a"], "ratios": [[1.0, 2.0]]}, ".* for ratios, which is no list of one number"),
        ({"event": "spikes", "layers": ["a"], "ratios": []}, r"\[\] for ratios, which is no list of one number"),
        ({"event": "spikes", "layers": ["a"], "ratios": [[10**400]]}, ".* for ratios, which is no list of one number"),
        ({"event": "diverged", "message": None}, "None for message, which is no text"),
    ],
)
def test_an_event_that_cannot_be_is_named(event: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = log(tmp_path / "events.jsonl", [{"event": "start", "step": 0, "device": "cpu"}, {**event, "step": 1}])
    with pytest.raises(UserError, match=rf"events.jsonl is damaged: line 2 has {said}"):
        read_events(rows(file, "events"))


def test_a_row_without_end_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyq.run.logs.LONGEST", 1000)
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2, "x": "' + "x" * 2000)
    with pytest.raises(UserError, match="line 2 has no end"):
        list(rows(file, "metrics"))
    file.write_text("[" * 900 + "\n" + '{"step": 1}\n')
    with pytest.raises(UserError, match="line 1 is not JSON"):
        list(rows(file, "metrics"))


def test_a_long_log_takes_less_memory_than_its_text(tmp_path: Path) -> None:
    """The growth of a process that reads it; as rows it would be six times the text."""
    whole = (stored("atari") / RUN / "metrics.jsonl").read_text().splitlines()[10:]
    content = [json.loads(line) for line in whole]
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(60_000):
            file.write(json.dumps(content[step % len(content)] | {"step": step}) + "\n")
    size = (tmp_path / "metrics.jsonl").stat().st_size
    assert size > 30e6
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from steadyq.run.logs import rows; from steadyq.suite.columns import read_columns\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = used(); found = read_columns(Path(sys.argv[1]), rows(Path(sys.argv[1]), 'metrics'))\n"
        "print(used() - before, len(found))"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "metrics.jsonl")]
    grown, count = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert count == 60_000
    assert grown < size
