"""What reaches the terminal and the files that a command was asked for: nothing that commands either."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from steadyq import cli
from steadyq.cli.terminal import check_file, write_file
from steadyq.errors import UserError, printable, shown
from steadyq.run.progress import SafeConsole, Terminal

pytestmark = pytest.mark.hostile

QUICK = ["--network.hidden", "8", "--ensemble.members", "2", "--estimator.quantiles", "3", "--replay.warmup", "40"]
QUICK += ["--record.every", "20", "--monitor.every", "20", "--monitor.batch", "8", "--evaluation.episodes", "1"]
QUICK += ["--evaluation.random-episodes", "1", "--record.no-tensorboard", "--steps", "80"]
EVIL = "\x1b]0;owned\x07\x1b[2Jname\x9b31m\u202egnp.exe\udcff\r"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(words))
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", "CartPole-v1", "--run", str(folder), *QUICK) == 0
    return folder


def harmless(text: str) -> bool:
    return not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\udcff" for c in text)


def test_control_characters_are_spelt_out() -> None:
    assert printable("plain, été, │ 日本\n") == "plain, été, │ 日本\n"
    assert harmless(printable(EVIL))
    assert "\\x1b]0;owned\\x07" in printable(EVIL)
    assert harmless(shown(EVIL))
    assert len(shown("x" * 10_000)) < 100
    assert shown(10**5000) == "a number of thousands of digits"


def test_a_mistake_is_one_line_whatever_it_repeats() -> None:
    said = str(UserError("unknown option " + "x\n" * 5000 + EVIL + "did you mean --run?"))
    assert harmless(said)
    assert "\n" not in said
    assert len(said) < 1100
    assert said.startswith("unknown option x x")
    assert said.endswith("did you mean --run?")
    assert str(UserError("a  plain text")) == "a  plain text"


@pytest.mark.parametrize("command", ["report", "compare", "diagnose", "evaluate", "sweep"])
def test_a_name_too_long_for_a_file_is_one_line_not_all_of_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "9" * 5000) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 1100


def test_a_console_shows_what_it_is_given_and_keeps_its_own_colours() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system="standard", width=200)
    table = Table(EVIL)
    table.add_row(EVIL)
    for printed in (EVIL, table, Table(title=EVIL)):
        console.print(printed)
    console.print("[bold]loud[/]", markup=True)
    Terminal(console).note(EVIL)
    said = out.getvalue()
    assert "\x1b[1mloud\x1b[0m" in said
    for own in ("\x1b[1mloud", "\x1b[1m", "\x1b[3m", "\x1b[0m"):
        said = said.replace(own, "")
    assert harmless(said)


@pytest.mark.parametrize("command", ["report", "compare", "diagnose", "evaluate", "train", "sweep"])
def test_names_from_files_reach_the_terminal_as_text(
    command: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = EVIL.replace("\udcff", "")
    shutil.copytree(trained, place := tmp_path / evil)
    if command in ("report", "compare", "diagnose"):
        assert run(command, str(place), "--no-verify") == 0
        assert harmless(capsys.readouterr().out)
    for file, text in (
        ("recipe.toml", f'env = "{json.dumps(evil)[1:-1]}"\n[protocol]\nname = "gymnasium"'),
        ("recipe.toml", f'"{json.dumps(evil)[1:-1]}" = 3'),
        ("recipe.toml", evil),
        ("result.json", json.dumps({evil: evil, "mean_return": evil})),
        ("metrics.jsonl", json.dumps({"step": 1, evil: evil}) + "\n"),
    ):
        (place / file).write_text(text)
        (tmp_path / "study.toml").write_text(text)
        words = {"train": ["CartPole-v1", "--run", str(place), *QUICK], "sweep": ["study.toml", "--dry-run"]}
        run(command, *words.get(command, [str(place), "--no-verify"]), "--debug")
        said = capsys.readouterr()
        assert harmless(said.out + said.err), (file, text)


SEVERAL = """
import json, sys
from steadyq import cli
codes = []
for words in json.load(sys.stdin):
    try:
        cli.main(words)
    except SystemExit as stop:
        codes.append(stop.code)
print("codes", *codes)
"""


@pytest.mark.parametrize("ascii_only", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_what_the_terminal_cannot_write_is_replaced(ascii_only: dict[str, str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, place := tmp_path / "run")
    (place / "metrics.jsonl").write_text((place / "metrics.jsonl").read_text().replace("epsilon", "é日本"))
    commands = [
        ["train", "CartPole-v1", "--run", str(tmp_path / "new"), *QUICK],
        ["compare", str(place), "--no-verify"],
        ["compare", "日本"],
        ["report", str(place), "--no-verify"],
        ["train", "CartPole-v1", "--run", "é", "--é", "日本"],
        ["paper", "table1"],
    ]
    environment = {**os.environ, **ascii_only, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL],
        cwd=tmp_path,
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "codes 0 0 2 0 2 0", done.stderr
    assert "UnicodeEncodeError" not in done.stderr


@pytest.mark.parametrize("words", [["train", "CartPole-v1", "--run"], ["report"], ["evaluate"], ["sweep"]])
def test_a_path_that_is_no_text_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words, os.fsdecode(b"run-\xff\xfe")) == 2
    assert capsys.readouterr().err.startswith(r"steadyq: 'run-\udcff\udcfe' is no text here: rename the file")
    assert not list(tmp_path.iterdir())


OWN = ("recipe.toml", "result.json", "metrics.jsonl", "events.jsonl", "diagnostics.jsonl", "lock")


@pytest.mark.parametrize("name", [*OWN, "checkpoints/0000000080/state.json", "checkpoints/0000000080/scores.json"])
def test_no_output_replaces_a_file_of_a_run(
    name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(shutil.copytree(trained, tmp_path / "run"))
    (tmp_path / "link").symlink_to(place / name)
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    for out in (place / name, tmp_path / "link", place / "checkpoints" / ".." / name):
        for words in (["evaluate", str(place), "--json"], ["report", str(place), "--out"], ["bench", "--json"]):
            assert run(*words, str(out)) == 2
            assert "this file belongs to a run, which it would destroy; name another" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def test_other_files_beside_a_run_are_written(trained: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(trained, tmp_path / "run"))
    assert run("evaluate", str(place), "--episodes", "1", "--json", str(place / "scores.json")) == 0
    assert json.loads((place / "scores.json").read_text())["episodes"] == 1
    check_file("--json", Path("/dev/null"))
    write_file(Path("/dev/null"), "text")
    with pytest.raises(UserError, match="belongs to a run"):
        check_file("--out", tmp_path / "sweep.toml")


@pytest.mark.parametrize("name", ["-y.mp4", "--help.gif", "pipe:1.mp4", "a:b/game.mp4", "%03d.mp4"])
def test_a_video_may_have_any_name(name: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b").mkdir()
    assert run("play", str(trained), f"--out={name}", "--max-seconds", "0.5") == 0
    assert Path(name).stat().st_size > 100
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == sorted({"a:b", name})


def test_a_demo_may_be_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--out", "a:b", "--steps", "40") == 0
    assert {path.name for path in Path("a:b").iterdir()} == {"run", "agent.mp4", "report.html"}
