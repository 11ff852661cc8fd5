"""Copies of the metrics for other people's viewers; the JSONL file stays the truth."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.run.files import open_plain


class Board:
    """A file of scalars for TensorBoard, named by the time alone: PyTorch's writer puts the host's name in it."""

    def __init__(self, folder: Path, step: int) -> None:
        """Begin a file; what earlier ones hold of this step and later ones is void."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        folder.mkdir(exist_ok=True)
        seconds, rest = divmod(time.time_ns(), 10**9)
        file = folder / f"events.out.tfevents.{seconds:010d}.{rest:09d}"
        self.stream = open(open_plain(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")  # noqa: SIM115 until close
        self.records = RecordWriter(self.stream)
        self._write(file_version="brain.Event:2", step=step)
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

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


class Sinks:
    """TensorBoard by default, Weights & Biases on request; both imported only when used."""

    def __init__(self, recipe: Recipe, path: Path, step: int) -> None:
        self.board = Board(path / "tensorboard", step) if recipe.record.tensorboard else None
        self.wandb: Any = None
        if recipe.record.wandb:
            self.wandb = wandb_module().init(project="steadyq", name=path.name, config=recipe.to_dict(), resume="allow")

    def write(self, row: dict[str, Any]) -> None:
        """Pass on one row."""
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        if self.board:
            self.board.add(numbers, row["step"])
        if self.wandb:
            self.wandb.log(numbers, step=row["step"])

    def finish(self, result: dict[str, Any]) -> None:
        """Pass on the evaluation."""
        if self.board:
            self.board.add({"evaluation/mean_return": result["mean_return"]}, result["steps"])
        if self.wandb:
            self.wandb.summary["mean_return"] = result["mean_return"]

    def close(self) -> None:
        """Flush."""
        if self.board:
            self.board.close()
        if self.wandb:
            self.wandb.finish()


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
