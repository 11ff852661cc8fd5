"""The `steadyq` command: each subcommand is one function; mistakes cost one line and exit with 2."""

import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Column, Table

from steadyq.cli.machine import bench, doctor, presets
from steadyq.cli.reading import compare, diagnose, report
from steadyq.cli.suites import paper, ppo, sweep
from steadyq.cli.terminal import OUT
from steadyq.cli.training import demo, evaluate, play, train
from steadyq.errors import UserError, nearest
from steadyq.recipe import Upgraded


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 wrong input, 3 diverged, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        sys.exit(_noting(words))
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"steadyq: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("steadyq: interrupted; what was saved before stays", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        if debug:
            raise
        print(f"steadyq: {error.filename or error}: {error.strerror or 'cannot be used'}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if debug:
            raise
        print(f"steadyq: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        sys.exit(1)


def _noting(words: list[str]) -> int:
    """Run the command, and say in the end what was renamed in recipes of an older layout, a line each."""
    notes: dict[str, None] = {}
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *more: Any, **named: Any) -> None:
            if issubclass(category, Upgraded):
                notes[str(message)] = None
            else:
                plain(message, category, *more, **named)

        warnings.showwarning = show
        code = _dispatch(words)
    for note in notes:
        print(f"steadyq: {note}", file=sys.stderr)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _help()
        return 0
    if words[0] == "--version":
        from steadyq import __version__

        print(f"steadyq {__version__}")
        return 0
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}: {nearest(command, COMMANDS)}")
    return COMMANDS[command](rest)


def _help() -> None:
    from steadyq import __version__

    said = "deep Q-learning that stays stable, and shows why an agent does not"
    OUT.print(f"[bold]steadyq {__version__}[/]  {said}\n", markup=True)
    table = Table(Column(style="bold"), box=None, show_header=False, padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(name, (command.__doc__ or "").splitlines()[0])
    OUT.print(table)
    OUT.print("\n`steadyq COMMAND --help` shows a command's options; `--debug` with any command shows tracebacks.")


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "evaluate": evaluate,
    "play": play,
    "compare": compare,
    "report": report,
    "diagnose": diagnose,
    "sweep": sweep,
    "ppo": ppo,
    "presets": presets,
    "paper": paper,
    "bench": bench,
    "doctor": doctor,
    "demo": demo,
}
