"""Recipes tuned for the classics and MinAtar, judged on fresh seeds beside rl-baselines3-zoo's published scores.

python experiments/tuned.py run --jobs 16 --minutes 9    trains what is missing, and stops in time; again to go on
python experiments/tuned.py table                        prints the tables of what there is
python experiments/tuned.py ship                         writes src/steadyq/tuned/ and the tables in docs/tuned.md

experiments/tuned.toml says what is tried. Every candidate is searched with seeds from 100 on; the best of an
environment is then judged with seeds 0 to 4, and so is `steady` untuned. Beside it: why `steady` loses to `dqn` on
LunarLander after 12,000 steps, one switch at a time. Every run is one process on one thread; scores go to
results/tuned.json as they come, and what is there is not run again.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from steadyq.fields import flatten, toml
from steadyq.presets import recipe_for
from steadyq.recipe import Recipe
from steadyq.run.folder import RunFolder
from steadyq.run.provenance import provenance
from steadyq.scores.statistics import mean_interval

HERE = Path(__file__).parent
ROOT = HERE.parent
JSON, DOCUMENT, SHIPPED = (
    ROOT / "results" / "tuned.json",
    ROOT / "docs" / "tuned.md",
    ROOT / "src" / "steadyq" / "tuned",
)
SEARCH, JUDGE = 100, range(5)
TIE = 0.005
"""Candidates whose means differ by no more than this share of the best one are as good as each other."""
QUIET = {"record.tensorboard": False, "compute.device": "cpu", "compute.threads": 1, "evaluation.episodes": 100}
"""What no score depends on, but for the number of games it is a mean of."""


@dataclass(frozen=True)
class Job:
    """One run."""

    key: str
    """What it is, and its folder: environment, label, seed."""
    recipe: Recipe

    @property
    def cost(self) -> float:
        """About how long it takes, for the order: the longest first."""
        return self.recipe.updates * self.recipe.ensemble.members**0.5 * (3 if "MinAtar" in self.key else 1)


@dataclass(frozen=True, eq=False)
class Task:
    """One environment: its candidates, and whose scores it is put beside."""

    name: str
    steps: int
    candidates: dict[str, dict[str, Any]]
    zoo: dict[str, float] = field(default_factory=dict)
    seeds: int = 0
    """How many seeds each candidate is searched with."""

    @property
    def env(self) -> str:
        """As recipes call it."""
        return self.name.replace("-", "/", 1)

    @cache  # noqa: B019 there are as many tasks as environments
    def job(self, label: str, seed: int) -> Job:
        """A run of a candidate, or of `steady` untuned."""
        options = dict(self.candidates.get(label, {"preset": "steady"}))
        recipe = recipe_for(options.pop("preset"), self.env)
        recipe = recipe.override({**options, **QUIET, "steps": self.steps, "seed": seed, "monitor.every": 0})
        return Job(f"{self.name}/{label}/{seed}", recipe)


class Experiment:
    """What is to be run, and what has been."""

    def __init__(self, file: Path, only: str = "") -> None:
        self.file, self.only = file, only
        self.plan = tomllib.loads((HERE / "tuned.toml").read_text())
        kept = json.loads(file.read_text()) if file.is_file() else {}
        self.scores: dict[str, float] = kept.get("scores", {})
        self.machines: list[dict[str, Any]] = kept.get("machines", [])

    @cached_property
    def tasks(self) -> list[Task]:
        """All environments."""
        found = []
        for name, table in self.plan.items():
            if name not in ("shared", "lunar"):
                each = {
                    label: self.plan["shared"][what][label] if isinstance(what, str) else what
                    for label, what in table["candidates"].items()
                }
                candidates = {label: flatten(what) for label, what in each.items()}
                seeds = table.get("seeds", 1 if name.startswith("MinAtar") else 2)
                found.append(Task(name, table["steps"], candidates, table.get("zoo", {}), seeds))
        return found

    def searched(self, task: Task) -> list[Job]:
        """Every candidate on the seeds of the search."""
        if len(task.candidates) == 1:
            return []
        return [task.job(label, SEARCH + seed) for label in task.candidates for seed in range(task.seeds)]

    def best(self, task: Task) -> str | None:
        """The best candidate, of those that tie the one with fewest options, once all are searched."""
        if len(task.candidates) == 1:
            return next(iter(task.candidates))
        jobs = self.searched(task)
        if not all(job.key in self.scores for job in jobs):
            return None
        found = {label: [self.scores[j.key] for j in jobs if f"/{label}/" in j.key] for label in task.candidates}
        most = max(mean(scores) for scores in found.values())
        near = [label for label, scores in found.items() if mean(scores) >= most - TIE * abs(most)]
        return min(near, key=lambda label: len(task.candidates[label]))

    def judged(self, task: Task) -> list[Job]:
        """The best candidate on fresh seeds."""
        label = self.best(task)
        return [task.job(label, seed) for seed in JUDGE] if label else []

    def untuned(self, task: Task) -> list[Job]:
        """`steady` as it is, on the same seeds; not on MinAtar, where it takes too long to be run only for this."""
        if task.name.startswith("MinAtar"):
            return []
        return [task.job("untuned", seed) for seed in JUDGE]

    @cached_property
    def lunar(self) -> list[Job]:
        """The switches of `steady` on LunarLander."""
        table, jobs = self.plan["lunar"], []
        for label, options in table["variants"].items():
            changes = {**flatten(options), "steps": table["steps"]}
            recipe = recipe_for(changes.pop("preset"), table["env"]).override({**changes, **QUIET, "monitor.every": 0})
            jobs += [Job(f"lunar/{label}/{seed}", recipe.override({"seed": seed})) for seed in JUDGE]
        return jobs

    def waiting(self) -> Iterator[Job]:
        """What is not there yet, in the order in which it is run."""
        stages = (
            self.lunar,
            [job for task in self.tasks for job in self.searched(task)],
            [job for task in self.tasks for job in self.judged(task)],
            [job for task in self.tasks for job in self.untuned(task)],
        )
        for stage in stages:
            missing = [job for job in stage if job.key not in self.scores and job.key.startswith(self.only)]
            yield from sorted(missing, key=lambda job: -job.cost)

    def finished(self, key: str, score: float) -> None:
        """Keep a score."""
        self.scores[key] = score
        if (machine := provenance()) not in self.machines:
            self.machines.append(machine)
        table = {"scores": dict(sorted(self.scores.items())), "machines": self.machines}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(table, indent=2) + "\n")
        part.replace(self.file)

    def of(self, jobs: list[Job]) -> list[float]:
        """The scores of some runs that are there."""
        return [self.scores[job.key] for job in jobs if job.key in self.scores]


def run(experiment: Experiment, runs: Path, jobs: int, minutes: float) -> int:
    """Train what is missing, so many at a time, until the time is up."""
    end, busy, failed = time.monotonic() + 60 * minutes, dict[str, subprocess.Popen[bytes]](), set[str]()
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    while time.monotonic() < end:
        for job in experiment.waiting():
            if len(busy) >= jobs:
                break
            if job.key not in busy and job.key not in failed:
                busy[job.key] = _start(job, runs, surroundings)
        if not busy:
            break
        time.sleep(0.2)
        for key in [key for key, process in busy.items() if process.poll() is not None]:
            process, result = busy.pop(key), RunFolder(runs / key).result
            if process.returncode == 0 and result is not None:
                experiment.finished(key, float(result["mean_return"]))
                print(f"{key}: {result['mean_return']:.2f} after {result['wall_seconds']:.0f} s", flush=True)
            else:
                failed.add(key)
                print(f"{key}: failed, see {runs / key}.log", flush=True)
    for process in busy.values():
        process.send_signal(signal.SIGTERM)  # the state is saved, and the next command goes on there
    for process in busy.values():
        process.wait()
    left = sum(1 for job in experiment.waiting() if job.key not in failed)
    print(f"{len(experiment.scores)} runs are there, {left} to go" + (f", {len(failed)} failed" if failed else ""))
    return 1 if failed else 0


def _start(job: Job, runs: Path, surroundings: dict[str, str]) -> subprocess.Popen[bytes]:
    folder = runs / job.key
    folder.parent.mkdir(parents=True, exist_ok=True)
    recipe = folder.with_name(f"{folder.name}.toml")
    recipe.write_text(job.recipe.to_toml())
    with folder.with_name(f"{folder.name}.log").open("ab") as log:
        command = [sys.executable, "-m", "steadyq", "train", "--recipe", str(recipe), "--run", str(folder)]
        return subprocess.Popen(command, env=surroundings, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def tables(experiment: Experiment) -> str:
    """What there is, as Markdown."""
    lines = [
        "| environment | steps | tuned | preset | seeds | mean return | `steady` untuned | zoo's DQN | zoo's QR-DQN |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    for task in experiment.tasks:
        label = experiment.best(task)
        scores = experiment.of(experiment.judged(task))
        preset = f"`{task.candidates[label]['preset']}`" if label else ""
        zoo = [f"{task.zoo[name]:.1f}" if name in task.zoo else "" for name in ("dqn", "qrdqn")]
        cells = [
            task.env.removeprefix("Gymnasium/"),
            f"{task.steps:,}",
            label or "not searched",
            preset,
            str(len(scores)),
        ]
        cells += [_interval(scores), _interval(experiment.of(experiment.untuned(task))), *zoo]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| LunarLander, 12,000 steps | seeds | mean return | least | most |", "|---|---:|---:|---:|---:|"]
    jobs = experiment.lunar
    for label in experiment.plan["lunar"]["variants"]:
        scores = experiment.of([job for job in jobs if job.key.startswith(f"lunar/{label}/")])
        ends = [f"{min(scores):.1f}", f"{max(scores):.1f}"] if scores else ["", ""]
        lines.append(f"| {' | '.join([label, str(len(scores)), _interval(scores), *ends])} |")
    return "\n".join(lines) + "\n"


def _interval(scores: list[float]) -> str:
    if len(scores) < 2:
        return f"{scores[0]:.1f}" if scores else ""
    low, high = mean_interval(scores)
    return f"{mean(scores):.1f} ({low:.1f} to {high:.1f})"


def shipped(experiment: Experiment) -> dict[str, str]:
    """The tuned recipes as files: the best candidates, or the first where none is searched."""
    files = {}
    for task in experiment.tasks:
        options = dict(task.candidates[experiment.best(task) or next(iter(task.candidates))])
        lines = [f'env = "{task.env}"', f'preset = "{options.pop("preset")}"', f"steps = {task.steps}", "", "[options]"]
        files[f"{task.name}.toml"] = "\n".join([*lines, *(f"{n} = {toml(v)}" for n, v in options.items())]) + "\n"
    return files


def documented(experiment: Experiment, text: str) -> str:
    """The document with today's tables between its marks."""
    return re.sub(r"(<!-- tables -->\n).*?(<!-- end -->)", lambda m: m[1] + tables(experiment) + m[2], text, flags=re.S)


def main() -> int:
    """Run, print or write."""
    parser = argparse.ArgumentParser(description="Tune recipes, and judge them beside published scores.")
    parser.add_argument("do", choices=("run", "table", "ship"))
    parser.add_argument("--json", type=Path, default=JSON)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "tuned")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="run what begins so, as Gymnasium or MinAtar-Breakout")
    given = parser.parse_args()
    experiment = Experiment(given.json, given.only)
    if given.do == "run":
        return run(experiment, given.runs, given.jobs, given.minutes)
    if given.do == "table":
        print(tables(experiment), end="")
        return 0
    for name, text in shipped(experiment).items():
        (SHIPPED / name).write_text(text)
    DOCUMENT.write_text(documented(experiment, DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
