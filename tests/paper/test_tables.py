import json
import subprocess
import sys

import pytest

from steadyq.paper import tables as paper
from steadyq.scores.published import atari100k, procgen
from steadyq.scores.tables import Cell, Table


def by_key() -> dict[tuple[str, str, str], paper.Finding]:
    return {(f.benchmark, f.row, f.metric): f for f in paper.findings()}


def test_ours_on_atari() -> None:
    ours = paper.aggregates()["ours"]
    assert (ours.above_human, ours.best) == (14, 10)
    numbers = (ours.mean, ours.median, ours.iqm, ours.iqm_slice)
    assert numbers == pytest.approx((1.799, 1.045, 1.204, 1.070), abs=5e-4)


@pytest.mark.parametrize(
    ("column", "mean", "median", "iqm", "iqm_slice"),
    [
        ("dreamerv3", 1.130, 0.560, 0.5995, 0.541),
        ("dart", 1.057, 0.790, 0.619, 0.583),
        ("bbf", 2.247, 0.917, 1.139, 0.949),
        ("sgf", 0.884, 0.152, 0.3335, 0.2865),
    ],
)
def test_other_algorithms(column: str, mean: float, median: float, iqm: float, iqm_slice: float) -> None:
    found = paper.aggregates()[column]
    assert (found.mean, found.median, found.iqm, found.iqm_slice) == pytest.approx(
        (mean, median, iqm, iqm_slice), abs=5e-4
    )


def test_the_best_of_crazy_climber_is_diamond() -> None:
    found = paper.aggregates()
    assert (found["diamond"].best, found["dreamerv3"].best) == (1, 0)
    assert sum(each.best for each in found.values()) == 26
    wrong = [f for f in paper.findings() if f.metric == "bold" and f.status != "as defined"]
    assert [(f.row, f.printed, f.recomputed) for f in wrong] == [("CrazyClimber", "DreamerV3", "DIAMOND")]


def test_storm_with_its_public_freeway() -> None:
    storm = paper.aggregates(corrected=True)["storm"]
    assert (storm.above_human, storm.best) == (9, 4)
    assert (storm.mean, storm.median) == pytest.approx((1.222, 0.425), abs=5e-4)
    assert paper.aggregates(corrected=True)["ours"].best == 11  # Freeway 33.3, shared with DIAMOND


def test_procgen_means_clipped_and_not() -> None:
    rows = {(r[0].value, r[1].value): r[2].value for r in paper.table2().rows}
    ppo, ours = "PPO (Impala CNN)", "Ours"
    plain, clipped = "appendix, not clipped", "appendix, clipped"
    found = (rows[ppo, plain], rows[ours, plain], rows[ppo, clipped], rows[ours, clipped])
    assert found == pytest.approx((0.331, 0.342, 0.344, 0.403), abs=5e-4)
    assert (rows[ppo, "as printed"], rows[ours, "as printed"]) == (0.33, 0.40)


def test_every_printed_aggregate_is_checked_and_every_difference_explained() -> None:
    found = paper.findings()
    assert len([f for f in found if f.metric != "bold"]) == 14 * 5 + 6
    assert len([f for f in found if f.metric == "bold"]) == 26
    for each in found:
        assert (each.explanation == "") == (each.status == "as defined"), each
        assert each.explanation != "Not explained.", each
        assert (each.definition is None) == (each.status == "not reproduced"), each


def test_what_reproduces_and_what_does_not() -> None:
    missing = {(f.row, f.metric) for f in paper.findings() if f.status == "not reproduced"}
    ppo = "PPO (Impala CNN)"
    assert missing == {
        *(("DreamerV3", metric) for metric in ("best", "mean", "median", "iqm")),
        ("DIAMOND", "best"),
        *(("DART", metric) for metric in ("mean", "iqm")),
        *(("DER", "iqm"), ("BBF", "iqm")),
        *((ppo, "median"), (ppo, "iqm"), ("Ours", "median"), ("Ours", "iqm")),
        ("CrazyClimber", "bold"),
    }
    # "Ours" median and IQM above are Procgen's; Atari's are reproduced.
    found = by_key()
    assert found["atari100k", "Ours", "median"].status == "as defined"
    assert found["procgen", "Ours", "iqm"].status == "not reproduced"


def test_table1_mixes_iqm_definitions() -> None:
    found = by_key()
    used: dict[str | None, set[str]] = {}
    for column in atari100k().scores:
        name = atari100k().sources[column].printed_name
        used.setdefault(found["atari100k", name, "iqm"].definition, set()).add(name)
    assert used == {
        "runs x games (public runs)": {"DrQ", "IRIS", "REM", "STORM", "DIAMOND"},
        "sorted[6:19] over games": {"SGF", "Drama", "Ours"},
        None: {"DER", "DreamerV3", "DART", "BBF"},
    }


def test_procgen_rows_are_not_computed_alike() -> None:
    found = by_key()
    assert found["procgen", "PPO (Impala CNN)", "mean"].definition == "appendix, not clipped"
    assert found["procgen", "Ours", "mean"].definition == "appendix, clipped"


@pytest.mark.parametrize(
    ("value", "printed", "matches"),
    [
        (1.0699, "1.070", True),
        (1.0706, "1.070", False),
        (0.335, "0.33", True),
        (0.336, "0.33", False),
        (14, "14", True),
    ],
)
def test_tolerance_is_the_rounding_of_the_printed_digits(value: float, printed: str, matches: bool) -> None:
    assert paper._rounds_to(value, printed) is matches


def test_ours_lies_on_a_ten_episode_grid_and_others_do_not() -> None:
    assert all(paper.episode_grid(atari100k(), "ours").values())
    assert sum(paper.episode_grid(atari100k(), "bbf").values()) < 13
    assert not all(paper.episode_grid(atari100k(), "ours", episodes=7).values())
    assert all(paper.episode_grid(procgen(), "ours").values())
    assert not any(paper.episode_grid(procgen(), "ppo").values())


def test_consequences_are_stated_with_their_numbers() -> None:
    text = " ".join(paper.consequences())
    for part in (
        "Ours 1.204, BBF 1.139",
        "1.070, 0.949",
        "mean 1.222, median 0.425, 9 games above human and 4 best",
        "DIAMOND = Ours",
        "26 of 26 Atari scores",
        "18 games",
        "3e-13",
        "6 of the 6 games",
        "higher on 9 of 16 games",
        "Ours on Heist, Maze; PPO on Heist",
    ):
        assert part in text, part


def test_pooled_iqms_are_not_claimed_to_be_recomputed() -> None:
    notes = " ".join(paper.check().notes)
    assert notes.count("ot recomputable from per-game means") >= 7


def test_table5_marks_each_maximum() -> None:
    table = paper.table5()
    assert len(table.rows) == 26 + 6
    games = [row for row in table.rows if row[0].value in atari100k().games]
    for row in games:
        scores = [cell.value for cell in row[3:]]
        assert [cell.best for cell in row[3:]] == [score == max(scores) for score in scores]  # type: ignore[type-var]
    assert not any(cell.best for row in table.rows[26:] for cell in row)
    tied = next(row for row in paper.table5(corrected=True).rows if row[0].value == "Freeway")
    assert sum(cell.best for cell in tied) == 2


def test_corrected_table1_names_what_the_columns_are() -> None:
    names = [row[0].value for row in paper.table1(corrected=True).rows]
    assert "REM (Retentive Environment Model)" in names
    assert "DrQ(ε)" in names
    assert [row[0].value for row in paper.table1().rows][3] == "REM"


@pytest.mark.parametrize("name", paper.TABLES)
@pytest.mark.parametrize("width", [80, 120, 160, 200])
def test_tables_fit_the_width_and_lose_no_number(name: str, width: int) -> None:
    table = paper.TABLES[name]()
    text = table.text(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for row in table.rows:
        for cell in row:
            if isinstance(cell.value, int | float):
                assert cell.text in text
    content = json.loads(table.json())
    assert content["rows"] == [[cell.value for cell in row] for row in table.rows]
    assert set(content) == {"title", "columns", "rows", "best", "ours", "notes"}


def test_a_wide_table_is_split_with_its_first_column_repeated() -> None:
    table = Table("t", ("game", "first", "second"), ((Cell("Pong"), Cell(123456.0, 1), Cell(654321.0, 1)),))
    assert table.text(80).count("Pong") == 1
    narrow = table.text(18)
    assert narrow.count("Pong") == 2
    assert "123456.0" in narrow
    assert "654321.0" in narrow


def test_cells_and_ragged_rows() -> None:
    assert [Cell(1.23456).text, Cell(2.0, 1, best=True).text, Cell(None).text, Cell(3).text] == [
        "1.235",
        "*2.0",
        "-",
        "3",
    ]
    with pytest.raises(ValueError, match="a row of 1 cells under 2"):
        Table("t", ("a", "b"), ((Cell(1),),))


def test_importing_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import steadyq.paper.tables"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
