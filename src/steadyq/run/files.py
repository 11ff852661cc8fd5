"""Files that are whole or absent."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

UNFINISHED = ".unfinished"


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = file.with_suffix(file.suffix + UNFINISHED)
    beside.write_text(text)
    sync(beside)
    os.replace(beside, file)


def append_row(log: IO[str], row: Mapping[str, Any]) -> None:
    """Append one row to a JSONL log; when this returns, a reader sees it."""
    log.write(json.dumps(row) + "\n")
    log.flush()


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
