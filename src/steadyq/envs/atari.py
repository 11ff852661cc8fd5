"""Atari 2600 through ale-py's C++ environment, under the rules of Stable-Baselines3's wrapper."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyq.envs.episodes import EpisodeVector, Opening, Outcome, replay
from steadyq.envs.protocol import Protocol
from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError

_NOOP, _FIRE, _AFTER_FIRE = 0, 1, 2
_NO_LIMIT = 10**9
_STRENGTH = [1.0]
"""Of the paddle, for the one environment of an emulator."""


_ROMS = (
    "adventure", "air_raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "atlantis2",
    "backgammon", "bank_heist", "basic_math", "battle_zone", "beam_rider", "berzerk", "blackjack", "bowling",
    "boxing", "breakout", "carnival", "casino", "centipede", "chopper_command", "crazy_climber", "crossbow",
    "darkchambers", "defender", "demon_attack", "donkey_kong", "double_dunk", "earthworld", "elevator_action",
    "enduro", "entombed", "et", "fishing_derby", "flag_capture", "freeway", "frogger", "frostbite", "galaxian",
    "gopher", "gravitar", "hangman", "haunted_house", "hero", "human_cannonball", "ice_hockey", "jamesbond",
    "journey_escape", "kaboom", "kangaroo", "keystone_kapers", "king_kong", "klax", "koolaid", "krull",
    "kung_fu_master", "laser_gates", "lost_luggage", "mario_bros", "miniature_golf", "montezuma_revenge", "mr_do",
    "ms_pacman", "name_this_game", "othello", "pacman", "phoenix", "pitfall", "pitfall2", "pong", "pooyan",
    "private_eye", "qbert", "riverraid", "road_runner", "robotank", "seaquest", "sir_lancelot", "skiing",
    "solaris", "space_invaders", "space_war", "star_gunner", "superman", "surround", "tennis", "tetris",
    "tic_tac_toe_3d", "time_pilot", "trondead", "turmoil", "tutankham", "up_n_down", "venture", "video_checkers",
    "video_chess", "video_cube", "video_pinball", "wizard_of_wor", "word_zapper", "yars_revenge", "zaxxon",
)  # fmt: skip
"""ale-py's single-player games: runs of them are read where it is not installed."""


@functools.cache
def games() -> dict[str, str]:
    """Return CamelCase name -> ROM name of every single-player game."""
    names = {"".join(part.capitalize() for part in rom.split("_")): rom for rom in _ROMS}
    names["TicTacToe3D"] = names.pop("TicTacToe3d")
    return names


def _ale_py() -> Any:
    try:
        return importlib.import_module("ale_py")
    except ImportError as missing:
        raise UserError("Atari is not installed: pip install 'steadyq[atari]'") from missing


@functools.cache
def action_names(game: str, action_set: str) -> tuple[str, ...]:
    """Return the names of a game's actions, in the order of their numbers."""
    ale_py = _ale_py()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(_rom(game))
    actions = ale.getMinimalActionSet() if action_set == "minimal" else ale.getLegalActionSet()
    return tuple(action.name for action in actions)


@functools.cache
def _rom(game: str) -> Path:
    path = _ale_py().roms.get_rom_path(games()[game])
    assert path is not None  # `games` lists the ROMs inside ale-py
    return Path(path)


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


def make(
    name: str, game: str, protocol: Protocol, *, seed: int, training: bool, lanes: int, episodes: int | None = None
) -> EpisodeVector:
    """Return `lanes` emulators, each with its own thread, and spare ones that load the games to come."""
    if episodes is None:
        shared = [_Emulators(game, protocol, 2) for _ in range(lanes)]
    else:
        shared = [_Emulators(game, protocol, min(episodes, lanes + 2 + lanes // 8))] * lanes
    return EpisodeVector(
        spec(name, game, protocol, lanes),
        [AtariGame(emulators) for emulators in shared],
        seed=seed,
        training=training,
        life_loss_terminal=training and protocol.life_loss_terminal,
        episodes=episodes,
    )


def pictures(game: str, protocol: Protocol, seed: int, actions: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield the screen of a recorded game, 480 x 630 pixels, once per agent step."""
    with contextlib.closing(_Emulator(game, protocol, rgb=True)) as emulator:
        for frame, _ in replay(emulator, emulator.begin(seed), actions):
            yield frame[0].repeat(3, axis=0).repeat(3, axis=1)


class _Emulator:
    """One ALE with the protocol's hidden presses; everything random in it follows from the seed of `begin`."""

    def __init__(self, game: str, protocol: Protocol, *, rgb: bool = False):
        self._protocol = protocol
        names = action_names(game, protocol.action_set)
        # The condition of Stable-Baselines3: a game without FIRE at 1, or with two actions, is left alone.
        self._fires = protocol.fire_reset and len(names) >= 3 and names[_FIRE] == "FIRE"
        self._ale = _ale_py().ALEVectorInterface(
            rom_path=_rom(game),
            num_envs=1,
            batch_size=0,
            num_threads=1,
            thread_affinity_offset=-1,
            autoreset_mode="NextStep",
            # ale-py draws 0 to noop_max - 1 no-ops; `begin` skips 0.
            noop_max=protocol.noop_max + 1,
            stack_num=1,
            frame_skip=protocol.frame_skip,
            maxpool=protocol.frame_skip > 1,
            repeat_action_probability=protocol.sticky,
            full_action_space=protocol.action_set == "full",
            reward_clipping=False,
            # ale-py's own FIRE is one raw frame, its lost life begins a new game, its limit does not count no-ops.
            use_fire_reset=False,
            episodic_life=False,
            life_loss_info=False,
            max_episode_steps=_NO_LIMIT,
            grayscale=not rgb,
            img_height=210 if rgb else 84,
            img_width=160 if rgb else 84,
        )
        self._lives = self._frames = 0

    def prepare(self, seeds: Sequence[int]) -> None:
        """Do nothing: one emulator cannot load a game while it plays another."""

    def finish(self) -> None:
        """Do nothing: the next game is played here too."""

    def begin(self, seed: int) -> Opening:
        opening = self._reset(seed)
        if self._fires:
            fired = self._press(_FIRE, _AFTER_FIRE)
            if fired.frame is None:
                # A game that ends before it began starts again with nothing pressed: this cannot go on for ever.
                return self._reset(seed)
            return fired._replace(frames=opening.frames + fired.frames)
        return opening

    def send(self, action: int) -> None:
        self._ale.send([action], _STRENGTH)  # a list is taken, four times as fast

    def receive(self) -> Outcome:
        frame, reward, over, _, info = self._ale.recv()
        lives = int(info["lives"][0])
        # At 0 lives a game may be about to end, or be played on: in BankHeist that is a life as good as any.
        begins = lives > 0 or (self._protocol.last_life and not over[0])
        life_lost = lives < self._lives and begins and self._protocol.life_loss_terminal
        self._lives = lives
        before, self._frames = self._frames, int(info["episode_frame_number"][0])
        time_is_up = 0 < self._protocol.max_frames <= self._frames
        return Outcome(frame[0], float(reward[0]), bool(over[0]), time_is_up, life_lost, self._frames - before)

    def next_life(self) -> Opening:
        return self._press(_NOOP, _FIRE, _AFTER_FIRE) if self._fires else self._press(_NOOP)

    def close(self) -> None:
        """Do nothing: the emulator is freed with the last reference to it."""

    def _reset(self, seed: int) -> Opening:
        for attempt in range(16):
            # ale-py takes 31 bits and reads 0 as "keep the old randomness".
            drawn = seed if attempt == 0 else int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0] >> 2) + 1
            frame, info = self._ale.reset(np.zeros(1, np.int64), np.array([drawn]))
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


class _Emulators:
    """A number of emulators, of which those that play no game load the ones to come.

    ale-py loads the ROM when an emulator is made and again at each seeded reset, 0.1 s and more: most of it goes into a
    palette for blending frames, which it makes every time and nobody uses. Resets run beside Python, making does not.
    """

    def __init__(self, game: str, protocol: Protocol, count: int):
        # Where to get one that is free: the last of these first, so that none is made without need.
        self._free: list[Callable[[], _Emulator]] = [functools.partial(_Emulator, game, protocol)] * count
        self._loading: dict[int, Future[tuple[_Emulator, Opening]]] = {}
        self._background = ThreadPoolExecutor(max_workers=count, thread_name_prefix="atari-reset")

    def prepare(self, seeds: Sequence[int]) -> None:
        """Load these games as far as emulators are free, the first ones first; others that were loaded give way."""
        for seed in self._loading.keys() - set(seeds):
            self._free.append(functools.partial(_emulator_of, self._loading.pop(seed)))
        for seed in seeds:
            if seed not in self._loading and self._free:
                self._load(seed)

    def take(self, seed: int) -> tuple["_Emulator", Opening]:
        """Return an emulator where the game of this seed has begun, at once if it was prepared."""
        if seed not in self._loading:
            self._load(seed)
        return self._loading.pop(seed).result()

    def give_back(self, emulator: "_Emulator") -> None:
        """Take back an emulator whose game is over."""
        self._free.append(lambda: emulator)

    def close(self) -> None:
        """Stop loading and free what is not playing."""
        self._background.shutdown(cancel_futures=True)
        self._loading.clear()
        self._free.clear()

    def _load(self, seed: int) -> None:
        source = self._free.pop()

        def load() -> tuple[_Emulator, Opening]:
            emulator = source()
            return emulator, emulator.begin(seed)

        self._loading[seed] = self._background.submit(load)


def _emulator_of(loading: "Future[tuple[_Emulator, Opening]]") -> _Emulator:
    return loading.result()[0]


class AtariGame:
    """A `Game` in whichever emulator has loaded it."""

    def __init__(self, emulators: _Emulators):
        self._emulators = emulators
        self._emulator: _Emulator | None = None

    def prepare(self, seeds: Sequence[int]) -> None:
        """Load the next games in the background."""
        self._emulators.prepare(seeds)

    def begin(self, seed: int) -> Opening:
        """Start the game of this seed, at once if it was prepared."""
        self.finish()
        self._emulator, opening = self._emulators.take(seed)
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

    def finish(self) -> None:
        """Give the emulator to whatever game comes next."""
        if self._emulator is not None:
            self._emulators.give_back(self._emulator)
            self._emulator = None

    def close(self) -> None:
        """Free the emulators."""
        self._emulator = None
        self._emulators.close()

    @property
    def _playing(self) -> _Emulator:
        assert self._emulator is not None  # no step without a game
        return self._emulator
