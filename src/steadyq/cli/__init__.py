"""The `steadyq` command: each subcommand is one function; mistakes cost one line and exit with 2."""

import errno
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.table import Column, Table

from steadyq.cli.terminal import OUT, complain
from steadyq.errors import UserError, nearest, one_line, out_of_memory, printable, shown
from steadyq.run.files import NO_VERIFY


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 wrong input, 3 diverged, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug, brave = "--debug" in words, "--no-verify" in words
    words = [word for word in words if word not in ("--debug", "--no-verify")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that the terminal does not have is not worth a run
    try:
        with _environment(NO_VERIFY, "1" if brave else None):
            sys.exit(_dispatch(words))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted; what was saved before stays")
        sys.exit(130)
    except Exception as error:
        if debug:
            print(printable(traceback.format_exc()), file=sys.stderr)
        code, line = _explained(error)
        complain(line)
        sys.exit(code)


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code and the line that an error costs."""
    if isinstance(error, UserError):
        return 2, str(error)
    if out_of_memory(error):
        return 1, f"memory has run out ({one_line(error)}); what a run had saved stays, and the same command continues"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return 2 if error.errno in WRONG else 1, str(UserError(f"{where}{error.strerror}"))
    return 1, f"{type(error).__name__}: {one_line(error)} (--debug shows where)"


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
    for word in words:
        try:
            word.encode()
            os.fsencode(word)
        except UnicodeEncodeError:
            raise UserError(f"{shown(word)} is no text here: rename the file, or set LC_ALL=C.UTF-8") from None
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
    from steadyq.envs.modules import no_imports

    notes: dict[str, None] = {}

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        notes[one_line(message)] = None

    with nullcontext() if command in IMPORTING else no_imports(), warnings.catch_warnings():
        warnings.showwarning = note
        module, _ = COMMANDS[command]
        code: int = getattr(importlib.import_module(f"steadyq.cli.{module}"), command)(rest)
    for said in notes:  # a command that fails costs one line, its own
        complain(said)
    return code


def _help() -> None:
    from steadyq import __version__

    said = "deep Q-learning that stays stable, and shows why an agent does not"
    OUT.print(f"[bold]steadyq {__version__}[/]  {said}\n", markup=True)
    table = Table(Column(style="bold"), box=None, show_header=False, padding=(0, 2))
    for name, (_, does) in COMMANDS.items():
        table.add_row(name, does)
    OUT.print(table)
    OUT.print("\n`steadyq COMMAND --help` shows a command's options. With any command, `--debug` shows tracebacks, and")
    OUT.print("`--no-verify` takes files that are not what was written, by their digests, as they are.")


WRONG = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EROFS)
"""What the system says of a place that was badly chosen."""

IMPORTING = ("train", "evaluate", "play", "export", "share", "sweep", "tune")
"""Commands that play games, and import the module of a user's own for it; they say so."""

COMMANDS = {
    "train": ("training", "Train an agent, or continue it: `steadyq train MinAtar/Breakout`."),
    "evaluate": ("training", "Play full games with a run's weights: `steadyq evaluate RUN`."),
    "play": ("training", "Show a run's agent in a video or a window: `steadyq play RUN --out game.mp4`."),
    "export": (
        "deploying",
        "Write a run's agent to an ONNX file, or its experience to a dataset: `steadyq export RUN --onnx agent.onnx`.",
    ),
    "share": ("deploying", "Put an agent with its card into a folder, or on a hub: `steadyq share RUN --to FOLDER`."),
    "compare": ("reading", "Print scores of several runs with intervals over seeds: `steadyq compare RUN...`."),
    "report": ("reading", "Write one page about one or more runs: `steadyq report RUN... --out report.html`."),
    "diagnose": ("reading", "Say what is unstable in a run, and what to try: `steadyq diagnose RUN`."),
    "sweep": (
        "suites",
        "Run games x seeds x variants, or continue them: `steadyq sweep decoupling --games MinAtar/Breakout`.",
    ),
    "tune": ("tuning", "Search for a better recipe, several seeds a trial: `steadyq tune CartPole-v1 --trials 30`."),
    "ppo": ("suites", "Train Procgen's PPO baseline, or continue it: `steadyq ppo CoinRun`."),
    "presets": ("machine", "List the presets, or print one: `steadyq presets steady --scale paper`."),
    "paper": ("suites", "Recompute the paper's tables and check its numbers: `steadyq paper check`."),
    "bench": ("machine", "Time updates, acting and environments on this machine: `steadyq bench --json times.json`."),
    "doctor": ("machine", "Say what is installed, which environments work, and whether there is a GPU."),
    "demo": ("training", "Train on a small game, film it, write a page about it: what `make demo` runs."),
}
"""Each command's module here, which loads when it is called, and what the command does."""
