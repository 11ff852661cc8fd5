"""What a user did that cannot work, said in one line."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input: the command line prints its message alone and exits with 2."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the hint that follows an unknown name: the closest known one, or all of them if none is close enough."""
    known = sorted(known)
    folded = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    return "choose one of " + ", ".join(known)
