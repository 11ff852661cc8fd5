"""The run folder: refused before anything is written, locked, atomic, and truncated to what a checkpoint had seen."""

import contextlib
import errno
import io
import itertools
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from steadyq import RunFolder, UserError, environment, presets
from steadyq.fields import flatten
from steadyq.recipe import Recipe
from steadyq.run import writer as module
from steadyq.run.folder import default_path
from steadyq.run.loop import train
from steadyq.run.writer import Checkpoint, Writer, begin
from steadyq.suite.runs import read

pytestmark = pytest.mark.hostile

RECIPE = presets.dqn("CartPole-v1")


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")}


def refused(path: Path, recipe: Recipe = RECIPE, below: Path | None = None) -> str:
    """Training there raises, and nothing at or below the given place has changed."""
    below = below or path.parent
    before = tree(below)
    with pytest.raises(UserError) as error:
        train(recipe, run=path)
    assert tree(below) == before
    return str(error.value)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    message = refused(tmp_path / "photos")
    assert message == f"{tmp_path}/photos is not empty and not a run folder: choose another --run folder"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    assert refused(tmp_path / "file") == f"{tmp_path}/file is a file: --run needs a folder"
    assert "cannot write" in refused(tmp_path / "file" / "run", below=tmp_path)


def test_another_recipes_folder_is_refused_naming_the_difference(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(RunFolder(run), RECIPE).close()
    message = refused(run, RECIPE.override({"replay.batch": 64}))
    assert message == f"{run} belongs to another recipe (replay.batch: 64 != 32): choose another --run folder"
    message = refused(run, RECIPE.override({"replay.batch": 64, "seed": 5}))
    assert "seed: 5 != 0 and 1 more" in message
    RunFolder(run).check(RECIPE.override({"compute.threads": 3}))  # where it computes is not what it is


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert refused(tmp_path / "run").startswith(f"cannot write to {tmp_path}")
    finally:
        tmp_path.chmod(0o700)


def test_a_place_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the answer that permissions would give, for root too
    message = refused(tmp_path / "deep" / "run", below=tmp_path)
    assert message == f"cannot write to {tmp_path}: choose another --run folder"


def test_a_recipe_that_cannot_work_writes_nothing(tmp_path: Path) -> None:
    message = refused(tmp_path / "run", RECIPE.override({"network.kind": "resnet"}), below=tmp_path)
    assert message.startswith("network.kind resnet needs image observations")
    if not torch.cuda.is_available():
        assert "no GPU" in refused(tmp_path / "run", RECIPE.override({"compute.device": "cuda"}), below=tmp_path)


def test_reading_what_is_no_run_says_so(tmp_path: Path) -> None:
    begin(RunFolder(tmp_path / "breakout-seed0"), RECIPE).close()
    with pytest.raises(UserError, match=r"no run at .*breakout-sed0: did you mean 'breakout-seed0'\?"):
        _ = RunFolder(tmp_path / "breakout-sed0").recipe
    with pytest.raises(UserError, match=r"is not a run folder: .* recipe.toml, but holds runs: .*breakout-seed0"):
        _ = RunFolder(tmp_path).recipe
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe is not a run folder: it has no recipe.toml$"):
        _ = RunFolder(tmp_path / "pipe").recipe
    (tmp_path / "breakout-seed0" / "notes.txt").touch()
    with pytest.raises(UserError, match=r"has no recipe.toml; its run is .*breakout-seed0"):
        _ = RunFolder(tmp_path / "breakout-seed0" / "notes.txt").recipe
    with pytest.raises(UserError, match="has no checkpoint: train it first"):
        RunFolder(tmp_path / "breakout-seed0").weights()


def test_a_log_that_lost_rows_stops_a_run_from_going_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with contextlib.closing(begin(folder, RECIPE)) as writer:
        writer.metric({"step": 10, "loss": 1.0})
        writer.save(Checkpoint({}, {}), 10)
    log = folder.path / "metrics.jsonl"
    log.write_text("")
    with (
        contextlib.closing(begin(folder, RECIPE)) as writer,
        pytest.raises(UserError, match=r"metrics.jsonl is damaged: it has lost rows"),
    ):
        writer.load()
    assert log.read_text() == ""


def test_a_file_with_wrong_contents_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    begin(folder, RECIPE).close()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": "x"}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged: line 1 has 'x' for loss, which is no number"):
        folder.metrics()
    (tmp_path / "metrics.jsonl").unlink()
    for content, says in (({}, "mean_return is no number"), ({"mean_return": 1, "random_return": 1.0}, "no list")):
        (tmp_path / "result.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=f"result.json is damaged: .*{says}"):
            read(tmp_path)


def test_a_damaged_log_is_said_to_be_and_a_half_last_line_is_not_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    begin(folder, RECIPE).close()
    log = tmp_path / "diagnostics.jsonl"
    log.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in folder.diagnostics()] == [1, 2]
    for line in ("garbage", "[1, 2]", '{"spike": 3}', '{"step": "x"}'):
        log.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
        with pytest.raises(UserError, match=r"diagnostics\.jsonl is damaged: line 2 is not"):
            folder.diagnostics()
    log.write_bytes(b'{"step": 1}\n\xff\xfe\n{"step": 2}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        folder.diagnostics()
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        _ = folder.result


def test_a_second_writer_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    writer = begin(RunFolder(tmp_path), RECIPE)
    with pytest.raises(UserError, match=f"another process is training in {tmp_path}"):
        begin(RunFolder(tmp_path), RECIPE)
    writer.close()
    begin(RunFolder(tmp_path), RECIPE).close()


def test_a_folder_is_released_even_if_a_log_cannot_be_closed(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def close(self) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

    writer = begin(RunFolder(tmp_path), RECIPE)
    writer._files["metrics"] = Full()
    with pytest.raises(OSError, match="no space"):
        writer.close()
    begin(RunFolder(tmp_path), RECIPE).close()


def test_a_first_start_without_room_for_the_recipe_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying(os.replace, itertools.count(0)))
        with pytest.raises(Killed):
            begin(RunFolder(tmp_path), RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    begin(RunFolder(tmp_path), RECIPE).close()


def test_what_a_kill_leaves_half_written_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml.0a1b2c3d.unfinished").write_text("half")
    (tmp_path / "result.json.unfinished").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "unfinished").write_text("half")
    (tmp_path / "recipe.toml").write_text(RECIPE.to_toml())
    with contextlib.closing(begin(RunFolder(tmp_path), RECIPE)) as writer:
        writer.save(checkpoint(1.0), 1)
        writer.finish({"mean_return": 1.0})
    assert not [path for path in tmp_path.rglob("*") if "unfinished" in path.name]


PARTS = ("lock", "recipe.toml", "metrics.jsonl", "events.jsonl", "diagnostics.jsonl", "result.json", "checkpoints",
         "diverged", "tensorboard", "checkpoints/unfinished", "checkpoints/0000000009",
         "checkpoints/0000000001/online.safetensors", "checkpoints/0000000001/state.json")  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_link_in_a_run_folder_is_refused_and_nothing_elsewhere_changes(part: str, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with contextlib.closing(begin(RunFolder(run), RECIPE)) as writer:
        writer.metric({"step": 1})
        writer.save(checkpoint(1.0), 1)
    (run / part).unlink(missing_ok=True) if not (run / part).is_dir() else shutil.rmtree(run / part)
    elsewhere.mkdir()
    (elsewhere / "0000000001").mkdir()
    (elsewhere / "0000000001" / "thesis.txt").write_text("all of it")
    (elsewhere / "file").write_text(RECIPE.to_toml())
    (run / part).symlink_to(elsewhere if "." not in part and part != "lock" else elsewhere / "file")
    assert f"{part} is a link" in refused(run, below=tmp_path)
    with pytest.raises(UserError, match="is a link"):
        Writer(RunFolder(run), "recipe.toml", RECIPE.to_toml())


def test_a_link_planted_beside_a_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    run = tmp_path / "run"
    begin(RunFolder(run), RECIPE).close()
    for name in ("result.json.unfinished", "recipe.toml.unfinished"):
        (run / name).symlink_to(tmp_path / "precious")
    with contextlib.closing(begin(RunFolder(run), RECIPE)) as writer:
        writer.finish({"mean_return": 1.0})
    assert (tmp_path / "precious").read_text() == "mine"
    assert not [path for path in run.iterdir() if "unfinished" in path.name]


@pytest.mark.parametrize("part", ["recipe.toml", "metrics.jsonl", "result.json", "lock"])
def test_what_is_no_plain_file_is_refused_before_training(part: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(RunFolder(run), RECIPE).close()
    for make in (os.mkfifo, os.mkdir):
        (run / part).unlink(missing_ok=True)
        make(run / part)
        with pytest.raises(UserError, match=f"{part} is not a plain file"):
            train(RECIPE, run=run)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with contextlib.closing(begin(folder, RECIPE)) as writer:
        writer.save(checkpoint(1.0), 1)
    weights = folder.checkpoints()[-1] / "online.safetensors"
    for file, look in ((weights, folder.weights), (tmp_path / "metrics.jsonl", folder.metrics)):
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(UserError, match=f"{file.name} is not a plain file"):
            look()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_all_files_of_a_run_have_the_mode_that_the_user_chose(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with contextlib.closing(begin(RunFolder(tmp_path / "run"), RECIPE)) as writer:
            writer.metric({"step": 1})
            writer.save(checkpoint(1.0), 1)
            writer.finish({"mean_return": 1.0})
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files} == {path.name: mode for path in files}
    assert len(files) >= 7


def checkpoint(value: float) -> Checkpoint:
    return Checkpoint({"online": {"w": torch.full((2,), value)}, "replay": {"r": torch.zeros(3)}}, {"step": value})


def test_a_checkpoint_comes_back_and_cuts_the_logs_to_what_it_had_seen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    writer = begin(folder, RECIPE)
    assert writer.load() is None
    writer.metric({"step": 1})
    writer.event("game", 1, score=2.0)
    writer.save(checkpoint(1.0), 1)
    writer.metric({"step": 2})
    writer.event("game", 2, score=3.0)
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    assert folder.metrics() == [{"step": 1}, {"step": 2}]

    writer = begin(folder, RECIPE)
    loaded = writer.load()
    assert loaded is not None
    assert loaded.tensors["online"]["w"].tolist() == [1.0, 1.0]
    assert loaded.plain["step"] == 1.0
    writer.metric({"step": 2, "again": True})
    writer.close()
    assert folder.metrics() == [{"step": 1}, {"step": 2, "again": True}]
    assert folder.events() == [{"event": "game", "step": 1, "score": 2.0}]


def test_only_the_newest_checkpoint_is_kept_and_a_half_written_one_is_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    writer = begin(folder, RECIPE)
    for step in (9, 10, 100_000):
        writer.save(checkpoint(float(step)), step)
    assert [p.name for p in folder.checkpoints()] == ["0000100000"]
    writer.close()
    torn = tmp_path / "checkpoints" / "unfinished"
    torn.mkdir()
    (torn / "online.safetensors").write_bytes(b"\x00")
    assert [p.name for p in folder.checkpoints()] == ["0000100000"]
    assert folder.weights()[1] == 100_000
    writer = begin(folder, RECIPE)
    assert not torn.exists()
    writer.close()


def test_what_a_kill_leaves_of_an_older_checkpoint_is_cleared_away(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with contextlib.closing(begin(folder, RECIPE)) as writer:
        writer.save(checkpoint(2.0), 2)
    torn = tmp_path / "checkpoints" / "0000000001"
    torn.mkdir()
    (torn / "online.safetensors").write_bytes(b"half")
    with contextlib.closing(begin(folder, RECIPE)) as writer:
        assert [path.name for path in folder.checkpoints()] == ["0000000002"]
        assert writer.load() is not None
        writer.finish({"mean_return": 1.0})


class Killed(Exception):
    pass


def test_a_checkpoint_written_in_the_background_holds_what_was_saved_and_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a GPU: training goes on, and may change every tensor, while the files are written."""
    monkeypatch.setattr(module, "_on_gpu", lambda checkpoint: True)
    release, write = threading.Event(), module._write

    def slowly(*args: Any) -> None:
        release.wait()
        write(*args)

    monkeypatch.setattr(module, "_write", slowly)
    folder = RunFolder(tmp_path)
    writer = begin(folder, RECIPE)
    state = checkpoint(1.0)
    writer.metric({"step": 1})
    writer.save(state, 1)
    state.tensors["online"]["w"].fill_(7.0)
    writer.metric({"step": 2})
    assert folder.checkpoints() == []
    release.set()
    writer.finish({"mean_return": 0.0})
    assert [path.name for path in folder.checkpoints()] == ["0000000001"]
    writer.close()
    (tmp_path / "result.json").unlink()
    again = begin(folder, RECIPE)
    loaded = again.load()
    assert loaded is not None
    assert loaded.tensors["online"]["w"].tolist() == [1.0, 1.0]
    assert folder.metrics() == [{"step": 1}]
    again.close()


def test_a_checkpoint_that_cannot_be_written_in_the_background_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_on_gpu", lambda checkpoint: True)
    folder = RunFolder(tmp_path)
    writer = begin(folder, RECIPE)
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_file", dying(module.save_file, itertools.count(0)))
        writer.save(checkpoint(1.0), 1)
        with pytest.raises(Killed):
            writer.close()
    begin(folder, RECIPE).close()  # the folder was released all the same


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop a save before each of its writes in turn, also when the same step is saved again: one always loads."""
    whole = 0
    for fatal in range(30):
        path = tmp_path / str(fatal)
        writer = begin(RunFolder(path), RECIPE)
        writer.save(checkpoint(1.0), 1)
        with monkeypatch.context() as patch:
            countdown = itertools.count(-fatal)
            for place, name in ((os, "replace"), (shutil, "rmtree"), (module, "sync"), (module, "save_file")):
                patch.setattr(place, name, dying(getattr(place, name), countdown))
            try:
                writer.save(checkpoint(float(step)), step)
                whole += 1
            except Killed:
                pass
        writer.close()
        writer = begin(RunFolder(path), RECIPE)
        loaded = writer.load()
        writer.close()
        assert loaded is not None
        value = loaded.plain["step"]
        assert loaded.tensors["online"]["w"].tolist() == [value, value]
        assert value in (1.0, float(step))
    assert whole > 0


def dying(function: Callable[..., Any], countdown: Iterator[int]) -> Callable[..., Any]:
    """The function, until the countdown shared by all reaches zero."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(countdown) == 0:
            raise Killed
        return function(*args, **kwargs)

    return call


def test_the_result_and_the_recipe_are_replaced_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.result is None
    writer = begin(folder, RECIPE)
    writer.finish({"mean_return": 1.5})
    writer.close()
    assert folder.result is not None
    assert folder.result["mean_return"] == 1.5
    assert folder.recipe == RECIPE
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_finished_run_drops_a_large_replay_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begin(RunFolder(tmp_path), RECIPE)
    final = writer.save(checkpoint(1.0), 1)
    writer.drop_replay()
    assert (final / "replay.safetensors").exists()
    monkeypatch.setattr("steadyq.run.folder.SMALL_REPLAY", 10)
    writer.drop_replay()
    writer.close()
    assert sorted(p.name for p in final.iterdir()) == ["online.safetensors", "state.json"]
    assert json.loads((final / "state.json").read_text())["step"] == 1.0


def test_the_same_command_finds_the_same_folder() -> None:
    assert default_path(presets.steady("MinAtar/Breakout", seed=3)) == Path("runs/MinAtar-Breakout-steady-tiny-seed3")


def test_changed_options_get_a_folder_of_their_own_by_name() -> None:
    def named(*changes: dict[str, Any], env: Any = "CartPole-v1") -> list[str]:
        return [default_path(presets.steady(env).override(each)).name for each in changes]

    plain = "Gymnasium-CartPole-v1-steady-tiny"
    assert named({}, {"steps": 7}, {"compute.device": "cpu"}) == [f"{plain}-seed0"] * 3
    assert named(
        {"optim.rate": 0.002}, {"network.hidden": (8, 4)}, {"optim.rate": 0.003, "operator.forbid": "none"}
    ) == [
        f"{plain}-optim.rate=0.002-seed0",
        f"{plain}-network.hidden=8,4-seed0",
        f"{plain}-operator.forbid=none-optim.rate=0.003-seed0",
    ]
    scheduled = named({"explore.epsilon": "1 -> 0.1 linear 50 steps"}, {"explore.epsilon": "1 -> 0.1 linear 500 steps"})
    assert len({*scheduled}) == 2
    assert all(name.startswith(f"{plain}-explore.epsilon=1-") and len(name) < 200 for name in scheduled)
    many = {name: value for name, value in flatten(RECIPE.to_dict()).items() if type(value) is int and value > 3}
    (long,) = named({name: value + 1 for name, value in many.items() if name.startswith(("replay.c", "record", "mon"))})
    assert len(long) < 255
    lakes = [environment("FrozenLake-v1", {"map_name": size}) for size in ("4x4", "8x8")]
    assert [default_path(presets.steady(lake)).name for lake in lakes] == [
        f"Gymnasium-FrozenLake-v1-steady-tiny-map_name={size}-seed0" for size in ("4x4", "8x8")
    ]
    wrapped = [
        environment("CartPole-v1", wrappers=[f"gymnasium.wrappers:{name}"])
        for name in ("TimeAwareObservation", "NormalizeReward", "NormalizeReward(gamma=0.9)")
    ]
    assert len({default_path(presets.steady(each)) for each in wrapped}) == 3
