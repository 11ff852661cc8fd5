"""Runs side by side, timed by their own rows; here on CPU cores."""

import pytest

from steadyq.bench.sharing import sharing_times
from steadyq.bench.sheets import sheets
from steadyq.errors import UserError


def test_runs_side_by_side_are_timed_and_stopped() -> None:
    row = sharing_times("CartPole-v1", "dqn", 2, "auto", 0.2, {"replay.warmup": 64, "record.every": 20})
    assert row["steps_per_second"] > 0
    assert (row["runs"], row["mps"], row["service"]) == (2, False, "")
    sheet = next(iter(sheets({"sharing": [row]})))
    assert sheet.rows[0][:4] == ("2", "dqn", "CartPole-v1", "no")
    assert sheet.rows[0][5] == "1.00"


def test_a_run_that_is_over_before_it_was_measured_is_named() -> None:
    with pytest.raises(UserError, match=r"ended \(finished\) before it was measured"):
        sharing_times("CartPole-v1", "dqn", 1, "auto", 60.0, {"steps": 90, "replay.warmup": 64, "record.every": 20})
