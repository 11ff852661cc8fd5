"""A run as a folder for others: weights that act, recipe, scores, and a card that says what they are.

The folder is a run folder without what only training needs, so that `load`, `evaluate`, `play`, `report` and `compare`
read it; `environment.json` lets `load` do without the environment's package. The Hugging Face hub takes it as it is.
"""

import json
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from steadyq import envs
from steadyq.agent import ENVIRONMENT
from steadyq.envs.described import to_data
from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.report import figures
from steadyq.run.files import LONGER, replace_text
from steadyq.run.folder import RunFolder
from steadyq.run.video import record_game
from steadyq.suite.runs import read

CARD, CURVE, VIDEO = "README.md", "curve.png", "game.mp4"
KEPT = ("recipe.toml", LONGER, "meta.json", "result.json", "metrics.jsonl", "events.jsonl", "diagnostics.jsonl")


def share(run: Path, to: Path, *, film: bool = True) -> list[str]:
    """Make the folder, whole or not at all; returns what could not be put into it, in words."""
    folder = RunFolder(run)
    recipe, result = folder.recipe, folder.result
    if result is None:
        raise UserError(f"{run} is not finished: only what was trained to its end and evaluated is worth sharing")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"--to {to}: there is something already; name a new folder")
    if not to.parent.is_dir():
        raise UserError(f"--to {to}: there is no folder {to.parent}; a name on the hub needs --hub")
    networks = recipe.explore.act_with
    folder.weights(networks)  # verified before anything is copied
    spec = envs.spec(recipe.env, recipe.protocol)
    missing: list[str] = []
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as place:
        made = Path(place) / "made"
        checkpoint = folder.checkpoints()[-1]
        kept = made / "checkpoints" / checkpoint.name
        kept.mkdir(parents=True)
        for name in KEPT:
            if (folder.path / name).is_file():
                shutil.copyfile(folder.path / name, made / name)
        for name in ("state.json", f"{networks}.safetensors"):
            shutil.copyfile(checkpoint / name, kept / name)
        replace_text(made / ENVIRONMENT, json.dumps(to_data(spec), indent=2) + "\n")
        try:
            figures.compare({recipe.preset: [read(made)]}, ["return_10"], made / CURVE)
        except UserError as why:
            missing.append(f"no curve: {why}")
        if film:
            try:
                record_game(made, made / VIDEO, best_of=3)
            except UserError as why:
                missing.append(f"no video: {why}")
        replace_text(made / CARD, card(recipe, result, made))
        made.rename(to)
    return missing


def card(recipe: Recipe, result: dict[str, Any], folder: Path) -> str:
    """The card as Markdown, with the facts that a hub reads in front; its figures come from the run's own result."""
    error = result.get("standard_error")
    score = f"{result['mean_return']:.2f}" + (f" +/- {error:.2f}" if error is not None else "")
    spread = f"{result['mean_return']:.2f} +/- {statistics.pstdev(result['returns']):.2f}"  # as hubs have it: of games
    error_said = " (standard error)" if error is not None else ""
    front = {
        "library_name": "steadyq",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "q-learning", recipe.preset, recipe.env],
        "model-index": [{
            "name": f"{recipe.preset} on {recipe.env}",
            "results": [{
                "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                "dataset": {"name": recipe.env, "type": recipe.env},
                "metrics": [{"type": "mean_reward", "value": spread, "name": "mean_reward", "verified": False}],
            }],
        }],
    }  # fmt: skip
    games, random = result["episodes"], result.get("random_return")
    different, minutes = result.get("different_games", games), result["wall_seconds"] / 60
    loading = "runs no code, and needs no emulator"
    if recipe.network.factory:
        loading = f"needs no emulator, but imports the network {recipe.network.factory}, which is not in here"
    lines = [
        "---",
        *(f"{name}: {json.dumps(value)}" for name, value in front.items()),
        "---",
        "",
        f"# {recipe.preset} on {recipe.env}",
        "",
        f"A deep Q-learning agent trained with SteadyQ (`{recipe.preset}`, scale `{recipe.scale}`, seed {recipe.seed}, "
        f"{recipe.steps:,} steps).",
        "",
        "| | |",
        "|---|---|",
        f"| mean return | {score}{error_said}, {games} full games, {different} different |",
        *([f"| a random policy | {random:.2f} |"] if random is not None else []),
        f"| protocol | `{recipe.protocol.name}`: {recipe.protocol.rules}; epsilon {recipe.evaluation.epsilon:g} in "
        "evaluation |",
        f"| members | {recipe.ensemble.members} |",
        f"| training | {result['updates']:,} updates, {minutes:.1f} minutes on {_machine(result)} |",
        f"| versions | {', '.join(f'{name} {version}' for name, version in result['versions'].items())} |",
        f"| commit | {result['commit']} |",
        "",
        *(["![return of the last ten training games](curve.png)", ""] if (folder / CURVE).is_file() else []),
        *(["The best of three games: [game.mp4](game.mp4)", ""] if (folder / VIDEO).is_file() else []),
        "## Use",
        "",
        "```python",
        "import steadyq as sq",
        "",
        f'agent = sq.load("this folder")  # {loading}',
        "action = agent.act(observation)",
        "```",
        "",
        "`steadyq evaluate`, `play`, `report` and `compare` read this folder as they read a run's.",
        "",
        "## Limits",
        "",
        f"One seed: other seeds of the same recipe may score otherwise. It knows {recipe.env} under the protocol above "
        "and nothing else. The scores are the run's own, checked by nobody.",
        "",
    ]
    return "\n".join(lines)


def _machine(result: dict[str, Any]) -> str:
    hardware = result["hardware"]
    return str(hardware.get("gpu") or f"{hardware.get('cores')} cores of {hardware.get('cpu')}")


def upload(folder: Path, repository: str) -> str:
    """Upload the folder as it is to the Hugging Face hub, into a model repository; returns its address."""
    try:
        import huggingface_hub
    except ImportError:
        raise UserError("uploading needs the package huggingface_hub: pip install 'steadyq[hub]'") from None
    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repository, repo_type="model", exist_ok=True)
        done = hub.upload_folder(
            repo_id=repository, folder_path=folder, repo_type="model", commit_message="SteadyQ agent"
        )
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        why = str(error).splitlines()[0]
        login = "; `hf auth login` first" if re.match(r"40[13]\b", why) else ""
        raise UserError(f"--to {repository}: the hub did not take it ({why}){login}") from None
    return str(getattr(done, "commit_url", done))
