"""Reports of sweeps whose runs are made up: tables with known numbers, figures of every study."""

import dataclasses
import html
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
from steadyq.scores import statistics
from steadyq.scores.anchors import anchors
from steadyq.scores.published import atari100k, procgen
from steadyq.scores.tables import Table
from steadyq.suite.runs import read
from steadyq.suite.study import PlannedRun, Study, find_study
from steadyq.suite.summaries import Points, positions, summaries
from steadyq.suite.sweep import read_sweep, which_seeds
from steadyq.suite.tables import tables
from steadyq.suite.variants import evaluation_rules

LAYERS = ["stem.0", "layer1.0", "head.1"]


def make_up(study: Study, out: Path, score: Any, finished: Any = lambda run: True, more: Any = lambda run: {}) -> Path:
    """A sweep folder as if its runs had been trained; `score(run)` is a run's evaluation mean, `more` other results."""
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
            result |= {"random_episodes": 1, "wall_seconds": 1.0, **more(run)}
            (path / "result.json").write_text(json.dumps(result))
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
    aggregates, by_game, sources = tables(read_sweep(atari))
    assert column(aggregates, "mean")["steady"] == pytest.approx(1.799, abs=5e-4)
    assert column(aggregates, "median")["steady"] == pytest.approx(1.045, abs=5e-4)
    assert column(aggregates, "IQM games")["steady"] == pytest.approx(1.204, abs=5e-4)
    assert column(aggregates, "IQM slice")["steady"] == pytest.approx(1.070, abs=5e-4)
    assert column(aggregates, "above")["steady"] == 14
    assert column(aggregates, "best")["steady"] == column(aggregates, "best")["the paper's agent"]
    assert column(aggregates, "interval")["steady"] == "1.204 to 1.204"
    assert column(aggregates, "interval  ")["steady"] == "1.799 to 1.799"
    order = [row[aggregates.columns.index("IQM games")].value for row in aggregates.rows]
    assert order == sorted(order, reverse=True)  # type: ignore[type-var]
    assert [aggregates.rows[place][0].value for place in aggregates.ours] == ["steady"]
    assert "GPU minutes" not in aggregates.columns  # nobody measured them here
    assert column(aggregates, "seeds") == {"steady": "2"} | {
        each.name: each.seeds or None for each in anchors(atari100k()).values()
    }
    pooled, bbf = column(aggregates, "IQM runs x games"), "BBF RR2"
    assert (pooled[bbf], column(aggregates, "interval ")[bbf]) == (0.9403, "0.867 to 1.009")
    assert pooled["SAC-BBF RR2"] == 1.088  # as printed, without an interval
    assert column(aggregates, "interval ")["SAC-BBF RR2"] is None
    assert column(aggregates, "IQM games")[bbf] == pytest.approx(1.0380, abs=1e-4)
    assert {name for name, value in pooled.items() if value is None} == {
        "the paper's agent",
        "EfficientZero V2",
        "SR-SPR RR16",
    }
    assert "26 of 26 games" in aggregates.title
    assert column(sources, "source")[bbf].endswith("scores/RR2_BBF.csv (82124ce)")
    assert column(sources, "licence")[bbf] == "CC BY 4.0"
    assert len(by_game.rows) == 26
    assert column(by_game, "BBF RR2 no SPR")["Atari/Breakout"] == 245.662
    assert max(map(len, by_game.text(width=160).splitlines())) <= 160
    text = by_game.text(width=160)
    assert text.count("Atari/ChopperCommand") == 1  # one part, and no name is broken
    assert "Too wide for this text, in the page and the JSON: " in text
    assert "DrQ(eps)" in by_game.json()
    best = {str(row[0].value): [cell.best for cell in row].count(True) for row in by_game.rows}
    assert min(best.values()) >= 1
    assert "protocol atari-100k" in by_game.notes[-1]
    assert "52 of 52 runs finished" in by_game.notes[-1]


def test_published_aggregates_use_the_sweeps_own_games(tmp_path: Path) -> None:
    study = find_study("ablation4").changed(seeds=1)
    aggregates, *_ = tables(read_sweep(make_up(study, tmp_path / "s", published("ours"))))
    games = [env.partition("/")[2] for env in study.games]
    board = atari100k()
    own = anchors(board)["bbf_rr2"].scores
    expected = [(own[game] - board.low[game]) / (board.high[game] - board.low[game]) for game in games]
    assert column(aggregates, "mean")["BBF RR2"] == pytest.approx(np.mean(expected))
    assert column(aggregates, "IQM games")["BBF RR2"] == pytest.approx(np.mean(sorted(expected)[1:3]))
    # Of four games no source gives it, and the one of 26 games must not stand in its place.
    pooled = column(aggregates, "IQM runs x games")
    assert pooled.pop("steady") is not None
    assert set(pooled.values()) == {None}
    assert not any("interval" in name for name in aggregates.columns)  # one seed has none, and a column is never empty


def on_gpu(run: PlannedRun) -> dict[str, Any]:
    minutes = {"Atari/Breakout": 8, "Atari/Pong": 10}[run.recipe.env] + run.recipe.seed
    seconds = {"wall_seconds": 60.0 * minutes - 30, "evaluation_seconds": 30.0}
    return {**seconds, "device": "cuda", "hardware": {"cpu": "C", "cores": 2, "gpu": "NVIDIA H200"}}


@pytest.fixture
def gpu_study() -> Study:
    return find_study("atari100k").changed(preset="swift", seeds=2, games=["Atari/Breakout", "Atari/Pong"])


def test_gpu_minutes_stand_beside_published_ones(tmp_path: Path, gpu_study: Study) -> None:
    sweep = read_sweep(make_up(gpu_study, tmp_path / "s", lambda run: 14.6, more=on_gpu))
    aggregates, costs, *_ = tables(sweep)
    assert column(costs, "GPU-minutes")["swift"] == pytest.approx((8.5 + 10.5) / 2)
    assert column(costs, "longest game")["swift"] == pytest.approx(10.5)
    assert column(costs, "GPU")["swift"] == "NVIDIA H200"
    assert (column(costs, "GPU-minutes")["BBF RR2"], column(costs, "GPU")["BBF RR2"]) == (75.0, "A100")
    for name, minutes in (("swift", 9.5), ("BBF RR2", 75.0)):
        assert column(aggregates, "GPU minutes")[name] == minutes
        expected = column(aggregates, "IQM games")[name] / minutes
        assert column(costs, "IQM games a minute")[name] == pytest.approx(expected)
    assert column(costs, "IQM runs x games a minute")["swift"] is not None
    assert column(costs, "IQM runs x games a minute")["BBF RR2"] is None  # known of 26 games, not of these two
    assert column(aggregates, "GPU minutes")["SPR"] is None
    assert "   75.0 " in aggregates.text(160)
    assert [costs.rows[place][0].value for place in costs.ours] == ["swift"]
    assert "SPR" not in column(costs, "GPU")
    assert "upper bound" in costs.notes[0]
    assert "Not known: the paper's agent, BBF RR2 no SPR, DreamerV3, SPR, DrQ(eps), DER, CURL." in costs.notes[0]


@pytest.mark.parametrize("lacks", [{"hardware": {"gpu": None}}, {"device": "cpu"}, {"evaluation_seconds": None}])
def test_no_gpu_minutes_without_a_gpu_or_its_seconds(tmp_path: Path, gpu_study: Study, lacks: dict[str, Any]) -> None:
    out = make_up(
        gpu_study,
        tmp_path / "s",
        lambda run: 14.6,
        more=lambda run: on_gpu(run) | (lacks if run.recipe.env == "Atari/Pong" else {}),
    )
    assert all("GPU-minutes" not in table.title for table in tables(read_sweep(out)))


def test_the_seeds_that_a_pooled_iqm_rests_on_are_named(tmp_path: Path, gpu_study: Study) -> None:
    def finished(run: PlannedRun) -> bool:
        return run.recipe.seed == 0 or run.recipe.env == "Atari/Pong"

    out = make_up(gpu_study, tmp_path / "s", lambda run: 14.6 - run.recipe.seed, finished)
    aggregates, *_ = tables(read_sweep(out))
    assert column(aggregates, "seeds")["swift"] == "1 to 2"
    assert "Seeds that all games have: swift: 0." in aggregates.notes[2]
    board = atari100k()
    first = np.array([(14.6 - board.low[game]) / (board.high[game] - board.low[game]) for game in ("Breakout", "Pong")])
    assert column(aggregates, "IQM runs x games")["swift"] == pytest.approx(float(statistics.trimmed_mean(first)))


def test_the_page_of_a_suite_has_every_published_agent(tmp_path: Path, gpu_study: Study) -> None:
    out = make_up(gpu_study, tmp_path / "s", lambda run: 14.6, more=on_gpu)
    found, files = write_sweep_report(out)
    page = files[-1].read_text()
    saved = json.loads((out / "report" / "tables.json").read_text())
    by_game = next(table for table in saved if "by game" in table["title"])
    for anchor in anchors(atari100k()).values():
        assert anchor.name in by_game["columns"]
        assert page.count(f">{html.escape(anchor.name)}</th>") >= 3  # a row of two tables and a column of one
        assert anchor.source in page
    assert page.count('class="results') == len(found) == 4
    assert "331.1" in page  # BBF RR2 on Breakout
    text = (out / "report" / "tables.txt").read_text()
    assert max(map(len, text.splitlines())) <= 160


def test_a_page_shades_the_rows_that_are_ours(tmp_path: Path, gpu_study: Study, browser: Browser) -> None:
    _, files = write_sweep_report(make_up(gpu_study, tmp_path / "s", lambda run: 14.6, more=on_gpu))
    browser.open(files[-1], width=1280)
    shaded = "[...document.querySelectorAll('table.results tr.ours')].map(row => row.cells[0].textContent)"
    assert browser.run(shaded) == ["swift", "swift"]
    assert browser.run("getComputedStyle(document.querySelector('tr.ours th')).backgroundColor") != browser.run(
        "getComputedStyle(document.querySelector('tr:not(.ours) th')).backgroundColor"
    )
    notes = "[...document.querySelectorAll('.explains')].filter(p => p.querySelector('.ours')).map(p => p.textContent)"
    assert [note[:20] for note in browser.run(notes)] == ["Shaded: this sweep. ", "Shaded: this sweep: "]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [([0], "seed 0"), ([1, 0], "seeds 0, 1"), ([4, 0, 1, 2], "seeds 0 to 2, 4"), ([0, 0, 7], "seeds 0, 7")],
)
def test_seeds_in_words(seeds: list[int], words: str, tmp_path: Path) -> None:
    study = find_study("minatar").changed(seeds=8, games=["Breakout"])
    runs = read_sweep(make_up(study, tmp_path / "s", lambda run: 1.0)).runs
    assert which_seeds([runs[seed] for seed in seeds]) == words


TODAY = {"evaluation_epsilon": 0.001, "evaluated_networks": "target"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda run: TODAY, ""),
        (lambda run: {}, "newer evaluations of Atari: every run. Epsilon was 0"),
        (lambda run: {"evaluated_networks": "online"}, "evaluations of Atari: every run."),
        (lambda run: TODAY if run.recipe.seed else {}, "Atari: Atari-Breakout-seed0, Atari-Pong-seed0. Epsilon was 0"),
        (
            lambda run: TODAY | {"evaluation_epsilon": 0.001 * (run.recipe.seed > 0 or run.recipe.env == "Atari/Pong")},
            "Atari/Breakout was evaluated with different epsilons: 0 (Atari-Breakout-seed0); 0.001 "
            "(Atari-Breakout-seed1).",
        ),
    ],
)
def test_evaluations_by_older_or_different_rules_are_named(
    tmp_path: Path, gpu_study: Study, more: Any, said: str
) -> None:
    sweep = read_sweep(make_up(gpu_study, tmp_path / "s", lambda run: 14.6, more=more))
    rules = evaluation_rules(sweep.runs)
    assert (said in rules) if said else not rules
    *_, by_game, _ = tables(sweep)
    assert (rules in by_game.notes) == bool(rules)


def test_older_rules_are_said_of_atari_alone_and_many_runs_are_counted(tmp_path: Path, gpu_study: Study) -> None:
    minatar = find_study("minatar").changed(seeds=1, games=["Breakout"])
    assert not evaluation_rules(read_sweep(make_up(minatar, tmp_path / "m", lambda run: 1.0)).runs)

    def more(run: PlannedRun) -> dict[str, Any]:
        return TODAY if run.recipe.seed == 2 else {}

    many = gpu_study.changed(seeds=3)
    assert "Atari: 4 runs. " in evaluation_rules(
        read_sweep(make_up(many, tmp_path / "s", lambda run: 1.0, more=more)).runs
    )


def test_procgen_is_normalised_with_and_without_clipping(tmp_path: Path) -> None:
    out = make_up(find_study("procgen").changed(seeds=2), tmp_path / "s", published("procgen"))
    plain, clipped, _, sources = tables(read_sweep(out))
    assert column(plain, "mean")["steady"] == pytest.approx(np.mean(procgen().normalised("ours")))
    assert column(clipped, "mean")["steady"] == pytest.approx(np.mean(procgen().normalised("ours", clip=True)))
    assert [row[0].value for row in sources.rows] == ["PPO (Impala CNN)", "the paper's agent"]


def test_variants_are_held_against_the_best_on_each_game(tmp_path: Path) -> None:
    study = find_study("ensemble-size").changed(seeds=2, games=["MinAtar/Breakout", "MinAtar/Asterix"])
    sweep = read_sweep(make_up(study, tmp_path / "s", lambda run: run.recipe.ensemble.members + run.recipe.seed))
    variants, by_game = tables(sweep)
    assert column(variants, "mean")["16 members"] == 1.0
    assert column(variants, "mean")["4 members"] == pytest.approx(4.5 / 16.5)
    assert column(variants, "beats 1 member")["4 members"] == 1.0
    assert column(by_game, "8 members")["MinAtar/Breakout"] == 8.5
    assert column(by_game, "8 members: interval")["MinAtar/Breakout"] == "8.00 to 9.00"
    training, evaluation = summaries(sweep)
    for points in (training, evaluation):
        assert isinstance(points, Points)
        assert points.positions == [1.0, 2.0, 4.0, 8.0, 16.0]
        assert points.numeric
    assert (training.title, evaluation.title) == ("Final training return", "Evaluation score")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("auxiliary", "no run has the figure's column 'auxiliary'"),
        ("q_takn", "figure.columns has no 'q_takn': did you mean 'q_taken'"),
        ("", "figure.columns has no ''"),
        ("two\nlines", "figure.columns has no 'two"),
    ],
)
def test_a_figure_of_a_column_that_no_run_has_is_refused(column: str, said: str, tmp_path: Path) -> None:
    study = dataclasses.replace(
        find_study("ensemble-size").changed(seeds=1, games=["MinAtar/Breakout"]), columns=(column,)
    )
    out = make_up(study, tmp_path / "s", lambda run: 1.0)
    with pytest.raises(UserError, match=said):
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
    assert all(word in svg for word in ("; seeds 0, 1; protocol", "500 steps"))


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


def test_compare_names_a_sweeps_runs_by_its_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = find_study("decoupling").changed(games=["MinAtar/Breakout"], seeds=2)
    place = make_up(study, tmp_path / "sweep", lambda run: 7.0 if run.label == "forbid none" else 3.0)
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", str(place), "--markdown"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "| MinAtar/Breakout | forbid none | 2 | 7.00 7.00 | 7.00 |" in said
    assert "| MinAtar/Breakout | forbid rewarded | 2 | 3.00 3.00 | 3.00 |" in said
