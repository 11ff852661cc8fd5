"""A small table of results: plain data, readable in a terminal and as JSON."""

import io
import json
import re
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

Value = str | int | float | None

LONGEST_WORD = 24
"""Letters of a name's word that a narrow console does not break."""

_RANGE = re.compile(r"-?[\d.]+ to -?[\d.]+")


@dataclass(frozen=True)
class Cell:
    """One value, the digits to show of it, and whether it is the best of its kind."""

    value: Value
    digits: int = 3
    best: bool = False

    @property
    def text(self) -> str:
        """The value as shown; a star marks the best, which survives terminals without bold."""
        if self.value is None:
            return "-"
        shown = f"{self.value:.{self.digits}f}" if isinstance(self.value, float) else str(self.value)
        return "*" + shown if self.best else shown

    @property
    def numeric(self) -> bool:
        """Whether it is a number, or one to another."""
        return isinstance(self.value, int | float) or bool(_RANGE.fullmatch(str(self.value)))


@dataclass(frozen=True)
class Table:
    """A title, named columns, rows of cells and the notes below; `* ` begins the note on what is marked best."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    ours: tuple[int, ...] = ()
    """The rows that are ours among published ones: bold and behind `>`, as `> ` begins the note on them."""
    optional: int = 0
    """How many of the last columns a console too narrow for them leaves out, saying so; pages and JSON have them."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns")

    def text(self, width: int = 120) -> str:
        """Return the table as plain text of at most `width` columns."""
        file = io.StringIO()
        render(
            self, Console(file=file, width=width, color_system=None, legacy_windows=False, markup=False, emoji=False)
        )
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"

    def markdown(self) -> str:
        """Return the table as Markdown, the best in bold, without its title and notes."""
        rows = [self.columns, ["---"] * len(self.columns)]
        rows += [[f"**{cell.text[1:]}**" if cell.best else cell.text for cell in row] for row in self.rows]
        for place in self.ours:
            rows[2 + place] = [f"**{self.rows[place][0].text}**", *rows[2 + place][1:]]
        return "".join(f"| {' | '.join(part.strip() for part in row)} |\n" for row in rows)

    def json(self) -> str:
        """Return the unrounded values as JSON, with the positions [row, column] of the best."""
        best = [[r, c] for r, row in enumerate(self.rows) for c, cell in enumerate(row) if cell.best]
        rows = [[cell.value for cell in row] for row in self.rows]
        content: dict[str, object] = {"title": self.title, "columns": self.columns, "rows": rows, "best": best}
        content |= {"ours": self.ours, "notes": self.notes}
        return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)


def render(table: Table, console: Console) -> None:
    """Print a table; one too wide for the console is split, its first column repeated, so that no digit is cut."""
    console.print(Text(table.title, style="bold"))
    parts = _fitting_parts(table, console)
    for part in parts:
        spare = max(0, console.width - _needs(table, part, console))
        console.print(_rich(table, part, spare))
    if left := [name.strip() for column, name in enumerate(table.columns) if all(column not in part for part in parts)]:
        console.print(Text(f"Too wide for this text, in the page and the JSON: {', '.join(left)}."), soft_wrap=False)
    for note in table.notes:
        console.print(Text(note), soft_wrap=False)


def _fitting_parts(table: Table, console: Console) -> list[list[int]]:
    parts: list[list[int]] = []
    for column in range(1, len(table.columns)):
        spare = column >= len(table.columns) - table.optional
        if parts and _needs(table, [*parts[-1], column], console, unwrapped=spare) <= console.width:
            parts[-1].append(column)
        elif not parts or not spare:
            parts.append([0, column])
    return parts or [[0]]


def _needs(table: Table, part: list[int], console: Console, unwrapped: bool = False) -> int:
    # Asked of an unbounded console, because rich never reports a need beyond the width it is given.
    options = console.options.update(width=10_000)
    needs = Measurement.get(console, options, _rich(table, part))
    return needs.maximum if unwrapped else needs.minimum


def _rich(table: Table, part: list[int], spare: int = 0) -> RichTable:
    """These columns; names, in the first, break at spaces unless the `spare` width takes them whole."""
    shown = RichTable(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in part:
        cells = [row[column] for row in table.rows]
        name = table.columns[column]
        if any(cell.numeric for cell in cells):
            # Numbers keep their full width, so their heading breaks in two instead; only words may wrap.
            lines = _in_two(name)
            digits = max(map(len, [*lines, *(cell.text for cell in cells)]))
            shown.add_column(Text("\n".join(lines)), justify="right", no_wrap=True, min_width=digits)
        elif column == 0:
            # A width of its own, because rich takes from the widest column whatever its words are.
            names = [name, *(_name(table, place) for place in range(len(table.rows)))]
            word = max(len(word) for each in names for word in each.split())
            width = min(max(map(len, names)), word + spare) if word <= LONGEST_WORD else None
            shown.add_column(Text(name), overflow="fold", width=width)
        else:
            shown.add_column(Text(name), overflow="fold")
    for place, row in enumerate(table.rows):
        texts = [row[column].text if column else _name(table, place) for column in part]
        shown.add_row(
            *(Text(text, style="bold" if row[c].best else "") for c, text in zip(part, texts, strict=True)),
            style="bold" if place in table.ours else None,
        )
    return shown


def _name(table: Table, place: int) -> str:
    """What the first cell of a row shows."""
    return "> " * (place in table.ours) + table.rows[place][0].text


def _in_two(name: str) -> list[str]:
    """A heading in one line or two, as narrow as a break at a space makes it."""
    words = name.split()
    broken = [[" ".join(words[:at]), " ".join(words[at:])] for at in range(1, len(words))]
    return min([*broken, [" ".join(words)]], key=lambda lines: max(map(len, lines)))
