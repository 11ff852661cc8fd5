"""The paper's tables that come out of the code: hyper-parameters and monitored layers."""

from rich.console import Group
from rich.table import Table

from steadyq import envs
from steadyq.build import ensemble_for
from steadyq.fields import has
from steadyq.recipe import Recipe
from steadyq.schedule import Schedule


def hyperparameter_rows(recipe: Recipe) -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows of the paper's Tables 4 and 6, by group, from a recipe."""
    protocol, replay, optim, epsilon = recipe.protocol, recipe.replay, recipe.optim, Schedule.of(recipe.explore.epsilon)
    training = [
        ("Total environment steps", f"{recipe.steps:,}"),
        ("Discount factor gamma", str(Schedule.of(optim.gamma))),
        ("Learning rate", f"{Schedule.of(optim.rate)} (Adam)"),
        ("Batch size", f"{replay.batch}"),
        ("Replay buffer size", f"{replay.capacity:,}"),
        ("Start learning after steps", f"{replay.warmup:,}"),
        ("Training frequency", f"every {replay.every} step{'s' * (replay.every > 1)}"),
        (
            ("Soft target update rate tau", f"{optim.tau:g}")
            if optim.hard_copy_every == 0
            else ("Hard target copy every", f"{optim.hard_copy_every:,} updates")
        ),
        ("Replay ratio", f"{replay.ratio}"),
        ("Gradient clipping", f"{optim.clip:g} per member"),
        ("Parameter reset threshold", _threshold(recipe)),
        ("n-step", f"{replay.n_step}"),
    ]
    exploring = [
        ("Initial epsilon", f"{epsilon.start:g}"),
        ("Final epsilon", f"{epsilon.end:g}"),
        ("Epsilon decay steps", f"{epsilon.over:,}"),
    ]
    if replay.alpha:
        buffer = [
            ("Prioritization exponent alpha", f"{replay.alpha:g}"),
            ("Importance sampling exponent beta", f"{replay.beta:g}"),
            ("Priority epsilon", f"{replay.epsilon:g}"),
        ]
    else:
        buffer = [("Sampling", "uniform")]
    estimator = recipe.estimator
    none = f"none ({estimator.kind})"
    values = [
        ("Number of quantiles", f"{estimator.quantiles}" if has(estimator, "quantiles") else none),
        ("Ensemble size", f"{recipe.ensemble.members}"),
        ("Huber parameter kappa", f"{estimator.kappa:g}" if has(estimator, "kappa") else none),
        ("Operator", recipe.operator.kind),
        ("Exchange between members", recipe.operator.exchange),
        ("Rewarded action forbidden", recipe.operator.forbid),
        ("Ceiling on targets", recipe.operator.ceiling),
    ]
    spec = envs.spec(recipe.env, protocol)
    observing = [
        ("Parallel environments", f"{protocol.lanes}"),
        ("Frame stack", f"{protocol.stack}"),
        ("Frame skip", f"{protocol.frame_skip}"),
        ("Observation", " x ".join(map(str, spec.observation_shape))),
        ("Reward seen by the learner", protocol.reward),
    ]
    if protocol.backend == "procgen":
        observing += [
            ("Training levels", f"{protocol.train_levels}"),
            (
                "Evaluation levels",
                "unseen procedural levels" if not protocol.test_levels else f"{protocol.test_levels}",
            ),
        ]
    if recipe.network.kind == "resnet":
        observing.append(("Network", f"ResNet s={recipe.network.scale}, strides {recipe.network.strides}"))
    else:
        observing.append(("Network", recipe.network.kind))
    return [
        (f"Training ({recipe.env}, preset {recipe.preset}, scale {recipe.scale})", training),
        ("Exploration", exploring),
        ("Replay buffer", buffer),
        ("Distribution, ensemble, bootstrap", values),
        ("Observation", observing),
    ]


def _threshold(recipe: Recipe) -> str:
    section = recipe.regulation
    if section.intervention == "none":
        return "no resets"
    return f"{section.threshold:g}" if has(section, "threshold") else f"none ({section.trigger} {section.intervention})"


def hyperparameters(recipe: Recipe) -> Group:
    """The paper's hyper-parameter table from a recipe."""
    parts: list[Table] = []
    for title, rows in hyperparameter_rows(recipe):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2)
        )
        table.add_column(width=36)
        table.add_column()
        for name, value in rows:
            table.add_row(name, value)
        parts.append(table)
    return Group(*parts)


def layer_rows(recipe: Recipe) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """The paper's Table 3 from the built network: monitored layer, input shape, weight shape."""
    network = ensemble_for(recipe, envs.spec(recipe.env, recipe.protocol)).network
    return [(name, network.layers[name].input_shape, network.layers[name].weight_shape) for name in network.monitored]


def layers(recipe: Recipe) -> Table:
    """The paper's Table 3: every monitored layer of the built network."""
    table = Table("layer", "input", "weight", title="Monitored layers", title_justify="left", box=None)
    for name, inputs, weight in layer_rows(recipe):
        table.add_row(name, " x ".join(map(str, inputs)), " x ".join(map(str, weight)))
    return table
