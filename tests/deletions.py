"""Take each edit of three additions away, one at a time, and say which check notices: `python tests/deletions.py`.

Not part of the test suite: it copies the tree and runs mypy and some tests for every edit, which takes many minutes.
Names of additions or files as arguments restrict it, for example `Maxmin build.py`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Edit:
    """A part of an addition: without it, `new` stands where `old` stood."""

    file: str
    what: str
    old: str
    new: str = ""


def block(file: str, what: str, start: str, end: str) -> Edit:
    """All from where one text begins to where the next begins."""
    text = (ROOT / "src" / "steadyq" / file).read_text()
    first = text.index(start)
    return Edit(file, what, text[first : text.index(end, first + 1)])


def kind(file: str, what: str, name: str, end: str = "@dataclass(frozen=True)") -> Edit:
    """A class of an axis."""
    return block(file, what, f"@dataclass(frozen=True)\nclass {name}", end)


def case(what: str, name: str, built: str) -> Edit:
    """A case in the build."""
    return Edit("build.py", what, f'        case "{name}":\n            return {built}\n')


OPERATORS, ESTIMATORS, REGULATION = "value/operators.py", "value/estimators.py", "value/regulation.py"


def maxmin() -> list[Edit]:
    """The operator, and the preset that acts by the least value and updates one member at a time."""
    return [
        kind(OPERATORS, "the operator", "Maxmin"),
        Edit("recipe.py", "its name", '"double", "maxmin", "rem"', '"double", "rem"'),
        case("its case", "maxmin", "Maxmin(section.subset)"),
        block("presets.py", "the preset", "def maxmin_dqn", "def averaged_dqn"),
        Edit("presets.py", "its place in the list", '    "maxmin_dqn": maxmin_dqn,\n'),
        Edit("presets.py", "its operator", '        operator=replace(base.operator, kind="maxmin"),\n'),
        Edit("presets.py", "its acting rule", ', act="minimum"'),
        Edit("presets.py", "who learns", ', act="minimum", learn="one"', ', act="minimum"'),
    ]


def c51() -> list[Edit]:
    """The estimator with its own numbers."""
    held = "return (y * (self.support(y) >= self.bound(ceiling))).sum(-1)"
    expected = '    def value(self, y: Tensor) -> Tensor:\n        """Return the expected'
    return [
        kind(ESTIMATORS, "the estimator", "Categorical"),
        block(ESTIMATORS, "its value", expected, "    def held"),
        Edit(ESTIMATORS, "its share at the ceiling", held, "return (y >= ceiling).float().mean(-1)"),
        Edit("recipe.py", "its name", '"scalar", "categorical", "implicit"', '"scalar", "implicit"'),
        Edit("recipe.py", "that not all have atoms", '        "atoms": ("kind", ("categorical", "hl_gauss")),\n'),
        Edit("recipe.py", "that it has no quantiles", '        "quantiles": ("kind", ("quantile",)),\n'),
        case("its case", "categorical", "Categorical(section.atoms, section.low, section.high)"),
        Edit("build.py", "its numbers", "Categorical(section.atoms, section.low, section.high)", "Categorical()"),
        block("presets.py", "the preset", "def c51", "def maxmin_dqn"),
        Edit("presets.py", "its place in the list", '    "c51": c51,\n'),
    ]


def redo() -> list[Edit]:
    """The trigger and the intervention."""
    return [
        kind(REGULATION, "the trigger", "Dormant"),
        kind(REGULATION, "the intervention", "Recycle"),
        Edit(REGULATION, "the silenced readers", "        outgoing.masked_fill_(columns, 0)\n"),
        block(REGULATION, "what its event says", "    if count is not None:", "    ratio ="),
        Edit("recipe.py", "its trigger's name", ', "dormant", "verdict"', ', "verdict"'),
        Edit("recipe.py", "its intervention's name", ', "recycle", "replace"', ', "replace"'),
        case("its trigger's case", "dormant", "Dormant(section.dormant, section.dormant_share)"),
        case("its intervention's case", "recycle", "Recycle(section.dormant)"),
        Edit(
            "build.py",
            "steps by unit",
            'unit_steps=rules.intervention in ("recycle", ',
            "unit_steps=rules.intervention in (",
        ),
        block("presets.py", "the preset", "def redo", "def swift"),
        Edit("presets.py", "its place in the list", '    "redo": redo,\n'),
        Edit("presets.py", "its intervention", '        intervention="recycle",\n'),
    ]


ADDITIONS = {"Maxmin": maxmin, "C51": c51, "ReDo": redo}
TESTS = ("tests/test_recipe.py", "tests/test_build.py", "tests/test_additions.py", "tests/value")
"""Enough to notice; the whole suite has more."""


def notices(place: Path) -> str:
    """Which check fails on the tree at `place`: the type checker, or else the first test."""
    environment = {**os.environ, "PYTHONPATH": str(place / "src")}
    typed = subprocess.run([sys.executable, "-m", "mypy"], cwd=place, env=environment, capture_output=True, text=True)
    said = [line for line in typed.stdout.splitlines() if ": error:" in line]
    if said:
        return f"mypy: {said[0]}"
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    tested = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
    failed = [line for line in tested.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"tests: {failed[0] if failed else tested.stdout[-200:]}" if tested.returncode else ""


def main(wanted: list[str]) -> int:
    """Print one line for each edit; returns how many nobody notices."""
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tree"
        for name in ("src", "tests", "docs", "results", "reference"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", place)
        for addition, parts in ADDITIONS.items():
            for edit in parts():
                if wanted and not {addition, Path(edit.file).name} & set(wanted):
                    continue
                file = place / "src" / "steadyq" / edit.file
                text = file.read_text()
                assert text.count(edit.old) == 1, f"{edit.file}: {edit.what} is there {text.count(edit.old)} times"
                file.write_text(text.replace(edit.old, edit.new))
                found = notices(place)
                file.write_text(text)
                unnoticed += not found
                print(f"{addition}, {edit.file}, without {edit.what}: {found or 'NOBODY NOTICES'}", flush=True)
    return unnoticed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
