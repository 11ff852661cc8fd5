"""The named rules."""

import ast
import dataclasses
import inspect
import itertools
import tomllib

import pytest

from steadyq import envs
from steadyq.envs import Protocol, protocol
from steadyq.errors import UserError
from steadyq.fields import toml

ATARI = envs.protocol_for("Atari/Pong")


def test_atari_100k_as_the_paper_plays_it():
    assert dataclasses.asdict(ATARI) == {
        "name": "atari-100k",
        "lanes": 1,
        "stack": 4,
        "frame_skip": 4,
        "noop_max": 30,
        "sticky": 0.0,
        "action_set": "minimal",
        "fire_reset": True,
        "life_loss_terminal": True,
        "last_life": False,
        "reward": "sign",
        "max_frames": 108_000,
        "ramping": False,
        "timeout_terminal": False,
        "train_levels": 0,
        "train_start_level": 0,
        "test_levels": 0,
        "test_start_level": 0,
        "kwargs": (),
        "wrappers": (),
        "masks": "given",
    }


LARGEST = ("max_frames", "train_levels", "train_start_level", "test_levels", "test_start_level")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lanes", 0, "protocol.lanes is 0; it must be between 1 and"),
        ("stack", 0, "protocol.stack is 0; it must be between 1 and"),
        ("frame_skip", 0, "protocol.frame_skip is 0; it must be between 1 and"),
        ("noop_max", -1, "protocol.noop_max is -1; it must be between 0 and"),
        ("sticky", 1.5, "protocol.sticky is 1.5; it must be between 0 and 1"),
        ("max_frames", -1, "protocol.max_frames is -1; it must be between 0 and"),
        *[(name, 2**31, f"protocol.{name} is 2147483648; it must be between 0 and 2147483647") for name in LARGEST],
        ("action_set", "some", "protocol.action_set is 'some'; it must be one of minimal, full"),
        ("reward", "clip", "protocol.reward is 'clip'; it must be one of raw, sign"),
        ("name", "nintendo", "protocol.name is 'nintendo'; it must begin with one of atari, minatar"),
        ("train_levels", 200, "protocol.train_levels is 200, but means nothing to atari-100k; leave it 0"),
        ("ramping", True, "protocol.ramping is True, but means nothing to atari-100k; leave it False"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(field, value, message):
    with pytest.raises(UserError, match=message) as caught:
        dataclasses.replace(ATARI, **{field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", protocol.DEFAULTS)
def test_defaults_know_their_backend_and_survive_toml(backend):
    default = protocol.DEFAULTS[backend]
    assert default.backend == backend
    text = "\n".join(f"{name} = {toml(value)}" for name, value in dataclasses.asdict(default).items())
    table = {name: tuple(value) if isinstance(value, list) else value for name, value in tomllib.loads(text).items()}
    assert Protocol(**table) == default


def test_a_label_says_what_differs_from_the_rules_of_that_name():
    known = protocol.DEFAULTS["atari"]
    assert known.label == "atari-100k"
    assert dataclasses.replace(known, sticky=0.25, noop_max=0).label == "atari-100k, noop_max 0, sticky 0.25"
    assert dataclasses.replace(known, name="atari-mine", sticky=0.25).label == "atari-mine"


def test_lines_say_what_applies():
    atari = "\n".join(ATARI.lines())
    for said in ("4 frames per step", "stack of 4", "1 to 30 no-op", "FIRE", "lost life ends", "108,000", "no sticky"):
        assert said in atari
    assert "evel" not in atari
    assert "the last one shown too" not in atari
    assert "the last one shown too" in "\n".join(dataclasses.replace(ATARI, last_life=True).lines())
    relaxed = "\n".join(dataclasses.replace(ATARI, life_loss_terminal=False, fire_reset=False, sticky=0.25).lines())
    assert "a lost life changes nothing" in relaxed
    assert "FIRE" not in relaxed
    assert "sticky actions 0.25" in relaxed
    procgen = "\n".join(envs.protocol_for("Procgen/Maze").lines())
    for said in ("128 training lanes", "easy mode", "levels 0 to 199", "all levels"):
        assert said in procgen
    assert "sticky" not in procgen
    assert "ramping on" in "\n".join(envs.protocol_for("MinAtar/Breakout").lines())
    assert "the environment's own, or 27,000 steps where it has none" in envs.protocol_for("CartPole-v1").lines()[-1]


def test_every_field_explains_itself_on_the_command_line():
    body = ast.parse(inspect.getsource(Protocol)).body[0].body
    for here, after in itertools.pairwise(body):
        if isinstance(here, ast.AnnAssign):
            assert isinstance(after, ast.Expr), f"{here.target.id} has no docstring"
