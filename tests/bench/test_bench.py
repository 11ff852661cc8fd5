"""What is timed computes what training computes, and what was measured is what documents say."""

import csv
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import compiles
from rich.console import Console

from steadyq import envs, presets
from steadyq.bench import every
from steadyq.bench import run as bench_run
from steadyq.bench.clock import milliseconds
from steadyq.bench.deployed import acting_times, agents
from steadyq.bench.every import EAGER, Eager
from steadyq.bench.layers import floor_ms
from steadyq.bench.others import compiled_updates, image_updates, sb3_updates
from steadyq.bench.run import Bench
from steadyq.bench.sheets import sheets
from steadyq.bench.updates import (
    OPTIMIZER_BYTES,
    Case,
    CompiledGrouped,
    PlainLoop,
    Rates,
    floors,
    noisy,
    timed_form,
    update_of,
)
from steadyq.build import draw_layout, learner_for, ring_for
from steadyq.errors import UserError
from steadyq.nets.layers import Conv
from steadyq.run.update import Learning
from steadyq.value.learner import Learner

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("form", ["stacked", "loop"])
def test_the_plain_loop_learns_what_our_update_learns(form: Any) -> None:
    """The ratio of two times means something only if both do the same work."""
    case = Case(3, capacity=200, atoms=5)
    torch.manual_seed(0)
    plain = PlainLoop(case, CPU)
    torch.manual_seed(0)
    learner, ring = case.learner(form, torch.float32, CPU), case.ring(CPU)
    ours = update_of(learner, ring)
    torch.testing.assert_close(plain.ring.frame, ring.frame)
    for _ in range(3):
        plain()
        ours()
    for name, p in learner.online.items():
        theirs = torch.cat([member[name].detach() for member in plain.online])
        torch.testing.assert_close(p, theirs, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            learner.target[name], torch.cat([m[name] for m in plain.target]), rtol=1e-4, atol=1e-6
        )
    torch.testing.assert_close(ring.priorities.mass, plain.ring.priorities.mass, rtol=1e-4, atol=1e-6)


def test_the_compiled_baseline_is_the_same_network() -> None:
    case = Case(2, scale=1, capacity=50, atoms=3)
    learner = case.learner("stacked", torch.float32, CPU, CompiledGrouped)
    assert isinstance(learner, CompiledGrouped)
    x = torch.randint(0, 256, (2, *case.spec.observation_shape), dtype=torch.uint8)
    z = learner.ensemble.forward(learner.online, x)
    torch.testing.assert_close(learner.forward(learner.online, x), z, rtol=1e-4, atol=1e-5)


def test_a_form_is_timed_whole_in_parts_and_acting() -> None:
    row = timed_form(Case(2, capacity=200, atoms=5), "stacked", "fp32", CPU, detail=True)
    assert row["update_ms"] > 0
    assert row["act_ms"] > 0
    assert row["diagnostics_ms"] > 0
    assert len(row["parts_ms"]) == 5
    assert all(ms > 0 for ms in row["parts_ms"].values())


def test_floors_are_the_arithmetic_of_the_papers_update() -> None:
    """16 members at s = 4, batch 32: 4.09 TFLOP altogether and 306 M parameters (the paper's layer table)."""
    found = floors(Case(16, 4), Rates(bf16_flops=1e12, bytes_per_second=38e6))
    assert found["targets"] + found["loss and gradient"] == pytest.approx(4.09e3, rel=0.02)
    assert found["clip, Adam, Polyak, copies"] == pytest.approx(306e3, rel=0.05)
    both_ways, gradient, copies = 2 * 4 * 4, 2, 2 * 2  # value, two moments, target in float32; the rest in bf16
    assert both_ways + gradient + copies == OPTIMIZER_BYTES


def test_a_convolution_is_bound_by_arithmetic_or_by_bytes() -> None:
    conv = Conv(64, 128, stride=2, image=(42, 42))
    flops = 2 * 128 * 64 * 9 * 21 * 21 * 16 * 32
    numbers = 32 * 16 * (64 * 42 * 42 + 128 * 21 * 21) + 16 * 128 * 64 * 9
    assert floor_ms(conv, 16, 16, Rates(1e12, 1e30)) == pytest.approx(flops / 1e9)
    assert floor_ms(conv, 16, 16, Rates(1e30, 1e9)) == pytest.approx(2 * numbers / 1e6)
    shortcut = replace(conv, size=1, padding=0)
    seen = 32 * (64 + 16 * 128) * 21 * 21 + 16 * 128 * 64  # a quarter of the pixels, shared by all members
    assert floor_ms(shortcut, 16, 1, Rates(1e30, 1e9)) == pytest.approx(2 * seen / 1e6)


def test_a_table_of_convolutions_counts_each_as_often_as_it_runs() -> None:
    passes = {"forward": 0.1, "input gradient": 0.2, "weight gradient": 0.3}
    stem = {"layers": ["stem.0"], "shape": "3x3 4->16 @84", "floor_ms": 0.01, "ms": {"forward": 0.5}}
    block = {"layers": ["a", "b"], "shape": "3x3 16->16 @84", "floor_ms": 0.05, "ms": passes}
    shortcut = {**stem, "layers": ["c"], "shape": "1x1 16->32 @84/2"}
    (sheet,) = sheets({"layers": {"4 x 2": [stem, block, shortcut]}})
    assert sheet.rows == [
        ("3x3 4->16 @84", "1", "0.010", "0.500", "", ""),
        ("3x3 16->16 @84", "2", "0.050", "0.100", "0.200", "0.300"),
        ("1x1 16->32 @84/2", "1", "0.010", "0.500", "", ""),
        ("all", "4", "0.120", "1.200", "0.400", "0.600"),
    ]


def test_a_bench_stopped_midway_prints_what_it_has() -> None:
    """As `keep` leaves it: growth with ratio not begun, memory held known of one row of two."""
    growing = sheets({"growth": {"members": {"1": 1.0, "2": 1.5}, "ratio": {}}})
    assert [sheet.title for sheet in growing] == ["Growth with members (s = 2)"]
    row = {"members": 4, "scale": 2, "form": "plain", "update_ms": 2.0, "faster_than_plain": 1.0, "peak_gb": 1.0}
    updates, _ = sheets({"gpu": [row, {**row, "held_gb": 3.0}]})
    at = updates.columns.index("GB held")
    assert [cells[at] for cells in updates.rows] == ["", "3.0"]


def test_a_row_of_diagnostics_stands_below_the_parts() -> None:
    row = {
        "members": 4,
        "scale": 2,
        "form": "kernels, bf16",
        "update_ms": 2.0,
        "faster_than_plain": 1.0,
        "peak_gb": 1.0,
    }
    row |= {"parts_ms": {"sample": 0.1}, "diagnostics_ms": 71.6, "diagnostics_held_gb": 1.25}
    _, parts = sheets({"gpu": [row]})
    assert parts.rows == [("sample", "0.10"), ("whole update", "2.00"), ("a row of diagnostics", "72 (+1.2 GB)")]
    _, parts = sheets({"gpu": [{name: row[name] for name in row if not name.startswith("diagnostics")}]})
    assert [cells[0] for cells in parts.rows] == ["sample", "whole update"]


def test_a_clock_is_read_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("steadyq.bench.clock.wait_for", lambda device: calls.append("waited"))
    assert milliseconds(lambda: calls.append("worked"), CPU, budget=0.01, warm=7) > 0
    assert calls.index("waited") == 7


@pytest.mark.parametrize("preset", ["dqn", "steady", "maxmin_dqn", "bbf", "averaged_dqn"])
def test_the_eager_update_of_a_preset_learns_what_training_learns(preset: str) -> None:
    """Optimizer, clip and target of each member alone, with and without decay, members that sit out, copied targets."""
    small = {"network.channels": 4, "network.hidden": (16,), "replay.capacity": 1000, "compute.device": "cpu"}
    recipe = presets.recipe_for(preset, "MinAtar/Breakout").override(small)
    spec = envs.spec(recipe.env, recipe.protocol)
    learned = []
    for kind, changes in ((Learner, {}), (Eager, EAGER)):
        torch.manual_seed(0)
        own = recipe.override(changes)
        ring = noisy(ring_for(own, spec, CPU), spec, own.replay.capacity)
        learner = learner_for(own, spec, torch.Generator().manual_seed(0), CPU, kind=kind)
        update = every.update_of(own, spec, Learning(learner, ring, draw_layout(own, spec)), captured=kind is Learner)
        for _ in range(3):
            update()
        learned.append(learner)
    ours, eager = learned
    for name, p in ours.online.items():
        torch.testing.assert_close(p, eager.online[name], rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(ours.target[name], eager.target[name], rtol=1e-4, atol=2e-6)


def test_every_preset_is_timed_at_its_own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"network.channels": 4, "network.hidden": (16,), "replay.capacity": 1000, "compute.device": "cpu"}
    small |= {"compute.compile": "never"}
    made = presets.recipe_for
    monkeypatch.setattr(presets, "recipe_for", lambda name, env: made(name, env).override(small))
    monkeypatch.setattr(bench_run, "TIMED_ON", "MinAtar/Breakout")
    monkeypatch.setattr(bench_run, "preset_times", partial(every.preset_times, budget=0.001))
    found = Bench(Console(width=100))
    found.presets()
    rows = found.results["presets"]
    assert [row["preset"] for row in rows] == list(presets.PRESETS)
    assert min(min(row["update_ms"], row["eager_ms"]) for row in rows) > 0
    (sheet,) = sheets({"presets": [rows[0] | {"update_ms": 2.0, "eager_ms": 9.0, "updates": 100_000}]})
    assert "| steady | minatar | 4 | 2.00 | 9.0 | 4.5 | 100,000 | 3.3 |" in sheet.markdown()


def test_other_libraries_are_timed_on_the_same_network() -> None:
    pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed: pip install 'steadyq[sb3]'")
    found = sb3_updates(Case(1, capacity=200, atoms=5))
    assert set(found) == {"Stable-Baselines3 DQN", "sb3-contrib QR-DQN"}
    assert min(found.values()) > 0


def test_updates_on_images_are_timed_in_turn_on_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed: pip install 'steadyq[sb3]'")
    monkeypatch.setattr(bench_run, "IMAGES", ((36, 40, 3),))
    monkeypatch.setattr(bench_run, "image_updates", partial(image_updates, rounds=3, budget=0.0))
    threads = torch.get_num_threads()
    rows = Bench(Console(width=120), ("images",)).run()["images"]
    assert torch.get_num_threads() == threads
    (row,) = rows
    assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]
    row = {"shape": [64, 64, 3], "ours_ms": 20.0, "theirs_ms": 25.0}
    (sheet,) = sheets({"images": [row | {"ratio": 0.8, "lowest": 0.75, "highest": 0.9}]})
    assert "| 64x64x3 | 20.0 | 25.0 | 0.80 | 0.75 | 0.90 |" in sheet.markdown()


@compiles
def test_compiled_updates_are_timed_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed: pip install 'steadyq[sb3]'")
    monkeypatch.setattr(bench_run, "COMPILED_CASES", (("CartPole-v1", "dqn"),))
    monkeypatch.setattr(bench_run, "compiled_updates", partial(compiled_updates, rounds=3, budget=0.0))
    (row,) = Bench(Console(width=120), ("compiled",)).run()["compiled"]
    assert min(row[f"{name}_ms"] for name in ("never", "always", "theirs")) > 0
    assert row["always_ratio"] == 1
    assert row["compile_seconds"] > 1
    row |= {"never_ms": 2.0, "always_ms": 0.5, "never_ratio": 4.0, "theirs_ms": 1.5, "theirs_ratio": 3.0}
    (sheet,) = sheets({"compiled": [row | {"compile_seconds": 12.4}]})
    assert "| dqn | 1 | 2.00 | 0.50 | 4.0 | Stable-Baselines3 DQN 1.50 | 3.0 | 12 |" in sheet.markdown()


def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"section compiled needs a C\+\+ compiler"):
        Bench(Console(width=120), ("compiled",)).run()
    assert "compiled" not in Bench(Console(width=120)).wanted()


def test_images_beside_others_need_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(UserError, match=r"section images needs Stable-Baselines3: pip install 'steadyq\[sb3\]'"):
        Bench(Console(width=120), ("images",)).run()


def test_sections_end_in_tables_and_a_file_that_prints_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_run, "GAMES", ("MinAtar/Breakout",))
    monkeypatch.setattr(bench_run, "_steps_per_second", lambda name, lanes: 1234.5 * lanes)
    found = Bench(Console(width=100), ("env",)).run()
    assert found["env"] == {"MinAtar/Breakout x 1": 1234.5, "MinAtar/Breakout x 16": 19752.0}
    assert "19,752" in capsys.readouterr().out
    again = json.loads(json.dumps(found))
    (sheet,) = sheets(again)
    assert "| MinAtar/Breakout x 16 | 19,752 |" in sheet.markdown()


def test_whole_steps_of_training_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "TRAINED_STEPS", 20)
    small = {"replay.warmup": 40, "replay.capacity": 500, "monitor.every": 10}
    steady = bench_run.presets.steady
    monkeypatch.setattr(bench_run.presets, "steady", lambda *a, **b: steady(*a, **b).override(small))
    monkeypatch.setattr(bench_run, "TRAINED", (("CartPole-v1", "tiny"), ("Atari/Nowhere", "small")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    (row,) = Bench(Console(width=120), ("steps",)).run()["steps"]
    assert torch.get_num_threads() == threads
    assert min(row["step_ms"], row["learn_ms"]) > 0
    assert row["act_ms"] > 0
    assert row["outside"] == pytest.approx(max(0, 1 - (row["learn_ms"] + row["act_ms"]) / row["step_ms"]))
    (sheet,) = sheets({"steps": [row | {"step_ms": 2.5, "learn_ms": 2.0, "act_ms": 0.25, "outside": 0.1}]})
    assert "| Gymnasium/CartPole-v1 | tiny | cpu | 2.50 | 2.00 | 0.25 | 10% |" in sheet.markdown()


def test_a_bench_that_is_stopped_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(self: Bench) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "GAMES", ("MinAtar/Breakout",))
    monkeypatch.setattr(bench_run, "_steps_per_second", lambda name, lanes: 1234.5 * lanes)
    monkeypatch.setattr(Bench, "cpu", stop)
    file = tmp_path / "times.json"
    with pytest.raises(KeyboardInterrupt):
        Bench(Console(width=100), ("env", "cpu"), file=file).run()
    assert json.loads(file.read_text())["env"]["MinAtar/Breakout x 1"] == 1234.5
    assert [path.name for path in tmp_path.iterdir()] == ["times.json"]


def test_costs_of_sweeps_are_the_measured_ones() -> None:
    """`suite/measured/updates.csv` holds the default form's rows of the committed measurement, nothing else."""
    measured = json.loads((ROOT / "results/bench/h200-updates.json").read_text())
    ours = {
        (row["members"], row["scale"]): (round(row["update_ms"], 2), round(row["act_ms"], 2))
        for row in measured["gpu"]
        if row["form"] == "kernels, bf16"
    }
    rows = list(csv.DictReader((ROOT / "src/steadyq/suite/measured/updates.csv").open()))
    assert {(int(r["members"]), int(r["scale"])): (float(r["update_ms"]), float(r["act_ms"])) for r in rows} == ours
    assert {row["gpu"] for row in rows} == {measured["hardware"]["gpu"]}


def test_acting_is_timed_in_pytorch_and_as_onnx() -> None:
    row = acting_times("MLP", agents()["MLP"], budget=0.02)
    assert [time["batch"] for time in row["times"]] == [1, 32]
    assert all(time["pytorch_ms"] > 0 and time["onnx_ms"] > 0 for time in row["times"])
    (sheet,) = sheets({"onnx": [{**row, "times": [{"batch": 1, "pytorch_ms": 0.3, "onnx_ms": 0.1}]}]})
    assert sheet.rows == [("MLP, Gymnasium/CartPole-v1", "4", "90,280", "0.4", "1", "0.300", "0.100", "3.0")]


def test_every_kind_of_network_is_timed_as_onnx() -> None:
    assert [recipe.network.kind for recipe in agents().values()] == ["mlp", "minatar", "cnn", "resnet"]
