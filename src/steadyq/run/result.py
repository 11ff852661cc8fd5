"""What a run ends with: its evaluation, and what was run on what."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from steadyq.run.evaluate import greedy_policy, play_games, random_baseline, scored
from steadyq.run.progress import mean_of_last
from steadyq.run.provenance import provenance
from steadyq.run.step import Training


def final_result(
    training: Training, said: Mapping[str, Any], progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Evaluate the final weights and a random policy, and say what was run on what."""
    recipe, start = training.recipe, time.monotonic()
    games = play_games(
        greedy_policy(training.agent()),
        recipe.env,
        recipe.protocol,
        episodes=recipe.evaluation.episodes,
        seed=recipe.seed,
        epsilon=recipe.evaluation.epsilon,
        device=str(training.device),
        progress=progress,
    )
    evaluation = time.monotonic() - start
    baseline = random_baseline(
        recipe.env, recipe.protocol, episodes=recipe.evaluation.random_episodes, seed=recipe.seed
    )
    return {
        "env": recipe.env,
        "preset": recipe.preset,
        "scale": recipe.scale,
        "seed": recipe.seed,
        "protocol": recipe.protocol.name,
        "steps": training.step_count,
        "frames": training.frames,
        "updates": training.learner.updates,
        "games": training.games,
        "resets": training.resets,
        **scored(games, baseline),
        "evaluation_epsilon": recipe.evaluation.epsilon,
        "evaluated_networks": recipe.explore.act_with,
        "training_return_10": mean_of_last(10, training.recent),
        **said,
        **training.computes(),
        "wall_seconds": round(training.wall, 1),
        "evaluation_seconds": round(evaluation, 1),
        **provenance(),
    }
