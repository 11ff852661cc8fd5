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


def test_seeds_in_one_program_are_timed_together() -> None:
    rows = [
        sharing_times("CartPole-v1", "dqn", 1, "off", 0.2, {"replay.warmup": 64, "record.every": 20}, seeds)
        for seeds in (1, 3)
    ]
    assert [row["together"] for row in rows] == [1, 3]
    (sheet,) = sheets({"together": rows})
    assert [line[:3] for line in sheet.rows] == [("CartPole-v1", "dqn", "1"), ("CartPole-v1", "dqn", "3")]
    assert sheet.rows[0][4] == "1.00"
    assert float(sheet.rows[1][4]) == pytest.approx(rows[1]["steps_per_second"] / rows[0]["steps_per_second"], abs=0.01)
