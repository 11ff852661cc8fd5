"""The paper has a name, and it is the same everywhere."""

from pathlib import Path

import pytest

from steadyq.cli import main
from steadyq.paper import AUTHORS, BIBTEX, CITATION, TITLE

ROOT = Path(__file__).parents[2]


def test_the_readme_and_the_citation_file_name_the_paper() -> None:
    assert BIBTEX in (ROOT / "README.md").read_text()
    cited = (ROOT / "CITATION.cff").read_text()
    assert TITLE in cited
    listed = [line.split(": ")[1] for line in cited.splitlines() if "-names: " in line]
    assert [" ".join(pair) for pair in zip(listed[::2], listed[1::2], strict=True)] == list(AUTHORS)


@pytest.mark.parametrize("what", ["table1", "check", "hyperparameters"])
def test_every_table_says_whose_it_is(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["paper", what])
    assert stop.value.code == 0
    assert CITATION in " ".join(capsys.readouterr().out.split())


def test_cite_prints_the_entry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["paper", "cite"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == BIBTEX
