"""A game as a video: played once for its actions, then rebuilt from its seed and drawn."""

import contextlib
import secrets
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from steadyq import envs
from steadyq.agent import Agent, load
from steadyq.envs import Protocol
from steadyq.errors import UserError
from steadyq.recipe import within
from steadyq.run.explore import FrameStack
from steadyq.run.folder import RunFolder

FORMATS = (".mp4", ".gif")


def record_game(
    run: Path | str, out: Path | str, *, seed: int = 1000, best_of: int = 1, max_seconds: float = 60.0
) -> tuple[float, int]:
    """Write a video of one full game of the run's agent; returns its score and steps."""
    out = Path(out)
    if out.suffix not in FORMATS:
        raise UserError(f"cannot write {out.name}: the video's name must end in {' or '.join(FORMATS)}")
    if not out.parent.is_dir():
        raise UserError(f"no folder {out.parent} to write {out.name} into")
    within("best_of", best_of, 1)
    within("max_seconds", max_seconds, 0.1)
    recipe = RunFolder(run).recipe
    agent = load(run)
    games = [play_one(agent, recipe.env, recipe.protocol, seed + number) for number in range(best_of)]
    score, game_seed, actions = max(games, key=lambda game: game[0])
    fps = envs.frames_per_second(recipe.env, recipe.protocol)
    pictures = envs.render(recipe.env, recipe.protocol, game_seed, actions)
    write_video(islice(pictures, int(max_seconds * fps)), out, fps)
    return score, len(actions)


def play_one(agent: Agent, env: str, protocol: Protocol, seed: int) -> tuple[float, int, list[int]]:
    """Play one full game greedily; returns score, the game's own seed, and the actions."""
    vector = envs.make(env, protocol, seed=seed, training=False, lanes=1)
    try:
        stack = FrameStack(vector.spec, agent.device)
        observation = stack.push(vector.reset())
        game_seed = int(vector.game_seed()[0])
        score, actions = 0.0, []
        while True:
            action = agent.q(observation).argmax(-1).cpu().numpy()
            step = vector.step(action)
            actions.append(int(action[0]))
            score += float(step.reward[0])
            if step.game_over[0]:
                return score, game_seed, actions
            observation = stack.push(step.frame, step.terminated | step.truncated)
    finally:
        vector.close()


def write_video(pictures: Iterable[np.ndarray], out: Path, fps: float) -> None:
    """Encode RGB pictures [height, width, 3] with the ffmpeg that imageio-ffmpeg carries.

    It takes the file's name for an option or a protocol unless that begins at the root.
    """
    import imageio_ffmpeg

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
