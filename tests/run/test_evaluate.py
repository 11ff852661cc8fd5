"""Full games as they are scored: what the agent is shown, which games they are, what is said of them."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import gymnasium
import numpy as np
import pytest
import torch

import steadyq as sq
from steadyq import cli, envs
from steadyq.run.evaluate import Game, different, greedy_policy, play_games, random_baseline, standard_error
from steadyq.run.explore import FrameStack
from steadyq.run.video import record_game
from steadyq.scores.published import atari100k, published_rows
from steadyq.scores.random_policy import stored
from steadyq.value.acting import Acting, Mean, Minimum

BREAKOUT = dataclasses.replace(envs.protocol_for("Atari/Breakout"), noop_max=0)  # every game begins alike


def test_evaluation_shows_what_training_shows_after_a_lost_life() -> None:
    draw = np.random.default_rng(0)
    actions = draw.integers(4, size=3000)
    shown: list[torch.Tensor] = []

    def policy(observation: torch.Tensor, allowed: np.ndarray | None) -> np.ndarray:
        shown.append(observation.clone())
        return actions[len(shown) - 1 : len(shown)]

    play_games(policy, "Atari/Breakout", BREAKOUT, episodes=1, seed=0)
    training = envs.make("Atari/Breakout", BREAKOUT, seed=0)
    stack = FrameStack(training.spec)
    observation = stack.push(training.reset())
    lives = 0
    for action, seen in zip(actions, shown, strict=False):
        assert torch.equal(observation, seen)
        step = training.step(np.array([action]))
        observation = stack.push(step.frame, step.terminated | step.truncated)
        lives += int(step.terminated[0])
    training.close()
    assert lives == 5


def test_evaluation_shows_what_the_environment_shows() -> None:
    shown: list[torch.Tensor] = []

    def policy(observation: torch.Tensor, allowed: np.ndarray | None) -> np.ndarray:
        shown.append(observation.clone())
        return idle(observation, allowed)

    (game,) = play_games(policy, "CartPole-v1", envs.protocol_for("CartPole-v1"), episodes=1, seed=0)
    alone = gymnasium.make("CartPole-v1")
    expected = [alone.reset(seed=game.seed)[0], *(alone.step(0)[0] for _ in range(game.steps - 1))]
    assert torch.equal(torch.cat(shown), torch.from_numpy(np.stack(expected)))


def idle(observation: torch.Tensor, allowed: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(observation), np.int64)


def test_epsilon_replaces_some_actions_the_same_ones_for_the_same_seed() -> None:
    rules = dataclasses.replace(envs.protocol_for("MinAtar/Breakout"), sticky=0.0)

    def games(epsilon: float, episodes: int = 20, seed: int = 5) -> list[Game]:
        return play_games(idle, "MinAtar/Breakout", rules, episodes=episodes, seed=seed, epsilon=epsilon)

    still, few, all_random = games(0.0), games(0.1), games(1.0)
    assert {action for game in still for action in game.actions} == {0}
    assert few == games(0.1)
    assert few != games(0.1, seed=6)
    # A game is the same whatever is played beside it: 3 lanes instead of 16.
    assert games(0.1, episodes=3) == few[:3]

    def strayed(played: list[Game]) -> float:
        actions = [action for game in played for action in game.actions]
        return float(np.mean([action != 0 for action in actions]))

    assert 0.03 < strayed(few) < 0.12  # 0.1, less the uniform actions that are 0 themselves: 0.067
    assert 0.55 < strayed(all_random) < 0.78


def test_games_repeat_where_an_emulator_is_deterministic_and_their_error_is_that_of_the_different_ones() -> None:
    protocol = envs.protocol_for("Atari/Breakout")
    games = play_games(idle, "Atari/Breakout", protocol, episodes=20, seed=0)
    assert 1 < different(games) < 6
    # Games that only end alike are different games.
    cartpole = envs.protocol_for("Gymnasium/CartPole-v1")
    always_left = play_games(idle, "Gymnasium/CartPole-v1", cartpole, episodes=50, seed=0)
    assert len({(game.score, game.steps) for game in always_left}) < 10
    assert different(always_left) == 50


def test_standard_error() -> None:
    def games(*scores: float) -> list[Game]:
        return [Game(score, steps=int(score), rewarded=0.0) for score in scores]

    assert standard_error(games(3, 3, 3)) is None
    several = [1.0, 4.0, 6.0, 9.0]
    once = standard_error(games(*several))
    assert once == pytest.approx(np.std(several, ddof=1) / 2)
    # The same four games 25 times over tell no more than four games do.
    assert standard_error(games(*several * 25)) == pytest.approx(once)
    # Weights 3/4 and 1/4: variance (3/4 1/4 16) / (1 - 10/16) = 8, over 1.6 games.
    assert standard_error(games(0, 0, 0, 4)) == pytest.approx(np.sqrt(8 / 1.6))


@pytest.mark.parametrize("act_with", ["online", "target"])
def test_the_networks_that_act_are_evaluated_loaded_and_filmed(
    tmp_path: Path, act_with: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"explore.act_with": act_with, "optim.tau": 0.0, "replay.warmup": 64, "record.tensorboard": False}
    changes |= {"replay.every": 4, "evaluation.episodes": 6}
    recipe = sq.presets.steady("MinAtar/Breakout", steps=400, **changes)
    folder = sq.train(recipe, run=tmp_path / "run")  # at tau 0 the target networks are still those of the start
    result = folder.result
    assert result is not None
    assert result["evaluated_networks"] == act_with
    stored = folder.weights(act_with)[0]
    agent = sq.load(folder.path, "cpu")
    assert all(torch.equal(agent.params[name], p) for name, p in stored.items())
    other: Literal["online", "target"] = "online" if act_with == "target" else "target"
    assert any(not torch.equal(sq.load(folder.path, "cpu", other).params[name], p) for name, p in stored.items())

    rules = {"episodes": 6, "seed": recipe.seed}
    played = {
        networks: play_games(greedy_policy(sq.load(folder.path, "cpu", networks)), recipe.env, recipe.protocol, **rules)
        for networks in ("online", "target")
    }
    assert [game.actions for game in played["online"]] != [game.actions for game in played["target"]]
    assert result["returns"] == [game.score for game in played[act_with]]
    film = record_game(folder.path, tmp_path / "game.mp4", seed=recipe.seed, best_of=6, max_seconds=1)
    assert film == max(played[act_with], key=lambda game: game.score)

    for networks in ("acting", "online", "target"):
        out = tmp_path / f"{networks}.json"
        words = ["evaluate", str(folder.path), "--episodes", "6", "--seed", str(recipe.seed), "--json", str(out)]
        with pytest.raises(SystemExit, match="0"):
            cli.main([*words, "--networks", networks])
        record = json.loads(out.read_text())
        assert record["evaluated_networks"] == (act_with if networks == "acting" else networks)
        assert record["returns"] == [game.score for game in played[record["evaluated_networks"]]]
        assert ("target networks" in capsys.readouterr().out) == (record["evaluated_networks"] == "target")


@pytest.mark.parametrize(
    ("act", "loaded"), [("mean", Mean()), ("minimum", Minimum()), ("member", Mean()), ("optimistic", Mean())]
)
def test_a_loaded_agent_acts_without_what_only_explores(act: str, loaded: Acting, tmp_path: Path) -> None:
    changes = {"ensemble.act": act, "replay.warmup": 64, "record.tensorboard": False, "evaluation.episodes": 1}
    sq.train(sq.presets.steady("CartPole-v1", steps=70, **changes), run=tmp_path / "run")
    assert sq.load(tmp_path / "run", "cpu").acting == loaded


@pytest.mark.parametrize("env", ["Atari/Breakout", "MinAtar/Breakout", "Procgen/CoinRun"])
def test_every_game_is_played_once_and_finished_lanes_stand_still(env: str) -> None:
    if env.startswith("Procgen"):
        pytest.importorskip("envpool")
    protocol = envs.protocol_for(env)
    if env.startswith("Procgen"):
        protocol = dataclasses.replace(protocol, max_frames=40)
    vector = envs.make(env, protocol, seed=4, training=False, lanes=3, episodes=7)
    draw = np.random.default_rng(0)
    vector.reset()
    playing = vector.playing()
    assert playing.tolist() == [0, 1, 2]
    finished, stood = [], 0
    while (playing >= 0).any():
        step = vector.step(draw.integers(vector.spec.num_actions, size=3))
        still = playing < 0
        stood += int(still.sum())
        assert not (step.game_over | step.restart)[still].any()
        assert step.reward[still].sum() == step.frames[still].sum() == step.frame[still].sum() == 0
        assert (step.frames[~still] > 0).all()
        finished += playing[step.game_over].tolist()
        playing = vector.playing()
    vector.close()
    assert sorted(finished) == list(range(7))
    assert stood > 0


def test_the_random_policy_is_looked_up_where_its_games_are_stored_and_played_elsewhere() -> None:
    env, rules = "MinAtar/Breakout", envs.protocol_for("MinAtar/Breakout")
    known = stored(env, rules.rules)
    assert known is not None
    looked_up = random_baseline(env, rules, episodes=20, seed=7)
    assert (looked_up.mean_return, looked_up.episodes) == (known.mean_return, known.episodes)
    assert looked_up.source == f"stored: seed {known.seed}, commit {known.commit[:12]}"
    played = random_baseline(env, rules, episodes=known.episodes + 1, seed=0)
    assert (played.episodes, played.source) == (known.episodes + 1, "played")
    assert played.mean_return == pytest.approx(known.mean_return, rel=0.02)  # the stored games and one more
    # What the learner sees does not change a score, how a game is played does.
    assert stored(env, dataclasses.replace(rules, reward="sign", stack=2, lanes=3).rules) == known
    assert stored(env, dataclasses.replace(rules, sticky=0.25).rules) is None


def test_stored_random_scores_are_under_the_protocols_of_today() -> None:
    stored_games = {row["env"] for row in published_rows("random")}
    assert set(envs.known()["MinAtar"]) < stored_games  # and those of Atari-100K that were played so far
    assert stored_games - set(envs.known()["MinAtar"]) <= {f"Atari/{game}" for game in atari100k().games}
    for row in published_rows("random"):
        assert stored(row["env"], envs.protocol_for(row["env"]).rules) is not None


def test_epsilon_is_the_fields_on_atari_and_none_elsewhere_or_in_older_recipes() -> None:
    evaluated = {
        (env, scale): sq.presets.steady(env, scale).evaluation.epsilon
        for env in ("Atari/Pong", "MinAtar/Breakout", "CartPole-v1")
        for scale in ("small", "paper")
    }
    assert evaluated.pop(("Atari/Pong", "small")) == 0.001
    assert set(evaluated.values()) == {0.0}
    atari = sq.presets.dqn("Atari/Pong")
    older = "\n".join(line for line in atari.to_toml().splitlines() if line != "epsilon = 0.001")
    assert sq.Recipe.from_toml(older).evaluation.epsilon == 0.0
    assert sq.Recipe.from_toml(atari.to_toml()) == atari
