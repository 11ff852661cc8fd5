"""The shared vector over scripted games: every way a game or a life can end."""

import numpy as np
import pytest
from playing import play

from steadyq.envs.episodes import EpisodeVector, Opening, Outcome, seed_of_game
from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError

SPEC = EnvSpec("Test/Script", (1,), "float32", 1.0, 1, 2, 1, ("0", "1"), 1)


class Script:
    """Frames count up within a game, which begins at 100 x its number; `events` says what the steps lead to.

    T: the game ends. C: the time is up. B: both. L: a life is lost. X: a life is lost as the time is up.
    """

    def __init__(self, events: str, dies_between_lives: bool = False):
        self.events, self.dies = events, dies_between_lives
        self.begun: list[int] = []
        self.prepared: list[int] = []

    def frame(self) -> np.ndarray:
        return np.array([self.clock], np.float32)

    def prepare(self, seeds: list[int]) -> None:
        self.prepared += seeds

    def begin(self, seed: int) -> Opening:
        self.begun.append(seed)
        self.clock, self.steps = 100 * len(self.begun), 0
        return Opening(self.frame(), reward=0.25, frames=9)

    def send(self, action: int) -> None:
        self.clock += 1
        event = self.events[self.steps]
        self.steps += 1
        self.outcome = Outcome(self.frame(), float(action), event in "TB", event in "CBX", event in "LX")

    def receive(self) -> Outcome:
        return self.outcome

    def next_life(self) -> Opening:
        self.clock += 10
        return Opening(None if self.dies else self.frame(), reward=0.5, frames=12)

    def finish(self) -> None:
        self.finished = True

    def close(self) -> None:
        self.closed = True


def vector(*games: Script, life_loss_terminal: bool = True, seed: int = 0, training: bool = True) -> EpisodeVector:
    spec = EnvSpec(**{**vars(SPEC), "lanes": len(games)})
    return EpisodeVector(spec, games, seed=seed, training=training, life_loss_terminal=life_loss_terminal)


def flags(step) -> tuple[bool, bool, bool]:
    return bool(step.terminated[0]), bool(step.truncated[0]), bool(step.game_over[0])


ACTION = np.array([1])


@pytest.mark.parametrize(
    ("event", "expected"), [("T", (True, False, True)), ("C", (False, True, True)), ("B", (True, False, True))]
)
def test_a_game_that_ends_is_followed_at_once(event, expected):
    env = vector(Script("." + event))
    assert env.reset()[0] == 100
    middle, end = env.step(ACTION), env.step(ACTION)
    assert flags(middle) == (False, False, False)
    assert middle.final_frame[0] == middle.frame[0] == 101
    assert flags(end) == expected
    assert end.final_frame[0] == 102
    assert end.frame[0] == 200
    assert end.reward[0] == 1
    assert end.reward.dtype == np.float32


def test_lost_life_ends_the_trajectory_not_the_game():
    env = vector(Script("L.T"))
    env.reset()
    lost, after = env.step(ACTION), env.step(ACTION)
    assert flags(lost) == (True, False, False)
    assert (lost.final_frame[0], lost.frame[0]) == (101, 111)
    assert after.frame[0] == 112
    assert (lost.restart[0], after.restart[0]) == (True, False)
    assert flags(env.step(ACTION)) == (True, False, True)


def test_lost_life_in_evaluation_skips_what_lies_between_and_restarts_the_stack():
    env = vector(Script("L.T"), life_loss_terminal=False)
    env.reset()
    lost = env.step(ACTION)
    assert flags(lost) == (False, False, False)
    assert lost.final_frame[0] == lost.frame[0] == 111
    assert (lost.restart[0], env.step(ACTION).restart[0], env.step(ACTION).restart[0]) == (True, False, True)


@pytest.mark.parametrize(("life_loss_terminal", "expected"), [(True, (True, False)), (False, (False, True))])
def test_life_lost_as_the_time_is_up(life_loss_terminal, expected):
    # Nothing more is pressed in a game that is cut, so it cannot end in what would be pressed.
    env = vector(Script("X", dies_between_lives=True), life_loss_terminal=life_loss_terminal)
    env.reset()
    step = env.step(ACTION)
    assert flags(step) == (*expected, True)
    assert (step.final_frame[0], step.frame[0]) == (101, 200)


@pytest.mark.parametrize("life_loss_terminal", [True, False])
def test_game_that_ends_between_two_lives(life_loss_terminal):
    env = vector(Script("L", dies_between_lives=True), life_loss_terminal=life_loss_terminal)
    env.reset()
    lost = env.step(ACTION)
    assert flags(lost) == (True, False, True)
    assert (lost.final_frame[0], lost.frame[0]) == (101, 200)


@pytest.mark.parametrize("life_loss_terminal", [True, False])
def test_what_is_pressed_unseen_counts_for_its_game_and_not_for_the_learner(life_loss_terminal):
    env = vector(Script("L.T"), life_loss_terminal=life_loss_terminal)
    env.reset()
    steps = [env.step(ACTION) for _ in range(4)]
    assert [float(step.reward[0]) for step in steps] == [1, 1, 1, 1]
    # The first step of a game counts its opening too, a lost life what lies before the next.
    assert [float(step.score[0]) for step in steps] == [1.75, 1, 1, 1.75]
    assert [int(step.frames[0]) for step in steps] == [22, 1, 1, 22]
    ending = vector(Script("L", dies_between_lives=True))
    ending.reset()
    assert float(ending.step(ACTION).score[0]) == 1.75  # the ended game's, not the next one's


def test_an_opening_counts_once_after_a_restore_too():
    env = vector(Script("..."), Script("T"))
    env.reset()
    env.step(np.array([1, 1]))
    again = vector(Script("..."), Script("T"))
    again.restore(env.state())  # one game has had its first step, the other begins
    assert again.step(np.array([1, 1])).score.tolist() == env.step(np.array([1, 1])).score.tolist() == [1, 1.25]


def test_lanes_end_on_their_own():
    env = vector(Script("..T"), Script(".T."))
    env.reset()
    env.step(np.array([0, 1]))
    second = env.step(np.array([0, 1]))
    assert second.game_over.tolist() == [False, True]
    assert second.frame[:, 0].tolist() == [102, 200]
    assert second.final_frame[:, 0].tolist() == [102, 102]
    assert second.reward.tolist() == [0, 1]


def test_every_game_has_its_own_seed_and_is_prepared_with_it():
    games = Script(".T"), Script("T")
    env = vector(*games)
    env.reset()
    for _ in range(4):
        env.step(np.array([0, 0]))
    for lane, game in enumerate(games):
        assert game.begun == [seed_of_game(0, True, lane, number) for number in range(len(game.begun))]
        assert set(game.begun) < set(game.prepared)
    assert env.game_seed().tolist() == [game.begun[-1] for game in games]


def test_seeds_differ_by_run_lane_number_and_split():
    seeds = [
        seed_of_game(run, training, lane, number)
        for run in range(4)
        for training in (True, False)
        for lane in range(4)
        for number in range(20)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(1 < seed < 2**31 for seed in seeds)
    assert all(seed_of_game(run, True, 0, 0) % 2 == 0 for run in range(9))
    assert all(seed_of_game(run, False, 0, 0) % 2 == 1 for run in range(9))


def test_restore_replays_lives_too_and_goes_on_with_the_next_number():
    env = vector(Script("T"), Script("L....T"))
    env.reset()
    play(env, 3)
    state = env.state()
    assert state["number"].tolist() == [3, 0]
    assert state["length"].tolist() == [0, 3]
    assert all(array.dtype.kind == "i" for array in state.values())
    games = Script("T"), Script("L....T")
    again = vector(*games)
    assert again.restore(state)[1] == 113
    assert games[0].prepared[-1] == seed_of_game(0, True, 0, 4)
    one, other = play(env, 5), play(again, 5)
    assert [step.game_over.tolist() for step in one] == [step.game_over.tolist() for step in other]
    assert env.state()["seed"].tolist() == again.state()["seed"].tolist()


@pytest.mark.parametrize(("off", "left"), [(0.0, []), (1e-6, []), (0.01, [1])])
def test_a_game_that_shows_something_else_than_before_is_abandoned(off, left):
    env = vector(Script("......"), Script("......"))
    env.reset()
    shown = play(env, 3)[-1].frame
    shown[1] *= 1 + off
    again = vector(Script("......"), Script("......"))
    again.restore(env.state(), shown)
    assert again.abandoned() == left


def test_state_is_a_snapshot():
    env = vector(Script("...."))
    env.reset()
    env.step(ACTION)
    state = env.state()
    env.step(ACTION)
    assert state["length"].tolist() == [1]


def test_state_that_does_not_fit_is_refused():
    env = vector(Script("...."))
    with pytest.raises(RuntimeError, match="before reset"):
        env.state()
    env.reset()
    with pytest.raises(UserError, match="has 1 lanes, this environment has 2"):
        vector(Script("."), Script(".")).restore(env.state())
    with pytest.raises(UserError, match="another seed"):
        vector(Script("."), seed=1).restore(env.state())
    with pytest.raises(UserError, match="training instead of evaluation"):
        vector(Script("."), training=False).restore(env.state())


def test_wrong_number_of_actions_is_refused():
    env = vector(Script("...."))
    env.reset()
    with pytest.raises(ValueError, match="2 actions for 1 lanes"):
        env.step(np.array([0, 0]))


def test_close_closes_every_game():
    games = Script("."), Script(".")
    vector(*games).close()
    assert all(game.closed for game in games)
