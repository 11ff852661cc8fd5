"""An environment of your own, from the class to an agent that plays it.

    python examples/own_environment.py

Run it again and it says that the run has finished; kill it in between and it goes on where it was, bit for bit.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import steadyq as sq


class Warehouse(gymnasium.Env[Any, Any]):
    """A robot brings parcels to the door on which they are named; it may not walk through walls.

    The observation is a Dict, and `action_masks` says which actions may be played: both are taken as they are.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012 as Gymnasium has it
    MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, size: int = 5, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        self.doors = [(0, 0), (0, size - 1), (size - 1, 0), (size - 1, size - 1)]
        self.observation_space = spaces.Dict(
            row=spaces.Discrete(size), column=spaces.Discrete(size), parcel=spaces.Discrete(len(self.doors))
        )
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin in the middle. All that is random comes from the seed: that is what makes a run exact after a kill."""
        super().reset(seed=seed)
        self.at, self.brought = (self.size // 2, self.size // 2), 0
        self.parcel = int(self.np_random.integers(len(self.doors)))
        return self.seen(), {}

    def seen(self) -> dict[str, int]:
        """What the robot knows."""
        return {"row": self.at[0], "column": self.at[1], "parcel": self.parcel}

    def action_masks(self) -> np.ndarray:
        """Walls may not be walked through."""
        places = [(self.at[0] + down, self.at[1] + right) for down, right in self.MOVES]
        return np.array([0 <= row < self.size and 0 <= column < self.size for row, column in places])

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Walk; a parcel at its door is worth 1, a step costs a little."""
        down, right = self.MOVES[action]
        self.at = (self.at[0] + down, self.at[1] + right)
        reward = -0.01
        if self.at == self.doors[self.parcel]:
            reward, self.brought = 1.0, self.brought + 1
            self.parcel = int(self.np_random.integers(len(self.doors)))
        return self.seen(), reward, self.brought == 5, False, {}

    def render(self) -> np.ndarray:
        """A picture, for `steadyq play` and the film below."""
        picture = np.full((16 * self.size, 16 * self.size, 3), 230, np.uint8)
        for place, colour in ((self.doors[self.parcel], (40, 160, 70)), (self.at, (0, 114, 178))):
            row, column = (16 * number for number in place)
            picture[row : row + 16, column : column + 16] = colour
        return picture


def make(size: int = 5, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """What makes the environment; in a module of its own (`module:make`) the command line finds it too."""
    return gymnasium.wrappers.TimeLimit(Warehouse(size, render_mode), max_episode_steps=200)


def main() -> None:
    """Train, then play a game by hand, then film one."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=6_000)
    options.add_argument("--out", default="runs/warehouse")
    given = options.parse_args()

    run = sq.train(
        "steady",
        env=make,
        env_kwargs={"size": 5},
        steps=given.steps,
        options={"operator.forbid": "none", "evaluation.every": 2000},
        run=given.out,
    )

    agent = sq.load(run.path, networks="best" if given.steps >= 2000 else "acting")
    game = make()
    observation, _ = game.reset(seed=7)
    total, over = 0.0, False
    while not over:
        action = agent.act(observation, mask=game.unwrapped.action_masks())  # type: ignore[attr-defined]
        observation, reward, terminated, truncated, _ = game.step(action)
        total, over = total + float(reward), terminated or truncated
    print(f"a game by hand: return {total:.2f}")

    from steadyq.run.video import record_game

    record_game(run.path, f"{run.path}/game.gif", max_seconds=10)
    print(f"filmed: {run.path}/game.gif")


if __name__ == "__main__":
    main()
