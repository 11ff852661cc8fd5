"""Files that are whole or absent, and that are where their names say: a link, a pipe or a device is refused."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from steadyq.errors import UserError

NO_VERIFY = "STEADYQ_NO_VERIFY"
"""Environment variable that `--no-verify` sets, for the processes it starts too."""

UNFINISHED = ".unfinished"
LOGS = ("metrics", "events", "diagnostics")
IDENTITY = ("recipe.toml", "meta.json")
LONGER = "longer.json"
"""Says for how many steps a run goes on beyond those of its recipe."""
OWN = ("lock", *IDENTITY, LONGER, "result.json", *(f"{log}.jsonl" for log in LOGS))
"""Files of a run, besides its checkpoints."""


def open_plain(file: Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file, made with the usual mode if the flags ask for that.

    In a folder from a stranger a link would have us read or write elsewhere, and a pipe would never end: neither opens.
    """
    try:
        handle = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        refuse_links(file)
        if error.errno == errno.ENXIO:  # a pipe without a reader, a socket
            raise UserError(f"{file} is not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{file} is not a plain file")
    return handle


def refuse_links(*paths: Path) -> None:
    """Raise if one of these is a link: what belongs to a run lies in its folder."""
    for path in paths:
        if path.is_symlink():
            raise UserError(f"{path} is a link, and none is followed out of the folder: put the thing itself there")


def refuse_strange(*files: Path) -> None:
    """Raise if there is something else than a plain file in the place of one of these."""
    refuse_links(*files)
    for file in files:
        if file.exists() and not file.is_file():
            raise UserError(f"{file} is not a plain file")


def read_text(file: Path) -> str:
    """All of a plain text file; bytes that are not UTF-8 raise."""
    with open(open_plain(file), encoding="utf-8") as stream:
        return stream.read()


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    replace_bytes(file, text.encode(errors="backslashreplace"))


def replace_bytes(file: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    beside = file.with_name(f"{file.name}.{os.urandom(4).hex()}{UNFINISHED}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        os.replace(beside, file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Remove whatever is there, a link rather than what it means."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def append_row(log: IO[str], row: Mapping[str, Any]) -> str:
    """Append one row to a JSONL log, and return its line; when this returns, a reader sees it."""
    line = json.dumps(row) + "\n"
    log.write(line)
    log.flush()
    return line


def belongs_to_a_run(file: Path) -> bool:
    """Whether this is a file that a run or a sweep has written, or will write, and that nothing else may."""
    file = file.resolve()
    run = any((file.parent / name).is_file() for name in IDENTITY)
    return (run and file.name in OWN) or file.name == "sweep.toml" or (file.parent / "state.json").is_file()


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
