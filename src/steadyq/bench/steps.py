"""A whole step of training beside its learning and its acting alone: what is left is the loop's own cost."""

import tempfile
import time
from pathlib import Path

from steadyq import cpu
from steadyq.bench.clock import milliseconds, settle
from steadyq.bench.sheets import Row
from steadyq.recipe import Recipe
from steadyq.runs import RunFolder
from steadyq.training import Training
from steadyq.value.capture import Arriving


def step_times(recipe: Recipe, steps: int) -> Row:
    """Mean time of `steps` steps of real training, once learning has begun: environment, storing, rows and all."""
    with tempfile.TemporaryDirectory() as folder:
        writer = RunFolder(Path(folder) / "run").begin(recipe)
        training = Training(recipe, writer)
        cpu.settle(cpu.threads_for(training.learner.ensemble, recipe.replay.batch, recipe.compute.threads))
        try:
            training.start()
            begin = recipe.replay.warmup + 100
            while training.step_count < begin:
                training.step()
            settle(training.device)
            start = time.perf_counter()
            while training.step_count < begin + steps:
                training.step()
            settle(training.device)
            step_ms = 1e3 * (time.perf_counter() - start) / steps
            learn_ms = milliseconds(lambda: training.learn(recipe.replay.ratio), training.device)
            act_ms = milliseconds(lambda: Arriving(training.act_values()).numpy(), training.device, budget=0.3)
        finally:
            training.env.close()
            writer.close()
    outside = max(0.0, 1 - (learn_ms + act_ms) / step_ms)
    how = {"env": recipe.env, "scale": recipe.scale, "steps": steps, **training.computes()}
    return how | {"step_ms": step_ms, "learn_ms": learn_ms, "act_ms": act_ms, "outside": outside}
