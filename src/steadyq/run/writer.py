"""Exclusive write access to a run folder: logs, checkpoints that are whole or absent, the result.

A checkpoint remembers how long the logs were; continuing cuts off what was written after it.
"""

import contextlib
import dataclasses
import errno
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
from steadyq.run.digests import Running, Stamp, check_log, listed, mark, sealed, stamp
from steadyq.run.files import LOGS, LONGER, UNFINISHED, append_row, open_plain, remove, replace_text, sync
from steadyq.run.folder import RunFolder, read_tensors, run_mark

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What a file system says that keeps no locks, such as some network file systems as they are mounted."""


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


def _write(checkpoint: Checkpoint, final: Path, seen: Mapping[str, Stamp]) -> None:
    """Write all parts with their digests, and those of what the checkpoint has seen of the run's other files."""
    folder, unfinished = final.parent, final.parent / "unfinished"
    remove(unfinished)
    unfinished.mkdir(parents=True)
    files = dict(seen)
    for name, group in checkpoint.tensors.items():
        file = unfinished / f"{name}.safetensors"
        save_file(group, file, metadata=mark(run_mark(seen), int(final.name)))
        files[f"{folder.name}/{final.name}/{file.name}"] = stamp(file)
    state = unfinished / "state.json"
    state.write_text(json.dumps(sealed(checkpoint.plain | {"files": files})), encoding="utf-8")
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
        except OSError as error:
            self._lock.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Busy(f"another process is training in {self.path}") from None
            if error.errno in NO_LOCKS:
                raise UserError(
                    f"{self.path} is on a file system that keeps no locks ({error.strerror}), so that two processes "
                    "could train one run: choose a folder elsewhere"
                ) from None
            raise
        try:
            if not (self.path / identity).exists():  # what a run is stays as it was said at first
                replace_text(self.path / identity, content)
            self._identity = {identity: stamp(self.path / identity)}
        except BaseException:
            self._lock.close()
            raise
        half = self.path / "checkpoints" / "unfinished"
        for leftover in (half, *folder.checkpoints()[:-1], *self.path.glob(f"*{UNFINISHED}")):
            with contextlib.suppress(OSError):
                remove(leftover)
        self._files: dict[str, IO[str]] = {}
        self._seen: dict[str, Running] = {}  # of every log that is open
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def load(self) -> Checkpoint | None:
        """The newest checkpoint, with the logs cut back to what it had seen; None at a first start."""
        checkpoints = self.folder.checkpoints()
        if not checkpoints:
            self._cut(dict.fromkeys(LOGS, 0))
            return None
        newest = checkpoints[-1]
        plain = self.folder.verify_checkpoint(newest)
        files = listed(plain, newest / "state.json")
        old = plain.get("log_bytes", {})  # of a run from before there were digests
        sizes = {name: files[f"{name}.jsonl"]["bytes"] if files else old.get(name, 0) for name in LOGS}
        for name, size in sizes.items():
            file = self.path / f"{name}.jsonl"
            if files and self.folder.verify:
                check_log(file, files[file.name], newest, grows=True)
            elif (file.stat().st_size if file.is_file() else 0) < size:
                raise UserError(
                    f"{file} is damaged: it has lost rows that {newest} had seen; bring back a copy, or train into "
                    f"another --run folder"
                )
        tensors = {file.stem: read_tensors(file) for file in sorted(newest.glob("*.safetensors"))}
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
        seen = self._stamps()
        later = _on_gpu(checkpoint)
        host = {
            name: {key: t.detach().to("cpu", copy=later).contiguous() for key, t in group.items()}
            for name, group in checkpoint.tensors.items()
        }
        self._writing = self._background.submit(_write, Checkpoint(host, checkpoint.plain), final, seen)
        if not later:
            self.wait()
        return final

    def wait(self) -> None:
        """Wait for a checkpoint that is being written; raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def drop_replay(self) -> None:
        """Remove a large replay buffer from the last checkpoint: a finished run needs it only to be trained longer."""
        self.wait()
        for file in self.folder.large_replays():
            file.unlink(missing_ok=True)

    def lengthen(self, steps: int) -> None:
        """Let a run go on beyond its last step; what it was evaluated to be at that stays beside."""
        result = self.path / "result.json"
        if (found := self.folder.result) is not None:
            os.replace(result, result.with_name(f"result-{found['steps']}.json"))
        replace_text(self.path / LONGER, json.dumps(sealed({"steps": steps})) + "\n")

    def metric(self, row: Mapping[str, Any]) -> None:
        """Append a row of metrics."""
        self._append("metrics", row)

    def diagnostic(self, row: Mapping[str, Any]) -> None:
        """Append a row of diagnostics."""
        self._append("diagnostics", row)

    def event(self, kind: str, step: int, /, **values: Any) -> None:
        """Append an event."""
        self._append("events", {"event": kind, "step": step, **values})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json, after the checkpoint it speaks of, with the digests of all that it rests on."""
        self.wait()
        states = [checkpoint / "state.json" for checkpoint in self.folder.checkpoints()[-1:]]
        files = self._stamps() | {str(file.relative_to(self.path)): stamp(file) for file in states}
        replace_text(self.path / "result.json", json.dumps(sealed({**result, "files": files}), indent=2) + "\n")

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
        line = append_row(self._open(name), row)
        self._seen[name].add(line.encode())

    def _open(self, name: str) -> IO[str]:
        if name not in self._files:
            path = self.path / f"{name}.jsonl"
            handle = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._files[name] = open(handle, "a", encoding="utf-8")  # noqa: SIM115 closed in close()
            self._seen[name] = Running(path)
        return self._files[name]

    def _stamps(self) -> dict[str, Stamp]:
        """Digests of the logs, which are on disk when this returns, and of what the run says it is."""
        for name in LOGS:
            file = self._open(name)
            file.flush()
            os.fsync(file.fileno())
        logs = {f"{name}.jsonl": self._seen[name].stamp() for name in LOGS}
        return {**self._identity, **logs}

    def _cut(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            file = self._open(name)
            file.truncate(size)
            file.seek(size)
            self._seen[name] = Running(self.path / f"{name}.jsonl")
