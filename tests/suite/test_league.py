"""The league's grid and its rule, its archives, and a league that is played in two pieces by real runs."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from scripts import script

from steadyq import presets
from steadyq.suite.archive import unpacked
from steadyq.suite.plan import Entry
from steadyq.suite.study import find_study
from steadyq.suite.worker import Ending, train_all

TINY = {
    "record.every": 50,
    "monitor.every": 50,
    "replay.warmup": 40,
    "replay.capacity": 500,
    "network.channels": 4,
    "network.hidden": [16],
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 2,
    "record.tensorboard": False,
    "compute.device": "cpu",
}


@pytest.fixture
def league(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with files of its own."""
    module = script("league")
    (tmp_path / "results").mkdir()
    for name, place in (("RESULTS", "results"), ("STUDY", "league.toml"), ("PAGE", "league.md")):
        monkeypatch.setattr(module, name, tmp_path / place)
    return module


class Here:
    """Trains in this process: half of the league does, where starting processes would take most of the time."""

    words, parallel, abreast = "this process", 1, 2

    def __init__(self) -> None:
        self.waiting: list[Sequence[Entry]] = []

    def open(self) -> str:
        return ""

    def news(self) -> str:
        return ""

    def room(self) -> bool:
        return not self.waiting

    def start(self, entries: Sequence[Entry]) -> None:
        self.waiting.append(entries)

    def poll(self) -> Iterator[tuple[Entry, Ending, str]]:
        while self.waiting:
            entries = self.waiting.pop()
            ending = train_all([entry.run.recipe for entry in entries], [entry.folder.path for entry in entries])
            yield from ((entry, *ending) for entry in entries)

    def stop(self) -> None:
        raise AssertionError("nobody asked")

    def close(self) -> None:
        assert not self.waiting


def test_every_preset_has_the_same_grid(league: ModuleType) -> None:
    runs = league.grid().runs()
    each = {preset: len(league.points(preset)) for preset in league.presets()[0]}
    assert next(iter(each)) == "dqn"
    assert set(each) | set(league.presets()[1]) == set(presets.PRESETS)
    copying = {preset for preset in each if presets.recipe_for(preset, league.TUNED_ON).optim.hard_copy_every == 1}
    assert {preset for preset, count in each.items() if count == 3} == copying
    assert {count for preset, count in each.items() if preset not in copying} == {6}
    assert len(runs) == 2 * sum(each.values())
    assert not {run.recipe.seed for run in runs} & set(league.SEEDS)
    averaged = league.points("averaged_dqn")["averaged_dqn rate 0.0005 target 0.02"]
    assert averaged == {"preset": "averaged_dqn", "optim.rate": 5e-4, "optim.hard_copy_every": 50}


@pytest.mark.slow
def test_a_league_is_played_in_pieces(
    league: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(league, "PRESETS", {name: presets.PRESETS[name] for name in ("drq", "dqn")})
    for name, value in (("RATES", (5e-4, 1e-3)), ("TARGET_RATES", (0.02,)), ("COMMON", TINY)):
        monkeypatch.setattr(league, name, value)
    for name, value in (("GRID_STEPS", 150), ("STEPS", 200), ("GRID_SEEDS", (7,)), ("SEEDS", (0, 1))):
        monkeypatch.setattr(league, name, value)
    monkeypatch.setattr(league, "GAMES", ("MinAtar/Breakout",))
    here = ["--gpus-per-run", "0", "--jobs", "2"]
    assert league.main(["grid", "--runs", str(tmp_path / "one"), "--minutes", "0", *here]) == 130
    assert "0 runs in" in capsys.readouterr().out
    assert league.main(["grid", "--presets", "drq", "--runs", str(tmp_path / "one"), *here]) == 0
    assert "2 of 2 runs to do" in capsys.readouterr().out
    assert league.main(["grid", "--runs", str(tmp_path / "one"), *here]) == 0
    assert "2 of 4 runs to do" in capsys.readouterr().out
    areas = {
        label: league.area(cell[0]) for label, cell in league.read("grid", league.grid()).cells[league.TUNED_ON].items()
    }
    assert league.main(["choose"]) == 0
    study = find_study(str(league.STUDY))
    assert study.labels == ("dqn", "drq")
    assert league.main(["table"]) == 0
    page = league.PAGE.read_text()
    assert "Not played yet: `dqn`, `drq`." in page
    dqn, drq = (max(value for label, value in areas.items() if label.startswith(name)) for name in ("dqn", "drq"))
    assert (f"**{dqn:.1f}**" in page, f"**{drq:.1f}**" in page) == (True, True)
    assert "apart at a point" not in page  # one seed
    for preset, changes in study.variants.items():
        label = max((label for label in areas if label.startswith(preset)), key=lambda label: areas[label])
        assert changes == league.points(preset)[label]

    monkeypatch.setattr(league, "launcher_for", lambda *given, **options: Here())
    assert league.main(["play", "--runs", str(tmp_path / "two"), *here]) == 0
    archive = league.RESULTS / "league-play.tar.xz"
    archive.rename(league.RESULTS / "league-play-first.tar.xz")
    assert league.main(["play", "--runs", str(tmp_path / "elsewhere"), *here]) == 0
    assert "0 of 4 runs to do" in capsys.readouterr().out
    with unpacked(archive) as whole:
        assert len(list(whole.rglob("result.json"))) == 4
    assert league.main(["table"]) == 0
    page = league.PAGE.read_text()
    assert "| variant | mean | interval | median | beats dqn |" in page
    assert "| preset | dormant share | effective rank, of possible | spike | churn | overestimation |" in page
    assert page.count("| drq |") == 4
    assert "Not played yet" not in page


@pytest.mark.parametrize("value", [-math.inf, 0.0])
def test_a_preset_that_learned_nothing_anywhere_has_its_row(
    value: float, league: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no share of nothing, and of what diverged."""
    monkeypatch.setattr(league, "presets", lambda: ({"dqn": None, "drq": None}, {}))
    monkeypatch.setattr(league, "area", lambda run: run)
    drq, dqn = (dict.fromkeys(league.points(name), 2 * [area]) for name, area in (("drq", 3.0), ("dqn", value)))
    sweep = SimpleNamespace(cells={league.TUNED_ON: dqn | drq}, study=SimpleNamespace(seeds=(1, 2)))
    first, second = league.sensitivity(sweep).rows
    assert [cell.value for cell in first if cell.value is not None] == ["drq", 3.0, 3.0, 3.0, 1.0]
    assert (second[0].value, second[-1].value) == ("dqn", None)
