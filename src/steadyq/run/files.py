"""Files that are whole or absent."""

import os
from pathlib import Path

UNFINISHED = ".unfinished"


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = file.with_suffix(file.suffix + UNFINISHED)
    beside.write_text(text)
    sync(beside)
    os.replace(beside, file)


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
