"""Modules of a user's own environments and wrappers: imported to play their games, never to read about them.

An environment is `module:Id-v0`, which the module registers with Gymnasium, or `module:name`, a class or function.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from steadyq.errors import UserError, shown

_importing: ContextVar[bool] = ContextVar("importing", default=True)

SCRIPT = "__main__"
WORKING_FOLDER = "modules are looked for where Python looks, and in the working folder"


@contextmanager
def no_imports() -> Iterator[None]:
    """Within the block, an environment whose module would have to be imported raises: a name in a file is no order."""
    before = _importing.set(False)
    try:
        yield
    finally:
        _importing.reset(before)


def module_of(game: str) -> str | None:
    """The module that an environment or a wrapper names, if it names one."""
    module, colon, name = game.removeprefix("Gymnasium/").partition("(")[0].partition(":")
    if not colon:
        return None
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module) or not re.fullmatch(r"[\w./:-]+", name):
        raise UserError(f"{shown(game)} names no module and environment, such as module:Id-v0")
    return module


def attribute_of(game: str) -> str | None:
    """The class or function that an environment names in its module; None for an id that the module registers."""
    name = game.removeprefix("Gymnasium/").partition(":")[2]
    return name if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) else None


def may_import(game: str, wrappers: Sequence[str] = ()) -> None:
    """Raise if making this game would import a module where that is not wanted; else let modules be found."""
    for name in (game, *wrappers):
        if (module := module_of(name)) is not None:
            if not _importing.get():
                raise UserError(
                    f"{name} is made by the module {module}, which only train, evaluate, play and sweep import"
                )
            findable(module)


def findable(module: str) -> None:
    """Let a module of the working folder be imported, if it lies there and nowhere else.

    The folder comes last in Python's path, and only for a module that was asked for by name: anybody's random.py may
    lie in it. A run's own folder is never taken: it may come from a stranger, with a module beside its recipe.
    """
    top, here = module.partition(".")[0], Path.cwd()
    if any((place / "recipe.toml").exists() for place in (here, *here.parents)):
        return
    if _found(top) is None and any((here / place).is_file() for place in (f"{top}.py", f"{top}/__init__.py")):
        sys.path.append(str(here))
        importlib.invalidate_caches()


def somebodys(game: str, wrappers: Sequence[str] = ()) -> bool:
    """Whether what it shows depends on somebody's own code."""
    return any(":" in name or "<" in name for name in (game, *wrappers))


def said_imports(game: str, wrappers: Sequence[str] = ()) -> list[str]:
    """What playing this game imports and from where, in words; nothing if it imports nothing of the user's."""
    named: dict[str, list[str]] = {}
    for name in (game, *wrappers):
        if module := module_of(name):
            named.setdefault(module, []).append(name)
    return [
        f"importing {module} ({origin(f) or 'not found'}) for {', '.join((f, *r))}" for module, (f, *r) in named.items()
    ]


def origin(game: str) -> Path | None:
    """Where the module of a game, or the package it is in, would be imported from; found without importing it."""
    if (module := module_of(game)) is None:
        return None
    if _importing.get():
        findable(module)
    return _found(module.partition(".")[0])


def refuse_inside(folder: Path, *names: str) -> None:
    """Raise if importing what any `module:name` names would run a file of this folder, whoever wrote that."""
    for name in names:
        file = origin(name)
        if file is not None and file.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{folder} names code of its author's own, {name}, and {file} is in the folder itself: nothing in "
                "there is run; install the module elsewhere if you trust it"
            )


def folders_of(game: str, wrappers: Sequence[str] = ()) -> list[Path]:
    """The folders that have to be on the path for the game's modules to be found."""
    files = [file for name in (game, *wrappers) if (file := origin(name)) is not None]
    return list(dict.fromkeys(file.parents[1] if file.stem == "__init__" else file.parent for file in files))


def _found(top: str) -> Path | None:
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    places = [found.origin, *(found.submodule_search_locations or ())] if found else []
    return next((Path(place) for place in places if place and place not in ("built-in", "frozen")), None)
