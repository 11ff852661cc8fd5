"""Runs of a sweep in a process of their own, one or several together: recipes come in on stdin, the ending goes out as
the exit code.

Each recipe is followed by a line that ends it, and stdin stays open as long as the sweep lives: when it closes, however
the sweep came to its end, the process stops between two steps with its state saved, or does not even begin.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

from steadyq.envs.modules import folders_of
from steadyq.errors import UserError, printable
from steadyq.recipe import Recipe
from steadyq.run.group import Apart, train_together
from steadyq.run.loop import Interrupted, train
from steadyq.run.step import Diverged
from steadyq.run.writer import Busy

Ending = Literal["finished", "refused", "diverged", "busy", "apart", "stopped", "crashed"]

EXIT: dict[Ending, int] = {
    "finished": 0, "crashed": 1, "refused": 2, "diverged": 3, "busy": 75, "apart": 76, "stopped": 130,
}  # fmt: skip

START = "import sys; sys.path += sys.argv[2:]; from steadyq.suite.worker import main; main()"
"""What the process runs: what it needs is found last, and nothing in the working folder at all (`isolated`)."""

END = "# that is all\n"


def search_path(recipe: Recipe) -> list[str]:
    """Where a run's process finds this package, and the module of the user's own environment if it has one."""
    own = folders_of(recipe.env, (*recipe.protocol.wrappers, recipe.network.factory))
    return [str(Path(__file__).parents[2]), *map(str, own)]


def isolated(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a Python that imports nothing from the working folder, where anybody's random.py may lie."""
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]  # an empty one means it
    return {**environment, "PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}


def send(stream: IO[str], recipe: Recipe) -> None:
    """Tell a process what to train; it stops when the stream is closed."""
    stream.write(recipe.to_toml() + END)
    stream.flush()


def receive(stream: IO[str]) -> Recipe | None:
    """What to train; None if the sweep went before it had said all."""
    lines: list[str] = []
    for line in iter(stream.readline, ""):
        if line == END:
            return Recipe.from_toml("".join(lines))
        lines.append(line)
    return None


def train_once(recipe: Recipe, folder: Path) -> tuple[Ending, str]:
    """Train or continue a run and say how it ended; only what nobody expected raises."""
    try:
        train(recipe, run=folder, quiet=True)
    except Interrupted as stop:
        return "stopped", str(stop)
    except Diverged as error:
        return "diverged", str(error)
    except Busy as error:
        return "busy", str(error)
    except UserError as error:
        return "refused", str(error)
    return "finished", ""


def train_all(recipes: Sequence[Recipe], folders: Sequence[Path]) -> tuple[Ending, str]:
    """Train or continue runs together, or the only one, and say how all of them ended."""
    if len(recipes) == 1:
        return train_once(recipes[0], folders[0])
    try:
        train_together(recipes, folders)
    except Interrupted as stop:
        return "stopped", str(stop)
    except Apart as why:
        return "apart", str(why)
    return "finished", ""


def main() -> None:
    """Train the recipes on stdin in the folders given."""
    folders = [Path(folder) for folder in json.loads(sys.argv[1])]
    with open(sys.stdin.fileno(), encoding="utf-8", closefd=False) as stream:
        received = [receive(stream) for _ in folders]
    recipes = [recipe for recipe in received if recipe is not None]
    if len(recipes) < len(folders):
        sys.exit(EXIT["stopped"])
    threading.Thread(target=_stop_at_end, args=(sys.stdin.fileno(),), daemon=True).start()
    ending, message = train_all(recipes, folders)
    if message:
        print(printable(message), file=sys.stderr, flush=True)
    sys.exit(EXIT[ending])


def _stop_at_end(handle: int) -> None:
    """Send this process SIGTERM when the sweep is gone: the loop saves its state, and before the loop there is none."""
    while os.read(handle, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
