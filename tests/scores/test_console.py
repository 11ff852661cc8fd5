"""Tables on consoles of any width: no name is broken, no number is cut, and the rows that are ours stand out."""

import io
import json
import re

import pytest

from steadyq.run.progress import SafeConsole
from steadyq.scores.tables import Cell, Table, _in_two, render

TABLE = Table(
    "t",
    ("agent", "IQM runs x games", "interval", "GPU", "minutes", "where from"),
    (
        (
            Cell("EfficientZero V2"),
            Cell(1.637, best=True),
            Cell(None),
            Cell("RTX 3090"),
            Cell(510.0, 1),
            Cell("two GPUs for half of another one's hours"),
        ),
        (Cell("swift"), Cell(0.408), Cell("0.356 to 0.566"), Cell("NVIDIA H200"), Cell(17.5, 1), Cell("measured")),
    ),
    notes=("> this sweep.",),
    ours=(1,),
)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mean", ["mean"]),
        ("interval  ", ["interval"]),
        ("GPU minutes", ["GPU", "minutes"]),
        ("IQM runs x games", ["IQM runs", "x games"]),
        ("IQM runs x games a minute", ["IQM runs x", "games a minute"]),
        ("a b", ["a", "b"]),
    ],
)
def test_a_heading_breaks_where_it_is_narrowest(name: str, lines: list[str]) -> None:
    assert _in_two(name) == lines


def printed(table: Table, width: int, **options: object) -> list[str]:
    file = io.StringIO()
    render(table, SafeConsole(file=file, width=width, **options))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", range(32, 121, 4))
def test_names_and_intervals_stay_whole_on_the_commands_console(width: int) -> None:
    lines = printed(TABLE, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(word in text for word in ("EfficientZero", "*1.637", "0.356 to 0.566", "510.0"))
    assert text.startswith("t\n")
    assert text.endswith("\n> this sweep.")


def test_a_word_as_long_as_a_path_is_broken() -> None:
    path = "/".join(["folder"] * 12)
    lines = printed(Table("t", ("run", "score"), ((Cell(path), Cell(0.408)),)), 40)
    assert max(map(len, lines)) <= 40
    assert path not in "".join(lines)
    assert "".join("".join(lines[4:]).replace("0.408", "").split()) == path


def test_our_rows_are_behind_a_mark_and_bold() -> None:
    rows = [line.split() for line in printed(TABLE, 120)]
    assert ["EfficientZero", "V2", "*1.637"] in [row[:3] for row in rows]
    assert [">", "swift", "0.408"] in [row[:3] for row in rows]
    shown = "\n".join(printed(TABLE, 120, color_system="standard", force_terminal=True))
    assert "\x1b[1m> swift" in shown
    assert re.search(r"\x1b\[1m *\*1\.637", shown)  # the best of a column is bold in other rows too
    assert "\x1b[1mEfficient" not in shown
    assert "**swift** | 0.408" in TABLE.markdown()
    assert "| EfficientZero V2 | **1.637**" in TABLE.markdown()
    assert json.loads(TABLE.json())["ours"] == [1]
    assert json.loads(TABLE.json())["rows"][1][0] == "swift"
