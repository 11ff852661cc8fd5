"""The MinAtar adapter against MinAtar's own environment."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from playing import play, same

from steadyq import envs

PROTOCOL = envs.protocol_for("MinAtar/Breakout")
ACTIONS = {"Asterix": 5, "Breakout": 3, "Freeway": 3, "Seaquest": 6, "SpaceInvaders": 4}
CHANNELS = {"Asterix": 4, "Breakout": 4, "Freeway": 7, "Seaquest": 10, "SpaceInvaders": 6}


def make(game: str = "Breakout", *, seed: int = 1, training: bool = True, lanes: int = 1, **rules):
    return envs.make(
        f"MinAtar/{game}", dataclasses.replace(PROTOCOL, **rules), seed=seed, training=training, lanes=lanes
    )


@pytest.fixture
def minatar(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # only its window needs it, and it takes seconds to import
    import minatar

    return minatar


@pytest.mark.parametrize("game", ACTIONS)
def test_equals_minatar_itself_game_after_game(game, minatar):
    name = {"SpaceInvaders": "space_invaders"}.get(game, game.lower())

    def fresh(seed: int):
        library = minatar.Environment(name, sticky_action_prob=0.3, difficulty_ramping=True)
        library.seed(seed)
        library.reset()
        return library

    env = make(game, sticky=0.3, max_frames=0)
    frame = env.reset()
    library = fresh(int(env.game_seed()[0]))
    actions = library.minimal_action_set()
    draw = np.random.default_rng(0)
    ended = 0
    for _ in range(400):
        assert np.array_equal(frame[0], library.state().transpose(2, 0, 1))
        action = draw.integers(0, len(actions), 1)
        step = env.step(action)
        reward, over = library.act(actions[action[0]])
        assert (step.reward[0], step.terminated[0], step.game_over[0]) == (reward, over, over)
        assert np.array_equal(step.final_frame[0], library.state().transpose(2, 0, 1))
        if over:
            ended += 1
            library = fresh(int(env.game_seed()[0]))
        frame = step.frame
    assert ended >= 2 or game == "Freeway"  # Freeway alone is played against a clock


@pytest.mark.parametrize("game", ACTIONS)
def test_spec(game):
    spec = envs.spec(f"MinAtar/{game}", PROTOCOL)
    assert spec.frame_shape == spec.observation_shape == (CHANNELS[game], 10, 10)
    assert spec.num_actions == len(spec.action_names) == ACTIONS[game]
    assert (spec.frame_dtype, spec.pixel_max, spec.frames_per_step) == ("uint8", 1.0, 1)
    assert envs.spec(f"MinAtar/{game}", dataclasses.replace(PROTOCOL, action_set="full")).num_actions == 6


def test_frames_are_zeros_and_ones():
    env = make()
    assert env.reset().dtype == np.uint8
    assert {int(value) for step in play(env, 50) for value in np.unique(step.frame)} == {0, 1}


def test_cap_truncates_and_an_end_does_not():
    env = make("Freeway", max_frames=7)
    env.reset()
    steps = play(env, 21)
    assert [index + 1 for index, step in enumerate(steps) if step.truncated[0]] == [7, 14, 21]
    assert all(step.game_over[0] == step.truncated[0] and not step.terminated[0] for step in steps)
    env = make("Breakout")
    env.reset()
    steps = play(env, 200)
    assert any(step.terminated[0] for step in steps)
    assert not any(step.truncated[0] for step in steps)


def test_ramping_reaches_the_game():
    easy, hard = make("SpaceInvaders", ramping=False), make("SpaceInvaders")
    assert hard._games[0]._env.ramping
    assert not easy._games[0]._env.ramping


def test_restore_continues_bit_for_bit():
    env = make("Asterix", lanes=3)
    env.reset()
    last = play(env, 157)[-1]
    state = env.state()
    assert state["number"].max() >= 1
    assert state["length"].min() >= 1
    again = make("Asterix", lanes=3)
    assert np.array_equal(again.restore(state), last.frame)
    one, other = play(env, 200, seed=9), play(again, 200, seed=9)
    assert any(step.game_over.any() for step in one)
    assert same(one, other)


def test_restore_into_a_used_environment():
    env = make("Seaquest")
    env.reset()
    play(env, 30)
    state = env.state()
    expected = play(env, 50, seed=2)
    env.restore(state)
    assert same(play(env, 50, seed=2), expected)


def test_seed_decides_and_splits_differ():
    def run(seed: int, training: bool = True):
        env = make("Seaquest", seed=seed, training=training)
        env.reset()
        return play(env, 100)

    assert same(run(1), run(1))
    assert not same(run(1), run(2))
    assert not same(run(1), run(1, training=False))


def test_pictures_show_each_channel_in_its_colour():
    env = make(lanes=1)
    frame = env.reset()
    seed = int(env.game_seed()[0])
    pictures = list(envs.render("MinAtar/Breakout", PROTOCOL, seed, [0, 1, 2]))
    assert len(pictures) == 4
    assert all(picture.shape == (400, 400, 3) and picture.dtype == np.uint8 for picture in pictures)
    board = pictures[0][20::40, 20::40]
    assert ((board.sum(-1) > 0) == frame[0].any(0)).all()
    assert len(np.unique(board.reshape(-1, 3), axis=0)) == 4  # black, paddle, trail under ball, bricks


def test_playing_imports_no_plotting():
    code = (
        "import sys\n"
        "from steadyq.envs import minatar, protocol\n"
        "rules = protocol.DEFAULTS['minatar']\n"
        "env = minatar.make('MinAtar/Breakout', 'Breakout', rules, seed=0, training=True, lanes=1)\n"
        "env.reset()\n"
        "assert 'seaborn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
