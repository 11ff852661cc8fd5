"""Who wrote a number on what: versions, commit, hardware, command."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import steadyq


def provenance() -> dict[str, Any]:
    """Versions, commit and hardware, for everything that reports a number; a sweep's runs name the sweep's command."""
    packages = ("torch", "numpy", "gymnasium", "ale-py", "MinAtar", "envpool", "triton", "stable-baselines3")
    versions = {"python": platform.python_version(), "steadyq": steadyq.__version__}
    versions |= {name: found for name in packages if (found := _version(name))}
    return {
        "versions": versions,
        "commit": _commit(),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "command": os.environ.get("STEADYQ_COMMAND") or command_line(),
    }


def command_line() -> str | None:
    """The `steadyq` command that this process is, if it is one."""
    return " ".join(["steadyq", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("steadyq", "__main__") else None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str | None:
    """The checkout's commit, `+` where it has changes; STEADYQ_COMMIT where the code travelled without its history."""
    if given := os.environ.get("STEADYQ_COMMIT"):
        return given
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()
