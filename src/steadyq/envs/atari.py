"""Atari 2600 through ale-py's C++ environment, under the rules of Stable-Baselines3's wrapper."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import ale_py
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray

from steadyq.envs.episodes import EpisodeVector, Opening, Outcome, replay
from steadyq.envs.protocol import Protocol
from steadyq.envs.vector import EnvSpec

_NOOP, _FIRE, _AFTER_FIRE = 0, 1, 2
_MULTIPLAYER = {"combat", "joust", "maze_craze", "warlords"}
_NO_LIMIT = 10**9


@functools.cache
def games() -> dict[str, str]:
    """Return CamelCase name -> ROM name of every single-player game."""
    names = {
        "".join(part.capitalize() for part in rom.split("_")): rom
        for rom in sorted(roms.get_all_rom_ids())
        if rom not in _MULTIPLAYER
    }
    names["TicTacToe3D"] = names.pop("TicTacToe3d")
    return names


@functools.cache
def action_names(game: str, action_set: str) -> tuple[str, ...]:
    """Return the names of a game's actions, in the order of their numbers."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    path = roms.get_rom_path(games()[game])
    assert path is not None  # `games` lists the ROMs inside ale-py
    ale.loadROM(path)
    actions = ale.getMinimalActionSet() if action_set == "minimal" else ale.getLegalActionSet()
    return tuple(action.name for action in actions)


def spec(name: str, game: str, protocol: Protocol, lanes: int) -> EnvSpec:
    """Return what the game looks like under these rules."""
    actions = action_names(game, protocol.action_set)
    return EnvSpec(
        name=name,
        frame_shape=(1, 84, 84),
        frame_dtype="uint8",
        pixel_max=255.0,
        stack=protocol.stack,
        num_actions=len(actions),
        lanes=lanes,
        action_names=actions,
        frames_per_step=protocol.frame_skip,
    )


def make(name: str, game: str, protocol: Protocol, *, seed: int, training: bool, lanes: int) -> EpisodeVector:
    """Return `lanes` emulators, each with its own thread."""
    return EpisodeVector(
        spec(name, game, protocol, lanes),
        [AtariGame(game, protocol) for _ in range(lanes)],
        seed=seed,
        training=training,
        life_loss_terminal=training and protocol.life_loss_terminal,
    )


def pictures(game: str, protocol: Protocol, seed: int, actions: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield the screen of a recorded game, 480 x 630 pixels, once per agent step."""
    with contextlib.closing(_Emulator(game, protocol, rgb=True)) as emulator:
        for frame in replay(emulator, emulator.begin(seed), actions):
            yield frame[0].repeat(3, axis=0).repeat(3, axis=1)


class _Emulator:
    """One ALE with the protocol's hidden presses; everything random in it follows from the seed of `begin`."""

    def __init__(self, game: str, protocol: Protocol, *, rgb: bool = False):
        self._protocol = protocol
        names = action_names(game, protocol.action_set)
        # The condition of Stable-Baselines3: a game without FIRE at 1, or with two actions, is left alone.
        self._fires = protocol.fire_reset and len(names) >= 3 and names[_FIRE] == "FIRE"
        self._ale = AtariVectorEnv(
            games()[game],
            1,
            num_threads=1,
            # ale-py draws 0 to noop_max - 1 no-ops; `begin` skips 0.
            noop_max=protocol.noop_max + 1,
            stack_num=1,
            frameskip=protocol.frame_skip,
            maxpool=protocol.frame_skip > 1,
            repeat_action_probability=protocol.sticky,
            full_action_space=protocol.action_set == "full",
            reward_clipping=False,
            # ale-py's own FIRE is one raw frame, its lost life begins a new game, its limit does not count no-ops.
            use_fire_reset=False,
            episodic_life=False,
            max_num_frames_per_episode=_NO_LIMIT,
            grayscale=not rgb,
            img_height=210 if rgb else 84,
            img_width=160 if rgb else 84,
        )
        self._lives = self._frames = 0

    def prepare(self, seed: int) -> None:
        """Do nothing: one emulator cannot load a game while it plays another."""

    def begin(self, seed: int) -> Opening:
        opening = self._reset(seed)
        if self._fires:
            fired = self._press(_FIRE, _AFTER_FIRE)
            if fired.frame is None:
                # A game that ends before it began starts again with nothing pressed: this cannot go on for ever.
                return self._reset(seed)
            return replace(fired, frames=opening.frames + fired.frames)
        return opening

    def send(self, action: int) -> None:
        self._ale.send(np.array([action]))

    def receive(self) -> Outcome:
        frame, reward, over, _, info = self._ale.recv()
        lives = int(info["lives"][0])
        # Some games show 0 lives for a while before they end: that is no new life.
        life_lost = 0 < lives < self._lives and self._protocol.life_loss_terminal
        self._lives = lives
        before, self._frames = self._frames, int(info["episode_frame_number"][0])
        time_is_up = 0 < self._protocol.max_frames <= self._frames
        return Outcome(frame[0], float(reward[0]), bool(over[0]), time_is_up, life_lost, self._frames - before)

    def next_life(self) -> Opening:
        return self._press(_NOOP, _FIRE, _AFTER_FIRE) if self._fires else self._press(_NOOP)

    def close(self) -> None:
        self._ale.close()

    def _reset(self, seed: int) -> Opening:
        for attempt in range(16):
            # ale-py takes 31 bits and reads 0 as "keep the old randomness".
            drawn = seed if attempt == 0 else int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0] >> 2) + 1
            frame, info = self._ale.reset(seed=np.array([drawn]))
            if self._protocol.noop_max == 0 or info["episode_frame_number"][0] > 0:
                break
        self._lives, self._frames = int(info["lives"][0]), int(info["episode_frame_number"][0])
        return Opening(np.asarray(frame[0]), frames=self._frames)

    def _press(self, *actions: int) -> Opening:
        reward, frames = 0.0, 0
        for action in actions:
            self.send(action)
            outcome = self.receive()
            reward, frames = reward + outcome.reward, frames + outcome.frames
            if outcome.terminated or outcome.truncated:
                return Opening(None, reward, frames)
        return Opening(outcome.frame, reward, frames)


class AtariGame:
    """A `Game` with two emulators: while one plays, the other loads the next game (a seeded reset takes 0.2 s)."""

    def __init__(self, game: str, protocol: Protocol):
        self._playing = _Emulator(game, protocol)
        self._loading: _Emulator | None = None
        self._make_another = functools.partial(_Emulator, game, protocol)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="atari-reset")
        self._loaded: Future[Opening] | None = None
        self._loaded_seed = 0

    def prepare(self, seed: int) -> None:
        """Load the next game in the background."""
        if self._loaded is not None:
            if self._loaded_seed == seed:
                return
            self._loaded.result()
        self._loaded_seed = seed
        self._loaded = self._background.submit(self._load, seed)

    def begin(self, seed: int) -> Opening:
        """Start the game of this seed, at once if it was prepared."""
        if self._loaded is None or self._loaded_seed != seed:
            return self._playing.begin(seed)
        opening = self._loaded.result()
        self._loaded = None
        assert self._loading is not None
        self._playing, self._loading = self._loading, self._playing
        return opening

    def send(self, action: int) -> None:
        """Start one step in the emulator's thread."""
        self._playing.send(action)

    def receive(self) -> Outcome:
        """Wait for the step."""
        return self._playing.receive()

    def next_life(self) -> Opening:
        """Play a no-op and FIRE as the protocol says, unseen."""
        return self._playing.next_life()

    def close(self) -> None:
        """Free both emulators."""
        self._background.shutdown()
        self._playing.close()
        if self._loading is not None:
            self._loading.close()

    def _load(self, seed: int) -> Opening:
        if self._loading is None:
            self._loading = self._make_another()
        return self._loading.begin(seed)
