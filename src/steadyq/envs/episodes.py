"""Seeding, autoreset, lost lives, recording and exact restore, once for every backend with one emulator per lane."""

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyq.envs.vector import Array, EnvSpec, State, Step
from steadyq.errors import UserError


@dataclass(frozen=True, slots=True)
class Outcome:
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


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a game or a life begins, and what the protocol's presses, which no agent sees, led to before that."""

    frame: Array | None
    """None where the game ended in the presses."""
    reward: float = 0.0
    frames: int = 0


class Game(typing.Protocol):
    """One emulator. A game is a function of its seed and its actions: nothing may carry over from the game before."""

    def prepare(self, seed: int) -> None:
        """Learn which game will be asked for next; an emulator that is slow to reset may begin in the background."""
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

    def close(self) -> None:
        """Free the emulator."""
        ...


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
    """A `VectorEnv` over one `Game` per lane."""

    def __init__(self, spec: EnvSpec, games: Sequence[Game], *, seed: int, training: bool, life_loss_terminal: bool):
        self.spec = spec
        self._games = list(games)
        self._run_seed = seed
        self._training = training
        self._life_loss_terminal = life_loss_terminal
        self._number = [-1] * len(games)
        self._seed = [0] * len(games)
        self._actions: list[list[int]] = [[] for _ in games]
        self._opening = [Opening(None)] * len(games)  # of each current game, until its first step has counted it

    def reset(self) -> Array:
        """Begin each lane's first game."""
        for lane, game in enumerate(self._games):
            game.prepare(self._seed_for(lane, 0))
        frame = self._empty()
        for lane in range(len(self._games)):
            self._number[lane] = -1
            frame[lane] = self._next_game(lane).frame
        return frame

    def step(self, action: NDArray[np.integer[Any]]) -> Step:
        """Play one action in each lane; the emulators work at the same time where they can."""
        lanes = len(self._games)
        for game, played, chosen in zip(self._games, self._actions, action.tolist(), strict=True):
            game.send(chosen)
            played.append(chosen)
        frame = self._empty()
        reward, unseen = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32)
        frames = np.zeros(lanes, np.int64)
        terminated, truncated, game_over, life_lost = (np.zeros(lanes, np.bool_) for _ in range(4))
        last: dict[int, Array] = {}
        # All results are collected before any lane resets, so that a reset never waits with work left in flight.
        outcomes = [game.receive() for game in self._games]
        for lane, outcome in enumerate(outcomes):
            before, after = self._opening[lane], Opening(outcome.frame)
            self._opening[lane] = Opening(None)
            over = outcome.terminated or outcome.truncated
            if outcome.life_lost and not over:
                after = self._games[lane].next_life()
            newest = after.frame  # None: the game ended between two lives
            reward[lane], unseen[lane] = outcome.reward, before.reward + after.reward
            frames[lane] = before.frames + outcome.frames + after.frames
            life_lost[lane] = outcome.life_lost
            lost = outcome.life_lost and self._life_loss_terminal
            terminated[lane] = outcome.terminated or lost or newest is None
            truncated[lane] = outcome.truncated and not terminated[lane]
            game_over[lane] = over = over or newest is None
            if terminated[lane] or truncated[lane]:
                last[lane] = outcome.frame
            frame[lane] = self._next_game(lane).frame if over else newest
        final = frame
        if last:
            final = frame.copy()
            for lane, ended in last.items():
                final[lane] = ended
        return Step(frame, reward, terminated, truncated, game_over, final, life_lost, unseen, frames)

    def game_seed(self) -> NDArray[np.int64]:
        """Return the seed of each lane's current game."""
        return np.array(self._seed, np.int64)

    def state(self) -> State:
        """Return the current games: with the run's seed, all that is needed to continue exactly."""
        if min(self._number) < 0:
            raise RuntimeError("state() before reset(): no game has begun")
        return pack(self._number, self._seed, self._actions)

    def restore(self, state: State) -> Array:
        """Rebuild the current games from their seeds and actions; what follows is as if never interrupted."""
        numbers, seeds, actions = unpack(state, len(self._games))
        for lane, (number, seed) in enumerate(zip(numbers, seeds, strict=True)):
            if seed != self._seed_for(lane, number):
                raise UserError(
                    "the saved state belongs to a run with another seed, or to training instead of evaluation"
                )
            self._games[lane].prepare(seed)
        frame = self._empty()
        for lane, game in enumerate(self._games):
            opening = game.begin(seeds[lane])
            for newest in replay(game, opening, actions[lane]):
                frame[lane] = newest
            self._opening[lane] = Opening(None) if actions[lane] else opening
            game.prepare(self._seed_for(lane, numbers[lane] + 1))
        self._number, self._seed, self._actions = numbers, seeds, actions
        return frame

    def close(self) -> None:
        """Free the emulators."""
        for game in self._games:
            game.close()

    def _next_game(self, lane: int) -> Opening:
        self._number[lane] += 1
        self._seed[lane] = self._seed_for(lane, self._number[lane])
        self._actions[lane] = []
        self._opening[lane] = self._games[lane].begin(self._seed[lane])
        self._games[lane].prepare(self._seed_for(lane, self._number[lane] + 1))
        return self._opening[lane]

    def _seed_for(self, lane: int, number: int) -> int:
        return seed_of_game(self._run_seed, self._training, lane, number)

    def _empty(self) -> Array:
        return np.empty((len(self._games), *self.spec.frame_shape), self.spec.frame_dtype)


def replay(game: Game, opening: Opening, actions: Sequence[int]) -> Iterator[Array]:
    """Play a recorded game again from its opening, yielding the frame before the first action and after each."""
    assert opening.frame is not None  # no game begins without one
    yield opening.frame
    for action in actions:
        game.send(action)
        outcome = game.receive()
        newest = game.next_life().frame if outcome.life_lost else None
        yield outcome.frame if newest is None else newest
        if outcome.terminated or outcome.truncated:
            return
