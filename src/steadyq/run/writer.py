"""Exclusive write access to a run folder: logs, checkpoints that are whole or absent, the result.

A checkpoint remembers how long the logs were; continuing cuts off what was written after it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from safetensors.torch import save_file
from torch import Tensor

from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.run.files import UNFINISHED, open_plain, remove, replace_text, sync
from steadyq.run.folder import LOGS, RunFolder, read_table, read_tensors


class Busy(UserError):
    """Another process is training in the folder."""


@dataclasses.dataclass
class Checkpoint:
    """A run's complete state: named groups of tensors, and what is not a tensor."""

    tensors: dict[str, dict[str, Tensor]]
    plain: dict[str, Any]


def begin(folder: RunFolder, recipe: Recipe) -> "Writer":
    """Lock the folder for the recipe's run; keeps what is there."""
    folder.check(recipe)
    folder.make()
    return Writer(folder, "recipe.toml", recipe.to_toml())


def begin_meta(folder: RunFolder, meta: Mapping[str, Any]) -> "Writer":
    """Lock the folder for a run that has no recipe."""
    folder.check_meta(meta)
    folder.make()
    return Writer(folder, "meta.json", json.dumps(meta, indent=2) + "\n")


def _on_gpu(checkpoint: Checkpoint) -> bool:
    return any(t.is_cuda for group in checkpoint.tensors.values() for t in group.values())


def _write(checkpoint: Checkpoint, final: Path) -> None:
    folder, unfinished = final.parent, final.parent / "unfinished"
    remove(unfinished)
    unfinished.mkdir(parents=True)
    state = unfinished / "state.json"
    state.write_text(json.dumps(checkpoint.plain), encoding="utf-8")
    for name, group in checkpoint.tensors.items():
        save_file(group, unfinished / f"{name}.safetensors")
    for file in unfinished.iterdir():
        file.chmod(state.stat().st_mode)  # safetensors are written for their owner alone
        sync(file)
    sync(unfinished)
    os.replace(unfinished, final)
    sync(folder)
    for old in folder.iterdir():
        if old.name.isdigit() and old != final:
            shutil.rmtree(old)


class Writer:
    """Exclusive write access to a run folder, whose `identity` file says what the run is."""

    def __init__(self, folder: RunFolder, identity: str, content: str) -> None:
        self.folder, self.path = folder, folder.path
        folder.refuse_links()
        self._lock = open(open_plain(self.path / "lock", os.O_RDWR | os.O_CREAT))  # noqa: SIM115 held until close
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
        for leftover in (self.path / "checkpoints" / "unfinished", *self.path.glob(f"*{UNFINISHED}")):
            with contextlib.suppress(OSError):
                remove(leftover)
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
        tensors = {file.stem: read_tensors(file) for file in sorted(newest.glob("*.safetensors"))}
        plain = read_table(newest / "state.json")
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
            handle = open_plain(self.path / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._files[name] = open(handle, "a", encoding="utf-8")  # noqa: SIM115 closed in close()
        return self._files[name]

    def _cut(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            file = self._open(name)
            file.truncate(size)
            file.seek(size)
