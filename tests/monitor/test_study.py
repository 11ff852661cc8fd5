"""docs/diagnose.md is what the study writes from the stored runs, and its verdicts are what it claims."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from steadyq.report.curves import read
from steadyq.report.html import verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("diagnose_study", ROOT / "studies" / "diagnose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_comes_from_the_stored_runs(study: ModuleType) -> None:
    judged = [(case, read(ROOT / "results" / "diagnose" / case.name)) for case in study.CASES]
    assert study.page(judged) == (ROOT / "docs" / "diagnose.md").read_text()


def test_quiet_on_every_healthy_run_and_right_on_four_sick_ones(study: ModuleType) -> None:
    right = set()
    for case in study.CASES:
        found = verdict(read(ROOT / "results" / "diagnose" / case.name))
        if case.expected == "nothing":
            assert found == [], case.name
        elif case.expected in {finding.mechanism for finding in found}:
            right.add(case.name)
    assert right >= {"rate", "ratio", "no-target", "asterix"}
