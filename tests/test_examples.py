"""The examples run, and end where they say."""

import runpy
import sys
from pathlib import Path

import pytest

import steadyq as sq

EXAMPLES = Path(__file__).parents[1] / "examples"


def play(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play("own_environment.py", monkeypatch, tmp_path, "--steps", "1200")
    said = capsys.readouterr().out
    assert "14, choices as one-hot; 4 actions, of which the environment says what may be played" in said
    assert "a game by hand: return" in said
    run = sq.RunFolder(tmp_path / "runs/warehouse")
    assert run.recipe.env == "Gymnasium/<make>"
    assert (run.path / "game.gif").stat().st_size > 1000


def test_own_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play("own_network.py", monkeypatch, tmp_path, "--steps", "1100")
    said = capsys.readouterr().out
    assert "network layers: 4 x " in said
    assert "<Fourier> is a module: its 4 members run one after another" in said
    assert "module: mean return" in said


def test_early_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play("early_stop.py", monkeypatch, tmp_path, "--steps", "3000", "--score", "5", "--games", "30")
    assert "the last 30 games scored" in capsys.readouterr().out
    result = sq.RunFolder(tmp_path / "runs/early-stop").result
    assert result is not None
    assert result["games"] == 30


def test_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play("longer.py", monkeypatch, tmp_path, "--steps", "1020")
    said = capsys.readouterr().out
    assert "training longer: 2,040 steps in place of 1,020" in said
    assert "in two parts and in one: the same to the last bit" in said
