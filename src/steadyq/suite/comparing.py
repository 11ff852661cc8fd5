"""Scores of a sweep made comparable: normalised by their benchmark, or held against the best variant of each game."""

from collections.abc import Callable, Mapping, Sequence

from steadyq.scores import statistics
from steadyq.scores.published import Published, Scores, atari100k, procgen
from steadyq.scores.statistics import Interval, Statistic
from steadyq.suite.sweep import Measure, Sweep


def benchmark_of(envs: Sequence[str]) -> Published | None:
    """The benchmark whose games these all are."""
    for prefix, published in (("Atari/", atari100k()), ("Procgen/", procgen())):
        if envs and all(env.startswith(prefix) and env.partition("/")[2] in published.games for env in envs):
            return published
    return None


def normalisations(benchmark: Published) -> list[tuple[str, Callable[[Scores], Scores]]]:
    """Ways to normalise its scores, by name."""
    if benchmark.benchmark == "atari100k":
        return [("human-normalised", statistics.human_normalised)]
    return [
        ("min-max normalised", statistics.procgen_normalised),
        ("min-max normalised, clipped", lambda scores: statistics.procgen_normalised(scores, clip=True)),
    ]


def top_of(benchmark: Published) -> str:
    """What a normalised score of 1 is."""
    return "the human player" if benchmark.benchmark == "atari100k" else "a solved game"


def best_means(sweep: Sweep, of: Measure = "mean_return") -> dict[str, float]:
    """The best variant's mean of each game that all variants have finished, where it is above 0."""
    found: dict[str, float] = {}
    for env in sweep.complete:
        means = [float(own[env].mean()) for label in sweep.study.labels if (own := sweep.scores(label, [env], of))]
        if len(means) == len(sweep.study.labels) and max(means) > 0:
            found[env] = max(means)
    return found


def relative(sweep: Sweep, label: str, best: Mapping[str, float], of: Measure = "mean_return") -> Scores:
    """A variant's scores divided by the best one's mean on the same game."""
    scores = sweep.scores(label, list(best), of)
    assert scores is not None
    return scores.apply(lambda env, values: values / best[env])


def without_backend(scores: Scores) -> Scores:
    """Games without their backend, as benchmarks name them."""
    return Scores({env.partition("/")[2]: column for env, column in scores.by_seed.items()})


def intervals_possible(scores: Scores) -> bool:
    """Whether every game has the two seeds that an interval needs."""
    return all(len(scores.seeds(game)) > 1 for game in scores.games)


def interval_of(scores: Scores, statistic: Statistic, level: float = 0.95) -> Interval | None:
    """A statistic with its interval over seeds, where there is one."""
    return statistics.interval(scores, statistic, level) if intervals_possible(scores) else None
