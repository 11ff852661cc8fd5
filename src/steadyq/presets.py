"""Each algorithm at each scale as a short function returning a recipe; every number carries its source.

Sources: [paper] printed in the paper's tables (l.1104 Atari, l.1320 Procgen); [open] the paper is silent, the reading
is argued in docs/architecture.md; [ours] chosen here for a CPU or one small GPU, not swept; [BBF] the authors'
configuration (google-research/bigger_better_faster, `configs/BBF.gin`).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from steadyq import envs
from steadyq.envs import AnyEnv
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


def steady(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """The paper's method: exchanged bootstraps, rewarded action forbidden, return ceiling, spike resets."""
    return _finish(_base("steady", env, scale), changes)


def dqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """DQN: one scalar network, the target network selects and values, uniform replay."""
    return _finish(_single(_base("dqn", env, scale), operator="greedy", estimator="scalar"), changes)


def double_dqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Double DQN: the online network selects, the target network values."""
    return _finish(_single(_base("double_dqn", env, scale), operator="double", estimator="scalar"), changes)


def qr_dqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """QR-DQN: DQN with quantiles of the return instead of its mean."""
    return _finish(_single(_base("qr_dqn", env, scale), operator="greedy", estimator="quantile"), changes)


def c51(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """C51: DQN with probabilities of 51 returns from -10 to 10 [Bellemare et al. 2017] instead of their mean."""
    return _finish(_single(_base("c51", env, scale), operator="greedy", estimator="categorical"), changes)


def maxmin_dqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Maxmin DQN: the least of several networks' values is bootstrapped and acted by, one network learns at a time."""
    base = _single(_base("maxmin_dqn", env, scale), operator="greedy", estimator="scalar")
    recipe = replace(
        base,
        ensemble=EnsembleSection(members=4, act="minimum", learn="one"),  # [Lan et al. 2020] tuned N in 2..9; [ours] 4
        operator=replace(base.operator, kind="maxmin"),
    )
    return _finish(recipe, changes)


def redo(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """ReDo: DQN whose dormant units are redrawn every 1,000 steps [Sokar et al. 2023]."""
    base = _single(_base("redo", env, scale), operator="greedy", estimator="scalar")
    regulation = RegulationSection(
        trigger="dormant",
        intervention="recycle",
        dormant=0.1,  # [Sokar et al. 2023] at replay ratio 1
        every=1000,
        target="keep",  # theirs follows by its own copies
    )
    return _finish(replace(base, regulation=regulation), changes)


def swift(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """The flagship: the paper's ensemble and exchange under BBF's schedule, most score in ten GPU-minutes a game."""
    recipe = _cycled(_base("swift", env, scale))
    # Adam as in `steady`: BBF's epsilon 1.5e-4 is larger than the gradients of a loss that is a mean over pairs of
    # quantiles, and hardly anything is learned; its weight decay did not pay (results/swift-settling).
    return _finish(replace(recipe, operator=OperatorSection(forbid="none", ceiling="none")), changes)


def bbf(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """BBF without its self-predictive loss: one wide categorical network, double, reset and annealed in cycles."""
    base = _cycled(_single(_base("bbf", env, scale), operator="double", estimator="categorical"))
    image = base.network.kind == "resnet"
    wide = NetworkSection(kind="impala", width=4, hidden=(2048,), renormalise=True)  # [BBF]
    recipe = replace(
        base,
        network=replace(wide if image else base.network, dueling=True, initial="xavier"),  # [BBF]
        replay=replace(base.replay, alpha=0.5, beta=0.5, epsilon=1e-10),  # [BBF] p = sqrt(loss), weights p^-1/2
        optim=replace(base.optim, epsilon=1.5e-4, decay=0.1, clip=math.inf),  # [BBF] AdamW, no clipping
    )
    return _finish(recipe, changes)


def _cycled(base: Recipe) -> Recipe:
    """BBF's cycles: resets, and n-step and discount annealed after each; augmentation; the target networks act."""
    family, lanes = base.protocol.name.split("-")[0], base.protocol.lanes
    atari, ratio = family == "atari", 1 if family == "procgen" else 2  # [BBF] 2
    cycle = max(1, base.steps // (lanes * base.replay.every) * ratio // 5)  # [BBF] 40,000 of 200,000 updates
    annealed = f"exponential {max(1, cycle // 4)} updates"  # [BBF] over 10,000 after each reset
    return replace(
        base,
        regulation=RegulationSection(
            trigger="periodic",
            intervention="shrink_perturb",
            period=cycle,
            last=3 * cycle,  # [BBF] three resets, then two cycles without
            encoder=0.5,  # [BBF]
            head=1.0,  # [BBF]
            target="own",  # [BBF] a draw of its own
        ),
        replay=replace(
            base.replay,
            ratio=ratio,
            n_step=f"10 -> 3 {annealed}",  # [BBF]
            shift=4 if atari else 0,  # [BBF]
            intensity=0.05 if atari else 0.0,  # [BBF]
            warmup=max(base.replay.warmup, 10 * lanes),
        ),
        optim=replace(base.optim, gamma=f"0.97 -> 0.997 {annealed}"),  # [BBF]
        explore=replace(
            base.explore,
            epsilon="1 -> 0 linear 2001 steps after 2000" if atari else base.explore.epsilon,  # [BBF]
            act_with="target",  # [BBF]
        ),
    )


PRESETS: dict[str, Callable[..., Recipe]] = {
    "steady": steady,
    "dqn": dqn,
    "double_dqn": double_dqn,
    "qr_dqn": qr_dqn,
    "c51": c51,
    "maxmin_dqn": maxmin_dqn,
    "redo": redo,
    "swift": swift,
    "bbf": bbf,
}


def recipe_for(preset: str, env: AnyEnv, scale: str = "") -> Recipe:
    """Return a preset by name; an unknown one raises naming the nearest."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}: {nearest(preset, PRESETS)}")
    return PRESETS[preset](env, scale)


def _base(preset: str, env: AnyEnv, scale: str) -> Recipe:
    """The paper's agent on the given environment, before a preset takes parts away."""
    protocol, env = envs.protocol_for(env), envs.canonical(env)
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
            explore=ExploreSection(f"1 -> 0.05 linear {5_000_000 if paper else 200_000} steps"),  # [paper] l.1337-1339
            record=RecordSection(every=10_000, checkpoint_every=500_000 if paper else 100_000),
            monitor=MonitorSection(every=128_000 if paper else 64_000),  # [ours] 1,000 or 500 updates
        )
    spec = envs.spec(env, protocol)
    image = len(spec.frame_shape) == 3
    minatar = family == "minatar"
    images: Literal["cnn", "resnet"] = "cnn" if tiny else "resnet"  # [ours] a resnet takes seconds an update on a CPU
    kind: Literal["resnet", "minatar", "cnn", "mlp"] = "minatar" if minatar else images if image else "mlp"
    hidden = (128,) if minatar else (512,) if kind == "cnn" else (128, 128)
    recipe = replace(
        recipe,
        network=recipe.network if kind == "resnet" else NetworkSection(kind=kind, hidden=hidden),
        evaluation=EvaluationSection(episodes=100 if minatar else 20),
    )
    if paper:
        return recipe
    return replace(
        recipe,
        steps=100_000 if minatar else 50_000,
        replay=replace(recipe.replay, warmup=1000),
        optim=OptimSection(rate=5e-4 if minatar else 1e-3),  # [ours] a guess for small nets, not swept
        explore=ExploreSection(f"1 -> 0.01 linear {10_000 if minatar else 5000} steps"),
    )


def _single(
    recipe: Recipe,
    *,
    operator: Literal["greedy", "double"],
    estimator: Literal["quantile", "scalar", "categorical"],
) -> Recipe:
    """Take away ensemble, exchange, constraint, ceiling, resets and priorities; network and schedules stay."""
    return replace(
        recipe,
        ensemble=EnsembleSection(members=1),
        operator=OperatorSection(kind=operator, exchange="none", forbid="none", ceiling="none"),
        estimator=recipe.estimator if estimator == "quantile" else EstimatorSection(kind=estimator),
        regulation=RegulationSection(intervention="none"),
        replay=replace(recipe.replay, alpha=0.0),
    )


def _finish(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Apply keyword overrides: `steady("CartPole-v1", seed=3, **{"replay.ratio": 2})`."""
    return recipe.override(changes) if changes else recipe
