"""`make demo`: train the paper's method on a small game, watch it play, and read what happened, in minutes on a CPU."""

import sys
from pathlib import Path

from rich.console import Console

from steadyq.errors import UserError
from steadyq.presets import steady
from steadyq.recipe import Recipe
from steadyq.report.html import write_report
from steadyq.run.folder import RunFolder
from steadyq.run.loop import train
from steadyq.run.progress import SafeConsole, Terminal
from steadyq.run.video import encoder, record_game
from steadyq.suite.tables import times_random

ENV = "MinAtar/Breakout"
STEPS = 25_000
GAMES_FILMED = 3
MAX_SECONDS = 40.0
"""Most seconds of video: a page with it stays small."""


def demo_recipe(steps: int | None = None) -> Recipe:
    """The tiny preset, recorded often enough that a short run gives a full page."""
    steps = steps or STEPS
    often = max(1, min(250, steps // 20))
    return steady(ENV, "tiny", steps=steps, **{"record.every": often, "record.checkpoint_every": 2500})


def run_demo(out: Path, *, steps: int | None = None, console: Console | None = None) -> Path:
    """Train, evaluate, film and report into the folder `out`; returns the report's path.

    Run again it continues where it was stopped; a part that is already there is not made again.
    """
    console = console or SafeConsole(soft_wrap=False)
    recipe, folder, video, report = demo_recipe(steps), RunFolder(out / "run"), out / "agent.mp4", out / "report.html"
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: --out needs a folder")
    folder.check(recipe)
    finished = folder.result is not None and video.is_file() and report.is_file()
    if finished:
        console.print(f"the demo in {out} has already finished; remove the folder to see it again")
    else:
        encoder()  # if it is missing, not after minutes
        _introduce(recipe, console)
        train(recipe, run=folder.path, display=Terminal(console))
        console.print("filming a game ...")
        game = record_game(folder.path, video, best_of=GAMES_FILMED, max_seconds=MAX_SECONDS)
        caption = (
            f"The best of {GAMES_FILMED} full games after training: return {game.score:g} in {game.steps:,} steps."
        )
        write_report([folder.path], report, video=video, caption=caption)
    _conclude(out, folder, console)
    return report


def _introduce(recipe: Recipe, console: Console) -> None:
    members, steps = recipe.ensemble.members, recipe.steps
    console.print(f"[bold]{recipe.env}[/]: {members} networks learn to play for {steps:,} steps", markup=True)
    console.print(
        "each values another's choice, the action just rewarded may not bootstrap from itself, targets stay below the "
        "best return seen, and layers whose weights spike are reset (preset steady, scale tiny)\n"
    )


def _conclude(out: Path, folder: RunFolder, console: Console) -> None:
    result = folder.result
    assert result is not None
    score, baseline = result["mean_return"], result["random_return"]
    ratio = times_random(score, baseline)
    command = _command()
    console.print(
        f"\nthe agent scores [bold]{score:.2f}[/] over {result['episodes']} full games, a random policy {baseline:.2f}"
        + (f": [bold]{ratio:.1f} times[/] as much" if ratio is not None else ""),
        soft_wrap=True,
        markup=True,
    )
    for line in (
        f"  report  {out / 'report.html'}   (open it in a browser)",
        f"  video   {out / 'agent.mp4'}",
        f"  run     {folder.path}",
        "next, try:",
        f"  {command} train MinAtar/Asterix",
        f"  {command} train CartPole-v1 --operator.forbid none",
        f"  {command} presets",
    ):
        console.print(line, soft_wrap=True)


def _command() -> str:
    """How to call the command from here: inside a project's own environment it is not on the path."""
    beside = Path(sys.executable).with_name("steadyq")
    inside = beside.is_file() and beside.is_relative_to(Path.cwd())
    return str(beside.relative_to(Path.cwd())) if inside else "steadyq"
