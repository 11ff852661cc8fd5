"""Numbers that cannot work, however long: refused in one line, at once, before anything is written."""

import json
from pathlib import Path

import pytest

from steadyq import Recipe, RunFolder, UserError, cli, presets
from steadyq.run.writer import begin
from steadyq.suite import cost
from steadyq.suite.study import read_study

pytestmark = pytest.mark.surroundings

LONG = "9" * 5000
DIGITS = "9" * 4000


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(words))
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train CartPole-v1 --network.hidden 1000000000", "parameters take"),
        ("train MinAtar/Breakout --network.channels 100000000", "parameters take"),
        ("train Atari/Pong --network.head-multiple 1000000000", "parameters take"),
        ("train CartPole-v1 --replay.capacity 9223372036854775807", "replay.capacity must be at most 1e+15"),
        ("train CartPole-v1 --replay.capacity 1000000000000000", "GB, cpu has"),
        (f"train CartPole-v1 --replay.capacity {LONG}", "replay.capacity must be a whole number"),
        (f"train CartPole-v1 --replay.capacity {DIGITS}", "replay.capacity must be at most 1e+15"),
        (f"train CartPole-v1 --steps {DIGITS}", "steps must be at most"),
        (f"train CartPole-v1 --seed {DIGITS}", "seed must be between"),
        (f"train CartPole-v1 --optim.rate {DIGITS}", "optim.rate must be"),
        ("train CartPole-v1 --evaluation.episodes 1" + 40 * "0", "evaluation.episodes must be at most"),
        ("train CartPole-v1 --evaluation.random-episodes 1" + 40 * "0", "evaluation.random_episodes must be at most"),
        ("train CartPole-v1 --replay.batch 100000000000 --replay.capacity 1000000000000", "replay.warmup must be"),
        ("evaluate run --episodes 1" + 40 * "0", "--episodes must be between 1 and 1000000"),
        (f"evaluate run --episodes {LONG}", "--episodes must be a whole number"),
        ("evaluate run --seed 99999999999999999999", "--seed must be between"),
        ("play run --out a.mp4 --max-seconds 1e300", "--max-seconds must be between"),
        ("play run --out a.mp4 --best-of 99999999999999999999", "--best-of must be between"),
        ("sweep minatar --seeds 99999999999999999999", "--seeds must be at most 1e+15, got 99999999999999999999"),
        ("sweep minatar --seeds 1000000 --dry-run", "1,000,000 runs are too many, a sweep has at most 100,000"),
        (f"sweep minatar --seeds {DIGITS}", "--seeds must be at most 1e+15, got 9999"),
        (f"sweep minatar --seeds {LONG}", "--seeds must be a whole number"),
        ("sweep minatar --replay.capacity 1000000000000000", "GB, cpu has"),
        ("sweep minatar --network.channels 100000000", "parameters take"),
        ("ppo CoinRun --episodes 1" + 40 * "0", "--episodes must be between"),
        ("ppo CoinRun --seeds 1000000", "1,000,000 runs are too many"),
        ("demo --steps 1" + 40 * "0", "steps must be at most"),
    ],
)
def test_a_number_that_cannot_work_is_one_line(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words.split()) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert len(said) < 400
    assert not list(tmp_path.iterdir())


def test_a_sweep_of_very_many_runs_is_planned_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "seconds_per_update", lambda recipe, spec: timed.append(recipe.env) or 0.01)
    assert run("sweep", "minatar", "--seeds", "4000", "--dry-run") == 0
    assert "5 games x 1 variant x 4000 seeds = 20000 runs" in capsys.readouterr().out
    assert len(timed) <= 5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[protocol]", "[protocol]\nnonsense = 1"), "unknown option protocol.nonsense"),
        (('name = "gymnasium"', ""), "not a recipe: no 'name' in [protocol]"),
        (("steps = ", f"steps = {LONG} #"), "not a recipe: "),
        (("steps = ", f"steps = {DIGITS} #"), "steps must be at most"),
        (("steps = ", "steps = 1e999 #"), "steps must be a whole number"),
        (("steps = ", f"steps = {'[' * 5000}{']' * 5000} #"), "not a recipe: "),
        (("steps = ", "steps = 1979-05-27 #"), "steps must be a whole number"),
        (("seed = 0", "seed = 0\nseed = 0"), "not a recipe: "),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_line(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    begin(folder, presets.dqn("CartPole-v1")).close()
    text = (tmp_path / "recipe.toml").read_text()
    assert change[0] in text
    (tmp_path / "recipe.toml").write_text(text.replace(*change, 1))
    with pytest.raises(UserError) as error:
        _ = folder.recipe
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "text",
    [f"seeds = {LONG}", f"seeds = {DIGITS}", f"seeds = [{DIGITS}]", "seeds = 100001", f"x = {'[' * 5000}"],
)
def test_a_study_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(UserError) as error:
        read_study('games = ["MinAtar/Breakout"]\n' + text, "mine").runs()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("preset", ["two\nlines", 'quo"te', "back\\slash", "tab\t", "bell\a", "del\x7f", "é", ""])
def test_any_text_survives_its_file(preset: str) -> None:
    recipe = presets.dqn("CartPole-v1").override({"preset": preset})
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    study = read_study('games = ["MinAtar/Breakout"]', "mine")
    words = json.dumps(preset).replace("\x7f", "\\u007f")
    again = read_study(f"title = {words}\nquestion = {words}\n{study.to_toml().split('question')[1][6:]}", "mine")
    assert read_study(again.to_toml(), "mine") == again
    assert (again.title, again.question) == (preset, preset)
