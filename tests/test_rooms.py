"""docs/architecture.md says which room may import which, and walks one transition through the files: both are true."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "steadyq"
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
FILES = sorted(SOURCE.rglob("*.py"))


def exists(name: str) -> bool:
    """Whether a dotted name below the package is a module or a package."""
    place = SOURCE.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts)


def room_of(file: Path) -> str:
    return name_of(file).split(".")[0]


def imports(file: Path) -> set[str]:
    """The modules of ours that a file imports, at its top or within a function, below the package."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "steadyq"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            module = node.module or ""
            if module.split(".")[0] != "steadyq":
                continue
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if exists(inner.removeprefix("steadyq.")) or module == "steadyq" else module)
    return {name.removeprefix("steadyq.") for name in found} - {"steadyq", "__version__"}


def table() -> dict[str, set[str] | None]:
    """What each room may import; None for everything."""
    text = DOCUMENT.split("\n## Rooms\n")[1].split("\n## ")[0]
    rows: dict[str, set[str] | None] = {}
    for rooms, _, allowed in re.findall(r"^\| (`.*?) \| (.*) \| (.*) \|$", text, re.MULTILINE):
        names = None if allowed == "everything" else set(re.findall(r"`([\w.]+)`", allowed))
        assert names or allowed in ("everything", "nothing"), rooms
        for room in re.findall(r"`(\w+)`", rooms):
            assert room not in rows, f"two rows for {room}"
            rows[room] = names
    return rows


def inside(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def test_every_room_has_a_row_and_every_row_is_a_room() -> None:
    assert {room_of(file) for file in FILES} == table().keys()
    for room, allowed in table().items():
        assert all(exists(name) for name in allowed or ()), f"{room} may import what is not there"


def test_the_reading_of_imports_sees_all_kinds() -> None:
    """The test of the table can fail: what must be found is found, within functions and through packages too."""
    assert "value.operators" in imports(SOURCE / "build.py")
    assert "value.acting" in imports(SOURCE / "build.py")  # from steadyq.value import acting
    assert {"presets", "envs"} <= imports(SOURCE / "cli" / "training.py")  # within its functions
    assert imports(SOURCE / "errors.py") == set()
    assert len(FILES) > 100


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_keep_to_the_rooms_table(file: Path) -> None:
    allowed = table()[room_of(file)]
    if allowed is None:
        return
    places = allowed | {room_of(file)}
    foreign = {name for name in imports(file) if not any(inside(name, place) for place in places)}
    assert not foreign, f"{name_of(file)} imports {sorted(foreign)}, its room may import {sorted(allowed) or 'nothing'}"


RULES = [
    ("value", ("envs", "run")),
    ("nets", ("value",)),
    ("monitor", ("run.loop", "run.step")),
    ("device", tuple(sorted({room_of(file) for file in FILES} - {"errors", "device"}))),
    *((room, ("cli",)) for room in sorted({room_of(file) for file in FILES} - {"cli", "__main__"})),
]


@pytest.mark.parametrize(("room", "never"), RULES)
def test_rules_that_no_table_can_lift(room: str, never: tuple[str, ...]) -> None:
    for file in FILES:
        if room_of(file) == room:
            broken = {name for name in imports(file) for place in never if inside(name, place)}
            assert not broken, f"{name_of(file)} imports {sorted(broken)}"


def test_nothing_is_named_for_what_it_might_hold() -> None:
    vague = {"utils", "common", "base", "helpers", "misc"}
    assert not [name_of(file) for file in FILES if vague & set(name_of(file).split("."))]


def test_the_walk_of_a_transition_goes_through_files_that_are_there() -> None:
    text = DOCUMENT.split("\n## One Atari transition")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. `([\w/.]+)`", text, re.MULTILINE)
    assert 15 < len(files) < 24
    assert len(set(files)) == len(files)
    for file in [*files, *re.findall(r"`(\w+/[\w/.]*)`", text)]:
        assert (SOURCE / file).exists(), f"the walk goes through {file}, which is not there"


def test_modules_that_the_documents_name_are_there() -> None:
    for document in (ROOT / "docs").glob("*.md"):
        for name in re.findall(r"`(?:src/steadyq/)?(\w+(?:/\w+)*\.py)`", document.read_text()):
            assert list(SOURCE.rglob(name)) or (ROOT / name).is_file(), f"{document.name} names {name}"
