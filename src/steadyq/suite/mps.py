"""NVIDIA's Multi-Process Service: kernels of several processes run side by side on one GPU instead of taking turns.

A sweep that puts several runs on a GPU starts a service of its own, with folders of its own, and stops it at the end.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from steadyq.errors import UserError

CONTROL = "nvidia-cuda-mps-control"
SECONDS = 30.0
"""How long the service may take to start or stop."""

Wanted = Literal["auto", "on", "off"]


class Service:
    """A running service; `environment` is what a process needs to use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def stop(self) -> None:
        """End it, once; processes that still use it are on their own."""
        if self.folder.exists():
            _control(["quit"], self.environment)
            shutil.rmtree(self.folder, ignore_errors=True)


def start(wanted: Wanted, runs_per_gpu: int) -> tuple[Service | None, str]:
    """Start a service where several runs share a GPU, and say what was done; `on` raises where that cannot be."""
    if wanted == "off" or runs_per_gpu < 2:
        return None, ""
    if given := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return None, f"runs share each GPU through the MPS that CUDA_MPS_PIPE_DIRECTORY names ({given})"
    if shutil.which(CONTROL) is None:
        return _without(wanted, f"{CONTROL} is not installed")
    service = Service(Path(tempfile.mkdtemp(prefix="steadyq-mps-")))
    for folder in service.environment.values():
        Path(folder).mkdir(mode=0o700)
    if words := _control(["-d"], service.environment):
        shutil.rmtree(service.folder, ignore_errors=True)
        return _without(wanted, f"{CONTROL} did not start: {words}")
    return service, "runs share each GPU through NVIDIA's MPS, started for this sweep (--mps off: they take turns)"


def _without(wanted: Wanted, why: str) -> tuple[None, str]:
    if wanted == "on":
        raise UserError(f"--mps on: {why} (use auto or off)")
    return None, f"runs on one GPU take turns: {why}"


def _control(words: list[str], environment: dict[str, str]) -> str:
    """Call the service's control program: a flag, or a command that it reads; returns what went wrong."""
    flags, asked = ([], "\n".join(words) + "\n") if words[0] != "-d" else (words, None)
    try:
        done = subprocess.run(
            [CONTROL, *flags],
            input=asked,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split())
    return " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}" if done.returncode else ""
