"""How a Gymnasium environment's spaces look to the learner: one image or one vector to see, numbered actions.

An image is a Box of three dimensions, or of two if it holds bytes. Anything else is one vector: numbers as they are,
choices (Discrete, MultiDiscrete) as one-hot, the parts of a Tuple or Dict one after another, small images among them.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyq.envs.vector import Array
from steadyq.errors import UserError

MOST_VALUES = 10_000
"""In an observation that is a vector."""
MOST_ACTIONS = 1_000
"""Of a MultiDiscrete or MultiBinary action space, all combinations counted."""


class Observations:
    """How an observation becomes a frame, `rule` in words; raises `UserError` where it cannot."""

    def __init__(self, game: str, space: spaces.Space[Any]):
        leaves = _leaves(game, space, "")
        self.dtype: Literal["uint8", "float32"] = "float32"
        self.pixel_max = 1.0
        self.channels_last = False
        self.space, self._image = space, False
        images = [(where, leaf) for where, leaf in leaves if _is_image(leaf)]
        if images and len(leaves) == 1:
            self._lay_out_image(game, images[0][1])
            return
        size = sum(_size(leaf) for _, leaf in leaves)
        if size > MOST_VALUES and images:
            where, leaf = images[0]
            raise UserError(
                f"{game} shows an image ({leaf}, at {where}) beside other things, {size:,} values together, which one "
                f"vector has at most {MOST_VALUES:,} of: keep one, as with gymnasium.wrappers.FilterObservation"
            )
        if size > MOST_VALUES:
            raise UserError(f"{game} has observations of {size:,} values; a vector has at most {MOST_VALUES:,}")
        self.shape: tuple[int, ...] = (size,)
        self.shown = tuple(space.shape) if isinstance(space, spaces.Box) else ()
        hot = any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for _, leaf in leaves)
        endless = any(isinstance(leaf, spaces.Box) and not leaf.is_bounded() for _, leaf in leaves)
        parts = f"{len(leaves)} parts" if len(leaves) > 1 else type(leaves[0][1]).__name__
        self.rule = f"observation: {parts} as one vector of {size:,}" + (
            ", choices as one-hot" * hot
            + ", images as values one after another, bytes divided by 255" * bool(images)
            + ", unbounded and not scaled" * endless
        )

    def _lay_out_image(self, game: str, box: spaces.Box) -> None:
        self._image = True
        self.shown = tuple(box.shape)
        if len(box.shape) == 2:
            self.shape = (1, *box.shape)
            order = "one channel"
        else:
            first, last = box.shape[0], box.shape[2]
            if first == last:
                raise UserError(
                    f"{game} shows images of shape {box.shape}: the channels may be first or last. Give them another "
                    f"shape, for instance with gymnasium.wrappers.ReshapeObservation or TransformObservation"
                )
            self.channels_last = last < first
            self.shape = (last, *box.shape[:2]) if self.channels_last else tuple(box.shape)
            order = f"{min(first, last)} channels {'last, moved first' if self.channels_last else 'first'}"
        height, width = self.shape[1:]
        if box.dtype == np.uint8:
            self.dtype, self.pixel_max, scale = "uint8", 255.0, "bytes, divided by 255"
        elif box.is_bounded() and 1 < float(np.max(box.high)) <= 255 and float(np.min(box.low)) >= 0:
            self.pixel_max = float(np.max(box.high))
            scale = f"divided by {self.pixel_max:g}, their highest value"
        else:
            scale = "as given" if box.is_bounded() else "unbounded and not scaled"
        self.rule = f"observation: image {height}x{width}, {order}, values {scale}"

    def laid_out(self, observation: Any) -> Any:
        """One observation of a space other than a Box as its frame; what is laid out already stays as it is."""
        done = isinstance(observation, np.ndarray) and observation.shape[-len(self.shape) :] == self.shape
        return observation if done or isinstance(self.space, spaces.Box) else self.frame(observation)

    def frame(self, observation: Any) -> Array:
        """Lay out an observation; raises ValueError with what is wrong with it."""
        if self._image:
            array = _numbers(_only(observation))
            if array.shape != self.shown and array.size != math.prod(self.shown):
                raise ValueError(f"an observation of shape {array.shape}; its space says {self.shown}")
            array = array.reshape(self.shown)
            array = array.transpose(2, 0, 1) if self.channels_last else array
        else:
            array = np.concatenate([part.ravel() for part in _flat(self.space, observation, "")])
        with np.errstate(over="ignore"):
            frame: Array = array.reshape(self.shape).astype(self.dtype)
        if self.dtype == "float32" and not np.isfinite(frame).all():
            first = int(np.flatnonzero(~np.isfinite(frame))[0])
            raise ValueError(
                f"an observation with {array.ravel()[first]} in it (at {first} of {array.size}); "
                f"values must be finite in 32 bits"
            )
        return frame


class Actions:
    """An action space as numbers from 0; raises `UserError` where it has no such numbers."""

    def __init__(self, game: str, space: spaces.Space[Any]):
        self.space, self.first = space, 0
        self.choices: tuple[int, ...] = ()
        if isinstance(space, spaces.Discrete):
            self.count, self.first = int(space.n), int(space.start)
            self.names = tuple(str(action) for action in range(self.count))
        elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            start = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(space.shape, np.int64)
            nvec = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
            if nvec.ndim != 1:
                raise UserError(f"{game} has actions {space}; choices must be in one row")
            self.choices, self.count = tuple(nvec.tolist()), math.prod(nvec.tolist())
            self._start, self._dtype = start, space.dtype
            if self.count > MOST_ACTIONS:
                raise UserError(
                    f"{game} has actions {space}, {self.count:,} combinations; a Q-network has an output for each, and "
                    f"at most {MOST_ACTIONS:,}"
                )
            self.names = tuple(
                "+".join(map(str, np.unravel_index(action, self.choices))) for action in range(self.count)
            )
        else:
            raise UserError(
                f"{game} has actions {space}; Q-learning needs a Discrete action space (or MultiDiscrete, MultiBinary)"
            )
        if self.count < 2:
            raise UserError(f"{game} has a single action: there is nothing to learn to choose")

    @property
    def rule(self) -> str:
        """How many choices are behind an action, in words; nothing where it is one."""
        return f", each {len(self.choices)} choices of {' x '.join(map(str, self.choices))}" if self.choices else ""

    def allowed(self, mask: Any) -> NDArray[np.bool_]:
        """A mask of the environment's as one for each numbered action; raises ValueError with what is wrong with it.

        For several choices it is one mask after another, as sb3-contrib has them, or one of all combinations.
        """
        array = _numbers(mask) if not isinstance(mask, tuple | list) else np.concatenate(list(map(np.ravel, mask)))
        if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
            raise ValueError(f"{short(mask)}, which is not of zeros and ones,")
        flat: NDArray[np.bool_] = array.ravel().astype(np.bool_)
        if self.choices and array.shape != self.choices and len(flat) == sum(self.choices):
            each = np.split(flat, np.cumsum(self.choices)[:-1])
            flat = functools.reduce(np.logical_and.outer, each).ravel()
        if len(flat) != self.count:
            raise ValueError(f"an array of shape {array.shape}, where there are {self.count} actions,")
        if not flat.any():
            raise ValueError("nothing but zeros: no action may be played,")
        return flat

    def __getitem__(self, action: int) -> Any:
        """What the environment calls the action of this number."""
        if not self.choices:
            return action + self.first
        return (np.array(np.unravel_index(action, self.choices)) + self._start).astype(self._dtype)


def _leaves(game: str, space: spaces.Space[Any], where: str) -> list[tuple[str, Any]]:
    """All spaces inside a space that are not made of others, each with its place."""
    if isinstance(space, spaces.Dict):
        return [leaf for name, part in space.spaces.items() for leaf in _leaves(game, part, f"{where}[{name!r}]")]
    if isinstance(space, spaces.Tuple):
        return [leaf for index, part in enumerate(space.spaces) for leaf in _leaves(game, part, f"{where}[{index}]")]
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        inside = f", with {space} at {where}" if where else f" {space}"
        raise UserError(
            f"{game} has observations{inside}; only Box, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of "
            f"them, can be learned from"
        )
    return [(where, space)]


def _is_image(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box):
        return False
    return len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)


def _size(space: Any) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(np.sum(space.nvec))
    return math.prod(space.shape)


def _flat(space: spaces.Space[Any], value: Any, where: str) -> list[Array]:
    at = f" at {where}" if where else ""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            raise ValueError(f"{short(value)}{at}; its space has the parts {', '.join(space.spaces)}")
        parts = [(part, value[name], f"{where}[{name!r}]") for name, part in space.spaces.items()]
        return [array for part in parts for array in _flat(*part)]
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise ValueError(f"{short(value)}{at}; its space has {len(space.spaces)} parts")
        parts = [(part, value[index], f"{where}[{index}]") for index, part in enumerate(space.spaces)]
        return [array for part in parts for array in _flat(*part)]
    array = _numbers(value, at)
    if array.size != math.prod(space.shape or ()):
        raise ValueError(f"an observation of shape {array.shape}{at}; its space says {space.shape}")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        index = array.ravel() - np.ravel(space.start)
        if (index != np.floor(index)).any() or (index < 0).any() or (index >= counts).any():
            raise ValueError(f"{short(value)}{at}, which is none of {space}")
        hot = [np.eye(1, count, int(chosen), dtype=np.float32)[0] for chosen, count in zip(index, counts, strict=True)]
        return [np.concatenate(hot)]
    if space.dtype == np.uint8 and _is_image(space):
        return [array.astype(np.float32) / 255]
    return [array]


def _only(observation: Any) -> Any:
    """An image that is the only thing in a Dict or Tuple."""
    while isinstance(observation, Mapping | tuple) and len(observation) == 1:
        observation = next(iter(observation.values())) if isinstance(observation, Mapping) else observation[0]
    return observation


def _numbers(value: Any, at: str = "") -> Array:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise ValueError(f"an observation that is no array, {short(value)}{at}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"an observation that holds no numbers, {short(value)}{at}")
    return array


def short(value: Any) -> str:
    """A value in a few words on one line."""
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"an array of shape {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
