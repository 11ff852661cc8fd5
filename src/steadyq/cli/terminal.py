"""What every command shares: where it prints, and how it answers a stop."""

import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

OUT = Console(highlight=False, soft_wrap=True)


def stoppable(work: Callable[[], Any]) -> int:
    """Run something that trains; a stop or a divergence is one line and its own exit code."""
    from steadyq.drive import Interrupted
    from steadyq.train import Diverged

    try:
        work()
    except Interrupted as stop:
        print(f"steadyq: {stop}", file=sys.stderr)
        return 130
    except Diverged as error:
        print(f"steadyq: {error}", file=sys.stderr)
        return 3
    return 0
