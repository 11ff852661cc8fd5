"""Kernels on a CPU: Triton's interpreter must be chosen before Triton is first imported, and would slow every other
test down, so a file's kernel tests run in a process of their own, started by one of its tests on the file itself.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that test_under_the_interpreter starts")
outside = pytest.mark.skipif(INTERPRETED, reason="already there")


def hasten() -> None:
    """Half of the interpreter's time is work that it does again or throws away; what it computes stays the same."""
    from triton.runtime import interpreter

    # Overflows are looked for at every integer operation, and what was found is read in its debug mode alone.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    patch, kind = interpreter._patch_lang, interpreter._get_np_dtype

    @functools.cache
    def patch_once(function: Any) -> Any:
        """The language stays patched from a function's first call on: nothing is compiled in this process."""
        patch(function)
        return interpreter._LangPatchScope()  # with nothing to restore

    kinds: dict[str, Any] = {}

    def kind_by_name(dtype: Any) -> Any:
        return kinds.get(dtype.name) or kinds.setdefault(dtype.name, kind(dtype))

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, kind_by_name


if INTERPRETED and importlib.util.find_spec("triton"):
    hasten()


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
