"""Hundreds of steps on the emulators themselves, with miniature networks: everything between start and result."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch

import steadyq as sq
from steadyq import cli

MINIATURE = {
    "network.scale": 1,
    "network.head_multiple": 4,
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "replay.batch": 4,
    "replay.warmup": 300,
    "record.tensorboard": False,
    "record.checkpoint_every": 300,
    "evaluation.episodes": 1,
    "evaluation.random_episodes": 1,
}


@pytest.mark.slow
def test_atari_run_of_six_hundred_steps(tmp_path: Path) -> None:
    shorter = {"replay.every": 10, "protocol.max_frames": 1000}
    recipe = sq.presets.steady("Atari/Breakout", "tiny", steps=600, **MINIATURE, **shorter)
    result = sq.train(recipe, run=tmp_path / "run").result
    assert result is not None
    assert (result["steps"], result["updates"]) == (600, 30)
    assert 2400 < result["frames"] < 3000  # unseen presses included
    assert result["protocol"] == "atari-100k"
    games = [row for row in sq.RunFolder(tmp_path / "run").events() if row["event"] == "game"]
    assert len(games) == result["games"] > 1
    agent = sq.load(tmp_path / "run")
    assert agent.spec.observation_shape == (4, 84, 84)
    out = tmp_path / "scores.json"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["evaluate", str(tmp_path / "run"), "--episodes", "1", "--sticky", "0.25", "--json", str(out)])
    assert json.loads(out.read_text())["sticky"] == 0.25


def test_procgen_run_of_six_hundred_steps(tmp_path: Path) -> None:
    if importlib.util.find_spec("envpool") is None:
        assert os.environ.get("CI") != "true", "CI must install the procgen extra"
        pytest.skip("Procgen is not installed: pip install 'steadyq[procgen]'")
    changes = {**MINIATURE, "protocol.lanes": 16, "replay.every": 2, "protocol.max_frames": 30}
    recipe = sq.presets.steady("Procgen/CoinRun", "tiny", steps=608, **changes)
    result = sq.train(recipe, run=tmp_path / "run").result
    assert result is not None
    assert (result["steps"], result["frames"]) == (608, 608)
    # Learning starts after 300 steps, 19 steps of all lanes, and is due at every second one of the 38.
    assert result["updates"] == 10
    assert result["protocol"] == "procgen-easy"
    rows = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert {row["event"] for row in rows} >= {"start", "game"}


def test_agent_acts_on_one_observation_and_on_a_batch(tmp_path: Path) -> None:
    import gymnasium
    import numpy as np

    recipe = sq.presets.steady("CartPole-v1", steps=200, **{"replay.warmup": 64, "record.tensorboard": False})
    run = sq.train(recipe, run=tmp_path / "run")
    agent = sq.load(run.path)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action = agent.act(observation)
    assert isinstance(action, int)
    env.step(action)
    batch = agent.act(np.stack([observation, observation]))
    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [action, action]
    with pytest.raises(sq.UserError, match="is seen as"):
        agent.act(np.zeros(3))
    # What it was trained in on a GPU does not keep it from playing on a CPU.
    text = (run.path / "recipe.toml").read_text()
    (run.path / "recipe.toml").write_text(text.replace('precision = "auto"', 'precision = "bf16"'))
    assert sq.RunFolder(run.path).recipe.compute.precision == "bf16"
    assert sq.load(run.path, "cpu", verify=False).act(observation) == action


def test_games_follow_from_the_seed_in_their_own_order() -> None:
    import gymnasium
    import numpy as np

    from steadyq import envs
    from steadyq.envs.episodes import seed_of_game
    from steadyq.run.evaluate import play_games

    name, episodes = "Gymnasium/CartPole-v1", 40
    protocol = envs.protocol_for(name)

    def left(observation: torch.Tensor, allowed: object) -> np.ndarray:
        return np.zeros(len(observation), np.int64)

    games = play_games(left, name, protocol, episodes=episodes, seed=3)
    assert [game.seed for game in games] == [seed_of_game(3, False, i % 16, i // 16) for i in range(episodes)]
    alone = gymnasium.make("CartPole-v1")
    for game in games:
        alone.reset(seed=game.seed)
        lost = [alone.step(0)[2] for _ in range(game.steps)]
        assert lost == [False] * (game.steps - 1) + [True]
    assert len({game.steps for game in games}) > 1
    assert [game.score for game in games] == [float(game.steps) for game in games]
