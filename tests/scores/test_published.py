import pytest

from steadyq.errors import UserError
from steadyq.scores.published import Scores, atari100k, procgen, public_runs, published_rows, sources


def test_games_and_seeds_are_sorted() -> None:
    found = Scores({"Pong": {1: 3.0, 0: 2.0}, "Alien": {0: 7}})
    assert found.games == ("Alien", "Pong")
    assert found.seeds("Pong") == (0, 1)
    assert found["Pong"].tolist() == [2.0, 3.0]
    assert found.means().tolist() == [7.0, 2.5]


@pytest.mark.parametrize("episodes", [[1.0, 2.0], (1.0,), "3", None, True])
def test_episodes_cannot_stand_for_a_seed(episodes: object) -> None:
    with pytest.raises(UserError, match="one number per seed"):
        Scores({"Pong": {0: episodes}})  # type: ignore[dict-item]


def test_arrays_of_scores_are_refused() -> None:
    with pytest.raises(UserError, match="one per seed"):
        Scores({"Pong": [1.0, 2.0]})  # type: ignore[dict-item]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_are_finite(bad: float) -> None:
    with pytest.raises(UserError, match="the score is"):
        Scores({"Pong": {0: bad}})


@pytest.mark.parametrize("seed", ["0", 0.5, True])
def test_seeds_are_whole_numbers(seed: object) -> None:
    with pytest.raises(UserError, match="whole number"):
        Scores({"Pong": {seed: 1.0}})  # type: ignore[dict-item]


def test_no_scores_and_unknown_games_are_named() -> None:
    with pytest.raises(UserError, match="no scores"):
        Scores({})
    with pytest.raises(UserError, match="did you mean 'Pong'"):
        Scores({"Pong": {0: 1.0}})["Png"]


def test_balanced_needs_a_shared_seed() -> None:
    with pytest.raises(UserError, match="no seed"):
        Scores({"a": {0: 1.0}, "b": {1: 1.0}}).balanced()


def test_published_atari_is_complete_and_the_correction_is_a_switch() -> None:
    printed, corrected = atari100k(), atari100k(corrected=True)
    assert len(printed.games) == 26
    assert " ".join(printed.scores) == "der drq iris rem storm dreamerv3 diamond dart sgf drama bbf ours"
    assert printed.scores["storm"]["Freeway"] == 33.5
    assert corrected.scores["storm"]["Freeway"] == 0.0
    changed = [(c, g) for c in printed.scores for g in printed.games if printed.scores[c][g] != corrected.scores[c][g]]
    assert changed == [("storm", "Freeway")]


def test_printed_bold_marks_are_kept_as_printed() -> None:
    assert atari100k().bold["CrazyClimber"] == "dreamerv3"
    assert sum(bold == "ours" for bold in atari100k().bold.values()) == 10


def test_procgen_constants_differ_in_two_games() -> None:
    appendix, code = procgen(), procgen("code")
    assert len(appendix.games) == 16
    assert {g: code.low[g] for g in code.games if code.low[g] != appendix.low[g]} == {"Jumper": 1.0, "Leaper": 1.5}
    assert appendix.high == code.high
    assert (appendix.low["Jumper"], appendix.low["Leaper"]) == (3.0, 3.0)
    with pytest.raises(UserError, match="'hard'"):
        procgen("hard")  # type: ignore[arg-type]


@pytest.mark.parametrize("benchmark", ["atari100k", "procgen"])
def test_every_column_has_a_source(benchmark: str) -> None:
    columns = set(published_rows(benchmark)[0]) - {"game", "bold"}
    found = sources(benchmark)
    assert columns == set(found)
    for each in found.values():
        assert each.what
        assert each.source
        assert each.verified in ("yes", "partly", "no")


def test_columns_say_what_they_really_are() -> None:
    found = sources("atari100k")
    assert (found["rem"].printed_name, found["rem"].name) == ("REM", "REM (Retentive Environment Model)")
    assert (found["drq"].printed_name, found["drq"].name) == ("DrQ", "DrQ(ε)")


def test_corrections_quote_the_printed_cell() -> None:
    for fix in published_rows("corrections"):
        assert atari100k().scores[fix["column"]][fix["game"]] == float(fix["printed"])


def test_public_runs_agree_with_the_game_means() -> None:
    for corrected in (False, True):
        for column, runs in public_runs(corrected).items():
            if column in ("bbf", "dreamerv3"):  # the files hold other runs, or two other cells
                continue
            assert runs.mean == pytest.approx(atari100k(corrected).normalised(column).mean(), abs=4e-4), column
    assert public_runs()["storm"].iqm == 0.6358
    assert public_runs(corrected=True)["storm"].iqm == 0.5611


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'storm'"):
        atari100k().raw("strom")
