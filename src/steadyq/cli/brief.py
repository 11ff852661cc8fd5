"""`steadyq train --help` in a screenful: what is used most, and which fields each section has."""

import ast
import dataclasses
import inspect
import textwrap
import typing
from typing import Any

from rich.table import Column, Table

from steadyq.cli.terminal import OUT
from steadyq.fields import flatten, has
from steadyq.recipe import Recipe

COMMON = {
    "where it begins": ("preset", "scale", "steps", "seed"),
    "your own": ("protocol.kwargs", "protocol.wrappers", "network.kind", "network.hidden", "network.layers"),
    "the three axes": ("operator.kind", "operator.forbid", "estimator.kind", "regulation.intervention"),
    "plain settings": (
        "ensemble.members",
        "optim.rate",
        "optim.gamma",
        "replay.ratio",
        "replay.batch",
        "replay.capacity",
        "explore.epsilon",
        "protocol.lanes",
    ),
    "while it runs": (
        "evaluation.every",
        "evaluation.target",
        "evaluation.patience",
        "record.wandb",
        "compute.device",
    ),
}
"""Options by what they are for; all others are found by their section."""

OTHERWISE = {"protocol.kwargs": "--env.kwargs", "protocol.wrappers": "--env.wrappers"}


def train_help(recipe: Recipe) -> None:
    """Print the short help of `train`, with the recipe's values."""
    values = flatten(recipe.to_dict())
    OUT.print("usage: steadyq train ENV [--option value ...]\n")
    OUT.print(
        "Train an agent on ENV, or continue it: the same command goes on where the run stopped. ENV is MinAtar/<Game>, "
        "Atari/<Game>, Procgen/<Game>, a Gymnasium id, or module:name of your own.",
        soft_wrap=False,
    )
    table = Table(Column(no_wrap=True, style="bold"), Column(ratio=1), box=None, show_header=False, padding=(0, 1))
    table.expand = True
    for title, names in COMMON.items():
        table.add_row("", "")
        table.add_row(title, "", style="italic")
        if title == "where it begins":
            table.add_row("  --run PATH", "folder of the run; by default named by all that differs from the preset")
            table.add_row("  --tuned", "begin with the recipe tuned for ENV, where there is one (`presets --tuned`)")
            table.add_row("  --recipe FILE", "begin with a recipe from a file")
        for name in names:
            option = OTHERWISE.get(name, f"--{name.replace('_', '-')}")
            table.add_row(f"  {option}", f"{_first_sentence(_explained(recipe, name))} ({_shown(values[name])})")
    OUT.print(table)
    OUT.print("\nEvery field of a recipe is an option, --section.field:")
    for section in dataclasses.fields(Recipe):
        own = getattr(recipe, section.name)
        if dataclasses.is_dataclass(own):
            fields = [f.name for f in dataclasses.fields(own) if not hasattr(own, "owners") or has(own, f.name)]
            said = f"{section.name + '.':<12} {', '.join(name.replace('_', '-') for name in fields)}"
            OUT.print(
                textwrap.fill(
                    said, min(OUT.width, 110), initial_indent="  ", subsequent_indent=" " * 15, break_on_hyphens=False
                )
            )
    OUT.print("\n`steadyq train ENV --help-all` explains each, with its default for ENV.")


def _explained(recipe: Recipe, name: str) -> str:
    """The text below a field."""
    section, _, leaf = name.rpartition(".")
    kind = type(getattr(recipe, section)) if section else type(recipe)
    hint = typing.get_type_hints(kind)[leaf]
    if leaf in ("kind", "intervention") and typing.get_origin(hint) is typing.Literal:
        return ", ".join(typing.get_args(hint))
    return " ".join(field_texts(kind)[leaf].split()).partition(" (also --env")[0]


def field_texts(kind: type[Any]) -> dict[str, str]:
    """What stands below each field of a dataclass in its source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Constant):
            found[field.target.id] = str(text.value)
    return found


def _first_sentence(text: str) -> str:
    first = text.split("; ")[0].split(". ")[0].rstrip(".")
    return first if len(first) < 150 else textwrap.shorten(first, 150, placeholder=" ...")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)
