"""A game as a video: played once for its actions, then rebuilt from its seed and drawn."""

import contextlib
import importlib
import secrets
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steadyq import envs
from steadyq.agent import load
from steadyq.errors import UserError
from steadyq.fields import within
from steadyq.run.evaluate import Game, greedy_policy, play_games
from steadyq.run.folder import RunFolder

FORMATS = (".mp4", ".gif")


def record_game(
    run: Path | str,
    out: Path | str,
    *,
    seed: int = 1000,
    best_of: int = 1,
    max_seconds: float = 60.0,
    epsilon: float | None = None,
    networks: Literal["acting", "online", "target", "best"] = "acting",
) -> Game:
    """Write a video of the best of some full games, played as `steadyq evaluate` plays them; returns that game."""
    out = Path(out)
    if out.suffix not in FORMATS:
        raise UserError(f"cannot write {out.name}: the video's name must end in {' or '.join(FORMATS)}")
    if not out.parent.is_dir():
        raise UserError(f"no folder {out.parent} to write {out.name} into")
    within("max_seconds", max_seconds, 0.1)
    encoder()
    best, pictures, fps = best_game(run, seed=seed, best_of=best_of, epsilon=epsilon, networks=networks)
    write_video(islice(pictures, int(max_seconds * fps)), out, fps)
    return best


def best_game(
    run: Path | str,
    *,
    seed: int,
    best_of: int,
    epsilon: float | None,
    networks: Literal["acting", "online", "target", "best"],
) -> tuple[Game, Iterator[np.ndarray], float]:
    """The best of some full games, its pictures, and how many of them make a second."""
    within("best_of", best_of, 1)
    within("epsilon", epsilon or 0.0, 0, 1)
    recipe = RunFolder(run).recipe
    agent = load(run, networks=networks)
    games = play_games(
        greedy_policy(agent),
        recipe.env,
        recipe.protocol,
        episodes=best_of,
        seed=seed,
        epsilon=recipe.evaluation.epsilon if epsilon is None else epsilon,
        device=str(agent.device),
    )
    best = max(games, key=lambda game: game.score)
    pictures = envs.render(recipe.env, recipe.protocol, best.seed, best.actions)
    return best, pictures, envs.frames_per_second(recipe.env, recipe.protocol)


def encoder() -> Any:
    """imageio-ffmpeg, or one line saying how to get it."""
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ImportError as missing:
        raise UserError("a video needs the extra: pip install 'steadyq[video]'") from missing


def write_video(pictures: Iterable[np.ndarray], out: Path, fps: float) -> None:
    """Encode RGB pictures [height, width, 3] with the ffmpeg that imageio-ffmpeg carries.

    It takes the file's name for an option or a protocol unless that begins at the root.
    """
    imageio_ffmpeg = encoder()
    pictures = iter(pictures)
    first = next(pictures)
    height, width = first.shape[:2]
    codec = {"codec": "libx264", "pix_fmt_out": "yuv420p"} if out.suffix == ".mp4" else {"codec": "gif"}
    partial = out.with_name(f"{out.stem}.{secrets.token_hex(4)}.unfinished{out.suffix}")
    writer = imageio_ffmpeg.write_frames(
        str(partial.absolute()), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error", **codec
    )
    try:
        with contextlib.closing(writer):
            writer.send(None)
            writer.send(np.ascontiguousarray(first))
            for picture in pictures:
                writer.send(np.ascontiguousarray(picture))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
