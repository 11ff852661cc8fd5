"""Networks of one's own: layers in words, a description, any module; the same checkpoints, monitor and resets."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file
from torch import Tensor, nn

import steadyq as sq
from steadyq import UserError, envs
from steadyq.build import ensemble_for, learner_for
from steadyq.nets import MLP, Conv, Ensemble, Layered, Linear, ModuleEnsemble, ModuleNetwork
from steadyq.nets.layered import cnn
from steadyq.run.loop import Interrupted
from steadyq.run.progress import Display

SMALL: dict[str, Any] = {
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "replay.warmup": 64,
    "replay.batch": 8,
    "replay.every": 2,
    "regulation.every": 25,
    "regulation.threshold": 1.03,
    "monitor.every": 50,
    "monitor.batch": 16,
    "record.tensorboard": False,
    "record.every": 50,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 1,
}


class Gated(nn.Module):
    """Not a plain stack: a gate, a skip, a parameter of its own, an activation that is no ReLU."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.enter = nn.Linear(math.prod(shape), 16)
        self.gate = nn.Linear(16, 16, bias=False)
        self.scale = nn.Parameter(torch.ones(16))
        self.last = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x.flatten(1)))
        return self.last(h + self.scale * torch.sigmoid(self.gate(h)))  # type: ignore[no-any-return]


def plain(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def described(shape: tuple[int, ...], outputs: int) -> MLP:
    return MLP(shape, outputs, (16, 16), norm="layer")


class Picture(gymnasium.Env):  # type: ignore[type-arg]
    """A bright square on the left or on the right, which is the answer."""

    def __init__(self, side: int = 12) -> None:
        self.side = side
        self.observation_space, self.action_space = spaces.Box(0, 255, (side, side, 3), np.uint8), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.right, self.steps = int(self.np_random.integers(2)), 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        picture, half = np.zeros((self.side, self.side, 3), np.uint8), self.side // 2
        (picture[:, half:] if self.right else picture[:, :half])[:] = 200
        return picture

    def step(self, action: int) -> Any:
        reward, self.steps = float(action == self.right), self.steps + 1
        self.right = int(self.np_random.integers(2))
        return self.seen(), reward, self.steps == 8, False, {}


class StopAt(Display):
    """Stops a run as a closed terminal does."""

    gone = False

    def step(self, training: Any, row: Any) -> None:
        self.gone = training.step_count == 130


@pytest.mark.parametrize("network", [Gated, plain, described, ["linear 16", "linear 8"], lambda s, o: plain(s, o)])
def test_it_learns_is_watched_and_reset_and_goes_on_as_it_was(network: Any, tmp_path: Path) -> None:
    how: dict[str, Any] = {"env": "CartPole-v1", "network": network, "options": SMALL, "steps": 200}
    whole = sq.train("steady", **how, run=tmp_path / "whole", quiet=True)
    with pytest.raises(Interrupted):
        sq.train("steady", **how, run=tmp_path / "parts", display=StopAt())
    parts = sq.train("steady", **how, run=tmp_path / "parts", quiet=True)
    one, other = (load_file(run.checkpoints()[-1] / "online.safetensors") for run in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows, resets = whole.diagnostics(), [event for event in whole.events() if event["event"] == "reset"]
    assert rows
    assert rows[-1]["spike"] > 1
    assert rows[-1]["stable_rank"] > 0
    assert rows[-1]["dormant"] is not None
    assert resets
    agent = sq.load(whole.path)
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
    first = next(iter(one))
    assert not torch.equal(one[first][0], one[first][1])  # members are not each other's copies


def test_members_of_a_module_compute_and_learn_what_the_same_layers_described_do() -> None:
    """Same parameters, same batch: values, and the update after it, are equal."""
    base = sq.presets.steady("CartPole-v1", **{**SMALL, "network.hidden": (16, 16)})
    own = base.override({"network.kind": "own", "network.factory": f"{__name__}:plain"})
    spec = envs.spec(base.env, base.protocol)
    stacked, module = (learner_for(r, spec, torch.Generator().manual_seed(0), torch.device("cpu")) for r in (base, own))
    assert isinstance(module.ensemble, ModuleEnsemble)
    names = dict(zip(module.online, stacked.online, strict=True))
    for mine, theirs in names.items():
        module.online[mine].copy_(stacked.online[theirs])
        module.target[mine].copy_(stacked.target[theirs])
    observation = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    from steadyq.value.shapes import Batch, DrawLayout

    ones, index = torch.ones(8), torch.arange(8)
    batch = Batch(observation, index % 2, ones, 0.9 * ones, observation + 1, ones, index, index, ones > 0)
    draw = DrawLayout(2, 8).plain()
    for learner in (stacked, module):
        learner.update(batch, draw)
    for mine, theirs in names.items():
        torch.testing.assert_close(module.online[mine], stacked.online[theirs], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (["conv 3 3 1", "linear 8"], "'conv 3 3 1' needs an image, and comes after a vector of 4"),
        (["linear"], "'linear' is no layer; write 'conv CHANNELS SIZE STRIDE"),
        (["linear 8 3"], "is no layer"),
        (["dense 8"], "'dense 8' is no layer"),
        (lambda s, o: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, o)), "has a BatchNorm1d"),
        (lambda s, o: nn.Linear(5, o), "fails on observations .4,.: RuntimeError"),
        (lambda s, o: nn.Sequential(nn.Linear(4, 3)), r"returned \(2, 3\) for a batch of 2; it must return \(2, 10\)"),
        (lambda s, o: 3, "returned 3; it must be a torch.nn.Module or a description"),
        (lambda s: nn.Linear(4, 2), "failed for .4,. and 10 outputs: TypeError"),
        (3, "network takes a function of the observation's shape"),
    ],
)
def test_networks_that_cannot_be_are_named_and_nothing_is_written(network: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        sq.train("steady", env="CartPole-v1", network=network, options=SMALL, run=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_recipe_says_which_fields_its_network_has() -> None:
    base = sq.presets.steady("CartPole-v1")
    for changes, said in (
        ({"network.layers": ("linear 8",)}, "network.layers .* contradicts network.kind mlp: only layers has it"),
        ({"network.kind": "own", "network.factory": "a:b", "network.norm": "layer"}, "contradicts network.kind own"),
    ):
        with pytest.raises(UserError, match=said):
            base.override(changes)
    spec = envs.spec(base.env, base.protocol)
    for kind, said in (("layers", r"network.layers must be given"), ("own", r"network.factory '' names no function")):
        with pytest.raises(UserError, match=said):
            ensemble_for(base.override({"network.kind": kind}), spec)
    own = base.override({"network.kind": "own", "network.factory": "subprocess:Popen"})
    with pytest.raises(
        UserError, match="subprocess:Popen makes no network: name a function or class in a module of your"
    ):
        ensemble_for(own, envs.spec(own.env, own.protocol))
    recycled = sq.presets.redo("CartPole-v1", **{"network.kind": "own", "network.factory": f"{__name__}:plain"})
    with pytest.raises(UserError, match="recycle needs a network described in layers"):
        ensemble_for(recycled, envs.spec(own.env, own.protocol))


def test_a_module_says_what_its_members_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sq.train("steady", env="CartPole-v1", network=Gated, options=SMALL, steps=70, run=tmp_path / "run")
    said = capsys.readouterr().out
    assert "is a module: its 2 members run one after another, " in said
    assert "network own: 2 x " in said


def test_small_images_get_a_small_network_and_learn(tmp_path: Path) -> None:
    recipe = sq.presets.dqn(Picture, steps=600, **{"replay.warmup": 100, "record.tensorboard": False})
    assert recipe.network.kind == "cnn"
    assert recipe.network.hidden == (512,)
    assert sq.presets.dqn(Picture, "small").network.kind == "resnet"
    changes = {"network.hidden": (32,), "evaluation.episodes": 10, "explore.epsilon": 0.2, "optim.rate": 1e-3}
    run = sq.train(recipe, options=changes, run=tmp_path / "run", quiet=True)
    assert run.result is not None
    assert run.result["mean_return"] > 6.5  # of 8; chance is 4


def test_the_small_network_is_that_of_the_nature_paper_where_it_fits() -> None:
    nature = Layered((4, 84, 84), 6, cnn((4, 84, 84), 512))
    assert [layer.weight_shape for layer in nature.layers.values()] == [
        (32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7), (6, 512),
    ]  # fmt: skip
    for side in (1, 7, 8, 10, 35, 36, 64):
        net = Layered((3, side, side), 6, cnn((3, side, side), 16))
        ensemble = Ensemble(net, 2, 3, 2)
        params = ensemble.initial(torch.Generator().manual_seed(0))
        assert ensemble.forward(params, torch.zeros(5, 3, side, side)).shape == (2, 5, 3, 2)


def test_layers_and_switches_are_what_they_say() -> None:
    recipe = sq.presets.steady(Picture).override(
        {"network.kind": "layers", "network.layers": ("conv 4 3 2 1", "linear 9"), "network.norm": "layer"}
    )
    network = ensemble_for(recipe, envs.spec(recipe.env, recipe.protocol)).network
    assert network.layers["conv1"] == Conv(3, 4, 3, 2, 1, (12, 12))
    assert network.layers["fc1"] == Linear(4 * 6 * 6, 9, (4, 6, 6))
    assert "fc1.norm" in network.layers
    wide = sq.presets.steady("CartPole-v1").override({"network.hidden": (256, 256), "network.norm": "layer"})
    assert "fc2.norm" in ensemble_for(wide, envs.spec(wide.env, wide.protocol)).network.layers


def test_what_a_module_has_is_found_by_running_it() -> None:
    network = ModuleNetwork("mine", lambda: Gated((4,), 6), (4,), 6)
    assert network.layers == {"enter": Linear(4, 16), "last": Linear(16, 6)}  # the gate has no bias
    assert network.heads == ("last",)
    pictures = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 6))
    network = ModuleNetwork("mine", lambda: pictures, (3, 12, 12), 6)
    assert network.layers["0"] == Conv(3, 4, 3, 2, 0, (12, 12))
