"""What every kind of fault shares: small recipes, children that can be killed, and a count of what was broken."""

import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyq import presets
from steadyq.recipe import Recipe

SMALL: dict[str, Any] = {
    "replay.warmup": 40,
    "replay.capacity": 200,
    "replay.batch": 4,
    "ensemble.members": 2,
    "estimator.quantiles": 3,
    "record.every": 20,
    "record.tensorboard": False,
    "monitor.every": 20,
    "monitor.batch": 8,
    "regulation.every": 20,
    "regulation.threshold": 1.2,
    "evaluation.episodes": 1,
    "evaluation.random_episodes": 1,
    "compute.threads": 1,
    "compute.device": "cpu",
}
IMAGES = {
    "network.scale": 1,
    "network.head_multiple": 2,
    "network.strides": (2, 2, 2, 2),
    "protocol.max_frames": 120,
}
BACKENDS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", 160, {"network.hidden": (8,)}),
    "MinAtar": ("MinAtar/Breakout", 160, {"network.hidden": (8,), "network.channels": 2}),
    "Atari": ("Atari/Breakout", 120, IMAGES),
    "Procgen": ("Procgen/CoinRun", 120, {**IMAGES, "protocol.lanes": 4, "protocol.max_frames": 40}),
}
"""Environment, steps and settings of the runs that are interrupted."""


def small(backend: str = "CartPole", seed: int = 0, **changes: Any) -> Recipe:
    """A run of a second, with everything in it that a run has."""
    env, steps, settings = BACKENDS[backend]
    return presets.steady(env, "tiny", **{"steps": steps, "seed": seed, **SMALL, **settings, **changes})


@dataclass
class Count:
    """How many faults of a kind there were, how they ended, and what was broken by them."""

    kind: str
    endings: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, ending: str) -> None:
        """One more, ended in a good way."""
        self.endings[ending] += 1

    def fail(self, what: str) -> None:
        """One more, and something was broken."""
        self.endings["broken"] += 1
        self.broken.append(what)

    @property
    def total(self) -> int:
        """All of them."""
        return self.endings.total()

    def line(self) -> str:
        """The count in one line."""
        how = ", ".join(f"{number} {ending}" for ending, number in sorted(self.endings.items()))
        return f"{self.kind}: {self.total} ({how or 'none'})"


def fork(work: Callable[[], Any], words: Path) -> int:
    """Do something in a child that has all modules in memory already; what it says goes into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    code = 70
    try:
        handle = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 pytest's are its own
        sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # noqa: SIM115
        code = int(work() or 0)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> int:
    """The child's exit code, negative for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
