"""The run folder: what a run is, what it measured, and where it can continue.

    recipe.toml       the resolved recipe, protocol included; meta.json where another learner trains
    metrics.jsonl     one row per `record.every` steps (docs/metrics.md)
    diagnostics.jsonl one row per `monitor.every` steps (docs/metrics.md)
    events.jsonl      finished games, resets, starts and resumes
    checkpoints/N/    complete state at step N: written beside, synced, then renamed, so it is whole or absent
    result.json       the evaluation, once the run has finished
    tensorboard/      the same metrics for TensorBoard

The JSONL files are the truth. A checkpoint remembers how long they were; continuing cuts off what was written after it.
Checkpoints and the result list the digests of what they belong to (`digests.py`), which reading compares.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError

from steadyq.envs import Environment
from steadyq.errors import UserError, nearest
from steadyq.fields import flatten
from steadyq.presets import recipe_for
from steadyq.recipe import Recipe
from steadyq.run.digests import check_log, check_part, check_seal, check_whole, listed, verifying
from steadyq.run.files import IDENTITY, LONGER, OWN, UNFINISHED, open_plain, read_text, refuse_links, refuse_strange
from steadyq.run.logs import rows

if TYPE_CHECKING:  # pages and tables are made of logs: PyTorch is for those who ask for weights
    from torch import Tensor

SMALL_REPLAY = 32 * 2**20
"""Bytes of a replay buffer that a finished run keeps in any case, so that it can be trained longer."""

LONGEST_NAME = 160
"""Letters of a folder's name; file systems take 255 bytes."""


def default_path(recipe: Recipe) -> Path:
    """Return runs/<env>-<preset>-<scale>-<changes>-seed<n>: the same command finds the same run, and another its own.

    Changes are the options that the preset does not have so, but for the number of steps, and what the environment is
    made with. Where they do not fit a name as they are, it ends in a digest of them.
    """
    protocol = recipe.protocol
    changes = {name: value for name, value in _changes(recipe).items() if not name.startswith("protocol.wrappers")}
    said = [f"{name}={_shown(value)}" for name, value in changes.items() if name != "protocol.kwargs"]
    said += [*protocol.kwargs, *(wrapper.rpartition(":")[2] for wrapper in protocol.wrappers)]
    env, exact = re.sub(r"[^A-Za-z0-9.]+", "-", recipe.env), "-".join(said)
    name = re.sub(r"[^A-Za-z0-9.=_,+-]+", "-", exact)
    if name != exact or protocol.wrappers or len(name) > LONGEST_NAME:
        digest = hashlib.sha256(repr((exact, protocol.wrappers)).encode()).hexdigest()[:8]
        name = f"{name[:LONGEST_NAME].strip('-')}-{digest}"
    parts = (env, recipe.preset, recipe.scale, name, f"seed{recipe.seed}")
    return Path("runs") / "-".join(part for part in parts if part)


def _changes(recipe: Recipe) -> dict[str, Any]:
    """Fields in which a recipe departs from its preset on the same environment."""
    protocol = recipe.protocol
    try:
        env = Environment(recipe.env, protocol.kwargs, protocol.wrappers)
        base = flatten(recipe_for(recipe.preset, env, recipe.scale).to_dict())
    except UserError:  # a preset of somebody's own
        return {}
    ignored = ("seed", "steps", "env", "preset", "scale", "compute.")
    mine = flatten(recipe.to_dict())
    return {name: value for name, value in mine.items() if not name.startswith(ignored) and base.get(name) != value}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


class RunFolder:
    """A run on disk, read-only until `begin`; `verify` compares what is read with its digests (True by default)."""

    def __init__(self, path: Path | str, verify: bool | None = None) -> None:
        self.path = Path(path)
        self.verify = verifying() if verify is None else verify

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

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
            raise UserError(f"{self.path} is not a run folder: it has no recipe.toml{_runs_near(self.path)}")
        try:
            recipe = Recipe.from_toml(read_text(file))
            return recipe if (steps := self._longer()) is None else recipe.override({"steps": steps})
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        except UnicodeDecodeError:
            raise UserError(f"{file} is damaged: it is not text in UTF-8") from None

    def _longer(self) -> int | None:
        """For how many steps the run goes on, if that is more than its recipe says."""
        file = self.path / LONGER
        if not os.path.lexists(file):
            return None
        steps = self._sealed(file).get("steps")
        if type(steps) is not int:
            raise UserError(f"{file} is damaged: it says no number of steps")
        return steps

    def finished(self, recipe: Recipe) -> bool:
        """Whether the run has come to the end that the recipe asks for: to its last step, or stopped before it."""
        result = self.result
        return result is not None and ("stopped" in result or result.get("steps", 0) >= recipe.steps)

    def large_replays(self) -> list[Path]:
        """Replay buffers of its checkpoints that are too large to be kept without need."""
        files = [checkpoint / "replay.safetensors" for checkpoint in self.checkpoints()]
        return [file for file in files if file.is_file() and file.stat().st_size > SMALL_REPLAY]

    @property
    def meta(self) -> dict[str, Any] | None:
        """What a run that is not one of our own learners' says of itself, in place of a recipe."""
        file = self.path / "meta.json"
        if (self.path / "recipe.toml").is_file() or not file.is_file():
            return None
        return read_table(file)

    @property
    def begun(self) -> bool:
        """Whether a run has begun here."""
        return any((self.path / name).is_file() for name in ("recipe.toml", "meta.json"))

    @property
    def result(self) -> dict[str, Any] | None:
        """The evaluation at the end, if the run has finished."""
        file = self.path / "result.json"
        return self._sealed(file) if os.path.lexists(file) else None

    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl."""
        return list(rows(self.log("metrics"), "metrics"))

    def diagnostics(self) -> list[dict[str, Any]]:
        """Rows of diagnostics.jsonl."""
        return list(rows(self.log("diagnostics"), "diagnostics"))

    def events(self) -> list[dict[str, Any]]:
        """Rows of events.jsonl."""
        return list(rows(self.log("events"), "events"))

    def log(self, name: str) -> Path:
        """A log's file, after it was compared with what the result, or else the newest checkpoint, had seen of it."""
        file = self.path / f"{name}.jsonl"
        if self.verify:
            result = self.result
            table, by = (result, self.path / "result.json") if result is not None else self._newest_state()
            files = listed(table, by)
            self._check_identity(files, by)
            if file.name in files:
                check_log(file, files[file.name], by, grows=result is None)
        return file

    def state(self, checkpoint: Path) -> dict[str, Any]:
        """What of a checkpoint is not a tensor."""
        return self._sealed(checkpoint / "state.json")

    def _newest_state(self) -> tuple[dict[str, Any], Path]:
        """The newest checkpoint's state, of a run that may be going on: then a newer one can take its place."""
        while checkpoints := self.checkpoints():
            try:
                return self.state(checkpoints[-1]), checkpoints[-1]
            except UserError:
                if checkpoints[-1].is_dir():
                    raise
        return {}, self.path

    def _sealed(self, file: Path) -> dict[str, Any]:
        table = read_table(file)
        if self.verify:
            check_seal(table, file)
        return table

    def _check_identity(self, files: Mapping[str, Any], by: Path) -> None:
        for name in IDENTITY:
            if name in files:
                check_whole(self.path / name, files[name], by)

    def check(self, recipe: Recipe) -> None:
        """Raise if this folder cannot take the given run: another recipe's, not a run's, or not writable.

        One that is asked for more steps than it was goes on; of fewer, it would have to forget.
        """

        def differences() -> list[str]:
            mine = self.recipe
            if recipe.steps > mine.steps:
                mine = mine.override({"steps": recipe.steps})
            different = recipe.differences(mine)
            if recipe.steps < mine.steps and len(different) == 1:
                raise UserError(
                    f"{self.path} is a run of {mine.steps:,} steps, and {recipe.steps:,} are asked for: say --steps "
                    f"{mine.steps} (or more, to train it longer), or choose another --run folder"
                )
            return different

        self._check("recipe.toml", differences)

    def check_meta(self, meta: Mapping[str, Any]) -> None:
        """Raise if this folder cannot take a run that says this of itself."""
        self._check("meta.json", lambda: _differences(meta, self.meta or {}))

    def _check(self, identity: str, differences: Callable[[], list[str]]) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file: --run needs a folder")
        if self.path.is_dir():
            self.refuse_links()
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

    def refuse_links(self) -> None:
        """Raise if a part of the run is a link: writing through it would change what lies elsewhere."""
        refuse_strange(*(self.path / name for name in OWN))
        checkpoints, diverged, board = (self.path / name for name in ("checkpoints", "diverged", "tensorboard"))
        refuse_links(checkpoints, diverged, board)
        refuse_links(*checkpoints.rglob("*"), *diverged.rglob("*"))

    def make(self) -> None:
        """Make the folder if it is not there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {self.path} ({error.strerror}): choose another --run folder") from None

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        return sorted(p for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []

    def weights(self, networks: Literal["online", "target", "best"] = "online") -> "tuple[dict[str, Tensor], int]":
        """The newest parameters of these networks, or those that were best on the way, and their step."""
        checkpoints = self.checkpoints()
        if not checkpoints:
            why = "it finished, but its weights are not here" if self.result else "train it first"
            raise UserError(f"{self.path} has no checkpoint: {why}")
        newest, step = checkpoints[-1], int(checkpoints[-1].name)
        state = self.verify_checkpoint(newest, networks)
        if networks == "best":
            if not (newest / "best.safetensors").exists():
                raise UserError(f"{self.path} has kept no best weights: train it with evaluation.every above 0")
            step = int(state.get("best_step", step))
        return read_tensors(newest / f"{networks}.safetensors"), step

    def verify_checkpoint(self, checkpoint: Path, *parts: str) -> dict[str, Any]:
        """Compare a checkpoint's state and parts (all that it lists, if none are named) with their digests.

        Returns the state. A finished run's checkpoint may have lost its replay buffer.
        """
        state, file = self.state(checkpoint), checkpoint / "state.json"
        if not self.verify:
            return state
        files, folder = listed(state, file), f"checkpoints/{checkpoint.name}/"
        self._check_identity(files, file)
        for name, wanted in files.items():
            part = name.removeprefix(folder).removesuffix(".safetensors")
            kept = part != "replay" or (self.path / name).exists()
            if name.startswith(folder) and part in (parts or (part,)) and kept:
                check_part(self.path / name, wanted, run_mark(files), int(checkpoint.name), file)
        if (result := self.result) is not None:
            finished = self.path / "result.json"
            if (known := listed(result, finished).get(folder + file.name)) is not None:
                check_whole(file, known, finished)
        return state


def run_mark(files: Mapping[str, Any]) -> str:
    """What marks the parts of a run as its own: the digest of what it says it is."""
    return next((str(files[name]["sha256"])[:16] for name in IDENTITY if name in files), "")


def read_table(file: Path) -> dict[str, Any]:
    """A table of names and values from JSON."""
    try:
        found = json.loads(read_text(file))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{file} is damaged: it is not JSON") from None
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged: it is no table of names and values")
    return found


def read_tensors(file: Path) -> "dict[str, Tensor]":
    """Named tensors from a safetensors file."""
    from safetensors.torch import load_file

    try:
        os.close(open_plain(file))
        return load_file(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}): bring back a copy, or train into another --run folder") from None


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    one, other = flatten(mine), flatten(theirs)
    return [
        f"{key}: {one.get(key)!r} != {other.get(key)!r}" for key in {**one, **other} if one.get(key) != other.get(key)
    ]


def _runs_near(path: Path) -> str:
    """The runs that a folder holds, or the run that a file belongs to."""
    if path.is_file():
        return f"; its run is {path.parent}" if (path.parent / "recipe.toml").is_file() else ""
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return ""
    runs = sorted(str(child) for child in path.iterdir() if (child / "recipe.toml").is_file())
    return f", but holds runs: {', '.join(runs[:3])}{' ...' if len(runs) > 3 else ''}" if runs else ""


def _near(path: Path) -> str:
    if len(path.parts) == 2 and not path.parent.exists():
        return f"; what is on the hub by that name comes with `hf download {path} --local-dir {path.name}`"
    siblings = [p.parent.name for p in path.parent.glob("*/recipe.toml")] if path.parent.is_dir() else []
    return f": {nearest(path.name, siblings)}" if siblings else ""
