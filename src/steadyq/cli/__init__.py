"""The `steadyq` command: each subcommand is one function; mistakes cost one line and exit with 2."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.table import Column, Table

from steadyq.cli.machine import bench, doctor, presets
from steadyq.cli.reading import compare, diagnose, report
from steadyq.cli.suites import paper, ppo, sweep
from steadyq.cli.terminal import OUT
from steadyq.cli.training import demo, evaluate, play, train
from steadyq.envs.modules import no_imports
from steadyq.errors import UserError, nearest
from steadyq.run.digests import NO_VERIFY


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 wrong input, 3 diverged, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug, brave = "--debug" in words, "--no-verify" in words
    words = [word for word in words if word not in ("--debug", "--no-verify")]
    try:
        with _environment(NO_VERIFY, "1" if brave else None):
            sys.exit(_dispatch(words))
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


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable, for the processes that the command starts too, unless the value is None."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


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
    with nullcontext() if command in IMPORTING else no_imports():
        return COMMANDS[command](rest)


def _help() -> None:
    from steadyq import __version__

    said = "deep Q-learning that stays stable, and shows why an agent does not"
    OUT.print(f"[bold]steadyq {__version__}[/]  {said}\n", markup=True)
    table = Table(Column(style="bold"), box=None, show_header=False, padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(name, (command.__doc__ or "").splitlines()[0])
    OUT.print(table)
    OUT.print("\n`steadyq COMMAND --help` shows a command's options. With any command, `--debug` shows tracebacks, and")
    OUT.print("`--no-verify` takes files that are not what was written, by their digests, as they are.")


IMPORTING = ("train", "evaluate", "play", "sweep")
"""Commands that play games, and import the module of a user's own for it; they say so."""

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
