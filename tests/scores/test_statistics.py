import itertools

import numpy as np
import pytest

from steadyq.errors import UserError
from steadyq.scores import statistics as st
from steadyq.scores.published import Scores

# Rows are seeds, columns are games. Ties within and between the two are deliberate.
X = np.array(
    [
        [0.12, 1.9, 0.55, 0.31, 3.4],
        [0.18, 2.3, 0.41, 0.31, 2.2],
        [0.09, 1.1, 0.77, 0.45, 4.1],
        [0.15, 2.7, 0.55, 0.05, 2.9],
    ]
)
Y = np.array([[0.10, 1.2, 0.60, 0.31, 2.0], [0.18, 2.9, 0.35, 0.22, 2.2], [0.20, 1.0, 0.80, 0.45, 1.6]])

# Made once with rliable 1.2.0 (numpy 2.4.6, scipy 1.17.1, arch 7.2.0, pandas 2.3.3) on X and Y: metrics.aggregate_*,
# metrics.probability_of_improvement, library.score_distributions, and library.get_interval_estimates after
# np.random.seed(0) with 50 000 resamples (5 000 for the probability of improvement).
RLIABLE = {"mean": 1.227, "median": 0.57, "IQM (runs x games)": 0.855, "optimality gap": 0.403}
RLIABLE_IQM_Y = 0.7255555555555555
RLIABLE_IMPROVEMENT = {"xy": 0.5416666666666667, "yx": 0.4583333333333333, "xx": 0.5}
RLIABLE_PROFILE = {0.0: 1.0, 0.1: 0.9, 0.31: 0.65, 0.55: 0.45, 1.0: 0.4, 2.2: 0.25, 5.0: 0.0}
RLIABLE_INTERVALS = {
    "mean": (1.0444875, 1.407),
    "median": (0.445, 0.715),
    "IQM (runs x games)": (0.657, 1.051),
    "optimality gap": (0.365, 0.442),
}
RLIABLE_IMPROVEMENT_INTERVAL = (0.36666667, 0.74166667)


def scores(matrix: np.ndarray) -> Scores:
    return Scores({f"game{g}": dict(enumerate(column.tolist())) for g, column in enumerate(matrix.T)})


@pytest.mark.parametrize("name", RLIABLE)
def test_aggregates_equal_rliable(name: str) -> None:
    assert st.STATISTICS[name](scores(X)) == pytest.approx(RLIABLE[name], abs=1e-12)


def test_pooled_iqm_equals_rliable_when_a_quarter_is_no_whole_number() -> None:
    assert st.iqm(scores(Y)) == pytest.approx(RLIABLE_IQM_Y, abs=1e-12)  # 15 scores: 3 dropped at each end


def test_probability_of_improvement_equals_rliable() -> None:
    x, y = scores(X), scores(Y)
    assert st.probability_of_improvement(x, y) == pytest.approx(RLIABLE_IMPROVEMENT["xy"], abs=1e-12)
    assert st.probability_of_improvement(y, x) == pytest.approx(RLIABLE_IMPROVEMENT["yx"], abs=1e-12)
    assert st.probability_of_improvement(x, x) == RLIABLE_IMPROVEMENT["xx"]


def test_profile_equals_rliable() -> None:
    np.testing.assert_allclose(st.profile(scores(X), list(RLIABLE_PROFILE)), list(RLIABLE_PROFILE.values()), atol=1e-12)


@pytest.mark.parametrize("name", RLIABLE_INTERVALS)
def test_intervals_equal_rliable_within_resampling_noise(name: str) -> None:
    found = st.interval(scores(X), st.STATISTICS[name], reps=20_000, seed=1)
    low, high = RLIABLE_INTERVALS[name]
    assert found.value == pytest.approx(RLIABLE[name])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03 * (high - low))


def test_improvement_interval_equals_rliable_within_resampling_noise() -> None:
    found = st.improvement_interval(scores(X), scores(Y), reps=20_000)
    assert (found.low, found.high) == pytest.approx(RLIABLE_IMPROVEMENT_INTERVAL, abs=0.018)


def test_interval_equals_the_enumerated_bootstrap() -> None:
    matrix = np.array([[0.0, 10.0], [1.0, 14.0], [5.0, 30.0]])
    means = [[np.mean(draw) for draw in itertools.product(column, repeat=3)] for column in matrix.T]
    every = [np.mean(pair) for pair in itertools.product(*means)]  # all 27 x 27 resamples, equally likely
    found = st.interval(scores(matrix), st.mean, level=0.9, reps=60_000)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(every, [0.05, 0.95])), abs=0.1)


def test_the_three_iqms_by_hand() -> None:
    # Six games of two seeds; game means 1..6, seeds one apart on either side.
    six = Scores({f"g{m}": {0: m - 1.0, 1: m + 1.0} for m in range(1, 7)})
    assert st.iqm_game_means(six) == 3.5  # int(1.5) = 1 dropped at each end: 2, 3, 4, 5
    assert st.iqm_slice(six) == 3.0  # sorted[1:4]: 2, 3, 4
    # Pooled: 0 1 2 2 3 3 4 4 5 5 6 7; three dropped at each end leaves 2 3 3 4 4 5.
    assert st.iqm(six) == 3.5
    assert st.iqm(Scores({"a": {0: 0.0, 1: 100.0}, "b": {0: 1.0, 1: 2.0}})) == 1.5
    assert st.iqm_game_means(Scores({"a": {0: 0.0, 1: 100.0}, "b": {0: 1.0, 1: 2.0}})) == 25.75


def test_slice_drops_six_below_and_seven_above_of_26() -> None:
    values = np.arange(26.0)
    assert st.slice_mean(values) == np.mean(range(6, 19))
    assert st.trimmed_mean(values) == np.mean(range(6, 20))


def test_optimality_gap_counts_nothing_above_one() -> None:
    assert st.optimality_gap(Scores({"a": {0: 0.25}, "b": {0: 9.0}})) == pytest.approx(0.375)


def test_ties_are_half_a_win() -> None:
    assert st.probability_of_improvement(Scores({"a": {0: 1.0, 1: 2.0}}), Scores({"a": {0: 1.0}})) == 0.75


def test_bootstrap_is_deterministic_and_depends_on_the_seed() -> None:
    first = st.interval(scores(X), st.iqm, reps=1500, seed=3)
    shuffled = Scores({g: {s: scores(X).by_seed[g][s] for s in (2, 0, 3, 1)} for g in reversed(scores(X).games)})
    assert st.interval(shuffled, st.iqm, reps=1500, seed=3) == first
    assert st.interval(scores(X), st.iqm, reps=1500, seed=4) != first


def test_resampling_stays_within_each_game() -> None:
    # Games differ, seeds of one game do not: any mixing across games would widen the interval.
    same = Scores({"a": {0: 1.0, 1: 1.0}, "b": {0: 5.0, 1: 5.0}})
    assert st.interval(same, st.mean, reps=200) == st.Interval(3.0, 3.0, 3.0)


def test_profile_band_encloses_the_profile() -> None:
    thresholds = [0.0, 0.3, 1.0, 2.5]
    low, high = st.profile_band(scores(X), thresholds, reps=1200)
    value = st.profile(scores(X), thresholds)
    assert (low <= value).all()
    assert (value <= high).all()
    assert (low < high).any()


def test_ragged_seeds_give_per_game_statistics_and_refuse_pooling() -> None:
    ragged = Scores({"a": {0: 0.0, 1: 1.0, 2: 2.0}, "b": {1: 3.0, 2: 5.0}})
    assert st.mean(ragged) == 2.5
    st.interval(ragged, st.mean, reps=50)
    with pytest.raises(UserError, match="2 to 3 seeds"):
        st.iqm(ragged)
    assert st.iqm(ragged.balanced()) == 2.5  # 1 2 3 5 without the ends


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(UserError, match="at least two"):
        st.interval(Scores({"a": {0: 1.0}}), st.mean)


def test_different_games_are_not_compared() -> None:
    with pytest.raises(UserError, match="only one has b"):
        st.probability_of_improvement(Scores({"a": {0: 1.0}, "b": {0: 1.0}}), Scores({"a": {0: 1.0}}))


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_level_is_a_fraction(level: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        st.interval(scores(X), st.mean, level=level, reps=10)


def test_human_normalisation() -> None:
    found = st.human_normalised(Scores({"Pong": {0: -20.7, 1: 14.6}, "ms_pacman": {0: 307.3}}))
    np.testing.assert_allclose(found["Pong"], [0.0, 1.0], atol=1e-12)
    assert found["ms_pacman"][0] == pytest.approx(0.0)
    with pytest.raises(UserError, match="did you mean 'Pong'"):
        st.human_normalised(Scores({"Pongg": {0: 1.0}}))


def test_procgen_normalisation_clipped_and_with_the_code_constants() -> None:
    raw = Scores({"maze": {0: 2.0}, "jumper": {0: 5.5}, "coinrun": {0: 12.0}})
    plain, clipped = st.procgen_normalised(raw), st.procgen_normalised(raw, clip=True)
    assert (plain["maze"][0], clipped["maze"][0]) == pytest.approx((-0.6, 0.0))
    assert (plain["coinrun"][0], clipped["coinrun"][0]) == pytest.approx((1.4, 1.0))
    assert plain["jumper"][0] == pytest.approx(2.5 / 7)
    assert st.procgen_normalised(raw, constants="code")["jumper"][0] == pytest.approx(0.5)


def test_interval_is_the_percentile_bootstrap() -> None:
    # Two seeds, 0 and 1: a resample's mean is 0, 1/2 or 1 with chance 1/4, 1/2, 1/4, so the ends are the seeds.
    np.testing.assert_array_equal(st.mean_interval([0.0, 1.0]), [0, 1])
    rng = np.random.default_rng(1)
    values = rng.normal(size=40)
    low, high = st.mean_interval(values)
    error = values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    assert st.mean_interval(np.ones((3, 4, 5))).shape == (2, 4, 5)
    with pytest.raises(UserError, match="two seeds"):
        st.mean_interval([1.0])


def test_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    samples = rng.normal(size=(20, 500))  # 500 experiments of 20 seeds, true mean 0
    low, high = st.mean_interval(samples)
    assert 0.89 < np.mean((low <= 0) & (high >= 0)) < 0.97


def test_a_curve_and_a_table_of_the_same_scores_have_the_same_interval() -> None:
    ours = Scores({"Pong": dict(enumerate([3.0, -1.0, 4.0, 1.0, 5.0]))})
    both = st.interval(ours, st.mean)
    np.testing.assert_allclose(st.mean_interval(ours["Pong"]), [both.low, both.high], rtol=1e-12)
