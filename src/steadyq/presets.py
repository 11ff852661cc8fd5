"""Each algorithm at each scale as a short function returning a recipe; every number carries its source.

Sources: [paper] printed in the paper's tables (l.1104 Atari, l.1320 Procgen); [open] the paper is silent, the reading
is argued in docs/architecture.md; [ours] chosen here for a CPU or one small GPU, not swept.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from steadyq import envs
from steadyq.errors import UserError, nearest
from steadyq.recipe import (
    EnsembleSection,
    EstimatorSection,
    EvaluationSection,
    ExploreSection,
    MonitorSection,
    NetworkSection,
    OperatorSection,
    OptimSection,
    Recipe,
    RecordSection,
    RegulationSection,
    ReplaySection,
)

Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")


def steady(env: str, scale: str = "", **changes: Any) -> Recipe:
    """The paper's method: exchanged bootstraps, rewarded action forbidden, return ceiling, spike resets."""
    return _finish(_base("steady", env, scale), changes)


def dqn(env: str, scale: str = "", **changes: Any) -> Recipe:
    """DQN: one scalar network, the target network selects and values, uniform replay."""
    return _finish(_single(_base("dqn", env, scale), operator="greedy", estimator="scalar"), changes)


def double_dqn(env: str, scale: str = "", **changes: Any) -> Recipe:
    """Double DQN: the online network selects, the target network values."""
    return _finish(_single(_base("double_dqn", env, scale), operator="double", estimator="scalar"), changes)


def qr_dqn(env: str, scale: str = "", **changes: Any) -> Recipe:
    """QR-DQN: DQN with quantiles of the return instead of its mean."""
    return _finish(_single(_base("qr_dqn", env, scale), operator="greedy", estimator="quantile"), changes)


PRESETS: dict[str, Callable[..., Recipe]] = {
    "steady": steady,
    "dqn": dqn,
    "double_dqn": double_dqn,
    "qr_dqn": qr_dqn,
}


def recipe_for(preset: str, env: str, scale: str = "") -> Recipe:
    """Return a preset by name; an unknown one raises naming the nearest."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}: {nearest(preset, PRESETS)}")
    return PRESETS[preset](env, scale)


def _base(preset: str, env: str, scale: str) -> Recipe:
    """The paper's agent on the given environment, before a preset takes parts away."""
    env = envs.canonical(env)
    protocol = envs.protocol_for(env)
    family = protocol.name.split("-")[0]
    scale = scale or ("small" if family in ("atari", "procgen") else "tiny")
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}: {nearest(scale, SCALES)}")

    paper, tiny = scale == "paper", scale == "tiny"
    recipe = Recipe(
        env=env,
        protocol=protocol,
        preset=preset,
        scale=scale,
        steps=100_000,  # [paper] l.1112
        network=NetworkSection(scale=4 if paper else 1 if tiny else 2),  # [paper] s=4 l.837; [ours] below it
        ensemble=EnsembleSection(members=16 if paper else 4),  # [paper] l.1141; [ours]
        estimator=EstimatorSection(quantiles=21 if tiny else 51),  # [ours]; [paper] l.1140
        replay=ReplaySection(ratio=4 if paper else 1),  # [paper] l.1122; [ours]
    )
    if family == "atari":
        # Dopamine and BBF evaluate at 0.001; [open] the paper is silent, audit G8 reads 0
        return replace(recipe, evaluation=EvaluationSection(epsilon=0.0 if paper else 0.001))
    if family == "procgen":
        return replace(
            recipe,
            steps=25_000_000 if paper else 1_000_000,  # [paper] l.1325; [ours]
            network=replace(recipe.network, strides=(2, 2, 2, 2)),  # [open] l.1269: 64 -> 32 -> 16 -> 8 -> 4
            replay=ReplaySection(
                batch=256,  # [paper] l.1329
                ratio=1,  # [open] one update per step of all 128 lanes
                alpha=0.0,  # [paper] l.1304 sampled uniformly
            ),
            explore=ExploreSection(end=0.05, decay_steps=5_000_000 if paper else 200_000),  # [paper] l.1337-1339
            record=RecordSection(every=10_000, checkpoint_every=500_000 if paper else 100_000),
            monitor=MonitorSection(every=128_000 if paper else 64_000),  # [ours] 1,000 or 500 updates
        )
    spec = envs.spec(env, protocol)
    image = len(spec.frame_shape) == 3
    minatar = family == "minatar"
    kind: Literal["resnet", "minatar", "mlp"] = "minatar" if minatar else "resnet" if image else "mlp"
    recipe = replace(
        recipe,
        network=replace(recipe.network, kind=kind, hidden=(128,) if minatar else (128, 128)),
        evaluation=EvaluationSection(episodes=100 if minatar else 20),
    )
    if paper:
        return recipe
    return replace(
        recipe,
        steps=100_000 if minatar else 50_000,
        replay=replace(recipe.replay, warmup=1000),
        optim=OptimSection(rate=5e-4 if minatar else 1e-3),  # [ours] a guess for small nets, not swept
        explore=ExploreSection(decay_steps=10_000 if minatar else 5000),
    )


def _single(
    recipe: Recipe, *, operator: Literal["greedy", "double"], estimator: Literal["quantile", "scalar"]
) -> Recipe:
    """Take away ensemble, exchange, constraint, ceiling, resets and priorities; network and schedules stay."""
    return replace(
        recipe,
        ensemble=EnsembleSection(members=1),
        operator=OperatorSection(kind=operator, exchange="none", forbid="none", ceiling="none"),
        estimator=replace(recipe.estimator, kind=estimator),
        regulation=RegulationSection(intervention="none"),
        replay=replace(recipe.replay, alpha=0.0),
    )


def _finish(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Apply keyword overrides: `steady("CartPole-v1", seed=3, **{"replay.ratio": 2})`."""
    return recipe.override(changes) if changes else recipe
