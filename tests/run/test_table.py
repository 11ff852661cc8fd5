"""Twenty environments of every kind: each trains, evaluates, reports, acts, and goes on after SIGKILL bit for bit."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kinds
import pytest
import torch
from safetensors.torch import load_file

import steadyq as sq
from steadyq import UserError
from steadyq.report.html import write_report
from steadyq.run.callbacks import Callback, Live
from steadyq.run.folder import RunFolder
from steadyq.run.video import record_game
from steadyq.run.writer import begin
from steadyq.suite.runs import read

SMALL: dict[str, Any] = {
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "replay.warmup": 64,
    "replay.batch": 8,
    "replay.every": 4,
    "replay.capacity": 300,
    "record.tensorboard": False,
    "record.every": 50,
    "record.checkpoint_every": 70,
    "monitor.every": 60,
    "monitor.batch": 16,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 2,
    "compute.device": "cpu",
    "compute.threads": 1,
}
VECTOR = {"network.hidden": (16,), "protocol.max_frames": 40}
CNN = {"network.hidden": (16,), "protocol.max_frames": 40}
IMAGE = {"network.kind": "layers", "network.layers": ("conv 8 3 2 1", "linear 16"), "protocol.max_frames": 40}
BIG = {**IMAGE, "network.layers": ("conv 8 8 4", "linear 16"), "protocol.max_frames": 120}

TABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "FrozenLake": ("FrozenLake-v1", VECTOR),
    "FrozenLake 8x8": (sq.environment("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}), VECTOR),
    "Taxi, masked": ("Taxi-v4", VECTOR),
    "Blackjack": ("Blackjack-v1", VECTOR),
    "CliffWalking": ("CliffWalking-v1", VECTOR),
    "CartPole": ("CartPole-v1", VECTOR),
    "CartPole, wrapped": (
        sq.environment("CartPole-v1", wrappers=["gymnasium.wrappers:FrameStackObservation(stack_size=3)"]),
        VECTOR,
    ),
    "Acrobot": ("Acrobot-v1", VECTOR),
    "MountainCar": ("MountainCar-v0", VECTOR),
    "LunarLander": ("LunarLander-v3", VECTOR),
    "MinAtar Breakout": ("MinAtar/Breakout", {"network.channels": 4, **VECTOR}),
    "MinAtar Freeway, three lanes": ("MinAtar/Freeway", {"protocol.lanes": 3, **VECTOR}),
    "Atari Pong": ("Atari/Pong", BIG),
    "a nested Dict, several choices": (kinds.Nested, VECTOR),
    "an image, channels last": (sq.environment(kinds.Picture, {"side": 14}), CNN),
    "an image of floats, channels first": (kinds.Floats, IMAGE),
    "a grey image": (kinds.Grey, IMAGE),
    "MiniGrid": ("minigrid:MiniGrid-Empty-5x5-v0", VECTOR),
    "a Dict as MiniGrid's, its image": (
        sq.environment(kinds.Grid, wrappers=["gymnasium.wrappers:FilterObservation(filter_keys=['image'])"]),
        IMAGE,
    ),
    "a Dict as MiniGrid's, all of it": (kinds.Grid, VECTOR),
    "an image beside a vector, two frames stacked": (kinds.Both, {**VECTOR, "protocol.stack": 2}),
    "bits to see and to set": (kinds.Switches, VECTOR),
    "several choices to see, truncated": (kinds.Choices, VECTOR),
    "masked by a method, unbounded": (kinds.Masked, VECTOR),
    "from a lambda": (lambda: kinds.Picture(9), IMAGE),
}
FILMED = ("MiniGrid", "CartPole", "FrozenLake", "MinAtar Breakout", "an image, channels last")


class Kill(Callback):
    """Ends the process without a word."""

    def on_step(self, run: Live) -> None:
        if run.step >= 130:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work: Callable[[], Any]) -> int | None:
    """Run in a process forked from this one, which has everything imported; returns how it ended.

    Not for Procgen, whose threads do not live in a fork: `test_emulators.py` has it.
    """
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    return child.exitcode


def test_the_table_has_twenty_of_every_kind() -> None:
    assert len(TABLE) == 25  # as docs/compared.md says


@pytest.mark.parametrize("name", TABLE)
def test_it_trains_evaluates_reports_acts_and_survives_a_kill(name: str, tmp_path: Path) -> None:
    env, more = TABLE[name]
    if name == "MiniGrid" and not os.environ.get("CI"):
        pytest.importorskip("minigrid", reason="minigrid is not installed: pip install minigrid")
    try:
        recipe = sq.presets.steady(env, steps=180, **{**SMALL, **more})
    except UserError as missing:
        if "pip install" in str(missing) and not os.environ.get("CI"):
            pytest.skip(str(missing))
        raise
    whole = sq.train(recipe, run=tmp_path / "whole", quiet=True)
    killed = in_a_child(lambda: sq.train(recipe, run=tmp_path / "parts", callbacks=[Kill()], quiet=True))
    assert killed == -signal.SIGKILL
    parts = sq.train(recipe, run=tmp_path / "parts", quiet=True)
    resumed = [event["step"] for event in parts.events() if event["event"] == "resume"]
    assert resumed
    assert 0 < resumed[0] < 130
    for group in ("online", "target", "replay", "env"):
        one, other = (load_file(run.checkpoints()[-1] / f"{group}.safetensors") for run in (whole, parts))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), group
    assert whole.result is not None
    assert parts.result is not None
    assert whole.result["returns"] == parts.result["returns"]
    assert whole.result["updates"] > 0
    page = tmp_path / "page.html"
    write_report([whole.path], page)
    assert "SteadyQ" in page.read_text()
    agent = sq.load(whole.path)
    if agent.spec.seen is not None and not agent.spec.masked:
        import gymnasium

        made = kinds.__dict__.get(recipe.env.partition(":")[2]) if ":" in recipe.env else None
        if made is not None and not recipe.protocol.wrappers:
            game: gymnasium.Env[Any, Any] = made()
            if recipe.protocol.kwargs:
                game = made(side=14)
            observation, _ = game.reset(seed=0)
            seen = observation if agent.spec.stack == 1 else [observation] * agent.spec.stack
            assert game.action_space.contains(agent.act(seen))
    if name in FILMED:
        record_game(whole.path, tmp_path / "game.gif", max_seconds=1)
        assert (tmp_path / "game.gif").stat().st_size > 100


def test_the_network_that_what_is_shown_chose_is_no_change_from_the_preset(tmp_path: Path) -> None:
    for kind in (kinds.Both, kinds.Picture, kinds.Nested):
        begin(RunFolder(tmp_path / kind.__name__), sq.presets.steady(kind, seed=1))
        assert read(tmp_path / kind.__name__).changes == {}
    wider = sq.presets.steady(kinds.Both, **{"network.hidden": (64, 64)})
    begin(RunFolder(tmp_path / "wider"), wider)
    assert read(tmp_path / "wider").changes["network.hidden"] == (64, 64)
