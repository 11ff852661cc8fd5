"""Runs trained as one program: each is what it would have been alone, and can go on alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import compiles
from safetensors.torch import load_file
from test_step import RECIPES, SMALL, cartpole
from waiting import until

from steadyq import RunFolder, presets
from steadyq.recipe import Recipe
from steadyq.run.group import Apart, reached, train_together
from steadyq.run.loop import train
from steadyq.run.step import Training
from steadyq.run.together import Together, alone_because
from steadyq.run.writer import begin

SEEDS = (0, 1, 2)
QUICK = {**SMALL, "network.hidden": (16, 16), "steps": 200}
JUST = {name: QUICK[name] for name in QUICK if name not in ("estimator.quantiles", "ensemble.members")}


def preset(name: str, **more: Any) -> Recipe:
    made: Recipe = getattr(presets, name)("CartPole-v1").override({**JUST, "regulation.threshold": 6.0, **more})
    return made


def minatar_preset(name: str, **more: Any) -> Recipe:
    """Of images, its schedules of resets begun and its views shifted."""
    changes = {"network.channels": 4, "network.hidden": (16,), "replay.shift": 1, "regulation.threshold": 6.0}
    resets = {"regulation.period": 30} if name in ("bbf", "sr_spr") else {}
    made: Recipe = getattr(presets, name)("MinAtar/Breakout").override(
        {**JUST, "steps": 300, **changes, **resets, **more}
    )
    return made


AVERAGED = {"operator.snapshots": 4, "optim.hard_copy_every": 7}
TOGETHER: dict[str, Recipe] = {
    **{name: recipe for name, recipe in RECIPES.items() if not alone_because(recipe)},
    "forbidden while rewards are rare": cartpole(**{"operator.forbid": "auto", "operator.exchange": "permutation"}),
    "a ceiling": cartpole(**{"operator.ceiling": "running_max", "replay.n_step": 3}),
    "maxmin of two": preset("maxmin_dqn", **{"operator.subset": 2}),
    "ebql": preset("ebql"),
    "rem": preset("rem"),
    "tqc": preset("tqc_discrete"),
    "bootstrapped": preset("bootstrapped_dqn", **{"ensemble.members": 3}),
    "sunrise": preset("sunrise", **{"ensemble.members": 3}),
    "munchausen": preset("munchausen"),
    "iqn": preset("iqn", **{"estimator.samples": 8}),
    "c51, a ceiling": preset("c51", **{"operator.ceiling": "running_max"}),
    "hl_gauss": preset("dqn", **{"estimator.kind": "hl_gauss", "operator.ceiling": "running_max"}),
    "rainbow": preset("rainbow"),
    "spr": preset("spr"),
    "spr, averaged, some learn": preset(
        "spr", **AVERAGED, **{"ensemble.members": 3, "ensemble.learn": "some", "replay.batch": 9}
    ),
    "sr_spr, images": minatar_preset("sr_spr", **{"replay.ratio": 2}),
    "bbf of two": minatar_preset("bbf", **{"ensemble.members": 2, "replay.intensity": 0.05}),
    "curl": preset("curl", **{"auxiliary.momentum": 0.9}),
    "curl of two, images": minatar_preset("curl", **{"ensemble.members": 2, "auxiliary.shift": 1}),
    "averaged": preset("averaged_dqn", **AVERAGED),
    "averaged, noisy": preset("rainbow", **AVERAGED, **{"ensemble.members": 2}),
    "pulled, projected": preset(
        "dqn",
        **{"network.norm": "layer", "regulation.pull": 0.01, "regulation.parseval": 0.001, "regulation.project": True},
    ),
    "spectral, injected": preset(
        "dqn",
        **{
            "regulation.spectral": True,
            "regulation.trigger": "periodic",
            "regulation.period": 20,
            "regulation.intervention": "inject",
            "regulation.target": "own",
        },
    ),
}


def begun(recipe: Recipe, folder: Path, seed: int) -> Training:
    own = recipe.override({"seed": seed})
    return Training(own, begin(RunFolder(folder / f"{seed}"), own))


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def close(found: Any, wanted: Any) -> None:
    """Equal, but for the last digits of numbers."""
    assert type(found) is type(wanted)
    if isinstance(wanted, Mapping):
        assert found.keys() == wanted.keys()
        for key in wanted:
            close(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            close(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=0.02, abs=1e-3, nan_ok=True)
    else:
        assert found == wanted


def same_networks(run: Training, other: Training, whose: str) -> None:
    """All that a learner keeps of its networks, up to rounding."""
    saved, found = run.checkpoint().tensors, other.checkpoint().tensors
    assert saved.keys() == found.keys()
    for part in ("online", "target", "adam_first", "snapshots", "slow"):
        for key, p in saved.get(part, {}).items():
            assert found[part][key].shape == p.shape
            torch.testing.assert_close(found[part][key], p, atol=2e-4, rtol=2e-3, msg=f"{part} {key} {whose}")


@pytest.mark.parametrize("name", TOGETHER)
def test_each_run_is_what_it_would_be_alone(name: str, tmp_path: Path) -> None:
    """The same actions, games, resets and rows, and parameters up to rounding."""
    recipe = TOGETHER[name].override({"monitor.every": 60})
    steps = min(112 if name == "Atari" else 160, recipe.steps // recipe.protocol.lanes)
    alone, joined = ([begun(recipe, tmp_path / how, seed) for seed in SEEDS] for how in ("alone", "together"))
    together = Together(joined)
    for run in (*alone, *joined):
        run.start()
    for _ in range(steps):
        for run in alone:
            run.step()
        together.step()
    for seed, (run, other) in enumerate(zip(alone, joined, strict=True)):
        assert run.learner.updates == other.learner.updates > 10
        same_networks(run, other, f"of seed {seed}")
        folders = [tmp_path / how / f"{seed}" for how in ("alone", "together")]
        for log in ("events", "metrics", "diagnostics"):
            close(told(folders[1], log), told(folders[0], log))
        assert bool(torch.equal(run.ring.state()["action"], other.ring.state()["action"]))


def test_other_seeds_are_other_runs(tmp_path: Path) -> None:
    runs = [begun(cartpole(), tmp_path, seed) for seed in SEEDS]
    together = Together(runs)
    for run in runs:
        run.start()
    for _ in range(120):
        together.step()
    first, second, _ = (run.learner.online["head.weight"] for run in runs)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("compiled", ["never", pytest.param("always", marks=compiles)])
def test_runs_of_other_learning_rates_are_what_they_would_be_alone(compiled: str, tmp_path: Path) -> None:
    falling = "0.004 -> 0.0004 linear 100 steps"
    rates = (1e-3, 4e-3, falling)
    alone, joined = (
        [
            begun(
                cartpole(**{"optim.rate": rate, "optim.decay": 0.1, "compute.compile": compiled}), tmp_path / how, seed
            )
            for seed, rate in enumerate(rates)
        ]
        for how in ("alone", "together")
    )
    together = Together(joined)
    for run in (*alone, *joined):
        run.start()
    for _ in range(120):
        for run in alone:
            run.step()
        together.step()
    for run, other in zip(alone, joined, strict=True):
        for key, p in run.learner.online.items():
            torch.testing.assert_close(other.learner.online[key], p, atol=2e-4, rtol=2e-3)


def folders_of(path: Path) -> list[Path]:
    return [path / f"{seed}" for seed in SEEDS]


def recipes_of(recipe: Recipe) -> list[Recipe]:
    return [recipe.override({"seed": seed}) for seed in SEEDS]


def learned(folder: Path) -> dict[str, torch.Tensor]:
    newest = RunFolder(folder).checkpoints()[-1]
    return {
        f"{part}.{name}": t
        for part in ("online", "replay")
        for name, t in load_file(newest / f"{part}.safetensors").items()
    }


WORKER = """
import sys
from pathlib import Path
from steadyq.recipe import Recipe
from steadyq.run.group import train_together
recipes = [Recipe.from_toml(Path(name).read_text()) for name in sys.argv[2:]]
train_together(recipes, [Path(sys.argv[1]) / f"{recipe.seed}" for recipe in recipes])
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_together_they_go_on_together_to_the_same_end(how: signal.Signals, tmp_path: Path) -> None:
    recipe = cartpole(steps=1500, **{"record.checkpoint_every": 300, "replay.warmup": 64})
    train_together(recipes_of(recipe), folders_of(tmp_path / "whole"))
    texts = []
    for own in recipes_of(recipe):
        texts.append(tmp_path / f"{own.seed}.toml")
        texts[-1].write_text(own.to_toml())
    command = [sys.executable, "-c", WORKER, str(tmp_path / "killed"), *map(str, texts)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    until(lambda: all(reached(RunFolder(folder)) for folder in folders_of(tmp_path / "killed")))
    process.send_signal(how)
    assert process.wait(30) != 0
    steps = {reached(RunFolder(folder)) for folder in folders_of(tmp_path / "killed")}
    if len(steps) > 1:  # killed between two runs' checkpoints
        with pytest.raises(Apart, match="different steps"):
            train_together(recipes_of(recipe), folders_of(tmp_path / "killed"))
        return
    assert 0 < steps.pop() < 1500
    train_together(recipes_of(recipe), folders_of(tmp_path / "killed"))
    for whole, killed in zip(folders_of(tmp_path / "whole"), folders_of(tmp_path / "killed"), strict=True):
        wanted, found = learned(whole), learned(killed)
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name
        assert told(killed, "metrics") == told(whole, "metrics")
        result = RunFolder(killed).result
        assert result is not None
        assert result["together"] == len(SEEDS)


def test_a_run_that_began_together_goes_on_alone(tmp_path: Path) -> None:
    recipe = cartpole()
    runs = [begun(recipe, tmp_path, seed) for seed in SEEDS]
    together = Together(runs)
    for run in runs:
        run.start()
    for _ in range(200):
        together.step()
    for run in runs:
        run.writer.save(run.checkpoint(), run.step_count)
        run.writer.close()
    folder = train(recipe.override({"seed": 1}), run=tmp_path / "1", quiet=True)
    assert folder.result is not None
    assert (folder.result["steps"], "together" in folder.result) == (400, False)
    assert [event["step"] for event in folder.events() if event["event"] == "resume"] == [200]


@pytest.mark.parametrize("name", ["averaged, noisy", "spr, averaged, some learn", "bbf of two", "curl of two, images"])
def test_runs_part_and_join_at_a_checkpoint(name: str, tmp_path: Path) -> None:
    """Half of it alone, half together, in either order: the same as all of it alone."""
    recipe, steps = TOGETHER[name], 80
    alone, parted, joined = ([begun(recipe, tmp_path / how, seed) for seed in SEEDS] for how in ("a", "b", "c"))
    together = Together(parted)
    for run in (*alone, *parted):
        run.start()
    for _ in range(steps):
        for run in alone:
            run.step()
        together.step()
    again, apart = Together(joined), [begun(recipe, tmp_path / "d", seed) for seed in SEEDS]
    for run, saved in zip((*joined, *apart), (*alone, *parted), strict=True):
        run.restore(saved.checkpoint())
    for _ in range(steps):
        for run in (*alone, *apart):
            run.step()
        again.step()
    for whole, one, other in zip(alone, apart, joined, strict=True):
        assert whole.learner.updates > 20
        same_networks(whole, one, "of a run that went on alone")
        same_networks(whole, other, "of a run that went on together")


def test_what_is_not_alike_or_has_trouble_goes_apart(tmp_path: Path) -> None:
    recipe = cartpole()
    with pytest.raises(Apart, match="more than seed and learning rate"):
        train_together([recipe, recipe.override({"seed": 1, "optim.tau": 0.1})], folders_of(tmp_path)[:2])
    own = recipe.override({"compute.form": "loop"})
    with pytest.raises(Apart, match=r"compute\.form loop is trained by itself"):
        train_together([own, own.override({"seed": 1})], folders_of(tmp_path)[:2])
    assert not list(tmp_path.iterdir())
    held = begin(RunFolder(tmp_path / "1"), recipes_of(recipe)[1])
    with pytest.raises(Apart, match="another process is training"):
        train_together(recipes_of(recipe), folders_of(tmp_path))
    held.close()
    train_together(recipes_of(recipe), folders_of(tmp_path / "well"))  # locks are free, nothing is left behind
    with pytest.raises(Apart, match="has come to an end"):
        train_together(recipes_of(recipe), folders_of(tmp_path / "well"))
