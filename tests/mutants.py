"""Break one expression or statement at a time and see which test notices: `python tests/mutants.py`, or `make mutants`.

First every test of `TESTS` runs once, traced, to learn which lines it runs (build/mutants.json keeps that until a file
changes). Then each mutant of a seeded sample is written into a copy of the sources, and the tests that run its line are
run in a process of their own until one fails. A mutant survives if none does.
What the file of results holds already is not run again; `--again` runs its survivors once more.
"""

import argparse
import ast
import compileall
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 what every test imports is imported once, and each process of a test forked with it
import pytest
import torch
import torch._dynamo

ROOT = Path(__file__).parents[1]
RESULTS, LINES = ROOT / "results" / "mutants.json", ROOT / "build" / "mutants.json"
MUTATED = ("value", "replay", "envs", "run/step.py", "run/update.py", "run/explore.py", "run/evaluate.py", "agent.py")
TESTS = (
    "value",
    "replay",
    "envs",
    "run",
    "nets",
    "monitor",
    "cli/test_imports.py",
    "test_build.py",
    "test_schedule.py",
)
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMMUTE = ("minimum", "maximum", "min", "max", "equal", "array_equal")
NAMED = ROOT / "tests" / "mutants.toml"


@dataclass(frozen=True)
class Mutant:
    """A piece of a file, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    before: str
    after: str
    around: range
    """The lines of the statement it is in, of which Python counts only some as run."""

    @property
    def name(self) -> str:
        """The same as long as the file is."""
        return f"{self.file}:{self.line}:{self.start} {self.after}"


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """All mutants of a file. Annotations, decorators, messages and docstrings are left alone."""
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def made(node: Any, kind: str, after: ast.AST | str) -> Mutant:
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[node.end_lineno - 1] + node.end_col_offset
        text = after if isinstance(after, str) else f"({ast.unparse(after)})"
        return Mutant(file, node.lineno, start, end, kind, source[start:end].decode(), text, around)

    around = range(1)

    def walk(node: ast.AST) -> Iterator[Mutant]:
        nonlocal around
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            last = node.end_lineno or node.lineno
            if body:
                last = max(node.lineno, getattr(body[0], "lineno", node.lineno + 1) - 1)
            around = range(node.lineno, last + 1)
        yield from own(node, made)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or getattr(node, "arg", "") == "strict":
            return  # messages, and zip's own check
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "type_comment"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from walk(child)

    return walk(ast.parse(source))


def own(node: ast.AST, made: Callable[[Any, str, ast.AST | str], Mutant]) -> Iterator[Mutant]:
    """The mutants of a node itself."""
    match node:
        case ast.Compare(left=left, ops=[operation], comparators=right):
            yield made(node, "comparison", ast.Compare(left, [COMPARED[type(operation)]()], right))
        case ast.BinOp(left=left, op=operation, right=other) if type(operation) in COMPUTED:
            yield made(node, "arithmetic", ast.BinOp(left, COMPUTED[type(operation)](), other))
        case ast.BoolOp(op=operation, values=values):
            yield made(node, "and/or", ast.BoolOp(ast.Or() if isinstance(operation, ast.And) else ast.And(), values))
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield made(node, "sign", operand)
        case ast.Constant(value=bool(value)):
            yield made(node, "constant", ast.Constant(not value))
        case ast.Constant(value=int() | float() as value):
            yield made(node, "constant", ast.Constant(value + 1))
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield made(test, "condition", ast.UnaryOp(ast.Not(), test))
        case ast.Call(func=function, args=[one, two, *rest], keywords=keywords) if (
            not isinstance(one, ast.Starred) and ast.unparse(function).split(".")[-1] not in COMMUTE
        ):
            yield made(node, "arguments", ast.Call(function, [two, one, *rest], keywords))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield made(node, "return", "return None")
        case ast.AugAssign(target=target, op=operation, value=value):
            yield made(node, "dropped", "pass")
            if type(operation) in COMPUTED:
                yield made(node, "arithmetic", ast.unparse(ast.AugAssign(target, COMPUTED[type(operation)](), value)))
        case ast.Raise() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call() | ast.Yield()):
            yield made(node, "dropped", "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield made(node, "dropped", "pass")


def named() -> Iterator[Mutant]:
    """The mutants of tests/mutants.toml."""
    for one in tomllib.loads(NAMED.read_text())["mutant"]:
        what, file, before, after = (one[name] for name in ("what", "file", "before", "after"))
        source = sources()[file]
        if source.count(before.encode()) != 1:
            sys.exit(f"{file} must hold {before!r} once")
        start = source.index(before.encode())
        line = source.count(b"\n", 0, start) + 1
        yield Mutant(file, line, start, start + len(before.encode()), what, before, after, range(line, line + 1))


def sources() -> dict[str, bytes]:
    """The sources that are mutated, by their path below src/steadyq."""
    package = ROOT / "src" / "steadyq"
    files = [
        file
        for name in MUTATED
        for file in ([package / name] if name.endswith(".py") else (package / name).rglob("*.py"))
    ]
    return {str(file.relative_to(package)): file.read_bytes() for file in sorted(files)}


class Copy:
    """The sources where a worker can break them."""

    def __init__(self, place: Path) -> None:
        self.place, self.source = place, place / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        compileall.compile_dir(self.source, quiet=2)

    def write(self, file: str, content: bytes) -> None:
        """Change a file, and let no compiled form of it stand."""
        path = self.source / "steadyq" / file
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        path.write_bytes(content)

    def tests(self, words: list[str], plugin: Any) -> int:
        """Begin to run tests in a process of their own."""
        if process := os.fork():
            return process
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        said = os.open(self.place / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ |= {"PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self.source))
        os.chdir(ROOT)
        code = 70  # anything but a test that fails
        try:
            options = ["-p", "no:cacheprovider", f"--basetemp={self.place / 'temporary'}"]
            code = int(pytest.main([*options, *words], plugins=[plugin]))
            plugin.finish()
        finally:
            os._exit(code)


class Traced:
    """Learns which lines of the sources each test of a file runs."""

    def __init__(self, source: Path, out: Path) -> None:
        self.prefix, self.out = f"{source}/steadyq/", out
        self.names = frozenset(f"{self.prefix}{file}" for file in sources())
        self.seen: set[tuple[str, int]] = set()
        self.shared: set[tuple[str, int]] = set()  # run by imports and fixtures, for any of the tests
        self.found: dict[str, Any] = {}
        sys.settrace(self.trace)

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        return self.line if frame.f_code.co_filename in self.names else None

    def line(self, frame: Any, event: str, argument: Any) -> Any:
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.shared |= self.seen
        self.seen = set()
        began = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = round(time.monotonic() - began, 2)
            self.found[item.nodeid] = {"seconds": seconds, "lines": self.by_file(self.seen)}
            self.seen = set()

    def by_file(self, lines: set[tuple[str, int]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, line in sorted(lines):
            found.setdefault(name.removeprefix(self.prefix), []).append(line)
        return found

    def finish(self) -> None:
        sys.settrace(None)
        self.out.write_text(json.dumps({"shared": self.by_file(self.shared | self.seen), "tests": self.found}))


class FirstFailure:
    """Says which test failed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        out.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.out.exists():
            self.out.write_text(report.nodeid)

    def finish(self) -> None:
        pass


def lines_of_tests(copy: Copy, begins: str) -> dict[str, Any]:
    """What every file of tests whose name begins so runs, by test; those that have not changed are not run again."""
    known = json.loads(LINES.read_text()) if LINES.exists() else {}
    everything = hashlib.sha256(b"".join(sources().values()))
    found: dict[str, Any] = {}
    for name in TESTS:
        for file in (
            [ROOT / "tests" / name] if name.endswith(".py") else sorted((ROOT / "tests" / name).glob("test_*.py"))
        ):
            key, digest = str(file.relative_to(ROOT)), everything.copy()
            if not key.startswith(begins):
                continue
            digest.update(file.read_bytes())
            found[key] = known.get(key, {})
            if found[key].get("digest") == digest.hexdigest():
                continue
            print(f"tracing {key}", flush=True)
            out = copy.place / "lines.json"
            out.unlink(missing_ok=True)
            process = copy.tests([key], _Later(lambda out=out: Traced(copy.source, out)))
            if os.waitpid(process, 0)[1]:
                sys.exit((copy.place / "said.txt").read_text())
            found[key] = {"digest": digest.hexdigest(), **json.loads(out.read_text())}
            LINES.parent.mkdir(exist_ok=True)
            LINES.write_text(json.dumps({**known, **found}))
    return found


class _Later:
    """A plugin that is made in the process whose tests it watches."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def pytest_configure(self, config: pytest.Config) -> None:
        self.made = self.make()
        config.pluginmanager.register(self.made)

    def finish(self) -> None:
        self.made.finish()


def covering(mutant: Mutant, lines: dict[str, Any], seconds: float) -> tuple[list[str], float]:
    """The tests that run a mutant's line, as many as fit into the time.

    The fastest four of every file come first, then the next four, and so on; its own folder's before others'.
    """
    found = []
    for file, known in lines.items():
        everyone = not set(mutant.around).isdisjoint(known["shared"].get(mutant.file, ()))
        far = (Path(file).parent.name != mutant.file.split("/")[0]) + (
            Path(file).stem != f"test_{Path(mutant.file).stem}"
        )
        tests = sorted(
            (own["seconds"], test)
            for test, own in known["tests"].items()
            if everyone or not set(mutant.around).isdisjoint(own["lines"].get(mutant.file, ()))
        )
        found += [(turn // 4, far, file, own_seconds, test) for turn, (own_seconds, test) in enumerate(tests)]
    chosen, total = [], 0.0
    for *_, own_seconds, test in sorted(found):
        if not chosen or total + own_seconds <= seconds:
            chosen.append(test)
            total += own_seconds
    return chosen, total


class Results:
    """The file of results: what is done is not done again."""

    def __init__(self, file: Path, section: str, again: bool) -> None:
        self.file, self.section = file, section
        self.record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        self.kept: dict[str, Any] = self.record.get(section, {}).get("mutants", {})
        if again:
            self.kept = {name: one for name, one in self.kept.items() if one["killed_by"]}
        code = "import json; from steadyq.run.provenance import provenance; print(json.dumps(provenance()))"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        self.provenance = {**json.loads(said.stdout), "command": " ".join(["python tests/mutants.py", *sys.argv[1:]])}

    def add(self, mutant: Mutant, killed_by: str | None, tests: int) -> None:
        """Keep what became of a mutant."""
        where = {name: getattr(mutant, name) for name in ("file", "line", "kind", "before", "after")}
        self.kept[mutant.name] = {**where, "killed_by": killed_by, "tests": tests, "commit": self.provenance["commit"]}
        ends = (
            "killed" if one["killed_by"] else "survived" if one["tests"] else "untested" for one in self.kept.values()
        )
        self.record[self.section] = {**self.provenance, "score": Counter(ends), "mutants": self.kept}
        self.file.write_text(json.dumps(self.record, indent=1) + "\n")


def run(sample: list[Mutant], lines: dict[str, Any], copies: list[Copy], results: Results, seconds: float) -> None:
    """Run the tests of each mutant, as many at a time as there are copies."""
    texts, waiting, free = sources(), sample[::-1], copies[:]
    busy: dict[int, tuple[Mutant, Copy, int, float]] = {}
    try:
        while waiting or busy:
            while waiting and free:
                mutant = waiting.pop()
                tests, expected = covering(mutant, lines, seconds)
                if not tests:
                    results.add(mutant, None, 0)
                    continue
                copy, source = free.pop(), texts[mutant.file]
                copy.write(mutant.file, source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
                process = copy.tests(["-x", *tests], FirstFailure(copy.place / "failed"))
                busy[process] = mutant, copy, len(tests), time.monotonic() + 120 + 20 * expected
            for process, (mutant, copy, number, deadline) in list(busy.items()):
                late = time.monotonic() > deadline
                if late:
                    os.killpg(process, signal.SIGKILL)
                done, status = os.waitpid(process, 0 if late else os.WNOHANG)
                if not done:
                    continue
                by = _noticed(copy, os.waitstatus_to_exitcode(status), late)
                results.add(mutant, by, number)
                ending = f"killed by {by}" if by else "SURVIVED"
                print(f"{ending:100.100} {mutant.file}:{mutant.line} {mutant.after[:60]!r}", flush=True)
                copy.write(mutant.file, texts[mutant.file])
                free.append(copy)
                del busy[process]
            time.sleep(0.02)
    finally:
        for process in busy:
            os.killpg(process, signal.SIGKILL)


def table(file: Path) -> str:
    """What a file of results says, as docs/promises.md shows it; why mutants survive is in tests/mutants.toml."""
    record, known = json.loads(file.read_text()), tomllib.loads(NAMED.read_text())
    lines = ["| broken | in | noticed by |", "|---|---|---|"]
    for one in record["named"]["mutants"].values():
        lines.append(f"| {one['kind']} | `{one['file']}` | `{one['killed_by']}` |")
    ends = record["sample"]["score"]
    total = sum(ends.values())
    shares = ", ".join(f"{ends.get(end, 0)} {end}" for end in ("killed", "survived", "untested"))
    lines += ["", f"{total} mutants, seed 0: {shares} ({ends['killed'] / total:.0%} killed).", ""]
    lines += ["| survivor | becomes | why |", "|---|---|---|"]
    why = {(one["file"], one["before"], one["after"]): one["why"] for one in known.get("survivor", ())}
    for one in record["sample"]["mutants"].values():
        if not one["killed_by"]:
            before, after = (" ".join(one[name].split()).replace("|", "\\|") for name in ("before", "after"))
            reason = why.get((one["file"], one["before"], one["after"]), "not explained")
            lines.append(f"| `{one['file']}`: `{before}` | `{after}` | {reason} |")
    return "\n".join(lines) + "\n"


def _noticed(copy: Copy, code: int, late: bool) -> str | None:
    """By which test, or how else; None if not at all."""
    failed = copy.place / "failed"
    if failed.exists():
        return failed.read_text()
    return "no end" if late else f"exit code {code}" if code else None


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="how many mutants are drawn; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--workers", type=int, default=1, help="how many at a time")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of tests for a mutant, by the time they took unbroken"
    )
    parser.add_argument("--only", default="", help="only mutants whose name (file:line:...) begins so")
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--tests", default="tests", help="only files of tests whose name begins so")
    parser.add_argument("--named", action="store_true", help="instead of a sample, the breaks that have names here")
    parser.add_argument("--again", action="store_true", help="run the survivors of the file once more")
    parser.add_argument("--show", action="store_true", help="run nothing, print what the file of results says")
    given = parser.parse_args()
    if given.show:
        print(table(given.json), end="")
        return
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    every = [one for file, source in sources().items() for one in mutants(file, source)]
    every = [one for one in (named() if given.named else every) if one.name.startswith(given.only)]
    if given.count and not given.named:
        sample = random.Random(given.seed).sample(every, min(given.count, len(every)))
    else:
        sample = every
    results = Results(given.json, "named" if given.named else "sample", given.again)
    with tempfile.TemporaryDirectory(prefix="steadyq-mutants-") as place:
        copies = [Copy(Path(place) / str(number)) for number in range(given.workers)]
        left = [one for one in sample if one.name not in results.kept]
        print(f"{len(every)} mutants, {len(sample)} drawn, {len(left)} to run", flush=True)
        lines = lines_of_tests(copies[0], given.tests)
        run(left, lines, copies, results, given.seconds)
    ends = Counter(bool(results.kept[one.name]["killed_by"]) for one in sample)
    print(f"{ends[True]} of {len(sample)} killed ({ends[True] / max(1, len(sample)):.0%})")


if __name__ == "__main__":
    main()
