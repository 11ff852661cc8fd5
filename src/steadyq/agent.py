"""What acts: a trained ensemble, and how it is read from a run."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from steadyq import envs
from steadyq.build import acting_for, device_for, ensemble_for, estimator_for
from steadyq.envs.described import from_data
from steadyq.envs.modules import refuse_inside
from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError
from steadyq.nets import Ensemble
from steadyq.recipe import Recipe
from steadyq.run.folder import RunFolder, read_table
from steadyq.value.acting import Acting, Mean
from steadyq.value.estimators import Estimator
from steadyq.value.operators import permitted
from steadyq.value.shapes import Params

ENVIRONMENT = "environment.json"
"""In a shared folder: the environment's shapes and names, for where its package is not installed."""


class Agent:
    """An ensemble after `step` steps of training, which acts greedily on its mean value or as `acting` says."""

    def __init__(
        self,
        ensemble: Ensemble,
        estimator: Estimator,
        params: Params,
        spec: EnvSpec,
        step: int = 0,
        acting: Acting | None = None,
    ) -> None:
        self.ensemble, self.estimator, self.params, self.spec, self.step = ensemble, estimator, params, spec, step
        self.acting = acting or Mean()
        self.device = next(iter(params.values())).device

    def __repr__(self) -> str:
        members = f"{self.ensemble.members} network{'s' * (self.ensemble.members > 1)}"
        return f"Agent({self.spec.name!r}, {members}, step {self.step:,}, on {self.device})"

    @torch.no_grad()
    def q(self, observation: Any) -> Tensor:
        """Return the value by which the ensemble acts, [batch, action], for observations [batch, ...]."""
        x = torch.as_tensor(observation, device=self.device)
        q = self.estimator.q(self.ensemble.forward(self.params, x))
        return self.acting(q, torch.zeros(len(x), dtype=torch.int64, device=self.device))

    def act(self, observation: Any, mask: Any = None) -> int | np.ndarray:
        """Return the greedy action of one observation (an int), or of a batch (an array), as the environment counts.

        An observation is `agent.spec.observation_shape`: frames stacked along the first dimension, or, where one frame
        is an observation, what the environment itself shows; an image beside other things, stacked, is the list of what
        was shown last, the newest last. An action of several choices is a row of them. `mask`
        are the actions that may be played, as the environment gives them: one, or a list with one for each observation.
        """
        spec = self.spec
        recent = spec.parts is not None and isinstance(observation, list) and len(observation) == spec.stack
        if spec.seen is not None and (spec.stack == 1 or recent):
            try:
                frames = [spec.seen.laid_out(each) for each in (observation if recent else [observation])]
                observation = np.concatenate(frames) if recent else frames[0]
            except ValueError as wrong:
                raise UserError(f"{spec.name} does not show {wrong}") from None
        shape = tuple(np.shape(observation))
        several = spec.actions if spec.actions is not None and spec.actions.choices else None
        if spec.stack == 1 and spec.shown_shape and spec.shown_shape in (shape, shape[1:]):
            observation = self._frames(np.asarray(observation))
            shape = observation.shape
        if shape == spec.observation_shape:
            number = int(self._values(np.asarray(observation)[None], None if mask is None else [mask]).argmax(-1))
            return number + spec.first_action if several is None else np.asarray(several[number])
        if shape[1:] == spec.observation_shape:
            numbers: np.ndarray = self._values(observation, mask).argmax(-1).cpu().numpy()
            return numbers + spec.first_action if several is None else np.stack([several[n] for n in numbers.tolist()])
        raise UserError(f"observation has shape {shape}, {spec.name} is seen as {spec.observation_shape}")

    def _values(self, observation: Any, masks: Any) -> Tensor:
        if masks is None:
            return self.q(observation)
        actions = self.spec.actions
        if actions is None or len(masks) != len(observation):
            raise UserError(f"{self.spec.name} takes no action mask, or one for each observation")
        try:
            allowed = np.stack([actions.allowed(mask) for mask in masks])
        except ValueError as wrong:
            raise UserError(f"{self.spec.name} does not take {wrong} as an action mask") from None
        return permitted(self.q(observation), torch.from_numpy(allowed).to(self.device))

    def _frames(self, shown: np.ndarray) -> np.ndarray:
        """Images with their channels first, anything else in one row, as `envs/classic.py` lays them out."""
        spec, before = self.spec, shown.shape[: shown.ndim - len(self.spec.shown_shape)]
        if len(spec.frame_shape) == 3 and len(spec.shown_shape) == 3:
            shown = np.moveaxis(shown, -1, -3)
        return shown.reshape(*before, *spec.frame_shape).astype(spec.frame_dtype)


def load(
    path: Path | str,
    device: str = "auto",
    networks: Literal["acting", "online", "target", "best"] = "acting",
    verify: bool | None = None,
) -> Agent:
    """Load the agent of a run from its newest checkpoint: the networks that acted in training, or those asked for.

    `best` are those that acted best in an evaluation on the way (`evaluation.every`).
    `verify=False` does not compare the checkpoint with its digests. No code that lies in the folder runs:
    a network or environment of somebody's own is imported from elsewhere on the Python path alone.
    """
    folder = RunFolder(path, verify)
    recipe = folder.recipe.override({"compute.device": device})
    if device_for(recipe).type == "cpu":  # what a run computed in on a GPU does not bind its agent
        recipe = recipe.override({"compute.precision": "auto", "compute.form": "auto"})
    refuse_inside(folder.path, recipe.env, *recipe.protocol.wrappers, recipe.network.factory)
    spec = _spec(folder, recipe)
    params, step = folder.weights(recipe.explore.act_with if networks == "acting" else networks)
    where = device_for(recipe)
    params = {name: p.to(where) for name, p in params.items()}
    ensemble = ensemble_for(recipe, spec)
    wanted, found = ensemble.shapes(), {name: tuple(p.shape) for name, p in params.items()}
    if wanted != found:
        name = next(name for name in {**wanted, **found} if wanted.get(name) != found.get(name))
        raise UserError(
            f"{path}: recipe and weights are not of one run: {name} should have shape {wanted.get(name)}, and has "
            f"{found.get(name)}"
        )
    return Agent(ensemble, estimator_for(recipe), params, spec, step, acting_for(recipe, training=False))


def _spec(folder: RunFolder, recipe: Recipe) -> EnvSpec:
    """The environment as a shared folder describes it, else as it says itself."""
    described = folder.path / ENVIRONMENT
    return (
        from_data(read_table(described), described) if described.is_file() else envs.spec(recipe.env, recipe.protocol)
    )
