"""An agent as one ONNX file: observations in, actions and values out, with nothing of this library around it."""

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadyq.agent import Agent
from steadyq.errors import UserError
from steadyq.run.files import replace_bytes

SCREEN = (210, 160)
"""Rows and columns of the emulator's screen."""
EXTRA = "pip install 'steadyq[onnx]'"


class Exported(nn.Module):
    """What the file computes: pixels scaled and laid out, all members, the rule by which they act."""

    rows: Tensor
    columns: Tensor
    choices: Tensor | None
    """[action, choice] what each action is made of, where that is more than a number."""

    def __init__(self, agent: Agent, screens: bool = False) -> None:
        super().__init__()
        self.screens = screens
        self.ensemble = replace(agent.ensemble, form="loop", dtype=torch.float32, packing=None)
        self.estimator, self.acting, self.spec = agent.estimator, agent.acting, agent.spec
        self.names = list(agent.params)
        for number, p in enumerate(agent.params.values()):
            self.register_buffer(f"parameter{number}", p.float().cpu())
        actions = agent.spec.actions
        table = [actions[n].tolist() for n in range(actions.count)] if actions is not None and actions.choices else None
        self.register_buffer("choices", None if table is None else torch.tensor(table))
        self.inputs = self._inputs(agent)
        for side, pixels in (("rows", SCREEN[0]), ("columns", SCREEN[1])) if screens else ():
            self.register_buffer(side, by_area(pixels, agent.spec.frame_shape[-1]))

    def _inputs(self, agent: Agent) -> dict[str, "Input"]:
        """What the file is given, by name: `observation`, or each of several parts."""
        spec, packing = agent.spec, agent.ensemble.packing
        if self.screens:
            return {"screens": Input((spec.stack, 2, *SCREEN), "uint8", spec.pixel_max)}
        if packing is None or spec.seen is None:
            return {"observation": Input(self.shown, spec.frame_dtype, spec.pixel_max)}
        images = [image for image in spec.seen.images if image is not None]
        images.sort(key=lambda image: image.dtype == "uint8")  # as a frame holds them
        found: dict[str, Input] = {}
        for name, shape in zip(packing.names, packing.shapes, strict=True):
            if len(shape) != 3:
                found[name] = Input(shape, "float32", 1.0)
                continue
            image = images.pop(0)
            plain = spec.stack == 1 and image.channels_last
            found[name] = Input(image.shown if plain else shape, image.dtype, image.highest, channels_last=plain)
        return found

    @property
    def shown(self) -> tuple[int, ...]:
        """Shape of one observation: as the environment shows it, or its frames stacked along the first dimension."""
        spec = self.spec
        plain = spec.stack == 1 and len(spec.shown_shape) == len(spec.frame_shape)
        return spec.shown_shape if plain else spec.observation_shape

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        """The action of each observation, as the environment counts them, and the values behind it."""
        observation = given[0]
        if self.screens:
            seen = self.rows @ observation.amax(2).float() @ self.columns.T
            observation = seen.round().to(torch.uint8)
        elif "observation" not in self.inputs:
            observation = torch.cat([x.row(part) for x, part in zip(self.inputs.values(), given, strict=True)], 1)
        elif self.shown != self.spec.observation_shape:  # channels last
            observation = observation.movedim(-1, -3)
        params = {name: getattr(self, f"parameter{number}") for number, name in enumerate(self.names)}
        q = self.estimator.q(self.ensemble.forward(params, observation))
        value = self.acting(q, torch.zeros_like(q[0, :, 0], dtype=torch.int64))
        number = value.argmax(-1)
        action = number + self.spec.first_action if self.choices is None else self.choices[number]
        return action, value

    def example(self, batch: int) -> tuple[Tensor, ...]:
        """Observations of the right shapes and types, for tracing."""
        generator = torch.Generator().manual_seed(0)
        return tuple(
            (torch.rand(batch, *x.shape, generator=generator) * x.highest).to(getattr(torch, x.dtype))
            for x in self.inputs.values()
        )


def by_area(pixels: int, wanted: int) -> Tensor:
    """[wanted, pixels] what a line of pixels becomes when it is resized by area, as ALE and OpenCV do it."""
    edge = torch.arange(wanted + 1, dtype=torch.float64) * pixels / wanted
    first = torch.arange(pixels, dtype=torch.float64)
    covered = torch.minimum(edge[1:, None], first + 1) - torch.maximum(edge[:-1, None], first)
    return (covered.clamp(min=0) * wanted / pixels).float()


@dataclass(frozen=True)
class Input:
    """One tensor that the file is given; of several parts each is scaled and laid out for itself."""

    shape: tuple[int, ...]
    dtype: str
    highest: float
    channels_last: bool = False

    def row(self, x: Tensor) -> Tensor:
        """The part's values as the networks see them."""
        x = x.movedim(-1, -3) if self.channels_last else x
        return (x.float() / self.highest).flatten(1)

    @property
    def words(self) -> str:
        """Type and shape."""
        return f"{self.dtype} [batch, {', '.join(map(str, self.shape))}]"


def export_onnx(agent: Agent, file: Path, about: Mapping[str, Any], screens: bool = False) -> tuple[str, ...]:
    """Write the agent to an ONNX file and return the names of its inputs; `about` goes into its metadata.

    Input `observation[batch, ...]`, or `vector`, `image`, ... where it is several things; outputs `action[batch]`
    (`[batch, choice]` where an action is several choices) and `value[batch, action]`. Raises `UserError` where the
    packages that write ONNX are missing. With `screens` an Atari agent's input is `screens[batch, step, 2, 210, 160]`:
    the emulator's own, gray, after the last two frames of each of the last steps.
    """
    if screens and not agent.spec.name.startswith("Atari/"):
        raise UserError(f"only Atari's agents can be given an emulator's screens, this one plays {agent.spec.name}")
    try:
        import onnx
        import onnxscript  # noqa: F401  (PyTorch's exporter writes with it)
    except ImportError as error:
        raise UserError(f"exporting to ONNX needs the package {error.name}: {EXTRA}") from None
    module = Exported(agent, screens).eval()
    batch = torch.export.Dim("batch", min=1)
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, module.example(3), dynamo=True, verbose=False,
            dynamic_shapes=(tuple({0: batch} for _ in module.inputs),),
            input_names=[*module.inputs], output_names=["action", "value"],
        )  # fmt: skip
    assert program is not None
    model = program.model_proto
    spec = agent.spec
    facts = {
        "environment": spec.name,
        "observation": _rule(module),
        "actions": json.dumps(list(spec.action_names)),
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()},
    }
    onnx.helper.set_model_props(model, facts)
    onnx.checker.check_model(model)
    replace_bytes(file.resolve(), model.SerializeToString())
    return tuple(module.inputs)


def _rule(module: Exported) -> str:
    spec = module.spec
    frames = f", {spec.stack} frames stacked, the newest last" if spec.stack > 1 else ""
    scaled = f", divided by {spec.pixel_max:g} inside" if spec.pixel_max != 1 else ""
    laid = spec.seen.rule if spec.seen is not None else ""
    if module.screens:
        laid = "of each step the gray screens after its last two frames; the larger of both, resized by area inside"
    elif spec.name.startswith("Atari/"):
        laid = "of each step the larger of the gray screens after its last two frames, resized by area"
    inputs = ", ".join(f"{name} {x.words}" if len(module.inputs) > 1 else x.words for name, x in module.inputs.items())
    return f"{inputs}{frames}{scaled}" + (laid and f"; {laid}")


class _quiet:  # noqa: N801  (reads as a word in `with`)
    """Keep a logger's warnings to itself: the exporter names every optional package it did not find."""

    def __init__(self, name: str) -> None:
        self.logger = logging.getLogger(name)

    def __enter__(self) -> None:
        self.before = self.logger.level
        self.logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self.logger.setLevel(self.before)
