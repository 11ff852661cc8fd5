"""Commands about the presets and this machine."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Column, Table
from rich.text import Text

from steadyq.cli.options import parse
from steadyq.cli.terminal import OUT, check_file
from steadyq.errors import UserError, printable
from steadyq.fields import flatten, read_toml
from steadyq.run.files import read_text


@dataclass(frozen=True)
class PresetsOptions:
    """List the presets, or print one as a table."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """Preset to print."""
    scale: Literal["", "tiny", "small", "paper"] = ""
    """Scale to print it at."""
    env: str = "Atari/Breakout"
    """Environment to print it for."""
    toml: bool = False
    """Print the whole recipe as TOML."""
    axes: bool = False
    """Print where on the axes each preset, or the one named, lies."""
    tuned: bool = False
    """List the recipes that were tuned for an environment, which `steadyq train ENV --tuned` trains."""


def presets(words: list[str]) -> int:
    """List the presets, or print one: `steadyq presets steady --scale paper`."""
    options = parse(PresetsOptions, words)

    from steadyq.paper.settings import hyperparameters
    from steadyq.presets import AXES, PRESETS, SCALES, axes, recipe_for

    if options.tuned:
        if options.name or options.toml or options.axes:
            raise UserError("--tuned lists all tuned recipes, and goes with nothing else")
        return _tuned()
    if options.axes:
        if options.toml:
            raise UserError("--axes and --toml: choose one of the two")
        table = Table(Column("preset", no_wrap=True), *AXES, box=None, header_style="bold")
        for name in [options.name] if options.name else PRESETS:
            table.add_row(name, *axes(recipe_for(name, options.env, options.scale)))
        OUT.print(table)
        return 0
    if not options.name:
        if options.toml:
            raise UserError(f"--toml prints one preset: name it, {', '.join(PRESETS)}")
        table = Table(Column("preset", no_wrap=True), "what it is", box=None, header_style="bold")
        for name, function in PRESETS.items():
            table.add_row(name, (function.__doc__ or "").splitlines()[0])
        OUT.print(table)
        OUT.print(f"\nscales: {', '.join(SCALES)}   `steadyq presets NAME --scale SCALE [--env ENV]` prints one")
        return 0
    recipe = recipe_for(options.name, options.env, options.scale)
    if options.toml:
        print(recipe.to_toml(), end="")
    else:
        OUT.print(hyperparameters(recipe))
    return 0


def _tuned() -> int:
    from steadyq.presets import TUNED, tuned_environments

    table = Table(
        Column("environment", no_wrap=True), "preset", "steps", "what it changes", box=None, header_style="bold"
    )
    for env in tuned_environments():
        found = read_toml((TUNED / f"{env.replace('/', '-')}.toml").read_text(encoding="utf-8"), env)
        changes = ", ".join(f"{name} {value}" for name, value in flatten(found["options"]).items())
        table.add_row(env, found["preset"], f"{found['steps']:,}", Text(changes or "nothing: it does best as it is"))
    OUT.print(table)
    return 0


def doctor(words: list[str]) -> int:
    """Say what is installed, which environments work, and whether there is a GPU."""
    if words in (["-h"], ["--help"]):
        OUT.print("steadyq doctor: print versions, hardware, and which environments work here. It takes no options.")
        return 0
    if words:
        raise UserError(f"doctor takes no options, got {words[0]!r}")

    from steadyq import envs
    from steadyq.run.provenance import provenance

    facts = provenance()
    table = Table(box=None, show_header=False)
    for name, version in facts["versions"].items():
        table.add_row(name, version)
    table.add_row("cpu", f"{facts['hardware']['cpu']}, {facts['hardware']['cores']} cores")
    table.add_row("gpu", facts["hardware"]["gpu"] or "none visible: training runs on the CPU")
    OUT.print(table)
    for backend, works, message in envs.available():
        word = ("works  ", "green") if works else ("missing", "red")
        OUT.print(Text.assemble(word, f"  {backend:<10} {message}"))
    return 0


@dataclass
class BenchOptions:
    """Time updates in every form and scale, of every preset, acting (as ONNX too), steps, environments, others' code.

    Figures are medians and ratios of one run; a busy machine blurs them. A GPU run with compilation takes minutes.
    """

    json: Path | None = None
    """Also write all figures, with versions and hardware, to this file."""
    section: tuple[
        Literal[
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
        ],
        ...,
    ] = ()
    """Only these sections; by default all that this machine can show."""
    scales: tuple[str, ...] = ()
    """Only these scales of section gpu, members x s: 4x2 16x4."""
    compile: bool = True
    """Whether to time grouped convolutions under torch.compile too."""
    show: Path | None = None
    """Print the figures in this file, written by --json, instead of measuring."""
    markdown: bool = False
    """With --show: as Markdown tables."""


def bench(words: list[str]) -> int:
    """Time updates, acting and environments on this machine: `steadyq bench --json times.json`."""
    options = parse(BenchOptions, words)

    from steadyq.bench.run import Bench

    if options.show is not None:
        if options.json or options.section or options.scales or not options.compile:
            raise UserError("--show prints a file and measures nothing: only --markdown goes with it")
        return _show_bench(options.show, options.markdown)
    if options.markdown:
        raise UserError("--markdown goes with --show FILE")
    for name, given in (("--section", options.section), ("--scales", options.scales)):
        if name in words and not given:
            raise UserError(f"{name} needs a value: `steadyq bench --help` says which")
    scales = tuple(_scale(text) for text in options.scales)
    check_file("--json", options.json)
    run = Bench(OUT, tuple(dict.fromkeys(options.section)), compile=options.compile, file=options.json)
    if scales and "gpu" not in run.wanted():
        raise UserError("--scales are those of section gpu, which is not measured here")
    run.scales = scales or run.scales
    run.run()
    return 0


def _show_bench(path: Path, markdown: bool) -> int:
    from steadyq.bench.sheets import sheets

    try:
        found = list(sheets(json.loads(read_text(path.resolve()))))
    except OSError as error:
        raise UserError(f"--show {path}: {(error.strerror or 'cannot be read').lower()}") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError):
        found = []
    if not any(sheet.rows for sheet in found):
        raise UserError(f"--show {path}: not a file of `steadyq bench --json`")
    for sheet in found:
        if markdown:
            print(printable(f"{sheet.title}:\n\n{sheet.markdown()}\n"))
        else:
            OUT.print(sheet.rich())
    return 0


def _scale(text: str) -> tuple[int, int]:
    members, _, scale = text.partition("x")
    if not (members.isdigit() and scale.isdigit() and int(members) and int(scale)):
        raise UserError(f"scale {text!r}: write members x s, for example 4x2")
    return int(members), int(scale)
