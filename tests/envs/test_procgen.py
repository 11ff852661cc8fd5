"""The Procgen adapter against envpool."""

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import os

import numpy as np
import pytest
from playing import play, same

from steadyq import envs
from steadyq.envs import procgen
from steadyq.errors import UserError

PROTOCOL = envs.protocol_for("Procgen/CoinRun")
MISSING = importlib.util.find_spec("envpool") is None
needs_envpool = pytest.mark.skipif(
    MISSING and os.environ.get("CI") != "true", reason="envpool is not installed: pip install 'steadyq[procgen]'"
)


def make(game: str = "CoinRun", *, seed: int = 1, training: bool = True, lanes: int = 4, **rules):
    return envs.make(
        f"Procgen/{game}", dataclasses.replace(PROTOCOL, **rules), seed=seed, training=training, lanes=lanes
    )


@needs_envpool
def test_equals_envpool_without_its_reset_steps():
    env = make("BossFight", lanes=1)
    frame = env.reset()
    with contextlib.redirect_stderr(io.StringIO()):
        envpool = importlib.import_module("envpool")
    plain = envpool.make(
        "BossfightEasy-v0",
        env_type="gymnasium",
        num_envs=1,
        seed=env._arguments["seed"],
        start_level=0,
        num_levels=200,
    )
    observation, info = plain.reset()
    draw = np.random.default_rng(0)
    games = 0
    for _ in range(300):
        assert np.array_equal(frame, observation)
        assert env.game_seed()[0] == info["level_seed"][0]
        action = draw.integers(0, 15, 1)
        step = env.step(action)
        observation, reward, terminated, truncated, info = plain.step(action.astype(np.int32))
        assert (step.reward[0], step.terminated[0]) == (reward[0], terminated[0] or truncated[0])
        assert not step.truncated[0]
        assert np.array_equal(step.final_frame, observation)
        assert step.game_over[0] == (terminated[0] or truncated[0])
        if step.game_over[0]:
            games += 1
            observation, _, _, _, info = plain.step(np.array([7], np.int32))  # the reset step: its action is ignored
            assert info["elapsed_step"][0] == 0
        frame = step.frame
    assert games >= 2


@needs_envpool
def test_timeouts_terminate_as_in_the_original_or_truncate():
    idle = np.array([4])
    env = make("Maze", lanes=1)
    env.reset()
    steps = [env.step(idle) for _ in range(500)]
    assert [index for index, step in enumerate(steps) if step.terminated[0]] == [499]
    assert steps[-1].game_over[0]
    assert not steps[-1].truncated[0]
    env = make("Maze", lanes=1, timeout_terminal=False)
    env.reset()
    steps = [env.step(idle) for _ in range(500)]
    assert [index for index, step in enumerate(steps) if step.truncated[0]] == [499]
    assert steps[-1].game_over[0]
    assert not steps[-1].terminated[0]
    env = make("Maze", lanes=1, max_frames=20)
    env.reset()
    assert [index for index in range(40) if env.step(idle).truncated[0]] == [19, 39]


@needs_envpool
def test_levels_of_training_and_test():
    def levels(training: bool, **rules) -> set[int]:
        env = make("BossFight", training=training, lanes=32, **rules)
        env.reset()
        seen = set(env.game_seed().tolist())
        for _ in range(60):
            env.step(np.full(32, 4))
            seen |= set(env.game_seed().tolist())
        return seen

    train = levels(True)
    assert len(train) > 20
    assert train <= set(range(200))
    assert levels(True, train_start_level=50, train_levels=3) == {50, 51, 52}
    assert levels(False, test_start_level=200, test_levels=3) == {200, 201, 202}
    assert max(levels(False)) > 10**6


@needs_envpool
def test_restore_continues_bit_for_bit():
    env = make("Dodgeball")
    env.reset()
    last = play(env, 150)[-1]
    state = env.state()
    assert state["number"].max() >= 1
    assert len(set(state["length"].tolist())) > 1
    again = make("Dodgeball")
    assert np.array_equal(again.restore(state), last.frame)
    one, other = play(env, 120, seed=3), play(again, 120, seed=3)
    assert any(step.game_over.any() for step in one)
    assert same(one, other)
    assert again.state()["number"].tolist() == env.state()["number"].tolist()
    with pytest.raises(UserError, match="cannot be rebuilt: another seed"):
        make("Dodgeball", seed=2).restore(state)


@needs_envpool
def test_seed_decides_and_reset_starts_over():
    env, other = make(), make(seed=2)
    first = env.reset()
    steps = play(env, 30)
    assert not np.array_equal(first, other.reset())
    assert np.array_equal(make().reset(), first)
    assert np.array_equal(env.reset(), first)
    assert same(play(env, 30), steps)
    assert not np.array_equal(make(training=False, test_levels=200, test_start_level=0).reset(), first)


@needs_envpool
def test_pictures_rebuild_a_later_game_from_its_level():
    env = make("BossFight", lanes=1)
    env.reset()
    draw = np.random.default_rng(5)
    while env.state()["number"][0] < 2:
        env.step(draw.integers(0, 15, 1))
    seed, frames, actions = int(env.game_seed()[0]), [], []
    for _ in range(200):
        actions.append(int(draw.integers(0, 15)))
        step = env.step(np.array(actions[-1:]))
        frames.append(step.final_frame[0])
        if step.game_over[0]:
            break
    pictures = list(envs.render("Procgen/BossFight", PROTOCOL, seed, actions))
    assert len(pictures) == len(actions) + 1
    assert pictures[0].shape == (512, 512, 3)
    for picture, frame in zip(pictures[1:], frames, strict=True):
        assert np.array_equal(picture[::8, ::8].transpose(2, 0, 1), frame)


@needs_envpool
def test_hard_mode():
    easy, hard = make(lanes=1), make(lanes=1, name="procgen-hard")
    assert not np.array_equal(easy.reset(), hard.reset())
    assert "hard mode" in hard_lines()


def hard_lines() -> str:
    return "\n".join(dataclasses.replace(PROTOCOL, name="procgen-hard").lines())


def test_spec():
    spec = envs.spec("Procgen/CoinRun", PROTOCOL)
    assert (spec.frame_shape, spec.frame_dtype, spec.pixel_max) == ((3, 64, 64), "uint8", 255.0)
    assert (spec.num_actions, len(spec.action_names), spec.lanes) == (15, 15, 128)


def test_wrong_number_of_actions_is_refused():
    env = make(lanes=2)
    env.reset()
    with pytest.raises(ValueError, match="3 actions for 2 lanes"):
        env.step(np.zeros(3, np.int64))


def test_missing_package(monkeypatch):
    def absent(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(procgen.importlib, "import_module", absent)
    with pytest.raises(UserError, match=r"Procgen is not installed: pip install 'steadyq\[procgen\]'"):
        procgen.ProcgenVector("Procgen/CoinRun", "CoinRun", PROTOCOL, seed=0, training=True, lanes=1)


def test_missing_qt(monkeypatch):
    class WithoutQt:
        @staticmethod
        def make(*args, **kwargs):
            raise ImportError("EnvPool Procgen requires the system Qt 5 runtime on Linux.")

    monkeypatch.setattr(procgen.importlib, "import_module", lambda name: WithoutQt)
    with pytest.raises(UserError, match="libqt5gui5"):
        procgen.ProcgenVector("Procgen/CoinRun", "CoinRun", PROTOCOL, seed=0, training=True, lanes=1)
