"""Seeding, autoreset, lost lives, recording and exact restore, once for every backend with one emulator per lane."""

import functools
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyq.envs.vector import Array, EnvSpec, State, Step
from steadyq.errors import UserError

SHARES = 16
"""Game i of a fixed number of games has the seed of lane i % SHARES and number i // SHARES, on however many lanes."""


class Outcome(typing.NamedTuple):
    """What one step of one game led to."""

    frame: Array
    reward: float
    terminated: bool
    truncated: bool
    """The time is up; a game may end at the same moment, which then counts."""
    life_lost: bool = False
    """A life was lost, the game goes on, and the protocol cares."""
    frames: int = 1
    """Emulator frames that the step took."""
    allowed: Array | None = None
    """[action] what may be played next, where the environment says so."""


class Opening(typing.NamedTuple):
    """Where a game or a life begins, and what the protocol's presses, which no agent sees, led to before that."""

    frame: Array | None
    """None where the game ended in the presses."""
    reward: float = 0.0
    frames: int = 0
    allowed: Array | None = None
    """[action] what may be played first, where the environment says so."""


class Game(typing.Protocol):
    """One emulator. A game is a function of its seed and its actions: nothing may carry over from the game before."""

    def prepare(self, seeds: Sequence[int]) -> None:
        """Learn which games come next, the nearest first; what is slow to reset may load them in the background."""
        ...

    def begin(self, seed: int) -> Opening:
        """Start the game of this seed; its opening always has a frame."""
        ...

    def send(self, action: int) -> None:
        """Start one step."""
        ...

    def receive(self) -> Outcome:
        """Wait for the step that `send` started."""
        ...

    def next_life(self) -> Opening:
        """Play what lies unseen between two lives."""
        ...

    def finish(self) -> None:
        """The game has ended: what played it is free."""
        ...

    def close(self) -> None:
        """Free the emulator."""
        ...


@functools.lru_cache(maxsize=4096)
def seed_of_game(run_seed: int, training: bool, lane: int, number: int) -> int:
    """Return the seed (2 to 2**31 - 1) of a lane's game: even in training, odd in evaluation, so never shared."""
    drawn = np.random.SeedSequence(run_seed, spawn_key=(int(training), lane, number)).generate_state(1)[0]
    return 2 * (int(drawn) % (2**30 - 1) + 1) + (0 if training else 1)


def pack(number: Sequence[int], seed: Sequence[int], actions: Sequence[Sequence[int]]) -> State:
    """Return the lanes' current games as flat arrays."""
    return {
        "number": np.array(number, np.int64),
        "seed": np.array(seed, np.int64),
        "length": np.array([len(lane) for lane in actions], np.int64),
        "actions": np.array([action for lane in actions for action in lane], np.int16),
    }


def unpack(state: State, lanes: int) -> tuple[list[int], list[int], list[list[int]]]:
    """Return number, seed and actions per lane, or say why the state does not fit."""
    if len(state["number"]) != lanes:
        raise UserError(f"the saved state has {len(state['number'])} lanes, this environment has {lanes}")
    ends = np.cumsum(state["length"])[:-1]
    actions = [lane.tolist() for lane in np.split(state["actions"], ends)]
    return state["number"].tolist(), state["seed"].tolist(), actions


class EpisodeVector:
    """A `VectorEnv` over one `Game` per lane.

    Without `episodes` every lane plays games of its own without end. With it, lanes take games 0 to episodes - 1 in
    order, whichever lane is free: which games are played, and how each one goes, does not depend on the lanes.
    """

    def __init__(
        self,
        spec: EnvSpec,
        games: Sequence[Game],
        *,
        seed: int,
        training: bool,
        life_loss_terminal: bool,
        episodes: int | None = None,
    ):
        self.spec = spec
        self._games = list(games)
        self._run_seed = seed
        self._training = training
        self._life_loss_terminal = life_loss_terminal
        self._episodes = episodes
        self._begun = 0
        self._number = [-1] * len(games)
        self._seed = [0] * len(games)
        self._actions: list[list[int]] = [[] for _ in games]
        self._opening: list[Opening | None] = [None] * len(games)  # of a current game until its first step counts it
        # [lane, action]: what may be played now; a new array whenever it changes
        self._allowed = np.ones((len(games), spec.num_actions), np.bool_) if spec.masked else None
        self._abandoned: dict[int, Array] = {}  # lanes whose saved game could not be rebuilt, and what was last seen

    def reset(self) -> Array:
        """Begin each lane's first game."""
        self._begun = 0
        self._number = [-1] * len(self._games)
        frame, self._allowed = self._empty(), self._all_allowed()
        self._next_games(range(len(self._games)), frame)
        return frame

    def step(self, action: NDArray[np.integer[Any]]) -> Step:
        """Play one action in each lane; the emulators work at the same time where they can.

        Where a game raises, the games are as `state` knows them before the step, though they cannot be played on.
        """
        if len(action) != len(self._games):
            raise ValueError(f"{len(action)} actions for {len(self._games)} lanes")
        before = self._number[:], self._seed[:], self._actions[:]
        lengths = [len(played) for played in self._actions]
        try:
            return self._step(action.tolist())
        except Exception:
            self._number, self._seed, self._actions = before
            for played, length in zip(self._actions, lengths, strict=True):
                del played[length:]
            raise

    def _step(self, action: Sequence[int]) -> Step:
        lanes = len(self._games)
        abandoned, self._abandoned = self._abandoned, {}
        playing: Sequence[int] = range(lanes)
        if abandoned or self._episodes is not None:
            playing = [lane for lane in playing if self._number[lane] >= 0 and lane not in abandoned]
        for lane in playing:
            self._games[lane].send(action[lane])
            self._actions[lane].append(action[lane])
        frame, allowed = self._empty(), self._all_allowed()
        reward, unseen, frames = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32), np.zeros(lanes, np.int64)
        terminated, truncated = np.zeros(lanes, np.bool_), np.zeros(lanes, np.bool_)
        game_over, life_lost = np.zeros(lanes, np.bool_), np.zeros(lanes, np.bool_)
        last: dict[int, Array] = {}
        # All results are collected before any lane resets, so that a reset never waits with work left in flight.
        outcomes = [self._games[lane].receive() for lane in playing]
        for lane, outcome in zip(playing, outcomes, strict=True):
            newest: Array | None = outcome.frame
            if allowed is not None:
                allowed[lane] = True if outcome.allowed is None else outcome.allowed
            reward[lane], frames[lane] = outcome.reward, outcome.frames
            over = outcome.terminated or outcome.truncated
            hidden, self._opening[lane] = self._opening[lane], None
            if hidden is not None:
                unseen[lane] += hidden.reward
                frames[lane] += hidden.frames
            if outcome.life_lost:
                life_lost[lane] = True
                if not over:
                    hidden = self._games[lane].next_life()
                    unseen[lane] += hidden.reward
                    frames[lane] += hidden.frames
                    newest = hidden.frame  # None: the game ended between two lives
            if over or outcome.life_lost:
                over = over or newest is None
                lost = outcome.life_lost and self._life_loss_terminal
                ended = outcome.terminated or lost or newest is None
                terminated[lane], truncated[lane], game_over[lane] = ended, outcome.truncated and not ended, over
                if ended or outcome.truncated:
                    last[lane] = outcome.frame
            if newest is not None:
                frame[lane] = newest
        for lane, seen in abandoned.items():
            truncated[lane] = game_over[lane] = True
            last[lane] = seen
        final_allowed, self._allowed = allowed, allowed
        if last and allowed is not None:
            self._allowed = allowed.copy()
        if last and game_over.any():
            self._next_games(np.flatnonzero(game_over).tolist(), frame)
        final = frame
        if last:
            final = frame.copy()
            for lane, shown in last.items():
                final[lane] = shown
        return Step(
            frame,
            reward,
            terminated,
            truncated,
            game_over,
            final,
            life_lost,
            unseen,
            frames,
            self._allowed,
            final_allowed,
        )

    def allowed(self) -> NDArray[np.bool_] | None:
        """Return what may be played in each lane now, where the environment says so."""
        return self._allowed

    def playing(self) -> NDArray[np.int64]:
        """Return the number of each lane's current game, -1 where a lane stands still."""
        return np.array(self._number, np.int64)

    def game_seed(self) -> NDArray[np.int64]:
        """Return the seed of each lane's current game."""
        return np.array(self._seed, np.int64)

    def state(self) -> State:
        """Return the current games: with the run's seed, all that is needed to continue exactly."""
        if min(self._number) < 0:
            raise RuntimeError("state() before reset(): no game has begun")
        return pack(self._number, self._seed, self._actions)

    def restore(self, state: State, shown: Array | None = None) -> Array:
        """Rebuild the current games from their seeds and actions; what follows is as if never interrupted.

        A lane that does not arrive at the frame it has `shown` is abandoned.
        """
        numbers, seeds, actions = unpack(state, len(self._games))
        for lane, (number, seed) in enumerate(zip(numbers, seeds, strict=True)):
            if seed != self._seed_for(lane, number):
                raise UserError(
                    "the saved state belongs to a run with another seed, or to training instead of evaluation"
                )
            self._games[lane].prepare([seed])
        frame, self._allowed = self._empty(), self._all_allowed()
        self._number, self._seed, self._actions, self._abandoned = numbers, seeds, actions, {}
        for lane, game in enumerate(self._games):
            opening, steps = game.begin(seeds[lane]), -1
            for newest, allowed in replay(game, opening, actions[lane]):
                frame[lane], steps = newest, steps + 1
                if self._allowed is not None:
                    self._allowed[lane] = True if allowed is None else allowed
            self._opening[lane] = None if actions[lane] else opening
            # Another machine may compute an observation's last digits otherwise.
            arrived = steps == len(actions[lane]) and (
                shown is None or np.allclose(frame[lane], shown[lane], 1e-4, 1e-5)
            )
            if not arrived and shown is not None:
                self._abandoned[lane], frame[lane] = shown[lane].copy(), shown[lane]
            game.prepare(self._coming(lane))
        return frame

    def abandoned(self) -> list[int]:
        """Return the lanes whose saved game could not be rebuilt."""
        return list(self._abandoned)

    def close(self) -> None:
        """Free the emulators."""
        for game in self._games:
            game.close()

    def _next_games(self, lanes: Sequence[int], frame: Array) -> None:
        """Begin the next game in each of these lanes, all of which have finished one; their first frames go to `frame`.

        All are told to load what comes before any is waited for, so that they load at the same time.
        """
        for lane in lanes:
            self._games[lane].finish()
        for lane in lanes:
            self._games[lane].prepare(self._coming(lane))
        for lane in lanes:
            coming = self._coming(lane)
            self._actions[lane] = []
            if not coming:
                self._number[lane], self._opening[lane], frame[lane] = -1, None, 0
                if self._allowed is not None:
                    self._allowed[lane] = True
                continue
            self._number[lane] = self._number[lane] + 1 if self._episodes is None else self._begun
            self._begun += 1
            self._seed[lane] = coming[0]
            opening = self._opening[lane] = self._games[lane].begin(coming[0])
            frame[lane] = opening.frame
            if self._allowed is not None:
                self._allowed[lane] = True if opening.allowed is None else opening.allowed
            self._games[lane].prepare(self._coming(lane))

    def _coming(self, lane: int) -> list[int]:
        """Seeds of the games this lane may play next, the nearest first; none where no game is left."""
        if self._episodes is None:
            return [self._seed_for(lane, self._number[lane] + 1)]
        ahead = range(self._begun, min(self._begun + len(self._games), self._episodes))
        return [self._seed_for(number % SHARES, number // SHARES) for number in ahead]

    def _seed_for(self, lane: int, number: int) -> int:
        return seed_of_game(self._run_seed, self._training, lane, number)

    def _all_allowed(self) -> NDArray[np.bool_] | None:
        return np.ones((len(self._games), self.spec.num_actions), np.bool_) if self.spec.masked else None

    def _empty(self) -> Array:
        return np.zeros((len(self._games), *self.spec.frame_shape), self.spec.frame_dtype)


def replay(game: Game, opening: Opening, actions: Sequence[int]) -> Iterator[tuple[Array, Array | None]]:
    """Play a recorded game again from its opening, yielding what was shown and allowed before and after each step."""
    assert opening.frame is not None  # no game begins without one
    yield opening.frame, opening.allowed
    for action in actions:
        game.send(action)
        outcome = game.receive()
        newest = game.next_life().frame if outcome.life_lost else None
        yield outcome.frame if newest is None else newest, outcome.allowed
        if outcome.terminated or outcome.truncated:
            return
