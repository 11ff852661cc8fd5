"""Planned resets and how long a run takes to play again as before, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from steadyq import cli
from steadyq.report.html import write_report
from steadyq.report.words import _reset_words
from steadyq.suite.columns import Events, Reset
from steadyq.suite.recovery import Recovery, recoveries
from steadyq.suite.runs import Run, read_runs

ARCHIVE = Path(__file__).parents[2] / "results" / "swift-settling.tar.xz"


class Played:
    """A run that has its events alone."""

    def __init__(self, scores: list[float], resets: tuple[Reset, ...]) -> None:
        steps = np.arange(1, len(scores) + 1) * 100.0
        self.events = Events(games=(steps, np.array(scores)), resets=resets)
        self.seed = 0


def test_the_score_is_regained_when_ten_games_average_as_much_as_the_ten_before() -> None:
    scores = [1.0] * 5 + [4.0] * 10 + [0.0] * 10 + [4.0] * 9 + [5.0] * 5
    planned = Reset(1500, "encoder", "shrink_perturb", 0.5, True)
    run = Played(scores, (planned, planned._replace(layer="head", strength=1.0)))
    # Games 16 to 25 score nothing; of games 25 to 34 one does, the others 4: the tenth good game is number 35.
    assert recoveries(run) == [Recovery(1500, 4.0, 3500 - 1500)]  # type: ignore[arg-type]


def test_what_is_not_regained_before_the_next_reset_is_said_so_and_spikes_are_not_planned() -> None:
    scores = [3.0] * 10 + [1.0] * 10 + [3.0] * 10
    resets = (
        Reset(1000, "head", "shrink_perturb", 1.0, True),
        Reset(1500, "fc1"),
        Reset(2000, "head", "shrink_perturb", 1.0, True),
    )
    run = Played(scores, resets)
    assert recoveries(run) == [Recovery(1000, 3.0, None), Recovery(2000, 1.0, 1000)]  # type: ignore[arg-type]
    words = _reset_words((run,))  # type: ignore[arg-type]
    assert words == (
        "1 reset (fc1 1). 2 planned (head 100% drawn anew). step 1,000: last games 3 before, not regained; "
        "step 2,000: last games 1 before, regained 1,000 steps later."
    )


def test_a_run_before_its_first_game_has_no_recovery() -> None:
    assert recoveries(Played([], (Reset(10, "head", "shrink_perturb", 1.0, True),))) == []  # type: ignore[arg-type]


def test_runs_of_an_archive_say_what_their_resets_cost() -> None:
    found: list[Run] = read_runs([ARCHIVE / "Atari-Breakout-swift-plain-seed0"])
    (run,) = found
    first, second = recoveries(run)
    assert (first.step, second.step) == (22000, 42000)
    assert first.before > 20
    assert first.regained is not None
    assert second.regained is None


def test_a_page_says_beside_the_verdict_that_planned_resets_are_no_alarm_and_what_they_cost(tmp_path: Path) -> None:
    one, many = tmp_path / "one.html", tmp_path / "many.html"
    write_report([ARCHIVE / "Atari-Breakout-swift-plain-seed0"], one)
    write_report([ARCHIVE], many)
    alone, together = (page.read_text().split('id="verdict"')[1].split("</section>")[0] for page in (one, many))
    assert "Nothing unstable was found." in alone
    assert "Planned resets are no alarm" in alone
    assert "step 42,000" in alone
    assert "<summary>Planned resets are no alarm" in together
    assert ": 8 runs</summary>" in together
    assert together.count("step 22,000: last games") == 8
    plain = tmp_path / "plain.html"
    write_report([ARCHIVE.parent / "diagnose.tar.xz" / "Gymnasium-CartPole-v1-rate-seed5"], plain)
    assert "Planned resets" not in plain.read_text()


def test_diagnose_says_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    run = str(ARCHIVE / "Atari-Breakout-swift-plain-seed0")
    with pytest.raises(SystemExit):
        cli.main(["diagnose", run])
    said = capsys.readouterr().out
    assert "nothing unstable was found in 44 measurements" in said
    assert "planned resets, no alarm in themselves: 2 planned" in said
    with pytest.raises(SystemExit):
        cli.main(["diagnose", run, "--thresholds.settling", "0"])
    assert "single weights tower" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["diagnose", run, "--json"])
    assert json.loads(capsys.readouterr().out)["planned_resets"] == [22_000, 42_000]
