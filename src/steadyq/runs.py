"""The run folder: what a run is, what it measured, and where it can continue.

    recipe.toml       the resolved recipe, protocol included; meta.json where another learner trains
    metrics.jsonl     one row per `record.every` steps (docs/metrics.md)
    diagnostics.jsonl one row per `monitor.every` steps (docs/metrics.md)
    events.jsonl      finished games, resets, starts and resumes
    checkpoints/N/    complete state at step N: written beside, synced, then renamed, so it is whole or absent
    result.json       the evaluation, once the run has finished
    tensorboard/      the same metrics for TensorBoard

The JSONL files are the truth. A checkpoint remembers how long they were; continuing cuts off what was written after it.
"""

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import steadyq
from steadyq.errors import UserError
from steadyq.recipe import Recipe, flatten

LOGS = ("metrics", "events", "diagnostics")
UNFINISHED = ".unfinished"


class Busy(UserError):
    """Another process is training in the folder."""


def default_path(recipe: Recipe) -> Path:
    """Return runs/<env>-<preset>-<scale>-seed<n>, so that the same command finds the same run."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", recipe.env)
    return Path("runs") / f"{name}-{recipe.preset}-{recipe.scale}-seed{recipe.seed}"


class RunFolder:
    """A run on disk, read-only until `begin`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def recipe(self) -> Recipe:
        """The recipe the run was started with."""
        file = self.path / "recipe.toml"
        if not self.path.exists():
            raise UserError(f"no run at {self.path}{_near(self.path)}")
        if (meta := self.meta) is not None:
            raise UserError(
                f"{self.path} is a run of {meta.get('name')}: it has no recipe, and no agent of ours to load"
            )
        if not file.is_file():
            if (self.path / "sweep.toml").is_file():
                raise UserError(f"{self.path} is a sweep, not a run: name its runs, {self.path}/*-seed*")
            raise UserError(f"{self.path} is not a run folder: it has no recipe.toml")
        try:
            return Recipe.from_toml(file.read_text())
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        except UnicodeDecodeError:
            raise UserError(f"{file} is damaged: it is not text in UTF-8") from None

    @property
    def meta(self) -> dict[str, Any] | None:
        """What a run that is not one of our own learners' says of itself, in place of a recipe."""
        file = self.path / "meta.json"
        if (self.path / "recipe.toml").is_file() or not file.is_file():
            return None
        return _table(file)

    @property
    def begun(self) -> bool:
        """Whether a run has begun here."""
        return any((self.path / name).is_file() for name in ("recipe.toml", "meta.json"))

    @property
    def result(self) -> dict[str, Any] | None:
        """The evaluation at the end, if the run has finished."""
        file = self.path / "result.json"
        return _table(file) if file.is_file() else None

    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl."""
        return list(_rows(self.path / "metrics.jsonl", text=()))

    def diagnostics(self) -> list[dict[str, Any]]:
        """Rows of diagnostics.jsonl."""
        return list(_rows(self.path / "diagnostics.jsonl", text=("spike_layer",)))

    def events(self) -> list[dict[str, Any]]:
        """Rows of events.jsonl."""
        return list(_rows(self.path / "events.jsonl"))

    def check(self, recipe: Recipe) -> None:
        """Raise if this folder cannot take the given run: another recipe's, not a run's, or not writable."""
        self._check("recipe.toml", lambda: recipe.differences(self.recipe))

    def check_meta(self, meta: Mapping[str, Any]) -> None:
        """Raise if this folder cannot take a run that says this of itself."""
        self._check("meta.json", lambda: _differences(meta, self.meta or {}))

    def _check(self, identity: str, differences: Callable[[], list[str]]) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file: --run needs a folder")
        if (self.path / identity).exists():
            if different := differences():
                more = f" and {len(different) - 1} more" if len(different) > 1 else ""
                raise UserError(
                    f"{self.path} belongs to another recipe ({different[0]}{more}): choose another --run folder"
                )
        elif self.path.is_dir() and any(
            entry.name != "lock" and entry.suffix != UNFINISHED for entry in self.path.iterdir()
        ):
            raise UserError(f"{self.path} is not empty and not a run folder: choose another --run folder")
        parent = self.path
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UserError(f"cannot write to {parent}: choose another --run folder")

    def begin(self, recipe: Recipe) -> "Writer":
        """Lock the folder for writing; keeps what is there."""
        self.check(recipe)
        self._make()
        return Writer(self, "recipe.toml", recipe.to_toml())

    def begin_meta(self, meta: Mapping[str, Any]) -> "Writer":
        """Lock the folder for a run that has no recipe."""
        self.check_meta(meta)
        self._make()
        return Writer(self, "meta.json", json.dumps(meta, indent=2) + "\n")

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {self.path} ({error.strerror}): choose another --run folder") from None

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        return sorted(p for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []

    def weights(self) -> tuple[dict[str, Tensor], int]:
        """The newest online parameters and the step they belong to."""
        checkpoints = self.checkpoints()
        if not checkpoints:
            why = "it finished, but its weights are not here" if self.result else "train it first"
            raise UserError(f"{self.path} has no checkpoint: {why}")
        return _tensors(checkpoints[-1] / "online.safetensors"), int(checkpoints[-1].name)


@dataclasses.dataclass
class Checkpoint:
    """A run's complete state: named groups of tensors, and what is not a tensor."""

    tensors: dict[str, dict[str, Tensor]]
    plain: dict[str, Any]


def _table(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{file} is damaged: it is not JSON") from None
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged: it is no table of names and values")
    return found


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}): bring back a copy, or train into another --run folder") from None


def _on_gpu(checkpoint: Checkpoint) -> bool:
    return any(t.is_cuda for group in checkpoint.tensors.values() for t in group.values())


def _write(checkpoint: Checkpoint, final: Path) -> None:
    folder, unfinished = final.parent, final.parent / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for name, group in checkpoint.tensors.items():
        save_file(group, unfinished / f"{name}.safetensors")
    (unfinished / "state.json").write_text(json.dumps(checkpoint.plain))
    for file_path in unfinished.iterdir():
        _sync(file_path)
    _sync(unfinished)
    os.replace(unfinished, final)
    _sync(folder)
    for old in folder.iterdir():
        if old.name.isdigit() and old != final:
            shutil.rmtree(old)


class Writer:
    """Exclusive write access to a run folder, whose `identity` file says what the run is."""

    def __init__(self, folder: RunFolder, identity: str, content: str) -> None:
        self.folder, self.path = folder, folder.path
        self._lock = open(self.path / "lock", "w")  # noqa: SIM115 held until close
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise Busy(f"another process is training in {self.path}") from None
        try:
            replace_text(self.path / identity, content)
        except BaseException:
            self._lock.close()
            raise
        shutil.rmtree(self.path / "checkpoints" / "unfinished", ignore_errors=True)
        self._files: dict[str, IO[str]] = {}
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def load(self) -> Checkpoint | None:
        """The newest checkpoint, with the logs cut back to what it had seen; None at a first start."""
        checkpoints = self.folder.checkpoints()
        if not checkpoints:
            self._cut(dict.fromkeys(LOGS, 0))
            return None
        newest = checkpoints[-1]
        tensors = {file.stem: _tensors(file) for file in sorted(newest.glob("*.safetensors"))}
        plain = _table(newest / "state.json")
        sizes = dict.fromkeys(LOGS, 0) | plain["log_bytes"]
        for name, size in sizes.items():
            file = self.path / f"{name}.jsonl"
            if (file.stat().st_size if file.is_file() else 0) < size:
                raise UserError(
                    f"{file} is damaged: it has lost rows that {newest} had seen; bring back a copy, or train into "
                    f"another --run folder"
                )
        self._cut(sizes)
        return Checkpoint(tensors, plain)

    def save(self, checkpoint: Checkpoint, step: int, into: str = "checkpoints") -> Path:
        """Write a checkpoint atomically, then drop older ones; `into="diverged"` keeps a broken state apart.

        From a GPU the state is copied here and written in the background while training goes on; `wait` ends it.
        """
        self.wait()
        folder = self.path / into
        final = folder / f"{step:010d}"
        if final.exists():
            return final  # the same step is the same state; replacing it would for a moment leave none
        sizes = {}
        for name in LOGS:
            file = self._open(name)
            file.flush()
            os.fsync(file.fileno())
            sizes[name] = file.tell()
        later = _on_gpu(checkpoint)
        host = {
            name: {key: t.detach().to("cpu", copy=later).contiguous() for key, t in group.items()}
            for name, group in checkpoint.tensors.items()
        }
        plain = checkpoint.plain | {"log_bytes": sizes}
        self._writing = self._background.submit(_write, Checkpoint(host, plain), final)
        if not later:
            self.wait()
        return final

    def wait(self) -> None:
        """Wait for a checkpoint that is being written; raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def drop_replay(self) -> None:
        """Remove the replay buffer from the last checkpoint: a finished run no longer needs it."""
        self.wait()
        for checkpoint in self.folder.checkpoints():
            (checkpoint / "replay.safetensors").unlink(missing_ok=True)

    def metric(self, row: Mapping[str, Any]) -> None:
        """Append a row of metrics."""
        self._append("metrics", row)

    def diagnostic(self, row: Mapping[str, Any]) -> None:
        """Append a row of diagnostics."""
        self._append("diagnostics", row)

    def event(self, kind: str, step: int, **values: Any) -> None:
        """Append an event."""
        self._append("events", {"event": kind, "step": step, **values})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json, after the checkpoint it speaks of."""
        self.wait()
        replace_text(self.path / "result.json", json.dumps(result, indent=2) + "\n")

    def close(self) -> None:
        """Release the folder."""
        try:
            self.wait()
        finally:
            self._release()

    def _release(self) -> None:
        with ExitStack() as all_of_them:  # also where a full disk keeps one from closing
            all_of_them.callback(self._lock.close)
            for file in self._files.values():
                all_of_them.callback(file.close)
            self._background.shutdown()

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        file = self._open(name)
        file.write(json.dumps(row) + "\n")
        file.flush()

    def _open(self, name: str) -> IO[str]:
        if name not in self._files:
            self._files[name] = open(self.path / f"{name}.jsonl", "a")  # noqa: SIM115 closed in close()
        return self._files[name]

    def _cut(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            file = self._open(name)
            file.truncate(size)
            file.seek(size)


def provenance() -> dict[str, Any]:
    """Versions, commit and hardware, for everything that reports a number; a sweep's runs name the sweep's command."""
    packages = ("torch", "numpy", "gymnasium", "ale-py", "MinAtar", "envpool", "triton", "stable-baselines3")
    versions = {"python": platform.python_version(), "steadyq": steadyq.__version__}
    versions |= {name: found for name in packages if (found := _version(name))}
    return {
        "versions": versions,
        "commit": _commit(),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "command": os.environ.get("STEADYQ_COMMAND") or command_line(),
    }


def command_line() -> str | None:
    """The `steadyq` command that this process is, if it is one."""
    return " ".join(["steadyq", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("steadyq", "__main__") else None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str | None:
    """The checkout's commit, `+` where it has changes; STEADYQ_COMMIT where the code travelled without its history."""
    if given := os.environ.get("STEADYQ_COMMIT"):
        return given
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()


def _rows(file: Path, text: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a log; with `text`, no column but these may hold any."""
    try:
        lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                return  # the half line of a killed run
            raise UserError(f"{file} is damaged: line {number} is not JSON") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int | float):
            raise UserError(f"{file} is damaged: line {number} is not a row with a step")
        for name, value in row.items():
            if isinstance(value, str) and text is not None and name not in text:
                raise UserError(f"{file} is damaged: line {number} has {value!r} for {name}, which is no number")
        yield row


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    one, other = flatten(mine), flatten(theirs)
    return [
        f"{key}: {one.get(key)!r} != {other.get(key)!r}" for key in {**one, **other} if one.get(key) != other.get(key)
    ]


def _near(path: Path) -> str:
    from steadyq.errors import nearest

    siblings = [p.parent.name for p in path.parent.glob("*/recipe.toml")] if path.parent.is_dir() else []
    return f": {nearest(path.name, siblings)}" if siblings else ""


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = file.with_suffix(file.suffix + UNFINISHED)
    beside.write_text(text)
    _sync(beside)
    os.replace(beside, file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
