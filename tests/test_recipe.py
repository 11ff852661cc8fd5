"""Recipes: TOML round trips, messages for what cannot work, and the paper's hyper-parameter tables."""

import dataclasses

import pytest

from steadyq import UserError, presets
from steadyq.paper.settings import hyperparameter_rows
from steadyq.presets import PRESETS, SCALES, recipe_for
from steadyq.recipe import OperatorSection, Recipe, flatten

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
        "network.strides": (2, 1, 2, 1),
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
    ("estimator.quantiles", 0, "estimator.quantiles must be between 1 and 1000, got 0"),
    ("estimator.kappa", 0, "estimator.kappa must be at least 1e-06, got 0"),
    ("regulation.threshold", 0.5, "regulation.threshold must be at least 1, got 0.5"),
    ("regulation.quantile", 1.5, "regulation.quantile must be between 0.01 and 1, got 1.5"),
    ("regulation.every", 0, "regulation.every must be at least 1, got 0"),
    ("replay.batch", 0, "replay.batch must be at least 1, got 0"),
    ("replay.ratio", 0, "replay.ratio must be between 1 and 1024, got 0"),
    ("replay.every", 0, "replay.every must be at least 1, got 0"),
    ("replay.n_step", 0, "replay.n_step must be between 1 and 100, got 0"),
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
    ("estimator.kind", "xyz", "estimator.kind cannot be 'xyz': choose one of categorical, quantile, scalar"),
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
    hard = presets.dqn("CartPole-v1", **{"optim.hard_copy_every": 500})
    assert ("Hard target copy every", "500 updates") in hyperparameter_rows(hard)[0][1]
