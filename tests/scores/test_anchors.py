"""Published agents beside a sweep: their files are complete, and give the aggregates that were computed elsewhere."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from steadyq.scores import statistics
from steadyq.scores.anchors import anchors
from steadyq.scores.published import atari100k, procgen, published_rows

ROOT = Path(__file__).parents[2]

# Mean, median, IQM over game means, games above human: computed from the sources by another program.
AGGREGATES = {
    "bbf_rr2": (2.1752, 0.7545, 1.0380, 11),
    "bbf_rr2_without_spr": (1.7372, 0.7114, 0.9248, 9),
    "bbf_rr8": (2.2380, 0.8799, 1.1319, 12),
    "sac_bbf": (2.3455, 0.9025, 1.2902, 13),
    "efficientzero_v2": (2.6797, 1.2347, 1.3047, 15),
    "sr_spr": (1.2715, 0.6845, 0.6996, 9),
    "dreamerv3": (1.2453, 0.4799, 0.5406, 7),
    "spr": (0.6158, 0.3956, 0.4147, 6),
    "drq_eps": (0.4647, 0.3129, 0.3209, 3),
    "der": (0.3503, 0.1894, 0.1957, 2),
    "curl": (0.2615, 0.0923, 0.1319, 2),
    "ours": (1.799, 1.045, 1.204, 14),
}


# Game means to six digits, of the files that anchor_sources.csv names, by that other program.
MEANS = [
    ("bbf_rr2", "Alien", 1121.71),
    ("bbf_rr2", "Breakout", 331.07),
    ("bbf_rr2_without_spr", "BankHeist", 315.486),
    ("bbf_rr8", "Breakout", 356.988),
    ("dreamerv3", "Breakout", 9.66111),
    ("spr", "Pong", -5.4119),
    ("drq_eps", "DemonAttack", 1321.55),
    ("der", "Boxing", -0.3085),
    ("curl", "Freeway", 28.2676),
    ("sac_bbf", "Pong", 15.549),
    ("efficientzero_v2", "Freeway", 0.0),
    ("sr_spr", "UpNDown", 112450.3),
]


@pytest.mark.parametrize("column", AGGREGATES)
def test_game_means_give_the_aggregates(column: str) -> None:
    board = atari100k()
    values = anchors(board)[column].normalised(board, board.games)
    mean, median, iqm, above = AGGREGATES[column]
    near = 5e-4 if column == "ours" else 1e-4  # the paper prints one decimal of a score, files at least four digits
    assert values.mean() == pytest.approx(mean, abs=near)
    assert np.median(values) == pytest.approx(median, abs=near)
    assert float(statistics.trimmed_mean(values)) == pytest.approx(iqm, abs=near)
    assert (values > 1).sum() == above


@pytest.mark.parametrize(("column", "game", "mean"), MEANS)
def test_game_means_are_those_of_the_source(column: str, game: str, mean: float) -> None:
    assert anchors(atari100k())[column].scores[game] == pytest.approx(mean, rel=1e-5)


def test_every_agent_has_all_games_and_a_source_with_its_licence() -> None:
    notice = (ROOT / "NOTICE").read_text()
    board, found = atari100k(), anchors(atari100k())
    assert set(found) == set(AGGREGATES)
    assert {row["game"] for row in published_rows("anchors")} == set(board.games)
    assert set(published_rows("anchors")[0]) == {"game", *found} - {"ours"}
    for column, anchor in found.items():
        assert set(anchor.scores) == set(board.games)
        assert anchor.source
        if column != "ours":
            assert anchor.source.split()[0] in notice
            assert anchor.licence in ("CC BY 4.0", "Apache-2.0", "MIT")
        assert anchor.basis in ("per-seed file", "published means")
        assert (anchor.gpu_minutes is not None) == bool(anchor.gpu) == bool(anchor.gpu_time)
        if anchor.basis == "per-seed file":
            assert anchor.seeds
            assert anchor.iqm_runs is not None
        if anchor.iqm_interval is not None:
            low, high = anchor.iqm_interval
            assert anchor.iqm_runs is not None
            assert low < anchor.iqm_runs < high
    assert found["ours"].scores == board.scores["ours"]


def test_the_notice_comes_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["license-files"] == ["LICENSE", "NOTICE"]
    assert "scores/data/*.csv" in project["tool"]["setuptools"]["package-data"]["steadyq"]


def test_a_benchmark_without_agents_of_its_own_has_its_columns() -> None:
    found = anchors(procgen())
    assert list(found) == ["ppo", "ours"]
    board = procgen()
    assert found["ppo"].normalised(board, board.games).tolist() == pytest.approx(board.normalised("ppo").tolist())
    assert found["ppo"].normalised(board, board.games, clip=True).max() <= 1.0
