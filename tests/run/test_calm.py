"""Signals, terminals that go away, file systems without locks, memory that runs out: a run keeps what it has."""

import contextlib
import errno
import fcntl
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from steadyq import RunFolder, UserError, cli, presets
from steadyq.recipe import Recipe
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display, SafeConsole, Terminal
from steadyq.run.step import Training
from steadyq.run.writer import Busy, begin
from steadyq.suite.launch import launch
from steadyq.suite.local import LocalProcesses
from steadyq.suite.plan import make_plan
from steadyq.suite.study import read_study
from steadyq.suite.worker import train_once

pytestmark = pytest.mark.surroundings

SMALL: dict[str, Any] = {"replay.warmup": 40, "network.hidden": (8,), "estimator.quantiles": 3, "ensemble.members": 2}
SMALL |= {"record.every": 20, "record.checkpoint_every": 50, "evaluation.episodes": 1, "evaluation.random_episodes": 1}
SMALL |= {"record.tensorboard": False, "monitor.every": 0, "compute.threads": 1}
ENDLESS = ["train", "CartPole-v1", "--steps", "10000000", "--run", "run", "--replay.warmup", "40"]
ENDLESS += ["--network.hidden", "8", "--record.checkpoint-every", "50", "--record.no-tensorboard"]


def small(steps: int = 120, **changes: Any) -> Recipe:
    return presets.steady("CartPole-v1", steps=steps, **{**SMALL, **changes})


class At(Display):
    """Does something at one step."""

    def __init__(self, step: int, what: Callable[[], object]) -> None:
        self.at, self.what = step, what

    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == self.at:
            self.what()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_state_at_its_step(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="stopped at step 73, saved; run the same command to continue"):
        train(small(), run=tmp_path / "run", display=At(73, lambda: os.kill(os.getpid(), number)))
    assert [path.name for path in RunFolder(tmp_path / "run").checkpoints()] == ["0000000073"]
    assert signal.getsignal(number) is before


def test_under_nohup_a_hangup_changes_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        display = At(73, lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert train(small(), run=tmp_path / "run", display=display).result is not None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_saves_the_state(tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and every write to the terminal fails from then on."""
    process, terminal = pty.fork()
    if not process:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "steadyq", *ENDLESS])
    os.set_blocking(terminal, False)
    folder = RunFolder(tmp_path / "run")

    def begun() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 1 << 16)
        return bool(folder.checkpoints())

    until(begun)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    newest = int(folder.checkpoints()[-1].name)
    assert [row["step"] for row in folder.metrics() if row["step"] > newest] == []
    assert folder.events()[-1]["step"] <= newest


def test_a_pipe_that_nobody_reads_any_more_saves_the_state(tmp_path: Path) -> None:
    read, write = os.pipe()
    console = SafeConsole(file=open(write, "w"), width=100)  # noqa: SIM115 closed below
    display = Terminal(console)
    with pytest.raises(Interrupted, match="saved"):
        train(small(steps=1000), run=tmp_path / "run", display=Closing(display, read))
    assert RunFolder(tmp_path / "run").checkpoints()
    with pytest.raises(BrokenPipeError):
        console.file.close()


class Closing(Terminal):
    """A terminal whose reader goes away at step 60."""

    def __init__(self, terminal: Terminal, handle: int) -> None:
        super().__init__(terminal.console)
        self.handle = handle

    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == 60:
            os.close(self.handle)
        self.last_shown = 0.0
        super().step(training, row)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_not_another_process(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: object, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"is on a file system that keeps no locks \(.+\), so that two") as error:
        begin(RunFolder(tmp_path / "run"), small())
    assert not isinstance(error.value, Busy)
    assert train_once(small(), tmp_path / "run")[0] == "refused"  # and a sweep does not wait for it


def test_a_sweep_on_a_file_system_without_locks_comes_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(
        "import errno, fcntl, os\n"
        "def flock(handle, how):\n    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))\n"
        "fcntl.flock = flock\n"
    )
    (tmp_path / "mini.toml").write_text('games = ["CartPole-v1"]\nseeds = 1\n')
    path = os.pathsep.join([str(tmp_path / "patch"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "steadyq", "sweep", "mini.toml", "--out", "sweep", "--jobs", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("keeps no locks") == 2  # when it happens, and at the end
    assert "trained elsewhere" not in done.stdout


LIMITED = """
import resource, sys
from steadyq import cli
import torch, steadyq.run.loop
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 2**20,) * 2)
cli.main(sys.argv[2:])
"""


def test_memory_that_runs_out_is_one_line_and_the_run_stays(tmp_path: Path) -> None:
    settings = {**SMALL, "replay.capacity": 3_000_000}
    recipe = presets.steady("CartPole-v1", steps=120, **settings)
    with pytest.raises(Interrupted):
        train(recipe, run=tmp_path / "run", display=At(70, stop))
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    words = ["train", "CartPole-v1", "--steps", "120", "--run", "run", "--record.no-tensorboard"]
    for name, value in settings.items():
        if not isinstance(value, bool):
            words += [f"--{name}", str(value[0] if isinstance(value, tuple) else value)]
    done = subprocess.run([sys.executable, "-c", LIMITED, "100", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("steadyq: memory has run out (")
    assert "the same command continues" in done.stderr
    after = {file: file.read_bytes() for file in before if file.suffix != ".jsonl"}
    assert after == {file: content for file, content in before.items() if file.suffix != ".jsonl"}
    assert train(recipe, run=tmp_path / "run").result is not None


def stop() -> None:
    raise Interrupted


def test_a_kill_between_result_and_clean_up_leaves_no_replay_buffer_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyq.run.folder.SMALL_REPLAY", 0)
    replay = train(small(), run=tmp_path / "run").checkpoints()[-1] / "replay.safetensors"
    assert not replay.exists()
    replay.write_bytes(b"as it was")
    holder = begin(RunFolder(tmp_path / "run"), small())
    train(small(), run=tmp_path / "run")  # another process has the folder, and will see to it
    assert replay.exists()
    holder.close()
    train(small(), run=tmp_path / "run")
    assert not replay.exists()


def test_a_sweep_sees_to_its_finished_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyq.run.folder.SMALL_REPLAY", 0)
    study = read_study('games = ["CartPole-v1"]\nseeds = 1\n', "mini").changed(
        settings={**SMALL, "steps": 120, "network.hidden": [8]}
    )
    (entry,) = make_plan(study, tmp_path / "sweep").entries
    replay = train(entry.run.recipe, run=entry.folder.path).checkpoints()[-1] / "replay.safetensors"
    replay.write_bytes(b"as it was")
    (tmp_path / "sweep" / "sweep.toml").write_text(study.to_toml())
    assert launch(make_plan(study, tmp_path / "sweep"), LocalProcesses(tmp_path / "sweep", 1), SafeConsole()) == 0
    assert not replay.exists()


def test_a_file_that_never_ends_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in ("/dev/full", "/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        with pytest.raises(SystemExit) as stop:
            cli.main(["bench", "--show", file])
        assert (stop.value.code, capsys.readouterr().err) == (2, f"steadyq: {file} is not a plain file\n")
