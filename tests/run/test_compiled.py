"""Runs whose updates are compiled: what they would be uncompiled, and the same again where they are continued."""

from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import compiles
from test_step import cartpole
from test_together import begun, close, folders_of, learned, preset, recipes_of, told

from steadyq import RunFolder, UserError, cli, envs
from steadyq.build import LONG, compiled_for, ensemble_for
from steadyq.device.program import Program
from steadyq.recipe import Recipe
from steadyq.run.group import train_together
from steadyq.run.loop import train
from steadyq.run.step import storing

ALWAYS, NEVER = {"compute.compile": "always"}, {"compute.compile": "never"}


@compiles
def test_a_compiled_run_is_what_it_would_be_uncompiled(tmp_path: Path) -> None:
    """The same actions, games, resets and rows, and parameters up to rounding."""
    recipe = cartpole(**{"operator.forbid": "auto", "monitor.every": 60})
    plain, compiled = begun(recipe.override(NEVER), tmp_path / "plain", 0), begun(recipe.override(ALWAYS), tmp_path, 0)
    for run in (plain, compiled):
        run.start()
        for _ in range(160):
            run.step()
    assert isinstance(compiled.learning.captured.function, Program)
    assert isinstance(compiled.values.captured.function, Program)
    assert plain.learner.updates == compiled.learner.updates > 10
    for one, other in zip(plain.learner.followers, compiled.learner.followers, strict=True):
        for name, p in one.items():
            torch.testing.assert_close(other[name], p, atol=2e-4, rtol=2e-3)
    for log in ("metrics", "diagnostics"):
        close(told(tmp_path / "0", log), told(tmp_path / "plain" / "0", log))
    assert torch.equal(plain.ring.state()["action"], compiled.ring.state()["action"])


@compiles
def test_a_compiled_run_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    recipe = cartpole(**ALWAYS, **{"record.checkpoint_every": 100, "steps": 200})
    train(recipe, run=tmp_path / "whole", quiet=True)
    stopped = begun(recipe, tmp_path, 0)
    stopped.start()
    for _ in range(100):
        stopped.step()
    stopped.writer.save(stopped.checkpoint(), stopped.step_count)
    stopped.writer.close()
    folder = train(recipe, run=tmp_path / "0", quiet=True)
    wanted, found = learned(tmp_path / "whole"), learned(folder.path)
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    assert folder.result is not None
    assert folder.result["compiled"] is True


@compiles
def test_runs_are_compiled_together(tmp_path: Path) -> None:
    recipe = preset("dqn", **{"steps": 150})
    for how, changes in (("plain", NEVER), ("compiled", ALWAYS)):
        train_together(recipes_of(recipe.override(changes)), folders_of(tmp_path / how))
    for plain, compiled in zip(folders_of(tmp_path / "plain"), folders_of(tmp_path / "compiled"), strict=True):
        close(told(compiled, "metrics"), told(plain, "metrics"))
        result = RunFolder(compiled).result
        assert result is not None
        assert result["compiled"] is True


@compiles
def test_a_run_that_could_not_be_compiled_does_not_say_that_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("steadyq.device.program.compiled", broken)
    recipe = cartpole(**ALWAYS, **{"steps": 100})
    with pytest.warns(UserWarning, match="uncompiled, which is slower: the disk is full"):
        folder = train(recipe, run=tmp_path / "alone", quiet=True)
    with pytest.warns(UserWarning, match="uncompiled, which is slower: the disk is full"):
        train_together(recipes_of(recipe), folders_of(tmp_path / "together"))
    for each in (folder, *map(RunFolder, folders_of(tmp_path / "together"))):
        assert each.result is not None
        assert "compiled" not in each.result


@compiles
def test_storing_in_a_large_buffer_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be copied twice, and need not fit into memory three times."""
    run = begun(cartpole(**ALWAYS), tmp_path / "small", 0)
    assert storing(run.values.ring, compiled=True).compiles
    monkeypatch.setattr("steadyq.run.step.TWICE_COPIED", run.ring.nbytes - 1)
    assert not storing(run.values.ring, compiled=True).compiles


def whether(recipe: Recipe) -> bool:
    return compiled_for(recipe, ensemble_for(recipe, envs.spec(recipe.env, recipe.protocol)))


@compiles
def test_small_networks_and_long_runs_are_compiled_by_themselves() -> None:
    def run(**more: Any) -> Recipe:
        return cartpole(**{"steps": 64 + 2 * LONG, **more})

    assert whether(run())
    assert not whether(run(steps=62 + 2 * LONG))
    assert not whether(run(**NEVER))
    assert not whether(run(**{"compute.form": "loop"}))
    assert not whether(run(**{"network.hidden": (4096, 4096), "replay.batch": 32}))
    assert whether(run(steps=100, **ALWAYS))


@compiles
def test_what_an_update_costs_is_said_of_one_that_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise UserError("as far as this")

    monkeypatch.setattr("steadyq.run.loop.train", stopped)
    arguments = f"train CartPole-v1 --preset dqn --steps {10 * LONG} --run {tmp_path / 'run'}".split()
    for how, words in (("auto", "an update, uncompiled\n"), ("never", "an update\n")):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*arguments, "--compute.compile", how])
        assert capsys.readouterr().out.partition("cost:")[2].partition("writing")[0].endswith(words)


def test_without_a_compiler_auto_does_without_and_always_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not whether(cartpole(steps=10 * LONG))
    with pytest.raises(UserError, match=r"compute\.compile always needs a C\+\+ compiler"):
        whether(cartpole(**ALWAYS))
    arguments = [
        "train",
        "CartPole-v1",
        "--steps",
        "1200",
        "--run",
        str(tmp_path / "run"),
        "--compute.compile",
        "always",
    ]
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert "install them or use auto" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
