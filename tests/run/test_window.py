"""A game in a real window, on a display of its own (Xvfb), whose pixels are read back."""

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from steadyq import envs, presets
from steadyq.cli import main
from steadyq.run.folder import RunFolder
from steadyq.run.loop import train

SMALL = {
    "steps": 120, "network.hidden": (8,), "estimator.quantiles": 3, "ensemble.members": 2, "replay.warmup": 64,
    "record.tensorboard": False, "monitor.every": 0, "evaluation.episodes": 1, "evaluation.random_episodes": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("window") / "run"
    train(presets.steady("CartPole-v1", **SMALL), run=folder, quiet=True)
    return folder


class Screen:
    """A display without a monitor, and what is on it."""

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1000x800x24", "-fbdir", str(folder)]
        self.process = subprocess.Popen([*command, "-nolisten", "tcp"], pass_fds=[writing], stderr=subprocess.DEVNULL)
        os.close(writing)
        with os.fdopen(reading) as number:
            self.name = f":{number.readline().strip()}"
        self.file = folder / "Xvfb_screen0"

    def pixels(self) -> np.ndarray:
        """[height, width, 3] as X keeps it in its file (XWD: a header of big-endian numbers, colours, pixels)."""
        data = self.file.read_bytes()
        header = struct.unpack(">25I", data[:100])
        size, width, height, line, colours = header[0], header[4], header[5], header[12], header[19]
        picture = np.frombuffer(data[size + 12 * colours :], np.uint8)[: line * height].reshape(height, line)
        return picture[:, : 4 * width].reshape(height, width, 4)[..., 2::-1]


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    if shutil.which("Xvfb") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI should install Xvfb")
        pytest.skip("a window needs a display to be tested on: no Xvfb here")
    made = Screen(tmp_path)
    yield made
    made.process.terminate()
    made.process.wait()


def playing(run: Path, screen: Screen, *words: str) -> subprocess.Popen[str]:
    surroundings = {name: value for name, value in os.environ.items() if name not in ("SDL_VIDEODRIVER",)}
    surroundings |= {"DISPLAY": screen.name, "WAYLAND_DISPLAY": ""}
    command = [sys.executable, "-m", "steadyq", "play", str(run), "--window", *words]
    return subprocess.Popen(command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_window_shows_the_game(run: Path, screen: Screen) -> None:
    recipe = RunFolder(run).recipe
    picture = next(iter(envs.render(recipe.env, recipe.protocol, 0, [])))
    process, shown = playing(run, screen, "--max-seconds", "60"), 0
    pole = (picture == (202, 152, 101)).all(-1).sum()  # the colour that nothing else has
    assert pole > 500
    while process.poll() is None and not shown:
        shown = int((screen.pixels() == (202, 152, 101)).all(-1).sum())
        time.sleep(0.02)
    said, wrong = process.communicate(timeout=120)
    assert process.returncode == 0, wrong
    assert pole / 2 < shown < 2 * pole
    assert said.startswith("one game, ")


@pytest.mark.parametrize("driver", ["", "dummy"])
def test_no_display_is_one_line(
    driver: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    if driver:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    with pytest.raises(SystemExit) as ended:
        main(["play", str(run), "--window"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("steadyq: --window needs a display (")
    assert len(said.splitlines()) == 1


def test_a_video_or_a_window(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--window", "--out", "game.mp4"]):
        with pytest.raises(SystemExit) as ended:
            main(["play", str(run), *words])
        assert ended.value.code == 2
        assert "one of the two" in capsys.readouterr().err
