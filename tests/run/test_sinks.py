"""Copies of metrics and diagnostics in viewers: all of them, once, and in TensorBoard nothing about the machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import steadyq as sq
from steadyq.presets import steady
from steadyq.run.folder import RunFolder
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display
from steadyq.run.step import Training

pytestmark = pytest.mark.hostile

SMALL = {"replay.warmup": 40, "network.hidden": (8,), "estimator.quantiles": 3, "ensemble.members": 2}
SMALL |= {
    "monitor.every": 50,
    "record.every": 20,
    "record.checkpoint_every": 50,
    "evaluation.episodes": 1,
    "evaluation.random_episodes": 1,
}


class Stop(Display):
    def step(self, training: Training, row: dict[str, object] | None) -> None:
        if training.step_count == 70:
            raise Interrupted


def stopped_and_continued(tmp_path: Path, **changes: Any) -> RunFolder:
    recipe = steady("CartPole-v1", steps=120, **SMALL, **changes)
    with pytest.raises(Interrupted):
        train(recipe, run=tmp_path / "run", display=Stop())
    return train(recipe, run=tmp_path / "run", quiet=True)


def wanted(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """What a viewer should show of some columns, as (step, value)."""
    rows, seen, result = folder.metrics(), folder.diagnostics(), folder.result
    assert result is not None
    assert len(seen) == 2
    return {
        "epsilon": [(row["step"], row["epsilon"]) for row in rows],
        "diagnostics/q_greedy": [(row["step"], row["q_greedy"]) for row in seen],
        "diagnostics/fc1/dormant": [(row["step"], row["layers"]["fc1"]["dormant"]) for row in seen],
        "evaluation/mean_return": [(120, result["mean_return"])],
    }


def test_a_board_shows_every_row_once_and_names_no_host(tmp_path: Path) -> None:
    folder = stopped_and_continued(tmp_path)
    files = sorted((tmp_path / "run" / "tensorboard").iterdir())
    assert len(files) == 2
    for file in files:
        assert file.name.replace(".", "").removeprefix("eventsouttfevents").isdigit()
        for secret in (socket.gethostname(), f".{os.getpid()}."):
            assert secret.encode() not in file.name.encode() + file.read_bytes()
    board = EventAccumulator(str(files[0].parent))
    board.Reload()
    for column, points in wanted(folder).items():
        found = [(point.step, point.value) for point in board.Scalars(column)]
        assert found == [(step, pytest.approx(value)) for step, value in points]


@pytest.fixture
def wandb() -> Iterator[Any]:
    """The package as a new process has it: it reads its surroundings once."""
    module = pytest.importorskip("wandb")
    module.teardown()
    yield module
    module.teardown()


def test_wandb_offline_keeps_metrics_and_diagnostics_of_one_run(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    folder = stopped_and_continued(tmp_path, **{"record.wandb": True})
    wandb.teardown()  # waits for the process that writes the files, which a run's end does not
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1  # one run, in two parts
    assert len(files) == 2
    shown: dict[str, dict[int, float]] = {}
    for file in files:
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item if record.HasField("history") else ():
                name = item.key or "/".join(item.nested_key)
                shown.setdefault(name, {})[record.history.step.num] = float(item.value_json)
    for column, points in wanted(folder).items():
        assert shown[column] == {step: pytest.approx(value) for step, value in points}


def test_mlflow_keeps_metrics_and_diagnostics_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    folder = stopped_and_continued(tmp_path, **{"record.mlflow": True})
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("steadyq").experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params["ensemble.members"] == "2"
    for column, points in wanted(folder).items():
        shown = {point.step: point.value for point in client.get_metric_history(run.info.run_id, column)}
        assert shown == {step: pytest.approx(value) for step, value in points}


TRACKED = """
import sys
from pathlib import Path
from tests.run.test_sinks import stopped_and_continued, wanted

folder = stopped_and_continued(Path(sys.argv[1]), **{"record.trackio": True})
from trackio.sqlite_storage import SQLiteStorage

(name,) = SQLiteStorage.get_runs("steadyq")
rows = SQLiteStorage.get_logs("steadyq", name)
for column, points in wanted(folder).items():
    shown = {row["step"]: row[column] for row in rows if column in row}
    assert shown.keys() == dict(points).keys(), (column, shown)
    assert all(abs(shown[step] - value) < 1e-6 for step, value in points), (column, shown)
"""


def test_trackio_keeps_metrics_and_diagnostics_of_one_run(tmp_path: Path) -> None:
    """In a process of its own: where it writes is settled when it is imported."""
    pytest.importorskip("trackio")
    surroundings = {
        **os.environ,
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", TRACKED, str(tmp_path)], env=surroundings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_logger_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(sq.UserError, match=rf"record.{name} needs the extra: pip install 'steadyq\[{name}\]'"):
        train(steady("CartPole-v1", **{f"record.{name}": True}), run=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_no_login_and_no_server_are_one_line_before_anything_is_written(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for name, words in (("wandb", "run `wandb login`, or set WANDB_MODE=offline"), ("mlflow", "does not answer")):
        with pytest.raises(sq.UserError, match=words) as raised:
            train(steady("CartPole-v1", **{f"record.{name}": True}), run=tmp_path / "run", quiet=True)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
