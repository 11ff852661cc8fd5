"""Kill and resume equals uninterrupted, bit for bit; and what the training loop promises around it."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from waiting import until

from steadyq import RunFolder, UserError, cli, presets
from steadyq.recipe import Recipe
from steadyq.run.explore import EpsilonGreedy
from steadyq.run.loop import Interrupted, train
from steadyq.run.progress import Display
from steadyq.run.step import Diverged, Training
from steadyq.run.writer import Checkpoint, begin

SMALL: dict[str, Any] = {
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "replay.warmup": 64,
    "replay.batch": 8,
    "replay.every": 2,
    "replay.capacity": 200,  # wraps around before the run ends
    "regulation.every": 30,
    "regulation.threshold": 1.03,  # low enough that layers are reset, so the generator's state matters
    "explore.epsilon": "1 -> 0.01 linear 100 steps",
    "record.every": 40,
    "record.keep_replay": True,
    "monitor.every": 30,
    "monitor.batch": 16,
    "record.tensorboard": False,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 1,
    "compute.device": "cpu",
    "compute.threads": 1,
}
SCALAR = {name: value for name, value in SMALL.items() if name != "estimator.quantiles"}


def cartpole(**more: Any) -> Recipe:
    return presets.steady("CartPole-v1").override({**SMALL, "steps": 400, "network.hidden": (16, 16), **more})


def minatar(**more: Any) -> Recipe:
    changes = {"steps": 420, "network.channels": 4, "network.hidden": (16,), "protocol.sticky": 0.25}
    return presets.steady("MinAtar/Breakout").override({**SMALL, **changes, **more})


def atari(**more: Any) -> Recipe:
    changes = {
        "steps": 170,
        "network.scale": 1,
        "network.head_multiple": 8,
        "network.strides": (2, 2, 2, 2),
        "protocol.max_frames": 200,  # games are cut: truncations, and a quick evaluation
        "replay.batch": 4,
        "replay.every": 4,
        "replay.capacity": 130,
    }
    return presets.steady("Atari/Breakout").override({**SMALL, **changes, **more})


RECIPES = {
    "CartPole": cartpole(),
    "CartPole, 3 lanes, n-step, auto, truncated": cartpole(
        **{"protocol.lanes": 3, "protocol.max_frames": 15, "replay.n_step": 3, "operator.forbid": "auto"}
    ),
    "CartPole, double_dqn, hard copies": presets.double_dqn("CartPole-v1").override(
        {**SCALAR, "steps": 300, "network.hidden": (16,), "ensemble.members": 1, "optim.hard_copy_every": 50}
    ),
    "CartPole, one member a game, some learn, scheduled resets": cartpole(
        **{
            "protocol.lanes": 2,
            "ensemble.members": 3,
            "ensemble.act": "member",
            "ensemble.learn": "some",
            "replay.n_step": "3 -> 1 exponential 40 updates",
            "optim.gamma": "0.9 -> 0.99 exponential 40 updates",
            "optim.rate": "0.001 -> 0.0001 linear 40 updates",
            "optim.decay": 0.1,
            "explore.epsilon": "1 -> 0.1 linear 60 updates after 5",
            "regulation.threshold": 6.0,  # the default: a period has no threshold
            "regulation.trigger": "periodic",
            "regulation.period": 30,
            "regulation.last": 60,
            "regulation.intervention": "shrink_perturb",
            "regulation.target": "own",
        }
    ),
    "CartPole, redo": presets.redo("CartPole-v1").override(
        {**SCALAR, "regulation.threshold": 6.0, "steps": 300, "network.hidden": (16, 16), "ensemble.members": 1}
    ),
    "MinAtar, c51, augmented": presets.c51("MinAtar/Breakout").override(
        {
            **SCALAR,
            "steps": 300,
            "network.channels": 4,
            "network.hidden": (16,),
            "replay.shift": 1,
            "replay.intensity": 0.05,
            "ensemble.members": 2,
            "ensemble.learn": "one",
            "ensemble.act": "optimistic",
        }
    ),
    "CartPole, averaged": presets.averaged_dqn("CartPole-v1").override(
        {**SCALAR, "steps": 300, "network.hidden": (16,), "operator.snapshots": 3, "optim.hard_copy_every": 20}
    ),
    "CartPole, regulated by the verdict": cartpole(
        **{
            "regulation.threshold": 6.0,
            "regulation.trigger": "verdict",
            "regulation.intervention": "answer",
            "monitor.every": 10,
            "optim.rate": 0.05,  # weights grow
        }
    ),
    "CartPole, pulled and projected": cartpole(
        **{"regulation.pull": 0.01, "regulation.parseval": 0.001, "regulation.project": True, "network.norm": "layer"}
    ),
    "CartPole, normalised, two-signed, units replaced": cartpole(
        **{
            "regulation.threshold": 6.0,
            "regulation.trigger": "none",
            "regulation.intervention": "replace",
            "regulation.replacement": 0.01,
            "regulation.maturity": 20,
            "regulation.target": "keep",
            "regulation.spectral": True,
            "network.activation": "crelu",
        }
    ),
    "MinAtar, a fresh head injected, normalised": minatar(
        **{
            "regulation.threshold": 6.0,
            "regulation.trigger": "periodic",
            "regulation.period": 40,
            "regulation.intervention": "inject",
            "regulation.spectral": True,
        }
    ),
    "CartPole, bootstrapped": presets.bootstrapped_dqn("CartPole-v1").override(
        {**SCALAR, "steps": 300, "network.hidden": (16,)}
    ),
    "MinAtar, iqn, rem": presets.iqn("MinAtar/Breakout").override(
        {
            **SCALAR,
            "steps": 300,
            "network.channels": 4,
            "network.hidden": (16,),
            "operator.kind": "rem",
            "estimator.samples": 5,
            "estimator.fixed": 4,
        }
    ),
    "MinAtar, bbf with its self-prediction": presets.bbf("MinAtar/Breakout").override(
        {
            **SCALAR,
            "steps": 300,
            "network.channels": 4,
            "network.hidden": (16,),
            "replay.shift": 1,
            "replay.intensity": 0.05,
            "regulation.threshold": 6.0,
            "regulation.period": 30,
            "regulation.last": 0,
        }
    ),
    "CartPole, noisy, spikes": cartpole(**{"network.noisy": 0.5, "protocol.lanes": 2, "explore.epsilon": 0.0}),
    "CartPole, sunrise, recycled": presets.sunrise("CartPole-v1").override(
        {
            **SCALAR,
            "steps": 300,
            "network.hidden": (16, 16),
            "regulation.threshold": 6.0,
            "regulation.trigger": "dormant",
            "regulation.intervention": "recycle",
            "regulation.dormant": 0.5,
        }
    ),
    "MinAtar, curl, scheduled resets": presets.curl("MinAtar/Breakout").override(
        {
            **SCALAR,
            "steps": 300,
            "network.channels": 4,
            "network.hidden": (16,),
            "auxiliary.shift": 1,
            "regulation.threshold": 6.0,
            "regulation.trigger": "periodic",
            "regulation.intervention": "shrink_perturb",
            "regulation.period": 30,
            "regulation.target": "own",
        }
    ),
    "MinAtar, sticky": minatar(),
    "Atari": atari(),
}


class StopAt(Display):
    """Sends the signal a user would, once the run has made so many steps."""

    def __init__(self, step: int, number: int = signal.SIGINT) -> None:
        self.at, self.number = step, number

    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == self.at:
            os.kill(os.getpid(), self.number)


def assert_same_run(one: Path, other: Path) -> None:
    """Compare everything two finished runs wrote, except clocks and the record of the interruption itself."""
    checkpoint, twin = RunFolder(one).checkpoints()[-1], RunFolder(other).checkpoints()[-1]
    assert checkpoint.name == twin.name
    assert {p.name for p in checkpoint.iterdir()} == {p.name for p in twin.iterdir()}
    for file in checkpoint.glob("*.safetensors"):
        tensors, others = load_file(file), load_file(twin / file.name)
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, others[name]), f"{file.stem}: {name}"
    assert state_of(checkpoint) == state_of(twin)
    assert without(RunFolder(one).metrics(), "seconds") == without(RunFolder(other).metrics(), "seconds")
    assert events_of(one) == events_of(other)
    rows, others = (RunFolder(path).diagnostics() for path in (one, other))
    assert rows
    assert without(rows, "seconds") == without(others, "seconds")
    results = [RunFolder(path).result for path in (one, other)]
    assert results[0] is not None
    assert results[1] is not None
    for name in ("returns", "random_return", "games", "resets", "updates", "training_return_10"):
        assert results[0][name] == results[1][name]


def state_of(checkpoint: Path) -> dict[str, Any]:
    state = json.loads((checkpoint / "state.json").read_text())
    return {name: value for name, value in state.items() if name not in ("wall", "files", "sha256")}


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def events_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in RunFolder(path).events() if event["event"] != "resume"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_stopped_and_continued_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name].override({"record.checkpoint_every": 141})
    lanes, steps = recipe.protocol.lanes, recipe.steps
    # The first stop lies between two rows of metrics and two checks of the layers, the second after a wrap-around.
    stops = [share * steps // 100 // lanes * lanes for share in (45, 91)]
    train(recipe, run=tmp_path / "whole")
    for stop in stops:
        with pytest.raises(Interrupted, match=f"stopped at step {stop}, saved; run the same command to continue"):
            train(recipe, run=tmp_path / "parts", display=StopAt(stop))
    train(recipe, run=tmp_path / "parts")

    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    folder = RunFolder(tmp_path / "parts")
    assert [event["step"] for event in folder.events() if event["event"] == "resume"] == stops
    # The comparison means little unless these happened.
    assert folder.result is not None
    assert folder.result["games"] > 0
    if recipe.regulation.intervention != "none":
        assert folder.result["resets"] > 0


LONGER = {
    "resets due at the last step, evaluated on the way": cartpole(
        **{"regulation.threshold": 1.0, "evaluation.every": 60, "evaluation.interim_episodes": 2}
    ),
    "three lanes, one member a game": cartpole(
        **{"protocol.lanes": 3, "ensemble.act": "member", "replay.n_step": 3, "protocol.max_frames": 15}
    ),
    "planned resets": RECIPES["CartPole, one member a game, some learn, scheduled resets"].override(
        {"regulation.period": 28, "regulation.last": 200, "protocol.lanes": 1}
    ),
    "recycled units": RECIPES["CartPole, redo"],
    "MinAtar": minatar(),
}


@pytest.mark.parametrize("name", LONGER)
def test_a_finished_run_trained_longer_equals_one_that_was_asked_for_all_of_it(name: str, tmp_path: Path) -> None:
    recipe = LONGER[name].override({"record.checkpoint_every": 141})
    for steps in (120, 180, 300):
        train(recipe, steps=steps, run=tmp_path / "parts", quiet=True)
        assert (tmp_path / "parts" / "result.json").is_file()
    train(recipe, steps=300, run=tmp_path / "whole", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    folder = RunFolder(tmp_path / "parts")
    assert folder.recipe.steps == 300
    assert json.loads((folder.path / "result-120.json").read_text())["steps"] == 120
    resets = {event["step"] for event in folder.events() if event["event"] == "reset"}
    if name == "resets due at the last step, evaluated on the way":
        assert {120, 180} <= resets
        assert 300 not in resets
        evaluated = [event["step"] for event in folder.events() if event["event"] == "evaluation"]
        assert evaluated == [60, 120, 180, 240]  # at 300 a reset is due that is held back
    if name == "planned resets":
        assert {120, 176} & resets  # at 120 steps 28 updates are made


def test_a_run_killed_while_it_is_trained_longer_goes_on_to_the_same_end(tmp_path: Path) -> None:
    recipe = cartpole(**{"regulation.threshold": 1.0, "record.checkpoint_every": 1000})
    train(recipe, steps=240, run=tmp_path / "whole", quiet=True)
    train(recipe, steps=120, run=tmp_path / "parts", quiet=True)

    class Broken(Display):
        def step(self, training: Training, row: dict[str, Any] | None) -> None:
            if training.step_count == 170:
                raise MemoryError

    with pytest.raises(MemoryError):
        train(recipe, steps=240, run=tmp_path / "parts", display=Broken())
    train(recipe, steps=240, run=tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_fewer_steps_and_a_run_without_its_replay_buffer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = cartpole(steps=120)
    train(recipe, run=tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="is a run of 120 steps, and 100 are asked for: say --steps 120"):
        train(recipe, steps=100, run=tmp_path / "run", quiet=True)
    assert train(recipe, run=tmp_path / "run").finished(recipe)
    assert "already finished" in capsys.readouterr().out
    train(recipe, steps=160, run=tmp_path / "run")
    said = capsys.readouterr().out
    assert (
        "training longer: 160 steps in place of 120; what is scheduled stays as it was (explore.epsilon 1 -> " in said
    )
    monkeypatch.setattr("steadyq.run.folder.SMALL_REPLAY", 100)
    dropped = recipe.override({"record.keep_replay": False})
    train(dropped, run=tmp_path / "dropped", quiet=True)
    with pytest.raises(UserError, match="cannot be trained longer: it finished without its replay buffer"):
        train(dropped, steps=160, run=tmp_path / "dropped", quiet=True)
    assert RunFolder(tmp_path / "dropped").recipe.steps == 120


def test_a_run_killed_without_warning_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    """The in-process half of the SIGKILL test: nothing runs after the fatal step, no handler, no save."""

    class Killed(Exception):
        pass

    class KillAt(Display):
        def step(self, training: Training, row: dict[str, Any] | None) -> None:
            if training.step_count == 333:
                raise Killed

    recipe = cartpole(**{"record.checkpoint_every": 200})
    train(recipe, run=tmp_path / "whole")
    with pytest.raises(Killed):
        train(recipe, run=tmp_path / "parts", display=KillAt())
    assert [p.name for p in RunFolder(tmp_path / "parts").checkpoints()] == ["0000000200"]
    # What a kill in the middle of a write leaves behind: half a checkpoint and half a line.
    torn = tmp_path / "parts" / "checkpoints" / "unfinished"
    torn.mkdir()
    (torn / "online.safetensors").write_bytes(b"half")
    for name in ("metrics", "events", "diagnostics"):
        with open(tmp_path / "parts" / f"{name}.jsonl", "a") as file:
            file.write('{"step": 33')
    assert RunFolder(tmp_path / "parts").metrics()[-1]["step"] == 320  # the torn line is no row
    train(recipe, run=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert not torn.exists()


def test_a_run_killed_while_it_is_evaluated_only_evaluates_again(tmp_path: Path) -> None:
    class KillEvaluation(Display):
        @contextmanager
        def evaluating(self, games: int) -> Iterator[Callable[[int], None]]:
            def killed(played: int) -> None:
                raise KeyboardInterrupt

            yield killed

    recipe = cartpole(steps=100, **{"record.checkpoint_every": 100})
    train(recipe, run=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, run=tmp_path / "parts", display=KillEvaluation())
    train(recipe, run=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_killed_before_its_first_checkpoint_starts_over_with_clean_logs(tmp_path: Path) -> None:
    recipe = cartpole(steps=100)
    train(recipe, run=tmp_path / "whole")
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe.to_toml())
    (folder / "metrics.jsonl").write_text('{"step": 40}\n{"st')
    (folder / "events.jsonl").write_text('{"event": "start", "step": 0}\n')
    train(recipe, run=folder)
    assert_same_run(tmp_path / "whole", folder)


def test_a_restored_training_is_the_saved_one_in_every_tensor(tmp_path: Path) -> None:
    recipe = minatar(**{"protocol.stack": 2, "protocol.lanes": 2})
    training = started(recipe, tmp_path / "one")
    for _ in range(90):
        training.step()
    saved = training.checkpoint()
    copy = Checkpoint(
        {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in saved.tensors.items()},
        json.loads(json.dumps(saved.plain)),
    )
    twin = Training(recipe, begin(RunFolder(tmp_path / "other"), recipe))
    twin.restore(copy)
    again = twin.checkpoint()
    for group, tensors in copy.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(again.tensors[group][name], tensor), (group, name)
    assert {**again.plain, "wall": 0} == {**copy.plain, "wall": 0}
    assert torch.equal(twin.act_values(), training.act_values())


# -- the command line, in real processes --------------------------------------------------------------------------


def command(run: Path, steps: int) -> list[str]:
    options = {
        **SMALL,
        "record.checkpoint_every": 150,
        "record.every": 50,
        "replay.every": 4,
        "network.hidden": (16, 16),
    }
    words = ["train", "CartPole-v1", "--steps", str(steps), "--run", str(run)]
    for name, value in options.items():
        option = name.replace("_", "-")
        section, _, leaf = option.rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--{section}.no-{leaf}")
        else:
            words += [f"--{option}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


def launched(words: list[str]) -> subprocess.Popen[str]:
    process = [sys.executable, "-m", "steadyq", *words]
    return subprocess.Popen(process, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]


def run_cli(words: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return int(stop.value.code or 0)


def test_a_process_killed_at_a_random_moment_continues_to_the_same_end(tmp_path: Path) -> None:
    run = tmp_path / "killed"
    process = launched(command(run, 2500))
    wait_for(lambda: RunFolder(run).checkpoints(), process)
    moment = random.random() / 2  # any moment must do; a failure shows which it was
    time.sleep(moment)
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, (moment, said)
    assert RunFolder(run).result is None

    assert run_cli(command(run, 2500)) == 0
    assert run_cli(command(tmp_path / "whole", 2500)) == 0
    assert_same_run(tmp_path / "whole", run)


def test_ctrl_c_saves_and_says_how_to_continue(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    process = launched(command(run, 1_000_000))
    wait_for(lambda: RunFolder(run).metrics(), process)

    # While it trains, a second process on the same folder is refused in one line and disturbs nothing.
    assert run_cli(command(run, 1_000_000)) == 2
    assert capfd.readouterr().err == f"steadyq: another process is training in {run}\n"
    assert process.poll() is None

    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "saved; run the same command to continue" in said
    assert "Traceback" not in said
    step = int(RunFolder(run).checkpoints()[-1].name)
    assert f"stopped at step {step:,}, saved" in said


def test_a_finished_run_says_so_and_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(command(tmp_path, 70)) == 0
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    capsys.readouterr()
    assert run_cli(command(tmp_path, 70)) == 0
    assert "already finished" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_sigterm_saves_like_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped at step 70, saved"):
        train(cartpole(), run=tmp_path, display=StopAt(70, signal.SIGTERM))
    assert [p.name for p in RunFolder(tmp_path).checkpoints()] == ["0000000070"]


# -- divergence -----------------------------------------------------------------------------------------------------


class Poison(Display):
    """Breaks one weight at step 80, as an overflow would."""

    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count == 80:
            training.learner.online["fc2.weight"][1, 3, 2] = torch.nan


def test_a_value_that_is_not_finite_stops_the_run_with_its_state_saved_apart(tmp_path: Path) -> None:
    recipe = cartpole(**{"record.checkpoint_every": 75, "regulation.intervention": "none"})
    message = r"not finite: parameters of layer 'fc\d' and loss, .* between steps 80 and 120"
    with pytest.raises(Diverged, match=message):
        train(recipe, run=tmp_path, display=Poison())
    folder = RunFolder(tmp_path)
    assert folder.events()[-1]["event"] == "diverged"
    assert "not finite" in folder.events()[-1]["message"]
    assert [p.name for p in (tmp_path / "diverged").iterdir()] == ["0000000120"]
    broken = load_file(tmp_path / "diverged" / "0000000120" / "online.safetensors")
    assert broken["fc2.weight"][1].isnan().any()
    assert folder.checkpoints() != []  # the last good state stays
    assert folder.result is None
    with pytest.raises(UserError, match="diverged in an earlier run"):
        train(recipe, run=tmp_path)


@pytest.mark.parametrize(("steps", "checkpoint_every"), [(110, 1000), (300, 50)])
def test_what_is_saved_or_evaluated_is_finite_whatever_the_cadence_of_rows(
    steps: int, checkpoint_every: int, tmp_path: Path
) -> None:
    cadence = {"record.every": 1000, "record.checkpoint_every": checkpoint_every}
    with pytest.raises(Diverged, match="not finite"):
        train(cartpole(steps=steps, **cadence), run=tmp_path, display=Poison())
    folder = RunFolder(tmp_path)
    assert folder.result is None
    assert [p.name for p in folder.checkpoints()] == (["0000000050"] if checkpoint_every == 50 else [])
    assert all(p.isfinite().all() for c in folder.checkpoints() for p in load_file(c / "online.safetensors").values())


def test_a_diverged_run_exits_with_3_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The largest rate the recipe allows, on a network whose values overflow float32 within the run.
    words = command(tmp_path, 3000)
    words += ["--optim.rate", "1", "--optim.tau", "1", "--regulation.intervention", "none", "--optim.clip", "1e30"]
    words += ["--optim.beta1", "0", "--optim.beta2", "0", "--optim.epsilon", "0"]
    assert run_cli(words) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "not finite: parameters of layer" in said
    assert f"state saved in {tmp_path}/diverged" in said
    for log in ("events", "metrics", "diagnostics"):
        for line in (tmp_path / f"{log}.jsonl").read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    assert run_cli(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert run_cli(["diagnose", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["findings"]
    assert "divergence" in {finding["name"] for finding in found}


# -- what happens within the loop ---------------------------------------------------------------------------------


def started(recipe: Recipe, path: Path) -> Training:
    training = Training(recipe, begin(RunFolder(path), recipe))
    training.start()
    return training


def test_two_consecutive_updates_use_different_randomness(tmp_path: Path) -> None:
    """The eager half of the captured-step test: orders and batches are drawn outside the update, anew each time."""
    # Uniform replay: with frozen draws the batches would be equal, whatever the priorities have become.
    recipe = cartpole(**{"ensemble.members": 8, "replay.warmup": 100, "replay.ratio": 6, "replay.alpha": 0.0})
    training = started(recipe, tmp_path)
    seen: list[tuple[list[int], list[int]]] = []
    update = training.learner.update

    def spy(batch: Any, draw: Any) -> Any:
        seen.append((draw.order.tolist(), batch.index.tolist()))
        return update(batch, draw)

    training.learner.update = spy  # type: ignore[method-assign]
    while not seen:
        training.step()
    assert len(seen) == 6
    assert len({tuple(order) for order, _ in seen}) == 6
    assert len({tuple(index) for _, index in seen}) == 6


@pytest.mark.parametrize(("every", "first", "second"), [(1, 65, 66), (5, 65, 70), (16, 80, 96)])
def test_learning_begins_after_the_warmup_and_recurs(every: int, first: int, second: int, tmp_path: Path) -> None:
    training = started(cartpole(**{"replay.ratio": 3, "replay.every": every}), tmp_path)
    updates = []
    for _ in range(second):
        training.step()
        updates.append(training.learner.updates)
    assert updates == [0] * (first - 1) + [3] * (second - first) + [6]  # step 64 itself is still warm-up


def test_learning_can_begin_after_the_shortest_warmup_an_n_step_recipe_allows(tmp_path: Path) -> None:
    training = started(cartpole(**{"protocol.lanes": 4, "replay.n_step": 5, "replay.warmup": 20}), tmp_path)
    for _ in range(6):
        training.step()
    assert training.learner.updates > 0


class Costly(gymnasium.Env[np.ndarray, int]):
    """Every step costs 2.5."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), -2.5, False, False, {}


def test_the_learner_sees_signs_and_the_scores_are_raw(tmp_path: Path) -> None:
    gymnasium.register("SteadyCostly-v0", entry_point=Costly)
    try:
        recipe = presets.steady("SteadyCostly-v0").override({**SMALL, "protocol.max_frames": 10})
        for kind, seen in (("raw", -2.5), ("sign", -1.0)):
            training = started(recipe.override({"protocol.reward": kind}), tmp_path / kind)
            for _ in range(10):
                training.step()
            assert training.ring.reward[:10].tolist() == [seen] * 10
            assert list(training.recent) == [-25.0]
            assert training.ceiling.best_reward == seen
    finally:
        del gymnasium.registry["SteadyCostly-v0"]


@pytest.mark.parametrize(("forbid", "expected"), [("rewarded", True), ("none", False), ("auto", False)])
def test_forbid_reaches_the_update(forbid: str, expected: bool, tmp_path: Path) -> None:
    # CartPole rewards every step, so `auto` turns the constraint off.
    training = started(cartpole(**{"operator.forbid": forbid}), tmp_path)
    draws = []
    update = training.learner.update
    training.learner.update = lambda batch, draw: (draws.append(bool(draw.forbid)), update(batch, draw))[1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(70):
        training.step()
    assert set(draws) == {expected}


def test_the_ceiling_reaches_the_learner_and_none_leaves_it_infinite(tmp_path: Path) -> None:
    for ceiling in ("running_max", "none"):
        recipe = cartpole(**{"operator.ceiling": ceiling, "protocol.max_frames": 10, "optim.gamma": 0.5})
        training = started(recipe, tmp_path / ceiling)
        assert float(training.learner.ceiling) == math.inf
        for _ in range(20):
            training.step()
        best = 2.0 - 0.5**9  # ten rewards of one at gamma 1/2, or fewer where the pole fell
        if ceiling == "none":
            assert float(training.learner.ceiling) == math.inf
        else:
            assert 1.9 < float(training.learner.ceiling) <= best


def test_rows_tell_same_actions_of_rewarded_and_other_transitions_apart(tmp_path: Path) -> None:
    always = train(cartpole(), run=tmp_path / "always").metrics()[-1]  # every step of CartPole is rewarded
    assert always["rewarded"] == 1
    assert always["same_action_rewarded"] == pytest.approx(always["same_action"])
    assert always["same_action_unrewarded"] is None
    rows = [row for row in train(minatar(), run=tmp_path / "some").metrics() if "rewarded" in row]
    assert any(0 < row["rewarded"] < 1 for row in rows)
    for row in rows:
        share, rewarded, other = (row[name] for name in ("rewarded", "same_action_rewarded", "same_action_unrewarded"))
        assert (rewarded is None) == (share == 0)
        assert row["same_action"] == pytest.approx(share * (rewarded or 0) + (1 - share) * (other or 0))


def test_epsilon_greedy_takes_the_greedy_action_or_any_and_its_random_stream_ignores_q() -> None:
    q = np.tile([0.0, 2.0, 1.0], (9000, 1))
    assert (EpsilonGreedy(9000, 3, 0.0, np.random.default_rng(0))(q) == 1).all()
    share = np.bincount(EpsilonGreedy(9000, 3, 0.3, np.random.default_rng(0))(q), minlength=3) / 9000
    np.testing.assert_allclose(share, [0.1, 0.8, 0.1], atol=0.02)
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    EpsilonGreedy(9000, 3, 0.3, first)(q)
    EpsilonGreedy(9000, 3, 0.9, second)(-q)
    assert first.random() == second.random()


def test_the_ceiling_counts_a_lost_life_as_an_end(tmp_path: Path) -> None:
    changes = {"replay.warmup": 1000, "replay.capacity": 1000, "steps": 2000, "protocol.max_frames": 0}
    training = started(atari(**changes), tmp_path)
    play, seen = training.env.step, []
    training.env.step = lambda action: (seen.append(play(action)), seen[-1])[1]  # type: ignore[method-assign]
    while not seen or not seen[-1].terminated[0]:
        assert training.ceiling.value == math.inf
        training.step()
    assert not seen[-1].game_over[0]
    returned = 0.0
    best = -math.inf
    for step in reversed(seen):
        returned = float(np.sign(step.reward[0])) + training.ceiling.gamma * returned
        best = max(best, returned)
    assert training.ceiling.value == float(training.learner.ceiling) == pytest.approx(best)


def test_actions_are_random_at_first_and_greedy_once_epsilon_has_fallen(tmp_path: Path) -> None:
    changes = {"explore.epsilon": "1 -> 0 linear 400 steps", "protocol.lanes": 4}
    changes |= {"replay.capacity": 1000, "replay.warmup": 1000, "steps": 2000}
    training = started(cartpole(**changes), tmp_path)
    play, chosen, greedy = training.env.step, [], []
    training.env.step = lambda action: (chosen.append(action.copy()), play(action))[1]  # type: ignore[method-assign]
    while training.step_count < 800:
        greedy.append(training.act_values().argmax(-1).numpy())
        training.step()
    same = (np.array(chosen) == np.array(greedy)).mean(1)  # of two actions a random one is the greedy one half the time
    assert 0.35 < same[:20].mean() < 0.75
    assert same[20:100].mean() > same[:20].mean() + 0.1
    assert same[100:].min() == 1
    assert RunFolder(tmp_path).metrics()[-1]["epsilon"] == 0


@pytest.mark.parametrize("intervention", ["reinitialise", "none"])
def test_every_layer_is_measured_and_only_a_spike_above_the_threshold_is_reset(
    intervention: str, tmp_path: Path
) -> None:
    recipe = cartpole(**{"regulation.threshold": 6.0, "regulation.intervention": intervention})
    training = started(recipe, tmp_path)
    weight = training.learner.online["fc2.weight"]
    with torch.no_grad():
        weight[1, 0, 0] = 50.0
    before = {name: p.clone() for name, p in training.learner.online.items()}
    training.regulate(measuring=True)
    measured, *resets = RunFolder(tmp_path).events()
    assert measured["event"] == "spikes"
    assert measured["layers"] == ["fc1", "fc2", "head"]
    assert [ratio > 6 for member in measured["ratios"] for ratio in member] == [False] * 4 + [True, False]
    changed = [name for name, p in training.learner.online.items() if not torch.equal(p, before[name])]
    if intervention == "none":
        assert resets == []
        assert changed == []
    else:
        assert changed == ["fc2.weight", "fc2.bias"]
        assert torch.equal(weight[0], before["fc2.weight"][0])
        assert [(event["event"], event["member"], event["layer"]) for event in resets] == [("reset", 1, "fc2")]
        assert resets[0]["ratio"] == measured["ratios"][1][1]
        assert training.resets == 1


@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_layers_are_measured_against_the_quantile_of_the_recipe(quantile: float, tmp_path: Path) -> None:
    training = started(cartpole(**{"regulation.quantile": quantile, "regulation.threshold": 6.0}), tmp_path)
    training.regulate(measuring=True)
    measured = RunFolder(tmp_path).events()[0]
    for place, layer in enumerate(measured["layers"]):
        sizes = training.learner.online[f"{layer}.weight"].abs().flatten(1)
        expected = sizes.amax(1) / sizes.quantile(quantile, dim=1)
        assert [row[place] for row in measured["ratios"]] == pytest.approx(expected.tolist(), abs=1e-4)


def test_layers_are_measured_at_their_own_pace_once_learning_has_begun(tmp_path: Path) -> None:
    training = started(cartpole(**{"regulation.every": 30}), tmp_path)
    for _ in range(130):
        training.step()
    assert [event["step"] for event in RunFolder(tmp_path).events() if event["event"] == "spikes"] == [90, 120]


# -- regulation, acting and schedules within the loop ---------------------------------------------------------------


def resets_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in RunFolder(path).events() if event["event"] == "reset"]


def test_nothing_is_touched_at_the_last_step_and_the_measurement_is_still_logged(tmp_path: Path) -> None:
    recipe = cartpole(**{"steps": 120, "regulation.threshold": 1.0})
    training = started(recipe, tmp_path)
    while training.step_count < 119:
        training.step()
    training.step()
    measured = [event["step"] for event in RunFolder(tmp_path).events() if event["event"] == "spikes"]
    assert measured == [90, 120]
    assert {event["step"] for event in resets_of(tmp_path)} == {90}
    assert training.resets == len(resets_of(tmp_path)) == 6  # two members, three layers
    # 30 steps of learning, every second one, have gone into every parameter since.
    assert all((step == 15).all() for step in training.learner.adam.step.values())


def test_scheduled_resets_come_by_updates_restart_the_schedules_and_end(tmp_path: Path) -> None:
    """Two updates a step from step 65 on; a period of 20 updates, the last at 40 of them."""
    changes = {
        "replay.every": 1,
        "replay.ratio": 2,
        "replay.n_step": "5 -> 1 linear 10 updates",
        "regulation.threshold": 6.0,
        "regulation.trigger": "periodic",
        "regulation.period": 20,
        "regulation.last": 40,
        "regulation.every": 1000,
        "regulation.intervention": "shrink_perturb",
        "regulation.encoder": 0.25,
    }
    training = started(cartpole(**changes), tmp_path)
    horizons: dict[int, list[int]] = {}
    update = training.learner.update

    def spy(batch: Any, draw: Any) -> Any:
        horizons.setdefault(training.step_count, []).append(int(draw.horizon))
        return update(batch, draw)

    training.learner.update = spy  # type: ignore[method-assign]
    while training.step_count < 100:
        training.step()
    events = [(event["step"], event["scope"], event["strength"]) for event in resets_of(tmp_path)]
    assert events == [(74, "encoder", 0.25), (74, "head", 1.0), (84, "encoder", 0.25), (84, "head", 1.0)]
    assert all(event["kind"] == "shrink_perturb" and event["trigger"] == "periodic" for event in resets_of(tmp_path))
    assert not any("member" in event or "layer" in event for event in resets_of(tmp_path))
    assert training.learner.since_restart == training.learner.updates - 40 == 32
    # round(5 - 0.4 t) in updates since a reset: two of them at each step, and 5 again in the step after one.
    falling = [[5, 5], [4, 4], [3, 3], [3, 2], [2, 1]] + [[1, 1]] * 5
    assert [horizons[step] for step in range(65, 75)] == falling
    assert [horizons[step] for step in range(75, 85)] == falling
    assert [horizons[step] for step in range(85, 95)] == falling
    assert horizons[100] == [1, 1]


def test_dormant_units_are_recycled_within_a_run(tmp_path: Path) -> None:
    recipe = presets.redo("CartPole-v1").override(
        {**SCALAR, "regulation.threshold": 6.0, "ensemble.members": 1, "network.hidden": (16, 16), "steps": 200}
    )
    training = started(recipe, tmp_path)
    learner = training.learner
    while training.step_count < 89:
        training.step()
    learner.online["fc2.bias"][0, 5] = -100.0  # never on again
    assert float(training.unit_scores()["fc2"][0, 5]) == 0.0
    target = {name: p.clone() for name, p in learner.target.items()}
    training.step()
    reset = next(event for event in resets_of(tmp_path) if event["layer"] == "fc2")
    assert reset == {
        "event": "reset", "step": 90, "kind": "recycle", "trigger": "dormant", "scope": "layer", "member": 0,
        "layer": "fc2", "strength": 1.0, "units": reset["units"],
    }  # fmt: skip
    assert reset["units"] >= 1
    assert float(learner.online["fc2.bias"][0, 5]) == 0.0
    assert not learner.online["head.weight"][0, :, 5].any()
    assert not learner.adam.step["fc2.weight"][0, 5].any()
    assert learner.adam.step["fc2.weight"].any()
    changed = (learner.target["fc2.bias"] - target["fc2.bias"]).abs().max()
    assert float(learner.target["fc2.bias"][0, 5]) != 0.0  # the target follows by its own steps
    assert changed < 1


def test_an_alarm_of_the_monitor_starts_what_answers_it(tmp_path: Path) -> None:
    """A weight that towers for three rows in a row: the layer is drawn anew, once, and must be found again."""
    recipe = cartpole(
        **{
            "regulation.threshold": 6.0,
            "regulation.trigger": "verdict",
            "regulation.intervention": "answer",
            "monitor.every": 10,
            "steps": 200,
        }
    )
    training = started(recipe, tmp_path)
    towering = training.learner.online["fc2.weight"]
    while training.step_count < 110:
        training.step()
        if training.step_count > 64 and not resets_of(tmp_path):
            towering[1, 2, 3] = 50.0
    rows = [row["step"] for row in RunFolder(tmp_path).diagnostics() if row["spike"] > 6]
    assert len(rows) == 3
    spikes = [event for event in resets_of(tmp_path) if "weight spikes" in event["findings"]]
    assert [(event["step"], event["member"], event["layer"], event["kind"]) for event in spikes] == [
        (rows[2], 1, "fc2", "answer")
    ]
    assert float(towering.abs().max()) < 2
    assert training.judged[0]["step"] > rows[2]


@pytest.mark.parametrize("lanes", [1, 3])
def test_one_member_acts_for_a_whole_game_and_is_drawn_when_one_begins(lanes: int, tmp_path: Path) -> None:
    recipe = cartpole(
        **{"ensemble.members": 50, "ensemble.act": "member", "protocol.lanes": lanes, "replay.warmup": 200}
    )
    training = started(recipe, tmp_path)
    members = [training.member.tolist()]
    while training.step_count < 190:
        training.step()
        members.append(training.member.tolist())
    games = [event for event in RunFolder(tmp_path).events() if event["event"] == "game"]
    ended = {(event["step"] // lanes, event["lane"]) for event in games}
    changed = {
        (step, lane)
        for step in range(1, len(members))
        for lane in range(lanes)
        if members[step][lane] != members[step - 1][lane]
    }
    assert changed <= ended
    assert len(changed) >= len(ended) - 2  # of 50 members the same one is rarely drawn again
    assert len(ended) > 3
    assert len({member for row in members for member in row}) > 3
    # The values are that member's own.
    q = training.learner.values(training.learner.online, training.ring.observation(training.ring.open_slots)).q
    own = torch.stack([q[member, lane] for lane, member in enumerate(members[-1])])
    torch.testing.assert_close(training.act_values(), own)
    # A continued run goes on with the member that its game drew.
    saved = training.checkpoint()
    twin = Training(recipe, begin(RunFolder(tmp_path / "other"), recipe))
    twin.restore(saved)
    assert twin.member.tolist() == members[-1]
    assert torch.equal(twin.act_values(), training.act_values())


def test_no_member_is_drawn_where_none_acts_alone(tmp_path: Path) -> None:
    training = started(cartpole(), tmp_path)
    assert training.rng.random() == np.random.default_rng(cartpole().seed).random()
    drawing = started(cartpole(**{"ensemble.act": "member"}), tmp_path / "member")
    assert drawing.rng.random() != np.random.default_rng(cartpole().seed).random()


@pytest.mark.parametrize("act", ["mean", "minimum", "member", "optimistic"])
def test_the_ensemble_acts_as_its_recipe_says(act: str, tmp_path: Path) -> None:
    training = started(cartpole(**{"ensemble.act": act, "ensemble.members": 4}), tmp_path)
    q = training.learner.values(training.learner.online, training.ring.observation(training.ring.open_slots)).q
    values = {
        "mean": q.mean(0),
        "minimum": q.amin(0),
        "member": q[training.member, torch.arange(1)],
        "optimistic": q.mean(0) + q.std(0, correction=0),
    }
    torch.testing.assert_close(training.act_values(), values[act])
    assert not any(torch.equal(values[act], other) for name, other in values.items() if name != act)
    # What only explores is left out of the evaluation.
    observation = training.ring.observation(training.ring.open_slots)
    torch.testing.assert_close(training.agent().q(observation), values["minimum" if act == "minimum" else "mean"])


@pytest.mark.parametrize("act_with", ["online", "target"])
def test_the_networks_that_the_recipe_names_act_and_are_evaluated(act_with: str, tmp_path: Path) -> None:
    training = started(cartpole(**{"explore.act_with": act_with}), tmp_path)
    training.learner.target["head.bias"] += 3.0
    observation = training.ring.observation(training.ring.open_slots)
    own = training.learner.values(getattr(training.learner, act_with), observation).q.mean(0)
    torch.testing.assert_close(training.act_values(), own)
    torch.testing.assert_close(training.agent().q(observation), own)


def test_noisy_networks_act_with_fresh_noise_every_step_and_are_evaluated_without(tmp_path: Path) -> None:
    training = started(cartpole(**{"network.noisy": 0.5, "ensemble.members": 2}), tmp_path)
    learner, seen = training.learner, training.ring.observation(training.ring.open_slots)
    acted, noises = [], []
    for _ in range(4):
        acted.append(training.act_values().clone())
        noises.append(training.noise.clone())
        own = learner.values(learner.online, seen, noise=noises[-1]).q.mean(0)
        torch.testing.assert_close(acted[-1], own)
    assert noises[0].shape == (2, learner.ensemble.noise_size)
    assert torch.stack(noises).unique().numel() == 4 * noises[0].numel()  # each step's and member's own
    assert all(not torch.allclose(acted[0], other) for other in acted[1:])
    means = learner.values(learner.online, seen).q.mean(0)
    for _ in range(2):
        torch.testing.assert_close(training.agent().q(seen), means)
    state = training.rng.bit_generator.state
    plain = started(cartpole(), tmp_path / "plain")
    before = plain.rng.bit_generator.state
    plain.act_values()
    assert plain.rng.bit_generator.state == before  # runs without it keep their random stream
    training.act_values()
    assert training.rng.bit_generator.state != state


def test_the_monitor_measures_noisy_networks_at_their_means_and_changes_nothing(tmp_path: Path) -> None:
    runs = []
    for every in (0, 20):
        training = started(cartpole(**{"network.noisy": 0.5, "monitor.every": every}), tmp_path / str(every))
        while training.step_count < 120:
            training.step()
        runs.append(training)
    for name, p in runs[0].learner.online.items():
        assert torch.equal(p, runs[1].learner.online[name]), name
    rows = runs[1].writer.folder.diagnostics()
    assert rows
    layers = [event["layers"] for event in runs[1].writer.folder.events() if event["event"] == "spikes"]
    assert all(names == ["fc1", "fc2", "head"] for names in layers)
