"""Grouping, the common grid and the interval, by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from steadyq.errors import UserError
from steadyq.presets import dqn, steady
from steadyq.recipe import Recipe
from steadyq.report.curves import aggregate, on_grid, series, step_grid
from steadyq.suite.runs import read, read_runs
from steadyq.suite.variants import brief, group


def make_run(folder: Path, recipe: Recipe, rows: list[dict[str, object]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe.to_toml())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_seeds_of_one_recipe_are_one_variant(tmp_path: Path) -> None:
    paths = [
        make_run(tmp_path / f"{name}-{seed}", recipe.override({"seed": seed}), [])
        for name, recipe in (
            ("steady", steady("CartPole-v1")),
            ("free", steady("CartPole-v1", **{"operator.forbid": "none"})),
            ("dqn", dqn("CartPole-v1")),
        )
        for seed in (1, 0)
    ]
    grouped = group(read_runs(paths))
    assert grouped.labels == ("steady", "steady, forbid none", "dqn")
    assert [[run.seed for run in cell.runs] for cell in grouped.cells] == [[0, 1]] * 3
    assert grouped.envs == ("Gymnasium/CartPole-v1",)


def test_what_all_runs_of_an_environment_share_is_not_in_the_name(tmp_path: Path) -> None:
    changes = {"replay.ratio": 2, "network.hidden": (32, 32)}
    paths = [
        make_run(tmp_path / "a", steady("CartPole-v1", **changes), []),
        make_run(tmp_path / "b", steady("CartPole-v1", **changes, **{"ensemble.members": 8}), []),
        make_run(tmp_path / "c", steady("MinAtar/Breakout", steps=10), []),
    ]
    grouped = group(read_runs(paths))
    assert grouped.labels == ("steady", "steady, members 8")
    assert [(cell.env, cell.variant) for cell in grouped.cells] == [
        ("Gymnasium/CartPole-v1", 0),
        ("Gymnasium/CartPole-v1", 1),
        ("MinAtar/Breakout", 0),
    ]


def test_recording_and_hardware_do_not_make_a_variant(tmp_path: Path) -> None:
    elsewhere = {"seed": 1, "record.every": 7, "compute.threads": 1, "evaluation.episodes": 3}
    paths = [
        make_run(tmp_path / "a", steady("CartPole-v1"), []),
        make_run(tmp_path / "b", steady("CartPole-v1", **elsewhere), []),
    ]
    assert group(read_runs(paths)).labels == ("steady",)


def test_same_folder_counts_once_and_same_seed_is_refused(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", steady("CartPole-v1"), [])
    assert len(read_runs([first, tmp_path / "." / "a"])) == 1
    shutil.copytree(first, tmp_path / "b")
    with pytest.raises(UserError, match="same seed 0"):
        group(read_runs([first, tmp_path / "b"]))
    with pytest.raises(UserError, match="at least one"):
        group([])
    with pytest.raises(UserError, match="not a run folder"):
        read_runs([tmp_path])


def test_short_names_only_where_they_are_unambiguous() -> None:
    assert brief("ensemble.members") == "members"
    assert brief("regulation.every") == "regulation.every"


def test_grid_is_as_fine_as_the_coarsest_run_and_bounded(tmp_path: Path) -> None:
    fine = read(make_run(tmp_path / "a", steady("CartPole-v1"), [{"step": s} for s in range(10, 101, 10)]))
    coarse = read(make_run(tmp_path / "b", steady("CartPole-v1"), [{"step": s} for s in range(25, 101, 25)]))
    long = read(make_run(tmp_path / "c", steady("CartPole-v1"), [{"step": s} for s in range(1, 5001)]))
    np.testing.assert_allclose(step_grid([fine]), np.arange(10, 101, 10))
    np.testing.assert_allclose(step_grid([fine, coarse]), [25, 50, 75, 100])
    assert len(step_grid([long])) == 500
    assert len(step_grid([])) == 0


def test_values_are_averaged_held_and_never_invented() -> None:
    steps, values = np.array([10.0, 20, 30, 60]), np.array([1.0, 3, 5, 9])
    grid = np.array([5.0, 20, 40, 50, 60, 70])
    #        nothing yet, mean of 10 and 20, the 30, held, the 60, after the end
    np.testing.assert_array_equal(on_grid(steps, values, grid), [np.nan, 2, 5, 5, 9, np.nan])


def test_one_huge_value_is_not_carried_on() -> None:
    steps = np.arange(1.0, 7)
    found = on_grid(steps, np.array([1, 1e20, 5, 5, 5, 5]), steps)
    np.testing.assert_array_equal(found, [1, 1e20, 5, 5, 5, 5])
    found = on_grid(steps, np.array([1, np.inf, -np.inf, 5, 5, 5]), steps[1::2])
    np.testing.assert_array_equal(found, [np.inf, -np.inf, 5])


def test_share_of_nothing_is_a_gap(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "same_action_rewarded": 0.0, "rewarded": 0.0},
        {"step": 2, "same_action_rewarded": 0.5, "rewarded": 0.1},
    ]
    run = read(make_run(tmp_path / "a", steady("CartPole-v1"), rows))
    assert series(run, "same_action_rewarded")[0].tolist() == [2]


def test_mean_stops_where_a_seed_stops_and_one_seed_has_no_interval() -> None:
    curve = aggregate(np.array([[1.0, 2.0, 3.0], [3.0, 4.0, np.nan]]))
    np.testing.assert_array_equal(curve.mean, [2, 3, np.nan])
    assert curve.low is not None
    assert np.isnan(curve.low[2])
    assert aggregate(np.array([[1.0, 2.0]])).low is None
