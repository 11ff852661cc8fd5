"""Commands that train, test and show one agent."""

import argparse
import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from steadyq.cli.brief import train_help
from steadyq.cli.options import factories_named, made_with, parse, placed, spelt, with_kinds
from steadyq.cli.terminal import OUT, check_file, say_imports, say_imports_of, stoppable, write_file
from steadyq.envs.factories import Environment
from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.run.files import read_text


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent on ENV, or continue it: the same command goes on where the run stopped."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    run: Path | None = None
    """Run folder; by default runs/<env>-<preset>-<scale>-<changed options>-seed<n>."""
    base: Annotated[Path | None, tyro.conf.arg(name="recipe")] = None
    """Begin with the recipe in this file (a run's recipe.toml, a search's best.toml) in place of a preset's."""
    tuned: bool = False
    """Begin with the recipe that was tuned for this environment (`steadyq presets --tuned` lists them)."""


def train(words: list[str]) -> int:
    """Train an agent, or continue it: `steadyq train MinAtar/Breakout`."""
    from steadyq import envs
    from steadyq.presets import recipe_for, tuned

    words = spelt(placed(words))
    kwargs, wrappers, others = made_with(words)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("env", nargs="?")
    first.add_argument("--preset", default="steady")
    first.add_argument("--scale", default="")
    first.add_argument("--recipe")
    first.add_argument("--tuned", action="store_true")
    brief, helping = {*words} & {"-h", "--help"}, {*words} & {"-h", "--help", "--help-all"}
    words = ["--help" if word == "--help-all" else word for word in words]
    try:
        given, _ = first.parse_known_args([word for word in others if word not in ("-h", "--help", "--help-all")])
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    known = with_kinds(recipe_for("steady", envs.example()), words)
    if words[:1] != [given.env] and not helping:  # argparse takes the value of an option it does not know for it
        blank = TrainOptions(dataclasses.replace(known, env=""))
        given.env = parse(TrainOptions, others, blank, recipe=known).recipe.env or None
    chosen = {word.partition("=")[0] for word in others} & {"--preset", "--scale", "--recipe"}
    if given.tuned and chosen:
        raise UserError(f"--tuned and {min(chosen)}: a tuned recipe has its own, choose one of the two")
    written = Recipe.from_toml(read_text(Path(given.recipe))) if given.recipe else None
    if written is not None:
        given.env = given.env or written.env
    if not given.env and not helping:
        raise UserError("train needs an environment, for example `steadyq train MinAtar/Breakout`")
    if written is not None:
        say_imports_of(written)
    else:
        say_imports(given.env or "", wrappers=(*wrappers, *factories_named(words)))
    try:
        env = Environment(given.env or envs.example(), tuple(kwargs), tuple(wrappers))
        if given.tuned:
            base = tuned(env)
        else:
            base = recipe_for(given.preset, env, given.scale) if written is None else _for(written, env, given.recipe)
    except UserError:
        parse(TrainOptions, others, TrainOptions(known), recipe=known)  # an unknown option's value is no environment
        raise
    base = with_kinds(base, words)
    if brief:
        train_help(base)
        return 0
    parsed = parse(TrainOptions, words, TrainOptions(base), recipe=base)
    recipe = dataclasses.replace(parsed.recipe, env=base.env)

    from steadyq.build import check_memory, compiled_for, ensemble_for
    from steadyq.run.folder import RunFolder, default_path
    from steadyq.run.loop import check_dataset, introduction, never_learns, rewarded_share, seconds_per_update
    from steadyq.run.loop import train as run_training
    from steadyq.run.progress import Terminal, clock
    from steadyq.run.sinks import check_sinks

    path = parsed.run or default_path(recipe)
    folder = RunFolder(path)
    folder.check(recipe)
    check_sinks(recipe)
    display = Terminal(OUT)

    if not folder.finished(recipe):
        spec = envs.spec(recipe.env, recipe.protocol)
        check_memory(recipe, spec)
        if not folder.checkpoints():
            check_dataset(recipe, spec)
        ensemble = ensemble_for(recipe, spec)
        for line in introduction(recipe, spec, ensemble):
            display.note(line)
        updates = recipe.updates
        each = seconds_per_update(recipe, spec)
        digits = 1 if each < 0.1 else 0
        how = ", uncompiled" if compiled_for(recipe, ensemble) else ""
        display.note(
            f"cost: {recipe.steps:,} steps ({recipe.steps * spec.frames_per_step:,} frames), {updates:,} updates of "
            f"{recipe.replay.batch}, about {clock(updates * each)} of learning at {each * 1e3:,.{digits}f} ms an update"
            f"{how}"
        )
        if recipe.operator.forbid == "rewarded" and (share := rewarded_share(recipe)) > 0.5:
            display.note(
                f"note: {share:.0%} of a random policy's steps are rewarded here: forbidding the rewarded "
                f"action dictates {'every' if spec.num_actions == 2 else 'most'} bootstrap action"
                f"{'s' * (spec.num_actions > 2)} and Q becomes the value of a restricted policy; "
                f"compare with --operator.forbid auto"
            )
        if said := never_learns(recipe):
            display.note(said)
        display.note(f"writing to {path}\n")
    code = stoppable(lambda: run_training(recipe, run=path, display=display))
    if code == 0:
        word = shlex.quote(str(path))
        OUT.print(f"result   {path}/result.json")
        for line in (f"report {word}", f"play {word} --out game.mp4", f"evaluate {word}"):
            OUT.print(f"{'next' if line.startswith('report') else '':<8} steadyq {line}")
    return code


def _for(written: Recipe, env: Environment, file: str) -> Recipe:
    """A recipe from a file, if it is for this environment."""
    from steadyq import envs

    if envs.canonical(env) != written.env:
        raise UserError(f"--recipe {file} is for {written.env}, not for {envs.canonical(env)}")
    return written


@dataclass(frozen=True)
class EvaluateOptions:
    """Play full games with a run's weights."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    episodes: int = 100
    """Full games."""
    seed: int = 1000
    """Seed of the games."""
    epsilon: float | None = None
    """Chance of a uniform action in place of the agent's; by default as in the run's recipe (`evaluation.epsilon`)."""
    sticky: float | None = None
    """Chance that the emulator repeats its last action; by default as in training. At 0.25 Atari games all differ."""
    networks: Literal["acting", "online", "target", "best"] = "acting"
    """Which networks play: those that acted in training, those named, or the best on the way (`evaluation.every`)."""
    json: Path | None = None
    """Also write the scores to this file."""


def evaluate(words: list[str]) -> int:
    """Play full games with a run's weights: `steadyq evaluate RUN`."""
    options = parse(EvaluateOptions, words)

    from steadyq.fields import MOST_GAMES, within
    from steadyq.run.folder import RunFolder

    within("--episodes", options.episodes, 1, MOST_GAMES)
    within("--seed", options.seed, 0, 2**31 - 1)
    check_file("--json", options.json)
    folder = RunFolder(options.run)
    recipe = folder.recipe  # what is no run is refused before PyTorch is there
    import numpy as np

    from steadyq.agent import load
    from steadyq.run.evaluate import different, greedy_policy, play_games, standard_error
    from steadyq.run.progress import Terminal, games_said
    from steadyq.run.provenance import provenance

    protocol = recipe.protocol
    say_imports_of(recipe)
    epsilon = recipe.evaluation.epsilon if options.epsilon is None else options.epsilon
    within("--epsilon", epsilon, 0, 1)
    if options.sticky is not None:
        protocol = dataclasses.replace(protocol, sticky=options.sticky)
    networks = recipe.explore.act_with if options.networks == "acting" else options.networks
    agent = load(options.run, networks=networks)
    with Terminal(OUT).evaluating(options.episodes) as progress:
        games = play_games(
            greedy_policy(agent),
            recipe.env,
            protocol,
            episodes=options.episodes,
            seed=options.seed,
            epsilon=epsilon,
            device=str(agent.device),
            progress=progress,
        )
    scores = [game.score for game in games]
    error = standard_error(games)
    said = "" if error is None else f"standard error {error:.2f}, "
    counted = {
        "episodes": len(scores),
        "different_games": different(games),
        "evaluation_epsilon": epsilon,
        "evaluated_networks": networks,
    }
    OUT.print(
        f"{recipe.env} after {agent.step:,} steps: "
        f"mean return [bold]{np.mean(scores):.2f}[/] over {games_said(counted)} "
        f"({said}median {np.median(scores):.2f}, range {min(scores):g} to {max(scores):g}"
        f"{f', first 10 games {np.mean(scores[:10]):.2f}' if len(scores) > 10 else ''})",
        markup=True,
        soft_wrap=not OUT.is_terminal,
    )
    if options.json:
        record = {
            "env": recipe.env,
            "step": agent.step,
            "seed": options.seed,
            "protocol": protocol.name,
            "sticky": protocol.sticky,
            "returns": scores,
            "mean_return": float(np.mean(scores)),
            "standard_error": error,
            "first_10_mean_return": float(np.mean(scores[:10])),
            **counted,
            **provenance(),
        }
        write_file(options.json, json.dumps(record, indent=2) + "\n")
    return 0


@dataclass(frozen=True)
class PlayOptions:
    """Show a run's agent playing one full game: in a video, or in a window where there is a display."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    out: Path | None = None
    """Video file, ending in .mp4 or .gif."""
    window: bool = False
    """Show the game in a window; closing it, Escape or q ends it."""
    seed: int = 1000
    """Seed of the game."""
    best_of: int = 1
    """Play this many games and record the best."""
    max_seconds: float = 60.0
    """Cut it after so many seconds."""
    epsilon: float | None = None
    """Chance of a uniform action in place of the agent's; by default as in the run's recipe (`evaluation.epsilon`)."""
    networks: Literal["acting", "online", "target", "best"] = "acting"
    """Which networks play: those that acted in training, those named, or the best on the way (`evaluation.every`)."""


def play(words: list[str]) -> int:
    """Show a run's agent in a video or a window: `steadyq play RUN --out game.mp4`."""
    options = parse(PlayOptions, words)

    from itertools import islice

    from steadyq.fields import MOST_GAMES, within
    from steadyq.run.folder import RunFolder

    if (options.out is None) != options.window:
        raise UserError("play needs --out FILE, or --window where there is a display: one of the two")
    within("--seed", options.seed, 0, 2**31 - 1)
    within("--max-seconds", options.max_seconds, 0.1, 86_400)
    within("--best-of", options.best_of, 1, MOST_GAMES)
    check_file("--out", options.out)
    if options.epsilon is not None:
        within("--epsilon", options.epsilon, 0, 1)
    recipe = RunFolder(options.run).recipe  # what is no run is refused before PyTorch is there
    from steadyq.run.video import best_game, record_game
    from steadyq.run.window import display, show

    how: dict[str, Any] = {name: getattr(options, name) for name in ("seed", "best_of", "epsilon", "networks")}
    if options.out is not None:
        say_imports_of(recipe)
        game = record_game(options.run, options.out, max_seconds=options.max_seconds, **how)
        OUT.print(f"{options.out}: one game, {game.steps:,} steps, return {game.score:g}")
        return 0
    display()
    say_imports_of(recipe)
    game, pictures, fps = best_game(options.run, **how)
    seen = show(islice(pictures, int(options.max_seconds * fps)), fps, f"{recipe.env}  {options.run}")
    OUT.print(f"one game, {game.steps:,} steps, return {game.score:g}{'' if seen else ' (closed before its end)'}")
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
    options = parse(DemoOptions, words)

    from steadyq.cli.demonstration import run_demo
    from steadyq.fields import within
    from steadyq.run.folder import RunFolder

    if options.steps is not None:
        within("--steps", options.steps, 1)
    if RunFolder(options.out).begun:
        raise UserError(f"--out {options.out} is a run's own folder: choose another, the demo makes a run in it")
    return stoppable(lambda: run_demo(options.out, steps=options.steps, console=OUT))
