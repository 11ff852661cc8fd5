"""What to try, in the words of the code that was watched: its own parameters, by their own names and values."""

import re
from collections.abc import Mapping
from typing import Any

Switch = tuple[str, str]
"""(options that are set together, or advice in words; why)"""

_TARGETS = (
    ("target_update_interval", "a larger"),
    ("target_network_frequency", "a larger"),
    ("target_update_freq", "a larger"),
    ("tau", "a smaller"),
)
_PARAMETERS: dict[str, tuple[tuple[str, str], ...]] = {
    "optim.rate": (("learning_rate", "a lower"), ("lr", "a lower")),
    "optim.clip": (("max_grad_norm", "a lower"),),
    "optim.gamma": (("gamma", "a lower"),),
    "optim.tau": _TARGETS,
    "optim.hard_copy_every": _TARGETS,
    "replay.ratio": (
        ("gradient_steps", "fewer"),
        ("train_freq", "a larger"),
        ("train_frequency", "a larger"),
    ),
    "replay.every": (("train_freq", "a larger"), ("train_frequency", "a larger")),
    "replay.batch": (("batch_size", "a larger"),),
    "optim.decay": (("weight_decay", "a larger"),),
}
"""What our options are called elsewhere (Stable-Baselines3, CleanRL and Tianshou), and which way helps."""

_IDEAS = {
    "operator.ceiling": "a bound on targets at the best return seen",
    "operator.exchange": "an ensemble whose members choose the action that another one values",
    "operator.forbid": "targets that never bootstrap from the action just rewarded",
    "ensemble.members": "a mean over several networks",
    "estimator.kind": "a quantile or categorical loss",
    "network.norm": "LayerNorm",
    "network.activation": "CReLU in place of ReLU",
    "optim.decay": "weight decay apart from the gradient (AdamW)",
    "regulation.parseval": "a penalty on |W W^T - I|^2 of hidden layers",
    "regulation.trigger spike": "a reset of the layers that spike",
    "regulation.trigger dormant": "fresh weights for dormant units (ReDo)",
    "regulation.trigger periodic": "planned resets that blend the weights with fresh ones",
}
"""What our switches do, for code that has no parameter like them: found by what is in the option."""

_OURS = "regulation.trigger verdict"
"""What only a loop with our regulation in it can do."""


def in_their_words(switches: tuple[Switch, ...], parameters: Mapping[str, Any]) -> tuple[Switch, ...]:
    """The switches for somebody else's code: its own parameters where it has them, then ideas for what it has not."""
    said: dict[str, str] = {}
    ideas: dict[str, str] = {}
    for option, why in switches:
        if _OURS in option:
            continue
        name = next((name for name in _PARAMETERS if name in option), "")
        if own := _own(name, parameters):
            said |= {text: said.get(text) or why for text in own}
        else:
            idea = next((idea for ours, idea in _IDEAS.items() if ours in option), "")
            ideas[idea or why or re.sub(r"\b\w+\.(\w+)", r"\1", option)] = ""
    return (*said.items(), *ideas.items())


def _own(name: str, parameters: Mapping[str, Any]) -> list[str]:
    """Advice on what one of our options is called there; none where a parameter cannot go that way."""
    found = [(theirs, way) for theirs, way in _PARAMETERS.get(name, ()) if theirs in parameters]
    if ("tau", "a smaller") in found and len(found) > 1:  # copies, or a slow mixture: whichever is in use
        mixes = parameters["tau"] != 1
        found = [pair for pair in found if (pair[0] == "tau") == mixes]
    found = [pair for pair in found if pair[1] != "fewer" or parameters[pair[0]] != 1]
    return [f"{way} {theirs}, now {_shown(parameters[theirs])}" for theirs, way in found]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
