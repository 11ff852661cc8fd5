"""Environments that misbehave: one line that names them, the state kept, and the same command goes on once mended."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file

import steadyq as sq
from steadyq import cli
from steadyq.envs import BadEnvironment
from steadyq.run.progress import Display

pytestmark = pytest.mark.environments

SMALL = {
    "ensemble.members": 2,
    "network.hidden": (16,),
    "estimator.quantiles": 5,
    "replay.warmup": 64,
    "replay.batch": 8,
    "replay.every": 4,
    "record.tensorboard": False,
    "record.every": 50,
    "record.checkpoint_every": 100,
    "monitor.every": 50,
    "monitor.batch": 16,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 1,
}
STEPS, FAULTY_STEP = 300, 217


def recurse() -> None:
    recurse()


def raises(observation: np.ndarray) -> Any:
    raise KeyError("no such thing")


class Walk(gymnasium.Env):  # type: ignore[type-arg]
    """A walk of noisy steps that goes wrong in the way a test asks for."""

    steps: ClassVar[int] = 0  # of all games since the test began
    fault: ClassVar[Any] = None
    ignores_seed: ClassVar[bool] = False

    def __init__(self) -> None:
        self.action_space, self.observation_space = spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (3,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=None if self.ignores_seed else seed)
        self.place, self.count = self.np_random.normal(size=3), 0
        return self.place.copy(), {}

    def step(self, action: int) -> Any:
        Walk.steps += 1
        self.count += 1
        if self.fault is not None and Walk.steps >= FAULTY_STEP:
            return type(self).fault(self.place)
        self.place += self.np_random.normal(size=3) * 0.1 + (0.1 if action else -0.1)
        return self.place.copy(), float(self.place[0] > 0), bool(self.count >= 40), False, {}


@pytest.fixture(autouse=True)
def walk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gymnasium.register("SteadyQWalk-v0", Walk)
    monkeypatch.setattr(Walk, "steps", 0)
    monkeypatch.setattr(Walk, "fault", None)
    monkeypatch.setattr(Walk, "ignores_seed", False)
    yield
    del gymnasium.registry["SteadyQWalk-v0"]


def recipe() -> sq.Recipe:
    return sq.presets.steady("SteadyQWalk-v0", steps=STEPS, **SMALL)


def learned(folder: sq.RunFolder) -> dict[str, Any]:
    """All that the run has learned and measured, less clocks and what an interruption adds."""
    newest = folder.checkpoints()[-1]
    tensors = {name: load_file(newest / f"{name}.safetensors") for name in ("online", "target", "adam_second", "loop")}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in [*folder.metrics(), *folder.diagnostics()]]
    events = [row for row in folder.events() if row["event"] not in ("start", "resume", "environment")]
    return {"tensors": tensors, "rows": rows, "events": events, "returns": (folder.result or {}).get("returns")}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = all(
        torch.equal(tensor, other["tensors"][group][name])
        for group, named in one["tensors"].items()
        for name, tensor in named.items()
    )
    return tensors and all(one[key] == other[key] for key in ("rows", "events", "returns"))


FAULTS: dict[str, tuple[Any, str]] = {
    "nan reward": (lambda seen: (seen, math.nan, False, False, {}), "it gave the reward nan"),
    "no reward": (lambda seen: (seen, None, False, False, {}), "it gave the reward None"),
    "two rewards": (lambda seen: (seen, np.ones(2), False, False, {}), r"it gave the reward array\(\[1., 1.\]\)"),
    "huge reward": (lambda seen: (seen, 1e308, False, False, {}), r"it gave the reward 1e\+308"),
    "worded reward": (lambda seen: (seen, "much", False, False, {}), "it gave the reward 'much'"),
    "nan observation": (lambda seen: (seen * [1, math.nan, 1], 0.0, False, False, {}), r"nan in it \(at 1 of 3\)"),
    "huge observation": (lambda seen: (seen * 0 + 1e300, 0.0, False, False, {}), r"1e\+300 in it \(at 0 of 3\)"),
    "empty observation": (lambda seen: (seen[:0], 0.0, False, False, {}), r"an observation of shape \(0,\)"),
    "no observation": (lambda seen: (None, 0.0, False, False, {}), "an observation that holds no numbers, None"),
    "ragged observation": (lambda seen: ([[1], [1, 2]], 0.0, False, False, {}), "an observation that is no array"),
    "no end": (lambda seen: (seen, 0.0, None, False, {}), "it returned None for terminated"),
    "four things": (lambda seen: (seen, 0.0, False, {}), r"step\(\) must return five things"),
    "nothing": (lambda seen: None, r"step\(\) raised TypeError"),
    "raises": (raises, r"step\(\) raised KeyError: 'no such thing' \(test_bad_environments.py, line \d+\)"),
    "recurses": (lambda seen: recurse(), r"step\(\) raised RecursionError: maximum recursion depth"),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    gymnasium.register("SteadyQWalk-v0", Walk)
    result = learned(sq.train(recipe(), run=tmp_path_factory.mktemp("healthy") / "run"))
    del gymnasium.registry["SteadyQWalk-v0"]
    return result


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_goes_on_once_its_environment_is_mended(
    healthy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    returned, said = FAULTS[fault]
    monkeypatch.setattr(Walk, "fault", staticmethod(returned))
    run = tmp_path / "run"
    # 217 steps in: five games of 40, and 17 more.
    where = r"Gymnasium/SteadyQWalk-v0, step 17 of the game with seed \d+: .*"
    for steps in (0, 200):  # the second time it is not mended yet: 16 steps are replayed, the 17th is played again
        monkeypatch.setattr(Walk, "steps", steps)
        with pytest.raises(BadEnvironment, match=f"{where}{said}.*; saved at step 216: mend it") as caught:
            sq.train(recipe(), run=run)
        assert "\n" not in str(caught.value)
        assert [int(checkpoint.name) for checkpoint in sq.RunFolder(run).checkpoints()] == [216]
    monkeypatch.setattr(Walk, "fault", None)
    assert same(learned(sq.train(recipe(), run=run)), healthy)


def test_the_command_line_says_it_in_one_line_and_exits_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Walk, "fault", staticmethod(FAULTS["nan observation"][0]))
    options = [word for name, value in SMALL.items() if name.startswith("replay") for word in (f"--{name}", str(value))]
    words = ["train", "SteadyQWalk-v0", "--steps", "300", "--run", str(tmp_path / "run"), *options]
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "nan in it" in said[0]
    assert "Traceback" not in said[0]
    assert os.listdir(tmp_path / "run" / "checkpoints")


def test_a_fault_before_the_first_step_and_in_evaluation(
    healthy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    plain = Walk.reset
    for wrong in (
        lambda returned: returned[0],
        lambda returned: (*returned, "x" * 100),
        lambda returned: list(returned),
    ):
        monkeypatch.setattr(Walk, "reset", lambda self, wrong=wrong, **given: wrong(plain(self, **given)))
        with pytest.raises(BadEnvironment, match=r"step 0 of the game .*reset\(\) .*an observation and a dictionary"):
            sq.train(recipe(), run=run)
    monkeypatch.setattr(Walk, "reset", plain)
    monkeypatch.setattr(Walk, "fault", staticmethod(FAULTS["raises"][0]))
    monkeypatch.setattr(Walk, "steps", FAULTY_STEP - STEPS - 20)  # in the 20th step of the evaluation
    with pytest.raises(BadEnvironment, match="all 300 steps are trained and saved: mend it"):
        sq.train(recipe(), run=run)
    monkeypatch.setattr(Walk, "fault", None)
    assert same(learned(sq.train(recipe(), run=run)), healthy)


class Notes(Display):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_an_environment_that_ignores_its_seed_is_noticed_when_a_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, notes = tmp_path / "run", Notes()
    monkeypatch.setattr(Walk, "ignores_seed", True)
    monkeypatch.setattr(Walk, "fault", staticmethod(FAULTS["raises"][0]))
    with pytest.raises(BadEnvironment):
        sq.train(recipe(), run=run)
    monkeypatch.setattr(Walk, "fault", None)
    folder = sq.train(recipe(), run=run, display=notes)
    assert any("does not show again what it showed" in said for said in notes.said)
    events = folder.events()
    assert [row["lanes"] for row in events if row["event"] == "abandoned"] == [[0]]
    # The game that was lost is cut where it stood, after its 16 steps and the one that found it gone.
    lengths = [row["steps"] for row in events if row["event"] == "game"]
    assert lengths == [40] * 5 + [17] + [40] * 2
    assert folder.result is not None


def test_an_environment_that_keeps_its_seed_is_not_said_to_ignore_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, notes = tmp_path / "run", Notes()
    monkeypatch.setattr(Walk, "fault", staticmethod(FAULTS["raises"][0]))
    with pytest.raises(BadEnvironment):
        sq.train(recipe(), run=run)
    monkeypatch.setattr(Walk, "fault", None)
    sq.train(recipe(), run=run, display=notes)
    assert not any("does not show again" in said for said in notes.said)
