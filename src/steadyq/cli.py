"""The `steadyq` command: each subcommand is one function; mistakes cost one line and exit with 2."""

import argparse
import dataclasses
import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console, Group
from rich.table import Table

from steadyq.errors import UserError, nearest
from steadyq.options import parse, split_settings
from steadyq.recipe import Recipe

OUT = Console(highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 wrong input, 3 diverged, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        sys.exit(_dispatch(words))
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"steadyq: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("steadyq: interrupted; what was saved before stays", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        print(f"steadyq: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        sys.exit(1)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _help()
        return 0
    if words[0] == "--version":
        from steadyq import __version__

        print(f"steadyq {__version__}")
        return 0
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}: {nearest(command, COMMANDS)}")
    return COMMANDS[command](rest)


def _help() -> None:
    from steadyq import __version__

    OUT.print(f"[bold]steadyq {__version__}[/]  deep Q-learning that stays stable, and shows why an agent does not\n")
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(f"[bold]{name}[/]", (command.__doc__ or "").splitlines()[0])
    OUT.print(table)
    OUT.print("\n`steadyq COMMAND --help` shows a command's options; `--debug` with any command shows tracebacks.")


def train(words: list[str]) -> int:
    """Train an agent, or continue it: `steadyq train MinAtar/Breakout`."""
    from steadyq import envs
    from steadyq.agent import device_for, ensemble_for
    from steadyq.drive import rewarded_share, seconds_per_update
    from steadyq.drive import train as run_training
    from steadyq.presets import recipe_for
    from steadyq.progress import Terminal, clock
    from steadyq.runs import RunFolder, default_path

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("env", nargs="?")
    first.add_argument("--preset", default="steady")
    first.add_argument("--scale", default="")
    helping = "-h" in words or "--help" in words
    try:
        given, _ = first.parse_known_args([word for word in words if word not in ("-h", "--help")])
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    if given.env is None and not helping:
        raise UserError("train needs an environment, for example `steadyq train MinAtar/Breakout`")
    base = recipe_for(given.preset, given.env or "MinAtar/Breakout", given.scale)
    parsed = parse(TrainOptions, words, TrainOptions(base), recipe=base)
    recipe = dataclasses.replace(parsed.recipe, env=base.env)
    path = parsed.run or default_path(recipe)
    folder = RunFolder(path)
    folder.check(recipe)
    display = Terminal(OUT)

    if folder.result is None:
        spec = envs.spec(recipe.env, recipe.protocol)
        ensemble = ensemble_for(recipe, spec)
        size = sum(math.prod(layer.weight_shape) + layer.outputs for layer in ensemble.network.layers.values())
        OUT.print(f"[bold]{recipe.env}[/]  preset {recipe.preset}, scale {recipe.scale}, seed {recipe.seed}")
        for line in recipe.protocol.lines():
            OUT.print(f"  {line}")
        OUT.print(
            f"network {recipe.network.kind}: {recipe.ensemble.members} x {size:,} parameters; "
            f"operator {recipe.operator.kind}, exchange {recipe.operator.exchange}, forbid {recipe.operator.forbid}, "
            f"ceiling {recipe.operator.ceiling}; estimator {recipe.estimator.kind}; "
            f"resets {recipe.regulation.intervention}"
        )
        OUT.print(
            f"computing on {device_for(recipe)}: form {ensemble.form}, {str(ensemble.dtype).removeprefix('torch.')}"
        )
        updates = max(0, recipe.steps - recipe.replay.warmup) // recipe.protocol.lanes // recipe.replay.every
        updates *= recipe.replay.ratio
        each = seconds_per_update(recipe, spec)
        OUT.print(
            f"cost: {recipe.steps:,} steps ({recipe.steps * spec.frames_per_step:,} frames), {updates:,} updates of "
            f"{recipe.replay.batch}, about {clock(updates * each)} of learning at {each * 1e3:.3g} ms an update"
        )
        if recipe.operator.forbid == "rewarded" and (share := rewarded_share(recipe)) > 0.5:
            OUT.print(
                f"[yellow]note:[/] {share:.0%} of a random policy's steps are rewarded here: forbidding the rewarded "
                f"action dictates {'every' if spec.num_actions == 2 else 'most'} bootstrap action"
                f"{'s' * (spec.num_actions > 2)} and Q becomes the value of a restricted policy; "
                f"compare with --operator.forbid auto"
            )
        OUT.print(f"writing to {path}\n")
    code = _stoppable(lambda: run_training(recipe, run=path, display=display))
    if code == 0:
        OUT.print(f"result   {path}/result.json")
        OUT.print(
            f"next     steadyq report {path}   |   steadyq play {path} --out game.mp4   |   steadyq evaluate {path}"
        )
    return code


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent on ENV, or continue it: the same command goes on where the run stopped."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    run: Path | None = None
    """Run folder; by default runs/<env>-<preset>-<scale>-seed<n>."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Play full games with a run's weights, without exploration."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    episodes: int = 100
    """Full games."""
    seed: int = 1000
    """Seed of the games."""
    json: Path | None = None
    """Also write the scores to this file."""


def evaluate(words: list[str]) -> int:
    """Play full games with a run's weights: `steadyq evaluate RUN`."""
    import numpy as np

    from steadyq.agent import load
    from steadyq.evaluate import greedy_policy, play_games
    from steadyq.progress import Terminal
    from steadyq.recipe import within
    from steadyq.runs import RunFolder, provenance

    options = parse(EvaluateOptions, words)
    within("--episodes", options.episodes, 1)
    folder = RunFolder(options.run)
    recipe = folder.recipe
    _, step = folder.weights()
    agent = load(options.run)
    with Terminal(OUT).evaluating(options.episodes) as progress:
        games = play_games(
            greedy_policy(agent),
            recipe.env,
            recipe.protocol,
            episodes=options.episodes,
            seed=options.seed,
            device=str(agent.device),
            progress=progress,
        )
    scores = [game.score for game in games]
    error = float(np.std(scores, ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else float("nan")
    OUT.print(
        f"{recipe.env} after {step:,} steps: mean return [bold]{np.mean(scores):.2f}[/] over {len(scores)} full games "
        f"(standard error {error:.2f}, median {np.median(scores):.2f}, range {min(scores):g} to {max(scores):g})"
    )
    if options.json:
        record = {
            "env": recipe.env,
            "step": step,
            "seed": options.seed,
            "returns": scores,
            "mean_return": float(np.mean(scores)),
            **provenance(),
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


@dataclass(frozen=True)
class PlayOptions:
    """Record a video of a run's agent playing one full game."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    out: Path
    """Video file, ending in .mp4 or .gif."""
    seed: int = 1000
    """Seed of the game."""
    best_of: int = 1
    """Play this many games and record the best."""
    max_seconds: float = 60.0
    """Cut the video after so many seconds."""


def play(words: list[str]) -> int:
    """Record a video of a run's agent: `steadyq play RUN --out game.mp4`."""
    from steadyq.video import record_game

    options = parse(PlayOptions, words)
    score, steps = record_game(
        options.run, options.out, seed=options.seed, best_of=options.best_of, max_seconds=options.max_seconds
    )
    OUT.print(f"{options.out}: one game, {steps:,} steps, return {score:g}")
    return 0


@dataclass(frozen=True)
class ReportOptions:
    """Write one page about one or more runs: curves, diagnostics, scores; opens offline in any browser."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders; runs that differ only in their seed are drawn together. Or one sweep folder."""
    out: Path | None = None
    """The page, by default report.html; for a sweep the folder of its report, by default SWEEP/report."""
    video: Path | None = None
    """An .mp4 to show in it, as `steadyq play` writes."""


def report(words: list[str]) -> int:
    """Write one page about one or more runs: `steadyq report RUN... --out report.html`."""
    from steadyq.report.html import write_report

    options = parse(ReportOptions, words)
    if len(options.runs) == 1 and (options.runs[0] / "sweep.toml").is_file():
        return _report_sweep(options.runs[0], options.out)
    out = options.out or Path("report.html")
    write_report(options.runs, out, video=options.video)
    OUT.print(f"report: {out}")
    return 0


@dataclass(frozen=True)
class DiagnoseOptions:
    """Say what is unstable in a run, since which step, how strongly, by which mechanism, and what to try."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder, ours or one that the stability monitor wrote for other code."""
    json: bool = False
    """Print the findings as JSON."""
    probe: bool = False
    """Also measure plasticity: how well the newest weights still fit random targets, beside fresh ones."""


def diagnose(words: list[str]) -> int:
    """Say what is unstable in a run, and what to try: `steadyq diagnose RUN`."""
    from steadyq.monitor.verdict import LEVELS, number
    from steadyq.report.curves import read
    from steadyq.report.html import verdict

    options = parse(DiagnoseOptions, words)
    run = read(options.run)
    if not run.diagnostics and not run.of("diverged"):
        raise UserError(f"{options.run} has no diagnostics: train it with monitor.every above 0")
    found = verdict(run)
    probe = _probe(options.run) if options.probe else None
    if options.json:
        record = {"run": str(options.run), "findings": [finding.to_dict() for finding in found]}
        print(json.dumps(record | ({"probe": probe} if probe else {}), indent=2))
        return 0
    last = run.diagnostics[-1]["step"] if run.diagnostics else 0
    OUT.print(f"[bold]{run.recipe.env}[/]  {run.recipe.preset}, {len(run.diagnostics)} measurements to step {last:,}")
    if not found:
        OUT.print("[green]nothing unstable was found[/]")
    for finding in found:
        OUT.print(f"[red]{finding.name}[/]  {LEVELS[finding.mechanism]}", soft_wrap=True)
        until = f" until step {finding.until:,}" if finding.until is not None else ", still"
        OUT.print(
            f"  {finding.what} since step {finding.since:,}{until}: worst {number(finding.worst)}, threshold "
            f"{number(finding.threshold)}",
            soft_wrap=True,
        )
        OUT.print(f"  {finding.advice()}", soft_wrap=True)
    if probe:
        OUT.print(
            f"plasticity probe: {probe['trained']:.0%} of the error to random targets is left after {probe['steps']} "
            f"updates, {probe['fresh']:.0%} from fresh weights"
        )
    return 0


def _probe(path: Path) -> dict[str, Any]:
    """Fit random targets from the newest weights and from fresh ones, on observations of a random policy."""
    import torch

    from steadyq import envs
    from steadyq.agent import load
    from steadyq.explore import FrameStack
    from steadyq.monitor.diagnostics import plasticity_probe
    from steadyq.runs import RunFolder

    steps, size = 100, 128
    recipe = RunFolder(path).recipe
    agent = load(path, "cpu")
    env = envs.make(recipe.env, recipe.protocol, seed=recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    stack = FrameStack(env.spec)
    seen: list[torch.Tensor] = []
    observation = stack.push(env.reset())
    while len(seen) * env.spec.lanes < size:
        seen.append(observation.clone())
        action = torch.randint(env.spec.num_actions, (env.spec.lanes,), generator=generator).numpy()
        step = env.step(action)
        observation = stack.push(step.frame, step.terminated | step.truncated)
    env.close()
    forward, shown = agent.ensemble.forward, torch.cat(seen)[:size]
    left = {
        name: plasticity_probe(
            forward, params, shown, generator=torch.Generator().manual_seed(0), steps=steps, rate=recipe.optim.rate
        )
        for name, params in (("trained", agent.params), ("fresh", agent.ensemble.initial(generator)))
    }
    return {"steps": steps, **{name: float(values.mean()) for name, values in left.items()}}


@dataclass(frozen=True)
class CompareOptions:
    """Print the scores of several runs by environment, variant and seed; draw their curves."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders; runs that differ only in their seed are one variant."""
    figure: Path | None = None
    """Also draw curves into this file (.svg, .png or .pdf); the runs must then share one environment."""
    columns: tuple[str, ...] = ("return_10", "q_taken")
    """Columns of metrics.jsonl to draw, one panel each."""
    title: str = ""
    """Title of the figure."""
    markdown: bool = False
    """Print the table as Markdown."""


def compare(words: list[str]) -> int:
    """Print scores of several runs with intervals over seeds: `steadyq compare RUN...`."""
    import numpy as np

    from steadyq.report import curves, figures

    options = parse(CompareOptions, words)
    if not options.runs:
        raise UserError("compare needs run folders, for example `steadyq compare runs/*`")
    comparison = curves.compare(options.runs)
    games = sorted({cell.env for cell in comparison.cells})
    if options.figure and len(games) > 1:
        raise UserError(f"--figure draws runs of one environment, these are of {', '.join(games)}")
    columns = ("environment", "variant", "seeds", "mean return of each seed", "mean", "95% interval", "random")
    rows: list[tuple[str, ...]] = []
    for cell in comparison.cells:
        scores = cell.scores
        low, high = curves.bootstrap_interval(scores) if len(scores) > 1 else (float("nan"), float("nan"))
        baseline = [run.result["random_return"] for run in cell.runs if run.result]
        row = (
            cell.env,
            comparison.labels[cell.variant],
            f"{len(scores)}" + (f" of {len(cell.runs)} finished" if len(scores) < len(cell.runs) else ""),
            " ".join(f"{score:.2f}" for score in scores),
            f"{np.mean(scores):.2f}" if scores else "-",
            f"{low:.2f} to {high:.2f}" if len(scores) > 1 else "-",
            f"{np.mean(baseline):.2f}" if baseline else "-",
        )
        rows.append(row)
    if options.markdown:
        for line in (columns, ("---",) * len(columns), *rows):
            print("| " + " | ".join(line) + " |")
        return 0
    table = Table(*columns, box=None)
    for cells in rows:
        table.add_row(*cells)
    OUT.print(table)
    OUT.print("each seed: mean over its evaluation games; interval: percentile bootstrap over seeds")
    if options.figure:
        variants = {comparison.labels[cell.variant]: [run.path for run in cell.runs] for cell in comparison.cells}
        figures.compare(variants, options.columns, options.figure, title=options.title)
        OUT.print(f"figure: {options.figure}")
    return 0


@dataclass(frozen=True)
class DemoOptions:
    """Train the method on a small game, film it and write a page about it."""

    out: Path = Path("demo")
    """Folder for the run, the video and the page."""
    steps: int | None = None
    """Train for so many steps instead of the demo's own."""


def demo(words: list[str]) -> int:
    """Train on a small game, film it, write a page about it: what `make demo` runs."""
    from steadyq.demo import run_demo

    options = parse(DemoOptions, words)
    return _stoppable(lambda: run_demo(options.out, steps=options.steps, console=OUT))


def _stoppable(work: Callable[[], Any]) -> int:
    """Run something that trains; a stop or a divergence is one line and its own exit code."""
    from steadyq.drive import Interrupted
    from steadyq.train import Diverged

    try:
        work()
    except Interrupted as stop:
        print(f"steadyq: {stop}", file=sys.stderr)
        return 130
    except Diverged as error:
        print(f"steadyq: {error}", file=sys.stderr)
        return 3
    return 0


@dataclass(frozen=True)
class PresetsOptions:
    """List the presets, or print one as a table."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """Preset to print."""
    scale: Literal["", "tiny", "small", "paper"] = ""
    """Scale to print it at."""
    env: str = "Atari/Breakout"
    """Environment to print it for."""
    toml: bool = False
    """Print the whole recipe as TOML."""


def presets(words: list[str]) -> int:
    """List the presets, or print one: `steadyq presets steady --scale paper`."""
    from steadyq.presets import PRESETS, SCALES, recipe_for
    from steadyq.tables import hyperparameters

    options = parse(PresetsOptions, words)
    if not options.name:
        table = Table("preset", "what it is", box=None, header_style="bold")
        for name, function in PRESETS.items():
            table.add_row(name, (function.__doc__ or "").splitlines()[0])
        OUT.print(table)
        OUT.print(f"\nscales: {', '.join(SCALES)}   `steadyq presets NAME --scale SCALE [--env ENV]` prints one")
        return 0
    recipe = recipe_for(options.name, options.env, options.scale)
    if options.toml:
        print(recipe.to_toml(), end="")
    else:
        OUT.print(hyperparameters(recipe))
    return 0


def doctor(words: list[str]) -> int:
    """Say what is installed, which environments work, and whether there is a GPU."""
    from steadyq import envs
    from steadyq.runs import provenance

    if words:
        raise UserError(f"doctor takes no options, got {words[0]!r}")
    facts = provenance()
    table = Table(box=None, show_header=False)
    for name, version in facts["versions"].items():
        table.add_row(name, version)
    table.add_row("cpu", f"{facts['hardware']['cpu']}, {facts['hardware']['cores']} cores")
    table.add_row("gpu", facts["hardware"]["gpu"] or "none visible: training runs on the CPU")
    OUT.print(table)
    for backend, works, message in envs.available():
        OUT.print(f"{'[green]works[/]  ' if works else '[red]missing[/]'}  {backend:<10} {message}")
    return 0


@dataclass
class BenchOptions:
    """Time updates in every form and scale, their parts, acting, environments, and other libraries' updates.

    Figures are medians and ratios of one run; a busy machine blurs them. A GPU run with compilation takes minutes.
    """

    json: Path | None = None
    """Also write all figures, with versions and hardware, to this file."""
    section: tuple[Literal["gpu", "growth", "env", "cpu"], ...] = ()
    """Only these sections; by default all that this machine can show."""
    scales: tuple[str, ...] = ()
    """Only these scales of section gpu, members x s: 4x2 16x4."""
    compile: bool = True
    """Whether to time grouped convolutions under torch.compile too."""
    show: Path | None = None
    """Print the figures in this file, written by --json, instead of measuring."""
    markdown: bool = False
    """With --show: as Markdown tables."""


def bench(words: list[str]) -> int:
    """Time updates, acting and environments on this machine: `steadyq bench --json times.json`."""
    from steadyq.bench.run import Bench

    options = parse(BenchOptions, words)
    if options.show is not None:
        return _show_bench(options.show, options.markdown)
    if options.markdown:
        raise UserError("--markdown goes with --show FILE")
    scales = tuple(_scale(text) for text in options.scales)
    if options.json is not None and not options.json.parent.is_dir():
        raise UserError(f"--json {options.json}: there is no folder {options.json.parent}")
    run = Bench(OUT, tuple(options.section), compile=options.compile)
    run.scales = scales or run.scales
    found = run.run()
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _show_bench(path: Path, markdown: bool) -> int:
    from steadyq.bench.sheets import sheets

    try:
        found = list(sheets(json.loads(path.read_text())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--show {path}: not a file of `steadyq bench --json` ({type(error).__name__})") from None
    for sheet in found:
        if markdown:
            print(f"{sheet.title}:\n\n{sheet.markdown()}\n")
        else:
            OUT.print(sheet.rich())
    return 0


def _scale(text: str) -> tuple[int, int]:
    members, _, scale = text.partition("x")
    if not (members.isdigit() and scale.isdigit() and int(members) and int(scale)):
        raise UserError(f"scale {text!r}: write members x s, for example 4x2")
    return int(members), int(scale)


def paper(words: list[str]) -> int:
    """Recompute the paper's tables and check its numbers: `steadyq paper check`."""
    from steadyq.presets import recipe_for
    from steadyq.suite.paper import TABLES
    from steadyq.suite.tables import render
    from steadyq.tables import hyperparameters, layers

    own: dict[str, Callable[[], Any]] = {
        "layers": lambda: layers(recipe_for("steady", "Atari/Alien", "paper")),
        "hyperparameters": lambda: Group(
            hyperparameters(recipe_for("steady", "Atari/Alien", "paper")),
            hyperparameters(recipe_for("steady", "Procgen/CoinRun", "paper")),
        ),
    }
    options = parse(PaperOptions, words)
    if options.what in own:
        OUT.print(own[options.what]())
    elif options.what in TABLES:
        table = TABLES[options.what]()
        if options.json:
            print(json.dumps(table.json(), indent=2))
        else:
            render(table, OUT)
    else:
        raise UserError(f"unknown table {options.what!r}: {nearest(options.what, [*TABLES, *own])}")
    return 0


@dataclass(frozen=True)
class PaperOptions:
    """Recompute a table of the paper: table1, table2, table5, table7, check, sources, layers or hyperparameters."""

    what: Annotated[str, tyro.conf.Positional]
    """Which table; `check` lists every printed aggregate beside the recomputed one."""
    json: bool = False
    """Print the table as JSON."""


@dataclass(frozen=True)
class SweepOptions:
    """Run a suite or study; the same command continues it. Any option of `train` with a dot in it applies to all runs.

    Suites: minatar, atari100k, procgen, ablation4. Studies: ensemble-size, decoupling, reset, replay-ratio,
    spike-heatmap, bound, exchange, head-width, or the path of a .toml file like theirs.
    """

    suite: Annotated[str, tyro.conf.Positional]
    """Suite, study, or path of a study file."""
    preset: str = ""
    """Preset of all runs; by default the study's."""
    scale: str = ""
    """Scale of all runs: tiny, small or paper; by default the study's, else each environment's."""
    seeds: int | None = None
    """Number of seeds; by default the study's."""
    games: tuple[str, ...] = ()
    """Only these games, or others."""
    steps: int | None = None
    """Environment steps of every run."""
    on: str = "local"
    """Where: local, ray (the cluster this machine belongs to, else one started here), or ray://host:port."""
    jobs: int | None = None
    """Runs at a time on this machine; by default one for each core or GPU slot."""
    gpus_per_run: float | None = None
    """Share of a GPU that each run gets; by default a whole one where there is one; 0 trains on the CPU."""
    retries: int = 2
    """How often a run that crashed is tried again, from its last checkpoint."""
    out: Path | None = None
    """Folder of the sweep, on storage that all nodes share; by default sweeps/<suite>, preset and scale where given."""
    dry_run: bool = False
    """Only print the plan and its cost, also on a GPU whose updates were measured."""


def sweep(words: list[str]) -> int:
    """Run games x seeds x variants, or continue them: `steadyq sweep decoupling --games MinAtar/Breakout`."""
    from steadyq.presets import recipe_for
    from steadyq.recipe import within
    from steadyq.suite.launch import launch, launcher_for
    from steadyq.suite.plan import describe, make_plan
    from steadyq.suite.suites import find_study

    base = recipe_for("steady", "MinAtar/Breakout")
    words, settings = split_settings(words, base)
    options = parse(SweepOptions, words)
    within("--retries", options.retries, 0)
    if options.steps is not None:
        settings["steps"] = options.steps
    study = find_study(options.suite).changed(
        preset=options.preset, scale=options.scale, seeds=options.seeds, games=options.games, settings=settings
    )
    parts = (study.name, options.preset, options.scale)
    out = options.out or Path("sweeps") / "-".join(part for part in parts if part)
    plan = make_plan(study, out, here=options.on == "local")
    launcher = launcher_for(options.on, plan, options.jobs, options.gpus_per_run, options.retries)
    describe(
        plan,
        OUT,
        where=launcher.words,
        parallel=launcher.parallel,
        on_gpu=launcher.on_gpu,
        gpu_hours=options.dry_run,
    )
    return 0 if options.dry_run else launch(plan, launcher, OUT, retries=options.retries)


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
    from steadyq.suite.ppo import train_row

    options = parse(PpoOptions, words)
    if not options.games:
        raise UserError("ppo needs games, for example `steadyq ppo CoinRun`, or `steadyq ppo procgen` for all 16")
    settings = {name: getattr(options, name) for name in ("steps", "episodes", "lanes", "rollout")}
    code = _stoppable(lambda: train_row(options.games, options.seeds, options.out, OUT.print, **settings))
    if code == 0:
        OUT.print(f"next     steadyq report {options.out}")
    return code


def _report_sweep(path: Path, out: Path | None) -> int:
    """Print a sweep's tables and write them with its figures and its page."""
    from steadyq.report.sweep import write_sweep_report
    from steadyq.suite.tables import render

    tables, files = write_sweep_report(path, out)
    for table in tables:
        render(table, OUT)
    for file in files:
        OUT.print(f"wrote {file}", soft_wrap=True)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "evaluate": evaluate,
    "play": play,
    "compare": compare,
    "report": report,
    "diagnose": diagnose,
    "sweep": sweep,
    "ppo": ppo,
    "presets": presets,
    "paper": paper,
    "bench": bench,
    "doctor": doctor,
    "demo": demo,
}
