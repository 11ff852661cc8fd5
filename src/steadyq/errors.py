"""What a user did that cannot work, said in one line."""

import difflib
import unicodedata
from collections.abc import Iterable

SHOWN = 60
"""Most characters of a wrong value that a message repeats."""
LINE = 300
"""Most characters of somebody else's message."""
MESSAGE = 1000
"""Most characters of a message."""


class UserError(Exception):
    """A mistake in the input: the command line prints its message alone and exits with 2.

    Whatever the message repeats of the input, it is one line of text, and of one too long the beginning and the end.
    """

    def __init__(self, message: str) -> None:
        line = printable(" ".join(message.splitlines()))
        super().__init__(line if len(line) <= MESSAGE else f"{line[: MESSAGE - 300]} ... {line[-300:]}")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the hint that follows an unknown name: the closest known one, or all of them if none is close enough."""
    known = sorted(known)
    folded = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    return "choose one of " + ", ".join(known)


def shown(value: object) -> str:
    """A wrong value as a message repeats it: in one line, without control characters, not all of a very long one."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 20]}... ({len(text):,} characters)"


def one_line(text: object) -> str:
    """Somebody else's words in one line, cut where they become long."""
    words = " ".join(str(text).split())
    return words if len(words) <= LINE else f"{words[:LINE]} ..."


def out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory has run out; PyTorch says so in a RuntimeError."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in said or "out of memory" in said


def printable(text: str) -> str:
    """Text as a terminal may show it: control characters, whose sequences command a terminal, are spelt out."""
    return text if text.isascii() and text.isprintable() else "".join(map(_spelt, text))


def _spelt(character: str) -> str:
    commands = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in "\n\t"
    return character.encode("unicode_escape").decode() if commands else character
