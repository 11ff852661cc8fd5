"""Gymnasium environments, real and made up for the test."""

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from playing import play, same

from steadyq import Agent, Recipe, envs, presets
from steadyq.build import ensemble_for, estimator_for
from steadyq.envs import classic
from steadyq.envs.classic import GymnasiumGame
from steadyq.envs.described import space_from_data, space_to_data
from steadyq.envs.spaces import Observations, Parts, short
from steadyq.errors import UserError
from steadyq.nets import Packing

PROTOCOL = envs.protocol_for("CartPole-v1")


class Made(gymnasium.Env):
    """An environment whose spaces and ends the test chooses."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, action_space=None, observation_space=None, ends=(False, False), missing=False, render_mode=None):
        if missing:
            raise gymnasium.error.DependencyNotInstalled("box2d is missing")
        self.action_space = action_space or spaces.Discrete(3)
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,))
        self.ends = ends
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), float(action), *self.ends, {}

    def render(self):
        return np.zeros((31, 41, 3), np.uint8)


@pytest.fixture(autouse=True)
def made():
    gymnasium.register("SteadyQMade-v0", Made)
    yield
    del gymnasium.registry["SteadyQMade-v0"]


def make(env: str = "CartPole-v1", *, seed: int = 1, training: bool = True, lanes: int = 1, **rules):
    return envs.make(env, dataclasses.replace(PROTOCOL, **rules), seed=seed, training=training, lanes=lanes)


def register(**kwargs) -> None:
    gymnasium.registry["SteadyQMade-v0"].kwargs = kwargs


def test_cartpole_equals_gymnasium():
    env = make()
    frame = env.reset()
    assert frame.dtype == np.float32
    plain = gymnasium.make("CartPole-v1")
    observation, _ = plain.reset(seed=int(env.game_seed()[0]))
    draw = np.random.default_rng(0)
    for _ in range(100):
        assert np.array_equal(frame[0], observation)
        action = draw.integers(0, 2, 1)
        step = env.step(action)
        observation, reward, terminated, truncated, _ = plain.step(action[0])
        assert (step.reward[0], step.terminated[0], step.truncated[0]) == (reward, terminated, truncated)
        assert np.array_equal(step.final_frame[0], observation)
        frame = step.frame
        if terminated:
            observation, _ = plain.reset(seed=int(env.game_seed()[0]))


def test_time_limits():
    env = make("MountainCar-v0")
    env.reset()
    own = play(env, 200)
    assert [index for index, step in enumerate(own) if step.truncated[0]] == [199]
    assert own[-1].game_over[0]
    env = make(max_frames=5)
    env.reset()
    assert [bool(step.truncated[0]) for step in play(env, 10)] == ([False] * 4 + [True]) * 2


def test_an_end_that_is_both_is_a_termination():
    register(ends=(True, True))
    env = make("SteadyQMade-v0")
    env.reset()
    step = play(env, 1)[0]
    assert (step.terminated[0], step.truncated[0], step.game_over[0]) == (True, False, True)


def test_actions_that_do_not_start_at_zero():
    register(action_space=spaces.Discrete(3, start=5))
    env = make("SteadyQMade-v0")
    env.reset()
    assert env.spec.num_actions == 3
    assert env.step(np.array([2])).reward[0] == 7


def agent_of(recipe: Recipe) -> Agent:
    spec = envs.spec(recipe.env, recipe.protocol)
    ensemble = ensemble_for(recipe, spec)
    return Agent(ensemble, estimator_for(recipe), ensemble.initial(torch.Generator().manual_seed(0)), spec)


def test_an_agent_acts_as_the_environment_counts():
    register(action_space=spaces.Discrete(3, start=5))
    agent = agent_of(presets.steady("SteadyQMade-v0"))
    seen = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    one_by_one = [agent.act(one) for one in seen]
    assert one_by_one == agent.act(seen).tolist() == (agent.q(seen).argmax(-1) + 5).tolist()


@pytest.mark.parametrize(("shape", "dtype"), [((12, 10, 3), np.uint8), ((12, 10), np.uint8), ((4, 5), np.float64)])
def test_an_agent_takes_what_the_environment_shows(shape, dtype):
    box = spaces.Box(0, 1 if dtype == np.float64 else 255, shape, dtype)
    register(observation_space=box)
    agent = agent_of(presets.steady("SteadyQMade-v0").override({"network.kind": "mlp"}))
    env = make("SteadyQMade-v0")
    frame = env.reset()
    box.seed(int(env.game_seed()[0]))
    shown = box.sample()
    assert agent.act(shown) == agent.act(frame[0])
    assert agent.act(np.stack([shown, shown])).tolist() == 2 * [agent.act(shown)]
    with pytest.raises(UserError, match="observation has shape"):
        agent.act(shown[:2])


def test_a_game_without_any_limit_is_cut(monkeypatch):
    monkeypatch.setattr(classic, "LONGEST", 9)
    env = make("SteadyQMade-v0")
    env.reset()
    ends = [env.step(np.array([0])) for _ in range(9)]
    assert [bool(step.truncated[0]) for step in ends] == 8 * [False] + [True]
    env = make("SteadyQMade-v0", max_frames=12)
    env.reset()
    assert not any(env.step(np.array([0])).truncated[0] for _ in range(11))


def test_an_environment_that_breaks_its_word_is_named(monkeypatch):
    env = make("SteadyQMade-v0")
    env.reset()
    monkeypatch.setattr(Made, "step", lambda self, action: (np.zeros(2), 0.0, False, {}))
    with pytest.raises(UserError, match=r"SteadyQMade-v0, step 1 of the game .*: step.* must return five things"):
        env.step(np.array([0]))
    monkeypatch.setattr(Made, "step", lambda self, action: (np.zeros(5), 0.0, False, False, {}))
    with pytest.raises(
        UserError, match=r"SteadyQMade-v0.* showed an observation of shape \(5,\); its space says \(2,\)"
    ):
        env.step(np.array([0]))


@pytest.mark.parametrize(
    ("box", "shape", "dtype", "pixel_max"),
    [
        (spaces.Box(0, 255, (12, 10, 3), np.uint8), (3, 12, 10), "uint8", 255),
        (spaces.Box(0, 255, (3, 12, 10), np.uint8), (3, 12, 10), "uint8", 255),
        (spaces.Box(0, 255, (12, 10), np.uint8), (1, 12, 10), "uint8", 255),
        (spaces.Box(0, 1, (12, 10, 3), np.float64), (3, 12, 10), "float32", 1),
        (spaces.Box(0, 1, (4, 5), np.float64), (20,), "float32", 1),
        (spaces.Box(0, 128, (7,), np.uint8), (7,), "float32", 1),
        (spaces.Box(0, 1, (), np.float32), (1,), "float32", 1),
    ],
)
def test_frames(box, shape, dtype, pixel_max):
    register(observation_space=box)
    env = make("SteadyQMade-v0", stack=2)
    assert (env.spec.frame_shape, env.spec.frame_dtype, env.spec.pixel_max) == (shape, dtype, pixel_max)
    assert env.spec.observation_shape == (2 * shape[0], *shape[1:])
    frame = env.reset()[0]
    assert (frame.shape, str(frame.dtype)) == (shape, dtype)
    box.seed(int(env.game_seed()[0]))
    given = box.sample()
    expected = given.transpose(2, 0, 1) if given.shape == (12, 10, 3) else given.reshape(shape)
    assert np.array_equal(frame, expected.astype(dtype))


def test_restore_continues_bit_for_bit():
    env = make(lanes=2)
    env.reset()
    last = play(env, 77)[-1]
    again = make(lanes=2)
    assert env.state()["number"].min() >= 1
    assert np.array_equal(again.restore(env.state()), last.frame)
    assert same(play(env, 150, seed=4), play(again, 150, seed=4))


def test_seed_decides_and_splits_differ():
    def first(seed: int, training: bool = True):
        return make(seed=seed, training=training).reset().tolist()

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert first(1) != first(1, training=False)


def test_spaces_that_cannot_work():
    with pytest.raises(UserError, match=r"Pendulum-v1 has actions Box.*needs a Discrete"):
        make("Pendulum-v1")
    for space, said in (
        (spaces.Text(5), r"has observations Text\(.*\); only Box, Discrete, MultiDiscrete, MultiBinary, and Tuple"),
        (spaces.Dict(a=spaces.Text(5)), r"has observations Dict.*; text cannot be learned from"),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])),
            r"with Sequence.* at \['b'\]\[0\]; only Box",
        ),
        (spaces.Discrete(20_000), "observations of 20,000 values; a vector has at most 10,000"),
        (spaces.Box(0, 1, (5, 9, 5)), r"images of shape \(5, 9, 5\): the channels may be first or last"),
        (
            spaces.Dict(eye=spaces.Box(0, 255, (3, 9, 3), np.uint8), speed=spaces.Box(0, 1, (2,))),
            r"images of shape \(3, 9, 3\) at \['eye'\]: the channels may be first or last",
        ),
    ):
        register(observation_space=space)
        with pytest.raises(UserError, match=said):
            make("SteadyQMade-v0")
    register(action_space=spaces.MultiDiscrete([11, 10, 10]))
    with pytest.raises(UserError, match="1,100 combinations; a Q-network has an output for each, and at most 1,000"):
        make("SteadyQMade-v0")
    register(action_space=spaces.Discrete(1))
    with pytest.raises(UserError, match="a single action"):
        make("SteadyQMade-v0")


NESTED = spaces.Dict(
    where=spaces.Tuple([spaces.Box(-1, 1, (2, 2), np.float64), spaces.Discrete(3, start=-1)]),
    choices=spaces.MultiDiscrete([2, 3], start=[5, 0]),
    lamps=spaces.MultiBinary(3),
)


@pytest.mark.parametrize(
    ("space", "observation", "expected", "rule"),
    [
        (spaces.Discrete(3), 2, [0, 0, 1], "Discrete as one vector of 3, choices as one-hot"),
        (spaces.Discrete(3, start=4), np.int64(4), [1, 0, 0], "Discrete as one vector of 3, choices as one-hot"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0], "MultiDiscrete as one vector of 5"),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1], "MultiBinary as one vector of 3"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]), (1, [0.5, -0.5]), [0, 1, 0.5, -0.5], "2 parts"),
        (
            NESTED,
            {"lamps": [0, 1, 1], "choices": [6, 2], "where": ([[1, 2], [3, 4]], 0)},
            [1, 2, 3, 4, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1],
            "4 parts as one vector of 15, choices as one-hot",
        ),
        (spaces.Box(-np.inf, 1, (2,)), [0.5, 2], [0.5, 2], "Box as one vector of 2, unbounded and not scaled"),
    ],
)
def test_spaces_as_one_vector(space, observation, expected, rule):
    seen = Observations("Game-v0", space)
    assert rule in seen.rule
    frame = seen.frame(observation)
    assert (frame.dtype, frame.shape) == (np.float32, seen.shape)
    assert frame.tolist() == expected


def test_images_beside_other_things_keep_their_shapes_in_a_frame_of_bytes():
    eye, chart = spaces.Box(0, 255, (5, 4, 3), np.uint8), spaces.Box(0, 8, (2, 3, 4))
    space = spaces.Dict(eye=eye, more=spaces.Tuple([spaces.Box(0, 9, (2,)), chart]), way=spaces.Discrete(3))
    seen = Observations("Game-v0", space)
    assert seen.parts == Parts(((5,), (2, 3, 4)), ((3, 5, 4),))
    assert seen.rule == (
        "observation: each with an encoder of its own: ['eye'] image 5x4, 3 channels last, moved first, values bytes, "
        "divided by 255; ['more'][1] image 3x4, 2 channels first, values divided by 8, their highest value; 2 parts as "
        "one vector of 5, choices as one-hot"
    )
    shown = space.sample()
    frame = seen.frame(shown)
    assert (frame.dtype, frame.shape) == (np.uint8, seen.shape)
    packing = Packing(seen.parts.numbers, seen.parts.pixels)
    row = packing.unpacked(torch.from_numpy(frame)[None])[0]
    numbers, first = [*shown["more"][0], *np.eye(3)[shown["way"]]], 5 + 24
    np.testing.assert_array_equal(row[:5], np.array(numbers, np.float32))
    np.testing.assert_array_equal(row[5:first], shown["more"][1].ravel() / 8)
    np.testing.assert_allclose(row[first:], shown["eye"].transpose(2, 0, 1).ravel() / np.float32(255))
    shown["more"][0][1] = np.nan
    with pytest.raises(ValueError, match="an observation with nan in it"):
        seen.frame(shown)


def test_text_beside_other_things_is_left_out_and_the_rule_says_so():
    """As MiniGrid shows its mission, a space of its own making."""

    class Mission(spaces.Space):
        def __init__(self):
            super().__init__(dtype=str)

    space = spaces.Dict(direction=spaces.Discrete(4), mission=Mission())
    seen = Observations("Game-v0", space)
    assert seen.rule == ("observation: Discrete as one vector of 4, choices as one-hot; ['mission'], text, left out")
    assert seen.frame({"direction": 2, "mission": "go"}).tolist() == [0, 0, 1, 0]
    with_image = Observations("Game-v0", spaces.Dict(image=spaces.Box(0, 255, (7, 7, 3), np.uint8), mission=Mission()))
    assert with_image.shape == (3, 7, 7)
    assert with_image.frame({"image": np.zeros((7, 7, 3), np.uint8), "mission": "go"}).shape == (3, 7, 7)
    again = space_from_data(space_to_data(space))
    assert Observations("Game-v0", again).frame({"direction": 1, "mission": "go"}).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("box", "shown", "said"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), np.full((8, 8, 3), 0.7), "an image of float64 where its space says"),
        (spaces.Box(0, 1, (8, 8, 3)), np.full((8, 8, 3), 200.0), "between 200 and 200, which .* between 0 and 1: give"),
        (spaces.Box(0, 255, (8, 8, 3), np.int64), np.full((8, 8, 3), -1), "between -1 and -1, which .* 0 and 255"),
        (spaces.Box(-np.inf, np.inf, (8, 8, 3)), np.full((8, 8, 3), 200.0), "which its space says to be unbounded"),
    ],
)
def test_images_that_are_not_what_their_space_says_are_named(box, shown, said):
    for space, value in ((box, shown), (spaces.Dict(eye=box, way=spaces.Discrete(2)), {"eye": shown, "way": 0})):
        with pytest.raises(ValueError, match=said):
            Observations("Game-v0", space).frame(value)


def test_a_table_that_may_be_an_image_is_said_to_be_read_as_numbers():
    seen = Observations("Game-v0", spaces.Box(0, 1, (20, 30)))
    assert seen.shape == (600,)
    assert "(20, 30) as a row of numbers (to be an image it needs a channel, or bytes)" in seen.rule
    assert "row of numbers" not in Observations("Game-v0", spaces.Box(0, 1, (4, 30))).rule


def test_stacked_frames_are_unpacked_part_by_part():
    """A part's frames become its channels or features, the newest last, whatever lies between them in the bytes."""
    space = spaces.Tuple([spaces.Box(0, 255, (2, 3), np.uint8), spaces.Box(-1, 1, (2,))])
    seen = Observations("Game-v0", space)
    old, new = (([[n] * 3, [n + 1] * 3], [n / 100, -n / 100]) for n in (10, 50))
    frames = torch.from_numpy(np.concatenate([seen.frame(old), seen.frame(new)]))[None]
    packing = Packing(seen.parts.numbers, seen.parts.pixels, stack=2)
    assert packing.shapes == ((4,), (2, 2, 3))
    row = packing.unpacked(frames)[0]
    np.testing.assert_array_equal(row[:4], np.array([0.1, -0.1, 0.5, -0.5], np.float32))
    pixels = (row[4:] * 255).round().view(2, 2, 3)[..., 0]
    assert pixels.tolist() == [[10, 11], [50, 51]]


@pytest.mark.parametrize(
    ("space", "observation", "said"),
    [
        (spaces.Discrete(3), 3, "3, which is none of Discrete"),
        (spaces.Discrete(3), 0.5, "0.5, which is none of"),
        (NESTED, {"lamps": [0, 1, 1], "choices": [6, 2]}, "its space has the parts where, choices, lamps"),
        (NESTED, {"lamps": [0, 1], "choices": [6, 2], "where": ([0] * 4, 0)}, r"shape \(2,\) at \['lamps'\]"),
        (
            NESTED,
            {"lamps": [0, 1, 1], "choices": [6, 2], "where": ([0] * 4,)},
            r"at \['where'\]; its space has 2 parts",
        ),
    ],
)
def test_observations_outside_their_space_are_named(space, observation, said):
    with pytest.raises(ValueError, match=said):
        Observations("Game-v0", space).frame(observation)


def test_an_image_alone_in_a_dict_is_an_image():
    box = spaces.Box(0, 255, (9, 7, 3), np.uint8)
    seen = Observations("Game-v0", spaces.Dict(eye=box))
    assert (seen.shape, seen.dtype) == ((3, 9, 7), "uint8")
    shown = box.sample()
    assert np.array_equal(seen.frame({"eye": shown}), shown.transpose(2, 0, 1))
    assert seen.rule == "observation: image 9x7, 3 channels last, moved first, values bytes, divided by 255"
    floats = Observations("Game-v0", spaces.Box(0, 255, (9, 7, 3)))
    assert (floats.pixel_max, floats.dtype) == (255.0, "float32")
    assert "divided by 255, their highest value" in floats.rule


@pytest.mark.parametrize(
    ("space", "count", "names"),
    [
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), 6, ("0+0", "0+1", "0+2", "1+0", "1+1", "1+2")),
        (spaces.MultiBinary(2), 4, ("0+0", "0+1", "1+0", "1+1")),
    ],
)
def test_actions_of_several_choices_are_numbered(space, count, names, monkeypatch):
    played = []
    monkeypatch.setattr(Made, "step", lambda self, action: played.append(action) or (np.zeros(2), 0.0, True, False, {}))
    register(action_space=space)
    env = make("SteadyQMade-v0")
    env.reset()
    assert (env.spec.num_actions, env.spec.action_names) == (count, names)
    for number in range(count):
        env.step(np.array([number]))
    assert all(space.contains(action) for action in played)
    assert len({tuple(action.tolist()) for action in played}) == count
    agent = agent_of(presets.steady("SteadyQMade-v0"))
    several = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    rows = agent.act(several)
    assert rows.shape == (20, 2)
    assert np.array_equal(agent.act(several[3]), rows[3])
    assert all(space.contains(row) for row in rows)


@pytest.mark.parametrize("space", [NESTED, spaces.Discrete(7, start=2), spaces.MultiDiscrete([3, 2])])
def test_an_agent_takes_an_observation_of_any_space(space):
    register(observation_space=space)
    agent = agent_of(presets.steady("SteadyQMade-v0"))
    space.seed(3)
    shown = space.sample()
    frame = Observations("Game-v0", space).frame(shown)
    assert agent.act(shown) == agent.act(frame)
    assert agent.act(np.stack([frame, frame])).tolist() == 2 * [agent.act(shown)]
    with pytest.raises(UserError, match="does not show"):
        agent.act("north")


def test_missing_dependency():
    register(missing=True)
    with pytest.raises(UserError, match=r"SteadyQMade-v0 needs a package that is not installed: box2d is missing"):
        envs.spec("SteadyQMade-v0", PROTOCOL)


def test_missing_module():
    with pytest.raises(UserError, match=r"Gymnasium cannot make no_such_module:Thing-v0"):
        make("no_such_module:Thing-v0")


def test_pictures_have_even_sides():
    pictures = list(envs.render("SteadyQMade-v0", PROTOCOL, 3, [0, 1]))
    assert [picture.shape for picture in pictures] == [(30, 40, 3)] * 3
    assert envs.frames_per_second("SteadyQMade-v0", PROTOCOL) == 7


def test_close_closes():
    game = GymnasiumGame("CartPole-v1", PROTOCOL)
    closed = []
    game._env.close = lambda: closed.append(True)
    game.close()
    assert closed


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x" * 78, f"'{'x' * 78}'"),
        ("x" * 79, f"'{'x' * 76}..."),
        ([1, {"a":  2}], "[1, {'a': 2}]"),
        (np.zeros(4), "array([0., 0., 0., 0.])"),
        (np.zeros((5, 1)), "an array of shape (5, 1)"),
    ],
)  # fmt: skip
def test_what_an_environment_gave_is_repeated_in_a_few_words(value, words):
    assert short(value) == words
