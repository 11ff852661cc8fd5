"""Runs as processes of this machine, within its CPU and GPU slots."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from steadyq.build import wants_gpu
from steadyq.errors import UserError
from steadyq.fields import within
from steadyq.run.files import open_plain, refuse_links
from steadyq.run.progress import plural
from steadyq.run.provenance import command_line
from steadyq.suite import mps
from steadyq.suite.plan import Entry
from steadyq.suite.sharing import Sharing
from steadyq.suite.study import PlannedRun
from steadyq.suite.worker import EXIT, START, Ending, isolated, search_path, send


@dataclass(frozen=True)
class Child:
    """The process of a run, or of several that are trained together."""

    entries: tuple[Entry, ...]
    process: subprocess.Popen[str]
    log: Path
    gpu: int | None


class LocalProcesses:
    """One process per run or per group of `abreast` runs, as many at a time as there are CPU slots and GPU slots."""

    def __init__(
        self,
        out: Path,
        jobs: int,
        gpus_per_run: float = 0.0,
        gpus: int = 0,
        wanted: mps.Wanted = "auto",
        sharing: Sharing | None = None,
        abreast: int = 1,
    ) -> None:
        """Where `sharing` is given, it decides how many processes a GPU gets; else their share of one does."""
        self.out, self.children, self.jobs, self.abreast = out, list[Child](), jobs, abreast
        self.wanted, self.note = wanted, ""
        self.service: mps.Service | None = None
        self.gpus = range(gpus) if gpus_per_run else range(0)
        self.on_gpu = bool(self.gpus)
        self.each, self.sharing = slots(gpus_per_run) if gpus_per_run else 0, sharing
        self.learning = min(self.parallel, gpus) if self.on_gpu else self.parallel
        self.together = -(-self.parallel // gpus) if self.on_gpu else 1
        cards = f"{plural(gpus, 'GPU')}, {gpus_per_run:g} of one for each" if gpus_per_run else "CPU"
        self.words = f"this machine ({cards}), {plural(self.parallel, 'run')} at a time"
        if sharing is not None and sharing.most > 1:
            self.together = sharing.most
            self.words = f"this machine ({plural(gpus, 'GPU')}), as many runs on each as pays, {sharing.most} at most"
        if abreast > 1:
            self.words += f", each up to {abreast} seeds in one program"

    @property
    def parallel(self) -> int:
        """Runs at a time."""
        if not self.on_gpu:
            return self.jobs
        return min(self.jobs, (self.sharing.runs if self.sharing else self.each) * len(self.gpus))

    def open(self) -> str:
        """Get ready to start runs; returns what there is to say about it."""
        self.service, words = mps.start(self.wanted, self.together)
        return words

    def room(self) -> bool:
        """Whether a slot is free."""
        return len(self.children) < self.parallel

    def start(self, entries: Sequence[Entry]) -> None:
        """Start the runs' process: its own session, so that Ctrl-C reaches it through the sweep alone."""
        entry, folders = entries[0], json.dumps([str(each.folder.path) for each in entries])
        gpu = min(self.gpus, key=self._on, default=None)  # the emptiest: fewer runs than slots spread over all GPUs
        log = self.out / "logs" / f"{entry.run.name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, entry.run.recipe.compute.threads))
        environment = {**isolated(os.environ), "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": _visible(gpu)}
        if self.service is not None:
            environment |= self.service.environment
        if (command := command_line()) is not None:
            environment.setdefault("STEADYQ_COMMAND", command)
        refuse_links(log.parent)
        with open(open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", START, folders, *search_path(entry.run.recipe)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a process that died at once is seen by poll
            for each in entries:
                send(process.stdin, each.run.recipe)
        self.children.append(Child(tuple(entries), process, log, gpu))

    def poll(self) -> list[tuple[Entry, Ending, str]]:
        """Collect processes that have ended."""
        ended = [child for child in self.children if child.process.poll() is not None]
        self.children = [child for child in self.children if child not in ended]
        for child in ended:
            _hang_up(child.process)
        endings = {code: ending for ending, code in EXIT.items()}
        return [
            (entry, endings.get(child.process.returncode, "crashed"), _last_words(child))
            for child in ended
            for entry in child.entries
        ]

    def news(self) -> str:
        """What was found about sharing GPUs since the last call."""
        folders = [[entry.folder.path for entry in child.entries] for child in self.children]
        return self.sharing.look(folders) if self.sharing else ""

    def stop(self) -> None:
        """Send SIGTERM: the run saves its state between two steps."""
        for child in self.children:
            child.process.terminate()

    def close(self) -> None:
        """Kill what is left; its last checkpoint stays."""
        for child in self.children:
            child.process.kill()
            child.process.wait()
            _hang_up(child.process)
        self.children = []
        if self.service is not None:
            self.service.stop()

    def _on(self, gpu: int) -> int:
        return sum(child.gpu == gpu for child in self.children)


def slots(gpus_per_run: float) -> int:
    """How many runs share a GPU, each with so much of it."""
    return int(1 / gpus_per_run + 1e-9)  # a third three times is a whole


def local_launcher(
    study_runs: Sequence[PlannedRun],
    out: Path,
    jobs: int | None,
    share: float | None,
    wanted: mps.Wanted = "auto",
    abreast: int = 1,
) -> LocalProcesses:
    """Slots of this machine: by default as many runs on a GPU as pays where there is one, else one for each core."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    measured = share is None
    wants_cpu = all(run.recipe.compute.device == "cpu" for run in study_runs)
    if share is None:
        share = 0.0 if wants_cpu or not gpus else 1.0
    within("--gpus-per-run", share, 0, 1)
    if share and not gpus:
        raise UserError("--gpus-per-run: no GPU is visible to PyTorch here")
    if gpus and not share and any(wants_gpu(run.recipe) for run in study_runs):
        raise UserError("compute.device cuda, precision tf32 or bf16, form kernels need --gpus-per-run above 0")
    if jobs is None:
        threads = max(max(1, run.recipe.compute.threads) for run in study_runs)
        cores = max(1, len(os.sched_getaffinity(0)) // threads)
        jobs = cores if not share else max(gpus, cores) if measured else slots(share) * gpus
    within("--jobs", jobs, 1)
    within("--together", abreast, 1)
    sharing = Sharing(gpus, min(jobs, len(study_runs)) // gpus) if measured and share else None
    return LocalProcesses(out, jobs, share, gpus, wanted, sharing, abreast)


def _visible(gpu: int | None) -> str:
    """CUDA_VISIBLE_DEVICES for one slot, within what this process may see itself."""
    if gpu is None:
        return ""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[gpu].strip() if given else str(gpu)


def _hang_up(process: subprocess.Popen[str]) -> None:
    """Close the pipe that told the process that the sweep is there."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _last_words(child: Child) -> str:
    code = child.process.returncode
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = child.log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if code and lines else ""
