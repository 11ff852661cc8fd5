"""Deep Q-learning that stays stable, and shows why an agent does not.

import steadyq as sq

run = sq.train("steady", env="CartPole-v1", steps=20_000)
agent = sq.load(run.path)
action = agent.act(observation)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyq import presets
    from steadyq.agent import Agent, load
    from steadyq.envs.factories import environment
    from steadyq.errors import UserError
    from steadyq.monitor.attach import StabilityMonitor
    from steadyq.recipe import Recipe
    from steadyq.run.callbacks import Callback
    from steadyq.run.folder import RunFolder
    from steadyq.run.loop import train

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Callback",
    "Recipe",
    "RunFolder",
    "StabilityMonitor",
    "UserError",
    "environment",
    "load",
    "presets",
    "train",
]

_HOMES = {
    "Agent": "steadyq.agent",
    "Callback": "steadyq.run.callbacks",
    "Recipe": "steadyq.recipe",
    "RunFolder": "steadyq.run.folder",
    "StabilityMonitor": "steadyq.monitor.attach",
    "UserError": "steadyq.errors",
    "environment": "steadyq.envs.factories",
    "load": "steadyq.agent",
    "train": "steadyq.run.loop",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: PyTorch takes seconds, and `steadyq --help` needs none of it."""
    if name == "presets":
        return importlib.import_module("steadyq.presets")
    if name not in _HOMES:
        raise AttributeError(f"module 'steadyq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__version__"]
