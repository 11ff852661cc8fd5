"""Suites expand to the runs they promise; whatever cannot work says so in one line with the nearest that could."""

import json
from pathlib import Path

import pytest

from steadyq import presets
from steadyq.errors import UserError
from steadyq.run.loop import train
from steadyq.scores.published import atari100k, procgen
from steadyq.suite.study import DRAWN, Study, find_study, read_study, suite_names

STUDIES = ("bound", "decoupling", "ensemble-size", "exchange", "head-width", "replay-ratio", "reset", "spike-heatmap")
SUITES = ("ablation4", "atari100k", "minatar", "procgen")


def mini(**more: object) -> str:
    table = {"games": '["MinAtar/Breakout"]', "seeds": "2", **more}
    return "\n".join(f"{key} = {value}" for key, value in table.items())


def test_every_suite_of_the_issue_is_there() -> None:
    assert set(suite_names()) == {*STUDIES, *SUITES}


@pytest.mark.parametrize("name", [*STUDIES, *SUITES])
def test_every_study_builds_its_recipes_and_survives_its_file(name: str) -> None:
    study = find_study(name)
    runs = study.runs()
    assert len(runs) == len(study.games) * len(study.labels) * len(study.seeds)
    assert len({run.name for run in runs}) == len(runs)
    assert study.title
    assert study.question.endswith("?")
    assert read_study(study.to_toml(), "other") == study


SMALL_STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*-cpu.toml"))


@pytest.mark.parametrize("file", SMALL_STUDIES, ids=lambda file: file.stem)
def test_every_study_beside_the_package_fits_a_small_machine(file: Path) -> None:
    study = find_study(str(file))
    runs = study.runs()
    assert len(runs) == 2 * len(study.variants) * 3
    assert {run.recipe.scale for run in runs} == {"tiny"}
    assert {run.recipe.steps for run in runs} == {20_000}


def test_the_small_ensemble_study_begins_with_one_member(tmp_path: Path) -> None:
    study = find_study(str(next(file for file in SMALL_STUDIES if file.stem == "ensemble-size-cpu")))
    assert [changes["ensemble.members"] for changes in study.variants.values()] == [1, 2, 4, 8]
    small = {"network.channels": 4, "network.hidden": (16,), "replay.warmup": 50, "record.every": 50}
    small |= {"record.tensorboard": False, "evaluation.episodes": 1, "evaluation.random_episodes": 1}
    alone = study.runs()[0].recipe.override({**small, "steps": 200, "regulation.every": 50})
    assert (alone.ensemble.members, alone.operator.kind, alone.operator.exchange) == (1, "controlled", "derangement")
    rows = train(alone, run=tmp_path / "run").metrics()
    assert rows[-1]["updates"] == 150
    assert rows[-1]["q_spread"] == 0.0
    assert rows[-1].keys() - {"step"} <= set(DRAWN)


def test_the_benchmarks_are_those_of_the_published_scores() -> None:
    assert [game.partition("/")[2] for game in find_study("atari100k").games] == list(atari100k().games)
    assert [game.partition("/")[2] for game in find_study("procgen").games] == list(procgen().games)


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("ensemble-size", "ensemble.members", [1, 2, 4, 8, 16]),
        ("replay-ratio", "replay.ratio", [1, 2, 4, 8]),
        ("decoupling", "operator.forbid", ["rewarded", "none"]),
        ("exchange", "operator.exchange", ["derangement", "permutation", "none"]),
        ("bound", "operator.ceiling", ["running_max", "none"]),
        ("reset", "regulation.intervention", ["reinitialise", "none"]),
        ("head-width", "network.head_multiple", [128, 512]),
    ],
)
def test_a_study_varies_what_it_says_and_nothing_else(name: str, option: str, values: list[object]) -> None:
    study = find_study(name)
    assert study.varied == (option,)
    assert [changes[option] for changes in study.variants.values()] == values
    section, _, leaf = option.partition(".")
    first, *others = [run.recipe for run in study.runs() if run.recipe.seed == 0][: len(values)]
    assert getattr(getattr(first, section), leaf) == values[0]
    assert all([line.partition(":")[0] for line in other.differences(first)] == [option] for other in others)


def test_the_spike_study_crosses_ratios_and_resets() -> None:
    crossed = {tuple(changes.values()) for changes in find_study("spike-heatmap").variants.values()}
    assert crossed == {(ratio, what) for ratio in (1, 2, 4) for what in ("reinitialise", "none")}


def test_a_command_line_changes_scale_seeds_games_and_settings() -> None:
    study = find_study("decoupling").changed(
        scale="tiny", seeds=2, games=["breakout", "MinAtar/asterix"], settings={"steps": 300}
    )
    assert study.games == ("Atari/Breakout", "MinAtar/Asterix")
    runs = study.runs()
    assert [run.name for run in runs][:2] == [
        "Atari-Breakout-forbid-rewarded-seed0",
        "Atari-Breakout-forbid-none-seed0",
    ]
    assert {run.recipe.steps for run in runs} == {300}
    assert {run.recipe.scale for run in runs} == {"tiny"}
    assert {run.recipe.seed for run in runs} == {0, 1}
    assert find_study("minatar").changed(games=["ablation4"]).games == find_study("ablation4").games


def test_updates_are_those_of_the_paper() -> None:
    (run, *_) = find_study("atari100k").changed(scale="paper").runs()
    assert run.recipe.updates == 392_000


def test_a_variant_may_be_another_preset() -> None:
    study = read_study(mini() + '\n[variants.dqn]\npreset = "dqn"\n[variants.ours]\npreset = "steady"', "versus")
    assert [run.recipe.preset for run in study.runs()] == ["dqn", "steady", "dqn", "steady"]
    with pytest.raises(UserError, match="preset is what the study 'versus' varies"):
        study.changed(preset="dqn")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("games = 3", "games must be a list"),
        ("games = [", "study mine: "),
        (mini(game="1"), "unknown key 'game': did you mean 'games'?"),
        (mini(games='["MinAtar/Brekout"]'), "did you mean 'Breakout'?"),
        (mini(games='["ablation5"]'), "ablation5"),
        (mini(seeds="0"), "seeds must be"),
        (mini(preset='"stedy"'), "did you mean 'steady'?"),
        (mini(scale='"papr"'), "did you mean 'paper'?"),
        (mini() + "\n[variants.a]\nensemble.member = 2", "did you mean 'members'?"),
        (mini() + "\n[variants.a]\nseed = 2", "seed cannot be set"),
        (mini() + "\n[variants]\na = 1", "variant 'a' must be a table of options"),
        (
            mini() + "\n[variants.a]\nenv = 'CartPole-v1'",
            "env cannot be set, a sweep has many (use games of the study)",
        ),
        (mini() + "\n[variants.a]\nensemble.members = 0", "study mine, variant 'a': ensemble.members must be"),
        (mini() + '\n[variants."a b"]\nsteps = 5\n[variants.a-b]\nsteps = 6', "same folder name"),
        (mini() + '\n[figure]\nkind = "spike"', "did you mean 'spikes'?"),
        (
            mini() + '\n[figure]\ncolumns = ["retrun_10"]',
            "figure.columns has no 'retrun_10': did you mean 'return_10'?",
        ),
        (mini() + "\n[needs]\nnetwork.kind = 'resnet'", "mine needs network.kind resnet, MinAtar/Breakout has minatar"),
    ],
)
def test_a_wrong_study_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        read_study(text, "mine").runs()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["../../outside", "/abs", "a/b", "..", ".hidden", "", "-rf", "two\nlines", "a\x1b[2J", "a\\b", "n" * 101]
)
def test_a_name_that_leaves_its_folder_or_its_line_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"^a study's name cannot be ") as error:
        read_study(mini(name=json.dumps(name)), "mine")
    assert str(error.value).isprintable()
    with pytest.raises(UserError, match=r"^a study's name cannot be "):
        read_study(mini(), name)


def test_any_other_name_is_a_name() -> None:
    for name in ("decoupling", "my study, 2nd try", "étude", "a.b_c-d", "n" * 100):
        assert read_study(mini(name=json.dumps(name)), "mine").name == name


def test_a_variant_without_changes_is_the_preset_itself() -> None:
    study = read_study(mini() + "\n[variants.base]\n[variants.two]\nensemble.members = 2", "mine")
    assert study.labels == ("base", "two")
    assert study.recipe("base", "MinAtar/Breakout", 0) == presets.steady("MinAtar/Breakout", seed=0)
    assert read_study(study.to_toml(), "mine") == study


def test_an_unknown_suite_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown suite 'ensemble-sise': did you mean 'ensemble-size'\?"):
        find_study("ensemble-sise")
    with pytest.raises(UserError, match="no environment 'CartPole-v9'"):
        find_study("CartPole-v9")
    with pytest.raises(UserError, match="did you mean 'Breakout'"):
        find_study("MinAtar/Brekout")
    with pytest.raises(UserError, match="no study file"):
        find_study(str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text(mini())
    assert find_study(str(tmp_path / "mine.toml")).name == "mine"


@pytest.mark.parametrize(
    ("name", "env", "folder"),
    [
        ("CartPole-v1", "Gymnasium/CartPole-v1", "Gymnasium-CartPole-v1"),
        ("minatar/breakout", "MinAtar/Breakout", "MinAtar-Breakout"),
        ("my_rooms:make", "Gymnasium/my_rooms:make", "Gymnasium-my-rooms-make"),
    ],
)
def test_an_environment_is_a_suite_of_one_game(name: str, env: str, folder: str) -> None:
    study = find_study(name)
    assert (study.games, study.name, study.seeds) == ((env,), folder, (0,))
    assert read_study(study.to_toml(), "again") == study


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"operator.forbid": "auto"}, "operator.forbid is what the study 'decoupling' varies"),
        ({"seed": 3}, "use --seeds"),
        ({"env": "MinAtar/Breakout"}, "use --games"),
    ],
)
def test_what_a_study_varies_cannot_be_set(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        find_study("decoupling").changed(settings=settings)
    with pytest.raises(UserError, match="Breakot"):
        find_study("decoupling").changed(games=["Breakot"])


def test_some_variants_of_a_study_and_then_the_others_are_the_study() -> None:
    whole = find_study("ensemble-size")
    some = whole.changed(variants=["1*"])
    assert 0 < len(some.variants) < len(whole.variants)
    assert all(label.startswith("1") for label in some.variants)
    others = whole.changed(variants=[label for label in whole.labels if label not in some.variants])
    assert set(some.united(others).runs()) == set(whole.runs())


def test_two_sweeps_unite_when_only_games_seeds_or_variants_differ() -> None:
    study = find_study("decoupling")
    more = study.changed(seeds=7, games=["MinAtar/Breakout"])
    both: Study = more.united(study)
    assert both.games == (*study.games, "MinAtar/Breakout")
    assert both.seeds == tuple(range(7))
    with pytest.raises(UserError, match="scale: 'paper' != ''"):
        study.changed(scale="paper").united(study)
