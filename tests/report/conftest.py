"""Small real runs and a real browser, each made once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, executable
from small import SMALL

import steadyq as sq


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two variants with two seeds each; the threshold is low enough that layers are reset."""
    folder = tmp_path_factory.mktemp("runs")
    runs: dict[str, list[Path]] = {}
    for forbid in ("rewarded", "none"):
        for seed in (0, 1):
            changes = {**SMALL, "operator.forbid": forbid, "regulation.threshold": 1.1, "replay.every": 4}
            recipe = sq.presets.steady("CartPole-v1", steps=800, seed=seed, **changes)
            run = sq.train(recipe, run=folder / f"{forbid}-{seed}")
            runs.setdefault(forbid, []).append(run.path)
    return runs


@pytest.fixture(scope="session")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One short run of another environment, which no layer reset interrupts."""
    changes = {**SMALL, "network.channels": 4, "replay.every": 4}
    recipe = sq.presets.steady("MinAtar/Breakout", steps=400, **changes)
    return sq.train(recipe, run=tmp_path_factory.mktemp("runs") / "breakout").path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; where none is installed the tests skip, except in CI."""
    program = executable()
    if program is None:
        message = "no Chromium found (apt-get install chromium, or set STEADYQ_CHROMIUM)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    browser = Browser(program)
    yield browser
    browser.close()
