"""Modules of a user's own environments, `module:Id-v0`: imported to play their games, never to read about them."""

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from steadyq.errors import UserError, shown

_importing: ContextVar[bool] = ContextVar("importing", default=True)


@contextmanager
def no_imports() -> Iterator[None]:
    """Within the block, an environment whose module would have to be imported raises: a name in a file is no order."""
    before = _importing.set(False)
    try:
        yield
    finally:
        _importing.reset(before)


def module_of(game: str) -> str | None:
    """The module that a Gymnasium id names, if it names one."""
    module, colon, name = game.removeprefix("Gymnasium/").partition(":")
    if not colon:
        return None
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module) or not re.fullmatch(r"[\w./:-]+", name):
        raise UserError(f"{shown(game)} names no module and environment, such as module:Id-v0")
    return module


def may_import(game: str) -> None:
    """Raise if making this game would import a module where that is not wanted."""
    if (module := module_of(game)) is not None and not _importing.get():
        raise UserError(f"{game} is made by the module {module}, which only train, evaluate, play and sweep import")


def said_import(game: str) -> str:
    """What playing this game imports and from where, in words; empty if it imports nothing of the user's."""
    module, file = module_of(game), origin(game)
    return f"importing {module} ({file or 'not found'}) for {game}" if module else ""


def origin(game: str) -> Path | None:
    """Where the module of a game, or the package it is in, would be imported from; found without importing it."""
    if (module := module_of(game)) is None:
        return None
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    places = [found.origin, *(found.submodule_search_locations or ())] if found else []
    return next((Path(place) for place in places if place and place not in ("built-in", "frozen")), None)


def folder_of(game: str) -> Path | None:
    """The folder that has to be on the path for the game's module to be found."""
    if (file := origin(game)) is None:
        return None
    return file.parents[1] if file.stem == "__init__" else file.parent
