"""The PPO baseline: the published network; a command that survives a kill, ends as if nothing had happened, and is read
like every other run; mistakes in one line."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from waiting import until

from steadyq import cli
from steadyq.baselines.ppo import Impala, Ppo, train_ppo
from steadyq.report.sweep import write_sweep_report
from steadyq.run.folder import RunFolder
from steadyq.suite.sweep import read_sweep
from steadyq.suite.tables import tables

SMALL = {"lanes": 2, "rollout": 8, "steps": 50, "episodes": 1}
WORDS = ["ppo", "CoinRun", *(word for name, value in SMALL.items() for word in (f"--{name}", str(value)))]


@pytest.fixture
def installed() -> Iterator[None]:
    """What PPO needs, on one core: it takes all that it is given, and threads that share theirs with other tests wait
    for each other spinning.
    """
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed (the extra sb3)")
    pytest.importorskip("envpool", reason="envpool is not installed (the extra procgen)")
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()]


def test_impala_is_the_published_network() -> None:
    network = Impala(3, 64)
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 256)
    weights = 0
    for inputs, depth in ((3, 16), (16, 32), (32, 32)):  # a convolution, then two blocks of two
        weights += 9 * inputs * depth + depth + 4 * (9 * depth * depth + depth)
    weights += 32 * 8 * 8 * 256 + 256
    assert sum(p.numel() for p in network.parameters()) == weights == 622_144


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_killed_run_continues_to_the_same_end_and_is_read_like_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "sweeps" / "ppo" / "Procgen-CoinRun-seed0")
    with open("words.txt", "w") as file:
        process = subprocess.Popen([sys.executable, "-m", "steadyq", *WORDS], stdout=file, stderr=file)
    until(lambda: folder.checkpoints() or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, Path("words.txt").read_text()
    code, said, _ = run(WORDS, capsys)
    assert code == 0
    assert "continuing at step" in said
    assert [event["event"] for event in folder.events() if event["event"] != "game"] == ["start", "resume"]

    alone = train_ppo(Ppo("Procgen/CoinRun", **SMALL), tmp_path / "alone")  # type: ignore[arg-type]
    assert rows(folder) == rows(alone)
    assert [row["step"] for row in rows(folder)] == [16, 32, 48, 64]  # whole rollouts
    assert rows(folder)[-1]["updates"] == 4 * 3 * 8
    mine, theirs = (load_file(each.checkpoints()[-1] / "policy.safetensors") for each in (folder, alone))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    result, other = folder.result, alone.result
    assert result is not None
    assert other is not None
    assert result["returns"] == other["returns"]
    assert (result["protocol"], result["steps"], result["episodes"]) == ("procgen-easy", 64, 1)
    assert result["versions"]["stable-baselines3"]

    assert run(WORDS, capsys)[1].count("already finished") == 1
    code, said, _ = run(["compare", str(folder.path)], capsys)
    assert code == 0
    assert "Procgen/CoinRun" in said
    (aggregates, *_) = tables(read_sweep(tmp_path / "sweeps" / "ppo"))
    names = [str(row[0].value) for row in aggregates.rows]
    assert [names[place] for place in aggregates.ours] == ["ppo"]
    assert "PPO (Impala CNN)" in names
    _, files = write_sweep_report(tmp_path / "sweeps" / "ppo")
    page = files[-1].read_text()
    assert "training on levels 0 to 199" in page
    assert "<dt>name</dt><dd>ppo</dd>" in page
    assert page.count("ppo: actions are sampled.") == 2
    code, _, wrong = run([*WORDS[:-1], "3"], capsys)
    assert code == 2
    assert "belongs to another sweep (episodes: 3 != 1)" in wrong


@pytest.mark.usefixtures("installed")
def test_a_stop_keeps_what_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(line: str) -> None:
        if "of 64 steps" in line:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RuntimeError, match=r"stopped at step 16, saved; run the same command to continue"):
        train_ppo(Ppo("Procgen/CoinRun", **SMALL), tmp_path / "run", stop)  # type: ignore[arg-type]
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.checkpoints()] == ["0000000016"]
    assert [row["step"] for row in folder.metrics()] == [16]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "ppo needs games"),
        (["CoinRnu"], "did you mean 'Procgen/CoinRun'?"),
        (["MinAtar/Breakout"], "the PPO baseline is for Procgen, MinAtar/Breakout is not"),
        (["CoinRun", "--seeds", "0"], "--seeds must be at least 1"),
        (["CoinRun", "--steps", "0"], "--steps must be at least 1"),
        (["CoinRun", "--lanes", "0"], "--lanes must be between 1"),
        (["CoinRun", "--out", "file"], "is a file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    code, _, wrong = run(["ppo", *words], capsys)
    assert code == 2
    assert says in wrong
    assert wrong.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_the_extra_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    code, _, wrong = run(["ppo", "CoinRun"], capsys)
    assert code == 2
    assert wrong == "steadyq: the PPO baseline needs Stable-Baselines3: pip install 'steadyq[sb3,procgen]'\n"
    assert list(tmp_path.iterdir()) == []
