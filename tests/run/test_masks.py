"""Invalid actions are never played, never bootstrapped and never drawn: in training, evaluation and an agent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file

import steadyq as sq
from steadyq import UserError, envs
from steadyq.envs.spaces import Actions
from steadyq.envs.vector import BadEnvironment
from steadyq.run.evaluate import play_games, random_policy
from steadyq.run.explore import EpsilonGreedy, uniform_among
from steadyq.run.loop import Interrupted
from steadyq.run.progress import Display
from steadyq.run.step import Training
from steadyq.run.writer import begin
from steadyq.value.operators import Controlled, Double, Greedy, Maxmin, permitted
from steadyq.value.shapes import Batch, DrawLayout, Values

SMALL: dict[str, Any] = {
    "network.hidden": (16,),
    "replay.warmup": 64,
    "replay.every": 4,
    "record.tensorboard": False,
    "record.every": 50,
    "monitor.every": 50,
    "monitor.batch": 16,
    "evaluation.episodes": 3,
    "evaluation.random_episodes": 3,
}


class Doors(gymnasium.Env):  # type: ignore[type-arg]
    """Of four doors two may be opened, drawn anew at every step; opening another one raises."""

    def __init__(self, how: str = "info", over: int = 7, truncates: bool = False) -> None:
        self.how, self.over, self.truncates = how, over, truncates
        self.observation_space, self.action_space = spaces.MultiBinary(4), spaces.Discrete(4)
        if how == "method":
            self.action_masks = lambda: self.mask.copy()

    def _next(self) -> tuple[np.ndarray, dict[str, Any]]:
        self.mask = np.zeros(4, np.int8)
        self.mask[self.np_random.choice(4, 2, replace=False)] = 1
        return self.mask.copy(), {"action_mask": self.mask.copy()} if self.how == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._next()

    def step(self, action: int) -> Any:
        if not self.mask[action]:
            raise RuntimeError("that door is locked")
        reward, self.steps = float(action == np.flatnonzero(self.mask)[-1]), self.steps + 1
        seen, info = self._next()
        end = self.steps == self.over
        return seen, reward, end and not self.truncates, end and self.truncates, info


@pytest.fixture(autouse=True)
def doors() -> Iterator[None]:
    gymnasium.register("SteadyQDoors-v0", Doors)
    yield
    del gymnasium.registry["SteadyQDoors-v0"]


def recipe(preset: str = "steady", kwargs: Any = None, **more: Any) -> sq.Recipe:
    made = sq.environment("SteadyQDoors-v0", kwargs)
    return sq.presets.PRESETS[preset](made, **{"steps": 300, **SMALL, **more})


class StopAt(Display):
    """Stops a run as a closed terminal does."""

    gone = False

    def step(self, training: Any, row: Any) -> None:
        self.gone = training.step_count == 170


@pytest.mark.parametrize("preset", ["steady", "maxmin_dqn", "double_dqn", "c51"])
@pytest.mark.parametrize("kwargs", [{"how": "info"}, {"how": "method", "truncates": True}])
def test_a_locked_door_is_never_tried_and_a_run_goes_on_as_it_was(preset: str, kwargs: Any, tmp_path: Path) -> None:
    options = {"evaluation.epsilon": 0.2, "protocol.lanes": 2}
    wanted = recipe(preset, kwargs, **options)
    whole = sq.train(wanted, run=tmp_path / "whole", quiet=True)
    with pytest.raises(Interrupted):
        sq.train(wanted, run=tmp_path / "parts", display=StopAt())
    parts = sq.train(wanted, run=tmp_path / "parts", quiet=True)
    one, other = (load_file(run.checkpoints()[-1] / "online.safetensors") for run in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.result is not None
    assert parts.result is not None
    assert whole.result["returns"] == parts.result["returns"]
    assert all(row["q_max"] < 100 for row in whole.metrics() if "q_max" in row)
    assert all(row["q_greedy"] is not None for row in whole.diagnostics())


def test_it_is_said_before_a_run_and_can_be_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sq.train(recipe(), run=tmp_path / "run")
    assert "4 actions, of which the environment says what may be played" in capsys.readouterr().out
    unmasked = recipe(**{"protocol.masks": "none"})
    with pytest.raises(BadEnvironment, match="that door is locked"):
        sq.train(unmasked, run=tmp_path / "none", quiet=True)


def test_an_agent_keeps_to_its_mask(tmp_path: Path) -> None:
    agent = sq.load(sq.train(recipe(steps=100), run=tmp_path / "run", quiet=True).path)
    seen = np.array([1, 0, 1, 0], np.int8)
    for action in range(4):
        only = np.eye(4, dtype=np.int8)[action]
        assert agent.act(seen, mask=only) == action
        assert agent.act(np.stack([seen, seen]).astype(np.float32), mask=[only, only]).tolist() == [action] * 2
    with pytest.raises(UserError, match="nothing but zeros: no action may be played"):
        agent.act(seen, mask=[0, 0, 0, 0])


def test_random_actions_are_uniform_among_the_allowed_ones() -> None:
    allowed = np.array([[True, False, True, True], [False, True, False, False]])
    rng = np.random.default_rng(0)
    drawn = np.stack([uniform_among(allowed, rng) for _ in range(3000)])
    counts = np.bincount(drawn[:, 0], minlength=4)
    assert counts[1] == 0
    assert (abs(counts[[0, 2, 3]] - 1000) < 100).all()
    assert set(drawn[:, 1]) == {1}
    assert EpsilonGreedy(2, 4, 1.0, rng, allowed)(np.zeros((2, 4)))[1] == 1


def test_what_is_stored_is_what_was_allowed_on_each_frame_final_ones_too(tmp_path: Path) -> None:
    wanted = recipe(kwargs={"truncates": True}, **{"protocol.lanes": 2, "replay.n_step": 2, "replay.capacity": 90})
    writer = begin(sq.RunFolder(tmp_path / "run"), wanted)
    try:
        training = Training(wanted, writer)
        training.start()
        for _ in range(130):
            training.step()
        ring = training.ring
        assert ring.allowed is not None
        batch = ring.uniformly(64, np.random.default_rng(0), training.draws.layout.plain("cpu", horizon=2))
        assert batch.allowed is not None
        assert batch.next_allowed is not None
        # The observation is the mask itself.
        assert torch.equal(batch.allowed, batch.observation > 0)
        assert torch.equal(batch.next_allowed, batch.next_observation > 0)
        assert (batch.discount > 0).all()  # truncated games bootstrap
    finally:
        writer.close()


def batch(action: int, rewarded: bool, allowed: list[bool]) -> Batch:
    one = torch.ones(1)
    index = torch.zeros(1, dtype=torch.int64)
    mask = torch.tensor([allowed])
    return Batch(one, torch.tensor([action]), one, one, one, one, index, index, torch.tensor([rewarded]), mask, mask)


@pytest.mark.parametrize(
    ("operator", "action", "expected"),
    [
        (Greedy(), 0, [4.0, 40.0]),  # 9 and 90 are not allowed
        (Double(), 0, [4.0, 40.0]),
        (Maxmin(), 0, [4.0, 4.0]),
        (Controlled(), 1, [1.0, 10.0]),  # the rewarded action is the best allowed one: the other is taken
        (Controlled(), 0, [4.0, 40.0]),
    ],
)
def test_operators_bootstrap_from_the_best_allowed_action(operator: Any, action: int, expected: list[float]) -> None:
    z = torch.tensor([[[[1.0], [4.0], [9.0]]], [[[10.0], [40.0], [90.0]]]])  # [member, batch, action, atom]
    found = batch(action, True, [True, True, False])
    values = Values(z, permitted(z.mean(-1), found.next_allowed))
    draw = DrawLayout(2, 1).plain(forbid=True)
    assert operator(values, values, found, draw).flatten().tolist() == expected


def test_the_rewarded_action_is_bootstrapped_where_nothing_else_is_allowed() -> None:
    z = torch.tensor([[[[1.0], [4.0], [9.0]]]])
    found = batch(1, True, [False, True, False])
    values = Values(z, permitted(z.mean(-1), found.next_allowed))
    assert Controlled()(values, values, found, DrawLayout(1, 1).plain(forbid=True)).item() == 4.0


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.Discrete(3, start=5), [1, 0, 1], [True, False, True]),
        (spaces.MultiDiscrete([3, 2]), [1, 0, 1, 0, 1], [False, True, False, False, False, True]),
        (spaces.MultiDiscrete([3, 2]), ([1, 0, 1], [0, 1]), [False, True, False, False, False, True]),
        (spaces.MultiDiscrete([2, 2]), np.array([[0, 1], [1, 1]]), [False, True, True, True]),
        (spaces.MultiDiscrete([2, 2]), [0, 1, 1, 1], [False, False, True, True]),
    ],
)
def test_masks_of_one_or_several_choices(space: Any, mask: Any, expected: list[bool]) -> None:
    assert Actions("it", space).allowed(mask).tolist() == expected


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([0, 0, 0], "nothing but zeros: no action may be played"),
        ([1, 1], "an array of shape .2,., where there are 3 actions"),
        ([1, 2, 0], "which is not of zeros and ones"),
    ],
)
def test_masks_that_cannot_be(mask: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Actions("it", spaces.Discrete(3)).allowed(mask)


def test_taxi_says_what_may_be_played_and_a_random_policy_keeps_to_it() -> None:
    protocol = envs.protocol_for("Taxi-v4")
    spec = envs.spec("Gymnasium/Taxi-v4", protocol)
    assert spec.masked
    games = play_games(random_policy(6, 0), "Gymnasium/Taxi-v4", protocol, episodes=2, seed=0)
    assert all(game.score / game.steps > -2 for game in games)  # without the mask every third step costs 10
