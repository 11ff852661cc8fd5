"""An environment's shapes and names as plain data, so that its agents act where the environment is not installed."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from gymnasium import spaces

from steadyq.envs.spaces import Actions, Observations, is_text
from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError

SPACES = ("seen", "actions")


def to_data(spec: EnvSpec) -> dict[str, Any]:
    """What JSON can hold of a spec; Gymnasium's spaces by their own names."""
    data = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in SPACES}
    if spec.seen is not None and spec.actions is not None:
        data["observation_space"] = space_to_data(spec.seen.space)
        data["action_space"] = space_to_data(spec.actions.space)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def from_data(data: Mapping[str, Any], where: object) -> EnvSpec:
    """The spec again; raises `UserError` naming `where` the data came from if it is none."""
    try:
        given: dict[str, Any] = {field.name: data[field.name] for field in fields(EnvSpec) if field.name in data}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        if "observation_space" in data:
            given["seen"] = Observations(data["name"], space_from_data(data["observation_space"]))
            given["actions"] = Actions(data["name"], space_from_data(data["action_space"]))
        spec = EnvSpec(**given)
        if spec.frame_dtype not in ("uint8", "float32") or not all(isinstance(n, int) for n in spec.frame_shape):
            raise ValueError("frames of no known type and shape")
        return spec
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{where} is damaged: it describes no environment ({error})") from None


def space_to_data(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space and those inside it."""
    kind = type(space).__name__
    match space:
        case spaces.Box():
            low, high = (bound.ravel() for bound in (space.low, space.high))
            bounds = {"low": _short(low), "high": _short(high)}
            return {"space": kind, "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"space": kind, "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {
                "space": kind,
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            return {"space": kind, "n": list(space.n) if isinstance(space.n, tuple) else space.n}
        case spaces.Tuple():
            return {"space": kind, "spaces": [space_to_data(part) for part in space.spaces]}
        case spaces.Dict():
            return {"space": kind, "spaces": {name: space_to_data(part) for name, part in space.spaces.items()}}
        case _ if is_text(space):
            return {"space": "Text"}
    raise UserError(f"{space} cannot be described")


def space_from_data(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space again."""
    match data["space"]:
        case "Box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"]).type
            low, high = (np.broadcast_to(np.array(_long(data[end])), int(np.prod(shape))) for end in ("low", "high"))
            return spaces.Box(low.reshape(shape).astype(dtype), high.reshape(shape).astype(dtype), shape, dtype)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            dtype = np.dtype(data["dtype"]).type
            return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=dtype, start=np.array(data["start"]))
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "Tuple":
            return spaces.Tuple([space_from_data(part) for part in data["spaces"]])
        case "Dict":
            return spaces.Dict({name: space_from_data(part) for name, part in data["spaces"].items()})
        case "Text":
            return spaces.Text(1)  # which says nothing: no text is read
    raise ValueError(f"no space is called {data['space']!r}")


def _short(bound: np.ndarray) -> Any:
    """A bound as one number where it is one; infinity as text, which JSON does not have."""
    numbers = [n if np.isfinite(n) else str(n) for n in bound.tolist()]
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _long(bound: Any) -> Any:
    return [float(n) for n in bound] if isinstance(bound, list) else float(bound)
