"""What is offered against a finding: options that the run's own recipe takes, and does not have."""

import shlex
from typing import Any

import pytest

from steadyq import presets
from steadyq.errors import UserError
from steadyq.fields import flatten
from steadyq.monitor import switches
from steadyq.monitor.advice import in_their_words
from steadyq.monitor.switches import Offer, taken_by
from steadyq.monitor.verdict import RULES
from steadyq.recipe import Recipe
from steadyq.value.regulation import ANSWERS

ENVS = ("CartPole-v1", "MinAtar/Breakout", "Atari/Breakout")
OFFERS = {name: value for name, value in vars(switches).items() if isinstance(value, Offer)}


def options(said: str) -> dict[str, str]:
    """An offer as a person reads it, taken apart."""
    return {name: value for name, value in (shlex.split(part) for part in said.split(" + "))}


def offered(offer: Offer, recipe: Recipe) -> str | None:
    """The option, or None."""
    return next((option for option, _ in taken_by((offer,), recipe)), None)


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("name", sorted(presets.PRESETS))
def test_every_option_that_is_offered_is_taken_and_changes_something(name: str, env: str) -> None:
    recipe = presets.PRESETS[name](env)
    had = flatten(recipe.to_dict())
    for rule in RULES:
        for option, _ in taken_by(rule.offers, recipe):
            if option.startswith("a "):
                leaf = option.split()[-1]
                assert leaf in had, option
                continue
            changes = options(option)
            now = flatten(recipe.override(changes).to_dict())
            assert all(str(now[leaf]) == value != str(had[leaf]) for leaf, value in changes.items()), option
            assert option not in [again for again, _ in taken_by(rule.offers, recipe.override(changes))]


@pytest.mark.parametrize("name", sorted(presets.PRESETS))
def test_nobody_is_told_to_replace_the_regulation_that_there_is(name: str) -> None:
    recipe = presets.PRESETS[name]("CartPole-v1")
    said = " ".join(option for rule in RULES for option, _ in taken_by(rule.offers, recipe))
    assert ("regulation.intervention" in said) == (recipe.regulation.intervention == "none")


def test_every_offer_is_made_to_some_preset_and_kept_from_another() -> None:
    recipes = [make(env) for make in presets.PRESETS.values() for env in ENVS]
    other = {"optim.tau": 1.0, "network.norm": "layer", "regulation.parseval": 0.01}
    recipes += [presets.dqn("CartPole-v1", **other)]
    for name, offer in OFFERS.items():
        assert any(offer.what is each.what for rule in RULES for each in rule.offers), name
        made = [offered(offer, recipe) is not None for recipe in recipes]
        always = name in ("RATE", "CLIP", "GAMMA", "BATCH")
        assert any(made), name
        assert all(made) == always, name


def test_the_verdict_answers_the_findings_for_which_it_is_offered() -> None:
    asked = {rule.name for rule in RULES if any(offer.what == switches.ANSWER.what for offer in rule.offers)}
    assert asked == ANSWERS.keys()


@pytest.mark.parametrize(
    ("offer", "preset", "changes", "said"),
    [
        ("CEILING", "dqn", {}, "operator.ceiling running_max"),
        ("CEILING", "steady", {}, None),
        ("EXCHANGE", "dqn", {}, "operator.kind controlled + operator.exchange derangement + ensemble.members 4"),
        (
            "EXCHANGE",
            "double_dqn",
            {},
            "operator.kind controlled + operator.exchange derangement + operator.selector online + ensemble.members 4",
        ),
        ("EXCHANGE", "steady", {"ensemble.members": 1}, "ensemble.members 4"),
        ("EXCHANGE", "steady", {"ensemble.members": 6, "operator.exchange": "none"}, "operator.exchange derangement"),
        ("EXCHANGE", "maxmin_dqn", {}, None),
        ("FORBID", "dqn", {}, "operator.kind controlled + operator.forbid rewarded"),
        ("FORBID", "dqn", {"replay.n_step": 3}, None),
        ("FORBID", "rem", {}, None),
        ("FORBID", "swift", {"operator.forbid_until": "any_step"}, "operator.forbid rewarded"),
        ("SLOW", "dqn", {"optim.tau": 1.0}, "optim.tau 0.005"),
        ("SLOW", "dqn", {"optim.tau": 0.01}, "optim.tau 0.005"),
        ("SLOW", "dqn", {"optim.tau": 1.0, "optim.hard_copy_every": 1000}, None),
        ("COPIES", "dqn", {"optim.tau": 1.0}, "optim.hard_copy_every 1000"),
        ("COPIES", "averaged_dqn", {}, None),
        ("SLOW", "averaged_dqn", {"optim.hard_copy_every": 10}, None),  # whose snapshots are copies
        ("AVERAGE", "dqn", {"ensemble.members": 3}, "ensemble.members 4"),
        ("AVERAGE", "dqn", {"ensemble.members": 4}, None),
        ("AVERAGE", "dqn", {"ensemble.members": 16}, None),
        ("QUANTILE", "dqn", {}, "estimator.kind quantile"),
        ("QUANTILE", "c51", {}, None),
        ("FEWER", "dqn", {"replay.ratio": 2}, "a lower replay.ratio"),
        ("FEWER", "dqn", {}, None),
        ("SELDOM", "dqn", {"replay.ratio": 2}, None),
        ("SELDOM", "dqn", {}, "a larger replay.every"),
        ("REDRAW", "dqn", {}, "regulation.intervention reinitialise"),
        ("REDRAW", "swift", {}, None),
        (
            "RECYCLE",
            "dqn",
            {},
            "regulation.trigger dormant + regulation.intervention recycle + regulation.target keep",
        ),
        ("RECYCLE", "redo", {}, None),
        (
            "SHRINK",
            "dqn",
            {"replay.warmup": 1000, "steps": 51_000},
            "regulation.trigger periodic + regulation.intervention shrink_perturb + regulation.period 10000",
        ),
        ("ANSWER", "dqn", {}, "regulation.trigger verdict + regulation.intervention answer"),
        ("ANSWER", "dqn", {"monitor.every": 0}, None),
        ("LAYER_NORM", "dqn", {"network.norm": "layer"}, None),
        ("CRELU", "dqn", {"network.activation": "crelu"}, None),
        ("PARSEVAL", "dqn", {"regulation.parseval": 0.01}, None),
        ("DECAY", "dqn", {}, "optim.decay 0.1"),
        ("DECAY", "dqn", {"optim.decay": 0.01}, None),
        ("DECAY", "dqn", {"ensemble.prior": 1.0}, None),  # which must not fade
    ],
)
def test_offers_fit_the_recipe(offer: str, preset: str, changes: dict[str, Any], said: str | None) -> None:
    assert offered(OFFERS[offer], presets.PRESETS[preset]("CartPole-v1").override(changes)) == said


def test_what_a_network_cannot_have_is_not_offered() -> None:
    resnet = presets.steady("Atari/Breakout")
    assert resnet.network.kind == "resnet"
    assert offered(OFFERS["CRELU"], resnet) is None
    own = presets.dqn("CartPole-v1").override({"network.kind": "own", "network.factory": "mine:make"})
    assert offered(OFFERS["LAYER_NORM"], own) is None


def test_the_reason_is_the_findings_own() -> None:
    spikes = next(rule for rule in RULES if rule.name == "weight spikes")
    found = dict(taken_by(spikes.offers, presets.swift("Atari/Breakout")))
    assert found["regulation.parseval 0.001"] == "lowered spikes on both games tried"


def test_an_unknown_option_would_not_be_offered() -> None:
    recipe = presets.dqn("CartPole-v1")
    with pytest.raises(UserError):
        recipe.override({"optim.beta1": 2.0})
    assert offered(Offer({"optim.beta1": 2.0}), recipe) is None
    assert offered(Offer({"optim.beta1": 0.5}), recipe) == "optim.beta1 0.5"


def test_somebody_elses_code_is_told_ideas_and_its_own_parameters_first() -> None:
    def said(name: str, **parameters: Any) -> list[str]:
        rule = next(rule for rule in RULES if rule.name == name)
        return [text for text, _ in in_their_words(taken_by(rule.offers, None), parameters)]

    assert said("overestimation", tau=1.0) == [
        "a smaller tau, now 1",
        "a bound on targets at the best return seen",
        "an ensemble whose members choose the action that another one values",
        "targets that never bootstrap from the action just rewarded",
    ]
    assert said("growing weights", learning_rate=0.1, weight_decay=0.0, gradient_steps=1, train_freq=4) == [
        "a larger weight_decay, now 0",
        "a lower learning_rate, now 0.1",
        "a larger train_freq, now 4",
        "planned resets that blend the weights with fresh ones",
    ]
    assert said("dormant units") == [
        "fresh weights for dormant units (ReDo)",
        "LayerNorm",
        "CReLU in place of ReLU",
        "a lower rate",
    ]
    assert said("weight spikes") == [
        "a reset of the layers that spike",
        "a penalty on |W W^T - I|^2 of hidden layers",
        "LayerNorm",
        "fewer updates on the same data",
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_option_of_ours_is_told_to_somebody_else(rule: Any) -> None:
    sections = {name for name in flatten(presets.dqn("CartPole-v1").to_dict()) if "." in name}
    assert not any("<function" in option for option, _ in taken_by(rule.offers, None))
    for text, _ in in_their_words(taken_by(rule.offers, None), {}):
        assert not any(name in text for name in sections), text
        assert " + " not in text
