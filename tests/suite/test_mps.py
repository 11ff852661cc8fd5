"""A sweep's own MPS: started where runs share a GPU, and stopped at the end; here with a program of its name."""

import stat
from pathlib import Path

import pytest

from steadyq.errors import UserError
from steadyq.suite import mps
from steadyq.suite.local import LocalProcesses

PROGRAM = """#!/bin/sh
if [ "$1" = "-d" ]; then echo started >> "$CALLS"; touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exit ${FAILS:-0}; fi
read word; echo "$word $CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / mps.CONTROL
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path / "calls"


def test_a_service_is_started_for_runs_that_share_a_gpu_and_stopped_once(calls: Path) -> None:
    launcher = LocalProcesses(calls.parent / "sweep", jobs=4, gpus_per_run=0.25, gpus=1)
    assert "MPS, started for this sweep (--mps off" in launcher.open()
    assert launcher.service is not None
    pipe = Path(launcher.service.environment["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipe / "control").exists()
    launcher.close()
    launcher.close()
    assert calls.read_text().splitlines() == ["started", f"quit {pipe}"]
    assert not pipe.parent.exists()


@pytest.mark.parametrize(
    ("jobs", "share", "gpus", "wanted"),
    [(1, 1.0, 1, "auto"), (2, 1.0, 2, "on"), (4, 0.25, 1, "off"), (4, 0.0, 0, "on")],
)
def test_no_service_where_no_runs_share_a_gpu(calls: Path, jobs: int, share: float, gpus: int, wanted: str) -> None:
    launcher = LocalProcesses(calls.parent, jobs, share, gpus, wanted)  # type: ignore[arg-type]
    assert launcher.open() == ""
    assert launcher.service is None
    assert not calls.exists()


def test_a_service_of_the_users_own_is_used_as_it_is(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert mps.start("auto", 4) == (
        None,
        "runs share each GPU through the MPS that CUDA_MPS_PIPE_DIRECTORY names (/run/mps)",
    )
    assert not calls.exists()


def test_without_the_program_or_where_it_fails_runs_take_turns_unless_it_was_asked_for(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "3")
    service, words = mps.start("auto", 4)
    assert service is None
    assert words == "runs on one GPU take turns: nvidia-cuda-mps-control did not start: exit code 3"
    with pytest.raises(UserError, match=r"^--mps on: nvidia-cuda-mps-control did not start: exit code 3 \(use auto"):
        mps.start("on", 4)
    monkeypatch.setenv("PATH", "/nowhere")
    assert mps.start("auto", 2)[1] == "runs on one GPU take turns: nvidia-cuda-mps-control is not installed"
