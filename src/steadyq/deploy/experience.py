"""A run's experience as a dataset that others can learn from."""

import re
from pathlib import Path

import torch

from steadyq import __version__, envs
from steadyq.build import ring_for
from steadyq.errors import UserError
from steadyq.replay.episodes import episodes_in
from steadyq.replay.minari import minari_module, write_dataset
from steadyq.run.folder import RunFolder, read_tensors


def export_minari(folder: RunFolder, out: Path) -> tuple[int, int]:
    """Write the trajectories in a run's replay buffer as a Minari dataset; returns their number and their steps."""
    minari_module()
    recipe, checkpoints = folder.recipe, folder.checkpoints()
    file = checkpoints[-1] / "replay.safetensors" if checkpoints else folder.path
    if not file.is_file():
        raise UserError(f"{folder.path} has no replay buffer: train it with --record.keep-replay")
    folder.verify_checkpoint(checkpoints[-1], "replay")
    spec = envs.spec(recipe.env, recipe.protocol)
    if recipe.replay.dataset:
        raise UserError(f"{folder.path} has played nothing: its experience is {recipe.replay.dataset}")
    ring = ring_for(recipe, spec, torch.device("cpu"))
    ring.restore(read_tensors(file))
    name = re.sub(r"[^a-z0-9]+", "-", f"{recipe.env}-{recipe.preset}".lower()).strip("-")
    about = {
        "dataset_id": f"steadyq/{name}-v0",
        "algorithm_name": recipe.preset,
        "description": (
            f"What a run of steadyq {__version__} had in its replay buffer after {checkpoints[-1].name} steps on "
            f"{recipe.env} ({recipe.protocol.name}): single frames as the learner sees them, the learner's rewards "
            f"({recipe.protocol.reward}), trajectories that end where the learner's end. The last observation of an "
            f"episode that terminated was not kept, and is zeros; one that was under way is cut."
        ),
        "environment": recipe.env,
        "protocol": recipe.protocol.name,
    }
    return write_dataset(out, spec, episodes_in(ring), about)
