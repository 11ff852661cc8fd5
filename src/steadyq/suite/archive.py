"""Run folders in one compressed archive, as docs/studies.md packs them: what nobody reads file by file.

A path may go on inside the archive, `minatar.tar.xz/MinAtar-Breakout-*`, to mean some of its runs.
"""

import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyq.errors import UserError
from steadyq.run.files import OWN, UNFINISHED
from steadyq.suite.study import STUDY_FILE

ENDINGS = (".tar.xz", ".tar.gz", ".tar")
KEPT = {STUDY_FILE, *OWN} - {"lock"}
"""Files that an archive has of a sweep and its runs."""
MOST_BYTES, MOST_FILES = 16 << 30, 200_000
"""What an archive may unpack to: a small file can hold more than any disk."""


def split(path: Path) -> tuple[Path, str] | None:
    """The archive that a path names or leads into, and the pattern of runs in it; None for any other path."""
    for place in (path, *path.parents):
        if place.name.endswith(ENDINGS) and place.is_file():
            return place, os.fspath(path.relative_to(place)) if place != path else "*"
    return None


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """A folder with the archive's content, removed at the end; messages name the archive in its place."""
    with tempfile.TemporaryDirectory(prefix="steadyq-") as place:
        try:
            _unpack(archive, Path(place))
            yield Path(place)
        except UserError as error:
            raise UserError(str(error).replace(place, str(archive))) from None


def _unpack(archive: Path, place: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            count = size = 0
            for member in tar:
                count, size = count + 1, size + member.size
                if not member.isfile() and not member.isdir():
                    raise UserError(f"{archive}: {member.name!a} is neither a file nor a folder; it is not unpacked")
                if count > MOST_FILES or size > MOST_BYTES:
                    raise UserError(f"{archive} unpacks to more than {MOST_FILES:,} files or {MOST_BYTES >> 30} GiB")
                tar.extract(member, place, filter="data")
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, ValueError) as error:
        raise UserError(f"{archive} cannot be unpacked: {' '.join(str(error).split()) or 'it is damaged'}") from None
    except OSError as error:
        raise UserError(f"{archive} cannot be unpacked: {error.strerror or error}") from None


def pack(folder: Path, archive: Path, top: str = "", runs: Iterable[Path] | None = None) -> None:
    """Write logs and results of the runs in a folder, or of some of them: no weights, no dates.

    What is there already is replaced at once, when the new archive is whole.
    """
    unfinished = archive.with_name(f"{archive.name}.{os.urandom(4).hex()}{UNFINISHED}")
    archive.parent.mkdir(parents=True, exist_ok=True)
    wanted = {folder, *(run_folders(folder) if runs is None else runs)}
    with tarfile.open(unfinished, "w:xz") as tar:
        for file in sorted(found for each in wanted for found in each.iterdir()):
            if file.name in KEPT and file.is_file():
                tar.add(file, str(Path(top or folder.name) / file.relative_to(folder)), filter=_nobody)
    os.replace(unfinished, archive)


def bring(archive: Path, folder: Path) -> None:
    """Put the runs that have come to an end in an archive into a sweep's folder, beside what is there.

    An archive has no checkpoints: what has no result was packed because it diverged.
    """
    with unpacked(archive) as place:
        folder.mkdir(parents=True, exist_ok=True)
        for file in place.rglob(STUDY_FILE):
            if not (folder / file.name).exists():
                shutil.copy(file, folder)
        for run in run_folders(place):
            if not (own := folder / run.name).exists():
                shutil.copytree(run, own)
                if not (own / "result.json").exists():
                    (own / "diverged").mkdir()


def ended_runs(folder: Path, besides: Container[Path] = ()) -> list[Path]:
    """Runs in a sweep's folder that have a result or diverged, besides some."""
    ended = (run for run in run_folders(folder) if (run / "result.json").is_file() or (run / "diverged").is_dir())
    return [run for run in ended if run not in besides]


def _nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same runs give the same bytes, whoever packs them."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def without_ending(archive: Path) -> str:
    """The archive's name without what says that it is one."""
    return next(archive.name.removesuffix(ending) for ending in ENDINGS if archive.name.endswith(ending))


def run_folders(place: Path, pattern: str = "*") -> list[Path]:
    """The run folders at or below a folder whose name, or path below it, is like the pattern, sorted."""
    found = {file.parent for name in ("recipe.toml", "meta.json") for file in place.rglob(name)}
    return sorted(folder for folder in found if pattern == "*" or folder.relative_to(place).match(pattern))
