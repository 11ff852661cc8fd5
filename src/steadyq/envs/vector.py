"""What every environment looks like to the rest of the library: single frames, side by side, numpy in and out."""

import typing
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steadyq.errors import UserError

if typing.TYPE_CHECKING:
    from steadyq.envs.spaces import Actions, Observations, Parts

Array = NDArray[Any]
State = dict[str, Array]


class BadEnvironment(UserError):
    """An environment raised, or returned what cannot be learned from."""


@dataclass(frozen=True)
class EnvSpec:
    """The shapes and names of an environment, known without playing it."""

    name: str
    """Canonical name such as Atari/Breakout."""
    frame_shape: tuple[int, ...]
    """One frame: (channels, height, width), or (features,); (bytes,) where it holds several `parts`."""
    frame_dtype: Literal["uint8", "float32"]
    pixel_max: float
    """Divide a frame by this before a network sees it."""
    stack: int
    num_actions: int
    lanes: int
    action_names: tuple[str, ...]
    frames_per_step: int
    """Emulator frames per agent step."""
    first_action: int = 0
    """What the environment itself calls the first of its actions."""
    shown_shape: tuple[int, ...] = ()
    """An observation as the environment itself shows it, where that is not `frame_shape`."""
    seen: "Observations | None" = field(default=None, compare=False, repr=False)
    """How a Gymnasium environment's observations are laid out."""
    actions: "Actions | None" = field(default=None, compare=False, repr=False)
    """What a Gymnasium environment calls its actions."""
    masked: bool = False
    """Whether the environment says which actions may be played."""

    @property
    def parts(self) -> "Parts | None":
        """What lies in a frame, where that is an image beside other things."""
        return None if self.seen is None else self.seen.parts

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Return the shape of `stack` frames joined along their first axis."""
        return (self.stack * self.frame_shape[0], *self.frame_shape[1:])


@dataclass(slots=True)
class Step:
    """What one action per lane led to. The arrays are new each step, but `frame` and `final_frame` may be one array."""

    frame: Array
    """[lane, *frame_shape] newest frame of what the agent sees next: after an end, the first of what follows."""
    reward: NDArray[np.float32]
    """[lane] raw, summed over the frame skip: what the learner may see."""
    terminated: NDArray[np.bool_]
    """[lane] the trajectory ended for learning: a game's end, or a lost life where the protocol says so."""
    truncated: NDArray[np.bool_]
    """[lane] cut by a time limit, so its value bootstraps; never together with `terminated`."""
    game_over: NDArray[np.bool_]
    """[lane] a whole game ended, for either reason; `frame` belongs to the next one."""
    final_frame: Array
    """[lane, *frame_shape] where a trajectory ended its last frame, elsewhere `frame`."""
    life_lost: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, np.bool_))
    """[lane] a life was lost and the protocol cares; in evaluation the trajectory goes on all the same."""
    unseen_reward: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))
    """[lane] raw, given in the protocol's own presses before a game's first step or after a life that is lost."""
    frames: NDArray[np.int64] = field(default_factory=lambda: np.ones(1, np.int64))
    """[lane] what the emulator played for this step, those presses included."""
    allowed: NDArray[np.bool_] | None = None
    """[lane, action] what may be played on `frame`, where the environment says so."""
    final_allowed: NDArray[np.bool_] | None = None
    """[lane, action] the same on `final_frame`."""

    @property
    def score(self) -> NDArray[np.float32]:
        """[lane] what the step adds to its game's score, seen or not."""
        score: NDArray[np.float32] = self.reward + self.unseen_reward
        return score

    @property
    def restart(self) -> NDArray[np.bool_]:
        """[lane] where the agent's frame stack begins anew at `frame`, in evaluation as in training."""
        restart: NDArray[np.bool_] = self.terminated | self.truncated | self.life_lost
        return restart


class VectorEnv(typing.Protocol):
    """Games played side by side, one per lane; a game that ends is followed at once by the next.

    Where a fixed number of games was asked for, a lane without a next one stands still: nothing is played in it, its
    action counts for nothing, its frame is empty and its flags are off.

    Where `Step.restart` the agent's frame stack begins anew at `frame`. Resets and the button presses of the protocol
    happen inside `step` and are never returned as a transition.
    """

    spec: EnvSpec

    def reset(self) -> Array:
        """Begin the first games and return their first frames, [lane, *frame_shape]."""
        ...

    def step(self, action: NDArray[np.integer[Any]]) -> Step:
        """Play one action in each lane."""
        ...

    def allowed(self) -> NDArray[np.bool_] | None:
        """Return what may be played in each lane now, [lane, action]; None where the environment does not say."""
        ...

    def playing(self) -> NDArray[np.int64]:
        """Return the number of each lane's current game; -1 where a lane stands still because no game is left."""
        ...

    def game_seed(self) -> NDArray[np.int64]:
        """Return the seed of each lane's current game: with its actions, all that `render` needs to rebuild it."""
        ...

    def state(self) -> State:
        """Return what `restore` needs, as flat arrays: number, seed and actions of each lane's current game."""
        ...

    def restore(self, state: State, shown: Array | None = None) -> Array:
        """Rebuild the games of `state` by replaying their actions and return their current frames.

        `shown` are the frames that were current when the state was saved. Where the rebuilt game does not arrive at
        them, the lane is `abandoned`: its next step, whatever the action, is cut there, and another game follows.
        """
        ...

    def abandoned(self) -> list[int]:
        """Return the lanes whose saved game could not be rebuilt, until their next step."""
        ...

    def close(self) -> None:
        """Free the emulators."""
        ...
