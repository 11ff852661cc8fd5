"""Digests of what a run wrote: a file that is no longer what it was is named before anything is made of it.

A checkpoint's state.json and a run's result.json list files of the run folder under `files`, each with its size and
SHA-256 (of a log, which grows, those of its beginning), and their own SHA-256 beside that. Folders from before have
none, and are read as they are. Digests find damage and mix-ups, not somebody who computes them anew.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from steadyq.errors import UserError
from steadyq.run.files import NO_VERIFY, open_plain

CHUNK = 1 << 20
OTHERWISE = "bring back a copy, or take it as it is with --no-verify"

Stamp = dict[str, Any]
"""A file's `bytes` and `sha256`."""


def verifying() -> bool:
    """Whether digests are compared."""
    return not os.environ.get(NO_VERIFY)


class Running:
    """The digest of a log, kept as it grows."""

    def __init__(self, file: Path | None = None, size: int | None = None) -> None:
        """Begin with the first `size` bytes of a file, all of them by default."""
        self.bytes, self._sha256 = 0, hashlib.sha256()
        if file is None:
            return
        with open(open_plain(file), "rb", buffering=0) as stream:
            while size is None or self.bytes < size:
                part = stream.read(CHUNK if size is None else min(CHUNK, size - self.bytes))
                if not part:
                    break
                self.add(part)

    def add(self, part: bytes) -> None:
        """Take note of what was appended."""
        self._sha256.update(part)
        self.bytes += len(part)

    def stamp(self) -> Stamp:
        """Size and digest so far."""
        return {"bytes": self.bytes, "sha256": self._sha256.hexdigest()}


def stamp(file: Path) -> Stamp:
    """Size and digest of a whole file."""
    return Running(file).stamp()


def sealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the digest of its own contents."""
    own = {name: value for name, value in table.items() if name != "sha256"}
    return own | {"sha256": hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()}


def check_seal(table: Mapping[str, Any], file: Path) -> None:
    """Raise if the table is not what its digest says; one without a digest is from before there were any."""
    if "sha256" in table and sealed(table)["sha256"] != table["sha256"]:
        raise UserError(f"{file} is damaged: its contents are not those that were written; {OTHERWISE}")


def listed(table: Mapping[str, Any], by: Path) -> dict[str, Stamp]:
    """The files that a table lists; none where it is from before there were digests."""
    files = table.get("files", {})
    if not isinstance(files, dict) or not all(
        isinstance(found, dict) and isinstance(found.get("bytes"), int) and isinstance(found.get("sha256"), str)
        for found in files.values()
    ):
        raise UserError(f"{by} is damaged: `files` is no list of files with their size and digest")
    return files


def check_log(file: Path, wanted: Stamp, by: Path, *, grows: bool) -> None:
    """Raise unless the log is, or while it `grows` begins with, what was stamped."""
    size = file.stat().st_size if file.is_file() else 0
    if size < wanted["bytes"]:
        raise UserError(f"{file} is damaged: it has lost rows that {by} had seen; {OTHERWISE}")
    if size > wanted["bytes"] and not grows:
        raise UserError(
            f"{file} is damaged: it has {size - wanted['bytes']:,} bytes more than when {by} was written; {OTHERWISE}"
        )
    if Running(file if size else None, wanted["bytes"]).stamp() != wanted:
        raise UserError(f"{file} is damaged, or of another run: its rows are not those that {by} had seen; {OTHERWISE}")


def check_whole(file: Path, wanted: Stamp, by: Path) -> None:
    """Raise unless a file that is written once is what was stamped."""
    if not os.path.lexists(file):
        raise UserError(f"{file.parent} is damaged: it has no {file.name}; {OTHERWISE}")
    if stamp(file) != wanted:
        raise UserError(f"{file} has changed since {by} was written, or one of them is of another run; {OTHERWISE}")


def mark(run: str, step: int) -> dict[str, str]:
    """What a checkpoint's part says it is of, in one word: several would come in any order."""
    return {"of": f"{run} {step}"}


def check_part(file: Path, wanted: Stamp, run: str, step: int, by: Path) -> None:
    """Raise unless a checkpoint's part is what was stamped, naming the run or step it is of if it says so."""
    if not os.path.lexists(file):
        raise UserError(f"{file.parent} is damaged: it has no {file.name}; {OTHERWISE}")
    if stamp(file) == wanted:
        return
    try:
        with safe_open(file, framework="pt") as opened:
            own, _, at = (opened.metadata() or {}).get("of", "").partition(" ")
    except (SafetensorError, OSError):
        own, at = "", ""
    if own and own != run:
        raise UserError(f"{file} is of another run than the rest of its checkpoint; {OTHERWISE}")
    if at.isdecimal() and at != str(step):
        raise UserError(f"{file} is of step {at} of this run, not of its checkpoint's {step}; {OTHERWISE}")
    raise UserError(f"{file} is damaged: it is not what {by} says was written; {OTHERWISE}")
