"""Procgen through envpool: sixteen games of generated levels, batched in C++."""

import contextlib
import importlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyq.envs.episodes import pack, unpack
from steadyq.envs.protocol import Protocol
from steadyq.envs.vector import Array, EnvSpec, State, Step
from steadyq.errors import UserError

_NAMES = (
    "BigFish", "BossFight", "CaveFlyer", "Chaser", "Climber", "CoinRun", "Dodgeball", "FruitBot",
    "Heist", "Jumper", "Leaper", "Maze", "Miner", "Ninja", "Plunder", "StarPilot",
)  # fmt: skip
GAMES = {name: name.capitalize() for name in _NAMES}
_ACTION_NAMES = (
    "LEFT+DOWN", "LEFT", "LEFT+UP", "DOWN", "NOOP", "UP", "RIGHT+DOWN", "RIGHT", "RIGHT+UP",
    "D", "A", "W", "S", "Q", "E",
)  # fmt: skip
_SCALE = 8


def _envpool() -> Any:
    try:
        # envpool 1.0 imports the dead `gym`, which prints four lines about itself.
        with contextlib.redirect_stderr(io.StringIO()):
            return importlib.import_module("envpool")
    except ImportError as missing:
        raise UserError("Procgen is not installed: pip install 'steadyq[procgen]'") from missing


def _open(game: str, protocol: Protocol, *, lanes: int, seed: int, start_level: int, num_levels: int) -> Any:
    mode = "Hard" if protocol.name.startswith("procgen-hard") else "Easy"
    try:
        return _envpool().make(
            f"{GAMES[game]}{mode}-v0",
            env_type="gymnasium",
            num_envs=lanes,
            seed=seed,
            start_level=start_level,
            num_levels=num_levels,
            channel_first=True,
        )
    except (ImportError, OSError) as missing:  # envpool from 1.1 on looks for Qt when a game is made
        raise UserError("this envpool needs the system's Qt 5 for Procgen: apt-get install libqt5gui5") from missing


def spec(name: str, game: str, protocol: Protocol, lanes: int) -> EnvSpec:
    """Return what every Procgen game looks like."""
    return EnvSpec(
        name=name,
        frame_shape=(3, 64, 64),
        frame_dtype="uint8",
        pixel_max=255.0,
        stack=protocol.stack,
        num_actions=len(_ACTION_NAMES),
        lanes=lanes,
        action_names=_ACTION_NAMES,
        frames_per_step=1,
    )


def pictures(game: str, protocol: Protocol, seed: int, actions: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield a recorded game, 512 x 512 pixels; a game is its level and its actions, whatever was played before."""
    with contextlib.closing(_open(game, protocol, lanes=1, seed=0, start_level=seed, num_levels=1)) as env:
        observation, _ = env.reset()
        yield _enlarge(observation[0])
        for action in actions:
            observation, _, terminated, truncated, _ = env.step(np.array([action], np.int32))
            yield _enlarge(observation[0])
            if terminated[0] or truncated[0]:
                return


def _enlarge(frame: Array) -> NDArray[np.uint8]:
    picture: NDArray[np.uint8] = frame.transpose(1, 2, 0).repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
    return picture


class ProcgenVector:
    """A `VectorEnv` over envpool, which draws each lane's levels from its own stream; a game's seed is its level.

    envpool spends a step on each reset. Lanes that ended are reset on their own inside `step`, so that no such step
    is ever returned. Of a fixed number of games each lane plays a fixed share: lane l those numbered l, l + lanes, ...
    """

    def __init__(
        self,
        name: str,
        game: str,
        protocol: Protocol,
        *,
        seed: int,
        training: bool,
        lanes: int,
        episodes: int | None = None,
    ):
        self.spec = spec(name, game, protocol, lanes)
        drawn = np.random.SeedSequence(seed, spawn_key=(int(training),)).generate_state(1)[0]
        self._arguments = {
            "lanes": lanes,
            # envpool seeds lane l with seed + l in 32 bits.
            "seed": int(drawn) % (2**31 - 4096),
            "start_level": protocol.train_start_level if training else protocol.test_start_level,
            "num_levels": protocol.train_levels if training else protocol.test_levels,
        }
        self._game, self._protocol = game, protocol
        endless = np.iinfo(np.int64).max
        self._share = np.array(
            [endless if episodes is None else len(range(lane, episodes, lanes)) for lane in range(lanes)]
        )
        self._env = _open(game, protocol, **self._arguments)
        self._fresh = True
        self._number = np.full(lanes, -1, np.int64)
        self._level = np.zeros(lanes, np.int64)
        self._actions: list[list[int]] = [[] for _ in range(lanes)]

    def reset(self) -> Array:
        """Begin each lane's first game."""
        if not self._fresh:
            self._env.close()
            self._env = _open(self._game, self._protocol, **self._arguments)
        self._fresh = False
        self._number[:] = -1
        frame = self._empty()
        self._next_games(np.arange(self.spec.lanes), frame)
        return frame

    def step(self, action: NDArray[np.integer[Any]]) -> Step:
        """Play one action in each lane."""
        if len(action) != self.spec.lanes:
            raise ValueError(f"{len(action)} actions for {self.spec.lanes} lanes")
        playing = np.flatnonzero(self._number < self._share)
        for each in playing:
            self._actions[each].append(int(action[each]))
        observation, given, over, cut, info = self._env.step(action[playing].astype(np.int32), playing.astype(np.int32))
        final, reward = self._empty(), np.zeros(self.spec.lanes, np.float32)
        terminated, truncated = np.zeros(self.spec.lanes, np.bool_), np.zeros(self.spec.lanes, np.bool_)
        lane = info["env_id"]
        over = over | cut if self._protocol.timeout_terminal else over
        final[lane], reward[lane], terminated[lane], truncated[lane] = observation, given, over, cut & ~over
        if self._protocol.max_frames:  # envpool takes a limit but keeps to each game's own
            length = np.array([len(played) for played in self._actions])
            truncated[playing] |= ~terminated[playing] & (length[playing] >= self._protocol.max_frames)
        ended = terminated | truncated
        frame = final
        if ended.any():
            frame = final.copy()
            self._next_games(np.flatnonzero(ended), frame)
        frames = np.zeros(self.spec.lanes, np.int64)
        frames[playing] = 1
        return Step(frame, reward, terminated, truncated, ended, final, frames=frames)

    def allowed(self) -> None:
        """Return None: everything may be played."""

    def playing(self) -> NDArray[np.int64]:
        """Return the number of each lane's current game, -1 where a lane stands still."""
        lanes = self.spec.lanes
        endless = self._share[0] == np.iinfo(np.int64).max
        number = self._number if endless else self._number * lanes + np.arange(lanes)
        return np.where(self._number < self._share, number, -1)

    def game_seed(self) -> NDArray[np.int64]:
        """Return the level of each lane's current game."""
        return self._level.copy()

    def state(self) -> State:
        """Return the current games: with the run's seed, all that is needed to continue exactly."""
        if self._number.min() < 0:
            raise RuntimeError("state() before reset(): no game has begun")
        return pack(self._number.tolist(), self._level.tolist(), self._actions)

    def restore(self, state: State, shown: Array | None = None) -> Array:
        """Draw every lane's levels again up to the current one, then replay the actions of the current games."""
        number, level, actions = unpack(state, self.spec.lanes)
        frame = self.reset()
        while (behind := np.flatnonzero(self._number < number)).size:
            self._next_games(behind, frame)
        if self._level.tolist() != level:
            # The same seed gives other levels in another envpool: 1.0 and 1.2 differ.
            raise UserError(
                "the saved games cannot be rebuilt: another seed, other levels or another version of envpool"
            )
        length = np.array([len(played) for played in actions])
        for index in range(length.max()):
            lanes = np.flatnonzero(length > index)
            chosen = np.array([actions[lane][index] for lane in lanes], np.int32)
            observation, _, _, _, info = self._env.step(chosen, lanes.astype(np.int32))
            frame[info["env_id"]] = observation
        self._actions = actions
        if shown is not None and not np.array_equal(frame, shown):
            raise UserError("the saved games cannot be rebuilt: this envpool draws other pictures of them")
        return frame

    def abandoned(self) -> list[int]:
        """None: a game that cannot be rebuilt is an error here."""
        return []

    def close(self) -> None:
        """Free the emulators."""
        self._env.close()

    def _next_games(self, lanes: NDArray[np.integer[Any]], frame: Array) -> None:
        self._number[lanes] += 1
        frame[lanes] = 0
        begins = lanes[self._number[lanes] < self._share[lanes]]
        if begins.size:
            observation, info = self._env.reset(begins.astype(np.int32))
            frame[info["env_id"]] = observation
            self._level[info["env_id"]] = info["level_seed"]
        for lane in lanes:
            self._actions[lane] = []

    def _empty(self) -> Array:
        return np.zeros((self.spec.lanes, *self.spec.frame_shape), np.uint8)
