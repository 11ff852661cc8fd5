"""The scheduler's decisions, with a launcher that ends runs as told; plans, costs and refusals of the command."""

import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from steadyq import cli
from steadyq.cli.options import split_settings
from steadyq.errors import UserError
from steadyq.presets import steady
from steadyq.run.folder import RunFolder
from steadyq.run.writer import Busy, begin
from steadyq.suite import cost, launch, local
from steadyq.suite.local import LocalProcesses
from steadyq.suite.plan import Entry, last_row, make_plan
from steadyq.suite.study import PlannedRun, Study, find_study, read_study, sweep_study
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

    def __init__(self, script: dict[str, list[Ending]], abreast: int = 1) -> None:
        self.script, self.running, self.started = script, list[Entry](), list[str]()
        self.abreast, self.groups = abreast, list[list[str]]()

    def open(self) -> str:
        return ""

    def news(self) -> str:
        return ""

    def room(self) -> bool:
        return len(self.running) < self.parallel

    def start(self, entries: Sequence[Entry]) -> None:
        self.groups.append([entry.run.name for entry in entries])
        self.started += self.groups[-1]
        self.running += entries

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
    begin(entry.folder, entry.run.recipe).close()
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
    code = launch.launch(make_plan(study, out), launcher, console, retries=retries)
    return code, launcher.started, console.file.getvalue()  # type: ignore[attr-defined]


NAMES = [f"MinAtar-Breakout-{label}-seed{seed}" for seed in (0, 1) for label in ("on", "off")]


def test_every_run_is_started_once_and_a_second_sweep_starts_nothing(study: Study, tmp_path: Path) -> None:
    code, started, said = go(study, tmp_path / "s", {})
    assert (code, started) == (0, NAMES)
    assert "4 finished of 4 runs" in said
    assert go(study, tmp_path / "s", {})[:2] == (0, [])
    assert sweep_study(tmp_path / "s") == study


def test_more_seeds_start_only_what_is_new(study: Study, tmp_path: Path) -> None:
    go(study, tmp_path / "s", {})
    code, started, _ = go(study.changed(seeds=3), tmp_path / "s", {})
    assert (code, started) == (0, ["MinAtar-Breakout-on-seed2", "MinAtar-Breakout-off-seed2"])
    assert sweep_study(tmp_path / "s").seeds == (0, 1, 2)


def test_a_crash_is_tried_again_and_gives_up_after_the_retries(study: Study, tmp_path: Path) -> None:
    once, always = NAMES[0], NAMES[1]
    code, started, said = go(study, tmp_path / "s", {once: ["crashed"], always: ["crashed"] * 9})
    assert code == 1
    assert [started.count(name) for name in NAMES] == [2, 3, 1, 1]
    assert f"crashed (again, 1 of 2)  {once}: it crashed" in said
    assert f"failed: {always}: it crashed" in said
    assert go(study, tmp_path / "s", {})[:2] == (0, [always])


def test_when_the_time_is_up_runs_save_their_state_and_the_same_command_continues(study: Study, tmp_path: Path) -> None:
    class Slow(Scripted):
        asked = False

        def poll(self) -> Iterator[tuple[Entry, Ending, str]]:
            if self.asked:
                yield from ((entry, "stopped", "") for entry in self.running)
                self.running = []

        def stop(self) -> None:
            self.asked = True

    console, slow = Console(file=io.StringIO(), width=200), Slow({})
    code = launch.launch(make_plan(study, tmp_path / "s"), slow, console, minutes=0.2 / 60)
    assert (code, slow.started, slow.asked) == (130, NAMES[:2], True)
    assert "the time is up" in console.file.getvalue()  # type: ignore[attr-defined]
    assert go(study, tmp_path / "s", {})[:2] == (0, NAMES)


def test_seeds_are_started_together_as_long_as_nothing_comes_between(study: Study, tmp_path: Path) -> None:
    study = study.changed(seeds=5)
    on, off = ([f"MinAtar-Breakout-{label}-seed{seed}" for seed in range(5)] for label in ("on", "off"))
    begin(RunFolder(tmp_path / "s" / on[2]), study.recipe("on", "MinAtar/Breakout", 2)).close()
    (tmp_path / "s" / on[2] / "checkpoints" / "0000000200").mkdir(parents=True)  # it goes on from another step
    (tmp_path / "s" / "sweep.toml").write_text(study.to_toml())
    script: dict[str, list[Ending]] = {on[0]: ["apart"], on[1]: ["apart"], off[0]: ["crashed"], off[1]: ["crashed"]}
    console, launcher = Console(file=io.StringIO(), width=200), Scripted(script, abreast=2)
    assert launch.launch(make_plan(study, tmp_path / "s"), launcher, console) == 0
    first, again = [on[:2], off[:2]], [[name] for name in (*on[:2], *off[:2])]
    assert sorted(launcher.groups) == sorted([*first, *again, off[2:4], [off[4]], [on[2]], on[3:]])  # nothing twice
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"goes on alone  {on[0]}: it apart" in said
    assert f"crashed (again, 1 of 2)  {off[1]}: it crashed" in said


def test_runs_of_other_learning_rates_are_started_together(study: Study, tmp_path: Path) -> None:
    study = read_study(STUDY.replace('operator.forbid = "none"', "optim.rate = 0.01"), "s")
    launcher = Scripted({}, abreast=4)
    launch.launch(make_plan(study, tmp_path / "s"), launcher, Console(file=io.StringIO()))
    assert [sorted(group) for group in launcher.groups] == [sorted(NAMES)]


def test_what_is_trained_by_itself_is_started_by_itself(study: Study, tmp_path: Path) -> None:
    study = read_study(STUDY.replace('operator.forbid = "none"', 'compute.form = "loop"'), "s")
    launcher = Scripted({}, abreast=4)
    launch.launch(make_plan(study, tmp_path / "s"), launcher, Console(file=io.StringIO()))
    assert sorted(map(len, launcher.groups)) == [1, 1, 2]


def test_what_diverges_or_is_refused_is_not_tried_again(study: Study, tmp_path: Path) -> None:
    code, started, said = go(study, tmp_path / "s", {NAMES[0]: ["diverged"], NAMES[1]: ["refused"]})
    assert (code, len(started)) == (1, 4)
    assert "1 diverged, 1 failed" in said


def test_a_run_that_diverged_before_is_skipped(study: Study, tmp_path: Path) -> None:
    plan = make_plan(study, tmp_path / "s")
    begin(RunFolder(tmp_path / "s" / NAMES[0]), plan.entries[0].run.recipe).close()
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
    writer = begin(RunFolder(tmp_path / "run"), recipe)
    try:
        with pytest.raises(Busy):
            begin(RunFolder(tmp_path / "run"), recipe)
        assert train_once(recipe, tmp_path / "run")[0] == "busy"
    finally:
        writer.close()
    assert train_once(recipe.override({"seed": 5}), tmp_path / "run")[0] == "refused"


@pytest.mark.parametrize(
    ("jobs", "share", "gpus", "parallel", "learning"),
    [
        (8, 0.5, 2, 4, 2),
        (3, 0.1, 1, 3, 1),
        (8, 1 / 3, 1, 3, 1),
        (8, 0.6, 2, 2, 2),
        (1, 0.5, 2, 1, 1),
        (3, 0.0, 4, 3, 3),
    ],
)
def test_slots_are_jobs_and_whole_shares(
    jobs: int, share: float, gpus: int, parallel: int, learning: int, tmp_path: Path
) -> None:
    launcher = LocalProcesses(tmp_path, jobs, share, gpus)
    assert (launcher.parallel, launcher.learning) == (parallel, learning)
    assert launcher.on_gpu == bool(share)


class Sleeper:
    """A run's process that has not ended, and what it was given."""

    def __init__(self, words: list[str], env: dict[str, str], **arguments: object) -> None:
        self.env, self.stdin, self.returncode = env, io.StringIO(), None

    def poll(self) -> int | None:
        return self.returncode


def devices(launcher: LocalProcesses) -> list[str]:
    return [child.process.env["CUDA_VISIBLE_DEVICES"] for child in launcher.children]  # type: ignore[attr-defined]


def test_a_run_sees_its_own_gpu_and_the_emptiest_is_next(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.subprocess, "Popen", Sleeper)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    entries = make_plan(study, tmp_path / "s").entries
    launcher = LocalProcesses(tmp_path, jobs=3, gpus_per_run=0.5, gpus=2)
    for entry in entries[:3]:
        assert launcher.room()
        launcher.start([entry])
    assert devices(launcher) == ["0", "1", "0"]
    assert not launcher.room()  # of four slots the jobs allow three
    launcher.children[1].process.returncode = 0
    (tmp_path / "logs").mkdir(exist_ok=True)
    assert [ending for _, ending, _ in launcher.poll()] == ["finished"]
    launcher.start([entries[3]])
    assert devices(launcher) == ["0", "0", "1"]


def test_a_run_gets_one_of_the_gpus_the_sweep_was_given(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.subprocess, "Popen", Sleeper)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8a2b")
    entries = make_plan(study, tmp_path / "s").entries
    launcher = LocalProcesses(tmp_path, jobs=2, gpus_per_run=1.0, gpus=2)
    on_cpu = LocalProcesses(tmp_path, jobs=2)
    for entry in entries[:2]:
        launcher.start([entry])
        on_cpu.start([entry])
    assert devices(launcher) == ["3", "GPU-8a2b"]
    assert devices(on_cpu) == ["", ""]


def test_shares_are_planned_from_the_gpus_there_are(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = study.runs()

    def launcher(jobs: int | None, share: float | None, settings: dict[str, object] | None = None) -> LocalProcesses:
        return local.local_launcher(
            study.changed(settings=settings).runs() if settings else runs, tmp_path, jobs, share
        )

    monkeypatch.setattr(local.os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr(local.torch.cuda, "is_available", lambda: False)
    assert (launcher(None, None).parallel, launcher(None, None).on_gpu) == (6, False)
    assert launcher(None, None, {"compute.threads": 2}).parallel == 3
    with pytest.raises(UserError, match="no GPU is visible"):
        launcher(None, 0.5)
    monkeypatch.setattr(local.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(local.torch.cuda, "device_count", lambda: 2)
    assert (launcher(None, None).parallel, launcher(None, None).on_gpu) == (2, True)
    assert launcher(None, 0.25).parallel == 8
    assert launcher(3, 0.25).parallel == 3
    assert (launcher(None, 0.0).parallel, launcher(None, 0.0).on_gpu) == (6, False)
    assert not launcher(None, None, {"compute.device": "cpu"}).on_gpu
    for settings in ({"compute.device": "cuda"}, {"compute.precision": "bf16"}, {"compute.form": "kernels"}):
        with pytest.raises(UserError, match="need --gpus-per-run above 0"):
            launcher(None, 0.0, settings)


def test_a_cost_here_is_timed_where_the_runs_will_train(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(cost, "seconds_per_update", lambda recipe, spec: seen.append(recipe.compute.device) or 1.0)
    cost.seconds_here(study.runs(), on_gpu=False)
    cost.seconds_here(study.runs(), on_gpu=True)
    assert seen == ["cpu", "auto"]


def test_a_machine_without_a_gpu_plans_for_those_that_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study = find_study("atari100k").changed(games=["Alien"], seeds=1)
    for settings in ({"compute.precision": "bf16"}, {"compute.device": "cuda"}, {"compute.form": "kernels"}):
        wanting = study.changed(settings=settings)
        (entry,) = make_plan(wanting, tmp_path / "s", here=False).entries
        assert entry.run.recipe.to_dict() == wanting.runs()[0].recipe.override({"compute.threads": 1}).to_dict()
        assert cost.gpu_time(entry.run, "NVIDIA H200") is not None
        with pytest.raises(UserError, match="GPU"):
            make_plan(wanting, tmp_path / "s")
    recipe = study.runs()[0].recipe
    assert cost.possible_here(recipe) == recipe
    assert cost.possible_here(recipe, on_gpu=False).compute.device == "cpu"
    assert cost.possible_here(recipe.override({"compute.form": "kernels"})).compute.form == "auto"


def test_paper_scale_costs_what_was_measured() -> None:
    (gpu,) = cost.gpus()
    (run, *_) = find_study("atari100k").changed(scale="paper", seeds=1, games=["Alien"]).runs()
    found = cost.gpu_time(run, gpu)
    assert found is not None
    assert found.factor == 1.0
    (row,) = (row for row in cost.measured() if (row.members, row.scale) == (16, 4))
    assert found.seconds == pytest.approx(392_000 * row.update_ms / 1e3 + 100_000 * row.act_ms / 1e3)
    half = PlannedRun(run.name, run.label, run.recipe.override({"ensemble.members": 8}))
    scaled = cost.gpu_time(half, gpu)
    assert scaled is not None
    assert 0.3 < scaled.seconds / found.seconds < 0.7
    assert scaled.factor != 1.0
    for changes in (
        {"compute.precision": "fp32"},
        {"auxiliary.kind": "spr"},
        {"estimator.kind": "implicit"},
        {"ensemble.prior": 1.0},
        {"operator.snapshots": 2, "optim.hard_copy_every": 100},
    ):
        other = PlannedRun(run.name, run.label, run.recipe.override(changes))
        assert cost.gpu_time(other, gpu) is None  # not what was measured
    (small, *_) = find_study("minatar").runs()
    assert cost.gpu_time(small, gpu) is None


def test_of_several_forms_gpus_and_widths_the_right_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(gpu: str, network: str, scale: int, ms: float, form: str) -> cost.Measured:
        return cost.Measured(gpu, network, 16, scale, 32, ms, 1.0, form, "here")

    rows = (
        row("A", "resnet", 4, 30.0, "bf16"),
        row("A", "resnet", 4, 90.0, "fp32"),
        row("A", "resnet", 2, 16.0, "bf16"),
        row("B", "resnet", 4, 60.0, "bf16"),
        row("B", "minatar", 32, 2.0, "bf16"),
    )
    monkeypatch.setattr(cost, "measured", lambda: rows)
    (run, *_) = find_study("atari100k").changed(scale="paper", seeds=1, games=["Alien"]).runs()
    narrow = PlannedRun(run.name, run.label, run.recipe.override({"network.scale": 2}))
    (small, *_) = find_study("minatar").runs()
    assert cost.gpus() == ("A", "B")
    assert [found.measured for gpu in ("A", "B") if (found := cost.gpu_time(run, gpu))] == [rows[0], rows[3]]
    assert [found.measured for gpu in ("A", "B") if (found := cost.gpu_time(narrow, gpu))] == [rows[2], rows[3]]
    assert cost.gpu_time(small, "A") is None
    found = cost.gpu_time(small, "B")
    assert found is not None
    assert found.measured == rows[4]


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
    (row,) = (row for row in cost.measured() if (row.members, row.scale) == (16, 4))
    hours = 130 * (392 * row.update_ms + 100 * row.act_ms) / 3600
    assert f"{hours:.1f} GPU-hours" in said
    assert f"{math.ceil(hours / 24)} machines with one such GPU would finish in a day" in said
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_plans_what_only_a_gpu_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Path(__file__).parents[2] / "studies" / "precision.toml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "seconds_per_update", lambda recipe, spec: 0.01)
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", str(study), "--dry-run"])
    assert stop.value.code == 0
    assert "protocol atari-100k, sticky 0.25" in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_says_what_it_could_not_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "seconds_per_update", lambda recipe, spec: 70.0)

    def said(*words: str) -> str:
        with pytest.raises(SystemExit):
            cli.main(["sweep", *words, "--dry-run"])
        return capsys.readouterr().out

    study = tmp_path / "mixed.toml"
    variants = '[variants.one]\ncompute.form = "auto"\n[variants.two]\ncompute.form = "stacked"\n'
    study.write_text(f'games = ["Atari/Alien"]\nseeds = 1\n{variants}')
    mixed = said(str(study))
    assert "not counted: 1 run computing in a way not timed on it" in mixed
    assert "would finish in a day" not in mixed
    for wanted in (("precision", "fp32"), ("form", "stacked"), ("device", "cpu")):
        alone = said("atari100k", "--games", "Alien", "--seeds", "1", f"--compute.{wanted[0]}", wanted[1])
        assert "no measured time of an update of network resnet" in alone, wanted
        assert "1 run (preset" in alone


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["atari101k"], "unknown suite 'atari101k': did you mean 'atari100k'?"),
        (["minatar", "--preset", "stedy"], "unknown preset 'stedy': did you mean 'steady'?"),
        (["minatar", "--scale", "papr"], "did you mean 'paper'?"),
        (["minatar", "--games", "Brekout"], "did you mean 'MinAtar/Breakout'?"),
        (["decoupling", "--variants", "forbid non"], "of this study's variants: did you mean 'forbid none'?"),
        (["minatar", "--variants", "steady"], "minatar has no variants to choose from"),
        (["minatar", "--seeds", "0"], "--seeds must be at least 1"),
        (["minatar", "--seed", "3"], "unknown option --seed: did you mean --seeds?"),
        (["minatar", "--replay.ratoi", "3"], "unknown option --replay.ratoi: did you mean --replay.ratio?"),
        (["minatar", "--replay.ratio"], "--replay.ratio needs a value"),
        (["minatar", "--replay.ratio", "many"], "replay.ratio must be a whole number"),
        (["minatar", "--jobs", "0"], "--jobs must be at least 1"),
        (["minatar", "--together", "0"], "--together must be at least 1"),
        (["minatar", "--together", "2", "--on", "ray"], "--together is for this machine"),
        (["CartPole-v9"], "no environment 'CartPole-v9'"),
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
        make_plan(study.changed(settings={"steps": 500}), tmp_path / "s")
    make_plan(study.changed(settings={"compute.threads": 2}), tmp_path / "s")  # where it computes is not what it is


@pytest.mark.parametrize("what", ["logs", NAMES[0], f"logs/{NAMES[0]}.txt"])
def test_a_link_in_a_sweep_folder_is_not_followed(what: str, study: Study, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "s", tmp_path / "elsewhere"
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "file").write_text("mine")
    (out / what).parent.mkdir(parents=True)
    (out / "sweep.toml").write_text(study.to_toml())
    (out / what).symlink_to(elsewhere / ("file" if what.endswith(".txt") else "folder"))
    with pytest.raises(UserError, match=f"{what} is a link"):
        LocalProcesses(out, jobs=1).start(make_plan(study, out).entries[:1])
    assert (elsewhere / "file").read_text() == "mine"
    assert not list((elsewhere / "folder").iterdir())


def test_a_sweep_killed_before_its_first_file_was_whole_begins_again(study: Study, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.toml.0a1b2c3d.unfinished").write_text("na")
    assert go(study, tmp_path / "s", {})[0] == 0


def test_dotted_options_of_every_kind_are_taken_out() -> None:
    words = "minatar --replay.ratio 2 --network.hidden 64 32 --record.no-tensorboard --optim.rate=1e-3 --jobs 2"
    rest, settings = split_settings(words.split(), steady("MinAtar/Breakout"))
    assert rest == ["minatar", "--jobs", "2"]
    recipe = steady("MinAtar/Breakout").override(settings)
    assert (recipe.replay.ratio, recipe.network.hidden, recipe.record.tensorboard) == (2, (64, 32), False)
    assert recipe.optim.rate == 1e-3


def test_the_last_row_is_the_last_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert last_row(file) is None
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert last_row(file) == {"step": 2}
