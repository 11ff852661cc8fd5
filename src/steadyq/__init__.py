"""Deep Q-learning that stays stable, and shows why an agent does not.

import steadyq as sq

run = sq.train(sq.presets.steady("CartPole-v1"), steps=20_000)
agent = sq.load(run.path)
action = agent.act(observation)
"""

from steadyq import presets
from steadyq.agent import Agent, load
from steadyq.drive import train
from steadyq.errors import UserError
from steadyq.monitor.loop import StabilityMonitor
from steadyq.recipe import Recipe
from steadyq.runs import RunFolder

__version__ = "0.1.0"

__all__ = ["Agent", "Recipe", "RunFolder", "StabilityMonitor", "UserError", "load", "presets", "train"]
