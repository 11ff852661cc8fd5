"""Archives of runs: read like folders, and harmless whoever packed them."""

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import RESULTS, stored

from steadyq import cli
from steadyq.errors import UserError
from steadyq.suite import archive
from steadyq.suite.runs import read_runs
from steadyq.suite.sweep import read_sweep

pytestmark = pytest.mark.hostile

RATE = "Gymnasium-CartPole-v1-rate-seed5"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are unpacked; nothing may be left there."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.chdir(tmp_path)
    return place


def command(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(map(str, words)))
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_an_archive_compares_like_its_folders(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("compare", RESULTS / "minatar.tar.xz", "--markdown") == 0
    packed = capsys.readouterr().out
    assert command("compare", *sorted(stored("minatar").iterdir()), "--markdown") == 0
    assert capsys.readouterr().out == packed
    assert packed.count("\n") == 6
    assert list(temporary.iterdir()) == []


def test_runs_are_packed_without_weights_and_dates(tmp_path: Path) -> None:
    runs = sorted(stored("minatar").iterdir())[:2]
    for place in ("one", "two"):
        for run in runs:
            shutil.copytree(run, tmp_path / place / run.name)
            (tmp_path / place / run.name / "checkpoints").mkdir()
            (tmp_path / place / run.name / "checkpoints" / "weights").write_text(place)
            (tmp_path / place / run.name / "lock").touch()
        archive.pack(tmp_path / place, Path(f"{place}.tar.xz"), "minatar")
    assert Path("one.tar.xz").read_bytes() == Path("two.tar.xz").read_bytes()
    assert [(run.path.name, run.result) for run in read_runs([Path("one.tar.xz")])] == [
        (run.path.name, run.result) for run in read_runs(runs)
    ]
    with tarfile.open("one.tar.xz") as packed:
        names = packed.getnames()
    assert {Path(name).parts[0] for name in names} == {"minatar"}
    assert not any(name.endswith(("weights", "lock")) for name in names)
    archive.pack(tmp_path / "one", Path("one.tar.xz"), runs=[tmp_path / "one" / runs[1].name])
    assert [run.path.name for run in read_runs([Path("one.tar.xz")])] == [runs[1].name]
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_pattern_takes_some_of_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs = read_runs([RESULTS / "minatar.tar.xz" / "MinAtar-Breakout-*"])
    assert {run.path.name for run in runs} == {
        f"MinAtar-Breakout-{preset}-seed{seed}" for preset in ("dqn", "steady") for seed in range(3)
    }
    assert len(read_runs([RESULTS / "minatar.tar.xz", RESULTS / "minatar.tar.xz" / "MinAtar-Breakout-*"])) == 12
    assert command("compare", RESULTS / "minatar.tar.xz" / "Pong-*") == 2
    assert "minatar.tar.xz has no run like Pong-*: it has MinAtar-Asterix-dqn-seed0" in capsys.readouterr().err


def test_diagnose_reads_one_run_and_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("diagnose", RESULTS / "diagnose.tar.xz" / RATE, "--json") == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["name"] == "violent updates"
    assert command("diagnose", RESULTS / "diagnose.tar.xz") == 2
    said = capsys.readouterr().err
    assert "holds 75 runs: name one, as in " in said
    assert said.count("\n") == 1


def test_a_page_of_an_archive_leads_to_it(temporary: Path) -> None:
    assert command("report", RESULTS / "diagnose.tar.xz" / RATE, "--out", "page.html") == 0
    page = Path("page.html").read_text()
    assert f'results/diagnose.tar.xz">diagnose.tar.xz</a>, {RATE}' in page
    assert "violent updates" in page
    assert str(temporary) not in page


def test_a_sweep_is_read_from_its_archive(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", RESULTS / "decoupling.tar.xz") == 0
    assert {file.suffix for file in Path("decoupling-report").iterdir()} == {
        ".txt", ".json", ".svg", ".png", ".pdf", ".html"
    }  # fmt: skip
    assert read_sweep(RESULTS / "decoupling.tar.xz").finished == 12
    with tarfile.open("below.tar.gz", "w:gz") as packed:  # with a folder of its own inside
        packed.add(stored("decoupling"), "decoupling")
    assert command("report", "below.tar.gz") == 0
    first, second = (Path(place) / "tables.json" for place in ("decoupling-report", "below-report"))
    assert first.read_text() == second.read_text()
    assert list(temporary.iterdir()) == []


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"x") -> Callable[..., None]:
    def add(packed: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        info.size = len(content) if kind == tarfile.REGTYPE else 0
        packed.addfile(info, io.BytesIO(content))

    return add


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (member("../outside"), "cannot be unpacked"),
        (member("run/../../outside"), "cannot be unpacked"),
        (member("run", tarfile.SYMTYPE, "/etc"), "'run' is neither a file nor a folder"),
        (member("run", tarfile.SYMTYPE, ".."), "'run' is neither a file nor a folder"),
        (member("run/passwd", tarfile.LNKTYPE, "/etc/passwd"), "is neither a file nor a folder"),
        (member("run/pipe", tarfile.FIFOTYPE), "is neither a file nor a folder"),
        (member("run/disk", tarfile.BLKTYPE), "is neither a file nor a folder"),
        (member("run/\x1b[31mred\nline", tarfile.FIFOTYPE), r"'run/\x1b[31mred\nline' is neither"),
    ],
)
def test_a_hostile_archive_is_one_line_and_writes_nothing(
    bad: Callable[..., None], said: str, temporary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open("bad.tar.xz", "w:xz", preset=0) as packed:
        packed.add(min(stored("minatar").iterdir()), "runs/one")
        bad(packed)
    before = sorted(tmp_path.rglob("*"))
    for words in (["compare", "bad.tar.xz"], ["report", "bad.tar.xz"], ["diagnose", "bad.tar.xz/run"]):
        assert command(*words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert "\x1b" not in error
    assert sorted(tmp_path.rglob("*")) == before
    assert list(temporary.iterdir()) == []


def test_an_absolute_name_stays_inside(tmp_path: Path) -> None:
    target = tmp_path / "absolute"
    with tarfile.open("bad.tar", "w") as packed:
        member(str(target))(packed)
        packed.add(stored("atari"), "runs")
    assert command("compare", "bad.tar") == 0
    assert not target.exists()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\xfd7zXZ\x00garbage"])
def test_what_is_no_archive_is_one_line(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.tar.xz").write_bytes(content)
    assert command("compare", "bad.tar.xz") == 2
    error = capsys.readouterr().err
    assert error.startswith("steadyq: bad.tar.xz cannot be unpacked: ")
    assert error.count("\n") == 1


def test_a_cut_archive_and_one_without_runs_are_named(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (RESULTS / "atari.tar.xz").read_bytes()
    Path("cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    assert command("compare", "cut.tar.xz") == 2
    assert "cut.tar.xz cannot be unpacked: " in capsys.readouterr().err
    with tarfile.open("empty.tar.xz", "w:xz") as packed:
        member("notes.txt")(packed)
    assert command("compare", "empty.tar.xz") == 2
    assert "empty.tar.xz has no run folder in it" in capsys.readouterr().err
    assert list(temporary.iterdir()) == []


def test_an_archive_that_would_fill_the_disk_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open("bomb.tar.xz", "w:xz") as packed:
        member("run/metrics.jsonl", content=bytes(50_000_000))(packed)
    assert os.path.getsize("bomb.tar.xz") < 50_000
    monkeypatch.setattr(archive, "MOST_BYTES", 10_000_000)
    assert command("compare", "bomb.tar.xz") == 2
    assert "bomb.tar.xz unpacks to more than " in capsys.readouterr().err
    assert list(temporary.iterdir()) == []


def test_damage_inside_is_named_by_the_archive(capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open("runs.tar.gz", "w:gz") as packed:
        packed.add(stored("diagnose") / RATE, "one")
        member("one/metrics.jsonl", content=b'{"step": 1, "loss": "x"}\n')(packed)
    assert command("report", "runs.tar.gz") == 2
    said = "runs.tar.gz/one/metrics.jsonl is damaged: line 1 has 'x' for loss, which is no number"
    assert said in capsys.readouterr().err


def test_a_sweep_goes_on_from_an_archive_on_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text(
        "games = ['CartPole-v1']\nseeds = 1\n[settings]\nsteps = 60\nensemble.members = 1\noperator.exchange = 'none'\n"
        "network.hidden = [4]\nreplay.warmup = 40\nevaluation.episodes = 1\nevaluation.random_episodes = 1\n"
    )
    words = ("sweep", "s.toml", "--jobs", "1", "--archive", "kept.tar.xz")
    assert command(*words, "--out", "here") == 0
    assert "1 run in kept.tar.xz" in capsys.readouterr().out
    first = {run.path.name: run.result for run in read_runs([Path("kept.tar.xz")])}
    assert command(*words, "--out", "there", "--seeds", "2") == 0
    assert "2 finished of 2 runs" in capsys.readouterr().out
    both = {run.path.name: run.result for run in read_runs([Path("kept.tar.xz")])}
    assert [both[name] for name in first] == list(first.values())  # to the second that it took: not run again
    assert len(both) == 2
    shutil.rmtree("here")
    assert command(*words, "--out", "here", "--games", "Acrobot-v1") == 0
    assert len(read_runs([Path("kept.tar.xz")])) == 3  # what another command ran stays


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--archive", "kept.zip"), "--archive kept.zip: an archive is packed as .tar.xz"),
        (("--archive", "kept.tar.xz", "--dry-run"), "--archive and --dry-run: a dry run writes nothing"),
    ],
)
def test_an_archive_that_cannot_be_written_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sweep", "minatar", *words) == 2
    assert said in capsys.readouterr().err
    assert not Path("sweeps").exists()


def test_everything_in_a_sweeps_folder_may_be_named(tmp_path: Path) -> None:
    sweep = shutil.copytree(stored("decoupling"), tmp_path / "sweep")
    (sweep / "logs").mkdir()
    assert len(read_runs(sorted(sweep.iterdir()))) == 12
    with pytest.raises(UserError, match="logs is not a run folder"):
        read_runs([sweep / "logs"])
