"""A run's process: nothing of the working folder is imported, and nothing trains on when the sweep is gone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from steadyq import cli
from steadyq.presets import steady
from steadyq.recipe import Recipe
from steadyq.run.folder import RunFolder
from steadyq.suite.local import LocalProcesses
from steadyq.suite.plan import make_plan
from steadyq.suite.study import Study, read_study
from steadyq.suite.worker import EXIT, START, isolated, receive, search_path, send

pytestmark = pytest.mark.surroundings

STUDY = """
games = ["CartPole-v1"]
seeds = 1
[settings]
steps = 200
ensemble.members = 2
estimator.quantiles = 3
network.hidden = [8]
replay.warmup = 40
record.checkpoint_every = 20
record.tensorboard = false
evaluation.episodes = 1
evaluation.random_episodes = 1
compute.device = "cpu"
"""


@pytest.fixture
def study() -> Study:
    return read_study(STUDY, "mini")


def finish(launcher: LocalProcesses) -> tuple[str, str]:
    """How the only run ended, and with which words."""
    ended: list[tuple[str, str]] = []
    until(lambda: ended.extend((ending, words) for _, ending, words in launcher.poll()) or ended)
    return ended[0]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules that say when they are imported, and one that is an environment."""
    for name in ("random", "torch", "numpy", "gymnasium", "steadyq", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Mine-v0', CartPoleEnv, max_episode_steps=50)\n"
    )
    (tmp_path / "elsewhere" / "random.py").write_text("raise SystemExit('imported from the folder of a module')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("game", ["CartPole-v1", "mine:Mine-v0"])
def test_nothing_of_the_working_folder_is_imported(
    game: str, hostile: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep + os.environ.get("PYTHONPATH", ""))  # empty entries mean the folder too
    monkeypatch.syspath_prepend(hostile / "elsewhere")
    (entry,) = make_plan(study.changed(games=[game]), hostile / "sweep").entries
    launcher = LocalProcesses(hostile / "sweep", jobs=1)
    launcher.start([entry])
    assert finish(launcher) == ("finished", "")
    assert entry.folder.result is not None


def test_a_recipe_arrives_whole_or_not_at_all() -> None:
    recipe = steady("CartPole-v1", steps=5)
    read, write = os.pipe()
    with open(write, "w") as stream:
        send(stream, recipe)
        stream.write(recipe.to_toml())
    with open(read) as stream:
        assert receive(stream) == recipe
        assert receive(stream) is None


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[Recipe], "subprocess.Popen[str]"]]:
    begun: list[subprocess.Popen[str]] = []

    def begin(recipe: Recipe) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", START, json.dumps([str(tmp_path / "run")]), *search_path(recipe)]
        with open(tmp_path / "words.txt", "w") as words:
            begun.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stderr=words, env=isolated(os.environ), text=True)
            )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait()


LONG = {"replay.warmup": 40, "network.hidden": (8,), "record.checkpoint_every": 50, "record.tensorboard": False}


def test_a_sweep_gone_while_its_worker_imports_leaves_nothing_training(
    worker: Callable[[Recipe], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    recipe = steady("CartPole-v1", steps=10_000_000, **LONG)
    process = worker(recipe)
    assert process.stdin is not None
    send(process.stdin, recipe)
    process.stdin.close()  # as the kernel does for a killed sweep; the worker has not even imported PyTorch
    assert process.wait() in (-signal.SIGTERM, EXIT["stopped"])
    assert not RunFolder(tmp_path / "run").metrics()


def test_a_sweep_gone_before_it_has_said_all_starts_nothing(
    worker: Callable[[Recipe], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    process = worker(steady("CartPole-v1"))
    assert process.stdin is not None
    process.stdin.write("env = ")
    process.stdin.close()
    assert process.wait() == EXIT["stopped"]
    assert not (tmp_path / "run").exists()


def test_a_sweep_gone_in_training_leaves_the_state_saved(
    worker: Callable[[Recipe], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    recipe = steady("CartPole-v1", steps=10_000_000, **LONG)
    process = worker(recipe)
    assert process.stdin is not None
    send(process.stdin, recipe)
    folder = RunFolder(tmp_path / "run")
    until(lambda: folder.checkpoints() or process.poll() is not None)
    process.stdin.close()
    assert process.wait() == EXIT["stopped"], (tmp_path / "words.txt").read_text()
    assert "saved; run the same command to continue" in (tmp_path / "words.txt").read_text()


ROOM = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from steadyq.envs.episodes import seed_of_game

SICK = {seed_of_game(1, True, 0, number) for number in range(3)}


class Room(CartPoleEnv):
    def reset(self, *, seed=None, options=None):
        self.sick = seed in SICK
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self.sick and self.state[0] > 0.05 else reward, *rest


def make():
    return gymnasium.wrappers.TimeLimit(Room(), 30)
"""


def test_seeds_trained_as_one_program_and_the_trouble_of_one_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_room.py").write_text(ROOM)
    (tmp_path / "study.toml").write_text(
        'games = ["my_room:make"]\nseeds = 3\n[settings]\nsteps = 300\nreplay.warmup = 64\nnetwork.hidden = [16]\n'
        "record.tensorboard = false\nevaluation.episodes = 2\nevaluation.random_episodes = 1\nmonitor.every = 0\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", "study.toml", "--together", "3", "--jobs", "1", "--retries", "0", "--out", "s"])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    folders = {seed: RunFolder(tmp_path / "s" / f"Gymnasium-my-room-make-seed{seed}") for seed in range(3)}
    assert [seed for seed, folder in folders.items() if folder.result is not None] == [0, 2]
    assert "each up to 3 seeds in one program" in said
    assert said.count("goes on alone") == 3
    assert f"failed: {folders[1].path.name}" in said
    assert folders[0].result is not None
    assert folders[0].result["steps"] == 300
