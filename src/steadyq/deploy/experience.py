"""A run's experience as a dataset that others can learn from."""

import contextlib
import os
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
    about = {
        "dataset_id": dataset_id(out),
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
    protocol = recipe.protocol
    if recipe.env.startswith("Gymnasium/") and not (protocol.kwargs or protocol.wrappers):
        import gymnasium

        with contextlib.suppress(gymnasium.error.Error):  # a module of somebody's own, not imported here
            about["env_spec"] = gymnasium.spec(recipe.env.partition("/")[2]).to_json()
    return write_dataset(out, spec, episodes_in(ring), about)


def dataset_id(out: Path) -> str:
    """What Minari calls a dataset in this folder: its place in Minari's store, elsewhere its name, with a version."""
    home = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    place, store = out.resolve(), Path(home).resolve()
    stored = place.is_relative_to(store)
    name = place.relative_to(store).as_posix() if stored else place.name
    if re.fullmatch(r"[-_\w./]+-v\d+", name):
        return name
    if stored:
        raise UserError(f"--minari {out}: in Minari's store a name ends in its version, such as {out.name}-v0")
    return re.sub(r"[^-_\w]+", "-", name) + "-v0"
