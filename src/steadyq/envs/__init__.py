"""Where experience comes from: Atari, MinAtar, Procgen and Gymnasium behind one vector interface."""

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from importlib import metadata
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from steadyq.envs.factories import AnyEnv, Environment, environment
from steadyq.envs.names import canonical as spelt
from steadyq.envs.names import known, parse
from steadyq.envs.protocol import DEFAULTS, Backend, Protocol
from steadyq.envs.vector import BadEnvironment, EnvSpec, Step, VectorEnv
from steadyq.errors import UserError

__all__ = [
    "AnyEnv",
    "BadEnvironment",
    "EnvSpec",
    "Environment",
    "Protocol",
    "Step",
    "VectorEnv",
    "available",
    "canonical",
    "environment",
    "example",
    "frames_per_second",
    "known",
    "make",
    "protocol_for",
    "render",
    "spec",
]

_TRIALS = {
    "MinAtar": ("MinAtar", "MinAtar/Breakout"),
    "Atari": ("ale-py", "Atari/Breakout"),
    "Procgen": ("envpool", "Procgen/CoinRun"),
    "Gymnasium": ("gymnasium", "Gymnasium/CartPole-v1"),
}


def canonical(env: AnyEnv) -> str:
    """Return the one spelling of an environment's name, such as Atari/MsPacman for atari/ms_pacman."""
    return spelt(environment(env).name)


def protocol_for(env: AnyEnv) -> Protocol:
    """Return the rules under which an environment is usually played, with what it is made with."""
    made = environment(env)
    backend, _ = parse(made.name)
    return dataclasses.replace(DEFAULTS[backend], kwargs=made.kwargs, wrappers=made.wrappers)


def make(
    env: str,
    protocol: Protocol,
    *,
    seed: int,
    training: bool = True,
    lanes: int | None = None,
    episodes: int | None = None,
) -> VectorEnv:
    """Return games side by side; with `training=False` full games, test levels and seeds that training never sees.

    With `episodes` that many games are played in all, in a fixed order, and lanes without one left stand still.
    """
    backend, game = _matching(env, protocol)
    lanes = protocol.lanes if lanes is None else lanes
    if lanes < 1:
        raise UserError(f"lanes is {lanes}; at least one environment is needed")
    name = canonical(env)
    if backend == "procgen":
        from steadyq.envs.procgen import ProcgenVector

        return ProcgenVector(name, game, protocol, seed=seed, training=training, lanes=lanes, episodes=episodes)
    made: VectorEnv = _adapter(backend).make(
        name, game, protocol, seed=seed, training=training, lanes=lanes, episodes=episodes
    )
    return made


def spec(env: str, protocol: Protocol) -> EnvSpec:
    """Return an environment's shapes and actions without starting to play."""
    backend, game = _matching(env, protocol)
    described: EnvSpec = _adapter(backend).spec(canonical(env), game, protocol, protocol.lanes)
    return described


def render(env: str, protocol: Protocol, seed: int, actions: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield RGB pictures [height, width, 3], both sides even, of the game of this seed (see `VectorEnv.game_seed`).

    One picture before the first action, then one after each. A game is its seed and its actions alone: training and
    evaluation differ in what counts as an end, not in what happens.
    """
    backend, game = _matching(env, protocol)
    yield from _adapter(backend).pictures(game, protocol, seed, actions)


def frames_per_second(env: str, protocol: Protocol) -> float:
    """Return how many of `render`'s pictures make a second of video at a natural speed."""
    backend, game = _matching(env, protocol)
    if backend == "atari":
        return 60 / protocol.frame_skip
    if backend == "gymnasium":
        from steadyq.envs import classic

        return classic.frames_per_second(game, protocol)
    return 10.0 if backend == "minatar" else 15.0


def example() -> str:
    """Return an environment that can be asked for its shapes here, for options that do not depend on them."""
    return "MinAtar/Breakout" if importlib.util.find_spec("minatar") else "CartPole-v1"


def available() -> list[tuple[str, bool, str]]:
    """Try each backend for one step and return (backend, works, version or what to install)."""
    found = []
    for backend, (package, env) in _TRIALS.items():
        try:
            trial = make(env, protocol_for(env), seed=0, lanes=1)
            trial.reset()
            trial.step(np.zeros(1, np.int64))
            trial.close()
            found.append((backend, True, f"{package} {metadata.version(package)}"))
        except Exception as problem:  # whatever it is, the reader wants one line about it and the other backends
            found.append((backend, False, str(problem).splitlines()[0] if str(problem) else repr(problem)))
    return found


def _matching(env: str, protocol: Protocol) -> tuple[Backend, str]:
    backend, game = parse(env)
    if protocol.backend != backend:
        raise UserError(f"protocol {protocol.name} is not for {canonical(env)}; use {DEFAULTS[backend].name}")
    return backend, game


def _adapter(backend: Backend) -> ModuleType:
    return importlib.import_module(f"steadyq.envs.{'classic' if backend == 'gymnasium' else backend}")
