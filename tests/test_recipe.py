"""Recipes: TOML round trips, messages for what cannot work, and the paper's hyper-parameter tables."""

import dataclasses
import inspect
import re
import tarfile
import tomllib
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyq import UserError, cli, envs, presets
from steadyq.cli import reading
from steadyq.cli.options import with_kinds
from steadyq.fields import flatten, has
from steadyq.paper.settings import hyperparameter_rows
from steadyq.presets import PRESETS, SCALES, recipe_for
from steadyq.recipe import (
    LAYOUT,
    EstimatorSection,
    ExploreSection,
    OperatorSection,
    OptimSection,
    Recipe,
    ReplaySection,
    Upgraded,
    switches,
)
from steadyq.schedule import Schedule

BASE = presets.steady("CartPole-v1")
ENVS = ("CartPole-v1", "MinAtar/Breakout", "Atari/Breakout", "Procgen/CoinRun")


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_preset_comes_back_from_its_toml(preset: str, env: str, scale: str) -> None:
    recipe = recipe_for(preset, env, scale)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.differences(Recipe.from_toml(recipe.to_toml())) == []
    assert recipe.preset == preset
    assert recipe.scale == scale


def test_every_field_survives_the_round_trip_with_another_value() -> None:
    changes = {
        "network.hidden": (3, 4, 5),
        "optim.epsilon": 1.5e-4,
        "optim.gamma": 0.1 + 0.2,  # a float that needs all its digits
        "record.keep_replay": True,
        "record.tensorboard": False,
        "estimator.reduction": "sum",
        "protocol.max_frames": 77,
        "seed": 2**31 - 1,
        "compute.device": "cpu",
    }
    recipe = BASE.override(changes)
    again = Recipe.from_toml(recipe.to_toml())
    assert again == recipe
    for name, value in changes.items():
        assert flatten(again.to_dict())[name] == value
    strided = presets.steady("Atari/Alien", **{"network.strides": (2, 1, 2, 1)})
    assert Recipe.from_toml(strided.to_toml()).network.strides == (2, 1, 2, 1)


def test_a_field_can_be_given_as_text_as_the_command_line_does() -> None:
    recipe = BASE.override(
        {"replay.capacity": "50_000", "optim.rate": "1e-3", "network.hidden": "32, 16", "record.tensorboard": "false"}
    )
    assert recipe.replay.capacity == 50_000
    assert recipe.optim.rate == 1e-3
    assert recipe.network.hidden == (32, 16)
    assert recipe.record.tensorboard is False


OUT_OF_RANGE = [
    ("steps", 0, "steps must be at least 1, got 0"),
    ("seed", -1, "seed must be between 0 and 2147483647, got -1"),
    ("network.scale", 0, "network.scale must be between 1 and 16, got 0"),
    ("network.head_multiple", 0, "network.head_multiple must be at least 1, got 0"),
    ("network.channels", 0, "network.channels must be at least 1, got 0"),
    ("network.hidden", (), "network.hidden needs at least one layer, for example 128"),
    ("network.hidden", (8, 0), "network.hidden must be at least 1, got 0"),
    ("network.strides", (1, 2, 3, 2), "network.strides must be between 1 and 2, got 3"),
    ("network.strides", (1, 2, 2), "network.strides needs 4 whole numbers, got (1, 2, 2)"),
    ("ensemble.members", 0, "ensemble.members must be between 1 and 256, got 0"),
    ("auxiliary.steps", 0, "auxiliary.steps must be between 1 and 100, got 0"),
    ("auxiliary.weight", -1.0, "auxiliary.weight must be at least 0, got -1"),
    ("estimator.quantiles", 0, "estimator.quantiles must be between 1 and 1000, got 0"),
    ("estimator.kappa", 0, "estimator.kappa must be at least 1e-06, got 0"),
    ("regulation.threshold", 0.5, "regulation.threshold must be at least 1, got 0.5"),
    ("regulation.quantile", 1.5, "regulation.quantile must be between 0.01 and 1, got 1.5"),
    ("regulation.every", 0, "regulation.every must be at least 1, got 0"),
    ("replay.batch", 0, "replay.batch must be at least 1, got 0"),
    ("replay.ratio", 0, "replay.ratio must be between 1 and 1024, got 0"),
    ("replay.every", 0, "replay.every must be at least 1, got 0"),
    ("replay.n_step", 0, "replay.n_step must be between 1 and 100, got 0"),
    ("replay.overlap", True, "replay.overlap needs a replay.n_step of 2 or more, got 1"),
    ("replay.alpha", -0.1, "replay.alpha must be between 0 and 2, got -0.1"),
    ("replay.beta", 3, "replay.beta must be between 0 and 2, got 3"),
    ("replay.epsilon", 0, "replay.epsilon must be at least 1e-12, got 0"),
    ("replay.capacity", 63, "replay.capacity must be at least 64, got 63"),
    ("replay.warmup", 31, "replay.warmup must be between 32 and 100000, got 31"),
    ("replay.warmup", 100_001, "replay.warmup must be between 32 and 100000, got 100001"),
    ("optim.gamma", 1.01, "optim.gamma must be between 0 and 1, got 1.01"),
    ("optim.rate", 2, "optim.rate must be between 0 and 1, got 2"),
    ("optim.beta1", 1, "optim.beta1 must be between 0 and 0.99999, got 1"),
    ("optim.beta2", 1, "optim.beta2 must be between 0 and 0.999999, got 1"),
    ("optim.epsilon", -1, "optim.epsilon must be at least 0, got -1"),
    ("optim.clip", 0, "optim.clip must be at least 1e-09, got 0"),
    ("optim.tau", 1.5, "optim.tau must be between 0 and 1, got 1.5"),
    ("optim.hard_copy_every", -1, "optim.hard_copy_every must be at least 0, got -1"),
    ("explore.epsilon", 1.5, "explore.epsilon must be between 0 and 1, got 1.5"),
    ("explore.epsilon", "1 -> -0.5 linear 9 steps", "explore.epsilon must be between 0 and 1, got -0.5"),
    ("replay.n_step", "3 -> 0 linear 9 steps", "replay.n_step must be between 1 and 100, got 0"),
    ("evaluation.episodes", 0, "evaluation.episodes must be at least 1, got 0"),
    ("evaluation.random_episodes", 0, "evaluation.random_episodes must be at least 1, got 0"),
    ("monitor.every", -1, "monitor.every must be at least 0, got -1"),
    ("monitor.batch", 1, "monitor.batch must be between 2 and 4096, got 1"),
    ("record.every", 0, "record.every must be at least 1, got 0"),
    ("record.checkpoint_every", 0, "record.checkpoint_every must be at least 1, got 0"),
    ("compute.threads", -1, "compute.threads must be between 0 and 1024, got -1"),
    ("protocol.lanes", 0, "protocol.lanes is 0; it must be between 1 and 4096"),
    ("optim.gamma", float("nan"), "optim.gamma must be between 0 and 1, got nan"),
]


@pytest.mark.parametrize(("name", "value", "message"), OUT_OF_RANGE, ids=[f"{n}={v}" for n, v, _ in OUT_OF_RANGE])
def test_a_value_out_of_range_is_named_with_its_range(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        BASE.override({name: value})
    assert str(error.value) == message


def test_every_section_with_a_range_is_covered_above() -> None:
    sections = {name for name, value in vars(BASE).items() if dataclasses.is_dataclass(value)}
    assert {name.split(".")[0] for name, _, _ in OUT_OF_RANGE} >= sections - {"operator"}  # it has choices only


WRONG_KIND = [
    ("replay.batch", "many", "replay.batch must be a whole number, got 'many'"),
    ("replay.batch", 2.5, "replay.batch must be a whole number, got 2.5"),
    ("replay.batch", True, "replay.batch must be a whole number, got True"),
    ("optim.tau", "fast", "optim.tau must be a number, got 'fast'"),
    ("record.tensorboard", "maybe", "record.tensorboard must be true or false, got 'maybe'"),
    ("preset", 3, "preset must be text, got 3"),
    ("replay", 3, "replay is a section: set one of its fields, such as replay.capacity"),
    ("operator.kind", "contolled", "operator.kind cannot be 'contolled': did you mean 'controlled'?"),
    ("auxiliary.kind", "xyz", "auxiliary.kind cannot be 'xyz': choose one of curl, none, spr"),
    ("replay.ration", 2, "unknown option replay.ration: did you mean 'ratio'?"),
    ("replai.ratio", 2, "unknown option replai: did you mean 'replay'?"),
    ("protocol.stickey", 0.1, "unknown option protocol.stickey: did you mean 'sticky'?"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_KIND, ids=[f"{n}={v}" for n, v, _ in WRONG_KIND])
def test_a_wrong_kind_or_name_is_answered_with_what_would_be_right(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        BASE.override({name: value})
    assert str(error.value) == message


def test_unknown_presets_and_scales_name_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown preset 'stedy': did you mean 'steady'"):
        recipe_for("stedy", "CartPole-v1")
    with pytest.raises(UserError, match="unknown scale 'papr': did you mean 'paper'"):
        recipe_for("steady", "CartPole-v1", "papr")


@pytest.mark.parametrize("kind", ["greedy", "double"])
@pytest.mark.parametrize(("name", "value"), [("exchange", "permutation"), ("forbid", "auto"), ("selector", "online")])
def test_switches_that_only_the_controlled_operator_has_contradict_the_others(kind: str, name: str, value: str) -> None:
    neutral = {"exchange": "none", "forbid": "none", "selector": "target"}
    with pytest.raises(UserError) as error:
        OperatorSection(kind=kind, **{**neutral, name: value})  # type: ignore[arg-type]
    assert f"operator.{name} {value} contradicts operator.kind {kind}" in str(error.value)
    assert f"set operator.{name} {neutral[name]}" in str(error.value)
    OperatorSection(kind=kind, **neutral)  # type: ignore[arg-type]


def test_other_contradictions() -> None:
    few = {"replay.capacity": 64, "replay.warmup": 32, "protocol.lanes": 16, "replay.n_step": 3, "protocol.stack": 4}
    with pytest.raises(UserError, match="leaves 4 steps for each of 16 lanes: n_step 3 and stack 4 need more"):
        BASE.override(few)
    early = {"protocol.lanes": 16, "replay.n_step": 20, "replay.warmup": 319}
    with pytest.raises(UserError, match=r"replay.warmup 319 ends before the first 20-step transition of 16 lanes"):
        BASE.override(early)
    BASE.override({**early, "replay.warmup": 320})
    ahead = {**few, "replay.n_step": 1, "auxiliary.kind": "spr", "auxiliary.steps": 4}
    with pytest.raises(UserError, match=r"leaves 4 steps for each of 16 lanes: auxiliary.steps 4 and stack 4"):
        BASE.override(ahead)
    with pytest.raises(UserError, match=r"auxiliary.steps 7 contradicts auxiliary.kind none: only spr has it"):
        BASE.override({"auxiliary.steps": 7})


FREE = {"operator.exchange": "none", "operator.forbid": "none"}
CROSSINGS = [
    (
        {"operator.kind": "tqc", "estimator.kind": "categorical", **FREE},
        "operator.kind tqc contradicts estimator.kind categorical: it pools quantiles (use quantile or implicit)",
    ),
    (
        {"operator.kind": "tqc", "operator.drop": 21, **FREE},
        "operator.drop 21 leaves none of estimator.quantiles 21: make it smaller",
    ),
    (
        {"operator.kind": "munchausen", "estimator.kind": "hl_gauss", **FREE},
        "operator.kind munchausen contradicts estimator.kind hl_gauss: it is added to values, and there they are "
        "logits (use scalar, quantile or implicit)",
    ),
    (
        {"operator.kind": "ebql", "ensemble.members": 1, **FREE},
        "operator.kind ebql needs others to value what a member selects: make ensemble.members at least 2",
    ),
    (
        {"operator.kind": "rem", "ensemble.learn": "one", **FREE},
        "operator.kind rem contradicts ensemble.learn one: all members are one mixture (use all)",
    ),
    (
        {"operator.kind": "maxmin", "operator.subset": 9, **FREE},
        "operator.subset 9 is more than ensemble.members 4: make it at most that",
    ),
    (
        {"operator.snapshots": 3},
        "operator.snapshots 3 contradicts optim.hard_copy_every 0: a target that moves with every update has no copies "
        "(set optim.hard_copy_every)",
    ),
    (
        {"ensemble.prior": 2.0, "estimator.kind": "categorical"},
        "ensemble.prior 2 contradicts estimator.kind categorical: it is added to values, and there they are logits "
        "(use scalar, quantile or implicit)",
    ),
    (
        {"ensemble.prior": 2.0, "optim.decay": 0.1},
        "ensemble.prior 2 contradicts optim.decay 0.1: a prior must not fade",
    ),
    (
        {"ensemble.prior": 2.0, "auxiliary.kind": "spr"},
        "ensemble.prior 2 contradicts auxiliary.kind spr: a prior has no latent to predict",
    ),
    (
        {"ensemble.prior": 2.0, "network.noisy": 0.5},
        "ensemble.prior 2 contradicts network.noisy 0.5: a prior must not change",
    ),
    (
        {"network.kind": "own", "network.factory": "a:b", "network.noisy": 0.5},
        "network.noisy 0.5 contradicts network.kind own: only resnet, impala, minatar, cnn, der, mlp, joined "
        "and layers have it",
    ),
    (
        {"auxiliary.kind": "curl", "replay.batch": 1},
        "auxiliary.kind curl contradicts replay.batch 1: it tells a batch's states apart (make it at least 2)",
    ),
    (
        {"auxiliary.kind": "curl", "auxiliary.steps": 3},
        "auxiliary.steps 3 contradicts auxiliary.kind curl: only spr has it",
    ),
    (
        {"regulation.trigger": "verdict", "monitor.every": 0},
        "regulation.trigger verdict contradicts monitor.every 0: the monitor must measure to find anything",
    ),
    (
        {"regulation.intervention": "answer"},
        "regulation.intervention answer contradicts regulation.trigger spike: it answers the monitor's findings (set "
        "regulation.trigger verdict)",
    ),
    *(
        (
            {"regulation.intervention": name, "regulation.trigger": "none"},
            f"regulation.intervention {name} contradicts regulation.trigger none: all layers would be redrawn with "
            "every measurement (set regulation.trigger periodic)",
        )
        for name in ("reinitialise", "shrink_perturb")
    ),
    *(
        (
            {"regulation.intervention": "inject", "regulation.trigger": name},
            f"regulation.intervention inject contradicts regulation.trigger {name}: it happens once at a stated time "
            "(set regulation.trigger periodic, and regulation.period to that many updates)",
        )
        for name in ("spike", "dormant", "verdict", "none")
    ),
    (
        {"regulation.intervention": "inject", "regulation.trigger": "periodic", "regulation.last": 9},
        "regulation.last 9 contradicts regulation.intervention inject: it happens once, after regulation.period "
        "updates",
    ),
    (
        {"regulation.intervention": "inject", "regulation.trigger": "periodic", "regulation.target": "keep"},
        "regulation.target keep contradicts regulation.intervention inject: a target with another head would be "
        "averaged with the new one (use synchronise or own)",
    ),
    (
        {"regulation.intervention": "inject", "regulation.trigger": "periodic", "auxiliary.kind": "spr"},
        "regulation.intervention inject contradicts auxiliary.kind spr: its loss reads the head that would be fresh",
    ),
    *(
        (
            {"regulation.intervention": "replace", "regulation.target": name},
            f"regulation.target {name} contradicts regulation.intervention replace: units are replaced all the time, "
            "and the target would never lag behind (set regulation.target keep)",
        )
        for name in ("synchronise", "own")
    ),
    *(
        (
            {"regulation.intervention": name, "network.noisy": 0.5, **needed},
            f"regulation.intervention {name} contradicts network.noisy 0.5: values with noise in them could not stay "
            "what they were",
        )
        for name, needed in (
            ("inject", {"regulation.trigger": "periodic"}),
            ("replace", {"regulation.target": "keep"}),
        )
    ),
    (
        {"network.kind": "resnet", "network.activation": "crelu"},
        "network.activation crelu contradicts network.kind resnet: its shortcuts would add an image that is twice as "
        "wide (use impala)",
    ),
    (
        {"network.kind": "own", "network.factory": "a:b", "regulation.spectral": True},
        "network.kind own contradicts regulation.spectral: it would add layers to it",
    ),
    (
        {"network.kind": "own", "network.factory": "a:b", "auxiliary.kind": "spr"},
        "network.kind own contradicts auxiliary.kind spr: it would add layers to it",
    ),
    (
        {"regulation.project": True},
        "regulation.project contradicts network.norm none: only behind a LayerNorm a weight's size does not matter "
        "(set network.norm layer)",
    ),
    (
        {"ensemble.certainty": 2.0, "ensemble.members": 1},
        "ensemble.certainty 2 needs members that may differ: make ensemble.members at least 2",
    ),
]


@pytest.mark.parametrize(("changes", "message"), CROSSINGS, ids=[message[:40] for _, message in CROSSINGS])
def test_an_illegal_crossing_says_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        BASE.override(changes)
    assert str(error.value) == message


AXES = {
    # operator, estimator, members, acts by, who learns, trigger and intervention
    "steady": ("controlled", "quantile", 4, "mean", "all", "spike", "reinitialise"),
    "dqn": ("greedy", "scalar", 1, "mean", "all", "spike", "none"),
    "double_dqn": ("double", "scalar", 1, "mean", "all", "spike", "none"),
    "qr_dqn": ("greedy", "quantile", 1, "mean", "all", "spike", "none"),
    "c51": ("greedy", "categorical", 1, "mean", "all", "spike", "none"),
    "iqn": ("greedy", "implicit", 1, "mean", "all", "spike", "none"),
    "munchausen": ("munchausen", "scalar", 1, "mean", "all", "spike", "none"),
    "averaged_dqn": ("greedy", "scalar", 1, "mean", "all", "spike", "none"),
    "ebql": ("ebql", "scalar", 5, "mean", "one", "spike", "none"),
    "rem": ("rem", "scalar", 4, "member", "all", "spike", "none"),
    "tqc_discrete": ("tqc", "quantile", 5, "mean", "all", "spike", "none"),
    "bootstrapped_dqn": ("double", "scalar", 10, "member", "all", "spike", "none"),
    "rainbow": ("double", "categorical", 1, "mean", "all", "spike", "none"),
    "der": ("double", "categorical", 1, "mean", "all", "spike", "none"),
    "curl": ("double", "categorical", 1, "mean", "all", "spike", "none"),
    "spr": ("double", "categorical", 1, "mean", "all", "spike", "none"),
    "sunrise": ("double", "categorical", 5, "optimistic", "all", "spike", "none"),
    "drq": ("double", "scalar", 1, "mean", "all", "spike", "none"),
    "sr_spr": ("double", "categorical", 1, "mean", "all", "periodic", "shrink_perturb"),
    "maxmin_dqn": ("maxmin", "scalar", 4, "minimum", "one", "spike", "none"),
    "redo": ("greedy", "scalar", 1, "mean", "all", "dormant", "recycle"),
    "swift": ("controlled", "quantile", 4, "mean", "all", "periodic", "shrink_perturb"),
    "bbf": ("double", "categorical", 1, "mean", "all", "periodic", "shrink_perturb"),
}


@pytest.mark.parametrize("preset", AXES)
def test_a_preset_is_its_point_on_the_axes(preset: str) -> None:
    recipe = recipe_for(preset, "MinAtar/Breakout")
    ensemble, regulation = recipe.ensemble, recipe.regulation
    assert AXES[preset] == (
        recipe.operator.kind, recipe.estimator.kind, ensemble.members, ensemble.act, ensemble.learn,
        regulation.trigger, regulation.intervention,
    )  # fmt: skip
    if preset != "steady":
        assert recipe.operator.ceiling == "none"
    if preset not in ("steady", "spr", "sunrise", "rainbow", "der", "curl"):
        assert recipe.replay.alpha == 0


def test_who_plays_atari_by_dopamines_rules() -> None:
    """No FIRE pressed for the agent, and a lost life counts also where none is left to show."""
    usual = envs.protocol_for("Atari/BankHeist")
    theirs = dataclasses.replace(usual, fire_reset=False, last_life=True)
    dopamines = {"rainbow", "der", "curl", "sunrise", "spr", "drq", "sr_spr", "bbf", "swift"}
    for preset in PRESETS:
        assert recipe_for(preset, "Atari/BankHeist").protocol == (theirs if preset in dopamines else usual), preset


def test_the_published_numbers_of_the_neighbours() -> None:
    c51, redo = recipe_for("c51", "Atari/Alien").estimator, recipe_for("redo", "Atari/Alien").regulation
    assert (c51.atoms, c51.low, c51.high) == (51, -10.0, 10.0)
    assert (redo.dormant, redo.dormant_share, redo.every, redo.target) == (0.1, 0.0, 1000, "keep")
    expected = {
        # network, hidden, noise, n, updates a step, warm-up, rate, copies, epsilon
        "rainbow": ("cnn", (512,), 0.5, 3, 1, 1600, 6.25e-5, 2000, 0.0),
        "der": ("der", (512,), 0.1, 20, 1, 1600, 1e-4, 2000, 0.0),
        "curl": ("der", (512,), 0.1, 20, 1, 1600, 1e-4, 2000, 0.0),
        "sunrise": ("der", (512,), 0.1, 20, 1, 1600, 1e-4, 2000, 0.0),
        "spr": ("cnn", (512,), 0.5, 10, 2, 2000, 1e-4, 1, "1 -> 0 linear 2001 steps"),
    }
    for preset, numbers in expected.items():
        for scale in ("small", "paper"):
            recipe = recipe_for(preset, "Atari/Alien", scale)
            network, replay, optim = recipe.network, recipe.replay, recipe.optim
            assert numbers == (
                network.kind, network.hidden, network.noisy, replay.n_step, replay.ratio, replay.warmup, optim.rate,
                optim.hard_copy_every, recipe.explore.epsilon,
            )  # fmt: skip
            assert (replay.alpha, replay.beta, optim.epsilon, optim.clip) == (0.5, 0.4, 1.5e-4, 10)
            assert network.dueling
    auxiliary = recipe_for("curl", "Atari/Alien").auxiliary
    assert (auxiliary.weight, auxiliary.units, auxiliary.momentum, auxiliary.shift) == (1.0, 128, 0.999, 4)
    assert (recipe_for("spr", "Atari/Alien").auxiliary.steps, recipe_for("spr", "Atari/Alien").auxiliary.weight) == (
        5,
        5,
    )


def test_every_preset_is_listed_and_documented() -> None:
    """A function nobody lists, or a row of the document that is no preset."""
    functions = {
        name for name, value in vars(presets).items()
        if inspect.isfunction(value) and not name.startswith("_") and "env" in inspect.signature(value).parameters
    }  # fmt: skip
    document = (Path(__file__).parents[1] / "docs" / "presets.md").read_text().split("\n\n|")[1]
    rows = re.findall(r"^\| `(\w+)`", document, re.MULTILINE)
    for name, words in re.findall(r"^\| `(\w+)` \| (.*) \|$", document, re.MULTILINE):
        assert tuple(words.split(" | ")) == presets.axes(recipe_for(name, "Atari/Breakout")), name
    whole = (Path(__file__).parents[1] / "docs" / "presets.md").read_text().split("## One by one")[1]
    assert all(f"**`{name}`**" in whole for name in rows)
    assert functions - {"recipe_for", "tuned"} == PRESETS.keys() == AXES.keys() == set(rows)
    assert all(PRESETS[name].__name__ == name for name in PRESETS)


# -- schedules, and fields that a kind does not have -----------------------------------------------------------------


def test_schedules_are_values_of_a_recipe_and_come_back_from_its_toml() -> None:
    changes = {
        "replay.n_step": "10 -> 3 exponential 10000 updates",
        "optim.gamma": "0.97->0.997 exponential 10_000 updates",
        "optim.rate": "1e-4 -> 1e-05 linear 5000 steps",
        "explore.epsilon": "1 -> 0 linear 2001 steps after 2000",
    }
    recipe = BASE.override(changes)
    assert recipe.optim.gamma == "0.97 -> 0.997 exponential 10000 updates"  # in its one form
    assert recipe.replay.largest_n == 10
    again = Recipe.from_toml(recipe.to_toml())
    assert again == recipe
    assert again.override(changes) == again


@pytest.mark.parametrize(
    ("value", "kept"), [("3", 3), (3, 3), ("0.5", 0.5), (0.1 + 0.2, 0.1 + 0.2), ("1e-3", 1e-3), (1, 1)]
)
def test_a_scheduled_field_may_be_a_plain_number_and_stays_one(value: object, kept: float) -> None:
    name = "replay.n_step" if kept == 3 else "explore.epsilon"
    recipe = BASE.override({name: value})
    found = flatten(recipe.to_dict())[name]
    assert found == kept
    assert type(found) is type(kept)
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@pytest.mark.parametrize("name", ["replay.n_step", "optim.gamma", "optim.rate", "explore.epsilon"])
@pytest.mark.parametrize("value", ["fast", "1 -> 0 cosine 9 steps", True, None, [1]])
def test_what_is_no_schedule_is_named_with_its_field(name: str, value: object) -> None:
    with pytest.raises(UserError) as error:
        BASE.override({name: value})
    assert str(error.value).startswith(f"{name} must be a number")
    assert "\n" not in str(error.value)


def test_room_is_kept_for_the_largest_n_of_a_schedule() -> None:
    lanes = {"protocol.lanes": 16, "replay.warmup": 319}
    with pytest.raises(UserError, match=r"replay.warmup 319 ends before the first 20-step transition of 16 lanes"):
        BASE.override({**lanes, "replay.n_step": "2 -> 20 linear 9 steps"})
    BASE.override({**lanes, "replay.n_step": "2 -> 19 linear 9 steps"})


def other(section: Any, name: str) -> Any:
    """A value that the field may have, other than its default."""
    default, hint = getattr(type(section)(), name), typing.get_type_hints(type(section))[name]
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in typing.get_args(hint) if choice != default)
    if default in ("", ()):
        return ("linear 8",) if default == () else "module:name"
    if isinstance(default, tuple):
        return tuple(2 if part != 2 else 1 for part in default)
    return default + 1 if isinstance(default, int) else default * 0.8 + 0.03


SECTIONS = {
    field.name: field.default_factory
    for field in dataclasses.fields(Recipe)
    if isinstance(field.default_factory, type) and hasattr(field.default_factory, "owners")
}
OTHERS = ("greedy", "double", "maxmin", "rem", "ebql", "tqc", "softmax", "munchausen")
NEEDED = {  # what a choice must come with
    "trigger none": {"intervention": "none"},
    "answer": {"trigger": "verdict"},
    "replace": {"target": "keep"},
    "inject": {"trigger": "periodic"},
    **{kind: {"exchange": "none", "forbid": "none"} for kind in OTHERS},
}
FOREIGN = [
    (section, name, switch, chosen)
    for section, kind in SECTIONS.items()
    for name, (switch, kinds) in kind.owners.items()
    for chosen in typing.get_args(typing.get_type_hints(kind)[switch])
    if chosen not in kinds
]


@pytest.mark.parametrize(("section", "name", "switch", "chosen"), FOREIGN)
def test_a_field_that_the_kind_does_not_have_is_refused(section: str, name: str, switch: str, chosen: str) -> None:
    kind = SECTIONS[section]
    plain = {switch: chosen, **NEEDED.get(chosen, {}), **NEEDED.get(f"{switch} {chosen}", {})}
    kind(**plain)  # what is refused below is the field alone
    value = other(kind(), name)
    with pytest.raises(
        UserError, match=rf"^{section}.{name} .* contradicts {section}.{switch} {chosen}: only .* ha(s|ve) it"
    ):
        kind(**plain, **{name: value})
    assert has(kind(), name) == (getattr(kind(), switch) in kind.owners[name][1])
    owner = kind.owners[name][1][0]
    kind(**{switch: owner, **NEEDED.get(owner, {}), name: value})  # and its owner has it


def test_every_section_of_an_axis_says_which_kind_has_which_field() -> None:
    assert {"estimator", "regulation", "ensemble"} <= SECTIONS.keys()
    for kind in SECTIONS.values():
        known = {field.name for field in dataclasses.fields(kind)}
        for name, (switch, kinds) in kind.owners.items():
            assert {name, switch} <= known
            assert set(kinds) <= set(typing.get_args(typing.get_type_hints(kind)[switch]))
    # Of an estimator nothing is common to all kinds but the kind itself.
    assert {field.name for field in dataclasses.fields(SECTIONS["estimator"])} == {
        "kind", *SECTIONS["estimator"].owners
    }  # fmt: skip


def test_quantiles_of_a_scalar_are_refused_in_one_line() -> None:
    with pytest.raises(UserError) as error:
        presets.dqn("CartPole-v1", **{"estimator.quantiles": 7})
    assert str(error.value) == ("estimator.quantiles 7 contradicts estimator.kind scalar: only quantile has it")
    with pytest.raises(UserError, match=r"^regulation.dormant 0.2 contradicts regulation.trigger spike and .* has it$"):
        BASE.override({"regulation.dormant": 0.2})
    assert BASE.override({"regulation.intervention": "recycle", "regulation.dormant": 0.2}).regulation.dormant == 0.2


def test_another_kind_leaves_behind_what_only_the_old_one_had() -> None:
    """The presets' quantiles do not stand in the way of a scalar, while those that are asked for with it do."""
    assert BASE.estimator.quantiles == 21
    scalar = BASE.override({"estimator.kind": "scalar"})
    assert scalar.estimator == EstimatorSection(kind="scalar")
    spiking = BASE.override({"regulation.threshold": 3.0})
    periodic = spiking.override({"regulation.trigger": "periodic", "regulation.period": 7})
    assert (periodic.regulation.threshold, periodic.regulation.period) == (6.0, 7)
    assert spiking.override({"regulation.intervention": "none"}).regulation.threshold == 3.0  # it still has it
    with pytest.raises(UserError, match=r"estimator.quantiles 7 contradicts estimator.kind scalar"):
        BASE.override({"estimator.kind": "scalar", "estimator.quantiles": 7})
    assert switches(BASE) >= {"estimator.kind", "regulation.trigger", "regulation.intervention", "ensemble.act"}


@pytest.mark.parametrize(
    "words", [["--estimator.kind", "scalar"], ["--estimator.kind=scalar", "--regulation.trigger", "periodic"]]
)
def test_the_command_line_chooses_another_kind_with_one_option(words: list[str]) -> None:
    chosen = with_kinds(BASE, words)
    assert chosen.estimator == EstimatorSection(kind="scalar")
    assert chosen.regulation.trigger == ("periodic" if len(words) == 3 else "spike")
    assert with_kinds(BASE, ["--steps", "3", "--estimator.quantiles", "7"]) == with_kinds(BASE, []) == BASE
    with pytest.raises(UserError, match=r"estimator.kind cannot be 'scaler': did you mean 'scalar'"):
        with_kinds(BASE, ["--estimator.kind", "scaler"])


# -- layouts of the file ----------------------------------------------------------------------------------------------

RESULTS = Path(__file__).parents[1] / "results"


def stored_recipes() -> Iterator[tuple[str, str]]:
    """Every recipe that was ever committed with results: in folders, and in archives of folders."""
    for file in sorted(RESULTS.rglob("recipe.toml")):
        yield str(file.relative_to(RESULTS)), file.read_text()
    for file in sorted(RESULTS.rglob("*.tar*")):
        with tarfile.open(file) as archive:
            for member in archive:
                if member.name.endswith("recipe.toml"):
                    content = archive.extractfile(member)
                    assert content is not None
                    yield f"{file.name}/{member.name}", content.read().decode()


def test_a_schedule_is_one_text_however_it_was_written() -> None:
    """A command that is repeated must find its own run."""
    assert ExploreSection("1->0  linear 100 steps").epsilon == "1 -> 0 linear 100 steps"
    assert ReplaySection(n_step="10->3 exponential 50 updates").n_step == "10 -> 3 exponential 50 updates"
    assert OptimSection(rate="0.001").rate == 0.001


def test_every_recipe_ever_stored_still_reads_and_comes_back() -> None:
    count = 0
    for name, text in stored_recipes():
        old = tomllib.loads(text)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            recipe = Recipe.from_toml(text)
        messages = [str(warning.message) for warning in said if warning.category is Upgraded]
        if old.get("layout", 1) == 1:
            renamed = "explore.start, explore.end, explore.decay_steps became explore.epsilon"
            assert messages == [f"recipe of an older layout: {renamed}"], name
            epsilon, explore = Schedule.of(recipe.explore.epsilon), old["explore"]
            assert (epsilon.start, epsilon.end, epsilon.over) == (
                explore["start"], explore["end"], explore["decay_steps"],
            ), name  # fmt: skip
        else:
            assert messages == [], name
        new = flatten(recipe.to_dict())
        gone = {"explore.start", "explore.end", "explore.decay_steps", "layout"}
        for field, value in flatten(old).items():
            section, _, leaf = field.rpartition(".")
            foreign = section in SECTIONS and not has(getattr(recipe, section), leaf)
            if field not in gone and not foreign:
                kept = str(Schedule.of(value)) if field == "explore.epsilon" and isinstance(value, str) else value
                assert new[field] == (tuple(kept) if isinstance(kept, list) else kept), (name, field)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Recipe.from_toml(recipe.to_toml()) == recipe, name
        count += 1
    assert count >= 148


OLD = """
env = "CartPole-v1"
[protocol]
name = "gymnasium"
"""


@pytest.mark.parametrize(
    ("explore", "epsilon", "said"),
    [
        (
            "start = 0.5\nend = 0.1\ndecay_steps = 40",
            "0.5 -> 0.1 linear 40 steps",
            "start, explore.end, explore.decay_steps",
        ),
        ("decay_steps = 40", "1 -> 0.01 linear 40 steps", "decay_steps"),
        ("end = 0.5", "1 -> 0.5 linear 2001 steps", "end"),
        ("start = 0.2\nend = 0.2\ndecay_steps = 40", 0.2, "start, explore.end, explore.decay_steps"),
    ],
)
def test_epsilon_of_an_older_layout_is_renamed_with_a_line(explore: str, epsilon: object, said: str) -> None:
    with pytest.warns(Upgraded, match=f"^recipe of an older layout: explore.{said} became explore.epsilon$"):
        recipe = Recipe.from_toml(f"{OLD}[explore]\n{explore}\n")
    assert recipe.explore.epsilon == epsilon


def test_a_command_says_what_was_renamed_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_two(words: list[str]) -> int:
        for over in (40, 41):
            Recipe.from_toml(f"{OLD}[explore]\ndecay_steps = {over}\n")
        return 0

    monkeypatch.setattr(reading, "compare", read_two)
    with pytest.raises(SystemExit):
        cli.main(["compare"])
    assert capsys.readouterr().err == (
        "steadyq: recipe of an older layout: explore.decay_steps became explore.epsilon\n"
    )


def test_fields_that_an_older_layout_kept_without_having_them_are_dropped() -> None:
    """Recipes of scalar agents named their quantiles; they never did anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing was renamed
        recipe = Recipe.from_toml(
            f'{OLD}[estimator]\nkind = "scalar"\nquantiles = 21\nreduction = "sum"\nkappa = 2.0\n'
        )
    assert recipe.estimator == EstimatorSection(kind="scalar", kappa=2.0)
    with pytest.raises(UserError, match=r"estimator.quantiles 21 contradicts estimator.kind scalar"):
        Recipe.from_toml(f'layout = 3\n{OLD}[estimator]\nkind = "scalar"\nquantiles = 21\n')


@pytest.mark.parametrize("layout", ["0", "4", '"2"', "1.5"])
def test_an_unknown_layout_is_refused(layout: str) -> None:
    with pytest.raises(UserError, match=r"^a recipe of layout .* is not one of this version, which reads 1 to 3$"):
        Recipe.from_toml(f"layout = {layout}\n{OLD}")


def test_an_older_field_in_a_new_layout_is_unknown() -> None:
    with pytest.raises(UserError, match=r"unknown option explore.decay_steps"):
        Recipe.from_toml(f"layout = {LAYOUT}\n{OLD}[explore]\ndecay_steps = 3\n")


HEAD = 'env = "CartPole-v1"\n[protocol]\nname = "gymnasium"\n'
BROKEN = [
    ("env = ", "not a recipe: "),
    ("steps = 3", "not a recipe: no 'env' in it"),
    ('env = "CartPole-v1"', "not a recipe: no 'protocol' in it"),
    ('env = "CartPole-v1"\nprotocol = 3', "not a recipe: [protocol] must be a table"),
    (HEAD + "lane = 1", "unknown option protocol.lane: did you mean 'lanes'?"),
    (HEAD + "[relay]\nx = 1", "unknown option relay: did you mean 'replay'?"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_text_that_is_no_recipe_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        Recipe.from_toml(text)
    assert str(error.value).startswith(message)


def test_differences_name_both_values_and_ignore_where_it_computes() -> None:
    other = BASE.override({"replay.batch": 64, "seed": 3, "compute.threads": 4})
    assert BASE.differences(other) == ["seed: 0 != 3", "replay.batch: 32 != 64"]


# -- the paper's tables -----------------------------------------------------------------------------------------------


def rows_of(env: str) -> dict[str, str]:
    return dict(row for _, rows in hyperparameter_rows(presets.steady(env, "paper")) for row in rows)


def test_table_4_comes_out_of_the_atari_preset() -> None:
    """Every row of l.1104-1151, in its order."""
    rows = rows_of("Atari/Alien")
    printed = {
        "Total environment steps": "100,000",
        "Discount factor gamma": "0.99",
        "Learning rate": "0.0001 (Adam)",
        "Batch size": "32",
        "Replay buffer size": "100,000",
        "Start learning after steps": "2,000",
        "Training frequency": "every 1 step",  # the paper: 1 update per step, beside a replay ratio of 4
        "Soft target update rate tau": "0.005",
        "Replay ratio": "4",
        "Gradient clipping": "10 per member",
        "Parameter reset threshold": "6",
        "Initial epsilon": "1",
        "Final epsilon": "0.01",
        "Epsilon decay steps": "2,001",
        "Prioritization exponent alpha": "0.6",
        "Importance sampling exponent beta": "0.4",
        "Priority epsilon": "1e-06",
        "Number of quantiles": "51",
        "Ensemble size": "16",
        "Huber parameter kappa": "1",
        "Frame stack": "4",
        "Frame skip": "4",
        "Observation": "4 x 84 x 84",
    }
    assert {name: rows[name] for name in printed} == printed
    assert [name for name in rows if name in printed] == list(printed)


def test_table_6_comes_out_of_the_procgen_preset() -> None:
    """Every row of l.1320-1344."""
    rows = rows_of("Procgen/CoinRun")
    printed = {
        "Total environment steps": "25,000,000",
        "Training levels": "200",
        "Evaluation levels": "unseen procedural levels",
        "Parallel environments": "128",
        "Batch size": "256",
        "Discount factor gamma": "0.99",
        "Learning rate": "0.0001 (Adam)",
        "Soft target update rate tau": "0.005",
        "Ensemble size": "16",
        "Number of quantiles": "51",
        "Initial epsilon": "1",
        "Final epsilon": "0.05",
        "Epsilon decay steps": "5,000,000",
    }
    assert {name: rows[name] for name in printed} == printed
    assert rows["Sampling"] == "uniform"  # l.1304


def test_the_papers_readings_are_the_presets_defaults() -> None:
    """What the tables do not print: the method's switches, as the audit of the paper argues them."""
    rows = rows_of("Atari/Alien")
    assert rows["Operator"] == "controlled"
    assert rows["Exchange between members"] == "derangement"
    assert rows["Rewarded action forbidden"] == "rewarded"
    assert rows["Ceiling on targets"] == "running_max"
    assert rows["Reward seen by the learner"] == "sign"
    assert rows["n-step"] == "1"
    recipe = presets.steady("Atari/Alien", "paper")
    assert recipe.operator.selector == "target"
    assert recipe.estimator.reduction == "mean"
    assert recipe.regulation.every == 1000
    assert recipe.explore.act_with == "online"


def test_rows_follow_the_recipe() -> None:
    dqn = dict(row for _, rows in hyperparameter_rows(recipe_for("dqn", "CartPole-v1")) for row in rows)
    assert dqn["Parameter reset threshold"] == "no resets"
    assert dqn["Number of quantiles"] == "none (scalar)"
    assert dqn["Huber parameter kappa"] == "1"
    c51 = dict(row for _, rows in hyperparameter_rows(recipe_for("c51", "CartPole-v1")) for row in rows)
    assert c51["Number of quantiles"] == c51["Huber parameter kappa"] == "none (categorical)"
    redo = dict(row for _, rows in hyperparameter_rows(recipe_for("redo", "CartPole-v1")) for row in rows)
    assert redo["Parameter reset threshold"] == "none (dormant recycle)"
    maxmin = dict(row for _, rows in hyperparameter_rows(recipe_for("maxmin_dqn", "CartPole-v1")) for row in rows)
    assert (maxmin["Operator"], maxmin["Ensemble size"]) == ("maxmin", "4")
    hard = presets.dqn("CartPole-v1", **{"optim.hard_copy_every": 500})
    assert ("Hard target copy every", "500 updates") in hyperparameter_rows(hard)[0][1]
