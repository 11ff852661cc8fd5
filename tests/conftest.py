"""What all tests share: signals as a terminal has them, and reports left behind for people to look at."""

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("STEADYQ_TEST_REPORTS") or Path(__file__).parents[1] / "build" / "reports")
STARTED = time.time()


def pytest_configure() -> None:
    """In the background or under nohup signals come ignored, and a run leaves them so."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: what is left for the end is short, and two processes end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What was imported stays: no later collection looks through all of it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def report_path() -> Callable[[str], Path]:
    """Where to write a report by name so that it outlives the test."""

    def path(name: str) -> Path:
        FOLDER.mkdir(parents=True, exist_ok=True)
        return FOLDER / name

    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [path for path in sorted(FOLDER.glob("*")) if path.is_file() and path.stat().st_mtime >= STARTED]
    if reports:
        terminalreporter.section("reports to look at")
        for path in reports:
            terminalreporter.write_line(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
