"""MinAtar: five Atari-like games of 10 x 10 binary channels, fast enough for a laptop."""

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from steadyq.envs.episodes import EpisodeVector, Opening, Outcome, replay
from steadyq.envs.protocol import Protocol
from steadyq.envs.vector import Array, EnvSpec
from steadyq.errors import UserError

GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
_ACTION_NAMES = ("NOOP", "LEFT", "UP", "RIGHT", "DOWN", "FIRE")
# Okabe and Ito's colour-blind-safe palette on black, extended by two tints for Seaquest's ten channels.
_PALETTE = np.array(
    [(0, 114, 178), (230, 159, 0), (120, 120, 120), (213, 94, 0), (0, 158, 115), (204, 121, 167), (240, 228, 66),
     (86, 180, 233), (255, 255, 255), (150, 220, 190)], np.uint8,
)  # fmt: skip
_CELL = 40


@functools.cache
def _module(game: str) -> ModuleType:
    # `import minatar` pulls in matplotlib and seaborn (seconds) for a window we never open; the games need numpy alone.
    package = importlib.util.find_spec("minatar")
    if package is None or not package.submodule_search_locations:
        raise UserError("MinAtar is not installed: pip install 'steadyq[minatar]'")
    path = Path(package.submodule_search_locations[0]) / "environments" / f"{GAMES[game]}.py"
    found = importlib.util.spec_from_file_location(f"steadyq_minatar_{GAMES[game]}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _actions(game: str, protocol: Protocol) -> list[int]:
    if protocol.action_set == "full":
        return list(range(len(_ACTION_NAMES)))
    return [int(action) for action in _module(game).Env().minimal_action_set()]


def spec(name: str, game: str, protocol: Protocol, lanes: int) -> EnvSpec:
    """Return what the game looks like under these rules."""
    actions = _actions(game, protocol)
    return EnvSpec(
        name=name,
        frame_shape=(int(_module(game).Env().state_shape()[2]), 10, 10),
        frame_dtype="uint8",
        pixel_max=1.0,
        stack=protocol.stack,
        num_actions=len(actions),
        lanes=lanes,
        action_names=tuple(_ACTION_NAMES[action] for action in actions),
        frames_per_step=1,
    )


def make(
    name: str, game: str, protocol: Protocol, *, seed: int, training: bool, lanes: int, episodes: int | None = None
) -> EpisodeVector:
    """Return `lanes` games."""
    return EpisodeVector(
        spec(name, game, protocol, lanes),
        [MinAtarGame(game, protocol) for _ in range(lanes)],
        seed=seed,
        training=training,
        life_loss_terminal=False,
        episodes=episodes,
    )


def pictures(game: str, protocol: Protocol, seed: int, actions: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield the board of a recorded game, 400 x 400 pixels, once per step."""
    player = MinAtarGame(game, protocol)
    for frame, _ in replay(player, player.begin(seed), actions):
        board = np.zeros((10, 10, 3), np.uint8)
        # MinAtar lists the player first and trails and gauges later: painted from the last, the player is on top.
        for index in reversed(range(len(frame))):
            board[frame[index] > 0] = _PALETTE[index]
        yield board.repeat(_CELL, axis=0).repeat(_CELL, axis=1)


class MinAtarGame:
    """A `Game` that plays as `minatar.Environment` does, without what that carries from one game into the next."""

    def __init__(self, game: str, protocol: Protocol):
        self._env = _module(game).Env(ramping=protocol.ramping)
        self._random = self._env.random
        self._protocol = protocol
        self._actions = _actions(game, protocol)

    def prepare(self, seeds: Sequence[int]) -> None:
        """Do nothing: a reset is instant."""

    def begin(self, seed: int) -> Opening:
        """Start a game; the previous game's last action is not sticky in it."""
        self._random.seed(seed)
        self._env.reset()
        self._last_action = 0
        self._steps = 0
        return Opening(self._frame())

    def send(self, action: int) -> None:
        """Play one step, sticky as in `minatar.Environment`: the game and the stickiness share one random stream."""
        if self._random.rand() >= self._protocol.sticky:
            self._last_action = self._actions[action]
        reward, over = self._env.act(self._last_action)
        self._steps += 1
        time_is_up = 0 < self._protocol.max_frames <= self._steps
        self._outcome = Outcome(self._frame(), float(reward), bool(over), time_is_up)

    def receive(self) -> Outcome:
        """Return what the step led to."""
        return self._outcome

    def next_life(self) -> Opening:
        """Do nothing: MinAtar has one life."""
        raise AssertionError("MinAtar has one life")

    def finish(self) -> None:
        """Do nothing: the next game is played here too."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _frame(self) -> Array:
        return np.asarray(self._env.state(), np.bool_).transpose(2, 0, 1).view(np.uint8)
