"""What all tests share: signals as a terminal has them, and reports left behind for people to look at."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("STEADYQ_TEST_REPORTS") or Path(__file__).parents[1] / "build" / "reports")
written: list[Path] = []


def pytest_configure() -> None:
    """In the background or under nohup signals come ignored, and a run leaves them so."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
