"""Kill, damage, fuzz, and attack: `python -m tests.faults`, in minutes; `--full` for the counts that are reported.

Kills, damaged folders and fuzzed inputs are counted here. Hostile folders, odd surroundings and faulty environments are
tests of their own, marked so (`pytest -m hostile`); this runs them too and counts them. What is found is printed, and
written with the command and the commit where --json says.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from counting import Count
from damage import damage_folders
from fuzz import fuzz
from kills import kill

from steadyq.run.provenance import provenance

ROOT = Path(__file__).parents[2]
MARKED = ("hostile", "surroundings", "environments")
KINDS = ("kills", "damage", "fuzz", *MARKED)
SHARES = {"CartPole": 0.4, "MinAtar": 0.2, "Atari": 0.15, "Procgen": 0.15, "sweep": 0.1}


def main() -> None:
    """Run what the command line asks for; exit with 1 if anything was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"only these: {', '.join(KINDS)}")
    parser.add_argument("--full", action="store_true", help="the counts that results/faults.json reports")
    parser.add_argument("--kills", type=int, help="how many kills")
    parser.add_argument("--damage", type=int, help="how many damaged folders")
    parser.add_argument("--fuzz", type=int, help="how many fuzzed inputs")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    usual = {"kills": 200, "damage": 5000, "fuzz": 10_000} if given.full else {"kills": 30, "damage": 300, "fuzz": 1000}
    numbers = {kind: usual[kind] if (asked := getattr(given, kind)) is None else asked for kind in usual}
    began, counts = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="steadyq-faults-") as place:
        for count in run(given.kinds or KINDS, numbers, given.seed, Path(place)):
            counts.append(count)
            print(count.line(), flush=True)
            for what in count.broken:
                print(f"  broken: {what}", flush=True)
    broken = sum(len(count.broken) for count in counts)
    print(f"{sum(count.total for count in counts):,} faults, {broken} broken")
    if given.json:
        record = {
            "command": " ".join(["python -m tests.faults", *sys.argv[1:]]),
            **{name: value for name, value in provenance().items() if name != "command"},
            "seed": given.seed,
            "seconds": round(time.monotonic() - began),
            "faults": {count.kind: {"total": count.total, **dict(sorted(count.endings.items()))} for count in counts},
            "broken": [what for count in counts for what in count.broken],
        }
        given.json.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(1 if broken else 0)


def run(kinds: tuple[str, ...] | list[str], numbers: dict[str, int], seed: int, place: Path) -> Iterator[Count]:
    """Count each kind."""
    for kind in kinds:
        folder = place / kind
        folder.mkdir()
        if kind == "kills":
            yield from kill(numbers[kind], seed, folder, SHARES)
        elif kind in MARKED:
            yield marked(kind, folder)
        else:
            yield (damage_folders if kind == "damage" else fuzz)(numbers[kind], seed, folder)


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
    return count


if __name__ == "__main__":
    main()
