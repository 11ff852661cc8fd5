"""Numbers and figures in the documents come out of the commands printed with them, run on the stored results."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from steadyq import presets
from steadyq.cli import COMMANDS, main
from steadyq.fields import flatten
from steadyq.report.words import figure
from steadyq.scores import statistics
from steadyq.scores.anchors import anchors
from steadyq.scores.published import atari100k
from steadyq.scores.tables import Table
from steadyq.suite.recovery import recoveries
from steadyq.suite.runs import read_runs
from steadyq.suite.sweep import read_sweep
from steadyq.suite.tables import tables

ROOT = Path(__file__).parents[1]
PRESETS = (ROOT / "docs" / "presets.md").read_text()
WITH_SCORES = ("README.md", "docs/studies.md", "docs/presets.md")
TABLES = [
    found
    for document in WITH_SCORES
    for found in re.findall(r"^`steadyq (compare \S+)`.*?\n\n((?:\|.*\n)+)", (ROOT / document).read_text(), flags=re.M)
]
FIGURES = re.findall(
    r"^\| `(docs/\S+\.svg)` \| `steadyq ([^`]+)`(?:, its `(\S+)`)? \|$",
    (ROOT / "results" / "README.md").read_text(),
    flags=re.M,
)


@pytest.mark.parametrize(("command", "table"), TABLES, ids=[command for command, _ in TABLES])
def test_tables_of_scores_are_what_their_command_prints(
    command: str, table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit):
        main([*command.split(), "--markdown"])
    assert capsys.readouterr().out == table


def test_the_documents_have_their_tables() -> None:
    shown = [command.removeprefix("compare results/").removesuffix(".tar.xz") for command, _ in TABLES]
    assert shown == ["cartpole", "minatar", "atari", "decoupling", "ensemble-size", "precision", "swift-games"]


@pytest.fixture(scope="module")
def beside_published() -> Table:
    """The first table of the report on `swift`'s games."""
    return tables(read_sweep(ROOT / "results" / "swift-games.tar.xz"))[0]


def test_the_comparison_of_the_readme_is_the_first_columns_of_its_report(beside_published: Table) -> None:
    readme = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^`steadyq report results/swift-games\.tar\.xz`[^|]*\n\n((?:\|.*\n)+)", readme, flags=re.M)
    kept = shown.partition("\n")[0].count("|") - 1
    assert kept >= 4
    columns, rows = beside_published.columns[:kept], tuple(row[:kept] for row in beside_published.rows)
    assert shown == Table("", columns, rows, ours=beside_published.ours).markdown()


def test_what_presets_say_of_swift_is_in_its_report(beside_published: Table) -> None:
    names = [row[0].value for row in beside_published.rows]
    place = beside_published.columns.index("IQM games")

    def iqm(name: str) -> str:
        return f"{beside_published.rows[names.index(name)][place].value:.2f}"

    paper = iqm("the paper's agent")
    assert (
        f"their interquartile mean is {iqm('swift')}; BBF at two updates a step has {iqm('BBF RR2 no SPR')} without "
        f"SPR's loss and {iqm('BBF RR2')} with it, the paper's agent {paper}, "
        f"SAC-BBF {iqm('SAC-BBF RR2')}, EfficientZero V2 {iqm('EfficientZero V2')}"
    ) in " ".join(PRESETS.split())


def test_what_presets_say_of_resets_is_what_they_cost() -> None:
    shown = dict(re.findall(r"^\| (\w+) \|((?: [\d.,]+ \|){7})$", PRESETS, flags=re.M))
    runs = read_runs([ROOT / "results" / "swift-games.tar.xz"])
    assert len(shown) == len(runs)
    for run in runs:
        found = recoveries(run)
        assert [each.step for each in found] == [22000, 42000, 62000]
        scores = [*(each.before for each in found), float(run.metrics.series("return_10")[1][-1])]
        words = [*(figure(score) for score in scores), *(f"{each.regained:,}" for each in found)]
        assert shown[run.recipe.env.partition("/")[2]].strip(" |").split(" | ") == words


def test_what_presets_say_of_asterix_is_in_its_run() -> None:
    board = atari100k()
    (run,) = read_runs([ROOT / "results" / "swift-games.tar.xz" / "Atari-Asterix-seed0"])
    assert run.result is not None
    own = (run.result["mean_return"] - board.low["Asterix"]) / (board.high["Asterix"] - board.low["Asterix"])
    theirs = float(anchors(board)["bbf_rr2"].normalised(board, ["Asterix"])[0])
    last = run.diagnostics[len(run.diagnostics) - 1]
    said = " ".join(PRESETS.split())
    assert f"human-normalised {own:.2f} where BBF has {theirs:.2f}, the verdict finds nothing" in said
    assert f"values stay beside returns ({last['q_greedy']:.1f} and {last['return_mean']:.1f} in the last row)" in said
    assert run.verdict().state == "stable"


def test_published_scores_of_presets_are_those_that_come_with_the_package() -> None:
    board = atari100k()
    found = anchors(board)

    def pooled(column: str) -> str:
        return f"{found[column].iqm_runs:.2f} ({found[column].seeds} seeds"

    def of_means(column: str) -> str:
        return f"{statistics.trimmed_mean(found[column].normalised(board, board.games)):.2f} over the games' means"

    said = dict(
        re.findall(r"^Published: (.+?)\s`steadyq train Atari/Alien --preset (\w+)`", PRESETS, flags=re.M | re.S)
    )
    said = {preset: " ".join(words.split()) for words, preset in said.items()}
    for preset, words in {
        "steady": of_means("ours"),
        "der": pooled("der"),
        "curl": pooled("curl"),
        "drq": pooled("drq_eps"),
        "spr": pooled("spr"),
        "sr_spr": of_means("sr_spr"),
        "bbf": pooled("bbf_rr2"),
    }.items():
        assert said[preset].startswith(words), preset
    assert (
        f"without SPR's loss (`--auxiliary.kind none`) {pooled('bbf_rr2_without_spr').partition(' ')[0]}" in said["bbf"]
    )


@pytest.mark.parametrize(("figure", "command", "file"), FIGURES, ids=[figure for figure, *_ in FIGURES])
def test_figures_are_what_their_command_draws(
    figure: str, command: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    drawn = tmp_path / (file or "figure.svg")
    words = [{figure: str(drawn), "report": str(tmp_path)}.get(word, word) for word in shlex.split(command)[1:]]
    with pytest.raises(SystemExit) as stop:
        main([command.split()[0], *words])
    assert stop.value.code == 0
    assert drawn.read_bytes() == (ROOT / figure).read_bytes()


def test_every_figure_of_results_has_its_command() -> None:
    drawn_by_hand = {"docs/architecture.svg"}
    shown = {f"docs/{file.name}" for file in (ROOT / "docs").glob("*.svg")}
    assert {figure for figure, *_ in FIGURES} == shown - drawn_by_hand


def test_tables_of_times_are_what_their_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "performance.md").read_text()
    commands = re.findall(r"^`steadyq (bench --show \S+ --markdown)`$", text, flags=re.M)
    assert commands
    for command in commands:
        with pytest.raises(SystemExit):
            main(command.split())
        assert capsys.readouterr().out in text


PROMISES = (ROOT / "docs" / "promises.md").read_text()


def test_promises_are_held_by_tests_that_exist() -> None:
    named = set(re.findall(r"`(tests/\S+\.py)::(\w+)", PROMISES))
    assert len(named) > 50
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


@pytest.mark.parametrize("words", [("-m", "tests.faults"), ("tests/mutants.py",)])
def test_counts_of_faults_and_mutants_are_those_of_the_results(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, *words, "--show"], cwd=ROOT, capture_output=True, text=True, check=True)
    for part in done.stdout.split("\n\n"):
        assert part.strip() in PROMISES
    assert "not explained" not in PROMISES


def test_every_listed_break_and_survivor_still_stands_in_the_source() -> None:
    listed = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())
    for one in listed["mutant"]:
        assert (ROOT / "src" / "steadyq" / one["file"]).read_text().count(one["before"]) == 1, one["what"]
    for one in listed["survivor"]:
        assert one["before"] in (ROOT / "src" / "steadyq" / one["file"]).read_text(), one


def test_links_in_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_command_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"^steadyq (\w+)", (ROOT / "README.md").read_text(), flags=re.M))
    assert shown
    assert shown <= set(COMMANDS)


@pytest.mark.parametrize("name", ["own.md", "compared.md"])
def test_options_of_ours_that_a_document_shows_are_options(name: str) -> None:
    """Theirs have no dot in them."""
    fields = {option.replace("_", "-") for option in flatten(presets.steady("CartPole-v1").to_dict())}
    shown = set(re.findall(r"--([a-z]+\.[a-z-]+)", (ROOT / "docs" / name).read_text()))
    assert shown
    assert shown - fields <= {"env.kwargs", "env.wrappers"}
