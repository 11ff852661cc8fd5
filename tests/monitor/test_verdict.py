"""Verdicts on made-up rows: raised when they should be, since the right step, and quiet otherwise."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import steadyq as sq
from steadyq import cli
from steadyq.monitor.verdict import RULES, Alarms, Thresholds, findings, sustained
from steadyq.run.progress import Display
from steadyq.run.writer import begin

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
    assert findings(loud, settings={"operator.forbid": "none"})[0].name == "coupling"
    assert findings(loud, settings={"operator.forbid": "rewarded"}) == []


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
    settings = {"operator.ceiling": "running_max", "operator.kind": "controlled", "optim.tau": 0.005}
    (finding,) = findings(rows(q_greedy=500.0, return_best=600.0), settings=settings)
    assert [option for option, _ in finding.switches] == ["operator.forbid rewarded"]
    (finding,) = findings(rows(churn=0.5), settings={"ensemble.members": 16})
    assert finding.advice() == "try a lower optim.rate"
    settings |= {"operator.forbid": "rewarded"}
    assert "already set" in findings(rows(q_greedy=500.0, return_best=600.0), settings=settings)[0].advice()


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
