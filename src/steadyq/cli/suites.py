"""Commands for many runs, and for the paper's own tables."""

import dataclasses
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Group

from steadyq.cli.options import parse, spelt, split_settings
from steadyq.cli.terminal import OUT, say_imports, stoppable
from steadyq.errors import UserError, nearest


@dataclass(frozen=True)
class SweepOptions:
    """Run a suite or study; the same command continues it. Any option of `train` with a dot in it applies to all runs.

    Suites: minatar, atari100k, procgen, ablation4. Studies: ensemble-size, decoupling, reset, replay-ratio,
    spike-heatmap, bound, exchange, head-width, or the path of a .toml file like theirs. An environment is a suite
    of one game: `steadyq sweep CartPole-v1 --preset dqn --seeds 5`.
    """

    suite: Annotated[str, tyro.conf.Positional]
    """Suite, study, path of a study file, or environment."""
    preset: str = ""
    """Preset of all runs; by default the study's."""
    scale: str = ""
    """Scale of all runs: tiny, small or paper; by default the study's, else each environment's."""
    seeds: int | None = None
    """Number of seeds; by default the study's."""
    games: tuple[str, ...] = ()
    """Only these games, or others."""
    variants: tuple[str, ...] = ()
    """Only these variants of the study; * stands for anything, as in 'dqn*'. The folder takes others later."""
    steps: int | None = None
    """Environment steps of every run."""
    on: str = "local"
    """Where: local, ray (the cluster this machine belongs to, else one started here), or ray://host:port."""
    jobs: int | None = None
    """Runs at a time on this machine, at most; by default one for each core."""
    gpus_per_run: float | None = None
    """Share of a GPU that each run gets; by default as many runs share one as get more done; 0 trains on the CPU."""
    mps: Literal["auto", "on", "off"] = "auto"
    """NVIDIA's Multi-Process Service where several runs share a GPU: started if it can be, always, or never."""
    together: int = 1
    """Runs that differ in seed or learning rate alone and are trained as one program, at most: small networks take
    little more time together than one of them alone. On this machine; recipes that cannot are trained one by one."""
    retries: int = 2
    """How often a run that crashed is tried again, from its last checkpoint."""
    minutes: float = math.inf
    """Stop after so many minutes: runs under way save their state, and the same command continues them."""
    out: Path | None = None
    """Folder of the sweep, on storage that all nodes share; by default sweeps/<suite>, preset and scale where given."""
    archive: Path | None = None
    """A .tar.xz of what has come to an end: its runs count as run, and at the end it is written anew with those of this
    sweep, without weights. For machines that are yours for a while: the next one goes on from the archive."""
    dry_run: bool = False
    """Print the plan and its cost, here and on a GPU whose updates were measured; run nothing."""


def sweep(words: list[str]) -> int:
    """Run games x seeds x variants, or continue them: `steadyq sweep decoupling --games MinAtar/Breakout`."""
    from steadyq import envs
    from steadyq.fields import within
    from steadyq.presets import recipe_for

    words, settings = split_settings(spelt(words), recipe_for("steady", envs.example()))
    options = parse(SweepOptions, words)

    from steadyq.run.progress import plural
    from steadyq.suite.archive import bring, ended_runs, pack, without_ending
    from steadyq.suite.launch import launch, launcher_for
    from steadyq.suite.plan import describe, make_plan
    from steadyq.suite.study import find_study

    if options.archive is not None and not options.archive.name.endswith(".tar.xz"):
        raise UserError(f"--archive {options.archive}: an archive is packed as .tar.xz, name it so")
    if options.archive is not None and options.dry_run:
        raise UserError("--archive and --dry-run: a dry run writes nothing, and counts what --out holds alone")
    within("--retries", options.retries, 0)
    within("--minutes", options.minutes, 0)
    if options.steps is not None:
        settings["steps"] = options.steps
    study = find_study(options.suite).changed(
        preset=options.preset,
        scale=options.scale,
        seeds=options.seeds,
        games=options.games,
        variants=options.variants,
        settings=settings,
    )
    say_imports(*study.games, wrappers=shlex.split(str(settings.get("protocol.wrappers", ""))))
    parts = (study.name, options.preset, options.scale)
    out = options.out or Path("sweeps") / "-".join(part for part in parts if part)
    if options.archive is not None and options.archive.exists():
        bring(options.archive, out)
    plan = make_plan(study, out, here=options.on == "local" and not options.dry_run)
    launcher = launcher_for(
        options.on, plan, options.jobs, options.gpus_per_run, options.retries, options.mps, options.together
    )
    if launcher.note:
        OUT.print(launcher.note)
    describe(
        plan,
        OUT,
        where=launcher.words,
        learning=launcher.learning,
        on_gpu=launcher.on_gpu,
        gpu_hours=options.dry_run,
    )
    if options.dry_run:
        launcher.close()
        return 0
    code = launch(plan, launcher, OUT, retries=options.retries, minutes=options.minutes)
    if options.archive is not None:
        ended = ended_runs(out, besides={entry.folder.path for entry in plan.todo})
        pack(out, options.archive, without_ending(options.archive), ended)
        OUT.print(f"archive  {plural(len(ended), 'run')} in {options.archive}", soft_wrap=True)
    return code


@dataclass(frozen=True)
class PpoOptions:
    """Train Procgen's PPO baseline with Stable-Baselines3 and the IMPALA network; the same command continues it.

    Runs go one after another into a folder that `report` and `compare` read; started twice, the command shares the
    work. Settings are those of the benchmark's authors. Needs pip install 'steadyq[sb3,procgen]'.
    """

    games: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Procgen games, such as CoinRun; `procgen` for all 16, the paper's PPO row."""
    seeds: int = 1
    """Number of seeds."""
    steps: int = 25_000_000
    """Environment steps of every run, all lanes together."""
    episodes: int = 100
    """Full games of the evaluation, on unseen levels."""
    lanes: int = 64
    """Environments side by side."""
    rollout: int = 256
    """Steps of each lane between updates."""
    out: Path = Path("sweeps/ppo")
    """Folder of the runs."""


def ppo(words: list[str]) -> int:
    """Train Procgen's PPO baseline, or continue it: `steadyq ppo CoinRun`."""
    options = parse(PpoOptions, words)

    from steadyq.baselines.ppo import train_row

    if not options.games:
        raise UserError("ppo needs games, for example `steadyq ppo CoinRun`, or `steadyq ppo procgen` for all 16")
    settings = {name: getattr(options, name) for name in ("steps", "episodes", "lanes", "rollout")}
    code = stoppable(lambda: train_row(options.games, options.seeds, options.out, OUT.print, **settings))
    if code == 0:
        OUT.print(f"next     steadyq report {shlex.quote(str(options.out))}")
    return code


@dataclass(frozen=True)
class PaperOptions:
    """Recompute a table of the paper: table1, table2, table5, table7, check, sources, layers or hyperparameters.

    The paper is "Understanding and Stabilizing Deep Q-Learning via Controlled Bootstrapping and Regulated Value
    Dynamics" by Chen, Wang, Liu, Yang and Li; `cite` prints its BibTeX entry.
    """

    what: Annotated[str, tyro.conf.Positional]
    """Which table; `check` lists every printed aggregate beside the recomputed one."""
    json: bool = False
    """Print the table as JSON."""


def paper(words: list[str]) -> int:
    """Recompute the paper's tables and check its numbers: `steadyq paper check`."""
    options = parse(PaperOptions, words)

    from steadyq.paper import BIBTEX, CITATION
    from steadyq.paper.settings import hyperparameters, layers
    from steadyq.paper.tables import TABLES
    from steadyq.presets import recipe_for
    from steadyq.scores.tables import render

    own: dict[str, Callable[[], Any]] = {
        "cite": lambda: BIBTEX,
        "layers": lambda: layers(recipe_for("steady", "Atari/Alien", "paper")),
        "hyperparameters": lambda: Group(
            hyperparameters(recipe_for("steady", "Atari/Alien", "paper")),
            hyperparameters(recipe_for("steady", "Procgen/CoinRun", "paper")),
        ),
    }
    if options.what in own:
        if options.json:
            raise UserError(f"--json: {options.what} is text; as JSON there are {', '.join(TABLES)}")
        OUT.print(own[options.what]())
        if options.what != "cite":
            OUT.print(f"Of {CITATION}")
    elif options.what in TABLES:
        table = TABLES[options.what]()
        table = dataclasses.replace(table, notes=(*table.notes, f"Of {CITATION}"))
        if options.json:
            print(table.json())
        else:
            render(table, OUT)
    else:
        raise UserError(f"unknown table {options.what!r}: {nearest(options.what, [*TABLES, *own])}")
    return 0
