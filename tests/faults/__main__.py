"""Kill, damage, fuzz, and attack: `python -m tests.faults`, in minutes; `--full` for the counts that are reported.

Kills, damaged folders and fuzzed inputs are counted here. Hostile folders, odd surroundings and faulty environments are
tests of their own, marked so (`pytest -m hostile`); this runs them too and counts them. It works part by part. What is
found is printed and, with --json, written after every part with the command and the commit. With --continue, parts that
the file holds already and in which nothing was broken are kept, each with the commit that it was counted at.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from counting import Count
from damage import damage_folders
from fuzz import fuzz
from kills import kill

from steadyq.run.provenance import provenance

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "faults.json"
MARKED = ("hostile", "surroundings", "environments")
KINDS = ("kills", "damage", "fuzz", *MARKED)
SHARES = {"CartPole": 0.4, "MinAtar": 0.2, "Atari": 0.15, "Procgen": 0.15, "sweep": 0.1}
PART = {"damage": 500, "fuzz": 1000}
"""How many damaged folders, or fuzzed inputs, are a part."""


def main() -> None:
    """Run what the command line asks for; exit with 1 if anything was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"only these: {', '.join(KINDS)}")
    parser.add_argument("--full", action="store_true", help=f"the counts that {RESULTS.name} reports, written there")
    parser.add_argument("--kills", type=int, help="how many kills")
    parser.add_argument("--damage", type=int, help="how many damaged folders")
    parser.add_argument("--fuzz", type=int, help="how many fuzzed inputs")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--continue", dest="keep", action="store_true", help="keep unbroken parts of the file")
    parser.add_argument("--show", action="store_true", help=f"run nothing, print what {RESULTS.name} says")
    given = parser.parse_args()
    if given.show:
        print(table(given.json or RESULTS), end="")
        return
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    usual = {"kills": 200, "damage": 5000, "fuzz": 10_000} if given.full else {"kills": 30, "damage": 300, "fuzz": 1000}
    numbers = {kind: usual[kind] if (asked := getattr(given, kind)) is None else asked for kind in usual}
    record = Record(given.json or (RESULTS if given.full else None), given.keep)
    for name, work in parts(given.kinds or KINDS, numbers, given.seed).items():
        if name in record.parts:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="steadyq-faults-") as place:
            count = work(Path(place))
        print(f"{name}: {count.line()}", flush=True)
        for what in count.broken:
            print(f"  broken: {what}", flush=True)
        record.add(name, count, time.monotonic() - began)
    total, broken = (sum(part[what] for part in record.parts.values()) for what in ("total", "broken"))
    print(f"{total:,} faults, {broken} broken")
    sys.exit(1 if broken else 0)


class Record:
    """What was counted, part by part, in a file if there is one."""

    def __init__(self, file: Path | None, keep: bool) -> None:
        self.file, self.provenance = (
            file,
            {**provenance(), "command": " ".join(["python -m tests.faults", *sys.argv[1:]])},
        )
        known = json.loads(file.read_text())["parts"] if keep and file and file.exists() else {}
        self.parts: dict[str, dict[str, Any]] = {name: part for name, part in known.items() if not part["broken"]}

    def add(self, name: str, count: Count, seconds: float) -> None:
        """Keep a part's count, and write them all."""
        self.parts[name] = {
            "kind": count.kind,
            "total": count.total,
            "broken": len(count.broken),
            "endings": dict(sorted(count.endings.items())),
            "what": count.broken,
            "seconds": round(seconds),
            **{name: self.provenance[name] for name in ("command", "commit")},
        }
        if self.file:
            totals: Counter[str] = Counter()
            for part in self.parts.values():
                totals[part["kind"]] += part["total"]
            record = {**self.provenance, "totals": totals, "parts": self.parts}
            self.file.write_text(json.dumps(record, indent=2) + "\n")


def table(file: Path) -> str:
    """What a file of counts says, as docs/promises.md shows it."""
    kinds: dict[str, Counter[str]] = {}
    for part in json.loads(file.read_text())["parts"].values():
        kinds.setdefault(part["kind"], Counter()).update(part["endings"])
    lines = ["| fault | times | how it ended | broken |", "|---|---|---|---|"]
    for kind, endings in kinds.items():
        how = ", ".join(f"{number:,} {ending}" for ending, number in sorted(endings.items()) if ending != "broken")
        lines.append(f"| {kind} | {endings.total():,} | {how} | {endings['broken']} |")
    return "\n".join(lines) + "\n"


def parts(kinds: Sequence[str], numbers: dict[str, int], seed: int) -> dict[str, Callable[[Path], Count]]:
    """What is to be done, by name."""
    found: dict[str, Callable[[Path], Count]] = {}
    for kind in kinds:
        if kind in MARKED:
            found[kind] = partial(marked, kind)
        elif kind == "kills":
            for backend, share in SHARES.items():
                number = max(1, round(numbers[kind] * share))
                found[f"{number} kills, {backend}, seed {seed}"] = partial(kill, backend, number, seed)
        else:
            work, whole, size = damage_folders if kind == "damage" else fuzz, numbers[kind], PART[kind]
            for first in range(0, whole, size):
                own = f"{seed}.{first}" if first else str(seed)
                found[f"{min(size, whole - first)} {kind}, seed {own}"] = partial(work, min(size, whole - first), own)
    return found


def marked(kind: str, place: Path) -> Count:
    """Run the tests of a mark; skipped ones do not count."""
    count, report = Count(f"checks, {kind}"), place / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", kind, f"--junitxml={report}", "-p", "no:cacheprovider"]
    subprocess.run([*command, "tests"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        wrong = next((child for child in case if child.tag in ("failure", "error")), None)
        if wrong is not None:
            count.fail(f"{name}: {(wrong.get('message') or '')[:300]}")
        elif case.find("skipped") is None:
            count.add("held")
    if not count.total:
        count.fail(f"no test is marked {kind}")
    return count


if __name__ == "__main__":
    main()
