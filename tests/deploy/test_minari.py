"""A run's experience as a Minari dataset: Minari reads it, and learning from it sees the same transitions."""

import json
from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import steadyq as sq
from steadyq import envs, presets
from steadyq.build import draw_layout, ring_for
from steadyq.cli import main
from steadyq.deploy.experience import dataset_id
from steadyq.recipe import Recipe
from steadyq.replay.episodes import episodes_in, fill
from steadyq.replay.minari import Dataset
from steadyq.replay.ring import Ring
from steadyq.run.folder import RunFolder, read_tensors
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display
from steadyq.run.step import Training

minari = pytest.importorskip("minari")

SHORT = {
    "ensemble.members": 2, "estimator.quantiles": 3, "replay.warmup": 64, "replay.batch": 8, "replay.n_step": 1,
    "record.tensorboard": False, "monitor.every": 0, "evaluation.episodes": 1, "evaluation.random_episodes": 1,
    "compute.threads": 1,
}  # fmt: skip


def short(env: str, **changes: object) -> Recipe:
    return presets.recipe_for("steady", env, "tiny").override(SHORT | changes)


RUNS = {
    "terminated": short("CartPole-v1", steps=300),
    "truncated and lanes": short("MountainCar-v0", steps=900, **{"protocol.lanes": 2}),
    "wrapped": short("CartPole-v1", steps=400, **{"replay.capacity": 150}),
    "bytes": short("MinAtar/Breakout", steps=300, **{"network.hidden": (8,)}),
    "wrapped stacks": short(
        "Atari/Breakout", steps=260,
        **{"network.head_multiple": 8, "protocol.max_frames": 200, "replay.capacity": 120, "replay.warmup": 100},
    ),
    "one-hot": short("FrozenLake-v1", steps=200),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe in RUNS.items():  # what they played is looked at, not what they learned
        train(recipe.override({"replay.every": 20}), run=folder / name, quiet=True)
    return folder


def export(run: Path, out: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--minari", str(out)])
    assert ended.value.code == 0


def restored(run: Path) -> tuple[Ring, Recipe]:
    folder = RunFolder(run)
    recipe = folder.recipe
    ring = ring_for(recipe, envs.spec(recipe.env, recipe.protocol), torch.device("cpu"))
    ring.restore(read_tensors(folder.checkpoints()[-1] / "replay.safetensors"))
    return ring, recipe


def transitions(ring: Ring, recipe: Recipe) -> Counter[bytes]:
    """All that can be sampled, without the observations after a termination, which count for nothing."""
    spec = envs.spec(recipe.env, recipe.protocol)
    index = (ring.priorities.mass > 0).nonzero().squeeze(1)
    draw = draw_layout(recipe, spec).plain(torch.device("cpu"))
    batch = ring.gather(index, torch.ones(len(index)), ring.priorities.stamp[index], draw)
    after = batch.next_observation * (batch.discount > 0).view(-1, *[1] * (batch.next_observation.dim() - 1))
    parts = (batch.observation, batch.action, batch.reward, batch.discount, after)
    return Counter(b"".join(part[n].numpy().tobytes() for part in parts) for n in range(len(index)))


@pytest.mark.parametrize("name", RUNS)
def test_transitions_are_the_same_after_a_round_trip(name: str, runs: Path, tmp_path: Path) -> None:
    export(runs / name, tmp_path / "data")
    before, recipe = restored(runs / name)
    one = recipe.override({"protocol.lanes": 1, "replay.capacity": 5000})
    spec = envs.spec(one.env, one.protocol)
    after = ring_for(one, spec, torch.device("cpu"))
    steps = []
    fill(after, Dataset(str(tmp_path / "data"), spec).episodes(), lambda reward, step: steps.append(step))
    wanted = transitions(before, recipe)
    assert wanted.total() > 100
    assert transitions(after, one) == wanted
    assert len(steps) >= wanted.total()


def test_minari_itself_reads_the_dataset(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    export(runs / "terminated", tmp_path / "steadyq" / "cartpole-v0")
    assert list(minari.list_local_datasets()) == ["steadyq/cartpole-v0"]
    dataset = minari.load_dataset("steadyq/cartpole-v0")
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    ring, _ = restored(runs / "terminated")
    mine = list(episodes_in(ring))
    assert dataset.total_episodes == len(mine)
    assert dataset.total_steps == sum(map(len, mine)) == 300
    assert dataset.action_space == gymnasium.spaces.Discrete(2)
    for found, episode in zip(dataset, mine, strict=True):
        np.testing.assert_array_equal(found.observations, episode.frame)
        np.testing.assert_array_equal(found.actions, episode.action)
        assert found.terminations.sum() + found.truncations.sum() == 1
        assert bool(found.terminations[-1]) == episode.terminated
    assert "not kept" in dataset.storage.metadata["description"]


def test_a_datasets_name_is_one_that_minari_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    assert dataset_id(tmp_path / "store" / "a" / "b-v3") == "a/b-v3"
    assert dataset_id(tmp_path / "my data") == "my-data-v0"
    assert dataset_id(tmp_path / "mine-v2") == "mine-v2"
    with pytest.raises(sq.UserError, match="a name ends in its version, such as mine-v0"):
        dataset_id(tmp_path / "store" / "mine")


def test_training_offline_starts_from_it_goes_on_after_a_stop_and_plays_nothing(runs: Path, tmp_path: Path) -> None:
    export(runs / "terminated", tmp_path / "data")
    recipe = short("CartPole-v1", steps=150, **{"replay.dataset": str(tmp_path / "data"), "record.every": 50})
    whole = train(recipe, run=tmp_path / "whole", quiet=True)

    class Stop(Display):
        def step(self, training: Training, row: dict[str, object] | None) -> None:
            if training.step_count == 70:
                raise Interrupted

    recipe = recipe.override({"record.checkpoint_every": 60})
    with pytest.raises(Interrupted):
        train(recipe, run=tmp_path / "cut", display=Stop())
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    cut = train(recipe, run=tmp_path / "cut", quiet=True)
    for one, other in zip(whole.weights()[0].items(), cut.weights()[0].items(), strict=True):
        assert one[0] == other[0]
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)
    assert [row["updates"] for row in cut.metrics()] == [50, 100, 150]
    result = cut.result
    assert result is not None
    assert (result["games"], result["frames"], result["updates"]) == (0, 0, 150)
    assert [event["steps"] for event in cut.events() if event["event"] == "dataset"] == [300]
    assert not [event for event in cut.events() if event["event"] in ("game", "abandoned")]


def test_a_folder_beside_it_is_enough_and_every_command_reads_what_was_learned_from_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    export(runs / "terminated", Path("data"))
    small = "--steps 120 --network.hidden 8 --monitor.every 50 --record.every 50 --evaluation.episodes 1"
    for words in (
        f"train CartPole-v1 --replay.dataset data --run run {small}", "report run --out page.html", "compare run",
        "evaluate run --episodes 1", "share run --to shared --no-video",
    ):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(words.split())
        assert ended.value.code == 0, words
    assert "learns from data and plays nothing" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["export", "run", "--minari", "again"])
    assert ended.value.code == 2
    assert "has played nothing" in capsys.readouterr().err


def test_a_dataset_of_somebody_else_is_laid_out_as_the_environment_is(tmp_path: Path) -> None:
    """FrozenLake's own numbers, written by Minari's storage, with rewards of the emulator."""
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    space, actions = gymnasium.spaces.Discrete(16), gymnasium.spaces.Discrete(4)
    (tmp_path / "lake").mkdir()
    storage = MinariStorage.new(tmp_path / "lake" / "data", space, actions)
    storage.update_metadata({"dataset_id": "lake-v0", "minari_version": minari.__version__})
    ends = np.array([False, True])
    storage.update_episodes(
        EpisodeBuffer(observations=np.array([0, 4, 5 + n]), actions=np.array([1, n]), rewards=np.array([0.0, n]),
                      terminations=ends, truncations=~ends & False)
        for n in range(4)
    )  # fmt: skip
    recipe = short("FrozenLake-v1")
    dataset = Dataset(str(tmp_path / "lake"), envs.spec(recipe.env, recipe.protocol))
    episodes = list(dataset.episodes())
    assert [episode.frame.argmax(1).tolist() for episode in episodes] == [[0, 4, 5], [0, 4, 6], [0, 4, 7], [0, 4, 8]]
    assert episodes[3].reward.tolist() == [0, 3]


def test_what_does_not_fit_is_refused_in_one_line_before_anything_is_written(runs: Path, tmp_path: Path) -> None:
    export(runs / "terminated", tmp_path / "data")
    (tmp_path / "bare" / "data").mkdir(parents=True)
    (tmp_path / "bare" / "data" / "metadata.json").write_text(json.dumps({"env_spec": "{}", "data_format": "hdf5"}))
    data = str(tmp_path / "data")
    refused = {
        "no Minari dataset '": short("CartPole-v1", **{"replay.dataset": str(tmp_path / "nothing")}),
        "does not say what": short("CartPole-v1", **{"replay.dataset": str(tmp_path / "bare")}),
        "shows Box": short("FrozenLake-v1", **{"replay.dataset": data}),
        "make replay.capacity at least": short("CartPole-v1", **{"replay.dataset": data, "replay.capacity": 200}),
    }
    for words, recipe in refused.items():
        with pytest.raises(sq.UserError, match=words) as raised:
            train(recipe, run=tmp_path / "run", quiet=True)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as ended:
        main(["export", str(runs / "terminated"), "--minari", data])
    assert ended.value.code == 2


def test_a_run_without_its_replay_buffer_says_so(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(short("CartPole-v1", steps=100), run=run, quiet=True)
    next((run / "checkpoints").glob("*/replay.safetensors")).unlink()
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--minari", str(tmp_path / "data")])
    assert ended.value.code == 2
    assert "--record.keep-replay" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
