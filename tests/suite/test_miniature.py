"""A complete miniature study with real processes: sweep, stop, kill -9, continue, report, figure."""

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from waiting import until

from steadyq.report.sweep import write_sweep_report
from steadyq.run.folder import RunFolder
from steadyq.suite import launch
from steadyq.suite.plan import make_plan
from steadyq.suite.study import Study, find_study, read_study
from steadyq.suite.worker import train_once

STUDY = """
title = "Miniature"
games = ["MinAtar/Breakout"]
seeds = 2
[settings]
steps = 500
ensemble.members = 2
estimator.quantiles = 5
network.channels = 4
network.hidden = [16]
replay.warmup = 64
replay.batch = 8
replay.capacity = 300
regulation.every = 50
regulation.threshold = 1.03
explore.epsilon = "1 -> 0.01 linear 100 steps"
record.every = 25
record.checkpoint_every = 50
record.tensorboard = false
evaluation.episodes = 2
evaluation.random_episodes = 1
compute.device = "cpu"
[figure]
columns = ["return_10", "resets_per_check"]
[variants."forbid rewarded"]
operator.forbid = "rewarded"
[variants."forbid none"]
operator.forbid = "none"
"""


def trained(folder: Path) -> int:
    """Runs that have a checkpoint."""
    return len({file.parent.parent for file in folder.glob("*/checkpoints/0*")})


def sweep(study: Study, out: Path) -> tuple[int, str]:
    """The command's second half in this process: two runs at a time."""
    console = Console(file=io.StringIO(), width=200)
    plan = make_plan(study, out)
    code = launch.launch(plan, launch.launcher_for("local", plan, 2, 0.0, retries=0), console, retries=0)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_study_survives_a_kill_and_ends_with_its_figure(tmp_path: Path) -> None:
    (tmp_path / "mini.toml").write_text(STUDY)
    out, words = tmp_path / "sweep", tmp_path / "words.txt"
    command = [sys.executable, "-m", "steadyq", "sweep", "mini.toml", "--out", "sweep", "--jobs", "2"]
    with open(words, "w") as file:
        killed = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file)
    until(lambda: trained(out) >= 2 or killed.poll() is not None)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL, words.read_text()
    assert "2 variants x 2 seeds = 4 runs" in words.read_text()

    study = find_study(str(tmp_path / "mini.toml"))
    code, said = sweep(study, out)  # at once, while the runs of the killed sweep still save their state and end
    assert code == 0, said
    assert "4 finished of 4 runs" in said

    plan = make_plan(study, tmp_path / "alone")
    again = plan.entries[0]
    assert train_once(again.run.recipe, again.folder.path) == ("finished", "")
    interrupted = RunFolder(out / again.run.name)
    assert any(event["event"] == "resume" for event in interrupted.events())
    rows = [[{**row, "seconds": 0} for row in folder.metrics()] for folder in (interrupted, again.folder)]
    assert rows[0] == rows[1]
    weights = [load_file(folder.checkpoints()[-1] / "online.safetensors") for folder in (interrupted, again.folder)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())

    tables, files = write_sweep_report(out)
    assert "4 of 4 runs finished" in tables[-1].notes[-1].replace("\n", " ")
    assert out / "report" / "mini.svg" in files
    assert "; seeds 0, 1; protocol" in (out / "report" / "mini.svg").read_text()


def test_a_stop_saves_the_runs_and_says_how_to_continue(tmp_path: Path) -> None:
    study = read_study(STUDY, "mini").changed(seeds=1, settings={"steps": 100_000})
    out = tmp_path / "sweep"

    ended = threading.Event()

    def stop() -> None:
        until(lambda: trained(out) >= 2 or ended.is_set())
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    code, said = sweep(study, out)
    ended.set()
    stopper.join()
    assert code == 130, said
    assert "the same command continues where it was" in said
    for run in study.runs():
        folder = RunFolder(out / run.name)
        saved = int(folder.checkpoints()[-1].name)
        assert folder.metrics()[-1]["step"] <= saved < run.recipe.steps
        assert saved % 50 or folder.events()[-1]["step"] <= saved  # at the step where it stopped, nothing was lost
