"""One run of a sweep in a process of its own: the recipe comes in on stdin, the ending goes out as the exit code.

`python -m steadyq.suite.worker FOLDER < recipe.toml`. The process ends, its state saved, when the sweep's process does.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Literal

from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.run.loop import Interrupted, train
from steadyq.run.step import Diverged
from steadyq.run.writer import Busy

Ending = Literal["finished", "refused", "diverged", "busy", "stopped", "crashed"]

EXIT: dict[Ending, int] = {"finished": 0, "crashed": 1, "refused": 2, "diverged": 3, "busy": 75, "stopped": 130}
PR_SET_PDEATHSIG = 1


def train_once(recipe: Recipe, folder: Path) -> tuple[Ending, str]:
    """Train or continue a run and say how it ended; only what nobody expected raises."""
    try:
        train(recipe, run=folder)
    except Interrupted as stop:
        return "stopped", str(stop)
    except Diverged as error:
        return "diverged", str(error)
    except Busy as error:
        return "busy", str(error)
    except UserError as error:
        return "refused", str(error)
    return "finished", ""


def main() -> None:
    """Train the recipe on stdin in the folder given."""
    end_with_parent()
    ending, message = train_once(Recipe.from_toml(sys.stdin.read()), Path(sys.argv[1]))
    if message:
        print(message, file=sys.stderr, flush=True)
    sys.exit(EXIT[ending])


def end_with_parent() -> None:
    """Ask Linux for SIGTERM when the sweep is gone, even killed: its runs save their state instead of going astray."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(EXIT["stopped"])


if __name__ == "__main__":
    main()
