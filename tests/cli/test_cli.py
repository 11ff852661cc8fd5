import importlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from stored import stored

from steadyq import RunFolder, load, presets
from steadyq.cli import COMMANDS, main
from steadyq.cli.options import SYNONYMS
from steadyq.fields import flatten, has
from steadyq.run.evaluate import Game, different
from steadyq.run.progress import Terminal, games_said

QUICK = [
    *("--network.hidden", "16", "--ensemble.members", "2", "--estimator.quantiles", "5", "--replay.warmup", "64"),
    *("--record.every", "100", "--evaluation.episodes", "2", "--evaluation.random_episodes", "2"),
    "--record.no-tensorboard",
]


ROOT = Path(__file__).parents[2]
ATARI = sorted(map(str, stored("atari").iterdir()))
CARTPOLE = str(ROOT / "results" / "cartpole.tar.xz" / "Gymnasium-CartPole-v1-forbid-none-seed0")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    code = stop.value.code
    assert isinstance(code, int)
    return code


def test_a_run_that_stopped_before_its_first_checkpoint_begins_again(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "early")
    shutil.rmtree(folder / "checkpoints")
    (folder / "result.json").unlink()
    assert run("train", "--env", "CartPole-v1", "--steps", "300", "--run", str(folder), *QUICK) == 0
    assert "stopped before its first checkpoint: from the beginning" in capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    assert run("train", "CartPole-v1", "--steps", "300", "--run", str(folder), *QUICK) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["train"], "train needs an environment"),
        (["train", ""], "train needs an environment"),
        (["train", "CartPole-v1", "--replay.capacity", "10000000000000"], "takes 530,000.0 GB, "),
        (["evaluate", ATARI[0], "--episodes", "abc"], "--episodes must be a whole number, got 'abc'"),
        (["evaluate", ATARI[0], ATARI[0]], "one too many"),
        (["evaluate", ATARI[0]], "has no checkpoint: it finished, but its weights are not here"),
        (["play", ATARI[0], "--out", "a.mp4", "--best-of", "0"], "--best-of must be between 1 and 1000000, got 0"),
        (["report", ATARI[0], "--out", "."], "this is a folder"),
        (["compare", ATARI[0], "--columns", "loss"], "name its file with --figure"),
        (["presets", "--toml"], "--toml prints one preset: name it, steady"),
        (["train", "--steps", "10", "--preset", "dqn"], "train needs an environment"),
        (["train", "--steps", "10", "CartPol-v1"], "CartPole-v1"),
        (["demo", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["demo", "--out", ATARI[0]], "is a run's own folder"),
        (["evaluate", ATARI[0], "--seed", "-1"], "--seed must be between 0 and 2147483647, got -1"),
        (["play", ATARI[0], "--out", "a.mp4", "--seed", "-1"], "--seed must be between 0 and 2147483647, got -1"),
        (["play", ATARI[0], "--out", "a.mp4", "--max-seconds", "nan"], "must be between 0.1 and 86400, got nan"),
        (["train", "Breakout"], "write MinAtar/Breakout or Atari/Breakout"),
        (["train", "MinAtar/Brekout"], "did you mean 'Breakout'?"),
        (["train", "Atari/Brekout"], "did you mean 'Breakout'?"),
        (["train", "CartPol-v1"], "CartPole-v1"),
        (["train", "Pendulum-v1"], "Discrete"),
        (["train", "CartPole-v1", "--preset", "stedy"], "unknown preset 'stedy': did you mean 'steady'?"),
        (["train", "CartPole-v1", "--scale", "papr"], "unknown scale 'papr': did you mean 'paper'?"),
        (["train", "CartPole-v1", "--preset"], "preset"),
        (["train", "CartPole-v1", "--members", "4"], "did you mean --ensemble.members?"),
        (["train", "CartPole-v1", "--env.kwarg", "x=1"], "did you mean --env.kwargs?"),
        (["train", "--env-id", "CartPol-v1"], "CartPole-v1"),
        (["train", "CartPole-v1", "--replay.ration", "4"], "did you mean --replay.ratio?"),
        (["train", "CartPole-v1", "--replay.ratio", "0"], "replay.ratio must be between 1 and 1024, got 0"),
        (["train", "CartPole-v1", "--replay.ratio", "two"], "replay.ratio must be a whole number, got 'two'"),
        (["train", "CartPole-v1", "--optim.gamma", "1.5"], "optim.gamma must be between 0 and 1"),
        (["train", "CartPole-v1", "--steps", "-5"], "steps must be at least 1"),
        (["train", "CartPole-v1", "--operator.forbid", "on"], "operator.forbid cannot be 'on'"),
        (["train", "CartPole-v1", "--preset", "dqn", "--operator.exchange", "derangement"], "contradicts"),
        (["train", "CartPole-v1", "--network.kind", "resnet"], "needs image observations"),
        (["train", "CartPole-v1", "--protocol.sticky", "0.1"], "protocol.sticky"),
        (["train", "CartPole-v1", "--compute.device", "cuda"], "no GPU is visible"),
        (["train", "Atari/Pong", "--compute.device", "cpu", "--compute.precision", "bf16"], "bf16 needs a GPU"),
        (["train", "CartPole-v1", "--compute.form", "kernels"], "kernels needs a GPU and Triton"),
        (["train", "CartPole-v1", "--record.wandb"], "record.wandb needs"),
        (["evaluate", "nowhere"], "no run at nowhere"),
        (["evaluate", "."], "is not a run folder"),
        (["play", "nowhere", "--out", "game.mp4"], "no run at nowhere"),
        (["play", "nowhere"], "--out"),
        (["presets", "stedy"], "did you mean 'steady'?"),
        (["presets", "steady", "--scale", "huge"], "scale"),
        (["report"], "run"),
        (["compare", "nowhere"], "nowhere"),
        (["paper", "table9"], "unknown table 'table9'"),
        (["paper", "layers", "--json"], "--json: layers is text; as JSON there are table1, "),
        (["doctor", "now"], "doctor takes no options"),
        (["train", "--nonsense", "1"], "unknown option --nonsense"),
        (["train", "Pendulum-v1"], "Pendulum-v1 has actions Box"),
        (["train", "CartPole-v1", "--run", "/proc/run"], "cannot"),
        (
            ["evaluate", ATARI[0], "--json", "nowhere/scores.json"],
            "--json nowhere/scores.json: there is no folder nowhere",
        ),
        (["evaluate", ATARI[0], "--json", "."], "this is a folder"),
        (["diagnose", CARTPOLE], "it learned, but has no diagnostics.jsonl"),
        (["bench", "--section", "cpu", "--scales", "4x2"], "--scales are those of section gpu"),
        (["diagnose", ATARI[0], "--thresholds.spik", "3"], "did you mean --thresholds.spike?"),
        (["diagnose", ATARI[0], "--thresholds.rows", "0"], "--thresholds.rows must be at least 1, got 0"),
        (
            ["compare", *ATARI, "--figure", "a.svg"],
            "--figure draws runs of one environment, these are of Atari/Alien, Atari/B",
        ),
        (["bench", "--scales", "4by2"], "scale '4by2': write members x s"),
        (["bench", "--section", "gpus"], "section"),
        (["bench", "--markdown"], "--markdown goes with --show FILE"),
        (["bench", "--show", "nowhere.json"], "no such file"),
        (["bench", "--show", str(Path(__file__))], "not a file of `steadyq bench --json`"),
        (["bench", "--show", "times.json", "--section", "cpu"], "--show prints a file and measures nothing"),
        (["bench", "--show", "times.json", "--no-compile"], "--show prints a file and measures nothing"),
        (["bench", "--section"], "--section needs a value"),
        (["bench", "--compile", "no"], "--compile takes no value, got 'no': write --compile or --no-compile"),
        (["train", "CartPole-v1", "--compute.device", "gpu"], "choose one of auto, cpu, cuda"),
        (["train", "CartPole-v1", "--compute.precision", "float32"], "choose one of auto, bf16, fp32, tf32"),
        (["train", "CartPole-v1", "--record.tensorboard", "False"], "write --record.tensorboard or --record.no-tensor"),
        (["train", "CartPole-v1", "--record.tensorboard=False"], "--record.tensorboard takes no value, got 'False'"),
        (["train", "CartPole-v1", "--no-record.tensorboard"], "did you mean --record.no-tensorboard?"),
        (["bench", "--json", "."], "this is a folder; name a file in it"),
        (["bench", "--json", "nowhere/times.json"], "there is no folder nowhere"),
    ],
)
def test_bad_input_costs_one_line_exit_two_and_nothing_written(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1, error
    assert error.startswith("steadyq: ")
    assert said in error
    assert not list(tmp_path.iterdir())


def test_a_real_process_prints_the_line_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "steadyq", "train", "CartPole-v1", "--replay.ratio", "0"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "steadyq: replay.ratio must be between 1 and 1024, got 0\n"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "Breakout", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_training_says_what_it_does_and_leaves_a_complete_result(trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())
    for name in (
        *("env", "preset", "scale", "seed", "steps", "frames", "updates", "episodes", "returns", "mean_return"),
        *("random_return", "versions", "commit", "hardware", "wall_seconds"),
    ):
        assert name in result, name
    assert result["steps"] == 300
    assert result["updates"] == 300 - 64
    assert len(result["returns"]) == result["episodes"] == 2
    assert result["mean_return"] == sum(result["returns"]) / 2


def test_start_prints_protocol_cost_and_the_warning_about_dense_rewards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "CartPole-v1", "--steps", "80", "--run", str(tmp_path / "run"), *QUICK) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    for part in ("protocol gymnasium", "parameters", "80 steps", "16 updates", "writing to", "evaluation"):
        assert part in shown, part
    assert "100% of a random policy's steps are rewarded here" in shown


def test_no_warning_where_rewards_are_rare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK, "--network.channels", "2"]
    assert run("train", "MinAtar/Freeway", "--steps", "80", "--run", str(tmp_path / "run"), *words) == 0
    assert "of a random policy's steps are rewarded" not in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_a_finished_run_says_so_and_stays_as_it_is(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (trained / "result.json").read_bytes()
    assert run("train", "CartPole-v1", "--steps", "300", "--run", str(trained), *QUICK) == 0
    assert "already finished" in capsys.readouterr().out
    assert (trained / "result.json").read_bytes() == before


def test_a_folder_of_another_recipe_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "CartPole-v1", "--steps", "300", "--seed", "7", "--run", str(trained), *QUICK) == 2
    assert "belongs to another recipe (seed: 7 != 0)" in capsys.readouterr().err


def test_evaluate_plays_the_games_it_says(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scores.json"
    assert run("evaluate", str(trained), "--episodes", "3", "--json", str(out)) == 0
    assert "over 3 full games" in re.sub(r"\s+", " ", capsys.readouterr().out)
    scores = json.loads(out.read_text())
    assert len(scores["returns"]) == 3
    assert scores["different_games"] <= 3
    assert scores["sticky"] == 0.0
    assert run("evaluate", str(trained), "--sticky", "0.25") == 2
    assert "protocol.sticky is 0.25, but means nothing to gymnasium" in capsys.readouterr().err


def test_few_different_games_are_said_to_be_few() -> None:
    assert games_said({"episodes": 100, "different_games": 4}) == "100 full games, 4 different"
    assert games_said({"episodes": 100, "different_games": 100}) == "100 full games"
    assert games_said({"episodes": 100, "different_games": 1}) == "100 full games, all the same"
    assert games_said({"episodes": 1, "different_games": 1}) == "1 full game"
    assert games_said({"episodes": 100}) == "100 full games"
    assert games_said({"episodes": 100, "evaluation_epsilon": 0.001}) == "100 full games, epsilon 0.001"
    assert different([Game(1.0, 5, 0.1), Game(1.0, 5, 0.2), Game(1.0, 6, 0.1), Game(2.0, 5, 0.1)]) == 3


@pytest.mark.parametrize("name", ["game.mp4", "game.gif"])
def test_play_writes_a_video(trained: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert run("play", str(trained), "--out", str(out), "--max-seconds", "1") == 0
    head = out.read_bytes()[:12]
    assert head[4:8] == b"ftyp" if name.endswith("mp4") else head[:3] == b"GIF"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_play_refuses_other_formats_and_missing_folders(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("play", str(trained), "--out", "game.avi") == 2
    assert "must end in .mp4 or .gif" in capsys.readouterr().err
    assert run("play", str(trained), "--out", "no/such/game.mp4") == 2
    assert "no folder" in capsys.readouterr().err


def test_compare_prints_every_seed(trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    assert run("compare", str(trained)) == 0
    score = json.loads((trained / "result.json").read_text())["mean_return"]
    assert f"{score:.2f}" in capsys.readouterr().out


def test_compare_shows_training_games_up_to_a_step(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["return_10"] is not None)
    assert run("compare", str(trained), "--at", str(row["step"]), "--markdown") == 0
    assert f"| 1 | {row['return_10']:.2f} |" in capsys.readouterr().out
    assert run("compare", str(trained), "--at", str(rows[-1]["step"] + 1), "--markdown") == 0
    assert "| 0 of 1 so far |" in capsys.readouterr().out
    assert run("compare", str(trained), "--at", "0") == 2
    assert "--at is 0; it must be a step, 1 or more" in capsys.readouterr().err


def test_presets_lists_and_prints_the_papers_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("presets") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("steady", "dqn", "double_dqn", "qr_dqn"))
    assert run("presets", "steady", "--scale", "paper") == 0
    table = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "Replay ratio 4" in table
    assert "Ensemble size 16" in table


def test_presets_by_their_axes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyq.cli.terminal.OUT._width", 200)
    assert run("presets", "--axes") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in presets.PRESETS)
    assert run("presets", "tqc_discrete", "--axes", "--env", "MinAtar/Breakout") == 0
    line = re.sub(r" {2,}", "|", capsys.readouterr().out.splitlines()[1].strip())
    assert line == "tqc_discrete|quantile, 25 quantiles|tqc, 2 a member dropped|5|none|uniform, minatar network"
    assert run("presets", "--axes", "--toml") == 2
    assert "--axes and --toml: choose one of the two" in capsys.readouterr().err


def test_a_presets_name_is_never_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyq.cli.terminal.OUT._width", 60)
    for words in (["presets"], ["presets", "--axes"]):
        assert run(*words) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in presets.PRESETS)


def test_doctor_names_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    assert all(backend in shown for backend in ("MinAtar", "Atari", "Procgen", "Gymnasium"))
    assert "torch" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_a_command_says_of_itself(name: str) -> None:
    module, does = COMMANDS[name]
    command = getattr(importlib.import_module(f"steadyq.cli.{module}"), name)
    assert command.__doc__.splitlines()[0] == does


def test_help_does_not_wait_for_pytorch() -> None:
    script = "\n".join([
        "import sys",
        "from steadyq.cli import COMMANDS, main",
        "for words in ([], *([name] for name in COMMANDS)):",
        "    try: main([*words, '--help'])",
        "    except SystemExit: assert 'torch' not in sys.modules, words",
    ])  # fmt: skip
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("words", [["evaluate"], ["play", "--out", "a.mp4"], ["report"], ["compare"], ["diagnose"]])
def test_what_is_no_run_is_refused_without_waiting_for_pytorch(words: list[str]) -> None:
    script = "\n".join([
        "import sys",
        "from steadyq.cli import main",
        f"try: main([{words[0]!r}, 'nowhere', *{words[1:]!r}])",
        "except SystemExit as stop: assert stop.code == 2 and 'torch' not in sys.modules",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "no run at nowhere" in done.stderr


def test_a_run_and_its_agent_say_what_they_are(trained: Path) -> None:
    assert repr(RunFolder(trained)) == f"RunFolder({str(trained)!r})"
    assert repr(load(trained)) == "Agent('Gymnasium/CartPole-v1', 2 networks, step 300, on cpu)"


def test_public_names_are_there_when_asked_for() -> None:
    import steadyq
    import steadyq.run.step

    assert callable(steadyq.train)
    assert all(getattr(steadyq, name).__name__.split(".")[-1] == name for name in steadyq.__all__)
    assert set(steadyq.__all__) <= set(dir(steadyq))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        steadyq.trian  # noqa: B018


def test_weights_of_another_recipe_are_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, mixed := tmp_path / "mixed")
    recipe = RunFolder(mixed).recipe
    (mixed / "recipe.toml").write_text(recipe.override({"ensemble.members": 7}).to_toml())
    assert run("evaluate", str(mixed)) == 2
    assert f"{mixed / 'recipe.toml'} has changed since" in capsys.readouterr().err
    assert run("evaluate", str(mixed), "--no-verify") == 2
    assert "recipe and weights are not of one run: fc1.weight should have shape (7, " in capsys.readouterr().err


def test_a_folder_that_may_not_be_written_costs_one_line(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", "page.html")

    monkeypatch.setattr("steadyq.report.html.write_report", refuse)
    assert run("report", str(trained), "--out", "page.html") == 2
    assert capsys.readouterr().err == "steadyq: page.html: Permission denied\n"


def test_what_is_not_ours_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyq.envs.available", lambda: [("Procgen", False, "pip install 'steadyq[procgen]'")])
    assert run("doctor") == 0
    assert "pip install 'steadyq[procgen]'" in capsys.readouterr().out
    out = tmp_path / "[b] :fire: [" / "report.html"
    out.parent.mkdir()
    assert run("report", ATARI[0], "--out", str(out)) == 0
    assert f"report: {out}" in capsys.readouterr().out


def test_a_table_of_the_paper_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("paper", "table1", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"title", "columns", "rows", "best", "ours", "notes"}


def test_train_help_lists_dotted_options_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help-all") == 0
    shown = capsys.readouterr().out
    assert "--ensemble.members" in shown
    assert "--replay.ratio" in shown


def test_the_short_help_fits_a_screen_and_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "CartPole-v1", "--help") == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert len(lines) < 100  # all options take 360
    assert "--optim.rate" in shown
    assert "(0.001)" in shown  # CartPole's, not a resnet's
    recipe = presets.steady("CartPole-v1")
    for name in flatten(recipe.to_dict()):
        section, _, leaf = name.rpartition(".")
        own = getattr(recipe, section) if section else None
        if own is not None and (not hasattr(own, "owners") or has(own, leaf)):
            listed = shown.partition("--section.field:")[2]
            assert re.search(rf"\b{leaf.replace('_', '-')}\b", listed), name


@pytest.mark.parametrize(
    ("option", "ours"),
    [("--lr", "--optim.rate"), ("--buffer_size", "--replay.capacity"), ("--num-envs", "--protocol.lanes")],
)
def test_what_others_call_an_option_finds_ours(option: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "CartPole-v1", option, "3") == 2
    assert capsys.readouterr().err.endswith(f"did you mean {ours}?\n")


def test_every_synonym_is_an_option() -> None:
    assert set(SYNONYMS.values()) <= set(flatten(presets.steady("CartPole-v1").to_dict()))


def test_a_run_too_short_to_learn_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--evaluation.episodes", "1", "--evaluation.random-episodes", "1", "--record.no-tensorboard"]
    assert run("train", "CartPole-v1", "--steps", "80", "--run", str(tmp_path / "run"), *words) == 0
    said = capsys.readouterr().out
    assert "note: nothing will be learned: learning begins after 1,000 steps (replay.warmup), of 80" in said


def test_wandb_is_asked_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    assert run("train", "CartPole-v1", "--record.wandb", "--run", str(tmp_path / "run")) == 2
    said = capsys.readouterr()
    assert "record.wandb needs the extra" in said.err
    assert said.out == ""
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_is_named(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained, damaged := tmp_path / "damaged")
    weights = RunFolder(damaged).checkpoints()[-1] / "online.safetensors"
    weights.write_bytes(weights.read_bytes()[:5])
    assert run("evaluate", str(damaged)) == 2
    assert f"{weights} is damaged" in capsys.readouterr().err
    weights.unlink()
    assert run("evaluate", str(damaged)) == 2
    assert f"{weights.parent} is damaged: it has no online.safetensors" in capsys.readouterr().err
    assert run("evaluate", str(damaged), "--no-verify") == 2
    assert f"{weights} cannot be read: " in capsys.readouterr().err
    (damaged / "result.json").write_text("[1]")
    assert run("report", str(damaged)) == 2
    assert f"{damaged / 'result.json'} is damaged: it is no table" in capsys.readouterr().err
    (damaged / "recipe.toml").write_bytes(b"\xff\xfe")
    assert run("evaluate", str(damaged)) == 2
    assert f"{damaged / 'recipe.toml'} is damaged: it is not text" in capsys.readouterr().err
    (damaged / "recipe.toml").write_text("env =")
    assert run("evaluate", str(damaged)) == 2
    assert f"{damaged / 'recipe.toml'}: not a recipe" in capsys.readouterr().err


def test_one_game_has_no_standard_error(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(trained), "--episodes", "1", "--json", str(tmp_path / "scores.json")) == 0
    shown = capsys.readouterr().out
    assert "over 1 full game, epsilon 0 (median" in shown
    assert len(json.loads((tmp_path / "scores.json").read_text())["returns"]) == 1


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert run(command, "--help") == 0, command
        assert f"steadyq {command}" in capsys.readouterr().out


def test_a_result_is_shown_with_the_means_others_report() -> None:
    result = {"mean_return": 4.0, "episodes": 20, "random_return": 1.0, "random_episodes": 5}
    out = io.StringIO()
    Terminal(Console(file=out, width=200)).finished(result | {"first_10_mean_return": 3.25, "training_return_10": 2.75})
    assert "mean return 4.00 over 20 full games" in out.getvalue()
    assert "first 10 games: 3.25   last 10 training games: 2.75" in out.getvalue()
    out = io.StringIO()
    Terminal(Console(file=out, width=200)).finished(
        result | {"episodes": 10, "first_10_mean_return": 4.0, "training_return_10": None}
    )
    assert out.getvalue().count("\n") == 1


def test_time_left_counts_learning_steps_alone() -> None:
    """A thousand steps a second while nothing is learned yet say nothing about those that learn."""
    shown = Terminal(Console(file=io.StringIO()))
    training: Any = SimpleNamespace(step_count=0, learner=SimpleNamespace(updates=0), recent=[], resets=0)
    training.epsilon = SimpleNamespace(at=lambda step: 0.0)
    shown.steps = 10_000
    clock = iter((100.0, 200.0, 300.0, 400.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steadyq.run.progress.time.monotonic", lambda: next(clock))
        for step, updates in ((1, 0), (5_000, 0), (5_100, 50), (5_200, 150)):
            training.step_count, training.learner.updates = step, updates
            shown.step(training, None)
    assert shown.rates == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("text", ['{"growth": {"members": {"1": 0, "2": 3}}}', '{"gpu": []}', '{"env": {}}', "[]"])
def test_a_bench_file_without_figures_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    assert run("bench", "--show", str(file)) == 2
    assert "not a file of `steadyq bench --json`" in capsys.readouterr().err


def test_names_in_a_bench_file_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.json"
    file.write_text('{"env": {"[red]a[/nope]": 3}}')
    assert run("bench", "--show", str(file)) == 0
    assert "[red]a[/nope]" in capsys.readouterr().out


def test_options_may_come_before_the_environment(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--steps", "300", "--run", str(trained), *QUICK, "CartPole-v1") == 0
    assert "already finished" in capsys.readouterr().out


def test_a_finished_run_without_its_result_is_evaluated_again(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, again := tmp_path / "again")
    words = ("train", "CartPole-v1", "--steps", "300", "--run", str(again), *QUICK)
    result = json.loads((again / "result.json").read_text())
    (again / "result.json").unlink()
    assert run(*words) == 0
    assert json.loads((again / "result.json").read_text())["returns"] == result["returns"]
    (again / "result.json").unlink()
    newest = RunFolder(again).checkpoints()[-1]
    (newest / "target.safetensors").unlink()
    capsys.readouterr()
    assert run(*words) == 2
    assert f"{newest} is damaged: it has no target.safetensors" in capsys.readouterr().err
    (newest / "state.json").write_text("{")
    assert run(*words) == 2
    assert f"{newest / 'state.json'} is damaged: it is not JSON" in capsys.readouterr().err


def test_a_recipe_of_an_older_layout_costs_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["compare", str(ROOT / "results" / "minatar.tar.xz"), "--markdown"])
    renamed = "explore.start, explore.end, explore.decay_steps became explore.epsilon"
    assert capsys.readouterr().err == f"steadyq: recipe of an older layout: {renamed}\n"
