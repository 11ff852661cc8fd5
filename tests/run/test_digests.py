"""Every file that is no longer what the run wrote is named: where a run continues, an agent loads, a page is made."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadyq import RunFolder, UserError, load, presets
from steadyq.recipe import Recipe
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display
from steadyq.run.step import Training

pytestmark = pytest.mark.hostile

PARTS = ("online", "target", "adam_first", "adam_second", "adam_step", "replay", "loop", "env", "ceiling", "monitor")


def small(seed: int = 0, hidden: int = 8) -> Recipe:
    changes = {"replay.warmup": 40, "replay.capacity": 100, "network.hidden": (hidden,), "estimator.quantiles": 3}
    changes |= {"ensemble.members": 2, "record.every": 20, "record.checkpoint_every": 60, "monitor.every": 20}
    changes |= {"monitor.batch": 8, "regulation.every": 20, "record.tensorboard": False, "compute.threads": 1}
    changes |= {"evaluation.episodes": 1, "evaluation.random_episodes": 1}
    return presets.steady("CartPole-v1", steps=120, seed=seed, **changes)


def read(run: Path) -> dict[str, Any] | None:
    """All that a page is made of; returns the result."""
    folder = RunFolder(run)
    _ = folder.recipe, folder.metrics(), folder.events(), folder.diagnostics()
    return folder.result


class StopAt(Display):
    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == 70:
            raise Interrupted


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small(), run=tmp_path_factory.mktemp("runs") / "finished").path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint at step 60, and rows of later steps."""
    path = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(Interrupted):
        train(small(), run=path, display=StopAt())
    assert [checkpoint.name for checkpoint in RunFolder(path).checkpoints()] == ["0000000060"]
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another seed's run, stopped at the same step."""
    path = tmp_path_factory.mktemp("runs") / "other"
    with pytest.raises(Interrupted):
        train(small(seed=1), run=path, display=StopAt())
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    def copied(run: Path) -> Path:
        return Path(shutil.copytree(run, tmp_path / run.name))

    return copied


def flip(file: Path, share: float = 0.9) -> None:
    """Turn over one bit."""
    found = bytearray(file.read_bytes())
    found[int(share * len(found))] ^= 4
    file.write_bytes(found)


@pytest.mark.parametrize("part", PARTS)
def test_one_flipped_bit_stops_a_run_from_continuing(part: str, stopped: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(stopped)
    file = RunFolder(run).checkpoints()[-1] / f"{part}.safetensors"
    flip(file)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"{part}.safetensors is damaged: it is not what .* was written; .*--no-verify"):
        train(small(), run=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_flipped_bits_in_state_recipe_and_logs_are_noticed_too(stopped: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(stopped)
    state = RunFolder(run).checkpoints()[-1] / "state.json"
    for file, change, says in (
        (state, ('"games": ', '"games": 1'), "state.json is damaged: its contents are not those"),
        (run / "recipe.toml", ("rate = 0.001", "rate = 0.001 "), "recipe.toml has changed since"),
        (run / "metrics.jsonl", ('"epsilon": 0', '"epsilon": 1'), "metrics.jsonl is damaged, or of another run"),
        (run / "events.jsonl", ("start", "begin"), "events.jsonl is damaged, or of another run"),
        (run / "diagnostics.jsonl", ('"step": 60', '"step": 61'), "diagnostics.jsonl is damaged, or of another run"),
    ):
        text = file.read_text()
        assert change[0] in text
        file.write_text(text.replace(*change))
        with pytest.raises(UserError, match=says):
            train(small(), run=run)
        file.write_text(text)
    assert train(small(), run=run).result is not None


def test_an_agent_is_loaded_from_the_weights_that_were_written_or_on_demand(
    finished: Path, copy: Callable[[Path], Path]
) -> None:
    run = copy(finished)
    folder = RunFolder(run)
    weights, state = folder.checkpoints()[-1] / "online.safetensors", folder.checkpoints()[-1] / "state.json"
    load(run)
    flip(weights)
    with pytest.raises(UserError, match=r"online.safetensors is damaged"):
        load(run)
    assert load(run, verify=False).step == 120
    flip(weights)
    table = json.loads(state.read_text())
    state.write_text(json.dumps({**table, "games": table["games"] + 1}))
    with pytest.raises(UserError, match=r"state.json is damaged"):
        load(run)


@pytest.mark.parametrize("name", ["metrics", "events", "diagnostics"])
@pytest.mark.parametrize("what", ["emptied", "gone", "doubled", "cut", "of another run"])
def test_a_page_is_made_of_the_logs_that_the_run_wrote(
    what: str, name: str, finished: Path, stopped: Path, other: Path, copy: Callable[[Path], Path]
) -> None:
    for whole in (finished, stopped):
        run = copy(whole)
        read(run)
        log = run / f"{name}.jsonl"
        text = log.read_text()
        if what == "gone":
            log.unlink()
        elif what == "of another run":
            log.write_text((other / log.name).read_text())
        else:
            log.write_text({"emptied": "", "doubled": text * 2, "cut": text[: len(text) // 3]}[what])
        with pytest.raises(UserError, match=rf"{name}.jsonl is damaged"):
            read(run)


def test_a_result_is_that_of_its_run(finished: Path, copy: Callable[[Path], Path], tmp_path: Path) -> None:
    run, twin = copy(finished), train(small(seed=1), run=tmp_path / "twin")
    file = run / "result.json"
    mine = file.read_text()
    table = json.loads(mine)
    file.write_text(json.dumps({**table, "mean_return": 500.0}))
    with pytest.raises(UserError, match=r"result.json is damaged: its contents are not those"):
        read(run)
    shutil.copy(twin.path / "result.json", file)
    with pytest.raises(UserError, match=r"recipe.toml has changed since .*result.json was written, or"):
        read(run)
    file.write_text(mine)
    read(run)
    assert read(run) == table


@pytest.mark.parametrize("part", ["online", "replay", "env"])
def test_a_part_of_another_run_is_named(part: str, stopped: Path, other: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(stopped)
    file = RunFolder(run).checkpoints()[-1] / f"{part}.safetensors"
    shutil.copy(RunFolder(other).checkpoints()[-1] / file.name, file)
    with pytest.raises(UserError, match=f"{part}.safetensors is of another run than the rest of its checkpoint"):
        train(small(), run=run)


def test_a_part_of_another_step_is_named(stopped: Path, finished: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(stopped)
    file = RunFolder(run).checkpoints()[-1] / "target.safetensors"
    shutil.copy(RunFolder(finished).checkpoints()[-1] / file.name, file)
    with pytest.raises(UserError, match=r"target.safetensors is of step 120 of this run, not of its checkpoint's 60"):
        train(small(), run=run)


def test_a_whole_checkpoint_of_another_run_is_named(stopped: Path, other: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(stopped)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    for use in (lambda: train(small(), run=run), lambda: load(run), lambda: read(run)):
        with pytest.raises(UserError, match=r"recipe.toml has changed since .* or one of them is of another run"):
            use()


def without_digests(run: Path) -> None:
    """As runs were before there were any."""
    for file in (*run.glob("result.json"), *run.glob("checkpoints/*/state.json")):
        table = json.loads(file.read_text())
        sizes = {name.removesuffix(".jsonl"): s["bytes"] for name, s in table["files"].items() if ".jsonl" in name}
        table = {name: value for name, value in table.items() if name not in ("files", "sha256")}
        file.write_text(json.dumps({**table, "log_bytes": sizes}))


def test_a_run_from_before_there_were_digests_is_read_and_continued(
    finished: Path, stopped: Path, copy: Callable[[Path], Path]
) -> None:
    for whole in (finished, stopped):
        run = copy(whole)
        without_digests(run)
        read(run)
        load(run)
        result = train(small(), run=run).result
        assert result is not None
        assert result["returns"] == (RunFolder(finished).result or {})["returns"]


def test_a_part_that_does_not_fit_is_named_without_digests_too(
    stopped: Path, copy: Callable[[Path], Path], tmp_path: Path
) -> None:
    run = copy(stopped)
    with pytest.raises(Interrupted):
        train(small(hidden=9), run=tmp_path / "wider", display=StopAt())
    file = RunFolder(run).checkpoints()[-1] / "adam_first.safetensors"
    shutil.copy(RunFolder(tmp_path / "wider").checkpoints()[-1] / file.name, file)
    without_digests(run)
    with pytest.raises(UserError, match=r"adam_first.safetensors is of another run: it does not fit"):
        train(small(), run=run)


@pytest.mark.parametrize("change", [{"rng": 3}, {"step": "x"}, {"recent": None}, {"updates": None, "wall": []}])
def test_a_state_that_cannot_be_put_back_is_one_line(
    change: dict[str, Any], stopped: Path, copy: Callable[[Path], Path]
) -> None:
    run = copy(stopped)
    without_digests(run)
    state = RunFolder(run).checkpoints()[-1] / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), **change}))
    with pytest.raises(UserError, match=r"0000000060 is damaged, or of another run: its state cannot be put back"):
        train(small(), run=run)


def test_the_brave_continue_on_what_is_there(stopped: Path, copy: Callable[[Path], Path]) -> None:
    run = copy(stopped)
    flip(RunFolder(run).checkpoints()[-1] / "online.safetensors")
    result = train(small(), run=run, verify=False).result
    assert result is not None
    assert read(run) == result  # what was written since then has digests of its own
