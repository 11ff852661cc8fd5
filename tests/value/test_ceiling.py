"""The return bound, by hand."""

import numpy as np
import pytest

from steadyq.value.ceiling import Ceiling


def add(ceiling: Ceiling, *steps: tuple[list[float], list[bool]]) -> None:
    for reward, ended in steps:
        ceiling.add(np.array(reward), np.array(ended))


@pytest.mark.parametrize(
    ("rewards", "best"),
    [
        ([2.0, 0.0, -1.0, 4.0], 4.0),  # gamma 1/2, backwards: G = 4, 2 - 1 = 1 at the -1, 0 + 1/2, 2 + 1/4
        ([3.0, 2.0, 4.0], 5.0),  # 3 + 2/2 + 4/4
        ([-1.0, -1.0], -1.0),
    ],
)
def test_the_best_return_lies_anywhere_in_a_trajectory(rewards: list[float], best: float) -> None:
    ceiling = Ceiling(1, gamma=0.5)
    add(ceiling, *(([reward], [place == len(rewards) - 1]) for place, reward in enumerate(rewards)))
    assert ceiling.best_return == best


def test_the_bound_is_infinite_until_a_trajectory_has_finished_and_only_rises() -> None:
    ceiling = Ceiling(1, gamma=0.5)
    assert ceiling.value == np.inf
    add(ceiling, ([1.0], [False]), ([1.0], [False]))
    assert ceiling.value == np.inf
    add(ceiling, ([1.0], [True]))
    assert ceiling.value == 1.75  # 1 + 1/2 + 1/4
    add(ceiling, ([0.5], [True]))  # a new trajectory, worth less
    assert ceiling.value == 1.75
    add(ceiling, ([1.0], [False]), ([1.0], [False]), ([1.0], [False]), ([1.0], [True]))
    assert ceiling.value == 1.875


def test_the_bound_never_lies_below_a_reward_already_seen() -> None:
    ceiling = Ceiling(1, gamma=0.9)
    add(ceiling, ([0.0], [True]))
    assert ceiling.value == 0.0
    add(ceiling, ([1.0], [False]))  # its own trajectory is still open
    assert ceiling.value == 1.0


def test_lanes_keep_their_own_trajectories() -> None:
    ceiling = Ceiling(2, gamma=0.5)
    add(ceiling, ([1.0, 0.0], [False, False]), ([1.0, 0.0], [False, True]))
    assert ceiling.value == 1.0  # lane 1 finished with 0; 1 is the largest reward
    add(ceiling, ([1.0, 1.0], [True, False]))
    assert ceiling.value == 1.75


@pytest.mark.parametrize("lanes", [1, 3])
def test_it_continues_from_its_state(lanes: int) -> None:
    rng = np.random.default_rng(0)
    rewards, ends = rng.normal(size=(60, lanes)), rng.random((60, lanes)) < 0.2
    whole, first = Ceiling(lanes, 0.9), Ceiling(lanes, 0.9)
    for step in range(60):
        whole.add(rewards[step], ends[step])
    for step in range(23):
        first.add(rewards[step], ends[step])
    second = Ceiling(lanes, 0.9)
    second.restore(first.state())
    for step in range(23, 60):
        second.add(rewards[step], ends[step])
    assert second.value == whole.value
    assert second.open.rewards == whole.open.rewards
