"""Measurements as tables, for the terminal and for documents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

Row = dict[str, Any]


@dataclass(frozen=True)
class Sheet:
    """A titled table of text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def rich(self) -> Table:
        """For a terminal: in a narrow one headers give way, figures do not."""
        table = Table(title=self.title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
        for i, name in enumerate(self.columns):
            longest = max((len(row[i]) for row in self.rows), default=0)
            table.add_column(name, justify="left" if i == 0 else "right", min_width=longest)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def markdown(self) -> str:
        """For a document."""
        lines = (self.columns, ("---", *["---:"] * (len(self.columns) - 1)), *self.rows)
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sheets(results: Row) -> Iterator[Sheet]:
    """All tables of what was measured."""
    if "gpu" in results:
        yield updates(results["gpu"])
        yield parts(results["gpu"])
    if "presets" in results:
        yield presets(results["presets"])
    if "layers" in results:
        yield from (layers(scale, rows) for scale, rows in results["layers"].items())
    if "growth" in results:
        yield from (growth(name, values) for name, values in results["growth"].items() if values)
    if "sharing" in results:
        yield sharing(results["sharing"])
    if "together" in results:
        yield together(results["together"])
    if "steps" in results:
        yield steps(results["steps"])
    if "onnx" in results:
        yield onnx(results["onnx"])
    if "env" in results:
        rows = [(name, f"{rate:,.0f}") for name, rate in results["env"].items()]
        yield Sheet("Environment steps under random actions", ("environment x lanes", "steps/s"), rows)
    if "cpu" in results:
        yield from cpu(results["cpu"])
    if results.get("compiled"):
        yield compiled(results["compiled"])
    if "images" in results:
        yield images(results["images"])


def updates(rows: list[Row]) -> Sheet:
    """Every form at every scale."""
    compiled, held = any("faster_than_compiled" in row for row in rows), any("held_gb" in row for row in rows)
    columns = [
        "members x s",
        "form",
        "ms",
        "x plain",
        *["x compiled"] * compiled,
        "GB",
        *["GB held"] * held,
        "act ms",
        "hours, ratio 1",
        "hours, ratio 4",
    ]

    def cells(row: Row) -> tuple[str, ...]:
        against = [f"{row['faster_than_compiled']:.1f}" if "faster_than_compiled" in row else ""] * compiled
        acting = [f"{row[name]:.2f}" if name in row else "" for name in ("act_ms", "hours_ratio_1", "hours_ratio_4")]
        return (
            f"{row['members']} x {row['scale']}", row["form"], f"{row['update_ms']:.2f}",
            f"{row['faster_than_plain']:.1f}", *against, f"{row['peak_gb']:.1f}",
            *[f"{row['held_gb']:.1f}" if "held_gb" in row else ""] * held, *acting,
        )  # fmt: skip

    return Sheet("One update, and 100,000 steps of learning and acting", tuple(columns), [cells(row) for row in rows])


def presets(rows: list[Row]) -> Sheet:
    """Every preset at its own network."""
    columns = ("preset", "network", "members", "ms", "eager ms", "times", "updates", "minutes of learning")
    body = []
    for row in rows:
        ours, eager = row["update_ms"], row["eager_ms"]
        how = (row["preset"], row["network"], str(row["members"]), f"{ours:.2f}", f"{eager:.1f}", f"{eager / ours:.1f}")
        body.append((*how, f"{row['updates']:,}", f"{row['updates'] * ours / 6e4:.1f}"))
    return Sheet("One update of every preset, and all updates of its 100,000 steps", columns, body)


def parts(rows: list[Row]) -> Sheet:
    """The parts of an update in the form that has them, beside what they cannot fall below where that is known."""
    detailed = [row for row in rows if "parts_ms" in row]

    def cell(row: Row, name: str) -> str:
        floor = row.get("floors_ms", {}).get(name)
        return f"{row['parts_ms'][name]:.2f}" + (f" (floor {floor:.2f})" if floor is not None else "")

    def diagnostics(row: Row) -> str:
        more = f" (+{row['diagnostics_held_gb']:.1f} GB)" if "diagnostics_held_gb" in row else ""
        return f"{row['diagnostics_ms']:.0f}{more}" if "diagnostics_ms" in row else ""

    names = list(detailed[0]["parts_ms"]) if detailed else []
    body = [(name, *(cell(row, name) for row in detailed)) for name in names]
    body.append(("whole update", *(f"{row['update_ms']:.2f}" for row in detailed)))
    if any("diagnostics_ms" in row for row in detailed):
        body.append(("a row of diagnostics", *map(diagnostics, detailed)))
    columns = ("ms", *(f"{row['members']} x {row['scale']}" for row in detailed))
    return Sheet("Parts of an update, each captured alone", columns, body if detailed else [])


def layers(scale: str, rows: list[Row]) -> Sheet:
    """Each kind of convolution; the last line counts each as often as an update runs it."""
    passes = max((list(row["ms"]) for row in rows), key=len)
    body = []
    for row in rows:
        times = (f"{row['ms'][name]:.3f}" if name in row["ms"] else "" for name in passes)
        body.append((row["shape"], str(len(row["layers"])), f"{row['floor_ms']:.3f}", *times))
    total = [sum(len(row["layers"]) * row["ms"].get(name, 0) for row in rows) for name in passes]
    floor = sum(len(row["layers"]) * row["floor_ms"] for row in rows)
    all_of = ("all", str(sum(len(row["layers"]) for row in rows)), f"{floor:.3f}", *(f"{ms:.3f}" for ms in total))
    return Sheet(f"Convolutions at {scale}, ms a launch", ("layer", "times", "floor", *passes), [*body, all_of])


def growth(name: str, values: dict[Any, float]) -> Sheet:
    """Time against one size."""
    first, before = next(iter(values.values())), None
    rows = []
    for value, ms in values.items():
        step = "" if before is None else f"{(ms - before[1]) / (int(value) - before[0]):.2f}"
        rows.append((str(value), f"{ms:.2f}", f"{ms / first:.2f}", step))
        before = (int(value), ms)
    columns = (name, "ms", "times the first", f"ms for each more {name.removesuffix('s')}")
    return Sheet(f"Growth with {name} (s = 2)", columns, rows)


def sharing(rows: list[Row]) -> Sheet:
    """Runs side by side."""
    columns = ("runs", "preset", "environment", "MPS", "steps/s together", "times one run", "GPU memory")
    body = []
    for row in rows:
        times = f"{row['steps_per_second'] / rows[0]['steps_per_second']:.2f}"
        memory = f"{row['memory']:.0%}" if row["memory"] is not None else ""
        how = (row["preset"], row["env"], "yes" if row["mps"] else "no")
        body.append((str(row["runs"]), *how, f"{row['steps_per_second']:,.0f}", times, memory))
    return Sheet("Runs side by side", columns, body)


def together(rows: list[Row]) -> Sheet:
    """Seeds in one program."""
    body, alone = [], {(row["env"], row["preset"]): row["steps_per_second"] for row in rows if row["together"] == 1}
    for row in rows:
        speed, one = row["steps_per_second"], alone.get((row["env"], row["preset"]))
        times = f"{speed / one:.2f}" if one else ""
        body.append((row["env"], row["preset"], str(row["together"]), f"{speed:,.0f}", times))
    return Sheet("Seeds in one program", ("environment", "preset", "seeds", "steps/s together", "times one seed"), body)


def steps(rows: list[Row]) -> Sheet:
    """Whole steps of training."""
    columns = ("environment", "scale", "device", "ms a step", "learning alone", "acting alone", "outside both")
    body = []
    for row in rows:
        figures = (f"{row[name]:.2f}" for name in ("step_ms", "learn_ms", "act_ms"))
        body.append((row["env"], row["scale"], row["device"], *figures, f"{row['outside']:.0%}"))
    return Sheet("A step of training", columns, body)


def compiled(rows: list[Row]) -> Sheet:
    """Updates beside the same uncompiled, and other libraries'."""
    columns = (
        "environment",
        "preset",
        "members",
        "uncompiled",
        "compiled",
        "times",
        "theirs",
        "times",
        "to compile, s",
    )
    body = []
    for row in rows:
        theirs = (
            (f"{row['theirs']} {row['theirs_ms']:.2f}", f"{row['theirs_ratio']:.1f}") if row["theirs"] else ("", "")
        )
        ours = (f"{row['never_ms']:.2f}", f"{row['always_ms']:.2f}", f"{row['never_ratio']:.1f}")
        what = (row["env"], row["preset"], str(row["members"]))
        body.append((*what, *ours, *theirs, f"{row['compile_seconds']:.0f}"))
    return Sheet("Updates on one CPU thread, ms, and how many times a compiled one", columns, body)


def images(rows: list[Row]) -> Sheet:
    """One member beside Stable-Baselines3's DQN."""
    columns = ("image", "ours", "Stable-Baselines3", "ours / theirs", "lowest", "highest")
    body = []
    for row in rows:
        times = (f"{row[name]:.1f}" for name in ("ours_ms", "theirs_ms"))
        ratios = (f"{row[name]:.2f}" for name in ("ratio", "lowest", "highest"))
        body.append(("x".join(map(str, row["shape"])), *times, *ratios))
    return Sheet(
        "DQN for images on one CPU thread, one network, ms per update; the ratio round by round", columns, body
    )


def onnx(rows: list[Row]) -> Sheet:
    """From observations to actions."""
    columns = ("agent", "members", "parameters", "file, MB", "observations", "PyTorch, ms", "ONNX, ms", "times")
    body = []
    for row in rows:
        what = (f"{row['kind']}, {row['env']}", str(row["members"]), f"{row['parameters']:,}", f"{row['file_mb']:.1f}")
        for time in row["times"]:
            ours, theirs = time["pytorch_ms"], time["onnx_ms"]
            body.append((*what, str(time["batch"]), f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.1f}"))
    return Sheet("From observations to actions on one CPU thread", columns, body)


def cpu(results: Row) -> Iterator[Sheet]:
    """The MinAtar network."""
    columns = ("members", "plain loop", "loop", "stacked", "plain / stacked", "loop / stacked")
    rows = []
    for row in results["updates"]:
        plain, loop, stacked = row["plain_ms"], row["loop_ms"], row["stacked_ms"]
        ratios = (f"{plain / stacked:.2f}", f"{loop / stacked:.2f}")
        rows.append((str(row["members"]), f"{plain:.2f}", f"{loop:.2f}", f"{stacked:.2f}", *ratios))
    yield Sheet("MinAtar network on one CPU thread, 51 quantiles, ms per update", columns, rows)
    if results["others_ms"]:
        ours = results["updates"][0]["stacked_ms"]
        others = [(name, f"{ms:.2f}", f"{ms / ours:.2f}") for name, ms in results["others_ms"].items()]
        yield Sheet(
            "The same network, one member", ("library", "ms", "times ours"), [*others, ("ours", f"{ours:.2f}", "1.00")]
        )
