"""Real runs side by side on one device: how many steps a second all of them together make."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyq.bench.sheets import Row
from steadyq.errors import UserError
from steadyq.suite.local import LocalProcesses
from steadyq.suite.mps import Wanted
from steadyq.suite.plan import make_plan
from steadyq.suite.sharing import Pace, memory_taken
from steadyq.suite.study import Study

QUICK = {"record.every": 100, "monitor.every": 0, "record.tensorboard": False, "record.checkpoint_every": 1_000_000}
"""Rows often, and nothing else that takes time."""


def sharing_times(
    env: str, preset: str, runs: int, mps: Wanted, seconds: float, settings: Mapping[str, Any], together: int = 1
) -> Row:
    """Train seeds side by side in `runs` processes, `together` in each, on a GPU where there is one, until their rows
    span `seconds`; then stop them.
    """
    import torch

    gpus = int(torch.cuda.is_available())
    seeds, changes = tuple(range(runs * together)), {**QUICK, **settings}
    study = Study("sharing", "Sharing", "", (env,), preset, seeds=seeds, settings=changes)
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(study, Path(folder) / "sweep")
        launcher = LocalProcesses(plan.out, runs, gpus / runs, gpus, mps)
        try:
            service = launcher.open()
            for first in range(0, runs * together, together):
                launcher.start(plan.entries[first : first + together])
            pace, folders = Pace(seconds), [entry.folder.path for entry in plan.entries]
            while (speed := pace.together(folders)) is None:
                for entry, ending, words in launcher.poll():
                    raise UserError(f"run {entry.run.name} ended ({ending}) before it was measured: {words}")
                time.sleep(0.2)
            taken = memory_taken() if gpus else None
        finally:
            launcher.close()
    how = {"env": env, "preset": preset, "runs": runs, "mps": launcher.service is not None, "service": service}
    how["together"] = together
    return how | {"steps_per_second": speed, "memory": taken}
