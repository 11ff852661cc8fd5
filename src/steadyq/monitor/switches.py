"""What to try against a finding: options that the run's own recipe takes, whole, and not those it has already.

One intervention regulates a run. Where there is one nobody is told to put another in its place: under planned resets
`reinitialise` would redraw every layer at each of them. What acts in every update goes with all of them.

Where docs/studies.md measured a remedy the reason says what it moved there, and nothing of scores: few followed.
`regulation.pull` is not offered, because at the one weight that was tried nothing was learned any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from steadyq.errors import UserError
from steadyq.monitor.advice import Switch
from steadyq.recipe import Recipe


@dataclass(frozen=True)
class Offer:
    """Options that belong together, or words, and why."""

    what: Mapping[str, Any] | str
    """Values by dotted name, each a value or a function of the recipe that has the finding."""
    why: str = ""
    where: Callable[[Recipe], bool] = lambda recipe: True
    """Recipes in which it would do something, and nothing else than it says."""

    def because(self, why: str) -> "Offer":
        """The same for another reason."""
        return replace(self, why=why)

    def switch(self, recipe: Recipe | None) -> Switch | None:
        """As an option of a recipe's own; None where it has it, does not take it, or would gain nothing by it."""
        if isinstance(self.what, str):
            return (self.what, self.why) if recipe is None or self.where(recipe) else None
        if recipe is None:
            return _joined({name: value for name, value in self.what.items() if not callable(value)}), self.why
        if not self.where(recipe):
            return None
        wanted = {name: value(recipe) if callable(value) else value for name, value in self.what.items()}
        changes = {name: value for name, value in wanted.items() if _now(recipe, name) != value}
        try:
            recipe.override(changes)
        except UserError:
            return None
        return (_joined(changes), self.why) if changes else None


def taken_by(offers: tuple[Offer, ...], recipe: Recipe | None) -> tuple[Switch, ...]:
    """What is left of offers for a recipe; all of them, where it is somebody else's code."""
    found = (offer.switch(recipe) for offer in offers)
    return tuple(switch for switch in found if switch is not None)


def _joined(changes: Mapping[str, Any]) -> str:
    return " + ".join(f"{name} {value}" for name, value in changes.items())


def _now(recipe: Recipe, name: str) -> Any:
    section, _, leaf = name.partition(".")
    return getattr(getattr(recipe, section), leaf)


def _unregulated(recipe: Recipe) -> bool:
    return recipe.regulation.intervention == "none"


def _plain(recipe: Recipe) -> bool:
    """Whether the operator may become the controlled one without losing what the algorithm is named for."""
    return recipe.operator.kind in ("controlled", "greedy", "double")


def _selector(recipe: Recipe) -> str:
    """Who selects already."""
    return "online" if recipe.operator.kind == "double" else recipe.operator.selector


def _bootstraps_next(recipe: Recipe) -> bool:
    """Whether the state that is bootstrapped from is the next one: only there the rewarded action is forbidden."""
    return recipe.replay.largest_n == 1 or recipe.operator.forbid_until == "any_step"


def _quickly(recipe: Recipe) -> bool:
    """Whether targets look back over fewer updates than with the slow targets that are offered."""
    optim = recipe.optim
    return (optim.hard_copy_every or 1 / max(optim.tau, 1e-9)) < 200


CEILING = Offer({"operator.ceiling": "running_max"}, "holds targets below the best return seen")
EXCHANGE = Offer(
    {
        "operator.kind": "controlled",
        "operator.exchange": "derangement",
        "operator.selector": _selector,
        "ensemble.members": lambda recipe: max(4, recipe.ensemble.members),
    },
    "members value the actions that others select",
    lambda recipe: _plain(recipe) and (recipe.operator.exchange == "none" or recipe.ensemble.members == 1),
)
FORBID = Offer(
    {"operator.kind": "controlled", "operator.forbid": "rewarded", "operator.selector": _selector},
    "a rewarded action may not bootstrap from itself",
    lambda recipe: _plain(recipe) and _bootstraps_next(recipe),
)
SLOW = Offer({"optim.tau": 0.005, "optim.hard_copy_every": 0}, "slow targets", _quickly)
COPIES = Offer({"optim.hard_copy_every": 1000}, "or copies now and then", _quickly)
AVERAGE = Offer({"ensemble.members": 4}, "averages noise away", lambda recipe: recipe.ensemble.members < 4)
QUANTILE = Offer({"estimator.kind": "quantile"}, "", lambda recipe: recipe.estimator.kind == "scalar")
FEWER = Offer("a lower replay.ratio", "fewer updates on the same data", lambda recipe: recipe.replay.ratio > 1)
SELDOM = Offer("a larger replay.every", "fewer updates on the same data", lambda recipe: recipe.replay.ratio == 1)
RATE = Offer("a lower optim.rate")
CLIP = Offer("a lower optim.clip")
GAMMA = Offer("a lower optim.gamma", "shorter horizon")
BATCH = Offer("a larger replay.batch")

REDRAW = Offer(
    {"regulation.trigger": "spike", "regulation.intervention": "reinitialise"},
    "redraws a layer that spikes",
    _unregulated,
)
RECYCLE = Offer(
    {"regulation.trigger": "dormant", "regulation.intervention": "recycle", "regulation.target": "keep"},
    "redraws units that are dormant, alone",
    _unregulated,
)
SHRINK = Offer(
    {
        "regulation.trigger": "periodic",
        "regulation.intervention": "shrink_perturb",
        "regulation.period": lambda recipe: max(1, recipe.updates // 5),
    },
    "planned resets, a fifth of the run apart as BBF's",
    _unregulated,
)
ANSWER = Offer(
    {"regulation.trigger": "verdict", "regulation.intervention": "answer"},
    "such findings start what answers them",
    _unregulated,
)
LAYER_NORM = Offer({"network.norm": "layer"}, "", lambda recipe: recipe.network.norm == "none")
CRELU = Offer({"network.activation": "crelu"})
PARSEVAL = Offer({"regulation.parseval": 0.001}, "", lambda recipe: recipe.regulation.parseval == 0)
DECAY = Offer({"optim.decay": 0.1}, "", lambda recipe: recipe.optim.decay == 0)
