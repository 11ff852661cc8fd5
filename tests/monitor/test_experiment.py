"""docs/diagnose.md is what the study writes from the stored runs, and its verdicts are what it claims."""

from types import ModuleType

import pytest
from scripts import ROOT, script

from steadyq.suite.runs import read_runs

RUNS = ROOT / "results" / "diagnose.tar.xz"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return script("diagnose")


def test_the_page_comes_from_the_stored_runs(study: ModuleType) -> None:
    assert study.page(RUNS) == (ROOT / "docs" / "diagnose.md").read_text()


def test_the_stored_runs_are_the_declared_ones(study: ModuleType) -> None:
    found = study.load(RUNS)
    for judged in study.judge(found):
        for seed, run in judged.runs.items():
            case = judged.case
            assert (run.recipe.preset, run.recipe.seed, run.last_step) == (case.preset, seed, case.steps), run.path
            changes = {**dict(run.changes), "seed": seed}
            assert all(changes.get(name) == value for name, value in case.changes.items()), run.path
    assert len(found) == len(study.CASES) * len(study.SEEDS)


def test_healthy_runs_are_left_alone_and_the_issue_of_each_sick_one_is_named(study: ModuleType) -> None:
    judged = {each.case.name: each for each in study.judge(study.load(RUNS))}
    for each in judged.values():
        if not each.case.expected:
            assert all(each.right(seed) for seed in study.SEEDS), each.case.name
    for name in ("rate", "rate-10", "ratio", "no-target", "asterix"):
        assert all(judged[name].right(seed) for seed in study.SEEDS), name


def test_monitor_cost_compares_on_with_off() -> None:
    cost = script("monitor_cost")
    small = {"network.hidden": (8,), "replay.warmup": 64, "replay.every": 8}
    result = cost.compared("CartPole-v1", "dqn", 1, **small)
    assert [len(result["seconds"][which]) for which in ("on", "off")] == [1, 1]
    assert result["ratio"] > 0
    assert cost.table([result]).count("\n") == 2


def test_stable_baselines3_runs_are_judged_as_the_page_says() -> None:
    others = script("monitor_others")
    page = (ROOT / "docs" / "monitor.md").read_text()
    runs = {run.path.name: run for run in read_runs([others.ARCHIVE])}
    assert page.split(others.BEGIN)[1].split(others.END)[0] == others.table(runs)
    assert runs.keys() == {f"{case.name}-seed{seed}" for case in others.CASES for seed in case.seeds}
    for case in others.CASES:
        for seed in case.seeds:
            run = runs[f"{case.name}-seed{seed}"]
            assert run.meta is not None
            own = {name: value for name, value in {**case.settings, **case.changes}.items() if name != "policy_kwargs"}
            assert own.items() <= run.meta["parameters"].items(), run.path
            assert others.judged(case, run)[0], run.path
