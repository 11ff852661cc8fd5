"""Reports that tests leave behind for people to look at, listed at the end of the test run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("STEADYQ_TEST_REPORTS") or Path(__file__).parents[1] / "build" / "reports")
written: list[Path] = []


@pytest.fixture
def report_path() -> Callable[[str], Path]:
    """Where to write a report by name so that it outlives the test."""

    def path(name: str) -> Path:
        FOLDER.mkdir(parents=True, exist_ok=True)
        written.append(FOLDER / name)
        return written[-1]

    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [path for path in written if path.is_file()]
    if reports:
        terminalreporter.section("reports to look at")
        for path in reports:
            terminalreporter.write_line(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
