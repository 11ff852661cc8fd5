"""How long an agent takes to act: in this library, and as the ONNX file that `steadyq export` writes."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from steadyq import envs
from steadyq.agent import Agent
from steadyq.bench.clock import milliseconds
from steadyq.bench.sheets import Row
from steadyq.build import acting_for, ensemble_for, estimator_for
from steadyq.deploy.onnx import EXTRA, export_onnx
from steadyq.errors import UserError
from steadyq.presets import recipe_for
from steadyq.recipe import Recipe

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""What the section needs: two to write the file, one to run it."""
BATCHES = (1, 32)
"""Observations at once: one, as an agent meets them, and as many as a server may collect."""


def agents() -> dict[str, Recipe]:
    """One agent of each kind of network, by the words of the table; weights are as drawn: they cost no time."""
    kinds = {
        "MLP": ("steady", "CartPole-v1"),
        "MinAtar network": ("steady", "MinAtar/Breakout"),
        "small CNN": ("drq", "Atari/Breakout"),
        "ResNet": ("steady", "Atari/Breakout"),
    }
    return {kind: recipe_for(*where).override({"compute.device": "cpu"}) for kind, where in kinds.items()}


def untrained(recipe: Recipe) -> Agent:
    """The recipe's agent before its first step."""
    spec = envs.spec(recipe.env, recipe.protocol)
    ensemble = ensemble_for(recipe, spec)
    params = ensemble.initial(torch.Generator().manual_seed(0))
    return Agent(ensemble, estimator_for(recipe), params, spec, 0, acting_for(recipe, training=False))


def acting_times(kind: str, recipe: Recipe, budget: float = 1.0) -> Row:
    """Milliseconds from observations to actions, in PyTorch and in onnxruntime, on one CPU thread."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError(f"timing ONNX needs onnxruntime: {EXTRA} onnxruntime") from None
    agent, cpu = untrained(recipe), torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.onnx"
        export_onnx(agent, file, {})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        size = file.stat().st_size / 1e6
    parameters = sum(p.numel() for p in agent.params.values())
    row: Row = {"kind": kind, "env": recipe.env, "preset": recipe.preset, "members": recipe.ensemble.members}
    row |= {"parameters": parameters, "file_mb": size, "times": []}
    spec, rng = agent.spec, np.random.default_rng(0)
    for batch in BATCHES:
        seen = (rng.random((batch, *spec.observation_shape)) * spec.pixel_max).astype(spec.frame_dtype)
        ours = milliseconds(partial(agent.act, seen), cpu, budget=budget)
        theirs = milliseconds(partial(session.run, ["action"], {"observation": seen}), cpu, budget=budget)
        row["times"].append({"batch": batch, "pytorch_ms": ours, "onnx_ms": theirs})
    return row
