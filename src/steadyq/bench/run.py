"""All measurements of `steadyq bench`, one section after another, each printed as soon as it is there."""

import dataclasses
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from steadyq import envs, presets
from steadyq.bench.clock import milliseconds
from steadyq.bench.deployed import PACKAGES, acting_times, agents
from steadyq.bench.every import preset_times
from steadyq.bench.layers import layer_times
from steadyq.bench.others import compiled_updates, image_updates, sb3_updates
from steadyq.bench.sharing import sharing_times
from steadyq.bench.sheets import Row, sheets
from steadyq.bench.steps import step_times
from steadyq.bench.updates import (
    PRECISIONS,
    Case,
    PlainLoop,
    Rates,
    backends,
    floors,
    peak_memory,
    timed_form,
    update_of,
)
from steadyq.device.cpu import prepare_process
from steadyq.device.kernels.triton import compiles
from steadyq.device.program import compiler
from steadyq.errors import UserError
from steadyq.nets.forms import Form
from steadyq.presets import recipe_for
from steadyq.run.files import replace_text
from steadyq.run.progress import plural
from steadyq.run.provenance import provenance
from steadyq.suite.mps import Wanted

LAYER_SCALES = ((16, 4), (4, 2))
SCALES = ((4, 1), (4, 2), (4, 4), (16, 2), (16, 4))
SECTIONS = (
    "gpu",
    "presets",
    "layers",
    "growth",
    "sharing",
    "together",
    "steps",
    "onnx",
    "env",
    "cpu",
    "compiled",
    "images",
)
ON_GPU = SECTIONS[:5]
SHARED: tuple[tuple[int, Wanted], ...] = ((1, "off"), (4, "off"), (2, "auto"), (4, "auto"), (8, "auto"))
SHARED_SECONDS = 20.0
TOGETHER, SEEDS = (("CartPole-v1", "dqn"), ("MinAtar/Breakout", "dqn"), ("MinAtar/Breakout", "steady")), (1, 2, 5, 10)
TOGETHER_SECONDS = 8.0
STEPS = 100_000
GAMES = ("MinAtar/Breakout", "Atari/Breakout", "Procgen/CoinRun")
TIMED_ON = "Atari/Breakout"
TRAINED, TRAINED_STEPS = (("MinAtar/Breakout", "tiny"), ("Atari/Breakout", "small")), 2000
COMPILED_CASES = tuple(
    (env, preset) for env in ("CartPole-v1", "MinAtar/Breakout") for preset in ("dqn", "qr_dqn", "rainbow", "steady")
)
IMAGES = ((64, 64, 3), (84, 84, 4))
PLAIN, COMPILED = "plain loop, fp32", "grouped + compile, bf16"


@dataclass
class Bench:
    """What is measured, and what has been."""

    console: Console
    sections: tuple[str, ...] = ()
    scales: tuple[tuple[int, int], ...] = SCALES
    compile: bool = True
    results: Row = field(default_factory=dict)
    file: Path | None = None
    """Where the results go, written anew whenever there are more: a bench that is stopped keeps what it has."""

    def wanted(self) -> tuple[str, ...]:
        """The sections to measure: those named, or all that this machine can show."""
        possible = set(SECTIONS) if torch.cuda.is_available() else set(SECTIONS) - set(ON_GPU)
        if not compiles(torch.device("cuda")):
            possible.discard("layers")
        if not all(importlib.util.find_spec(name) for name in PACKAGES):
            possible.discard("onnx")
        if not compiler():
            possible.discard("compiled")
        return self.sections or tuple(name for name in SECTIONS if name in possible)

    def run(self) -> Row:
        """Measure everything that this machine can show."""
        gpu, wanted = torch.cuda.is_available(), self.wanted()
        if not gpu and any(name in ON_GPU for name in self.sections):
            rest = ", ".join(name for name in SECTIONS if name not in ON_GPU)
            raise UserError(f"the sections {', '.join(ON_GPU)} need a GPU, and PyTorch sees none here: use {rest}")
        if gpu and "layers" in self.sections and not compiles(torch.device("cuda")):
            raise UserError(
                "the section layers times Triton's kernels, and there is no Triton here: pip install triton"
            )
        self.results = provenance() | {"torch_threads": torch.get_num_threads()}
        for name in wanted:
            getattr(self, name)()
            self.keep()
            for sheet in sheets({name: self.results[name]}):
                self.console.print(sheet.rich())
        return self.results

    def keep(self, news: str = "") -> None:
        """Write what has been measured so far, and say what is new."""
        if news:
            self.console.print(news)
        if self.file is not None:
            replace_text(self.file, json.dumps(self.results, indent=2) + "\n")

    def gpu(self) -> None:
        """Every form at every scale."""
        device, rows = torch.device("cuda"), self.results.setdefault("gpu", [])
        rates = Rates.measure(device)
        self.results["rates"] = dataclasses.asdict(rates)
        for members, scale in self.scales:
            case = Case(members, scale)
            found: dict[str, Row] = {PLAIN: _plain(case, device)}
            if self.compile:
                found[COMPILED] = timed_form(case, "stacked", "bf16", device, compiled=True)
            for form in ("stacked", "kernels") if compiles(device) else ("stacked",):
                for precision in PRECISIONS:
                    detail = form == "kernels" and precision == "bf16"
                    found[f"{form}, {precision}"] = timed_form(case, form, precision, device, detail=detail)
            for name, row in found.items():
                row["faster_than_plain"] = found[PLAIN]["update_ms"] / row["update_ms"]
                if COMPILED in found:
                    row["faster_than_compiled"] = found[COMPILED]["update_ms"] / row["update_ms"]
                if "act_ms" in row:
                    row["floors_ms"] = floors(case, rates)
                    row["hours_ratio_1"] = STEPS * (row["update_ms"] + row["act_ms"]) / 3.6e6
                    row["hours_ratio_4"] = STEPS * (4 * row["update_ms"] + row["act_ms"]) / 3.6e6
                rows.append({"members": members, "scale": scale, "form": name, **row})
            self.keep(f"{members} members, s = {scale}: {rows[-1]['update_ms']:.2f} ms")

    def presets(self) -> None:
        """Every preset at its own network."""
        rows = self.results.setdefault("presets", [])
        for name in presets.PRESETS:
            rows.append(preset_times(presets.recipe_for(name, TIMED_ON)))
            self.keep(f"{name}: {rows[-1]['update_ms']:.2f} ms, eager {rows[-1]['eager_ms']:.1f} ms")

    def layers(self) -> None:
        """Each convolution at the scales of the presets."""
        device = torch.device("cuda")
        rates = Rates.measure(device)
        found = self.results["layers"] = {}
        for members, scale in LAYER_SCALES:
            found[f"{members} x {scale}"] = layer_times(Case(members, scale), rates, device)
            self.keep(f"convolutions at {members} x {scale}")

    def growth(self) -> None:
        """Time against members and replay ratio, in the default form."""
        device = torch.device("cuda")
        form: Form = "kernels" if compiles(device) else "stacked"
        found: dict[str, dict[int, float]] = {"members": {}, "ratio": {}}
        self.results["growth"] = found
        for members in (1, 2, 4, 8, 16):
            row = timed_form(Case(members, 2), form, "bf16", device)
            found["members"][members] = row["update_ms"]
            self.keep(f"{plural(members, 'member')}: {row['update_ms']:.2f} ms")
        case = Case(4, 2)
        update = update_of(case.learner(form, torch.bfloat16, device), case.ring(device))
        for ratio in (1, 2, 4, 8):
            found["ratio"][ratio] = milliseconds(partial(_repeat, update, ratio), device)
            self.keep(f"replay ratio {ratio}: {found['ratio'][ratio]:.2f} ms")

    def sharing(self) -> None:
        """Runs of the flagship side by side on one GPU, taking turns and through MPS."""
        rows = self.results.setdefault("sharing", [])
        for runs, mps in SHARED:
            rows.append(sharing_times("Atari/Breakout", "swift", runs, mps, SHARED_SECONDS, {}))
            self.keep(f"{plural(runs, 'run')}, MPS {mps}: {rows[-1]['steps_per_second']:,.0f} steps/s together")

    def together(self) -> None:
        """Seeds trained as one program."""
        rows = self.results.setdefault("together", [])
        for env, preset in TOGETHER:
            for seeds in SEEDS:
                rows.append(sharing_times(env, preset, 1, "off", TOGETHER_SECONDS, {}, seeds))
                speed = f"{rows[-1]['steps_per_second']:,.0f} steps/s together"
                self.keep(f"{preset} on {env}, {plural(seeds, 'seed')} in one program: {speed}")

    def steps(self) -> None:
        """Whole steps of training: a small network anywhere, an Atari agent where there is a GPU."""
        rows, threads = self.results.setdefault("steps", []), torch.get_num_threads()
        for name, scale in TRAINED[: 1 + torch.cuda.is_available()]:
            try:
                envs.spec(name, envs.protocol_for(name))
            except UserError as error:
                self.console.print(f"{name}: {error}")
                continue
            try:
                rows.append(step_times(presets.steady(name, scale=scale), TRAINED_STEPS))
            finally:
                torch.set_num_threads(threads)
            self.keep(f"{name}, {scale}: {rows[-1]['step_ms']:.2f} ms a step")

    def onnx(self) -> None:
        """Acting as an ONNX file beside acting in PyTorch, one agent of each kind."""
        rows, threads = self.results.setdefault("onnx", []), torch.get_num_threads()
        prepare_process(1)
        try:
            for kind, recipe in agents().items():
                rows.append(acting_times(kind, recipe))
                one = rows[-1]["times"][0]
                self.keep(f"{kind}: {one['pytorch_ms']:.3f} ms an action, {one['onnx_ms']:.3f} as ONNX")
        finally:
            torch.set_num_threads(threads)

    def env(self) -> None:
        """Steps of real environments."""
        found = self.results["env"] = {}
        for name in GAMES:
            for lanes in (1, 16):
                try:
                    found[f"{name} x {lanes}"] = _steps_per_second(name, lanes)
                except UserError as error:
                    self.console.print(f"{name}: {error}")
                    break
                self.keep(f"{name} x {lanes}: {found[f'{name} x {lanes}']:,.0f} steps/s")

    def cpu(self) -> None:
        """The MinAtar network on one CPU thread, as training runs it, beside other libraries."""
        device, threads, rows = torch.device("cpu"), torch.get_num_threads(), list[Row]()
        found = self.results["cpu"] = {"updates": rows, "others_ms": {}, "threads": 1}
        prepare_process(1)
        try:
            for members in (1, 4, 8, 16):
                case = Case(members, capacity=1000)
                plain = _plain(case, device)["update_ms"]
                loop = timed_form(case, "loop", "fp32", device)["update_ms"]
                stacked = timed_form(case, "stacked", "fp32", device)["update_ms"]
                rows.append({"members": members, "plain_ms": plain, "loop_ms": loop, "stacked_ms": stacked})
                self.keep(f"{plural(members, 'member')}: {stacked:.2f} ms")
            found["others_ms"] = sb3_updates(Case(1, capacity=1000))
        finally:
            torch.set_num_threads(threads)

    def compiled(self) -> None:
        """Updates compiled on one CPU thread, beside the same uncompiled and other libraries'."""
        if not compiler():
            raise UserError("the section compiled needs a C++ compiler and Python's headers: install them")
        threads, rows = torch.get_num_threads(), self.results.setdefault("compiled", list[Row]())
        prepare_process(1)
        try:
            for env, preset in COMPILED_CASES:
                rows.append(compiled_updates(recipe_for(preset, env)))
                self.keep(f"{preset} on {env}: {rows[-1]['always_ms']:.2f} ms, {rows[-1]['never_ms']:.2f} uncompiled")
        finally:
            torch.set_num_threads(threads)

    def images(self) -> None:
        """Images beside Stable-Baselines3 on one CPU thread, as training takes for one network of this size."""
        threads, rows = torch.get_num_threads(), self.results.setdefault("images", list[Row]())
        prepare_process(1)
        try:
            for shape in IMAGES:
                rows.append({"shape": list(shape), **image_updates(shape)})
                self.keep(f"{'x'.join(map(str, shape))}: {rows[-1]['ratio']:.2f} x its time")
        except ImportError:
            missing = "the section images needs Stable-Baselines3: pip install 'steadyq[sb3]'"
            if "images" in self.sections:
                raise UserError(missing) from None
            self.console.print(missing)
        finally:
            torch.set_num_threads(threads)


def _repeat(function: Callable[[], None], times: int) -> None:
    for _ in range(times):
        function()


def _plain(case: Case, device: torch.device) -> Row:
    backends(False, search=True)
    with peak_memory(device) as memory:
        update_ms = milliseconds(PlainLoop(case, device), device, warm=3)
    return {"update_ms": update_ms} | memory


def _steps_per_second(name: str, lanes: int, seconds: float = 2.0) -> float:
    env = envs.make(envs.canonical(name), envs.protocol_for(name), seed=0, lanes=lanes)
    try:
        env.reset()
        rng, actions = np.random.default_rng(0), env.spec.num_actions
        for _ in range(20):
            env.step(rng.integers(actions, size=lanes))
        steps, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            env.step(rng.integers(actions, size=lanes))
            steps += lanes
        return steps / spent
    finally:
        env.close()
