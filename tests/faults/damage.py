"""Run folders with one file damaged: the file is named, or it makes no difference.

Every folder is a copy of a finished or a stopped run. What is done with it afterwards (load its agent, read what a
page is made of, continue it) must raise one line that names what is wrong, or give what the undamaged folder gives.
"""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from counting import Count, small
from kills import differences

from steadyq import RunFolder, UserError
from steadyq.agent import load
from steadyq.recipe import Recipe
from steadyq.run.files import remove
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display
from steadyq.run.step import Training

STEPS, STOP, SECONDS = 100, 75, 120


class StopAt(Display):
    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == STOP:
            raise Interrupted


def tiny(seed: int = 0) -> Recipe:
    return small("CartPole", seed, steps=STEPS, **{"record.checkpoint_every": 60, "network.hidden": (4,)})


class Folders:
    """A finished run, one that was stopped after a checkpoint, another seed's, and what they say undamaged."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.finished = train(tiny(), run=place / "finished").path
        self.stopped, self.other = place / "stopped", place / "other"
        for path, seed in ((self.stopped, 0), (self.other, 1)):
            try:
                train(tiny(seed), run=path, display=StopAt())
            except Interrupted:
                continue
        self.others = [self.other, self.finished, self.stopped]
        self.weights = {path: load(path).params for path in (self.finished, self.stopped)}
        self.read = {path: _read(path) for path in (self.finished, self.stopped)}
        self.sure = {path: _sure(path) for path in (self.finished, self.stopped)}


def _read(path: Path) -> dict[str, Any]:
    folder = RunFolder(path)
    rows = {name: getattr(folder, name)() for name in ("metrics", "events", "diagnostics")}
    return {"recipe": folder.recipe, "result": folder.result, **rows}


def _sure(path: Path) -> dict[str, int]:
    """How many rows of each log a digest covers: of a run that goes on, those before its newest checkpoint."""
    folder = RunFolder(path)
    files = (folder.result or folder.state(folder.checkpoints()[-1]))["files"]
    return {
        name: (path / f"{name}.jsonl").read_bytes()[: files[f"{name}.jsonl"]["bytes"]].count(b"\n")
        for name in ("metrics", "events", "diagnostics")
    }


def flip(file: Path, rng: random.Random, folders: Folders) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def change(file: Path, rng: random.Random, folders: Folders) -> None:
    content = bytearray(file.read_bytes())
    start = rng.randrange(len(content))
    content[start : start + rng.randrange(1, 40)] = rng.randbytes(rng.randrange(40))
    file.write_bytes(content)


def cut(file: Path, rng: random.Random, folders: Folders) -> None:
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def empty(file: Path, rng: random.Random, folders: Folders) -> None:
    file.write_bytes(b"")


def zeros(file: Path, rng: random.Random, folders: Folders) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def double(file: Path, rng: random.Random, folders: Folders) -> None:
    file.write_bytes(file.read_bytes() * 2)


def append(file: Path, rng: random.Random, folders: Folders) -> None:
    file.write_bytes(file.read_bytes() + rng.choice((b"\x00", b"{}\n", b'{"step": 5}\n', b"\xff" * 9, b"\n")))


def delete(file: Path, rng: random.Random, folders: Folders) -> None:
    file.unlink()


def swap(file: Path, rng: random.Random, folders: Folders) -> None:
    """Put a file of that name from another run or another step in its place."""
    found = [path for folder in folders.others for path in sorted(folder.rglob(file.name))]
    shutil.copyfile(rng.choice(found), file)


def confuse(file: Path, rng: random.Random, folders: Folders) -> None:
    """Put another file of the same run in its place."""
    found = sorted(path for path in file.parent.iterdir() if path.is_file() and path != file)
    shutil.copyfile(rng.choice(found), file)


def link(file: Path, rng: random.Random, folders: Folders) -> None:
    kept = file.with_name(f"kept-{file.name}")
    file.rename(kept)
    file.symlink_to(kept)


def pipe(file: Path, rng: random.Random, folders: Folders) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path, rng: random.Random, folders: Folders) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: tuple[Callable[[Path, random.Random, Folders], None], ...] = (
    flip, flip, flip, change, change, cut, cut, empty, zeros, double, append, delete, swap, swap, confuse, link, pipe,
    folder,
)  # fmt: skip


def damage_folders(number: int, seed: int | str, place: Path) -> Count:
    """Damage so many folders, each in one file, and use each."""
    count, rng = Count("damaged folders"), random.Random(f"{seed} damage")
    folders = Folders(place)
    for _ in range(number):
        original = rng.choice((folders.finished, folders.stopped))
        path = Path(shutil.copytree(original, place / "copy"))
        file = rng.choice(sorted(p for p in path.rglob("*") if p.is_file() and p.name != "lock" and p.stat().st_size))
        hurt = rng.choice(DAMAGES)
        use = rng.choice((_use_weights, _use_logs, _use_all))
        before = file.read_bytes()
        hurt(file, rng, folders)
        same = not file.is_symlink() and file.is_file() and file.read_bytes() == before
        what = f"{hurt.__name__} of {original.name}/{file.relative_to(path)}, {use.__name__}"
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(SECONDS)
        try:
            use(path, original, folders)
            count.add("no difference")
        except UserError as error:
            named = file.stem in str(error) or file.parent.name in str(error)
            if "\n" in str(error) or not named or same:
                count.fail(f"{what}: {error}")
            else:
                count.add("named")
        except Wrong as error:
            count.fail(f"{what}: accepted, and {error}")
        except BaseException as error:
            count.fail(f"{what}: {type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        shutil.rmtree(path)
    return count


class Wrong(Exception):
    """A damaged folder gave something else than the folder it is a copy of."""


class TooLong(BaseException):
    """It did not come to an end."""


def _too_long(number: int, frame: Any) -> None:
    raise TooLong(f"no end within {SECONDS} s")


def _use_weights(path: Path, original: Path, folders: Folders) -> None:
    params = load(path).params
    if not all(torch.equal(params[name], wanted) for name, wanted in folders.weights[original].items()):
        raise Wrong("other weights were loaded")


def _use_logs(path: Path, original: Path, folders: Folders) -> None:
    found, wanted = _read(path), dict(folders.read[original])
    if not os.path.lexists(path / "result.json"):
        found["result"] = wanted["result"] = None  # as of a run killed before it was evaluated; that comes next
    for name, rows in wanted.items():
        sure = folders.sure[original].get(name)
        if found[name] != rows and (sure is None or found[name][:sure] != rows[:sure]):
            raise Wrong(f"another {name} was read")


def _use_all(path: Path, original: Path, folders: Folders) -> None:
    """Continue; a finished run without its result is evaluated again, with all of its checkpoint."""
    if original == folders.finished:
        remove(path / "result.json")
    train(tiny(), run=path)
    if different := [name for name in differences(folders.finished, path) if not name.startswith("kept-")]:
        raise Wrong(f"it was continued to another end: {different}")
