"""What every command shares: where it prints, and how it answers a stop."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyq.errors import UserError, printable
from steadyq.run.files import belongs_to_a_run, replace_text
from steadyq.run.progress import SafeConsole

if TYPE_CHECKING:
    from steadyq.recipe import Recipe

OUT = SafeConsole()


def check_file(option: str, path: Path | None) -> None:
    """Raise, before any work is done, if this file cannot be written at its end."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UserError(f"{option} {path}: this is a folder; name a file in it")
    if belongs_to_a_run(path):
        raise UserError(f"{option} {path}: this file belongs to a run, which it would destroy; name another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path}: cannot be written")


def write_file(path: Path, text: str) -> None:
    """Write what a command was asked for, whole or not at all; a device or a pipe takes it as it comes."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        replace_text(path.resolve(), text)


def complain(words: object) -> None:
    """One line on stderr, if that is still there."""
    with contextlib.suppress(OSError):
        print(printable(f"steadyq: {words}".replace("\n", " ")), file=sys.stderr, flush=True)


def say_imports(*games: str, wrappers: Sequence[str] = ()) -> None:
    """Say which modules playing these games imports: they run with all rights of their user."""
    from steadyq.envs.modules import said_imports

    for said in dict.fromkeys(said for game in games for said in said_imports(game, wrappers)):
        OUT.print(said)


def say_imports_of(recipe: "Recipe") -> None:
    """Say which modules playing a recipe's games with its networks imports."""
    say_imports(recipe.env, wrappers=(*recipe.protocol.wrappers, recipe.network.factory))


def stoppable(work: Callable[[], Any]) -> int:
    """Run something that trains; a stop or a divergence is one line and its own exit code."""
    from steadyq.run.loop import Interrupted
    from steadyq.run.step import Diverged

    try:
        work()
    except Interrupted as stop:
        complain(stop)
        return 130
    except Diverged as error:
        complain(error)
        return 3
    return 0
