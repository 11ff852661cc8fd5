"""Which charts a page shows, as a list: a further diagnostic is one more `Chart` here.

Its columns are read from metrics.jsonl, or from diagnostics.jsonl where they begin with `diagnostics.`; a chart without
data is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steadyq.suite.runs import actions
from steadyq.suite.variants import Cell

Unit = Literal["", "share"]


@dataclass(frozen=True)
class Line:
    """One column of metrics.jsonl in a chart."""

    column: str
    label: str
    short: str = ""
    """Label at the line's end."""
    quiet: bool = False
    """A bound or context line: thin, without interval."""


@dataclass(frozen=True)
class Reference:
    """A level a reader compares with: a horizontal line, or a mark at a variant's end."""

    label: str
    value: float
    variant: int | None = None
    step: int | None = None
    """Where the mark stands."""


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    id: str
    title: str
    explains: str
    """One or two sentences: what is drawn, and what to look for."""
    y: str = ""
    """Axis label."""
    lines: tuple[Line, ...] = ()
    kind: Literal["lines", "heatmap", "timeline"] = "lines"
    unit: Unit = ""
    log: bool = False
    zero: bool = True
    """Whether the axis includes zero."""
    wide: bool = False
    references: Callable[[list[Cell]], list[Reference]] = lambda cells: []


def _evaluation(cells: list[Cell]) -> list[Reference]:
    found = [
        Reference(
            "evaluation",
            float(np.mean(cell.scores)),
            variant=cell.variant,
            step=max(run.last_step for run in cell.runs if run.result),
        )
        for cell in cells
        if cell.scores
    ]
    baseline = [cell.random for cell in cells if cell.random is not None]
    return [*found, *([Reference("random policy", float(np.mean(baseline)))] if baseline else [])]


def _chance(cells: list[Cell]) -> list[Reference]:
    number = actions(cells[0].runs[0])
    return [Reference(f"chance, 1 of {number} actions", 1 / number)] if number else []


def _clip(cells: list[Cell]) -> list[Reference]:
    limits = {run.recipe.optim.clip for cell in cells for run in cell.runs if run.meta is None}
    return [Reference("clipped above", limit) for limit in sorted(limits)]


CHARTS: tuple[Chart, ...] = (
    Chart(
        "return",
        "Return",
        "Mean raw return of the last 10 training games, exploration included. The diamond is the evaluation at the "
        "end: full games, final weights.",
        y="return of the last 10 games",
        lines=(Line("return_10", "last 10 games"),),
        references=_evaluation,
        wide=True,
    ),
    Chart(
        "value",
        "Value estimates",
        "Mean Q of the sampled transitions in the learner's discounted reward. A stable learner stays near the returns "
        "it really gets; Q that climbs past the best discounted return ever finished (the ceiling) is overestimation.",
        y="Q, discounted return",
        lines=(
            Line("q_taken", "Q(s, a) of the action taken", "Q(s, a)"),
            Line("q_max", "largest Q(s, ·)", "max Q"),
            Line("ceiling", "best discounted return so far", "ceiling", quiet=True),
        ),
    ),
    Chart(
        "same_action",
        "Same-action share",
        "How often the greedy action in the next state is the action just taken. Far above chance after a reward is "
        "the feedback loop that lets an action bootstrap from itself.",
        y="share of sampled transitions",
        lines=(
            Line("same_action", "all"),
            Line("same_action_rewarded", "after a reward", "reward"),
            Line("same_action_unrewarded", "without reward", "no reward"),
        ),
        unit="share",
        references=_chance,
    ),
    Chart(
        "spikes",
        "Spike ratio of each layer",
        "Largest weight over the 99th percentile of the layer's weights, mean over members and seeds. Weights that run "
        "away from their layer make the network brittle; a dot marks where a single member passed the threshold.",
        kind="heatmap",
    ),
    Chart(
        "resets",
        "Layer resets",
        "Each mark is a layer of one or more members that was intervened on because a measurement passed a threshold, "
        "or, on the lines `encoder` and `head`, a planned intervention on all of them.",
        kind="timeline",
    ),
    Chart(
        "spread",
        "Ensemble disagreement",
        "Standard deviation of Q(s, a) between members. It should shrink as members agree and never collapse to zero "
        "early.",
        y="spread of Q between members",
        lines=(Line("q_spread", "spread"),),
    ),
    Chart(
        "loss",
        "Loss",
        "Weighted loss per member and transition, on a logarithmic axis.",
        y="loss",
        lines=(Line("loss", "loss"),),
        log=True,
    ),
    Chart(
        "gradient",
        "Gradient norm",
        "Mean over members before clipping, on a logarithmic axis.",
        y="gradient norm",
        lines=(Line("gradient_norm", "gradient norm"),),
        log=True,
        references=_clip,
    ),
    Chart(
        "clipped",
        "What the limits hold back",
        "Share of targets held at the ceiling, and share of updates in which a member's gradient was clipped.",
        y="share",
        lines=(
            Line("clipped", "targets at the ceiling", "targets"),
            Line("gradient_clipped", "gradients clipped", "gradients"),
        ),
        unit="share",
    ),
    Chart(
        "overestimation",
        "Values against returns",
        "Greedy value on transitions drawn uniformly from replay, beside the discounted returns that finished games "
        "really gave. Values far above both lines cannot be earned.",
        y="discounted return",
        lines=(
            Line("diagnostics.q_greedy", "greedy value", "value"),
            Line("diagnostics.return_mean", "mean return of the last 20 trajectories", "return"),
            Line("diagnostics.return_best", "best return so far", "best", quiet=True),
        ),
    ),
    Chart(
        "decisions",
        "How firmly it decides",
        "Chance that noise of the measured size turns the greedy action, share of states whose greedy action a single "
        "update turns, and share of members that vote against the ensemble.",
        y="share of states",
        lines=(
            Line("diagnostics.flip_probability", "noise turns the action", "noise"),
            Line("diagnostics.churn", "one update turns the action", "update"),
            Line("diagnostics.vote_split", "members vote against", "votes"),
        ),
        unit="share",
    ),
    Chart(
        "units",
        "Units that no longer work",
        "Share of units that hardly fire (below a tenth of their layer's mean), and of units that hardly any gradient "
        "reaches.",
        y="share of units",
        lines=(
            Line("diagnostics.dormant", "hardly fire", "fire"),
            Line("diagnostics.dormant_gradient", "hardly learn", "learn"),
        ),
        unit="share",
    ),
    Chart(
        "rank",
        "Rank of the features",
        "How many directions the last hidden layer uses for 99% of its output's weight. A collapse to a few means that "
        "the network no longer tells states apart.",
        y="effective rank",
        lines=(Line("diagnostics.effective_rank", "effective rank", "rank"),),
    ),
    Chart(
        "update_size",
        "Size of an update",
        "Norm of one update over the norm of the weights, on a logarithmic axis. About a thousandth is usual.",
        y="update over weights",
        lines=(Line("diagnostics.update_ratio", "update over weights", "ratio"),),
        log=True,
    ),
    Chart(
        "target_gap",
        "Distance to the target network",
        "Online minus target values over the spread of values, on a logarithmic axis. Nothing drawn means that the two "
        "are the same.",
        y="relative distance",
        lines=(Line("diagnostics.target_gap_relative", "online from target", "distance"),),
        log=True,
    ),
    Chart(
        "experience",
        "Exploration and rewards",
        "Probability of a random action, and share of sampled transitions with a reward.",
        y="share",
        lines=(
            Line("epsilon", "random actions (epsilon)", "epsilon"),
            Line("rewarded", "rewarded transitions", "rewarded"),
        ),
        unit="share",
    ),
)
