"""TensorBoard's copy of the metrics: all of them, once, and nothing about the machine."""

import os
import socket
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from steadyq.presets import steady
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display
from steadyq.run.step import Training

pytestmark = pytest.mark.hostile

SMALL = {"replay.warmup": 40, "network.hidden": (8,), "estimator.quantiles": 3, "ensemble.members": 2}
SMALL |= {"record.every": 20, "record.checkpoint_every": 50, "evaluation.episodes": 1, "evaluation.random_episodes": 1}


def test_a_board_shows_every_row_once_and_names_no_host(tmp_path: Path) -> None:
    class Stop(Display):
        def step(self, training: Training, row: dict[str, object] | None) -> None:
            if training.step_count == 70:
                raise Interrupted

    recipe = steady("CartPole-v1", steps=120, **SMALL)
    try:
        train(recipe, run=tmp_path / "run", display=Stop())
    except Interrupted:
        folder = train(recipe, run=tmp_path / "run")
    files = sorted((tmp_path / "run" / "tensorboard").iterdir())
    assert len(files) == 2
    for file in files:
        assert file.name.replace(".", "").removeprefix("eventsouttfevents").isdigit()
        for secret in (socket.gethostname(), f".{os.getpid()}."):
            assert secret.encode() not in file.name.encode() + file.read_bytes()
    board = EventAccumulator(str(files[0].parent))
    board.Reload()
    for column in ("epsilon", "games"):
        assert [point.step for point in board.Scalars(column)] == [row["step"] for row in folder.metrics()]
    assert folder.result is not None
    assert [point.value for point in board.Scalars("evaluation/mean_return")] == [folder.result["mean_return"]]
