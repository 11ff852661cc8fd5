"""Runs of results/, unpacked for tests that need folders."""

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
PLACE = tempfile.gettempdir()


@cache
def stored(study: str) -> Path:
    """A folder with the runs of one archive, removed when the tests end."""
    place = Path(tempfile.mkdtemp(prefix="steadyq-stored-", dir=PLACE))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with tarfile.open(RESULTS / f"{study}.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place
