"""The scheduler's decisions, with a launcher that ends runs as told; plans, costs and refusals of the command."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from steadyq import cli
from steadyq.errors import UserError
from steadyq.options import split_settings
from steadyq.presets import steady
from steadyq.runs import Busy, RunFolder
from steadyq.suite import cost, launch
from steadyq.suite.launch import Entry
from steadyq.suite.suites import PlannedRun, Study, find_study, read_study
from steadyq.suite.worker import Ending, train_once

STUDY = """
games = ["MinAtar/Breakout"]
seeds = 2
[settings]
steps = 400
ensemble.members = 2
[variants.on]
operator.forbid = "rewarded"
[variants.off]
operator.forbid = "none"
"""


class Scripted:
    """Ends every run at the next poll, in the way the script says."""

    words, parallel = "a script", 2

    def __init__(self, script: dict[str, list[Ending]]) -> None:
        self.script, self.running, self.started = script, list[Entry](), list[str]()

    def room(self) -> bool:
        return len(self.running) < self.parallel

    def start(self, entry: Entry) -> None:
        self.started.append(entry.run.name)
        self.running.append(entry)

    def poll(self) -> Iterator[tuple[Entry, Ending, str]]:
        ended, self.running = self.running, []
        for entry in ended:
            ways = self.script.get(entry.run.name, [])
            way: Ending = ways.pop(0) if ways else "finished"
            if way == "finished":
                finish(entry)
            yield entry, way, f"it {way}"

    def stop(self) -> None:
        raise AssertionError("nobody asked")

    def close(self) -> None:
        assert not self.running


def finish(entry: Entry) -> None:
    path = entry.folder.path
    entry.folder.begin(entry.run.recipe).close()
    (path / "result.json").write_text(json.dumps({"mean_return": 1.5, "steps": 400}))


@pytest.fixture
def study() -> Study:
    return read_study(STUDY, "mini")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(launch, "BUSY_SECONDS", 0.01)


def go(study: Study, out: Path, script: dict[str, list[Ending]], retries: int = 2) -> tuple[int, list[str], str]:
    console = Console(file=io.StringIO(), width=200)
    launcher = Scripted(script)
    code = launch.launch(launch.plan(study, out), launcher, console, retries=retries)
    return code, launcher.started, console.file.getvalue()  # type: ignore[attr-defined]


NAMES = [f"MinAtar-Breakout-{label}-seed{seed}" for seed in (0, 1) for label in ("on", "off")]


def test_every_run_is_started_once_and_a_second_sweep_starts_nothing(study: Study, tmp_path: Path) -> None:
    code, started, said = go(study, tmp_path / "s", {})
    assert (code, started) == (0, NAMES)
    assert "4 finished of 4 runs" in said
    assert go(study, tmp_path / "s", {})[:2] == (0, [])
    assert launch.sweep_study(tmp_path / "s") == study


def test_more_seeds_start_only_what_is_new(study: Study, tmp_path: Path) -> None:
    go(study, tmp_path / "s", {})
    code, started, _ = go(study.changed(seeds=3), tmp_path / "s", {})
    assert (code, started) == (0, ["MinAtar-Breakout-on-seed2", "MinAtar-Breakout-off-seed2"])
    assert launch.sweep_study(tmp_path / "s").seeds == (0, 1, 2)


def test_a_crash_is_tried_again_and_gives_up_after_the_retries(study: Study, tmp_path: Path) -> None:
    once, always = NAMES[0], NAMES[1]
    code, started, said = go(study, tmp_path / "s", {once: ["crashed"], always: ["crashed"] * 9})
    assert code == 1
    assert [started.count(name) for name in NAMES] == [2, 3, 1, 1]
    assert f"crashed (again, 1 of 2)  {once}: it crashed" in said
    assert f"failed: {always}: it crashed" in said
    assert go(study, tmp_path / "s", {})[:2] == (0, [always])


def test_what_diverges_or_is_refused_is_not_tried_again(study: Study, tmp_path: Path) -> None:
    code, started, said = go(study, tmp_path / "s", {NAMES[0]: ["diverged"], NAMES[1]: ["refused"]})
    assert (code, len(started)) == (1, 4)
    assert "1 diverged, 1 failed" in said


def test_a_run_that_diverged_before_is_skipped(study: Study, tmp_path: Path) -> None:
    plan = launch.plan(study, tmp_path / "s")
    RunFolder(tmp_path / "s" / NAMES[0]).begin(plan.entries[0].run.recipe).close()
    (tmp_path / "s" / NAMES[0] / "diverged").mkdir()
    (tmp_path / "s" / "sweep.toml").write_text(study.to_toml())
    code, started, _ = go(study, tmp_path / "s", {})
    assert (code, started) == (3, NAMES[1:])


def test_a_locked_run_is_left_to_its_process_and_costs_no_retry(study: Study, tmp_path: Path) -> None:
    code, started, said = go(study, tmp_path / "s", {NAMES[0]: ["busy", "busy", "busy"]}, retries=0)
    assert (code, started.count(NAMES[0])) == (0, 4)
    assert f"trained elsewhere  {NAMES[0]}" in said


def test_a_worker_says_busy_when_the_folder_is_locked(tmp_path: Path) -> None:
    recipe = steady("MinAtar/Breakout", steps=400)
    writer = RunFolder(tmp_path / "run").begin(recipe)
    try:
        with pytest.raises(Busy):
            RunFolder(tmp_path / "run").begin(recipe)
        assert train_once(recipe, tmp_path / "run")[0] == "busy"
    finally:
        writer.close()
    assert train_once(recipe.override({"seed": 5}), tmp_path / "run")[0] == "refused"


def test_gpu_slots_fill_up_one_after_another(tmp_path: Path) -> None:
    halves = launch.LocalProcesses(tmp_path, jobs=8, gpus_per_run=0.5, gpus=2)
    assert halves.parallel == 4
    assert halves.gpu_slots == {0: 2, 1: 2}
    assert launch.LocalProcesses(tmp_path, jobs=3, gpus_per_run=0.1, gpus=1).parallel == 3
    assert launch.LocalProcesses(tmp_path, jobs=3).parallel == 3


def test_paper_scale_costs_what_was_measured() -> None:
    (run, *_) = find_study("atari100k").changed(scale="paper", seeds=1, games=["Alien"]).runs()
    found = cost.gpu_time(run)
    assert found is not None
    assert found.factor == 1.0
    assert found.seconds == pytest.approx(392_000 * 0.0342 + 100_000 * 0.00118)
    half = PlannedRun(run.name, run.label, run.recipe.override({"ensemble.members": 8}))
    scaled = cost.gpu_time(half)
    assert scaled is not None
    assert 0.3 < scaled.seconds / found.seconds < 0.7
    assert scaled.factor != 1.0
    (small, *_) = find_study("minatar").runs()
    assert cost.gpu_time(small) is None


def test_a_dry_run_prints_the_cost_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "seconds_per_update", lambda recipe, spec: 70.0)
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", "atari100k", "--scale", "paper", "--dry-run"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    assert "130 runs" in said
    assert "50,960,000 updates" in said
    assert "488.4 GPU-hours" in said
    assert "21 machines with one such GPU would finish in a day" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["atari101k"], "unknown suite 'atari101k': did you mean 'atari100k'?"),
        (["minatar", "--preset", "stedy"], "unknown preset 'stedy': did you mean 'steady'?"),
        (["minatar", "--scale", "papr"], "did you mean 'paper'?"),
        (["minatar", "--games", "Brekout"], "did you mean 'MinAtar/Breakout'?"),
        (["minatar", "--seeds", "0"], "--seeds must be at least 1"),
        (["minatar", "--seed", "3"], "unknown option --seed: did you mean --seeds?"),
        (["minatar", "--replay.ratoi", "3"], "unknown option --replay.ratoi: did you mean --replay.ratio?"),
        (["minatar", "--replay.ratio"], "--replay.ratio needs a value"),
        (["minatar", "--replay.ratio", "many"], "replay.ratio must be a whole number"),
        (["minatar", "--jobs", "0"], "--jobs must be at least 1"),
        (["minatar", "--on", "slurm"], "--on cannot be 'slurm'"),
        (["minatar", "--gpus-per-run", "3"], "--gpus-per-run must be between 0 and 1"),
        (["decoupling", "--preset", "dqn"], "contradicts operator.kind"),
        (["head-width", "--games", "MinAtar/Breakout"], "needs network.kind resnet"),
        (["minatar", "--out", "file"], "is a file"),
        (["minatar", "--out", "full"], "is not empty and not a sweep folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "seconds_per_update", lambda recipe, spec: 1.0)
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "cat.jpg").write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", *words])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert says in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_another_sweeps_folder_is_refused(study: Study, tmp_path: Path) -> None:
    go(study, tmp_path / "s", {})
    with pytest.raises(UserError, match=r"belongs to another sweep \(steps: 500 != 400\): choose another --out"):
        launch.plan(study.changed(settings={"steps": 500}), tmp_path / "s")
    launch.plan(study.changed(settings={"compute.threads": 2}), tmp_path / "s")  # where it computes is not what it is


def test_dotted_options_of_every_kind_are_taken_out() -> None:
    words = "minatar --replay.ratio 2 --network.hidden 64 32 --record.no-tensorboard --optim.rate=1e-3 --jobs 2"
    rest, settings = split_settings(words.split(), steady("MinAtar/Breakout"))
    assert rest == ["minatar", "--jobs", "2"]
    recipe = steady("MinAtar/Breakout").override(settings)
    assert (recipe.replay.ratio, recipe.network.hidden, recipe.record.tensorboard) == (2, (64, 32), False)
    assert recipe.optim.rate == 1e-3


def test_the_last_row_is_the_last_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert launch.last_row(file) is None
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert launch.last_row(file) == {"step": 2}
