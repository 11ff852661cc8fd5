"""Kernels on a CPU: Triton's interpreter must be chosen before Triton is first imported, and would slow every other
test down, so a file's kernel tests run in a process of their own, started by one of its tests on the file itself.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that test_under_the_interpreter starts")
outside = pytest.mark.skipif(INTERPRETED, reason="already there")


def run_interpreted(file: str) -> None:
    """Run a test file's tests under the interpreter; fail if one of them does."""
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have Triton: pip install triton")
        pytest.skip("Triton is not installed: pip install triton")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Equal in shape, and to a share of the whole's size."""
    assert got.shape == want.shape
    assert not got.isnan().any()
    assert (got.double() - want.double()).norm() <= tolerance * want.double().norm() + 1e-12
