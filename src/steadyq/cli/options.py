"""A command's options: tyro parses them, and what it would explain in a box becomes one line."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import shlex
from typing import Any, TypeVar, cast, get_type_hints

import tyro

from steadyq.errors import SHOWN, UserError, one_line, shown
from steadyq.fields import flatten
from steadyq.recipe import Recipe, switches

T = TypeVar("T")


def parse(kind: type[T], words: list[str], default: T | None = None, recipe: Recipe | None = None) -> T:
    """Parse a command's options; what tyro would explain in a box becomes one line."""
    name = (kind.__name__.removesuffix("Options")).lower()
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            parsed = tyro.cli(kind, prog=f"steadyq {name}", args=words, default=default)
            return cast(T, parsed)
    except SystemExit as stop:
        if stop.code == 0:
            raise
        raise UserError(_explain(kind, words, box.getvalue(), recipe)) from None


def spelt(words: list[str]) -> list[str]:
    """The words with `--env.kwargs` and `--env.wrappers` as the fields of the protocol that they are."""
    options = [word.partition("=")[0] for word in words]
    return [_FIELDS.get(option, option) + word[len(option) :] for option, word in zip(options, words, strict=True)]


def placed(words: list[str]) -> list[str]:
    """The words with an environment that is given as an option, as other libraries have it, in its place."""
    for name in ("--env", "--env-id"):
        if name in words[:-1]:
            at = words.index(name)
            words = [words[at + 1], *words[:at], *words[at + 2 :]]
    return words


def made_with(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """What an environment is made with and its wrappers, by words that are `spelt`, and the words without them."""
    found: dict[str, list[str]] = {name: [] for name in _FIELDS.values()}
    rest, into = list[str](), None
    for word in words:
        option, equals, value = word.partition("=")
        if word.startswith("--"):
            into = found.get(option)
            if into is None:
                rest.append(word)
            elif equals:
                into.append(value)
        else:
            (rest if into is None else into).append(word)
    kwargs, wrappers = found.values()
    return kwargs, wrappers, rest


def factories_named(words: list[str]) -> list[str]:
    """The function that makes the network, if the words name one."""
    joined = [word.replace("--network.factory=", "--network.factory\0").split("\0") for word in words]
    flat = [part for parts in joined for part in parts]
    return [following for word, following in itertools.pairwise(flat) if word == "--network.factory"]


_FIELDS = {"--env.kwargs": "--protocol.kwargs", "--env.wrappers": "--protocol.wrappers"}


def with_kinds(recipe: Recipe, words: list[str]) -> Recipe:
    """The recipe with the kinds that the words choose, so that defaults are those of the new kinds."""
    chosen, known = dict[str, str](), switches(recipe)
    for word, following in zip(words, [*words, ""][1:], strict=True):
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and name in known and (equals or following):
            chosen[name] = value if equals else following
    return recipe.override(chosen)


def _explain(kind: type[Any], words: list[str], box: str, recipe: Recipe | None) -> str:
    """Say in one line what is wrong with the options: an unknown name with the nearest one, else tyro's first words."""
    hints = get_type_hints(kind, include_extras=True)
    names = {name for name, hint in hints.items() if tyro.conf.Positional not in getattr(hint, "__metadata__", ())}
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    names |= {f"{group}.{field.name}" for group, hint in groups.items() for field in dataclasses.fields(hint)}
    names -= {*groups, "recipe"}
    values = flatten(recipe.to_dict()) if recipe else {}
    names |= set(values)
    known = {"--" + name.replace("_", "-") for name in names}
    flags = {name for name, value in values.items() if isinstance(value, bool)}
    flags |= {name for name, hint in hints.items() if hint is bool}
    switches = {f"--{name}".replace("_", "-") for name in flags}
    known |= {_negated(switch) for switch in switches}
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        option = option.replace("_", "-")
        if not option.startswith("--"):
            continue
        if option not in known:
            return f"unknown option {word.split('=')[0][:SHOWN]}: {_nearest_option(option, known)}"
        name = option.removeprefix("--").replace("-", "_")
        if not equals:
            value = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else ""
        if hints.get(name) in (int, float, int | None, float | None) and value:
            whole = hints[name] in (int, int | None)
            try:
                int(value) if whole else float(value)
            except ValueError:
                return f"{option} must be a {'whole ' * whole}number, got {shown(value)}"
        if option in switches and (equals or value.lower() in ("true", "false", "0", "1", "yes", "no", "on", "off")):
            return f"{option} takes no value, got {shown(value)}: write {option} or {_negated(option)}"
        if recipe and isinstance(values.get(name), int | float | str) and not isinstance(values[name], bool):
            try:
                recipe.override({name: value})
            except UserError as error:
                return str(error)
    return _first_words(box)


def _negated(switch: str) -> str:
    head, dot, leaf = switch.removeprefix("--").rpartition(".")
    return f"--{head}{dot}no-{leaf}"


SYNONYMS = {
    "lr": "optim.rate",
    "learning-rate": "optim.rate",
    "batch-size": "replay.batch",
    "buffer-size": "replay.capacity",
    "learning-starts": "replay.warmup",
    "train-freq": "replay.every",
    "train-frequency": "replay.every",
    "gradient-steps": "replay.ratio",
    "replay-ratio": "replay.ratio",
    "target-update-interval": "optim.hard_copy_every",
    "target-network-frequency": "optim.hard_copy_every",
    "max-grad-norm": "optim.clip",
    "exploration-fraction": "explore.epsilon",
    "exploration-final-eps": "explore.epsilon",
    "total-timesteps": "steps",
    "timesteps": "steps",
    "n-envs": "protocol.lanes",
    "num-envs": "protocol.lanes",
    "env-kwargs": "protocol.kwargs",
    "env-wrapper": "protocol.wrappers",
    "net-arch": "network.hidden",
    "eval-freq": "evaluation.every",
    "n-eval-episodes": "evaluation.interim_episodes",
    "eval-episodes": "evaluation.interim_episodes",
    "save-freq": "record.checkpoint_every",
    "track": "record.wandb",
    "cuda": "compute.device",
    "algo": "preset",
    "n-quantiles": "estimator.quantiles",
}
"""What Stable-Baselines3, its zoo and CleanRL call an option of ours."""


def _nearest_option(option: str, known: set[str]) -> str:
    turned = _negated("--" + option.removeprefix("--no-"))
    if option.startswith("--no-") and turned in known:
        return f"did you mean {turned}?"
    leaf = option.removeprefix("--").split(".")[-1]
    if (ours := f"--{SYNONYMS.get(leaf, '')}".replace("_", "-")) in known:
        return f"did you mean {ours}?"
    if leaf == "seeds" and "--seed" in known:
        return "did you mean --seed? (several seeds: `steadyq sweep ENV --seeds 5`)"
    if (several := f"--env.{leaf}s") in _FIELDS:
        return f"did you mean {several}?"
    same_leaf = sorted(name for name in known if name.removeprefix("--").split(".")[-1] == leaf)
    close = same_leaf or difflib.get_close_matches(option, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "`--help` lists the options"


def _first_words(box: str) -> str:
    """The first paragraph of tyro's box."""
    said: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│ ").strip()
        if not text or set(text) <= set("─╭╮╰╯"):
            break
        said.append(text)
    text = " ".join(said) or "wrong options: `--help` lists them"
    return one_line(text.replace("Unrecognized options:", "one too many, `--help` shows what is expected:"))


def split_settings(words: list[str], base: Recipe) -> tuple[list[str], dict[str, Any]]:
    """Take `--section.field value` out of the words; a switch has no value, a list has several."""
    known, rest, settings = flatten(base.to_dict()), [], dict[str, Any]()
    queue = list(words)
    while queue:
        word = queue.pop(0)
        option, equals, value = word.partition("=")
        if not option.startswith("--") or "." not in option:
            rest.append(word)
            continue
        name = option.removeprefix("--").replace("-", "_")
        positive = name.replace(".no_", ".")
        if name not in known and isinstance(known.get(positive), bool) and not equals:
            settings[positive] = False
            continue
        if name not in known:
            near = _nearest_option(option, {"--" + each for each in known})
            raise UserError(f"unknown option {option[:SHOWN]}: {near}")
        values = [value] if equals else []
        several = isinstance(known[name], tuple)
        while not equals and queue and not queue[0].startswith("--") and not isinstance(known[name], bool):
            values.append(queue.pop(0))
            if not several:
                break
        if not values and not isinstance(known[name], bool):
            raise UserError(f"{option} needs a value")
        settings[name] = (shlex.join(values) if several else " ".join(values)) or True
    return rest, settings
