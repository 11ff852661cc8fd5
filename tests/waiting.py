"""Waiting without a limit of its own: how fast a machine is decides no test. pytest's `timeout` ends what hangs."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object]) -> None:
    """Wait for something that a thread or another process does."""
    while not condition():
        time.sleep(0.02)
