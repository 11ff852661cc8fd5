"""How a Gymnasium environment's spaces look to the learner: images, one vector or both to see, numbered actions.

An image is a Box of three dimensions, or of two if it holds bytes. Anything else is one vector: numbers as they are,
choices (Discrete, MultiDiscrete) as one-hot, the parts of a Tuple or Dict one after another. Images beside other things
keep their shape: a frame is then a row of bytes that holds all of it (`Parts`).
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyq.envs.vector import Array
from steadyq.errors import UserError

MOST_VALUES = 10_000
"""In an observation that is a vector."""
PLAIN = 16.0
"""Values of an image whose space is unbounded up to which it is taken to be scaled already."""
SIDES = 8
"""From which on a table of numbers looks like an image."""
MOST_ACTIONS = 1_000
"""Of a MultiDiscrete or MultiBinary action space, all combinations counted."""


class Image:
    """How an image is laid out, channels first; raises `UserError` where the channels may be first or last."""

    def __init__(self, game: str, box: spaces.Box, where: str = ""):
        self.shown: tuple[int, ...] = tuple(box.shape)
        self.shape: tuple[int, ...]
        self.channels_last = False
        at = f" at {where}" if where else ""
        if len(box.shape) == 2:
            self.shape = (1, *box.shape)
            order = "one channel"
        else:
            first, last = box.shape[0], box.shape[2]
            if first == last:
                raise UserError(
                    f"{game} shows images of shape {box.shape}{at}: the channels may be first or last. Give them "
                    f"another shape, for instance with gymnasium.wrappers.ReshapeObservation or TransformObservation"
                )
            self.channels_last = last < first
            self.shape = (last, *box.shape[:2]) if self.channels_last else tuple(box.shape)
            order = f"{min(first, last)} channels {'last, moved first' if self.channels_last else 'first'}"
        self.dtype: Literal["uint8", "float32"] = "float32"
        self.highest = 1.0
        if box.dtype == np.uint8:
            self.dtype, self.highest, scale = "uint8", 255.0, "bytes, divided by 255"
        elif box.is_bounded() and 1 < float(np.max(box.high)) <= 255 and float(np.min(box.low)) >= 0:
            self.highest = float(np.max(box.high))
            scale = f"divided by {self.highest:g}, their highest value"
        else:
            scale = "as given" if box.is_bounded() else "unbounded and not scaled"
        height, width = self.shape[1:]
        self.rule = f"image {height}x{width}, {order}, values {scale}"
        self.low, self.high = (float(np.min(box.low)), float(np.max(box.high))) if box.is_bounded() else (-PLAIN, PLAIN)
        self.said = f"between {self.low:g} and {self.high:g}" if box.is_bounded() else "unbounded"

    def laid_out(self, array: Array) -> Array:
        """Channels first; raises ValueError where values are not what the space says, and so wrongly scaled."""
        if self.dtype == "uint8" and array.dtype.kind == "f":
            raise ValueError(
                f"an image of {array.dtype} where its space says bytes: give the Box the dtype and the bounds of what "
                f"it shows"
            )
        low, high, slack = float(array.min()), float(array.max()), 1e-3 * (self.high - self.low)
        if low < self.low - slack or high > self.high + slack:
            raise ValueError(
                f"an image of values between {low:g} and {high:g}, which its space says to be {self.said}: give the "
                f"Box the bounds of what it shows, by which values are scaled"
            )
        array = array.reshape(self.shown)
        return (array.transpose(2, 0, 1) if self.channels_last else array).reshape(self.shape)


@dataclass(frozen=True)
class Parts:
    """What lies in a frame of bytes: shapes of the parts that are float32, then of the images that are bytes."""

    numbers: tuple[tuple[int, ...], ...]
    pixels: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Bytes of a frame, a multiple of four."""
        return 4 * (sum(map(math.prod, self.numbers)) + -(-sum(map(math.prod, self.pixels)) // 4))


class Observations:
    """How an observation becomes a frame, `rule` in words; raises `UserError` where it cannot."""

    def __init__(self, game: str, space: spaces.Space[Any]):
        every = _leaves(game, space, "")
        leaves = [(where, leaf) for where, leaf in every if not is_text(leaf)]
        if not leaves:
            raise UserError(f"{game} has observations {space}; text cannot be learned from")
        texts = "".join(f"; {where}, text, left out" for where, leaf in every if is_text(leaf))
        alone = len(leaves) == 1
        self.dtype: Literal["uint8", "float32"] = "float32"
        self.pixel_max = 1.0
        self.space = space
        self.parts: Parts | None = None
        self.shape: tuple[int, ...]
        self.images = [Image(game, leaf, "" if alone else where) if _is_image(leaf) else None for where, leaf in leaves]
        images = [image for image in self.images if image is not None]
        if images and alone:
            self.shape, self.shown = images[0].shape, images[0].shown
            self.dtype, self.pixel_max = images[0].dtype, images[0].highest
            self.rule = f"observation: {images[0].rule}{texts}"
            return
        others = [leaf for _, leaf in leaves if not _is_image(leaf)]
        size = sum(_size(leaf) for leaf in others)
        if size > MOST_VALUES:
            raise UserError(f"{game} has observations of {size:,} values; a vector has at most {MOST_VALUES:,}")
        self.shape = (size,)
        self.shown = tuple(space.shape) if isinstance(space, spaces.Box) else ()
        hot = any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for leaf in others)
        endless = any(isinstance(leaf, spaces.Box) and not leaf.is_bounded() for leaf in others)
        parts = f"{len(others)} parts" if len(others) > 1 else type(others[0]).__name__ if others else ""
        row = f"{parts} as one vector of {size:,}" + ", choices as one-hot" * hot
        table = next((leaf for leaf in others if isinstance(leaf, spaces.Box) and _like_image(leaf)), None)
        hint = f", {table.shape} as a row of numbers (to be an image it needs a channel, or bytes)" if table else ""
        row = row + ", unbounded and not scaled" * endless + hint if others else ""
        self.rule = f"observation: {row}{texts}"
        if images:
            numbers = ((size,),) * bool(others) + tuple(image.shape for image in images if image.dtype == "float32")
            self.parts = Parts(numbers, tuple(image.shape for image in images if image.dtype == "uint8"))
            self.shape, self.dtype = (self.parts.size,), "uint8"
            placed = [
                f"{where} {image.rule}"
                for (where, _), image in zip(leaves, self.images, strict=True)
                if image is not None
            ]
            named = "; ".join([*placed, *([row] if row else [])])
            self.rule = f"observation: each with an encoder of its own: {named}{texts}"

    def laid_out(self, observation: Any) -> Any:
        """One observation of a space other than a Box as its frame; what is laid out already stays as it is."""
        done = isinstance(observation, np.ndarray) and observation.shape[-len(self.shape) :] == self.shape
        return observation if done or isinstance(self.space, spaces.Box) else self.frame(observation)

    def frame(self, observation: Any) -> Array:
        """Lay out an observation; raises ValueError with what is wrong with it."""
        arrays = _flat(self.space, observation, "")
        laid = [
            array.ravel() if image is None else image.laid_out(array)
            for array, image in zip(arrays, self.images, strict=True)
        ]
        if self.parts is not None:
            return self._packed(laid)
        array = laid[0] if len(laid) == 1 else np.concatenate(laid)
        return _finite(array, self.dtype).reshape(self.shape)

    def _packed(self, laid: list[Array]) -> Array:
        """Vectors, images of numbers, images of bytes, in one row of bytes."""
        vector = [array for array, image in zip(laid, self.images, strict=True) if image is None]
        images = [(array, image) for array, image in zip(laid, self.images, strict=True) if image is not None]
        vector += [array.ravel() / image.highest for array, image in images if image.dtype == "float32"]
        numbers = _finite(np.concatenate(vector), "float32").view(np.uint8) if vector else np.zeros(0, np.uint8)
        pixels = [array.ravel().astype(np.uint8) for array, image in images if image.dtype == "uint8"]
        frame: Array = np.concatenate([numbers, *pixels])
        return np.pad(frame, (0, self.shape[0] - len(frame)))


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
    if is_text(space) and where:
        return [(where, space)]
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


def is_text(space: spaces.Space[Any]) -> bool:
    """Whether it is of words, as MiniGrid's mission: beside other things these are left out."""
    return space.dtype is not None and np.dtype(space.dtype).kind == "U"


def _like_image(box: spaces.Box) -> bool:
    return len(box.shape) == 2 and min(box.shape) >= SIDES


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
    if is_text(space):
        return []
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
    return [array]


def _finite(array: Array, dtype: Literal["uint8", "float32"]) -> Array:
    """The numbers in this type; raises ValueError if one of them is not finite in it."""
    with np.errstate(over="ignore"):
        numbers: Array = array.astype(dtype)
    if dtype == "float32" and not np.isfinite(numbers).all():
        first = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(
            f"an observation with {array.ravel()[first]} in it (at {first} of {array.size}); "
            f"values must be finite in 32 bits"
        )
    return numbers


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
