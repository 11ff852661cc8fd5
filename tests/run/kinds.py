"""Small environments of every kind of space, for the table of environments."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Shown = tuple[Any, dict[str, Any]]


class Small(gymnasium.Env):  # type: ignore[type-arg]
    """Games of a dozen steps; what is rewarded depends on what is shown."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 as Gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Shown:
        super().reset(seed=seed)
        self.steps, self.at = 0, int(self.np_random.integers(3))
        return self.seen(), {}

    def seen(self) -> Any:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        reward, self.steps = float(self.number(action) == self.at), self.steps + 1
        self.at = int(self.np_random.integers(3))
        return self.seen(), reward, self.steps == 12, False, {}

    def number(self, action: Any) -> int:
        return int(action)

    def render(self) -> Any:
        picture = np.zeros((16, 48, 3), np.uint8)
        picture[:, 16 * self.at : 16 * self.at + 16] = 255
        return picture


class Nested(Small):
    """A Dict with a Tuple and bits inside; two choices an action."""

    def __init__(self) -> None:
        super().__init__()
        place = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,))])
        self.observation_space = spaces.Dict(place=place, doors=spaces.MultiBinary(3))
        self.action_space = spaces.MultiDiscrete([3, 2], start=[-1, 0])

    def seen(self) -> Any:
        noise = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": (self.at + 1, noise), "doors": self.np_random.integers(0, 2, 3).astype(np.int8)}

    def number(self, action: Any) -> int:
        return int(action[0]) + 1


class Picture(Small):
    """An image of bytes, channels last."""

    def __init__(self, side: int = 12, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.side = side
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)

    def seen(self) -> Any:
        picture = np.zeros((self.side, self.side, 3), np.uint8)
        picture[..., self.at] = 200
        return picture


class Floats(Picture):
    """An image of numbers from 0 to 1, channels first."""

    def __init__(self) -> None:
        super().__init__(10)
        self.observation_space = spaces.Box(0, 1, (3, 10, 10), np.float32)

    def seen(self) -> Any:
        return (super().seen() / 255).astype(np.float32).transpose(2, 0, 1)


class Grey(Picture):
    """An image of two dimensions."""

    def __init__(self) -> None:
        super().__init__(8)
        self.observation_space = spaces.Box(0, 255, (8, 8), np.uint8)

    def seen(self) -> Any:
        return np.full((8, 8), 100 * self.at, np.uint8)


class Grid(Picture):
    """As MiniGrid shows itself: an image and a direction together."""

    def __init__(self) -> None:
        super().__init__(7)
        image = self.observation_space
        self.observation_space = spaces.Dict(image=image, direction=spaces.Discrete(4))

    def seen(self) -> Any:
        return {"image": super().seen(), "direction": int(self.np_random.integers(4))}


class Both(Picture):
    """Neither the image nor the vector says alone what is rewarded."""

    def __init__(self) -> None:
        super().__init__(6)
        self.observation_space = spaces.Dict(eye=self.observation_space, sign=spaces.Box(-1, 1, (1,)))

    def seen(self) -> Any:
        self.sign = int(self.np_random.integers(2))
        return {"eye": super().seen(), "sign": np.array([2 * self.sign - 1], np.float32)}

    def number(self, action: Any) -> int:
        return (int(action) + self.sign) % 3


class Switches(Small):
    """Bits to see and bits to set."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space, self.action_space = spaces.MultiBinary(3), spaces.MultiBinary(2)

    def seen(self) -> Any:
        return np.eye(3, dtype=np.int8)[self.at]

    def number(self, action: Any) -> int:
        return int(action[0]) + int(action[1])


class Choices(Small):
    """Several choices to see, actions from -1 on, cut by time alone."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space, self.action_space = spaces.MultiDiscrete([3, 4]), spaces.Discrete(3, start=-1)

    def seen(self) -> Any:
        return np.array([self.at, self.np_random.integers(4)])

    def number(self, action: Any) -> int:
        return int(action) + 1

    def step(self, action: Any) -> Any:
        seen, reward, over, _, info = super().step(action)
        return seen, reward, False, over, info


class Masked(Small):
    """Says by a method which actions may be played, and holds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def seen(self) -> Any:
        self.allowed = np.ones(3, bool)
        self.allowed[(self.at + 1) % 3] = False
        return np.array([self.at, *self.allowed], np.float64)

    def action_masks(self) -> np.ndarray:
        return self.allowed

    def step(self, action: Any) -> Any:
        assert self.allowed[action]
        return super().step(action)
