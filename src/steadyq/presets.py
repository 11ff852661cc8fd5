"""Each algorithm at each scale as a short function returning a recipe; every number carries its source.

Sources: [paper] printed in the paper's tables (l.1104 Atari, l.1320 Procgen); [open] the paper is silent, the reading
is argued in docs/architecture.md; [ours] chosen here for a CPU or one small GPU, not swept; [BBF] the authors'
configuration (google-research/bigger_better_faster, `configs/BBF.gin`), [SR-SPR] and [DrQ] those beside it; [REM]
google-research/batch_rl, `online/configs/rem.gin`; [TQC] SamsungLabs/tqc_pytorch; [SUNRISE] pokaxpoka/sunrise,
`Atari_Rainbow`; [bsuite] google-deepmind/bsuite, `boot_dqn`; [Rainbow] Kaixhin/Rainbow, `main.py`, [DER] its README's
options for data-efficient Rainbow; [SPR] mila-iqia/spr, `scripts/run.py` and `src/utils.py`; [CURL]
aravindsrinivas/curl_rainbow, `main.py` and `agent.py`. A name with a year is the paper itself.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from typing import Any, Literal

from steadyq import envs
from steadyq.envs import AnyEnv
from steadyq.errors import UserError, nearest
from steadyq.fields import flatten, read_toml
from steadyq.recipe import (
    AuxiliarySection,
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


def averaged_dqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Averaged DQN: DQN whose target is the mean of the last ten copies of the network."""
    base = _single(_base("averaged_dqn", env, scale), operator="greedy", estimator="scalar")
    recipe = replace(
        base,
        operator=replace(base.operator, snapshots=10),  # [Anschel et al. 2017] K = 10
        optim=replace(base.optim, hard_copy_every=200),  # [ours] as long as the other presets' targets look back, 1/tau
    )
    return _finish(recipe, changes)


def bootstrapped_dqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Bootstrapped DQN: Double DQN in each of ten networks with priors, one of which acts for a whole game."""
    base = _single(_base("bootstrapped_dqn", env, scale), operator="double", estimator="scalar")
    ensemble = EnsembleSection(
        members=10,  # [Osband et al. 2016]; [bsuite] 20
        act="member",  # [Osband et al. 2016]
        learn="all",  # [bsuite] mask_prob 1
        prior=5.0,  # [bsuite] prior_scale
    )
    return _finish(replace(base, ensemble=ensemble), changes)


def ebql(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """EBQL: the one network that learns selects, all others together value."""
    base = _single(_base("ebql", env, scale), operator="double", estimator="scalar")
    recipe = replace(
        base,
        ensemble=EnsembleSection(members=5, learn="one"),  # [ours] 5; [Peer et al. 2021] one learns at a time
        operator=replace(base.operator, kind="ebql"),
    )
    return _finish(recipe, changes)


def rem(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """REM: DQN of a mixture of networks drawn anew for each update, one of which acts for a whole game."""
    base = _single(_base("rem", env, scale), operator="greedy", estimator="scalar")
    recipe = replace(
        base,
        ensemble=EnsembleSection(members=4, act="member"),  # [REM] num_networks, use_deep_exploration
        operator=replace(base.operator, kind="rem"),
    )
    return _finish(recipe, changes)


def iqn(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """IQN: QR-DQN whose network is asked for quantiles drawn anew for each sample."""
    base = _single(_base("iqn", env, scale), operator="greedy", estimator="implicit")
    estimator = EstimatorSection(
        kind="implicit",
        samples=64,  # [Dabney et al. 2018b] N = N' = 64
        fixed=32,  # [Dabney et al. 2018b] K = 32, there drawn too
        cosines=64,  # [Dabney et al. 2018b]
        reduction="sum",  # [Dabney et al. 2018b] over tau
    )
    return _finish(replace(base, estimator=estimator), changes)


def munchausen(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Munchausen DQN: soft values, and a reward for the log of the action's own odds."""
    base = _single(_base("munchausen", env, scale), operator="greedy", estimator="scalar")
    operator = replace(
        base.operator,
        kind="munchausen",
        temperature=0.03,  # [Vieillard et al. 2020]
        scale=0.9,  # [Vieillard et al. 2020] alpha
        least=-1.0,  # [Vieillard et al. 2020] l0
    )
    return _finish(replace(base, operator=operator), changes)


def tqc_discrete(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """TQC's critics with a choice of actions: all networks' quantiles are pooled, the largest left out."""
    base = _single(_base("tqc_discrete", env, scale), operator="greedy", estimator="quantile")
    recipe = replace(
        base,
        ensemble=EnsembleSection(members=5),  # [TQC] n_nets
        operator=replace(base.operator, kind="tqc", drop=2),  # [TQC] top_quantiles_to_drop_per_net
        estimator=replace(base.estimator, quantiles=25),  # [TQC] n_quantiles
    )
    return _finish(recipe, changes)


def sunrise(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """SUNRISE: five networks of data-efficient Rainbow; what they disagree on weighs less, and is tried more."""
    ensemble = EnsembleSection(
        members=5,  # [SUNRISE] num-ensemble
        act="optimistic",  # [SUNRISE] ucb-infer
        bonus=1.0,  # [ours] its script takes the number as an argument
        certainty=10.0,  # [ours] the same, temperature
    )
    base = der(env, scale)  # [SUNRISE] `scripts/run_sunrise.sh` has all of its numbers
    return _finish(replace(base, preset="sunrise", ensemble=ensemble), changes)


def rainbow(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Rainbow: C51 that is double, dueling, prioritised, three-step, and explores by noise in its weights."""
    base = _single(_base("rainbow", env, scale), operator="double", estimator="categorical")
    nature = NetworkSection(kind="cnn", hidden=(512,))  # [Rainbow] canonical, hidden-size
    base = _noisy(base, nature, spread=0.5, n=3)  # [Hessel et al. 2018] sigma_0, n
    atari = base.protocol.name.startswith("atari")
    rate = 6.25e-5 if atari else base.optim.rate  # [Hessel et al. 2018]
    return _finish(replace(base, optim=replace(base.optim, rate=rate)), changes)


def der(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """Data-efficient Rainbow: Rainbow with a smaller network, 20-step returns and an update a step."""
    base = _single(_base("der", env, scale), operator="double", estimator="categorical")
    small = NetworkSection(kind="der", hidden=(512,))  # [DER] data-efficient; hidden-size 256 for each of two streams
    return _finish(_noisy(base, small, spread=0.1, n=20), changes)  # [DER] noisy-std, multi-step


def curl(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """CURL: data-efficient Rainbow whose encoder also learns to tell states apart by two views of each."""
    base = der(env, scale)
    auxiliary = AuxiliarySection(
        kind="curl",
        weight=1.0,  # [CURL] coeff, there 0.01 on four games
        units=128,  # [CURL]
        momentum=0.999,  # [CURL]
        shift=4 if base.network.kind == "der" else 0,  # [CURL] a crop of 80 pixels, padded by 4, another of 84
    )
    return _finish(replace(base, preset="curl", auxiliary=auxiliary), changes)


def spr(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """SPR: Rainbow that predicts its own latents, from augmented images, without a target network."""
    base = _single(_base("spr", env, scale), operator="double", estimator="categorical")
    nature = NetworkSection(kind="cnn", hidden=(512,), renormalise=True)  # [SPR] dqn-hidden-size 256 of two streams
    base = _noisy(base, nature, spread=0.5, n=10)  # [SPR] noisy-nets-std, n-step
    atari = base.protocol.name.startswith("atari")
    recipe = replace(
        base,
        auxiliary=AuxiliarySection(kind="spr", steps=5, weight=5.0),  # [SPR] jumps, model-spr-weight
        replay=replace(
            base.replay,
            ratio=1 if base.protocol.name.startswith("procgen") else 2,  # [SPR] replay-ratio 64 of batches of 32
            shift=4 if atari else 0,  # [SPR]
            intensity=0.05 if atari else 0.0,  # [SPR]
            warmup=2000 if atari else base.replay.warmup,  # [SPR] min-steps-learn
        ),
        optim=replace(base.optim, hard_copy_every=1),  # [SPR] target-update-interval 1, momentum-tau 1
        explore=replace(
            base.explore,
            epsilon="1 -> 0 linear 2001 steps" if atari else base.explore.epsilon,  # [SPR] eps-steps
        ),
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
    recipe = replace(
        recipe,
        operator=OperatorSection(forbid="none", ceiling="none"),
        replay=replace(recipe.replay, alpha=0.0),  # [BBF] in effect (docs/presets.md)
    )
    if recipe.protocol.name.startswith("atari"):
        # [ours] at half the resolution networks of twice the width cost as much and learn faster (results/swift-parts)
        width = 4 if recipe.scale == "small" else recipe.network.scale
        network = replace(recipe.network, scale=width, strides=(2, 2, 2, 2), dueling=True)  # [BBF] dueling
        # Rewards are signs there, so that returns lie within its grid; elsewhere they need not, and quantiles stay.
        recipe = replace(recipe, network=network, estimator=EstimatorSection(kind="categorical"))  # [BBF]
    return _finish(recipe, changes)


def bbf(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """BBF: one wide categorical network, double, a self-predictive loss, reset and annealed in cycles."""
    # [BBF] says prioritised, but its code sets two priorities of 64 samples: it samples uniformly (docs/presets.md).
    base = _cycled(_single(_base("bbf", env, scale), operator="double", estimator="categorical"))
    image = base.network.kind == "resnet"
    wide = NetworkSection(kind="impala", width=4, hidden=(2048,), renormalise=True)  # [BBF]
    recipe = replace(
        base,
        network=replace(wide if image else base.network, dueling=True, initial="xavier"),  # [BBF]
        auxiliary=AuxiliarySection(kind="spr", steps=5, weight=5.0),  # [BBF] jumps, spr_weight
        optim=replace(base.optim, epsilon=1.5e-4, decay=0.1, clip=math.inf),  # [BBF] AdamW, no clipping
    )
    return _finish(recipe, changes)


def sr_spr(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """SR-SPR: SPR without noise at a high replay ratio, its encoder shrunk and its head redrawn in cycles."""
    base = bbf(env, scale)
    atari = base.protocol.name.startswith("atari")
    ratio = 8 if atari else base.replay.ratio  # [SR-SPR] replay_ratio 256 of batches of 32; its paper 16
    cycle = max(1, base.steps // (base.protocol.lanes * base.replay.every) * ratio // 20)  # [SR-SPR] 40,000 of 800,000
    small = NetworkSection(kind="cnn", hidden=(512,), renormalise=True, dueling=True, initial="xavier")  # [SR-SPR]
    recipe = replace(
        base,
        preset="sr_spr",
        network=small if atari else base.network,  # [SR-SPR] pads its convolutions
        regulation=replace(base.regulation, period=cycle, last=0, encoder=0.2),  # [SR-SPR] shrink_factor 0.8, no end
        replay=replace(base.replay, ratio=ratio, n_step=10),  # [SR-SPR] update_horizon's default
        optim=replace(base.optim, gamma=0.99, decay=0.0),  # [SR-SPR]
    )
    return _finish(recipe, changes)


def drq(env: AnyEnv, scale: str = "", **changes: Any) -> Recipe:
    """DrQ(eps): Double DQN with dueling outputs, ten-step returns and images shifted at random, no target network."""
    base = _unfired(_single(_base("drq", env, scale), operator="double", estimator="scalar"))
    atari = base.protocol.name.startswith("atari")
    # Drawn as PyTorch draws, weights give gradients far below Adam's epsilon and hardly move (docs/presets.md).
    small = NetworkSection(kind="cnn", hidden=(512,), initial="xavier")  # [DrQ]
    recipe = replace(
        base,
        network=replace(small if atari else base.network, dueling=True),  # [DrQ]
        replay=replace(
            base.replay,
            ratio=1 if atari else base.replay.ratio,  # [DrQ] replay_ratio 32 of batches of 32
            n_step=10,  # [DrQ] update_horizon
            shift=4 if atari else 0,  # [DrQ]
            intensity=0.05 if atari else 0.0,  # [DrQ] as its code augments
            warmup=1600 if atari else max(base.replay.warmup, 10 * base.protocol.lanes),  # [DrQ] min_replay_history
        ),
        optim=replace(base.optim, epsilon=1.5e-4, clip=math.inf, hard_copy_every=1),  # [DrQ] target_update_period 1
        explore=replace(
            base.explore,
            epsilon="1 -> 0.01 linear 2500 steps after 1600" if atari else base.explore.epsilon,  # [DrQ]
        ),
    )
    return _finish(recipe, changes)


def _noisy(base: Recipe, network: NetworkSection, *, spread: float, n: int) -> Recipe:
    """What Rainbow and its descendants share beside the axes; on Atari also a network and a pace of their own."""
    base = _unfired(base)
    atari, lanes = base.protocol.name.startswith("atari"), base.protocol.lanes
    return replace(
        base,
        network=replace(network if atari else base.network, dueling=True, noisy=spread),
        replay=replace(
            base.replay,
            n_step=n,
            alpha=0.5,  # [Rainbow] priority-exponent
            beta=0.4,  # [Rainbow] priority-weight, there raised to 1
            ratio=1 if atari else base.replay.ratio,  # [DER] replay-frequency; [Rainbow] an update every 4 steps
            warmup=1600 if atari else max(base.replay.warmup, n * lanes),  # [DER] learn-start; [Rainbow] 20,000
        ),
        optim=replace(
            base.optim,
            epsilon=1.5e-4,  # [Rainbow] adam-eps
            clip=10.0,  # [Rainbow] norm-clip
            hard_copy_every=2000 if atari else 0,  # [DER] target-update; [Rainbow] 8,000 steps, 2,000 updates
        ),
        explore=replace(base.explore, epsilon=0.0 if atari else base.explore.epsilon),  # [Rainbow] noise explores
    )


def _unfired(base: Recipe) -> Recipe:
    """Atari as Dopamine plays it, and with it agents from Rainbow to BBF: no FIRE pressed, every lost life counts."""
    if not base.protocol.name.startswith("atari"):
        return base
    return replace(base, protocol=replace(base.protocol, fire_reset=False, last_life=True))


def _cycled(base: Recipe) -> Recipe:
    """BBF's cycles: resets, and n-step and discount annealed after each; augmentation; the target networks act."""
    base = _unfired(base)
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
    "iqn": iqn,
    "munchausen": munchausen,
    "averaged_dqn": averaged_dqn,
    "maxmin_dqn": maxmin_dqn,
    "ebql": ebql,
    "rem": rem,
    "tqc_discrete": tqc_discrete,
    "bootstrapped_dqn": bootstrapped_dqn,
    "rainbow": rainbow,
    "der": der,
    "sunrise": sunrise,
    "curl": curl,
    "redo": redo,
    "drq": drq,
    "spr": spr,
    "sr_spr": sr_spr,
    "swift": swift,
    "bbf": bbf,
}


AXES = ("estimator", "operator", "members", "regulation", "the rest")


def axes(recipe: Recipe) -> tuple[str, ...]:
    """A recipe's point on the axes in words, one for each of `AXES`; defaults that do nothing are left out."""
    operator, estimator, ensemble = recipe.operator, recipe.estimator, recipe.ensemble
    sizes = {
        "quantile": f"{estimator.quantiles} quantiles",
        "categorical": f"{estimator.atoms} returns, {estimator.low:g} to {estimator.high:g}",
        "hl_gauss": f"{estimator.atoms} intervals, {estimator.low:g} to {estimator.high:g}",
        "implicit": f"{estimator.samples} drawn",
    }
    represented = [estimator.kind, *([sizes[estimator.kind]] if estimator.kind in sizes else [])]
    bootstrap = [
        operator.kind,
        *([f"exchange {operator.exchange}"] if operator.exchange != "none" else []),
        *([f"{operator.forbid} action forbidden"] if operator.forbid != "none" else []),
        *(["ceiling"] if operator.ceiling != "none" else []),
        *([f"mean of {operator.snapshots} copies"] if operator.snapshots > 1 else []),
        *([f"of {operator.subset} drawn"] if operator.subset else []),
        *([f"{operator.drop} a member dropped"] if operator.kind == "tqc" else []),
        *([f"temperature {operator.temperature:g}"] if operator.kind in ("softmax", "munchausen") else []),
    ]
    whose = [
        str(ensemble.members),
        *([f"{ensemble.act} acts"] if ensemble.act != "mean" else []),
        *([f"{ensemble.learn} learns"] if ensemble.learn != "all" else []),
        *([f"prior {ensemble.prior:g}"] if ensemble.prior else []),
        *([f"certainty {ensemble.certainty:g}"] if ensemble.certainty else []),
    ]
    rules = recipe.regulation
    regulated = [
        *([f"{rules.trigger}: {rules.intervention}"] if rules.intervention != "none" else []),
        *([f"pull {rules.pull:g}"] if rules.pull else []),
        *([f"parseval {rules.parseval:g}"] if rules.parseval else []),
        *(["project"] if rules.project else []),
        *(["spectral"] if rules.spectral else []),
    ]
    replay = recipe.replay
    rest = [
        "prioritised" if replay.alpha else "uniform",
        *([f"n {str(replay.n_step).split(' exp')[0]}"] if replay.n_step != 1 else []),
        *([f"{replay.ratio} updates a step"] if replay.ratio > 1 else []),
        *(["augmented"] if replay.shift or replay.intensity else []),
        *([recipe.auxiliary.kind] if recipe.auxiliary.kind != "none" else []),
        *([f"{recipe.network.kind} network"] if recipe.network.kind != "resnet" else []),
        *(["dueling"] if recipe.network.dueling else []),
        *([recipe.network.activation] if recipe.network.activation != "relu" else []),
        *([f"noisy {recipe.network.noisy:g}"] if recipe.network.noisy else []),
        *([f"target copied every {recipe.optim.hard_copy_every}"] if recipe.optim.hard_copy_every else []),
        *(["target acts"] if recipe.explore.act_with == "target" else []),
    ]
    return tuple(", ".join(words) or "none" for words in (represented, bootstrap, whose, regulated, rest))


def recipe_for(preset: str, env: AnyEnv, scale: str = "") -> Recipe:
    """Return a preset by name; an unknown one raises naming the nearest."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}: {nearest(preset, PRESETS)}")
    return PRESETS[preset](env, scale)


HIDDEN = {"minatar": (128,), "cnn": (512,), "joined": (256, 256), "mlp": (128, 128)}
"""Widths of the network that is chosen for what an environment shows. [ours]"""

TUNED = resources.files("steadyq") / "tuned"
"""Recipes that were searched for, a file for each environment: its preset, its steps, and what it changes."""


def tuned(env: AnyEnv, **changes: Any) -> Recipe:
    """The recipe that was tuned for an environment (docs/tuned.md); one that has none raises naming those that have."""
    name = envs.canonical(env)
    file = TUNED / f"{name.replace('/', '-')}.toml"
    if not file.is_file():
        known = ", ".join(each.removeprefix("Gymnasium/") for each in tuned_environments())
        raise UserError(f"no recipe was tuned for {name}: there are {known}")
    table = read_toml(file.read_text(encoding="utf-8"), f"{file} is damaged")
    options = {"steps": table["steps"], **flatten(table["options"])}
    return _finish(recipe_for(table["preset"], env), {**options, **changes})


def tuned_environments() -> list[str]:
    """Environments that have a tuned recipe."""
    found = [read_toml(file.read_text(encoding="utf-8"), str(file))["env"] for file in TUNED.iterdir()]
    return sorted(found)


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
    flat: Literal["joined", "mlp"] = "mlp" if spec.parts is None else "joined"
    kind: Literal["resnet", "minatar", "cnn", "joined", "mlp"] = "minatar" if minatar else images if image else flat
    recipe = replace(
        recipe,
        network=recipe.network if kind == "resnet" else NetworkSection(kind=kind, hidden=HIDDEN[kind]),
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
    estimator: Literal["quantile", "scalar", "categorical", "implicit"],
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
