"""Reports of sweeps whose runs are made up: tables with known numbers, figures of every study."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser

from steadyq import cli
from steadyq.errors import UserError
from steadyq.report.curves import series
from steadyq.report.plots import statement
from steadyq.report.sweep import write_sweep_report
from steadyq.scores.published import atari100k, procgen
from steadyq.scores.tables import Table
from steadyq.suite.runs import read
from steadyq.suite.study import PlannedRun, Study, find_study
from steadyq.suite.summaries import Points, positions, summaries
from steadyq.suite.sweep import read_sweep
from steadyq.suite.tables import tables

LAYERS = ["stem.0", "layer1.0", "head.1"]


def make_up(study: Study, out: Path, score: Any, finished: Any = lambda run: True) -> Path:
    """A sweep folder as if its runs had been trained; `score(run)` is a run's evaluation mean."""
    out.mkdir()
    (out / "sweep.toml").write_text(study.to_toml())
    for run in study.runs():
        path = out / run.name
        path.mkdir()
        (path / "recipe.toml").write_text(run.recipe.to_toml())
        rows = [{"step": step, "return_10": step / 50 + run.recipe.seed, "q_taken": 1.0} for step in range(50, 501, 50)]
        events: list[dict[str, Any]] = []
        for step in range(100, 501, 100):
            ratios = [[1.5 + step / 500 * (layer + 1) for layer in range(3)]] * 2
            events.append({"event": "spikes", "step": step, "layers": LAYERS, "ratios": ratios})
            if step == 300:
                events.append({"event": "reset", "step": step, "member": 0, "layer": "head.1", "ratio": 7.0})
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        if finished(run):
            value = score(run)
            result = {
                "mean_return": value,
                "training_return_10": 2 * value,
                "random_return": 1.0,
                "episodes": 1,
                "returns": [value],
                "steps": 500,
            }
            (path / "result.json").write_text(json.dumps({**result, "random_episodes": 1, "wall_seconds": 1.0}))
    return out


def column(table: Table, name: str) -> dict[str, Any]:
    place = table.columns.index(name)
    return {str(row[0].value): row[place].value for row in table.rows}


def published(name: str) -> Any:
    board = atari100k() if name == "ours" else procgen()
    return lambda run: board.scores["ours"][run.recipe.env.partition("/")[2]]


@pytest.fixture
def atari(tmp_path: Path) -> Path:
    return make_up(find_study("atari100k").changed(seeds=2), tmp_path / "atari", published("ours"))


def test_the_papers_scores_give_the_papers_aggregates_beside_the_published(atari: Path) -> None:
    aggregates, by_game = tables(read_sweep(atari))
    assert column(aggregates, "mean")["steady"] == pytest.approx(1.799, abs=5e-4)
    assert column(aggregates, "median")["steady"] == pytest.approx(1.045, abs=5e-4)
    assert column(aggregates, "IQM games")["steady"] == pytest.approx(1.204, abs=5e-4)
    assert column(aggregates, "IQM slice")["steady"] == pytest.approx(1.070, abs=5e-4)
    assert column(aggregates, "above")["steady"] == 14
    assert column(aggregates, "best")["steady"] == 10
    assert column(aggregates, "interval")["steady"] == "1.799 to 1.799"
    assert len(aggregates.rows) == 1 + len(atari100k().scores)
    assert "26 of 26 games" in aggregates.title
    assert len(by_game.rows) == 26
    best = {str(row[0].value): [cell.best for cell in row].count(True) for row in by_game.rows}
    assert min(best.values()) >= 1
    assert "protocol atari-100k" in by_game.notes[-1]
    assert "52 of 52 runs finished" in by_game.notes[-1]


def test_published_aggregates_use_the_sweeps_own_games(tmp_path: Path) -> None:
    study = find_study("ablation4").changed(seeds=1)
    aggregates, _ = tables(read_sweep(make_up(study, tmp_path / "s", published("ours"))))
    bbf = next(value for name, value in column(aggregates, "mean").items() if name.startswith("BBF"))
    games = [env.partition("/")[2] for env in study.games]
    expected = np.mean([atari100k().normalised("bbf")[atari100k().games.index(game)] for game in games])
    assert bbf == pytest.approx(expected)
    assert column(aggregates, "interval")["steady"] is None  # one seed has none


def test_procgen_is_normalised_with_and_without_clipping(tmp_path: Path) -> None:
    out = make_up(find_study("procgen").changed(seeds=2), tmp_path / "s", published("procgen"))
    plain, clipped, _ = tables(read_sweep(out))
    assert column(plain, "mean")["steady"] == pytest.approx(np.mean(procgen().normalised("ours")))
    assert column(clipped, "mean")["steady"] == pytest.approx(np.mean(procgen().normalised("ours", clip=True)))


def test_variants_are_held_against_the_best_on_each_game(tmp_path: Path) -> None:
    study = find_study("ensemble-size").changed(seeds=2, games=["MinAtar/Breakout", "MinAtar/Asterix"])
    sweep = read_sweep(make_up(study, tmp_path / "s", lambda run: run.recipe.ensemble.members + run.recipe.seed))
    variants, by_game = tables(sweep)
    assert column(variants, "mean")["16 members"] == 1.0
    assert column(variants, "mean")["4 members"] == pytest.approx(4.5 / 16.5)
    assert column(variants, "beats 2 members")["4 members"] == 1.0
    assert column(by_game, "8 members")["MinAtar/Breakout"] == 8.5
    assert column(by_game, "8 members: interval")["MinAtar/Breakout"] == "8.00 to 9.00"
    training, evaluation = summaries(sweep)
    for points in (training, evaluation):
        assert isinstance(points, Points)
        assert points.positions == [2.0, 4.0, 8.0, 16.0]
        assert points.numeric
    assert (training.title, evaluation.title) == ("Final training return", "Evaluation score")  # type: ignore[union-attr]


def test_a_figure_of_a_column_that_no_run_has_is_refused(tmp_path: Path) -> None:
    study = dataclasses.replace(
        find_study("ensemble-size").changed(seeds=1, games=["MinAtar/Breakout"]), columns=("q_takn",)
    )
    out = make_up(study, tmp_path / "s", lambda run: 1.0)
    with pytest.raises(UserError, match="no run has the figure's column 'q_takn': did you mean 'q_taken'"):
        write_sweep_report(out)
    assert not (out / "report").exists()


def test_an_unfinished_sweep_compares_only_what_all_variants_have(tmp_path: Path) -> None:
    def finished(run: PlannedRun) -> bool:
        return run.recipe.env == "MinAtar/Breakout" or run.label == "forbid none"

    study = find_study("decoupling").changed(seeds=2, games=["MinAtar/Breakout", "MinAtar/Asterix"])
    sweep = read_sweep(make_up(study, tmp_path / "s", lambda run: 2.0, finished))
    assert sweep.complete == ["MinAtar/Breakout"]
    _, by_game = tables(sweep)
    assert column(by_game, "forbid rewarded")["MinAtar/Asterix"] is None
    assert "6 of 8 runs finished" in by_game.notes[-1]
    assert "2 of 8 runs have not finished" in statement(sweep.cells, summaries(sweep))


def test_resets_are_counted_at_every_check(tmp_path: Path) -> None:
    out = make_up(find_study("minatar").changed(seeds=1, games=["Breakout"]), tmp_path / "s", lambda run: 1.0)
    steps, counts = series(read(out / "MinAtar-Breakout-seed0"), "resets_per_check")
    assert steps.tolist() == [100, 200, 300, 400, 500]
    assert counts.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("name", ["reset", "replay-ratio", "spike-heatmap", "atari100k"])
def test_every_study_has_its_figure_in_three_formats(name: str, tmp_path: Path) -> None:
    study = find_study(name)
    games = study.games[:7] if name == "atari100k" else ["MinAtar/Breakout", "MinAtar/Asterix"]
    study = study.changed(seeds=2, games=games, settings={"steps": 500})
    out = make_up(study, tmp_path / "s", lambda run: 3.0 + run.recipe.seed)
    found, files = write_sweep_report(out)
    assert found
    assert {file.suffix for file in files} == {".txt", ".json", ".svg", ".png", ".pdf", ".html"}
    assert all(file.stat().st_size > 200 for file in files)
    svg = next(file for file in files if file.suffix == ".svg").read_text()
    assert all(word in svg for word in ("2 seeds of each variant", "protocol", "500 steps"))


def test_a_spike_ratio_that_is_no_number_is_left_out_of_the_figure(tmp_path: Path) -> None:
    study = find_study("spike-heatmap").changed(seeds=1, games=["MinAtar/Breakout"], settings={"steps": 500})
    out = make_up(study, tmp_path / "s", lambda run: 3.0)
    events = out / study.runs()[0].name / "events.jsonl"
    spikes = {"event": "spikes", "step": 501, "layers": LAYERS, "ratios": [[None] * len(LAYERS)] * 2}
    events.write_text(events.read_text() + json.dumps(spikes) + "\n")
    _, files = write_sweep_report(out)
    assert any(file.suffix == ".svg" for file in files)


def test_the_command_prints_tables_and_names_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_up(find_study("minatar").changed(seeds=2, games=["Breakout"]), tmp_path / "s", lambda run: 1.0)
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(out)])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    assert "MinAtar: mean evaluation score by game" in said
    assert (out / "report" / "report.html").is_file()
    assert (out / "report" / "minatar.svg").is_file()
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(out), "--video", "game.mp4"])
    assert stop.value.code == 2
    assert "--video: the report of a sweep shows none" in capsys.readouterr().err


def test_a_sweep_without_runs_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(find_study("minatar").to_toml())
    with pytest.raises(UserError, match="has no runs yet"):
        write_sweep_report(tmp_path)
    with pytest.raises(UserError, match="is not a sweep folder"):
        write_sweep_report(tmp_path / "none")
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.toml"]


def test_the_page_holds_the_files_tables_and_figure(tmp_path: Path, browser: Browser) -> None:
    study = find_study("decoupling").changed(seeds=2, games=["MinAtar/Breakout", "MinAtar/Asterix"])
    out = make_up(study, tmp_path / "s", lambda run: 2.0 + run.recipe.seed + (run.label == "forbid none"))
    found, files = write_sweep_report(out)
    page = files[-1]
    for width, dark in ((1280, False), (390, False), (1280, True)):
        browser.open(page, width=width, phone=width < 500, dark=dark)
        assert browser.console == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelector('.drawing img').naturalWidth") > 500
    browser.open(page, width=390, phone=True)
    outside = """[...document.querySelectorAll('table.results td, table.results th')].filter(c => c.offsetWidth
        && c.getBoundingClientRect().right > c.closest('.card').getBoundingClientRect().right).length"""
    assert browser.run(outside) == 0
    labels = browser.run(
        "[...document.querySelector('table.results tbody tr').cells].slice(1).map(c => c.dataset.label)"
    )
    assert labels == [column.strip() for column in found[0].columns[1:]]
    browser.open(page, width=1280, dark=True)
    assert browser.run("document.querySelector('h1').textContent") == "Decoupling"
    assert "protocol minatar" in browser.run("document.querySelector('.drawing img').alt")
    shown = browser.run(
        """[...document.querySelectorAll('table.results')].map(t => [...t.tBodies[0].rows].map(
        r => [...r.cells].map(c => [c.textContent, c.querySelector('strong') !== null])))"""
    )
    assert len(shown) == len(found) == 2
    for table, rows in zip(found, shown, strict=True):
        expected = [[[cell.text.removeprefix("*"), cell.best] for cell in row] for row in table.rows]
        assert [[["-" if text == "\u2013" else text, best] for text, best in row] for row in rows] == expected
    assert browser.run("document.querySelectorAll('table.results strong').length") == 5
    assert [
        entry.strip()
        for entry in browser.run(
            "[...document.querySelectorAll('[data-toggle]')].map(b => b.closest('label').textContent)"
        )
    ] == ["forbid rewarded", "forbid none"]


def test_a_sweep_in_its_first_minutes_has_a_report_without_figure(tmp_path: Path) -> None:
    out = make_up(find_study("minatar").changed(seeds=1, games=["Breakout"]), tmp_path / "s", None, lambda run: False)
    (out / "MinAtar-Breakout-seed0" / "metrics.jsonl").write_text('{"step": 50, "return_10": null}\n')
    _, files = write_sweep_report(out)
    assert {file.suffix for file in files} == {".txt", ".json", ".html"}


def test_positions_are_numbers_where_all_variants_have_one() -> None:
    assert positions([1, 2, 8]) == ([1.0, 2.0, 8.0], True)
    assert positions(["a", "b"]) == ([0.0, 1.0], False)
    assert positions([True, False]) == ([0.0, 1.0], False)
    assert positions([3]) == ([0.0], False)
