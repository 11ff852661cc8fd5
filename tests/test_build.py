"""Every choice that a recipe knows is built: nothing falls through to a default."""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from steadyq import RunFolder, UserError, build, envs, presets
from steadyq.nets import MLP, Branches, Impala, Layered, MinAtarNet, ModuleNetwork, ResNet
from steadyq.nets.injection import Injected
from steadyq.nets.prior import WithPrior
from steadyq.recipe import Recipe
from steadyq.run.step import Training
from steadyq.run.writer import begin
from steadyq.value import acting, regulation
from steadyq.value.auxiliary import Contrastive, SelfPrediction
from steadyq.value.estimators import Categorical, HLGauss, Implicit, Quantile, Scalar
from steadyq.value.operators import (
    Controlled,
    Double,
    Greedy,
    Maxmin,
    Mixture,
    Munchausen,
    Others,
    Pooled,
    Softmax,
)
from steadyq.value.penalties import Penalties


class Both(gymnasium.Env[Any, Any]):
    """An image beside a number."""

    observation_space = gymnasium.spaces.Dict(
        eye=gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=gymnasium.spaces.Box(0, 1, (2,))
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


BASE = presets.steady("MinAtar/Breakout", "tiny").override(
    SMALL := {
        "network.hidden": (8,),
        "ensemble.members": 2,
        "replay.warmup": 32,
        "replay.batch": 8,
        "replay.capacity": 200,
        "regulation.every": 5,
        "monitor.every": 0,
        "record.tensorboard": False,
        "compute.device": "cpu",
        "compute.compile": "never",
    }
)
BASE = BASE.override({"network.channels": 2})
BESIDE = presets.steady(Both, "tiny").override(SMALL)
NEUTRAL = {"operator.exchange": "none", "operator.forbid": "none"}
COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("network.kind", "resnet"): {"network.scale": 1, "network.head_multiple": 4},
    ("network.kind", "impala"): {"network.width": 1, "network.hidden": (8,)},
    ("network.kind", "layers"): {"network.layers": ("conv 4 3 2", "linear 8")},
    ("network.kind", "own"): {"network.factory": f"{__name__}:module"},
    ("network.pooling", "average"): {"network.kind": "resnet", "network.scale": 1, "network.head_multiple": 4},
    ("operator.kind", "greedy"): NEUTRAL,
    ("operator.kind", "double"): NEUTRAL,
    ("operator.kind", "maxmin"): NEUTRAL,
    ("operator.kind", "rem"): NEUTRAL,
    ("operator.kind", "ebql"): NEUTRAL,
    ("operator.kind", "tqc"): NEUTRAL,
    ("operator.kind", "softmax"): NEUTRAL,
    ("operator.kind", "munchausen"): NEUTRAL,
    ("regulation.intervention", "recycle"): {"regulation.trigger": "dormant"},
    ("regulation.intervention", "replace"): {"regulation.trigger": "none", "regulation.target": "keep"},
    ("regulation.intervention", "inject"): {"regulation.trigger": "periodic", "regulation.period": 5},
    ("regulation.trigger", "none"): {"regulation.intervention": "recycle"},
    ("regulation.intervention", "answer"): {"regulation.trigger": "verdict", "monitor.every": 4},
    ("regulation.trigger", "verdict"): {"monitor.every": 4},
}
"""What a choice cannot do without."""


def module(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """Somebody's own network."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), outputs))


def choices() -> list[tuple[str, str]]:
    """Every value of every field of a section that has but a few."""
    found = []
    for section in dataclasses.fields(Recipe):
        kind = typing.get_type_hints(Recipe)[section.name]
        if not dataclasses.is_dataclass(kind) or section.name == "protocol":  # the environment's own
            continue
        for name, hint in typing.get_type_hints(kind).items():
            if typing.get_origin(hint) is typing.Literal:
                found += [(f"{section.name}.{name}", value) for value in typing.get_args(hint)]
    return found


def everything(recipe: Recipe) -> list[object]:
    """All that a recipe builds."""
    spec, device = envs.spec(recipe.env, recipe.protocol), build.device_for(recipe)
    learner = build.learner_for(recipe, spec, torch.Generator().manual_seed(0), device)
    return [
        learner,
        build.ring_for(recipe, spec, device),
        build.regulation_for(recipe),
        build.acting_for(recipe, training=True),
        build.acting_for(recipe, training=False),
        build.augmentation_for(recipe, spec),
        build.draw_layout(recipe, spec),
    ]


def test_the_choices_are_found() -> None:
    found = choices()
    assert len(found) > 35
    for known in (("operator.kind", "maxmin"), ("estimator.kind", "categorical"), ("regulation.trigger", "dormant")):
        assert known in found


@pytest.mark.parametrize(("name", "value"), [c for c in choices() if not c[0].startswith("compute.")])
def test_every_choice_is_built_acts_learns_and_regulates(name: str, value: str, tmp_path: Path) -> None:
    """A kind that nothing builds raises here, and one that needs others says so in COMPANIONS."""
    base = BESIDE if value == "joined" else BASE
    recipe = base.override({name: value, **COMPANIONS.get((name, value), {})})
    everything(recipe)
    training = Training(recipe, begin(RunFolder(tmp_path), recipe))
    training.start()
    while training.step_count < 42:
        training.step()
    assert training.learner.updates == 10
    assert all(p.isfinite().all() for p in training.learner.online.values())


@pytest.mark.parametrize(("name", "value"), [c for c in choices() if c[0].startswith("compute.")])
def test_every_way_to_compute_is_built_or_refused_in_words(name: str, value: str) -> None:
    recipe = BASE.override({name: value, "network.kind": "resnet", "network.scale": 1, "network.head_multiple": 4})
    if build.wants_gpu(recipe) and not torch.cuda.is_available():
        with pytest.raises(UserError, match=f"^{name} {value}"):
            everything(recipe)
    else:
        everything(recipe)


BUILT: list[tuple[dict[str, Any], str, type]] = [
    ({"network.kind": "mlp"}, "network", MLP),
    ({"network.kind": "minatar"}, "network", MinAtarNet),
    ({"network.kind": "resnet"}, "network", ResNet),
    ({"network.kind": "impala"}, "network", Impala),
    ({"network.kind": "cnn"}, "network", Layered),
    ({"network.kind": "joined"}, "network", Branches),
    ({"network.kind": "der"}, "network", Layered),
    ({"network.kind": "layers", "network.layers": ("linear 8",)}, "network", Layered),
    ({"network.kind": "own", "network.factory": f"{__name__}:module"}, "network", ModuleNetwork),
    ({"estimator.kind": "scalar"}, "estimator", Scalar),
    ({"estimator.kind": "quantile"}, "estimator", Quantile),
    ({"estimator.kind": "categorical"}, "estimator", Categorical),
    ({"estimator.kind": "implicit"}, "estimator", Implicit),
    ({"estimator.kind": "hl_gauss"}, "estimator", HLGauss),
    ({"operator.kind": "controlled"}, "operator", Controlled),
    ({"operator.kind": "greedy", **NEUTRAL}, "operator", Greedy),
    ({"operator.kind": "double", **NEUTRAL}, "operator", Double),
    ({"operator.kind": "maxmin", **NEUTRAL}, "operator", Maxmin),
    ({"operator.kind": "rem", **NEUTRAL}, "operator", Mixture),
    ({"operator.kind": "ebql", **NEUTRAL}, "operator", Others),
    ({"operator.kind": "tqc", **NEUTRAL}, "operator", Pooled),
    ({"operator.kind": "softmax", **NEUTRAL}, "operator", Softmax),
    ({"operator.kind": "munchausen", **NEUTRAL}, "operator", Munchausen),
    ({"regulation.trigger": "spike"}, "trigger", regulation.Spike),
    ({"regulation.trigger": "periodic"}, "trigger", regulation.Periodic),
    ({"regulation.trigger": "dormant"}, "trigger", regulation.Dormant),
    ({"regulation.trigger": "verdict", "monitor.every": 4}, "trigger", regulation.Verdict),
    ({"regulation.trigger": "none", "regulation.intervention": "recycle"}, "trigger", regulation.Always),
    ({"regulation.intervention": "replace", "regulation.target": "keep"}, "intervention", regulation.Replace),
    ({"regulation.intervention": "inject", "regulation.trigger": "periodic"}, "intervention", regulation.Inject),
    (
        {"regulation.intervention": "answer", "regulation.trigger": "verdict", "monitor.every": 4},
        "intervention",
        regulation.Answer,
    ),
    ({"regulation.intervention": "reinitialise"}, "intervention", regulation.Reinitialise),
    ({"regulation.intervention": "shrink_perturb"}, "intervention", regulation.ShrinkPerturb),
    ({"regulation.intervention": "recycle", "regulation.trigger": "dormant"}, "intervention", regulation.Recycle),
    ({"ensemble.act": "mean"}, "acting", acting.Mean),
    ({"ensemble.act": "minimum"}, "acting", acting.Minimum),
    ({"ensemble.act": "member"}, "acting", acting.OneMember),
    ({"ensemble.act": "optimistic"}, "acting", acting.Optimistic),
]


@pytest.mark.parametrize(("changes", "part", "kind"), BUILT, ids=[kind.__name__ for _, _, kind in BUILT])
def test_a_kind_builds_what_its_name_says(changes: dict[str, Any], part: str, kind: type) -> None:
    recipe = (BESIDE if kind is Branches else BASE).override(changes)
    rules = build.regulation_for(recipe)
    assert rules is not None
    built = {
        "network": build.network_for(recipe, envs.spec(recipe.env, recipe.protocol)),
        "estimator": build.estimator_for(recipe),
        "operator": build.operator_for(recipe),
        "trigger": rules.trigger,
        "intervention": rules.intervention,
        "acting": build.acting_for(recipe, training=True),
    }
    assert type(built[part]) is kind


def test_every_kind_of_an_axis_is_named_above() -> None:
    """A new kind that is built as another would pass the tests before."""
    named = {(name, value) for changes, _, _ in BUILT for name, value in changes.items()}
    switches = {"network.kind", "estimator.kind", "operator.kind", "ensemble.act", "regulation.trigger"}
    assert {choice for choice in choices() if choice[0] in switches} <= named
    interventions = {value for name, value in choices() if name == "regulation.intervention"}
    assert interventions - {"none"} == {value for name, value in named if name == "regulation.intervention"}
    assert build.regulation_for(BASE.override({"regulation.intervention": "none"})) is None


def test_every_number_of_a_recipe_reaches_what_it_builds() -> None:
    recipe = BASE.override(
        {
            "estimator.kind": "categorical",
            "estimator.atoms": 11,
            "estimator.low": -3.0,
            "estimator.high": 7.0,
            "regulation.trigger": "periodic",
            "regulation.period": 17,
            "regulation.last": 34,
            "regulation.intervention": "shrink_perturb",
            "regulation.encoder": 0.2,
            "regulation.head": 0.7,
            "regulation.target": "own",
            "ensemble.act": "optimistic",
            "ensemble.bonus": 2.5,
            "ensemble.learn": "some",
            "replay.shift": 3,
            "replay.intensity": 0.1,
            "replay.n_step": "4 -> 2 linear 9 updates",
            "optim.rate": "0.01 -> 0.001 linear 9 updates",
            "optim.decay": 0.2,
        }
    )
    spec = envs.spec(recipe.env, recipe.protocol)
    assert build.estimator_for(recipe) == Categorical(11, -3.0, 7.0)
    assert build.regulation_for(recipe) == regulation.Regulation(
        regulation.Periodic(17, 34), regulation.ShrinkPerturb(0.2, 0.7), "own"
    )
    assert build.acting_for(recipe, training=True) == acting.Optimistic(2.5)
    layout = build.draw_layout(recipe, spec)
    assert (layout.members, layout.batch, layout.keep, layout.masked, layout.augmented) == (2, 8, 0, 0.5, True)
    augmentation = build.augmentation_for(recipe, spec)
    assert (augmentation.shift, augmentation.intensity) == (3, 0.1)
    assert build.ring_for(recipe, spec, torch.device("cpu")).n == 4
    learner = build.learner_for(recipe, spec, torch.Generator(), torch.device("cpu"))
    assert (learner.settings.adam.rate, learner.settings.adam.decay) == (0.01, 0.2)
    assert not learner.settings.unit_steps
    rules = {"regulation.intervention": "replace", "regulation.target": "keep", "regulation.trigger": "none"}
    replacing = BASE.override({**rules, "regulation.replacement": 0.03, "regulation.maturity": 7})
    utility = build.learner_for(replacing, spec, torch.Generator(), torch.device("cpu")).utility
    assert utility is not None
    assert (utility.settings.rate, utility.settings.maturity) == (0.03, 7)
    assert learner.utility is None
    injecting = {"regulation.intervention": "inject", "regulation.trigger": "periodic", "regulation.period": 19}
    once = build.regulation_for(BASE.override(injecting))
    assert once is not None
    assert once.trigger == regulation.Periodic(19, 19)
    assert isinstance(build.network_for(BASE.override(injecting), spec), Injected)
    shaped = build.network_for(BASE.override({"network.activation": "crelu", "regulation.spectral": True}), spec)
    assert shaped.spectral_layers == ("hidden",)
    assert shaped.layers["head"].inputs == 2 * shaped.layers["hidden"].outputs
    implicit = BASE.override(
        {
            "estimator.kind": "implicit",
            "estimator.samples": 9,
            "estimator.fixed": 5,
            "estimator.cosines": 7,
            "estimator.kappa": 0.5,
            "estimator.reduction": "sum",
        }
    )
    assert build.estimator_for(implicit) == Implicit(9, 5, 0.5, "sum")
    assert build.network_for(implicit, spec).cosines == 7
    assert build.ensemble_for(implicit, spec).fixed == 5
    assert build.draw_layout(implicit, spec).samples == 9
    smeared = {"estimator.kind": "hl_gauss", "estimator.atoms": 11, "estimator.smoothing": 0.5}
    assert build.estimator_for(BASE.override(smeared)) == HLGauss(11, -10.0, 10.0, 0.5)
    operators = {
        Maxmin(2): {"operator.kind": "maxmin", "operator.subset": 2},
        Pooled(3): {"operator.kind": "tqc", "operator.drop": 3},
        Softmax(build.estimator_for(BASE), 0.5): {"operator.kind": "softmax", "operator.temperature": 0.5},
        Munchausen(0.1, 0.5, -2.0): {
            "operator.kind": "munchausen",
            "operator.temperature": 0.1,
            "operator.scale": 0.5,
            "operator.least": -2.0,
        },
    }
    for operator, numbers in operators.items():
        assert build.operator_for(BASE.override({**NEUTRAL, **numbers})) == operator
    averaged = BASE.override({"operator.snapshots": 4, "optim.hard_copy_every": 7, "ensemble.certainty": 3.0})
    settings = build.learner_for(averaged, spec, torch.Generator(), torch.device("cpu")).settings
    assert (settings.snapshots, settings.hard_copy_every, settings.certainty) == (4, 7, 3.0)
    prior = build.network_for(BASE.override({"ensemble.prior": 2.0}), spec)
    assert isinstance(prior, WithPrior)
    assert (prior.scale, prior.network) == (2.0, build.network_for(BASE, spec))
    pulled = {"regulation.pull": 0.1, "regulation.parseval": 0.2, "regulation.project": True, "network.norm": "layer"}
    pulled = build.learner_for(BASE.override(pulled), spec, torch.Generator(), torch.device("cpu")).settings.penalties
    assert pulled == Penalties(0.1, 0.2, True)
    ahead = BASE.override({"auxiliary.kind": "spr", "auxiliary.steps": 3, "auxiliary.weight": 2.0})
    assert build.auxiliary_for(ahead) == SelfPrediction(3, 2.0)
    assert build.auxiliary_for(BASE) is None
    assert build.network_for(ahead, spec).transition == spec.num_actions
    assert build.ring_for(ahead, spec, torch.device("cpu")).future == build.draw_layout(ahead, spec).future == 3
    told = {"auxiliary.weight": 0.5, "auxiliary.units": 9, "auxiliary.momentum": 0.8, "auxiliary.shift": 2}
    apart = BASE.override({"auxiliary.kind": "curl", **told})
    assert build.auxiliary_for(apart) == Contrastive(0.5, 0.8)
    assert build.network_for(apart, spec).contrast == 9
    assert build.network_for(apart, spec).transition == 0
    assert build.augmentation_for(apart, spec).compared == 2
    assert build.draw_layout(apart, spec).compared
    assert build.ring_for(apart, spec, torch.device("cpu")).future == 0
    assert not build.draw_layout(apart.override({"auxiliary.shift": 0}), spec).compared
    noisy = BASE.override({"network.noisy": 0.3})
    assert build.network_for(noisy, spec).noisy == 0.3
    assert build.draw_layout(noisy, spec).noise == build.ensemble_for(noisy, spec).noise_size > 0
    dormant = {"regulation.trigger": "dormant", "regulation.dormant": 0.3, "regulation.dormant_share": 0.2}
    recycling = BASE.override({**dormant, "regulation.intervention": "recycle"})
    assert build.regulation_for(recycling) == regulation.Regulation(
        regulation.Dormant(0.3, 0.2), regulation.Recycle(0.3)
    )
    assert build.learner_for(recycling, spec, torch.Generator(), torch.device("cpu")).settings.unit_steps
    assert build.regulation_for(BASE.override({"regulation.threshold": 9.0})) == regulation.Regulation(
        regulation.Spike(9.0), regulation.Reinitialise()
    )


def test_images_are_augmented_and_nothing_else() -> None:
    cartpole = presets.steady("CartPole-v1", **{"compute.device": "cpu"})
    contrast = {"auxiliary.kind": "curl", "auxiliary.shift": 4}
    for name, changes in (
        ("replay.shift", {"replay.shift": 4}),
        ("replay.intensity", {"replay.intensity": 0.05}),
        ("auxiliary.shift", contrast),
    ):
        recipe = cartpole.override(changes)
        with pytest.raises(UserError, match=rf"^{name} needs image observations, Gymnasium/CartPole-v1 has shape"):
            everything(recipe)
    everything(cartpole.override({**contrast, "auxiliary.shift": 0}))
