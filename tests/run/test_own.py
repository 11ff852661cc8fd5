"""An own environment from Python: factories, arguments, wrappers, callbacks, evaluations on the way, early ends."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file

import steadyq as sq
from steadyq import UserError
from steadyq.run.callbacks import Evaluation, FinishedGame, Live
from steadyq.run.interim import Interim
from steadyq.run.loop import Interrupted
from steadyq.run.progress import Display

SMALL: dict[str, Any] = {
    "ensemble.members": 2,
    "network.hidden": (16,),
    "replay.warmup": 64,
    "record.tensorboard": False,
    "record.every": 50,
    "monitor.every": 0,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 2,
    "protocol.max_frames": 40,
}


class Corridor(gymnasium.Env):  # type: ignore[type-arg]
    """Left or right to the end that pays."""

    def __init__(self, size: int = 5, pay: float = 1.0) -> None:
        self.size, self.pay = size, pay
        self.observation_space, self.action_space = spaces.Discrete(size), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(1, self.size - 1))
        return self.at, {}

    def step(self, action: int) -> Any:
        self.at += 1 if action else -1
        reward = self.pay * (self.at == self.size - 1)
        return self.at, reward, self.at in (0, self.size - 1), False, {}


class Scaled(gymnasium.RewardWrapper[Any, Any]):
    """Rewards times a number."""

    def __init__(self, env: Any, by: float = 2.0) -> None:
        super().__init__(env)
        self.by = by

    def reward(self, reward: Any) -> float:
        return float(reward) * self.by


def corridor(size: int = 5) -> Corridor:
    return Corridor(size)


def shut(env: Any) -> int:
    return 3


def trained(path: Path, **more: Any) -> sq.RunFolder:
    options = {**SMALL, **more.pop("options", {})}
    return sq.train("steady", **{"env": corridor, "steps": 200, "quiet": True, **more, "options": options, "run": path})


def test_what_can_be_imported_is_named_by_where_it_is(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", env_kwargs={"size": 7}, wrappers=[(Scaled, {"by": 10})])
    assert run.recipe.env == f"Gymnasium/{__name__}:corridor"
    assert run.recipe.protocol.kwargs == ("size=7",)
    assert run.recipe.protocol.wrappers == (f"{__name__}:Scaled(by=10)",)
    scores = {event["score"] for event in run.events() if event["event"] == "game"}
    assert scores == {0.0, 10.0}
    agent = sq.load(run.path)
    assert agent.spec.frame_shape == (7,)
    assert agent.act(3) in (0, 1)
    assert sq.train(run.recipe, run=run.path, quiet=True).path == run.path  # no factory is needed any more


def test_a_class_a_name_and_a_recipe_take_arguments_and_wrappers_too() -> None:
    whole = sq.presets.steady(sq.environment(Corridor, {"size": 9, "pay": 0.5}, [Scaled]))
    assert whole.env == f"Gymnasium/{__name__}:Corridor"
    assert whole.network.kind == "mlp"
    lake = sq.presets.dqn(sq.environment("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}))
    assert lake.protocol.kwargs == ("map_name=8x8", "is_slippery=False")
    assert lake.env == "Gymnasium/FrozenLake-v1"
    twice = sq.presets.steady(sq.environment("CartPole-v1", wrappers=["gymnasium.wrappers.TimeAwareObservation"]))
    assert twice.protocol.wrappers == ("gymnasium.wrappers:TimeAwareObservation",)
    assert sq.Recipe.from_toml(twice.to_toml()) == twice
    assert sq.Recipe.from_toml(lake.to_toml()) == lake


def test_texts_keep_their_types() -> None:
    given = {"text": "8x8", "number": "8", "yes": True, "none": None, "list": [1, 2.5], "spaced": "a b"}
    from steadyq.envs.factories import keywords

    assert keywords(sq.environment("CartPole-v1", given).kwargs) == given
    assert keywords(["slippery=false", "size=3"]) == {"slippery": False, "size": 3}


class StopAt(Display):
    """Stops a run as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.at = step

    @property
    def gone(self) -> bool:  # type: ignore[override]
        return self.stopping

    stopping = False

    def step(self, training: Any, row: Any) -> None:
        self.stopping = training.step_count == self.at


def test_a_factory_that_cannot_be_imported_continues_in_its_own_script_and_says_so_elsewhere(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", env=lambda: Corridor(7))
    assert whole.recipe.env == "Gymnasium/<Corridor>"
    with pytest.raises(Interrupted):
        trained(tmp_path / "parts", env=lambda: Corridor(7), display=StopAt(130))
    parts = trained(tmp_path / "parts", env=lambda: Corridor(7))
    one, other = (load_file(run.checkpoints()[-1] / "online.safetensors") for run in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    from steadyq.envs import factories

    held = factories._local.pop("<Corridor>")
    try:
        with pytest.raises(
            UserError, match="was made by a function that cannot be imported, and this process does not"
        ):
            sq.load(whole.path)
    finally:
        factories._local["<Corridor>"] = held


SCRIPT = """
    import os, signal, sys
    import steadyq as sq
    import their_room

    class Kill(sq.Callback):
        def on_step(self, run):
            if len(sys.argv) > 2 and run.step == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)

    options = {"ensemble.members": 2, "network.hidden": (8,), "replay.warmup": 64, "record.checkpoint_every": 70}
    options |= {"evaluation.episodes": 2, "evaluation.random_episodes": 1, "record.tensorboard": False}
    options |= {"protocol.max_frames": 40, "evaluation.every": 60, "evaluation.interim_episodes": 3}
    sq.train("steady", env=their_room.make, env_kwargs={"size": 6}, options=options, steps=200, run=sys.argv[1],
             callbacks=[Kill()], quiet=True)
"""
ROOM = """
    from tests_own import Corridor

    def make(size):
        return Corridor(size)
"""


def test_a_killed_script_goes_on_bit_for_bit_and_the_command_line_plays_it_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "their_room.py").write_text(textwrap.dedent(ROOM))
    (tmp_path / "tests_own.py").write_text(Path(__file__).read_text())
    for run, kill in (("whole", []), ("parts", ["170"]), ("parts", [])):
        done = subprocess.run([sys.executable, "train.py", run, *kill], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == (-9 if kill else 0), done.stderr
    one, other = (sq.RunFolder(tmp_path / run).checkpoints()[-1] for run in ("whole", "parts"))
    for name in ("online", "best", "replay"):
        if (one / f"{name}.safetensors").exists():
            mine, theirs = (load_file(path / f"{name}.safetensors") for path in (one, other))
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    evaluations = [
        [event for event in sq.RunFolder(tmp_path / run).events() if event["event"] == "evaluation"]
        for run in ("whole", "parts")
    ]
    assert evaluations[0] == evaluations[1]
    assert [event["step"] for event in evaluations[0]] == [60, 120, 180]
    words = [sys.executable, "-P", "-m", "steadyq", "evaluate", "whole", "--episodes", "1", "--networks", "best"]
    played = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert played.returncode == 0, played.stderr
    assert f"importing their_room ({tmp_path / 'their_room.py'}) for Gymnasium/their_room:make" in played.stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"env": Corridor()}, "not one that is made .Corridor.: several are needed, so write env=lambda"),
        ({"env": 3}, "env takes a name such as 'CartPole-v1', or what makes an environment; got 3"),
        ({"env": lambda: 3}, "the factory returned 3; it must return a Gymnasium environment"),
        ({"env_kwargs": {"size": object()}}, "cannot be written into a recipe"),
        ({"env_kwargs": {"sice": 3}}, "cannot make .*unexpected keyword argument 'sice'"),
        ({"wrappers": ["nothing"]}, "'nothing' names no wrapper: write module:Wrapper"),
        (
            {"wrappers": ["os:system(command='true')"]},
            "os:system makes no wrapper: name a class of Gymnasium's Wrapper",
        ),
        (
            {"wrappers": ["subprocess:call"]},
            "makes no wrapper: name a class of Gymnasium's Wrapper, or a function in a",
        ),
        ({"wrappers": [Scaled, shut]}, "returned 3; it must return a Gymnasium environment"),
        ({"wrappers": [(Scaled, {"of": 3})]}, "failed: TypeError"),
        (
            {"env": "no_such_module:Room"},
            "cannot be imported: No module named 'no_such_module' .modules are looked for",
        ),
        ({"env": f"{__name__}:Rom"}, "has no Rom: it makes no environment"),
        ({"env": "subprocess:getoutput", "env_kwargs": {"cmd": "true"}}, "subprocess:getoutput makes no environment"),
        ({"env": "MinAtar/Breakout", "env_kwargs": {"size": 3}}, "protocol.kwargs is .*means nothing to minatar"),
        ({"callbacks": [print]}, "callbacks are objects of a class that extends steadyq.Callback"),
        (
            {"options": {"evaluation.target": 3.0}},
            "evaluation.target needs evaluations on the way: set evaluation.every",
        ),
        ({"options": {"evaluation.patience": 3}}, "evaluation.patience needs evaluations on the way"),
    ],
)
def test_what_cannot_work_is_said_in_one_line_and_nothing_is_written(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        trained(tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


def test_a_preset_needs_an_environment_and_a_recipe_keeps_its_backend() -> None:
    with pytest.raises(UserError, match=r"train\('steady'\) needs an environment"):
        sq.train("steady")
    with pytest.raises(UserError, match="the recipe is for Gymnasium/CartPole-v1, not for MinAtar/Breakout"):
        sq.train(sq.presets.steady("CartPole-v1"), env="MinAtar/Breakout")
    with pytest.raises(UserError, match="train takes a preset's name, or a recipe"):
        sq.train(3)  # type: ignore[arg-type]


class Heard(sq.Callback):
    """Writes down what it is told, and stops after so many games."""

    def __init__(self, games: int = 10**9) -> None:
        self.most, self.games, self.rows, self.steps = games, list[FinishedGame](), list[int](), list[int]()
        self.evaluations = list[Evaluation]()

    def on_step(self, run: Live) -> None:
        self.steps.append(run.step)

    def on_game(self, run: Live, game: FinishedGame) -> None:
        self.games.append(game)
        if run.games == self.most:
            run.stop("it has played enough")

    def on_row(self, run: Live, row: dict[str, Any]) -> None:
        self.rows.append(row["step"])

    def on_evaluation(self, run: Live, evaluation: Evaluation) -> None:
        assert run.agent().act(2) in (0, 1)
        self.evaluations.append(evaluation)


def test_callbacks_hear_everything_and_change_nothing(tmp_path: Path) -> None:
    heard = Heard()
    options = {"evaluation.every": 80, "evaluation.interim_episodes": 3}
    told = trained(tmp_path / "told", callbacks=[heard], options=options)
    plain = trained(tmp_path / "plain")
    assert heard.steps == list(range(1, 201))
    assert heard.rows == [50, 100, 150, 200]
    games = [event for event in told.events() if event["event"] == "game"]
    assert [(game.step, game.score) for game in heard.games] == [(event["step"], event["score"]) for event in games]
    assert [evaluation.step for evaluation in heard.evaluations] == [80, 160]
    one, other = (load_file(run.checkpoints()[-1] / "online.safetensors") for run in (told, plain))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert told.result is not None
    assert plain.result is not None
    assert told.result["returns"] == plain.result["returns"]
    assert told.result["evaluations"] == 2


def test_a_callback_ends_a_run_which_stays_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", callbacks=[Heard(5)], quiet=False)
    assert run.result is not None
    assert run.result["stopped"] == "it has played enough"
    assert run.result["games"] == 5
    assert run.result["steps"] < 200
    assert f"stopped at step {run.result['steps']} of 200: it has played enough" in capsys.readouterr().out
    (run.path / "result.json").unlink()  # as if killed while it was evaluated
    again = trained(tmp_path / "run")
    assert again.result is not None
    assert again.result["steps"] == run.result["steps"]
    assert again.result["returns"] == run.result["returns"]


def test_what_a_callback_raises_loses_nothing(tmp_path: Path) -> None:
    class Broken(sq.Callback):
        def on_step(self, run: Live) -> None:
            if run.step == 120:
                raise RuntimeError("mine")

    whole = trained(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="mine"):
        trained(tmp_path / "parts", callbacks=[Broken()])
    assert int(sq.RunFolder(tmp_path / "parts").checkpoints()[-1].name) == 120
    parts = trained(tmp_path / "parts")
    assert whole.result is not None
    assert parts.result is not None
    assert whole.result["returns"] == parts.result["returns"]


def test_a_target_ends_a_run_and_its_best_weights_are_kept(tmp_path: Path) -> None:
    options = {"evaluation.every": 50, "evaluation.interim_episodes": 4, "evaluation.target": -1.0}
    run = trained(tmp_path / "run", options=options)
    assert run.result is not None
    assert run.result["steps"] == run.result["best_step"] == 50
    assert "evaluation.target -1" in run.result["stopped"]
    best, acting = sq.load(run.path, networks="best"), sq.load(run.path)
    assert best.step == 50
    assert all(torch.equal(best.params[name], acting.params[name]) for name in best.params)
    with pytest.raises(UserError, match=r"has kept no best weights: train it with evaluation.every above 0"):
        sq.load(trained(tmp_path / "plain").path, networks="best")


def test_the_best_is_the_first_of_the_highest_and_patience_counts_from_it() -> None:
    recipe = sq.presets.steady("CartPole-v1", **{"evaluation.every": 10, "evaluation.patience": 2})
    interim = Interim(recipe, [])
    assert not interim.due(9)
    assert interim.due(10)
    assert [interim.take(step, value) for step, value in ((10, 1.0), (20, 3.0), (30, 3.0))] == [True, True, False]
    assert not interim.due(39)
    assert interim.due(45)
    assert interim.enough is None
    interim.take(45, 2.0)
    assert interim.enough == "no better evaluation than 3.00 at step 20 in the last 2"
    events = [
        {"event": "evaluation", "step": step, "mean_return": value} for step, value in ((10, 1.0), (20, 3.0), (30, 3.0))
    ]
    again = Interim(recipe, [{"event": "game", "step": 3, "score": 9.0}, *events])
    assert (again.best, again.best_step, again.worse, again.last) == (3.0, 20, 1, 30)


def test_progress_is_shown_unless_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "quiet")
    assert capsys.readouterr().out == ""
    trained(tmp_path / "shown", quiet=False)
    said = capsys.readouterr().out
    assert "observation: Discrete as one vector of 5, choices as one-hot; 2 actions" in said
    assert "mean return" in said


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_line_of_progress_keeps_what_matters_and_fits(width: int) -> None:
    from types import SimpleNamespace

    from steadyq.run.progress import BAR, WIDE, describe
    from steadyq.schedule import Schedule

    training: Any = SimpleNamespace(
        step_count=1_234_567, recent=[1234.5] * 20, epsilon=Schedule.of(0.05), resets=1234, learner=None
    )
    room = width - (BAR if width >= WIDE else BAR // 3) - len(" 100% ") - 1
    line = describe(training, 10_000_000, (12.3, 45.6), room)
    assert len(line) <= room
    for part in ("1,234,567 steps", "return 1234.5", "left"):
        assert part in line
    assert ("(last 10 games)" in line) == (width >= 120 and len(describe(training, 10_000_000, (12.3, 45.6))) <= room)
