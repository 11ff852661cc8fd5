"""Numbers in the documents come out of the commands printed above them, run on the files in the repository."""

import re
from pathlib import Path

import pytest

from steadyq.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
WITH_SCORES = ("README.md", "docs/studies.md")
TABLES = [
    found
    for document in WITH_SCORES
    for found in re.findall(r"^`steadyq (compare \S+)`.*?\n\n((?:\|.*\n)+)", (ROOT / document).read_text(), flags=re.M)
]


@pytest.mark.parametrize(("command", "table"), TABLES, ids=[command for command, _ in TABLES])
def test_tables_of_scores_are_what_their_command_prints(
    command: str, table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    word, pattern = command.split()
    with pytest.raises(SystemExit):
        main([word, *map(str, sorted(Path().glob(pattern))), "--markdown"])
    assert capsys.readouterr().out == table


def test_the_documents_have_their_tables() -> None:
    shown = [command.removeprefix("compare results/") for command, _ in TABLES]
    studies = ["studies/decoupling/Min*", "studies/ensemble-size/Min*", "studies/precision/Atari*"]
    assert shown == ["cartpole/*", "minatar/*", "atari/*", *studies]


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


def test_links_in_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_command_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"^steadyq (\w+)", (ROOT / "README.md").read_text(), flags=re.M))
    assert shown
    assert shown <= set(COMMANDS)
