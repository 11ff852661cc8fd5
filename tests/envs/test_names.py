"""Names of environments, and what the package offers."""

import numpy as np
import pytest

from steadyq import envs
from steadyq.errors import UserError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("minatar/breakout", "MinAtar/Breakout"),
        ("MinAtar/space_invaders", "MinAtar/SpaceInvaders"),
        ("Atari/ms_pacman", "Atari/MsPacman"),
        ("ATARI/MSPACMAN", "Atari/MsPacman"),
        ("Atari/tic_tac_toe_3d", "Atari/TicTacToe3D"),
        ("procgen/coinrun", "Procgen/CoinRun"),
        ("CartPole-v1", "Gymnasium/CartPole-v1"),
        ("gym/cartpole-v1", "Gymnasium/CartPole-v1"),
        ("Gymnasium/CartPole", "Gymnasium/CartPole-v1"),
        ("my_module:Thing-v0", "Gymnasium/my_module:Thing-v0"),
    ],
)
def test_canonical(given, meant):
    assert envs.canonical(given) == meant
    assert envs.canonical(meant) == meant


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Breakout", "'Breakout' needs its backend: write MinAtar/Breakout or Atari/Breakout"),
        ("coinrun", "'coinrun' needs its backend: write Procgen/CoinRun"),
        ("Brekout", "unknown environment 'Brekout'.*did you mean 'Breakout'"),
        ("MinAtar/Brekout", "MinAtar has no game 'Brekout'; did you mean 'Breakout'"),
        ("Atari/Pacmann", "Atari has no game 'Pacmann'; did you mean 'Pacman'"),
        ("Atari/Combat", "Atari has no game 'Combat'"),
        ("Procgen/CoinRum", "Procgen has no game 'CoinRum'; did you mean 'CoinRun'"),
        ("Atary/Pong", "no known backend 'Atary'; did you mean 'Atari'"),
        ("CartPoel-v1", "no environment 'CartPoel-v1' is registered with Gymnasium; did you mean 'CartPole-v1'"),
        ("ALE/Pong-v5", "'ALE/Pong-v5' is played as 'Atari/Pong'"),
        ("PongNoFrameskip-v4", "'PongNoFrameskip-v4' is played as 'Atari/Pong'"),
        ("Atari/", "unknown environment 'Atari/'"),
    ],
)
def test_unknown_names_say_what_is_near(given, message):
    with pytest.raises(UserError, match=message) as caught:
        envs.canonical(given)
    assert "\n" not in str(caught.value)


def test_known():
    known = envs.known()
    assert {backend: len(names) for backend, names in known.items() if backend != "Gymnasium"} == {
        "MinAtar": 5,
        "Atari": 104,
        "Procgen": 16,
    }
    assert "Atari/MsPacman" in known["Atari"]
    assert "Gymnasium/CartPole-v1" in known["Gymnasium"]
    assert all(envs.canonical(name) == name for names in known.values() for name in names)


@pytest.mark.parametrize(
    ("env", "name", "lanes", "stack"),
    [
        ("Atari/Pong", "atari-100k", 1, 4),
        ("MinAtar/Breakout", "minatar", 1, 1),
        ("Procgen/Maze", "procgen-easy", 128, 1),
        ("CartPole-v1", "gymnasium", 1, 1),
    ],
)
def test_protocol_for(env, name, lanes, stack):
    protocol = envs.protocol_for(env)
    assert (protocol.name, protocol.lanes, protocol.stack) == (name, lanes, stack)
    assert envs.spec(env, protocol).name == envs.canonical(env)
    assert envs.spec(env, protocol).lanes == lanes


def test_a_protocol_of_another_backend_is_refused():
    with pytest.raises(UserError, match="protocol minatar is not for Atari/Pong; use atari-100k"):
        envs.make("Atari/Pong", envs.protocol_for("MinAtar/Breakout"), seed=0)


def test_lanes():
    protocol = envs.protocol_for("MinAtar/Breakout")
    assert envs.make("MinAtar/Breakout", protocol, seed=0, lanes=3).reset().shape == (3, 4, 10, 10)
    with pytest.raises(UserError, match="lanes is 0"):
        envs.make("MinAtar/Breakout", protocol, seed=0, lanes=0)


def test_available_really_plays(monkeypatch):
    found = {backend: (works, message) for backend, works, message in envs.available()}
    assert set(found) == {"MinAtar", "Atari", "Procgen", "Gymnasium"}
    assert found["Atari"][0]
    assert found["Atari"][1].startswith("ale-py 0.")

    def broken(self, action):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("steadyq.envs.minatar.MinAtarGame.send", broken)
    assert ("MinAtar", False, "first line") in envs.available()


def test_frames_that_a_caller_keeps_are_never_written_again():
    env = envs.make("MinAtar/Breakout", envs.protocol_for("MinAtar/Breakout"), seed=0)
    kept = env.reset()
    copy = kept.copy()
    for _ in range(5):
        env.step(np.zeros(1, np.int64))
    assert np.array_equal(kept, copy)
