"""Copies of metrics and diagnostics for other people's viewers; the JSONL files stay the truth."""

import contextlib
import hashlib
import io
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from steadyq.errors import UserError, one_line
from steadyq.fields import flatten
from steadyq.recipe import Recipe
from steadyq.run.files import open_plain

PROJECT = "steadyq"
"""What runs are filed under in a logger."""


class Board:
    """A file of scalars for TensorBoard, named by the time alone: PyTorch's writer puts the host's name in it."""

    def __init__(self, folder: Path, step: int) -> None:
        """Begin a file after this step; what earlier ones hold of later steps is void."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        folder.mkdir(exist_ok=True)
        seconds, rest = divmod(time.time_ns(), 10**9)
        file = folder / f"events.out.tfevents.{seconds:010d}.{rest:09d}"
        self.stream = open(open_plain(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")  # noqa: SIM115 until close
        self.records = RecordWriter(self.stream)
        self._write(file_version="brain.Event:2", step=step + 1)
        self._write(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Write some scalars of one step."""
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=step, summary=self.summary(value=values))
        self.stream.flush()

    def close(self) -> None:
        """End the file."""
        self.records.close()

    def _write(self, **content: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())


class WeightsAndBiases:
    """A run of Weights & Biases; where the training was stopped, the same one goes on."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        self.run = wandb_module().init(
            project=PROJECT, name=path.name, id=identity(path), config=recipe.to_dict(), resume="allow"
        )

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Log some numbers of one step."""
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        """End the run."""
        self.run.finish()


class Mlflow:
    """A run of MLflow; where the training was stopped, the same one goes on."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        from mlflow.entities import Metric, Param

        self.metric = Metric
        self.client = mlflow_client()
        known = self.client.get_experiment_by_name(PROJECT)
        experiment = known.experiment_id if known else self.client.create_experiment(PROJECT)
        mark = identity(path)
        found = self.client.search_runs([experiment], f"tags.`{PROJECT}.run` = '{mark}'", max_results=1)
        run = found[0] if found else self.client.create_run(
            experiment, tags={f"{PROJECT}.run": mark}, run_name=path.name
        )  # fmt: skip
        self.id = run.info.run_id
        self.client.update_run(self.id, "RUNNING")
        params = [Param(name, str(value)) for name, value in flatten(recipe.to_dict()).items()]
        for first in range(0, len(params) if not found else 0, 100):  # as many as a store takes
            self.client.log_batch(self.id, params=params[first : first + 100])

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Log some numbers of one step."""
        now = time.time_ns() // 10**6
        self.client.log_batch(self.id, [self.metric(name, float(value), now, step) for name, value in numbers.items()])

    def close(self) -> None:
        """End the run."""
        self.client.set_terminated(self.id)


class Trackio:
    """A run of Trackio on this machine; where the training was stopped, the same one goes on."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.module = trackio_module()
            self.run = self.module.init(
                project=PROJECT, name=f"{path.name}-{identity(path)[:6]}", config=flatten(recipe.to_dict()),
                resume="allow", embed=False,
            )  # fmt: skip

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Log some numbers of one step."""
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        """End the run."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.module.finish()


class Sinks:
    """TensorBoard by default, Weights & Biases, MLflow and Trackio on request; all imported only when used."""

    def __init__(self, recipe: Recipe, path: Path, step: int) -> None:
        record = recipe.record
        self.places: list[Board | WeightsAndBiases | Mlflow | Trackio] = [
            *([Board(path / "tensorboard", step)] if record.tensorboard else []),
            *([WeightsAndBiases(recipe, path)] if record.wandb else []),
            *([Mlflow(recipe, path)] if record.mlflow else []),
            *([Trackio(recipe, path)] if record.trackio else []),
        ]

    def write(self, row: Mapping[str, Any], under: str = "") -> None:
        """Pass on the numbers of one row; those of a layer, or `under` a heading, have its name before theirs."""
        numbers = {f"{under}{name}": value for name, value in _numbers(row)}
        for place in self.places:
            place.add(numbers, row["step"])

    def diagnosed(self, row: Mapping[str, Any]) -> None:
        """Pass on a row of diagnostics: the whole network's numbers and each layer's, not each member's."""
        layers = {f"{layer}/{name}": value for layer, found in row["layers"].items() for name, value in _numbers(found)}
        self.write({**row, **layers}, "diagnostics/")

    def finish(self, result: dict[str, Any]) -> None:
        """Pass on the evaluation."""
        self.write({"step": result["steps"], "evaluation/mean_return": result["mean_return"]})

    def close(self) -> None:
        """Flush."""
        for place in self.places:
            place.close()


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, int | float) and name != "step":
            yield name, value


def check_sinks(recipe: Recipe) -> None:
    """Raise if a place that the recipe writes to cannot take anything: a package, a login or a server is missing."""
    if recipe.record.wandb:
        wandb_module()
    if recipe.record.mlflow:
        mlflow_client()
    if recipe.record.trackio:
        trackio_module()


def identity(path: Path) -> str:
    """What names a run in all its parts: what it is, and when it was begun."""
    recipe = path / "recipe.toml"
    began = str(recipe.stat().st_mtime_ns).encode()
    return hashlib.sha256(began + recipe.read_bytes()).hexdigest()[:16]


def wandb_module() -> Any:
    """The wandb package, ready to log; or one line saying how to get it, or to log in."""
    try:
        import wandb
    except ImportError:
        raise UserError("record.wandb needs the extra: pip install 'steadyq[wandb]'") from None
    offline = os.environ.get("WANDB_MODE", "online") != "online"
    if not offline and not getattr(getattr(wandb, "api", None), "api_key", "unknown"):
        raise UserError("record.wandb needs a login: run `wandb login`, or set WANDB_MODE=offline")
    return wandb


def mlflow_client() -> Any:
    """A client of MLflow whose store answers; or one line saying how to get it, or what the store says."""
    for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "10")):  # by default it tries for minutes
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    try:
        import mlflow
    except ImportError:
        raise UserError("record.mlflow needs the extra: pip install 'steadyq[mlflow]'") from None
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    try:
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    except Exception as error:  # whatever a store raises
        where = mlflow.get_tracking_uri()
        raise UserError(
            f"record.mlflow: {where} does not answer, see MLFLOW_TRACKING_URI ({one_line(error)})"
        ) from None
    return client


def trackio_module() -> Any:
    """The trackio package; or one line saying how to get it."""
    try:
        import trackio
    except ImportError:
        raise UserError("record.trackio needs the extra: pip install 'steadyq[trackio]'") from None
    return trackio
