"""What works with the core alone: a missing package is named in one line, with the extra that brings it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = (
    *("ale_py", "minatar", "envpool", "imageio_ffmpeg", "pygame", "matplotlib", "stable_baselines3", "wandb", "ray"),
    *("minari", "mlflow", "trackio"),
)
SCRIPT = f"""
import sys

for name in {HIDDEN}:
    sys.modules[name] = None

from pathlib import Path
from steadyq import cli

for line in Path(sys.argv[1]).read_text().splitlines():
    try:
        code = cli.main(line.split()) or 0
    except SystemExit as stop:
        code = stop.code
    print("exit", code, line, flush=True)
slow = {{"torch._dynamo", "sympy"}} & sys.modules.keys()
assert not slow, f"a second or two of every start: {{slow}}"
"""
SMALL = "--network.hidden 8 --replay.warmup 64 --record.every 50 --monitor.every 50 --evaluation.episodes 1"
WORKS = (
    f"train CartPole-v1 --steps 200 --run run {SMALL}",
    "evaluate run --episodes 1",
    "report run --out page.html",
    "diagnose run",
    "compare run",
    "train --help",
    "doctor",
)
REFUSED = {
    "train Atari/Breakout --steps 10": "steadyq: Atari is not installed: pip install 'steadyq[atari]'",
    "train MinAtar/Breakout --steps 10": "steadyq: MinAtar is not installed: pip install 'steadyq[minatar]'",
    "train Procgen/CoinRun --steps 10": "steadyq: Procgen is not installed: pip install 'steadyq[procgen]'",
    "compare run --figure curves.svg": "steadyq: a figure needs the extra: pip install 'steadyq[figures]'",
    "play run --out game.mp4": "steadyq: a video needs the extra: pip install 'steadyq[video]'",
    "export run --minari data": "steadyq: datasets need the package minari: pip install 'steadyq[minari]'",
    "train CartPole-v1 --replay.dataset d": "steadyq: datasets need the package minari: pip install 'steadyq[minari]'",
    "presets steady --scale paper": "steadyq: Atari is not installed: pip install 'steadyq[atari]'",
    "demo --out demo": "steadyq: MinAtar is not installed: pip install 'steadyq[minatar]'",
}


def test_the_core_needs_no_emulator(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([*WORKS, *REFUSED]) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(lines)], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
    )
    exits = [line for line in done.stdout.splitlines() if line.startswith("exit ")]
    # A diagnosis of so short a run may find something, which its exit says.
    assert [line.replace("exit 1 diagnose", "exit 0 diagnose") for line in exits] == [
        *(f"exit 0 {line}" for line in WORKS),
        *(f"exit 2 {line}" for line in REFUSED),
    ], done.stdout + done.stderr
    said = done.stderr.splitlines()
    assert [line for line in said if "pip install" in line] == list(REFUSED.values()), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert not (tmp_path / "demo").exists()
    assert not (tmp_path / "curves.svg").exists()


PACKAGES = (
    *("ale_py", "minatar", "envpool", "Box2D", "stable_baselines3", "sb3_contrib", "ray", "onnx", "onnxscript"),
    *("onnxruntime", "huggingface_hub", "optuna", "triton", "matplotlib", "imageio_ffmpeg", "pygame"),
    *("minari", "h5py", "wandb", "mlflow", "trackio"),
)


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="elsewhere tests that need a missing package say so")
@pytest.mark.parametrize("package", PACKAGES)
def test_in_ci_no_test_is_left_out_for_a_missing_package(package: str) -> None:
    assert importlib.util.find_spec(package) is not None, f"the Makefile should install {package}"
