"""What every command shares: where it prints, and how it answers a stop."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from steadyq.envs.modules import said_import
from steadyq.errors import UserError

OUT = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
"""Prints what it is given, brackets of paths and messages included; a line with colours asks for `markup`."""


def check_file(option: str, path: Path | None) -> None:
    """Raise, before any work is done, if this file cannot be written at its end."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UserError(f"{option} {path}: this is a folder; name a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path}: cannot be written")


def say_imports(*games: str) -> None:
    """Say which modules playing these games imports: they run with all rights of their user."""
    for said in filter(None, map(said_import, dict.fromkeys(games))):
        OUT.print(said)


def stoppable(work: Callable[[], Any]) -> int:
    """Run something that trains; a stop or a divergence is one line and its own exit code."""
    from steadyq.run.loop import Interrupted
    from steadyq.run.step import Diverged

    try:
        work()
    except Interrupted as stop:
        print(f"steadyq: {stop}", file=sys.stderr)
        return 130
    except Diverged as error:
        print(f"steadyq: {error}", file=sys.stderr)
        return 3
    return 0
