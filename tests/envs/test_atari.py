"""The Atari adapter against the emulator itself."""

import dataclasses
import itertools

import ale_py
import numpy as np
import pytest
from ale_py import roms
from playing import play, same

from steadyq import envs
from steadyq.envs import atari

PROTOCOL = envs.protocol_for("Atari/Breakout")


def make(game: str, *, seed: int = 1, training: bool = True, lanes: int = 1, episodes: int | None = None, **rules):
    protocol = dataclasses.replace(PROTOCOL, **rules)
    return envs.make(f"Atari/{game}", protocol, seed=seed, training=training, lanes=lanes, episodes=episodes)


class PlainAtari:
    """Stable-Baselines3's rules written once more over the plain emulator, for a game without no-ops and stickiness."""

    def __init__(self, rom: str):
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setInt("random_seed", 1)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(roms.get_rom_path(rom))
        self.actions = self.ale.getMinimalActionSet()
        self.fires = len(self.actions) >= 3 and self.actions[1] == ale_py.Action.FIRE

    def reset(self) -> None:
        self.total = 0.0
        self.ale.reset_game()
        self.screen, self.gray = self.ale.getScreenRGB(), self.ale.getScreenGrayscale()
        if self.fires:
            self.skip(1)
            self.skip(2)

    def skip(self, action: int) -> float:
        reward = 0.0
        for _ in range(4):
            before, gray = self.ale.getScreenRGB(), self.ale.getScreenGrayscale()
            given = self.ale.act(self.actions[action])
            reward, self.total = reward + given, self.total + given
            if self.ale.game_over():
                return reward
        self.screen = np.maximum(before, self.ale.getScreenRGB())
        self.gray = np.maximum(gray, self.ale.getScreenGrayscale())
        return reward

    def step(self, action: int) -> tuple[float, bool, bool]:
        lives = self.ale.lives()
        reward = self.skip(action)
        over = self.ale.game_over()
        lost = 0 < self.ale.lives() < lives
        if lost and not over:
            for hidden in (0, 1, 2) if self.fires else (0,):
                self.skip(hidden)
        return reward, over or lost, over


def as_bright(frame: np.ndarray, screen: np.ndarray) -> bool:
    """A smaller picture of a screen is as bright as it is, in its upper and its lower half."""
    assert frame.shape == (1, 1, 84, 84)
    halves = [(picture[: len(picture) // 2], picture[len(picture) // 2 :]) for picture in (frame[0, 0], screen)]
    return all(abs(float(mine.mean()) - float(theirs.mean())) < 1 for mine, theirs in zip(*halves, strict=True))


@pytest.mark.parametrize(
    ("game", "rom", "steps"),
    [("Breakout", "breakout", 400), ("BankHeist", "bank_heist", 250), ("MsPacman", "ms_pacman", 30)],
)
def test_a_whole_game_equals_the_plain_emulator(game, rom, steps):
    env = make(game, noop_max=0)
    first = env.reset()
    seed = int(env.game_seed()[0])
    plain = PlainAtari(rom)
    plain.reset()
    assert as_bright(first, plain.gray)
    draw = np.random.default_rng(3)
    actions, screens = [], [plain.screen]
    for _ in range(steps):
        actions.append(int(draw.integers(env.spec.num_actions)))
        step = env.step(np.array(actions[-1:]))
        expected = plain.step(actions[-1])
        assert (step.reward[0], step.terminated[0], step.game_over[0]) == expected
        if step.game_over[0]:
            break
        assert as_bright(step.frame, plain.gray)
        screens.append(plain.screen)
    rebuilt = list(envs.render(f"Atari/{game}", dataclasses.replace(PROTOCOL, noop_max=0), seed, actions))
    assert len(rebuilt) == len(actions) + 1
    assert rebuilt[0].shape == (630, 480, 3)
    assert rebuilt[0].dtype == np.uint8
    for picture, screen in zip(rebuilt, screens, strict=False):
        assert np.array_equal(picture[1::3, 1::3], screen)


@pytest.mark.parametrize("training", [True, False])
def test_scores_and_frames_count_what_hidden_presses_gave(training):
    """Riverraid pays when the FIRE that begins a life hits something."""
    env = make("Riverraid", noop_max=0, training=training)
    env.reset()
    plain = PlainAtari("riverraid")
    plain.reset()
    draw = np.random.default_rng(0)
    seen = score = frames = games = hidden = 0.0
    while games < 6:
        action = draw.integers(env.spec.num_actions)
        step = env.step(np.array([action]))
        plain.step(int(action))
        seen, score, frames = seen + step.reward[0], score + step.score[0], frames + step.frames[0]
        if step.game_over[0]:
            assert score == plain.total
            assert frames == plain.ale.getEpisodeFrameNumber()
            hidden += score - seen
            seen = score = frames = 0.0
            games += 1
            plain.reset()
    assert hidden > 0


def test_breakout_is_played_through_all_five_lives():
    env = make("Breakout")
    env.reset()
    steps = play(env, 400)
    over = next(index for index, step in enumerate(steps) if step.game_over[0])
    first_game = steps[: over + 1]
    assert sum(step.terminated[0] for step in first_game) == 5
    assert [bool(step.game_over[0]) for step in first_game if step.terminated[0]] == [False] * 4 + [True]
    assert not any(step.truncated[0] for step in first_game)


@pytest.mark.parametrize("last_life", [False, True])
def test_a_life_that_bank_heist_plays_with_none_shown(last_life):
    """Four lives are shown and five are played; who looks for lives above 0 alone misses the fourth loss."""
    env = make("BankHeist", fire_reset=False, last_life=last_life)
    env.reset()
    steps = play(env, 1500)
    over = next(index for index, step in enumerate(steps) if step.game_over[0])
    ends = [index for index, step in enumerate(steps[: over + 1]) if step.terminated[0]]
    assert len(ends) == 4 + last_life
    assert [bool(step.life_lost[0]) for step in (steps[end] for end in ends)] == [True] * (3 + last_life) + [False]


def test_a_life_with_none_shown_changes_no_other_game():
    games = [make("Breakout", last_life=last_life) for last_life in (False, True)]
    assert np.array_equal(*(env.reset() for env in games))
    assert same(*(play(env, 400) for env in games))


def test_evaluation_plays_the_same_full_games():
    env = make("Breakout", training=False)
    env.reset()
    steps = play(env, 400)
    assert any(step.game_over[0] for step in steps)
    assert all(step.terminated[0] == step.game_over[0] for step in steps)


def test_final_frame_is_what_the_screen_showed_at_the_loss():
    training, plain = make("Breakout"), make("Breakout", life_loss_terminal=False)
    assert np.array_equal(training.reset(), plain.reset())
    for one, other in zip(play(training, 200), play(plain, 200), strict=True):
        assert np.array_equal(one.final_frame, other.frame)
        if one.terminated[0]:
            assert not np.array_equal(one.frame, one.final_frame)
            break
        assert np.array_equal(one.frame, one.final_frame)
    else:
        pytest.fail("no life was lost")


def test_after_a_game_comes_the_first_frame_of_the_next():
    env = make("Breakout")
    env.reset()
    step = next(step for step in (play(env, 1, seed)[0] for seed in range(500)) if step.game_over[0])
    begun = atari._Emulator("Breakout", PROTOCOL).begin(int(env.game_seed()[0]))
    assert np.array_equal(step.frame[0], begun.frame)
    assert env.state()["number"].tolist() == [1]


def test_fire_is_pressed_for_the_agent_in_every_life():
    """Without it the ball never comes and a policy of no-ops would keep its five lives."""
    pressed, waiting = make("Breakout"), make("Breakout", fire_reset=False)
    for env in pressed, waiting:
        env.reset()
    idle = np.zeros(1, np.int64)
    assert sum(pressed.step(idle).terminated[0] for _ in range(250)) >= 5
    assert not any(waiting.step(idle).terminated[0] for _ in range(250))


def test_a_game_that_is_over_before_its_first_step_begins_without_presses():
    pressed, plain = (make("Breakout", noop_max=0, max_frames=4, fire_reset=fire) for fire in (True, False))
    assert np.array_equal(pressed.reset(), plain.reset())
    assert pressed.step(np.zeros(1, np.int64)).truncated[0]


@pytest.mark.parametrize("game", ["Pong", "Freeway"])
def test_games_without_lives_never_end_a_trajectory_early(game):
    env = make(game)
    env.reset()
    assert not any(step.terminated[0] or step.truncated[0] for step in play(env, 150))


def test_rewards_are_raw():
    env = make("Alien")
    env.reset()
    assert max(step.reward[0] for step in play(env, 100)) >= 10


@pytest.mark.parametrize(("game", "count"), [("Breakout", 4), ("Freeway", 3), ("Alien", 18), ("Amidar", 10)])
def test_minimal_actions(game, count):
    spec = envs.spec(f"Atari/{game}", PROTOCOL)
    assert spec.num_actions == len(spec.action_names) == count
    assert envs.spec(f"Atari/{game}", dataclasses.replace(PROTOCOL, action_set="full")).num_actions == 18


def test_spec():
    spec = envs.spec("Atari/Breakout", PROTOCOL)
    assert spec.observation_shape == (4, 84, 84)
    assert (spec.frame_dtype, spec.pixel_max, spec.frames_per_step) == ("uint8", 255.0, 4)
    assert spec.action_names == ("NOOP", "FIRE", "RIGHT", "LEFT")


def test_time_limit_truncates():
    env = make("Pong", max_frames=200)
    env.reset()
    steps = play(env, 60)
    ends = [index for index, step in enumerate(steps) if step.truncated[0]]
    # 200 frames less 1 to 30 no-ops and two hidden presses of four frames.
    assert 40 <= ends[0] + 1 <= 48
    assert all(steps[index].game_over[0] and not steps[index].terminated[0] for index in ends)


def test_no_ops_are_at_least_one():
    counts = set()
    emulator = atari._Emulator("Pong", dataclasses.replace(PROTOCOL, noop_max=2, fire_reset=False))
    for seed in range(2, 12):
        counts.add(emulator.begin(seed).frames)
    assert counts == {1, 2}
    emulator = atari._Emulator("Pong", dataclasses.replace(PROTOCOL, noop_max=0, fire_reset=False))
    assert emulator.begin(2).frames == 0


def test_a_prepared_game_is_the_same_game():
    rules = dataclasses.replace(PROTOCOL, sticky=0.25)
    game = atari.AtariGame(atari._Emulators("Alien", rules, 2))
    alone = atari._Emulator("Alien", rules)
    at_once = game.begin(12)
    game.prepare([40])
    game.prepare([12])  # 40 gives way
    assert np.array_equal(game.begin(12).frame, at_once.frame)
    game.prepare([40, 44, 48])  # as many as there are emulators for
    for seed in (48, 40, 44):
        assert np.array_equal(game.begin(seed).frame, alone.begin(seed).frame)
    game.close()


def test_no_more_emulators_are_made_than_there_are_games(monkeypatch):
    made = []
    make_one = atari._Emulator.__init__
    monkeypatch.setattr(atari._Emulator, "__init__", lambda *given, **more: made.append(make_one(*given, **more)))
    env = make("Breakout", training=False, lanes=3, episodes=3)
    env.reset()
    play(env, 5)
    env.close()
    assert len(made) == 3


def test_seed_decides_and_splits_differ():
    def first_steps(seed: int, training: bool = True):
        env = make("Breakout", seed=seed, training=training, sticky=0.25)
        env.reset()
        return play(env, 40)

    assert same(first_steps(1), first_steps(1))
    assert not same(first_steps(1), first_steps(2))
    assert not same(first_steps(1), first_steps(1, training=False))


def test_sticky_actions_reach_the_emulator():
    plain, sticky = make("Breakout", noop_max=0), make("Breakout", noop_max=0, sticky=0.5)
    assert np.array_equal(plain.reset(), plain.reset())
    sticky.reset()
    assert not same(play(plain, 60), play(sticky, 60))


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_restore_continues_bit_for_bit(sticky):
    env = make("Breakout", sticky=sticky, lanes=2)
    env.reset()
    for step in (play(env, 1, seed)[0] for seed in itertools.count()):
        # Stop in the middle of a game: not the first of its lane, and not in its first life.
        if step.terminated[0] and not step.game_over[0] and env.state()["number"][0] >= 1:
            break
    play(env, 7)
    state = env.state()
    again = make("Breakout", sticky=sticky, lanes=2)
    frame = again.restore(state)
    one, other = play(env, 200, seed=5), play(again, 200, seed=5)
    assert frame.shape == (2, 1, 84, 84)
    assert any(step.game_over[0] for step in one)
    assert same(one, other)


def test_restored_frames_are_the_current_ones():
    env = make("Alien", lanes=2, sticky=0.25)
    env.reset()
    last = play(env, 60)[-1]
    assert np.array_equal(make("Alien", lanes=2, sticky=0.25).restore(env.state()), last.frame)


def test_frames_per_second():
    assert envs.frames_per_second("Atari/Pong", PROTOCOL) == 15


def test_the_list_of_games_is_ale_pys():
    multiplayer = {"combat", "joust", "maze_craze", "warlords"}
    assert sorted(atari.games().values()) == sorted(set(roms.get_all_rom_ids()) - multiplayer)
