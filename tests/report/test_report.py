"""What the report says and refuses, without a browser; figures; the demo."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from steadyq.cli import demonstration as demo
from steadyq.errors import UserError
from steadyq.report.charts import _evaluation
from steadyq.report.figures import compare
from steadyq.report.games import bin_edges
from steadyq.report.html import write_report
from steadyq.report.words import figure
from steadyq.run.files import NO_VERIFY
from steadyq.suite.runs import read_runs
from steadyq.suite.variants import group


def test_page_states_what_was_run(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    run = cartpole["rewarded"][0]
    result = json.loads((run / "result.json").read_text())
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    for fact in (
        "steady on CartPole-v1",
        "ensemble.members 2",
        "raw rewards, scores are raw",
        f"torch {result['versions']['torch']}",
        f"{result['updates']:,} updates",
        "random policy",
    ):
        assert fact in text, fact
    assert not (tmp_path / "report.html.unfinished").exists()


def test_table_has_every_seed_and_the_number_of_them(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    write_report([*cartpole["rewarded"], *cartpole["none"]], tmp_path / "report.html")
    table = (tmp_path / "report.html").read_text().split("<tbody>")[1].split("</tbody>")[0]
    assert table.count("<tr") == 2
    assert table.count("seed 0") == table.count("seed 1") == 2
    assert table.count("n = 2") == 2


def test_unfinished_empty_and_diverged_runs_are_said_to_be(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    run = shutil.copytree(cartpole["none"][0], tmp_path / "run")
    (run / "result.json").unlink()
    write_report([run], tmp_path / "report.html")
    assert "Not finished: run (800 of 800 steps)." in (tmp_path / "report.html").read_text()
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "diverged", "step": 801, "message": "not finite: <loss>"}) + "\n")
    write_report([run], tmp_path / "report.html")
    assert "diverged at step 801: not finite: &lt;loss&gt;" in (tmp_path / "report.html").read_text()
    (run / "metrics.jsonl").unlink()
    (run / "events.jsonl").unlink()
    write_report([run], tmp_path / "report.html")
    assert "No measurements yet" in (tmp_path / "report.html").read_text()


def test_wrong_places_are_refused(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    run = cartpole["none"][0]
    with pytest.raises(UserError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(UserError, match="no folder"):
        write_report([run], tmp_path / "missing" / "report.html")
    with pytest.raises(UserError, match="no run at"):
        write_report([tmp_path / "nothing"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_numbers_round_as_the_pages_own_script_does() -> None:
    for value, text in (
        (12.25, "12.3"),
        (202.5, "203"),
        (5.675, "5.67"),
        (0.35, "0.35"),
        (0.0, "0"),
        (-2.5e-5, "-2.5e-05"),
    ):
        assert figure(value) == text
    assert figure(1234.5) == "1,235"
    assert figure(1e38).startswith("99,999,999")
    assert figure(0.123, "share") == "12.3%"


def test_marks_stand_at_each_runs_own_end(
    cartpole: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_VERIFY, "1")  # a result that says another end
    short = shutil.copytree(cartpole["none"][0], tmp_path / "short")
    result = json.loads((short / "result.json").read_text())
    (short / "result.json").write_text(json.dumps({**result, "steps": 400}))
    marks = _evaluation([*group(read_runs([short, *cartpole["rewarded"]])).cells])
    assert {mark.step for mark in marks if mark.variant is not None} == {400, 800}


def test_the_verdict_says_what_it_could_not_judge(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    few, none = (shutil.copytree(cartpole["none"][0], tmp_path / name) for name in ("few", "none"))
    rows = (few / "diagnostics.jsonl").read_text().splitlines()
    (few / "diagnostics.jsonl").write_text("\n".join(rows[:2]) + "\n")
    (none / "diagnostics.jsonl").unlink()
    recipe = (none / "recipe.toml").read_text()
    (none / "recipe.toml").write_text(recipe.replace("seed = 0", "seed = 7"))
    write_report([few, none], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Too few measurements to judge: few." in text
    assert "Not measured: none." in text
    assert "Nothing unstable was found" not in text


def test_a_video_that_is_none_is_refused(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    run = cartpole["none"][0]
    for video in (tmp_path / "nope.mp4", run / "recipe.toml"):
        with pytest.raises(UserError, match=r"not an \.mp4 or \.gif file"):
            write_report([run], tmp_path / "page.html", video=video)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_figure_files(suffix: str, cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.{suffix}" for n in (1, 2)]
    variants = {"constraint on": read_runs(cartpole["rewarded"]), "constraint off": read_runs(cartpole["none"])}
    for file in files:
        compare(variants, ["return_10", "q_taken"], file, title="CartPole")
    assert files[0].read_bytes() == files[1].read_bytes()
    if suffix == "svg":
        text = files[0].read_text()
        for words in ("constraint on (2 seeds)", "return of the last 10 games", "CartPole-v1, protocol gymnasium"):
            assert words in text


def test_figures_refuse_what_cannot_be_compared(
    cartpole: dict[str, list[Path]], breakout: Path, tmp_path: Path
) -> None:
    runs = {name: read_runs(paths) for name, paths in cartpole.items()}
    with pytest.raises(UserError, match="must end in"):
        compare(runs, ["loss"], tmp_path / "figure.jpg")
    with pytest.raises(UserError, match="no run has 'los'"):
        compare(runs, ["los"], tmp_path / "figure.svg")
    with pytest.raises(UserError, match="share their environment"):
        compare({**runs, "other": read_runs([breakout])}, ["loss"], tmp_path / "figure.svg")
    with pytest.raises(UserError, match="at least one run"):
        compare({"empty": []}, ["loss"], tmp_path / "figure.svg")


def test_demo_trains_films_reports_and_then_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ensemble.members": 2, "network.channels": 4, "network.hidden": (16,), "evaluation.episodes": 4}
    full = demo.demo_recipe
    monkeypatch.setattr(demo, "demo_recipe", lambda steps=None: full(steps).override({**small, "replay.warmup": 100}))

    def told() -> str:
        said = io.StringIO()
        demo.run_demo(tmp_path / "demo", steps=400, console=Console(file=said, width=200))
        return said.getvalue()

    first = told()
    for words in ("the agent scores", "random policy", "report.html", "agent.mp4", "next, try:"):
        assert words in first
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<video" in page
    again = told()
    assert "already finished" in again
    assert "agent.mp4" in again
    (tmp_path / "demo" / "agent.mp4").unlink()
    assert "already finished: " in told()  # the run is; the film is made anew
    assert (tmp_path / "demo" / "agent.mp4").is_file()


def test_histogram_bins_hold_every_game_and_zero() -> None:
    edges = bin_edges([3.0, 8.0])
    assert (edges[0], edges[-1], len(edges)) == (0.0, 8.0, 21)
    assert bin_edges([-4.0, -1.0])[0] == -4.0
    assert bin_edges([-4.0, -1.0])[-1] == 0.0
    assert bin_edges([0.0])[-1] == 1.0


def test_evaluation_games_are_drawn(cartpole: dict[str, list[Path]], tmp_path: Path) -> None:
    write_report([*cartpole["rewarded"], *cartpole["none"]], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    section = page.split('id="games"')[1].split("</section>")[0]
    assert section.count("<figure") == 2
    assert section.count("8 games, 2 seeds: lowest") == 4  # as label and as text
    counts = [int(count) for count in re.findall(r"<title>(\d+) from", section)]
    assert sum(counts) == 16
    assert [int(count) for count in re.findall(r'class="count"[^>]*>(\d+)<', section)] == counts
