"""A module named in a run folder is imported by the commands that play, which say so, and by no other."""

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from steadyq import cli, environment, envs, presets
from steadyq.build import network_for
from steadyq.envs.modules import findable, module_of, no_imports, said_imports
from steadyq.errors import UserError

pytestmark = pytest.mark.hostile

MODULE = """
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
with open(Path(__file__).with_name("imports.txt"), "a") as file:
    file.write("once\\n")
gymnasium.register("Stranger-v0", CartPoleEnv, max_episode_steps=50)
"""
QUICK = ["--network.hidden", "8", "--ensemble.members", "2", "--estimator.quantiles", "3", "--replay.warmup", "40"]
QUICK += ["--record.every", "20", "--monitor.every", "20", "--monitor.batch", "8", "--evaluation.episodes", "1"]
QUICK += ["--evaluation.random-episodes", "1", "--record.no-tensorboard", "--steps", "80"]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(words))
    assert isinstance(stop.value.code, int)
    return stop.value.code


class Place:
    """A folder with a module in it, and how often that was imported since it was last forgotten."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, str(path / "run")
        (path / "stranger.py").write_text(MODULE)

    def forget(self) -> None:
        sys.modules.pop("stranger", None)
        gymnasium.registry.pop("Stranger-v0", None)
        (self.path / "imports.txt").unlink(missing_ok=True)

    @property
    def imports(self) -> int:
        file = self.path / "imports.txt"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        found = Place(tmp_path_factory.mktemp("place"))
        patch.syspath_prepend(found.path)
        assert run("train", "stranger:Stranger-v0", "--run", found.run, *QUICK) == 0
        assert found.imports == 1
        yield found
        found.forget()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["report", "RUN", "--out", "page.html"], 0),
        (["compare", "RUN"], 0),
        (["compare", "RUN", "--figure", "figure.svg"], 0),
        (["diagnose", "RUN"], 0),
        (["diagnose", "RUN", "--probe"], 2),
        (["presets", "steady", "--env", "stranger:Stranger-v0"], 2),
    ],
)
def test_reading_imports_nothing(
    words: list[str],
    code: int,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    place.forget()
    assert run(*(place.run if word == "RUN" else word for word in words)) == code
    assert place.imports == 0
    if code:
        assert "which only train, evaluate, play and sweep import" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN", "--episodes", "1"],
        ["train", "stranger:Stranger-v0", "--run", "RUN", *QUICK],
        ["sweep", "study.toml", "--dry-run"],
    ],
)
def test_playing_says_what_it_imports(
    words: list[str],
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text('games = ["stranger:Stranger-v0"]\nseeds = 1\n')
    place.forget()
    capsys.readouterr()
    assert run(*(place.run if word == "RUN" else word for word in words)) == 0
    assert place.imports == 1
    assert f"importing stranger ({place.path / 'stranger.py'}) for " in capsys.readouterr().out


def test_reading_imports_no_wrapper_and_no_network(place: Place) -> None:
    place.forget()
    wrapped = presets.steady(environment("CartPole-v1")).override({"protocol.wrappers": ("stranger:Wrapper",)})
    own = presets.steady("CartPole-v1", **{"network.kind": "own", "network.factory": "stranger:network"})
    with no_imports():
        for work in (
            lambda: envs.spec(wrapped.env, wrapped.protocol),
            lambda: network_for(own, envs.spec(own.env, own.protocol)),
        ):
            with pytest.raises(UserError, match="is made by the module stranger, which only train"):
                work()
    assert place.imports == 0


def test_a_module_in_a_runs_folder_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_it.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text("")
    findable("beside_it")
    assert str(tmp_path) not in sys.path
    (tmp_path / "recipe.toml").unlink()
    findable("beside_it")
    assert sys.path[-1] == str(tmp_path)


def test_what_an_id_names() -> None:
    assert module_of("CartPole-v1") is None
    assert module_of("Gymnasium/my.envs:My-v0") == "my.envs"
    assert said_imports("CartPole-v1") == []
    assert said_imports("no_such.envs:My-v0") == ["importing no_such.envs (not found) for no_such.envs:My-v0"]
    for wrong in ("../up:Env-v0", "os;rm:Env-v0", ":Env-v0", "a:\x1b[2J-v0", "a b:Env-v0"):
        with pytest.raises(UserError, match=r"names no module and environment, such as module:Id-v0") as error:
            module_of(wrong)
        assert str(error.value).isprintable()
