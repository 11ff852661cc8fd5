"""Numbers that change while a run learns: by hand, as text, and with messages for what is no schedule."""

import math

import pytest

from steadyq import UserError
from steadyq.schedule import Schedule

TEXTS = [
    "0.99",
    "3",
    "1e-05",
    "1 -> 0.01 linear 2001 steps",
    "10 -> 3 exponential 10000 updates",
    "0.97 -> 0.997 exponential 10000 updates",
    "1 -> 0 linear 2001 steps after 2000",
    "0.0001 -> 1e-05 linear 7 updates after 3",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_schedule_comes_back_from_its_text(text: str) -> None:
    schedule = Schedule.of(text)
    assert str(schedule) == text
    assert Schedule.of(str(schedule)) == schedule


@pytest.mark.parametrize("value", [0.1 + 0.2, 1 / 3, 0.99999999, 1.23456789e-7, 123456789.0])
def test_no_digit_is_lost_on_the_way(value: float) -> None:
    assert Schedule.of(str(Schedule.of(value))).end == value
    changing = Schedule(value, 1 - value, "linear", 9)
    assert Schedule.of(str(changing)) == changing


def test_texts_may_be_written_loosely() -> None:
    expected = Schedule(1.0, 0.5, "linear", 2000, "steps", 10)
    for text in ("1->0.5 linear 2000 steps after 10", "  1.0 ->  .5   linear 2_000 steps  after 1_0 "):
        assert Schedule.of(text) == expected
    assert Schedule.of("1_000") == Schedule.of(1000) == Schedule.of(1000.0)


def test_a_constant_is_constant() -> None:
    schedule = Schedule.of(0.25)
    assert schedule.constant
    assert [schedule.at(step, step) for step in (0, 1, 10**9)] == [0.25] * 3
    assert schedule.smallest == schedule.largest == 0.25


def test_linear_by_hand() -> None:
    schedule = Schedule.of("0.5 -> 0.1 linear 4 steps")
    assert [schedule.at(step) for step in range(6)] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])
    assert (schedule.smallest, schedule.largest) == (0.1, 0.5)
    paper = Schedule.of("1 -> 0.01 linear 2001 steps")  # l.1130
    assert paper.at(0) == 1.0
    assert paper.at(1000) == pytest.approx(1 - 0.99 * 1000 / 2001)
    assert paper.at(2001) == paper.at(10**6) == 0.01


def test_exponential_by_hand() -> None:
    schedule = Schedule.of("8 -> 1 exponential 3 steps")
    assert [schedule.at(step) for step in range(5)] == pytest.approx([8, 4, 2, 1, 1])
    rising = Schedule.of("1 -> 100 exponential 4 steps")
    assert [rising.at(step) for step in range(5)] == pytest.approx([1, math.sqrt(10), 10, math.sqrt(1000), 100])


def test_nothing_moves_before_its_beginning() -> None:
    """BBF explores alone for 2,000 steps, then less and less until step 4,001."""
    schedule = Schedule.of("1 -> 0 linear 2001 steps after 2000")
    assert [schedule.at(step) for step in (0, 1999, 2000)] == [1.0] * 3
    assert schedule.at(2001) == pytest.approx(1 - 1 / 2001)
    assert schedule.at(4000) == pytest.approx(1 / 2001)
    assert schedule.at(4001) == 0.0


def test_updates_since_a_reset_are_another_clock_than_steps() -> None:
    by_updates, by_steps = (Schedule.of(f"10 -> 0 linear 10 {unit}") for unit in ("updates", "steps"))
    assert by_updates.at(steps=7, updates=2) == 8
    assert by_steps.at(steps=7, updates=2) == 3
    assert by_updates.at(steps=10**6, updates=0) == 10  # a reset begins it again
    assert Schedule.of("10 -> 0 linear 10 updates after 2").at(0, 2) == 10


def test_bbfs_n_falls_where_it_is_said_to() -> None:
    """n(t) = round(10 x 0.3^(t / 10,000)), in updates since a reset."""
    schedule = Schedule.of("10 -> 3 exponential 10000 updates")
    n = [round(schedule.at(0, t)) for t in range(12_000)]
    falls = {t: n[t] for t in range(1, 12_000) if n[t] != n[t - 1]}
    assert n[0] == 10
    assert falls == {427: 9, 1350: 8, 2390: 7, 3579: 6, 4966: 5, 6633: 4, 8720: 3}
    assert all(n[t] == round(10 * 0.3 ** (min(t, 10_000) / 10_000)) for t in range(12_000))


def test_bbfs_discount_approaches_one_by_its_horizon() -> None:
    """1 - gamma(t) = 0.03 x 0.1^(t / 10,000)."""
    schedule = Schedule.of("0.97 -> 0.997 exponential 10000 updates")
    assert schedule.at_complement(0, 0) == pytest.approx(0.97)
    assert schedule.at_complement(0, 5000) == pytest.approx(1 - 0.03 * 0.1**0.5)
    assert round(schedule.at_complement(0, 5000), 4) == 0.9905
    assert schedule.at_complement(0, 10_000) == schedule.at_complement(0, 10**6) == pytest.approx(0.997)
    assert schedule.at(0, 5000) == pytest.approx(math.sqrt(0.97 * 0.997))  # what it would be of the discount itself
    for plain in ("0.9", "0.9 -> 1 exponential 10 updates", "0.9 -> 0.99 linear 10 updates"):
        assert Schedule.of(plain).at_complement(0, 5) == Schedule.of(plain).at(0, 5)  # there is no such reading


BAD = [
    "fast",
    "",
    "1 -> 0",
    "1 -> 0 linear",
    "1 -> 0 linear 10",
    "1 -> 0 linear 10 frames",
    "1 -> 0 cosine 10 steps",
    "1 -> 0 linear 10 steps after",
    "1 -> 0 linear -3 steps",
    "1 - > 0 linear 3 steps",
    "one -> 0 linear 3 steps",
    "1 -> 0 linear 3.5 steps",
    True,
    None,
    [1, 2],
]


@pytest.mark.parametrize("value", BAD)
def test_what_is_no_schedule_is_named_in_one_line(value: object) -> None:
    with pytest.raises(UserError) as error:
        Schedule.of(value, "optim.rate")  # type: ignore[arg-type]
    said = str(error.value)
    assert said.startswith("optim.rate must be a number, or such as '10 -> 3 exponential 10000 updates'")
    assert said.endswith(f"got {value!r}")
    assert "\n" not in said


def test_impossible_schedules_are_named_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^x must take at least 1 of updates, got '1 -> 0 linear 0 updates'$"):
        Schedule.of("1 -> 0 linear 0 updates", "x")
    for text in ("1 -> 0 exponential 9 steps", "-1 -> 1 exponential 9 steps"):
        with pytest.raises(UserError, match=r"^x can only be exponential between positive numbers, got '"):
            Schedule.of(text, "x")
