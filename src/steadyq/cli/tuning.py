"""The command that searches for a better recipe."""

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from steadyq.cli.options import parse, split_settings
from steadyq.cli.terminal import OUT, say_imports
from steadyq.errors import UserError

FRESH = 1000
"""The first of the seeds on which the best recipe is compared with the one that it came from."""


@dataclass(frozen=True)
class TuneOptions:
    """Search for a better recipe through Optuna; the same command continues, and started again shares the work.

    Each trial trains several seeds; one that is worse than half of those before it is cut short. At the end the best
    recipe is compared with the untuned one on seeds that the search never saw. Any option of `train` with a dot in it
    holds for all trials. Needs pip install 'steadyq[tune]'.
    """

    env: Annotated[str, tyro.conf.Positional]
    """Environment, such as CartPole-v1 or MinAtar/Breakout."""
    preset: str = "steady"
    """Preset that trials change."""
    scale: str = ""
    """Its scale: tiny, small or paper; by default the environment's."""
    trials: int = 30
    """Trials in all."""
    seeds: int = 3
    """Runs of each trial."""
    steps: int | None = None
    """Environment steps of every run; by default the preset's."""
    space: Path | None = None
    """TOML file of what is searched: "optim.rate" = { low = 1e-4, high = 1e-2, log = true } or { choices = [1, 3] }."""
    check: int = 5
    """Fresh seeds on which the best recipe is compared with the untuned one; 0 leaves that out."""
    jobs: int = 1
    """Processes that work at the same time."""
    out: Path | None = None
    """Folder of the search; by default tunings/<environment>-<preset>."""
    dry_run: bool = False
    """Say what would be searched and what that costs, and do nothing."""


def tune(words: list[str]) -> int:
    """Search for a better recipe, several seeds a trial: `steadyq tune CartPole-v1 --trials 30`."""
    from steadyq import envs
    from steadyq.presets import recipe_for

    rest, settings = split_settings(words, recipe_for("steady", envs.example()))
    options = parse(TuneOptions, rest)

    from steadyq.fields import within
    from steadyq.run.files import read_text, replace_text
    from steadyq.run.loop import Interrupted, seconds_per_update
    from steadyq.run.progress import clock
    from steadyq.suite.study import file_name
    from steadyq.suite.tuning import BEST, Tuning, check_space, dearest, default_space, optuna_module, read_space

    for name, value, least in (("trials", options.trials, 1), ("seeds", options.seeds, 1), ("jobs", options.jobs, 1)):
        within(f"--{name}", value, least, 100_000)
    within("--check", options.check, 0, 1000)
    if options.check == 1:
        raise UserError("--check 1: a comparison needs two fresh seeds or more; 0 leaves it out")
    optuna = optuna_module()
    recipe = recipe_for(options.preset, options.env, options.scale).override(settings)
    recipe = recipe.override({"steps": options.steps}) if options.steps is not None else recipe
    space = default_space(recipe)
    if options.space is not None:
        space = read_space(read_text(options.space), options.space, recipe)
    check_space(space, recipe)
    out = options.out or Path("tunings") / file_name(recipe.env, options.preset, options.scale)
    say_imports(recipe.env)
    spec = envs.spec(recipe.env, recipe.protocol)
    tuning = Tuning(recipe, space, out, options.trials, options.seeds, lambda text: OUT.print(text, soft_wrap=True))
    ended = tuning.ended()
    runs = max(0, options.trials - ended) * options.seeds + 2 * options.check
    dear = dearest(space, recipe)
    plain, slow = (seconds_per_update(each, spec) for each in (recipe, dear))
    spans = [clock(runs * each.updates * time / options.jobs) for each, time in ((recipe, plain), (dear, slow))]
    for line in (
        f"{options.trials} trials x {options.seeds} seeds of {recipe.steps:,} steps, then {options.check} fresh seeds "
        f"of the best and of the untuned recipe" + (f"; {ended} trials have ended" if ended else ""),
        f"{runs} runs to go, {options.jobs} at a time: {spans[0]} of learning if all were as the untuned recipe "
        f"({recipe.updates:,} updates of {1e3 * plain:.1f} ms), {spans[1]} at the dearest of the space "
        f"({dear.updates:,} of {1e3 * slow:.1f} ms); games are played on top, and bad trials cut short",
    ):
        OUT.print(line, soft_wrap=True)
    for name, part in space.items():
        OUT.print(f"  {name} = {part.text()}", soft_wrap=True)
    OUT.print(f"folder: {out}", soft_wrap=True)
    if options.dry_run:
        return 0
    study = tuning.begin()
    others = [_another(words, tuning.say) for _ in range(options.jobs - 1)]
    try:
        tuning.work()
        for process in others:
            process.wait()
    except Interrupted:
        OUT.print("stopped: the same command continues where it was")
        return 130
    finally:
        for process in others:
            process.terminate()
    running = sum(trial.state == optuna.trial.TrialState.RUNNING for trial in study.get_trials(deepcopy=False))
    if running:
        OUT.print(f"{running} trials are still trained elsewhere: the same command shows the result once they end")
        return 0
    best, changes, score = tuning.best(study)
    replace_text(out / BEST, best.to_toml())
    OUT.print(f"best: mean return {score:.2f} in the search, {out / BEST}", soft_wrap=True)
    code, checked = _compare(recipe, changes, options, out) if options.check else (0, [])
    _page(tuning, study, best, checked)
    OUT.print(f"next     steadyq train {recipe.env} --recipe {out / BEST}", soft_wrap=True)
    return code


def _another(words: list[str], say: Callable[[str], None]) -> subprocess.Popen[str]:
    """The same command beside this one, which works on trials and leaves the rest to this one.

    It writes into a pipe of ours, and so it ends with the next trial it speaks of where this process was killed.
    """
    kept = [word for word in words if not word.startswith(("--jobs=", "--check="))]
    for option in ("--jobs", "--check"):
        while option in kept:
            place = kept.index(option)
            del kept[place : place + 2]
    command = [sys.executable, "-m", "steadyq", "tune", *kept, "--jobs", "1", "--check", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def pass_on() -> None:
        for line in process.stdout or ():
            if line.startswith("trial "):
                say(line.rstrip())

    threading.Thread(target=pass_on, daemon=True).start()
    return process


def _compare(
    recipe: Any, changes: dict[str, Any], options: TuneOptions, out: Path
) -> tuple[int, list[tuple[str, str]]]:
    """Train the best and the untuned recipe with fresh seeds, and say how they compare."""
    from steadyq.fields import flatten
    from steadyq.presets import recipe_for
    from steadyq.scores.published import Scores
    from steadyq.scores.statistics import improvement_interval, mean_interval
    from steadyq.suite.launch import launch
    from steadyq.suite.local import local_launcher
    from steadyq.suite.plan import make_plan
    from steadyq.suite.study import Study

    plain = flatten(recipe_for(options.preset, options.env, options.scale).to_dict())
    settings = {name: value for name, value in flatten(recipe.to_dict()).items() if plain[name] != value}
    study = Study(
        "check", "The best recipe of a search on fresh seeds", "Is it better than the recipe it came from?",
        (recipe.env,), options.preset, options.scale, tuple(range(FRESH, FRESH + options.check)), settings,
        {"untuned": {}, "tuned": changes},
    )  # fmt: skip
    plan = make_plan(study, out / "check")
    runs = [entry.run for entry in plan.entries]
    code = launch(plan, local_launcher(runs, plan.out, options.jobs, 0.0), OUT)
    found: dict[str, dict[int, float]] = {"untuned": {}, "tuned": {}}
    for entry in plan.entries:
        if entry.state == "finished" and entry.score is not None:
            found[entry.run.label][entry.run.recipe.seed] = entry.score
    lines = []
    for label, scores in found.items():
        if scores:
            values = list(scores.values())
            low, high = mean_interval(values) if len(values) > 1 else (values[0], values[0])
            said = f"{label}, {len(values)} fresh seeds ({low:.2f} to {high:.2f})"
            lines.append((said, f"{sum(values) / len(values):.2f}"))
    if all(found.values()):
        chance = improvement_interval(Scores({recipe.env: found["tuned"]}), Scores({recipe.env: found["untuned"]}))
        said = f"chance that tuned beats untuned ({chance.low:.2f} to {chance.high:.2f})"
        lines.append((said, f"{chance.value:.2f}"))
    for what, figure in lines:
        OUT.print(f"{figure:>10}  {what}", soft_wrap=True)
    return code, lines


def _page(tuning: Any, study: Any, best: Any, checked: list[tuple[str, str]]) -> None:
    from steadyq.report.tuning import Trial, Tuned, write_page
    from steadyq.suite.tuning import importances

    states = {"PRUNED": "cut short", "FAIL": "failed"}
    trials = [
        Trial(trial.number, trial.value if trial.state.name == "COMPLETE" else None,
              states.get(trial.state.name, trial.state.name.lower()), trial.params)
        for trial in study.get_trials(deepcopy=False)
    ]  # fmt: skip
    page = tuning.out / "report.html"
    write_page(Tuned(best, trials, tuning.seeds, importances(study), checked), page)
    OUT.print(f"page     {page}", soft_wrap=True)
