"""Tests that compile for a CPU."""

import os

import pytest

from steadyq.device.program import compiler

compiles = pytest.mark.skipif(
    not compiler() and os.environ.get("CI") != "true", reason="needs a C++ compiler and Python's headers: install g++"
)
