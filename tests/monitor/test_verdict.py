"""Verdicts on made-up rows: raised when they should be, since the right step, and quiet otherwise."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steadyq as sq
from steadyq import cli
from steadyq.monitor.verdict import RULES, Alarms, Thresholds, findings, judge, planned_resets, sustained
from steadyq.monitor.watch import Watch
from steadyq.run.progress import Display
from steadyq.run.step import Training
from steadyq.run.writer import begin
from steadyq.suite.columns import read_events
from steadyq.suite.runs import read

HEALTHY: dict[str, Any] = {
    "q_greedy": 22.0,
    "return_mean": 70.0,
    "return_best": 99.0,
    "transitions": 128,
    "rewarded": 0.5,
    "same_action_rewarded": 0.35,
    "same_action_unrewarded": 0.3,
    "same_action_chance": 0.33,
    "target_gap_relative": 0.05,
    "clipped": 0.0,
    "q_spread_states": 8.0,
    "noise": 0.2,
    "flip_probability": 0.01,
    "churn": 0.01,
    "td_error": 0.2,
    "td_tail": 6.0,
    "spike": 3.5,
    "dormant": 0.3,
    "effective_rank": 40.0,
    "rank_possible": 128,
    "update_ratio": 0.0006,
    "weight_norm": 10.0,
}


def rows(count: int = 10, **series: Any) -> list[dict[str, Any]]:
    """Healthy rows 1000 steps apart; a column given as a list takes its values from there."""
    made = []
    for i in range(count):
        given = {name: values[i] if isinstance(values, list) else values for name, values in series.items()}
        made.append({"step": 1000 * (i + 1), **HEALTHY, **given})
    return made


SICK: dict[str, dict[str, Any]] = {
    "overestimation": {"q_greedy": 211.0, "return_best": 300.0},
    "beyond the best return": {"q_greedy": 100.0},
    "coupling": {"same_action_rewarded": 0.7, "q_greedy": 71.0},
    "no target network": {"target_gap_relative": 0.0},
    "ceiling reached": {"clipped": 0.7},
    "undecided policy": {"flip_probability": 0.4, "noise": 4.0},
    "policy churn": {"churn": 0.3},
    "heavy tails": {"td_tail": 80.0, "td_error": 4.0},
    "weight spikes": {"spike": 6.1},
    "dormant units": {"dormant": 0.95},
    "rank collapse": {"effective_rank": 3.0},
    "violent updates": {"update_ratio": 0.2},
    "growing weights": {"weight_norm": [10.0 + 21 * i for i in range(10)]},
}


def test_a_healthy_run_has_no_findings() -> None:
    assert findings(rows()) == []
    assert findings([]) == []
    assert findings([{"step": 5}] * 5) == []  # rows without a figure are no reason


def test_every_rule_has_a_case_here() -> None:
    assert SICK.keys() == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", SICK)
def test_each_rule_names_its_sickness_alone(name: str) -> None:
    (finding,) = findings(rows(**SICK[name]))
    assert finding.name == name
    assert finding.since == (2000 if name == "growing weights" else 1000)
    assert finding.until is None
    assert finding.strength > 1


def test_since_and_until_and_the_figure_against_its_threshold() -> None:
    spike = [1.0, 7.0, 1.0, 6.5, 9.0, 8.0, 7.0, 2.0, 2.0, 2.0]
    (finding,) = findings(rows(spike=spike))
    assert (finding.since, finding.until, finding.worst, finding.threshold) == (4000, 7000, 9.0, 6.0)
    assert finding.words() == (
        "single weights tower above their layer since step 4,000 until step 7,000: 9 against 6 (parameter dynamics)"
    )
    assert finding.strength == 1.5
    assert findings(rows(spike=[7.0, 7.0, 1.0, 7.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1.0])) == []
    assert findings(rows(spike=spike), thresholds=Thresholds(spike=10.0)) == []
    assert findings(rows(spike=spike), thresholds=Thresholds(rows=5)) == []


def test_the_sustained_level_is_what_the_threshold_sees() -> None:
    spikes, gap, update = (
        next(rule for rule in RULES if rule.name == name)
        for name in ("weight spikes", "no target network", "violent updates")
    )
    made = rows(4, spike=[9.0, 5.0, 6.0, 7.0], target_gap_relative=[0.1, 0.2, 0.3, 0.0], update_ratio=[0.1, 0.9, 0, 0])
    assert sustained(spikes, made, 3) == 5.0
    assert sustained(gap, made, 3) == 0.3
    assert sustained(update, made, 3) == 0.9  # one row is enough for this rule
    assert sustained(spikes, made, 5) is None


def test_overestimation_in_units_of_the_return() -> None:
    (finding,) = findings(rows(q_greedy=70.0 * 4, return_best=300.0))
    assert finding.worst == pytest.approx(3.0)
    # Where games earn almost nothing the scale is a tenth of the best: (1.3 - 0.1) / 0.5.
    (finding,) = findings(rows(q_greedy=1.3, return_mean=0.1, return_best=5.0))
    assert finding.worst == pytest.approx(2.4)
    assert findings(rows(q_greedy=0.0, return_mean=-50.0, return_best=-10.0)) == []  # a fresh network on a cost
    assert findings(rows(q_greedy=1.0, return_mean=0.0, return_best=0.0)) == []


def test_values_beyond_the_best_return() -> None:
    (finding,) = findings(rows(q_greedy=150.0, return_mean=80.0, return_best=100.0))
    assert (finding.name, finding.worst) == ("beyond the best return", 1.5)
    assert findings(rows(q_greedy=100.0, return_mean=80.0, return_best=100.0)) == []
    assert findings(rows(q_greedy=-1.0, return_mean=-50.0, return_best=-40.0)) == []  # costs only: no such bound
    assert findings(rows(q_greedy=5.0, return_mean=None, return_best=None)) == []


def test_coupling_needs_rewards_to_be_seen_and_falls_back_on_chance() -> None:
    assert findings(rows(same_action_rewarded=1.0, rewarded=0.01, q_greedy=71.0)) == []
    assert findings(rows(same_action_rewarded=1.0)) == []  # values below returns: repeating is right here
    assert findings(rows(same_action_rewarded=1.0, q_greedy=71.0, return_mean=None)) == []
    dense = {"rewarded": 1.0, "same_action_unrewarded": None, "same_action_chance": 0.5, "q_greedy": 71.0}
    assert findings(rows(same_action_rewarded=0.8, **dense)) == []
    (finding,) = findings(rows(same_action_rewarded=0.9, **dense))
    share = (0.9 * 128 + 2) / 132
    assert finding.worst == pytest.approx(share - 2 * math.sqrt(share * (1 - share) / 132) - 0.5)


def test_coupling_is_held_to_the_lower_end_of_its_interval() -> None:
    loud = {"same_action_rewarded": 0.75, "q_greedy": 71.0}
    assert findings(rows(**loud, rewarded=0.08)) == []  # ten rewarded transitions
    assert findings(rows(**loud, rewarded=0.08, transitions=1280))[0].name == "coupling"
    assert findings(rows(same_action_rewarded=1.0, q_greedy=71.0, rewarded=4 / 128)) == []  # all of four


def test_coupling_does_no_harm_where_the_bootstrap_may_not_follow_it() -> None:
    loud = rows(same_action_rewarded=0.9, q_greedy=71.0)
    assert findings(loud, recipe=sq.presets.dqn("CartPole-v1"))[0].name == "coupling"
    assert findings(loud, recipe=sq.presets.steady("CartPole-v1")) == []


def test_tails_and_flips_count_where_errors_and_noise_are_large_beside_the_values() -> None:
    assert findings(rows(td_tail=500.0)) == []
    assert findings(rows(flip_probability=0.49)) == []
    (finding,) = findings(rows(td_tail=500.0, td_error=[0.2] * 4 + [4.0] * 6))
    assert (finding.name, finding.since, finding.worst) == ("heavy tails", 5000, 500.0)
    large = [4.0, 4.0, 0.2, 4.0, 4.0, 0.2, 4.0, 4.0, 0.2, 0.2]
    assert findings(rows(td_tail=500.0, td_error=large)) == []  # never three rows in a row
    assert findings(rows(td_tail=500.0, td_error=4.0, q_spread_states=None)) == []
    assert findings(rows(flip_probability=0.49, noise=4.0, q_spread_states=4.0)) == []  # nothing learned yet


def test_switches_already_set_are_not_offered() -> None:
    recipe, ahead = sq.presets.steady("CartPole-v1"), rows(q_greedy=500.0, return_best=600.0)
    (finding,) = findings(ahead, recipe=recipe.override({"operator.forbid": "none"}))
    assert [option for option, _ in finding.switches] == ["operator.forbid rewarded"]
    (finding,) = findings(rows(churn=0.5), recipe=recipe)
    assert finding.advice() == "try a lower optim.rate"
    assert "already set" in findings(ahead, recipe=recipe)[0].advice()


MOVED = ("overestimation", "policy churn", "weight spikes", "dormant units", "rank collapse", "growing weights")
"""What planned resets themselves bring about (docs/diagnose.md)."""


def test_a_planned_reset_is_no_alarm() -> None:
    spike = [1.0] * 10 + [7.0] * 5 + [1.0] * 5
    (finding,) = findings(rows(20, spike=spike))
    assert (finding.since, finding.until) == (11_000, 15_000)
    assert findings(rows(20, spike=spike), planned=[10_000]) == []  # half of 10,000 steps later is 15,000
    assert findings(rows(20, spike=spike), planned=[10_000], thresholds=Thresholds(settling=0.2))[0].since == 13_000
    assert findings(rows(20, spike=spike), planned=[10_000], thresholds=Thresholds(settling=0))[0].since == 11_000
    assert findings(rows(20, spike=spike), planned=[10_500]) == []
    assert findings(rows(20, spike=spike), planned=[7_500, 10_500])[0].since == 13_000  # a shorter cycle, excused less


def test_a_row_of_the_step_of_a_reset_was_measured_before_it() -> None:
    spike = [1.0] * 7 + [7.0] * 3 + [1.0] * 10
    assert findings(rows(20, spike=spike), planned=[10_000])[0].until == 10_000


@pytest.mark.parametrize("name", SICK)
def test_resets_excuse_what_they_bring_about_and_nothing_else(name: str) -> None:
    first, *later = rows(**SICK[name])
    sick = [first, *later[3:]]
    told = findings(sick, planned=[4000], thresholds=Thresholds(settling=2.0))  # until 12,000: to the end
    blind = findings(sick)
    assert [finding.name for finding in blind] == [name]
    assert told == ([] if name in MOVED else blind)


def test_every_rule_that_a_reset_excuses_is_one_of_these() -> None:
    assert tuple(rule.name for rule in RULES if rule.settles) == MOVED


@pytest.mark.parametrize("name", SICK)
def test_a_sickness_that_lasts_through_resets_is_named(name: str) -> None:
    weights = {"weight_norm": [10.0 + 21 * i for i in range(20)]} if name == "growing weights" else SICK[name]
    (finding,) = findings(rows(20, **weights), planned=[5000, 10_000, 15_000])
    assert (finding.name, finding.since, finding.until) == (name, 2000 if "weight_norm" in weights else 1000, None)
    # One row of each cycle counts, and three are needed: cycles are joined where nothing between them was healthy.
    (finding,) = findings(rows(20, **weights), planned=range(2000, 20_000, 2000))
    assert finding.name == name


def test_what_is_healthy_between_two_resets_parts_what_was_before_from_what_comes() -> None:
    spike = [1.0] * 8 + [7.0, 7.0] + [1.0] * 5 + [7.0, 1.0, 1.0, 1.0, 1.0]
    assert findings(rows(20, spike=spike), planned=[10_000]) == []  # never three in a row, told or not
    assert findings(rows(20, spike=spike)) == []


def test_to_know_of_resets_never_adds_a_finding() -> None:
    random = np.random.default_rng(0)
    told_less = 0
    for _ in range(300):
        made = rows(30, spike=(5.5 + random.random(30)).tolist(), churn=random.random(30).tolist())
        planned = sorted(random.integers(1, 30_000, random.integers(0, 5)).tolist())
        blind, told = ({finding.name for finding in findings(made, planned=steps)} for steps in ((), planned))
        assert told <= blind
        told_less += told < blind
    assert told_less > 10


def test_a_verdict_needs_rows_that_no_reset_excuses() -> None:
    assert judge(rows(8)).state == "stable"
    assert judge(rows(8), planned=[2000]).state == "stable"  # rows 1, 2, 4 and so on
    assert judge(rows(8), planned=[3000], thresholds=Thresholds(settling=2.0)).state == "too few"


def test_the_events_say_what_was_planned() -> None:
    events = [
        {"event": "start", "step": 0},
        {"event": "reset", "step": 300, "trigger": "spike", "layer": "fc1"},
        {"event": "reset", "step": 400, "trigger": "periodic", "scope": "encoder"},
        {"event": "reset", "step": 400, "trigger": "periodic", "scope": "head"},
        {"event": "reset", "step": 500, "layer": "fc1"},  # as older versions wrote it
        {"event": "game", "step": 600, "score": 1.0},
        {"event": "another", "step": 700, "trigger": "periodic"},
        {"event": "reset", "step": 800, "trigger": "periodic", "scope": "head"},
    ]
    assert planned_resets(events) == [400, 800] == read_events(events).planned


def test_alarms_are_told_of_resets_as_they_happen() -> None:
    sick = rows(20, spike=[1.0] * 10 + [7.0] * 5 + [1.0] * 5)
    blind, told = Alarms(), Alarms()
    raised = []
    for row in sick:
        if row["step"] > 10_000 and not told.planned:
            told.planned.append(10_000)
        raised += blind.add(row)
        assert told.add(row) == []
    assert [finding.name for finding in raised] == ["weight spikes"]
    assert Alarms(sick[:12], planned=[10_000]).add(sick[12]) == []  # a continued run
    assert [finding.name for finding in Alarms(sick[:12]).add(sick[12])] == ["weight spikes"]


def test_findings_come_in_the_order_they_began() -> None:
    late = [0.0] * 5 + [0.99] * 5
    early = [0.01] * 2 + [0.5] * 8
    assert [finding.name for finding in findings(rows(dormant=late, churn=early))] == ["policy churn", "dormant units"]


def test_two_rows_of_one_step_are_no_growth() -> None:
    made = rows(weight_norm=[10.0 + i for i in range(10)])
    assert findings([*made, made[-1]]) == []


def test_divergence_is_a_finding() -> None:
    (finding,) = findings(rows(), [{"event": "diverged", "step": 4200, "message": "not finite: loss"}])
    assert (finding.name, finding.since) == ("divergence", 4200)
    assert "not finite: loss" in finding.words()
    assert math.isinf(finding.worst)


def test_alarms_rise_once() -> None:
    sick = rows(churn=[0.01, 0.01, *[0.5] * 8], dormant=[0.1] * 7 + [0.99] * 3)
    alarms = Alarms(keep=4)
    rise = {row["step"]: [finding.name for finding in alarms.add(row)] for row in sick}
    assert {step: names for step, names in rise.items() if names} == {5000: ["policy churn"], 10000: ["dormant units"]}
    assert Alarms(sick[:6]).add(sick[6]) == []  # a continued run has said it before


class Notes(Display):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A real run without a target network."""
    display = Notes()
    changes = {
        "network.hidden": (16,),
        "replay.warmup": 64,
        "optim.tau": 1.0,
        "monitor.every": 40,
        "record.every": 100,
        "record.tensorboard": False,
        "evaluation.episodes": 1,
        "evaluation.random_episodes": 1,
    }
    run = tmp_path_factory.mktemp("runs") / "sick"
    sq.train(sq.presets.dqn("CartPole-v1", steps=300, **changes), run=run, display=display)
    return run, display.said


RESET: dict[str, Any] = {
    "network.hidden": (8,),
    "replay.warmup": 64,
    "monitor.every": 5,
    "regulation.intervention": "shrink_perturb",
    "record.tensorboard": False,
    "record.checkpoint_every": 106,
    "evaluation.episodes": 1,
    "evaluation.random_episodes": 1,
}


class Killed(Notes):
    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == 112:
            raise MemoryError


@pytest.mark.parametrize("how", ["at once", "killed and continued", "trained longer", "none", "not planned"])
def test_a_run_raises_no_alarm_over_its_planned_resets(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Watch.measure

    def wild_after_the_reset(watch: Watch, step: int, *rest: Any) -> dict[str, Any]:
        return measure(watch, step, *rest) | {"spike": 7.0 if 104 < step <= 140 else 1.0}

    monkeypatch.setattr(Watch, "measure", wild_after_the_reset)
    regulation: dict[str, Any] = {"regulation.trigger": "periodic", "regulation.period": 1000 if how == "none" else 40}
    if how == "not planned":
        regulation = {"regulation.trigger": "spike", "regulation.threshold": 1.0, "regulation.every": 20}
    recipe, display = sq.presets.dqn("CartPole-v1", steps=180, **RESET, **regulation), Notes()
    if how == "killed and continued":
        with pytest.raises(MemoryError):
            sq.train(recipe, run=tmp_path, display=Killed())
    if how == "trained longer":  # the first reset is due at the last step, and held back
        sq.train(recipe, steps=104, run=tmp_path, display=display)
    folder = sq.train(recipe, run=tmp_path, display=display)
    alarms = [text for text in display.said if "single weights tower" in text]
    verdict = read(folder.path).verdict()
    found = [finding.name for finding in verdict.findings]
    if how in ("none", "not planned"):
        assert {event["step"] for event in folder.events() if event["event"] == "reset"} == (
            set(range(80, 180, 20)) if how == "not planned" else set()
        )
        assert alarms[0].startswith("alarm at step 115")
        assert "weight spikes" in found
    else:
        assert planned_resets(folder.events()) == [104, 144]
        assert alarms == []
        assert "weight spikes" not in found


def test_the_terminal_is_told_while_it_trains(sick: tuple[Path, list[str]]) -> None:
    said = [text for text in sick[1] if "targets follow the online network at once" in text]
    assert len(said) == 1
    assert said[0].startswith("alarm at step 120")


def test_diagnose_prints_and_writes_json(sick: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", str(sick[0]), "--probe"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "no target network" in text
    assert "operator level" in text
    assert "try optim.tau 0.005" in text
    assert "plasticity probe" in text
    with pytest.raises(SystemExit):
        cli.main(["diagnose", str(sick[0]), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["findings"][0]["name"] == "no target network"
    assert record["enough"]
    assert record["thresholds"]["spike"] == 6.0
    assert record["findings"][0]["since"] == 65
    with pytest.raises(SystemExit):
        cli.main(["diagnose", str(sick[0]), "--json", "--thresholds.target-gap", "0", "--thresholds.rows", "100"])
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_diagnose_needs_diagnostics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = sq.presets.dqn("CartPole-v1")
    begin(sq.RunFolder(tmp_path / "run"), recipe).close()
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert "has no diagnostics" in capsys.readouterr().err
