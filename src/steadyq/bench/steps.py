"""A whole step of training beside its learning and its acting alone: what is left is the loop's own cost."""

import tempfile
import time
from pathlib import Path

from steadyq.bench.clock import milliseconds, wait_for
from steadyq.bench.sheets import Row
from steadyq.build import work
from steadyq.device import cpu
from steadyq.device.capture import Readback
from steadyq.recipe import Recipe
from steadyq.run.folder import RunFolder
from steadyq.run.step import Training
from steadyq.run.writer import begin


def step_times(recipe: Recipe, steps: int) -> Row:
    """Mean time of `steps` steps of real training, once learning has begun: environment, storing, rows and all."""
    with tempfile.TemporaryDirectory() as folder:
        writer = begin(RunFolder(Path(folder) / "run"), recipe)
        training = Training(recipe, writer)
        size = work(training.learner.ensemble, recipe.replay.batch)
        cpu.prepare_process(cpu.threads_for(size, recipe.compute.threads))
        try:
            training.start()
            first = recipe.replay.warmup + 100
            while training.step_count < first:
                training.step()
            wait_for(training.device)
            start = time.perf_counter()
            while training.step_count < first + steps:
                training.step()
            wait_for(training.device)
            step_ms = 1e3 * (time.perf_counter() - start) / steps
            learn_ms = milliseconds(lambda: training.learn(recipe.replay.ratio), training.device)
            act_ms = milliseconds(lambda: Readback(training.act_values()).numpy(), training.device, budget=0.3)
        finally:
            training.env.close()
            writer.close()
    outside = max(0.0, 1 - (learn_ms + act_ms) / step_ms)
    how = {"env": recipe.env, "scale": recipe.scale, "steps": steps, **training.computes()}
    return how | {"step_ms": step_ms, "learn_ms": learn_ms, "act_ms": act_ms, "outside": outside}
