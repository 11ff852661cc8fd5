"""Open trajectories and what finished ones returned, by hand."""

import numpy as np
import pytest

from steadyq.value.trajectories import OpenTrajectories, discounted_returns


def test_discounted_returns_of_a_trajectory() -> None:
    assert discounted_returns([1, 0, 4], 0.5).tolist() == [2.0, 2.0, 4.0]
    assert discounted_returns([], 0.5).shape == (0,)


def test_returns_come_in_float64() -> None:
    assert discounted_returns([1.0] * 1000, 0.99)[0] == pytest.approx((1 - 0.99**1000) / 0.01, rel=1e-12)
    assert discounted_returns([1.0], 0.9).dtype == np.float64


def test_a_trajectory_is_handed_out_when_it_ends_and_its_lane_begins_anew() -> None:
    trajectories = OpenTrajectories(2)
    assert list(trajectories.add(np.array([1.0, 2.0]), np.array([False, False]))) == []
    assert list(trajectories.add(np.array([3.0, 4.0]), np.array([True, False]))) == [(0, [1.0, 3.0])]
    twin = OpenTrajectories(2)
    twin.restore(trajectories.state())
    for each in (trajectories, twin):
        assert each.rewards == [[], [2.0, 4.0]]
        ended = list(each.add(np.array([5.0, 6.0]), np.array([True, True])))
        assert ended == [(0, [5.0]), (1, [2.0, 4.0, 6.0])]
