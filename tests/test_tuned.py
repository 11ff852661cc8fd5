"""Tuned recipes: what ships is what the experiment found, and `--tuned` trains it."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import steadyq as sq
from steadyq import presets
from steadyq.cli import main
from steadyq.run.folder import RunFolder

ROOT = Path(__file__).parents[1]
CLASSICS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "FrozenLake-v1", "Taxi-v4")
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
SHORT = "--steps 150 --evaluation.episodes 1 --evaluation.random-episodes 1 --network.hidden 8"
SHORT += " --replay.every 1 --replay.ratio 1"


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tuned_experiment", ROOT / "experiments" / "tuned.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_environment_has_its_recipe() -> None:
    wanted = sorted([*(f"Gymnasium/{name}" for name in CLASSICS), *(f"MinAtar/{name}" for name in GAMES)])
    assert presets.tuned_environments() == wanted
    for env in wanted:
        recipe = presets.tuned(env)
        assert recipe.env == env
        as_it_is = recipe == presets.recipe_for(recipe.preset, env)
        assert as_it_is == (env == "Gymnasium/CartPole-v1"), env  # where nothing that was tried beats it
        assert presets.tuned(env, seed=3).seed == 3


def test_what_ships_is_what_the_experiment_found(experiment: ModuleType) -> None:
    found = experiment.Experiment(experiment.JSON)
    files = {file.name: file.read_text() for file in experiment.SHIPPED.iterdir()}
    assert files == experiment.shipped(found)
    document = experiment.DOCUMENT.read_text()
    assert experiment.documented(found, document) == document


def test_tuned_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            ["train", "CartPole-v1", "--tuned", *SHORT.split(), "--replay.warmup", "70", "--run", str(tmp_path / "run")]
        )
    assert ended.value.code == 0
    recipe, wanted = RunFolder(tmp_path / "run").recipe, presets.tuned("CartPole-v1")
    assert (recipe.preset, recipe.optim, recipe.explore) == (wanted.preset, wanted.optim, wanted.explore)
    assert (recipe.steps, recipe.network.hidden) == (150, (8,))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("CartPole-v1 --tuned --preset dqn", "--tuned and --preset: a tuned recipe has its own, choose one of the two"),
        ("CartPole-v1 --tuned --recipe=a.toml", "--tuned and --recipe: a tuned recipe has its own"),
        ("Pendulum-v1 --tuned", "Pendulum-v1"),
        ("CliffWalking-v1 --tuned", "no recipe was tuned for Gymnasium/CliffWalking-v1: there are Acrobot-v1, "),
    ],
)
def test_what_has_no_tuned_recipe_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", *words.split()])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_the_list_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["presets", "--tuned"])
    said = capsys.readouterr().out
    assert all(env in said for env in presets.tuned_environments())


def test_the_experiment_goes_on_where_it_stopped(
    experiment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tuned.toml").write_text(
        "[Gymnasium-CartPole-v1]\nsteps = 90\nzoo = { dqn = 500.0 }\n"
        "[Gymnasium-CartPole-v1.candidates.a]\npreset = 'dqn'\nnetwork.hidden = [8]\nreplay.warmup = 50\n"
        "[lunar]\nenv = 'CartPole-v1'\nsteps = 80\n[lunar.variants.dqn]\npreset = 'dqn'\nnetwork.hidden = [4]\n"
    )
    monkeypatch.setattr(experiment, "HERE", tmp_path)
    monkeypatch.setattr(experiment, "JUDGE", range(1))
    monkeypatch.setattr(experiment, "QUIET", {**experiment.QUIET, "evaluation.episodes": 2})
    file = tmp_path / "tuned.json"
    first = experiment.Experiment(file)
    monkeypatch.setattr(experiment.Experiment, "untuned", lambda *_: [])
    assert experiment.run(first, tmp_path / "runs", jobs=1, minutes=10) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 runs are there, 0 to go"
    written = json.loads(file.read_text())
    kept = written["scores"]
    assert len(written["machines"]) == 1
    assert list(kept) == ["Gymnasium-CartPole-v1/a/0", "lunar/dqn/0"]
    again = experiment.Experiment(file)
    assert list(again.waiting()) == []
    table = experiment.tables(again)
    assert f"| CartPole-v1 | 90 | a | `dqn` | 1 | {kept['Gymnasium-CartPole-v1/a/0']:.1f} |  | 500.0 |  |" in table
    assert 'preset = "dqn"' in experiment.shipped(again)["Gymnasium-CartPole-v1.toml"]


def test_a_recipe_can_be_trained_from_python(tmp_path: Path) -> None:
    small = {"steps": 120, "network.hidden": (8,), "replay.warmup": 70, "evaluation.episodes": 1}
    folder = sq.train(presets.tuned("FrozenLake-v1", **small), run=tmp_path / "run", quiet=True)
    assert folder.result is not None
