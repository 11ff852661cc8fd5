"""An agent in an ONNX file acts like the agent, in a process that knows nothing of this library."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

import steadyq as sq
from steadyq import presets
from steadyq.agent import Agent, load
from steadyq.cli import main
from steadyq.deploy.onnx import by_area, export_onnx
from steadyq.recipe import Recipe
from steadyq.run.loop import train

SHORT = {
    "steps": 90, "ensemble.members": 2, "replay.warmup": 64, "replay.batch": 8, "replay.capacity": 200,
    "record.tensorboard": False, "monitor.every": 0, "evaluation.episodes": 1, "evaluation.random_episodes": 1,
    "compute.threads": 1,
}  # fmt: skip

ELSEWHERE = """
import sys
import numpy as np, onnxruntime
file, states, answers = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # several would wait for each other spinning
session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
seen = np.load(states)
assert [i.name for i in session.get_inputs()] == ["observation"]
parts = [session.run(["action", "value"], {"observation": part}) for part in np.array_split(seen, 20)]
whole = [np.concatenate(part) for part in zip(*parts)]
one = session.run(["action", "value"], {"observation": seen[:1]})
assert np.array_equal(one[0], whole[0][:1])
assert not any(name.split(".")[0] in ("steadyq", "torch") for name in sys.modules)
facts = session.get_modelmeta().custom_metadata_map
np.savez(answers, action=whole[0], value=whole[1], facts=np.array([facts["environment"], facts["observation"]]))
"""


def short(preset: str, env: str, **changes: object) -> Recipe:
    return presets.recipe_for(preset, env, "tiny").override(SHORT | changes)


AGENTS = {
    "mlp": short("steady", "CartPole-v1"),
    "minatar": short("qr_dqn", "MinAtar/Breakout", **{"ensemble.members": 1}),
    "small cnn": short("drq", "Atari/Breakout", **{"ensemble.members": 1, "protocol.max_frames": 120}),
    "atari": short(
        "steady", "Atari/Breakout",
        **{"network.scale": 1, "network.head_multiple": 8, "network.strides": (2, 2, 2, 2), "estimator.quantiles": 5,
           "protocol.max_frames": 120},
    ),
    "categorical": short("c51", "CartPole-v1", **{"ensemble.members": 1, "network.dueling": True}),
    "implicit": short("iqn", "CartPole-v1", **{"ensemble.members": 1}),
    "noisy": short("sunrise", "CartPole-v1"),
    "contrast": short("curl", "CartPole-v1", **{"ensemble.members": 1}),
    "prior": short("bootstrapped_dqn", "CartPole-v1"),
    "two-signed, normalised, injected": short(
        "dqn", "MinAtar/Breakout",
        **{
            "network.activation": "crelu", "regulation.spectral": True, "regulation.intervention": "inject",
            "regulation.trigger": "periodic", "regulation.period": 20,
        },
    ),
    "discrete": short("dqn", "FrozenLake-v1", **{"ensemble.members": 1}),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe in AGENTS.items():
        train(recipe, run=folder / name)
    return folder


def states(agent: Agent, count: int) -> np.ndarray:
    spec, chance = agent.spec, np.random.default_rng(0)
    shape = (count, *spec.observation_shape)
    if spec.frame_dtype == "uint8":
        return chance.integers(0, int(spec.pixel_max), shape, endpoint=True).astype(np.uint8)
    return chance.random(shape).astype(spec.frame_dtype)


@pytest.mark.parametrize("name", AGENTS)
def test_actions_are_the_agents_in_a_process_without_this_library(name: str, runs: Path, tmp_path: Path) -> None:
    file, agent = tmp_path / "agent.onnx", load(runs / name, device="cpu")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(runs / name), "--onnx", str(file)])
    assert ended.value.code == 0
    seen = states(agent, 1000)
    np.save(tmp_path / "states.npy", seen)
    command = [sys.executable, "-I", "-c", ELSEWHERE, str(file), str(tmp_path / "states.npy"), str(tmp_path / "a.npz")]
    subprocess.run(command, check=True)
    got = np.load(tmp_path / "a.npz")
    value = np.concatenate([agent.q(part).numpy() for part in np.array_split(seen, 20)])
    np.testing.assert_allclose(got["value"], value, rtol=1e-4, atol=1e-5)
    best = np.sort(value, axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-5  # where two actions are worth the same, either is right
    assert clear.mean() > 0.5
    np.testing.assert_array_equal(got["action"][clear], value.argmax(1)[clear] + agent.spec.first_action)
    np.testing.assert_array_equal(agent.act(seen[:50]), value[:50].argmax(1) + agent.spec.first_action)
    assert got["facts"][0] == agent.spec.name
    assert str(agent.spec.observation_shape[-1]) in got["facts"][1]


@pytest.mark.parametrize("name", ["mlp", "minatar", "small cnn", "atari"])
def test_actions_are_equal_where_no_action_is_always_the_best(name: str, runs: Path, tmp_path: Path) -> None:
    agent = load(runs / name, device="cpu")
    seen = states(agent, 1000)

    def values() -> np.ndarray:
        return np.concatenate([agent.q(part).numpy() for part in np.array_split(seen, 20)])

    mean = torch.from_numpy(values().mean(0)).repeat_interleave(agent.ensemble.atoms)
    (last,) = (k for k, p in agent.params.items() if k.endswith("bias") and p.shape[1:] == mean.shape)
    agent.params[last] = agent.params[last] - mean
    export_onnx(agent, tmp_path / "a.onnx", {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", options, providers=["CPUExecutionProvider"])
    got = np.concatenate([session.run(["action"], {"observation": p})[0] for p in np.array_split(seen, 20)])
    value = values()
    best = np.sort(value, axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-3 * value.std()
    assert clear.mean() > 0.95
    assert np.bincount(value.argmax(1)).max() < 800  # several actions, each of them often
    np.testing.assert_array_equal(got[clear], value.argmax(1)[clear] + agent.spec.first_action)


@pytest.mark.parametrize("game", ["breakout", "ms_pacman"])
def test_an_emulators_screens_become_what_the_agent_saw(game: str, runs: Path, tmp_path: Path) -> None:
    """One emulator resizes its screens, another shows them as they are; the file must see the same in both."""
    with pytest.raises(SystemExit) as ended:
        main(["export", str(runs / "small cnn"), "--onnx", str(tmp_path / "a.onnx"), "--screens"])
    assert ended.value.code == 0
    agent = load(runs / "small cnn", device="cpu")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    assert "resized by area inside" in session.get_modelmeta().custom_metadata_map["observation"]

    def emulator(height: int, width: int) -> Any:
        return ale_py.AtariVectorEnv(
            game, num_envs=1, img_height=height, img_width=width, grayscale=True, maxpool=True, stack_num=4,
            frameskip=4, noop_max=0, use_fire_reset=False, episodic_life=False, repeat_action_probability=0.0,
        )  # fmt: skip

    plain, resized = emulator(210, 160), emulator(84, 84)
    chance, away, worst, same = np.random.default_rng(0), 0, 0.0, 0
    shown, seen = plain.reset(seed=1)[0], resized.reset(seed=1)[0]
    rows, columns = by_area(210, 84), by_area(160, 84)
    for _ in range(100):
        both = np.repeat(shown[:, :, None], 2, axis=2)
        both[:, :, 0] //= 2  # the other frame is darker: the larger pixel counts
        action, value = session.run(["action", "value"], {"screens": both})
        worst = max(worst, float(np.abs(value - agent.q(seen).numpy()).max()))
        same += int(action[0] == agent.act(seen[0]))
        mine = (rows @ torch.from_numpy(shown[0, -1]).float() @ columns.T).round().numpy()
        away += int((np.abs(mine - seen[0, -1]) > 0).sum())
        assert np.abs(mine - seen[0, -1]).max() <= 1
        number = np.array([chance.integers(plain.single_action_space.n)])
        shown, seen = plain.step(number)[0], resized.step(number)[0]
    assert away <= 100 * 84 * 84 / 5000
    assert worst < 1e-4
    assert same >= 99
    with pytest.raises(sq.UserError, match="this one plays Gymnasium/CartPole-v1"):
        export_onnx(load(runs / "mlp", device="cpu"), tmp_path / "b.onnx", {}, screens=True)


def test_several_things_seen_at_once_are_as_many_inputs(tmp_path: Path) -> None:
    eye, chart = spaces.Box(0, 255, (9, 8, 3), np.uint8), spaces.Box(0, 8, (2, 5, 6))
    space = spaces.Dict(eye=eye, chart=chart, way=spaces.Discrete(3))

    class Room(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(4, start=2)

        def reset(self, **options: Any) -> Any:
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), 1.0, False, False, {}

    options = SHORT | {"ensemble.members": 1, "protocol.max_frames": 40}  # a room that nobody leaves
    agent = load(sq.train("dqn", env=Room, run=tmp_path / "run", quiet=True, options=options).path)
    export_onnx(agent, tmp_path / "a.onnx", {})
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["vector", "image1", "image2"]
    for _ in range(20):
        shown = space.sample()
        given = {"vector": np.eye(3, dtype=np.float32)[shown["way"]], "image1": shown["chart"], "image2": shown["eye"]}
        action, value = session.run(["action", "value"], {name: part[None] for name, part in given.items()})
        assert agent.spec.seen is not None
        np.testing.assert_allclose(value, agent.q(agent.spec.seen.frame(shown)[None]), rtol=1e-4, atol=1e-5)
        assert action[0] == agent.act(shown)


def test_the_file_appears_whole_or_not_at_all(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(runs / "mlp"), "--onnx", str(runs / "mlp" / "result.json")])
    assert ended.value.code == 2
    assert "belongs to a run" in capsys.readouterr().err
    assert sq.load(runs / "mlp").step == 90
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "nothing"), "--onnx", str(tmp_path / "a.onnx")])
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(sq.UserError, match=r"needs the package onnxscript: pip install 'steadyq\[onnx\]'"):
        export_onnx(load(runs / "mlp"), tmp_path / "a.onnx", {})
    assert list(tmp_path.iterdir()) == []
