"""A search for a recipe: shared by processes, continued after a kill, checked on fresh seeds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from steadyq import presets
from steadyq.cli import main
from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.suite.tuning import (
    CUT,
    Choice,
    Range,
    Tuning,
    dearest,
    default_space,
    importances,
    open_study,
    read_space,
)

optuna = pytest.importorskip("optuna")

SHORT = {
    "steps": 200, "network.hidden": (8,), "replay.warmup": 64, "replay.batch": 8, "record.every": 100,
    "monitor.every": 0, "evaluation.episodes": 2, "evaluation.interim_episodes": 1, "evaluation.random_episodes": 1,
    "compute.threads": 1,
}  # fmt: skip
WORDS = [
    "CartPole-v1", "--preset", "dqn", "--trials", "4", "--seeds", "2", "--steps", "200", "--network.hidden", "8",
    "--replay.warmup", "128", "--record.every", "100", "--monitor.every", "0", "--evaluation.episodes", "2",
    "--evaluation.interim-episodes", "1", "--evaluation.random-episodes", "1", "--compute.threads", "1",
]  # fmt: skip
STATES = optuna.trial.TrialState
SPACE = {"optim.rate": Range(1e-4, 1e-2, log=True), "replay.n_step": Choice((1, 3))}


def recipe() -> Recipe:
    return presets.dqn("CartPole-v1").override(SHORT)


def trials(out: Path) -> list[tuple[int, str]]:
    return [(trial.number, trial.state.name) for trial in open_study(out, optuna).get_trials()]


def test_trials_train_every_seed_and_the_best_is_a_recipe(tmp_path: Path) -> None:
    said: list[str] = []
    tuning = Tuning(recipe(), SPACE, tmp_path / "t", trials=3, seeds=2, say=said.append)
    tuning.work()
    assert trials(tmp_path / "t") == [(0, "COMPLETE"), (1, "COMPLETE"), (2, "COMPLETE")]
    assert len(said) == 3
    folders = sorted(str(f.relative_to(tmp_path / "t")) for f in (tmp_path / "t" / "trials").glob("*/seed*"))
    assert folders == [f"trials/000{trial}/seed{seed}" for trial in range(3) for seed in range(2)]
    best, changes, score = tuning.best(tuning.begin())
    assert changes.keys() == SPACE.keys()
    assert best.optim.rate == changes["optim.rate"]
    assert (best.evaluation.every, best.replay.n_step) == (0, changes["replay.n_step"])
    assert score == max(trial.value for trial in tuning.begin().get_trials())
    tuning.work()  # nothing is left to do
    assert len(said) == 3
    assert importances(tuning.begin()) == {}  # three trials say nothing


def test_a_trial_far_worse_than_the_others_is_cut_short(tmp_path: Path) -> None:
    tuning = Tuning(recipe(), SPACE, tmp_path / "t", trials=6, seeds=1, say=lambda text: None)
    study = tuning.begin()
    for _ in range(5):
        trial = study.ask()
        for name, part in SPACE.items():
            part.suggest(trial, name)
        for place in range(6):
            trial.report(1000.0, place)
        study.tell(trial, 1000.0)
    tuning.work()
    assert trials(tmp_path / "t")[5] == (5, "PRUNED")
    result = (tmp_path / "t" / "trials" / "0005" / "seed0" / "result.json").read_text()
    assert CUT in result


def tried(*trials: tuple[float, float, int, str]) -> Any:
    """A study of trials: score, rate, n and how each ended."""
    study = optuna.create_study(direction="maximize")
    kinds = {
        "optim.rate": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
        "replay.n_step": optuna.distributions.CategoricalDistribution([1, 3]),
    }
    for value, rate, n, state in trials:
        params = {"optim.rate": rate, "replay.n_step": n}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, state=STATES[state], value=value))
    return study


def test_what_mattered_by_hand() -> None:
    """Ranks 1 to 6. By n: {6, 5, 4} and {1, 2, 3}, 4 within of 17.5: 1 - (4 / 4) / (17.5 / 5). By thirds of the rate:
    {1, 6}, {2, 5}, {3, 4}, all of it within, and chance takes off more than is there.
    """
    rates = {6: 1e-4, 1: 2e-4, 5: 5e-4, 2: 6e-4, 4: 1e-3, 3: 2e-3}
    ends = {score: "COMPLETE" if score > 3 else "PRUNED" for score in rates}
    study = tried(*((float(score), rate, 1 if score > 3 else 3, ends[score]) for score, rate in rates.items()))
    found = importances(study)
    assert list(found) == ["replay.n_step", "optim.rate"]
    assert found == pytest.approx({"replay.n_step": 1 - 1 / 3.5, "optim.rate": 0.0})


def test_trials_that_are_all_alike_or_all_different_say_nothing() -> None:
    assert importances(tried(*[(5.0, 1e-3, 1, "COMPLETE")] * 6)) == {}
    assert importances(tried(*((float(i), 1e-3, 1, "COMPLETE") for i in range(3)))) == {}
    assert importances(tried(*((float(i), 1e-3, 1, "COMPLETE") for i in range(4))))["replay.n_step"] == 0.0


def test_a_killed_search_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "steadyq", "tune", *WORDS, "--check", "0", "--out", str(tmp_path / "t")]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    second = tmp_path / "t" / "trials" / "0001" / "seed0"
    while not second.is_dir():
        assert started.poll() is None
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    done = {file: file.stat().st_mtime_ns for file in (tmp_path / "t" / "trials").rglob("result.json")}
    assert done
    with pytest.raises(SystemExit) as ended:
        main(["tune", *WORDS, "--check", "0", "--out", str(tmp_path / "t")])
    assert ended.value.code == 0
    assert [number for number, _ in trials(tmp_path / "t")] == [0, 1, 2, 3]
    assert all(state in ("COMPLETE", "PRUNED") for _, state in trials(tmp_path / "t"))
    assert all(file.stat().st_mtime_ns == then for file, then in done.items())


@pytest.mark.slow
def test_two_processes_share_the_work_and_fresh_seeds_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *WORDS, "--jobs", "2", "--check", "2", "--out", str(tmp_path / "t")])
    shown = capsys.readouterr().out
    assert ended.value.code == 0, shown
    assert [number for number, _ in trials(tmp_path / "t")] == [0, 1, 2, 3]
    assert "chance that tuned beats untuned" in shown
    assert "tuned, 2 fresh seeds" in shown
    page = (tmp_path / "t" / "report.html").read_text()
    assert "All trials" in page
    assert "optim.rate" in page
    tuned = Recipe.from_toml((tmp_path / "t" / "best.toml").read_text())
    assert tuned.steps == 200
    with pytest.raises(SystemExit) as ended:
        main(["train", "--recipe", str(tmp_path / "t" / "best.toml"), "--seed", "7", "--run", str(tmp_path / "run")])
    assert ended.value.code == 0
    assert Recipe.from_toml((tmp_path / "run" / "recipe.toml").read_text()).optim.rate == tuned.optim.rate


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "should be"),
        ('"optim.rate" = { low = 1, high = 0.1 }', "low < high"),
        ('"optim.rate" = { low = 0, high = 0.1, log = true }', "above 0 with log"),
        ('"optim.rat" = { low = 0.1, high = 1.0 }', "did you mean 'rate'"),
        ('"replay.batch" = { choices = [] }', "should be"),
        ('"replay.batch" = { choices = [0] }', "replay.batch"),
        ("seed = { choices = [1, 2] }", "cannot be searched"),
        ("[[", "space.toml"),
        ("", "names nothing"),
    ],
)
def test_a_space_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_space(text, "space.toml", recipe())


def test_a_space_may_be_written_in_sections() -> None:
    text = "[optim]\nrate = { low = 1e-4, high = 1e-2, log = true }\n[replay]\nn_step = { choices = [1, 3] }\n"
    assert read_space(text, "space.toml", recipe()) == SPACE
    assert default_space(recipe())


def test_another_search_does_not_go_into_the_folder(tmp_path: Path) -> None:
    Tuning(recipe(), SPACE, tmp_path / "t", trials=1, seeds=1).begin()
    with pytest.raises(UserError, match=r"searches something else \(seeds = 1, not seeds = 2\)"):
        Tuning(recipe(), SPACE, tmp_path / "t", trials=1, seeds=2).begin()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(UserError, match="there is something else"):
        Tuning(recipe(), SPACE, tmp_path / "mine", trials=1, seeds=1).begin()


def test_the_dearest_of_a_space_is_what_a_search_may_cost() -> None:
    space = {"replay.ratio": Choice((4, 8)), "replay.batch": Choice((16, 32)), "replay.every": Choice((2, 1)),
             "optim.rate": Range(1e-4, 1e-2), "network.norm": Choice(("none", "layer"))}  # fmt: skip
    found = dearest(space, recipe().override({"replay.every": 2}))
    assert (found.replay.ratio, found.replay.batch, found.replay.every, found.network.norm) == (8, 32, 1, "none")
    assert found.updates == 8 * (200 - 64)


def test_what_is_left_is_said_first_and_one_fresh_seed_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", *WORDS, "--out", str(tmp_path / "t"), "--check", "0"]
    for more, runs in (([], 8), (["--trials", "5"], 2)):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert f"{runs} runs to go, 1 at a time" in said
        assert "at the dearest of the space (144 of" in said  # ratio 2 of the default space
    assert "4 trials have ended" in said
    with pytest.raises(SystemExit) as ended:
        main([*words, "--check", "1"])
    assert ended.value.code == 2
    assert "--check 1: a comparison needs two fresh seeds or more" in capsys.readouterr().err
