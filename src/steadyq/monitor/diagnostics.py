"""What can be measured about an unstable Q-learner, as pure functions of tensors.

Members come first, as in `value/shapes.py`: a single network is one member. The functions follow the paper's three
levels. Operator: which action feeds the bootstrap, and how far values run ahead of returns. Estimator: how easily
noise turns the greedy action. Parameter dynamics: how weights, units and features drift. Each result keeps its
members; `rows.py` joins them into one row. docs/metrics.md gives formula, source and healthy range.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steadyq.nets.units import dormant_fraction, unit_scores, unit_sizes
from steadyq.value.optim import Adam, AdamState, member_norm
from steadyq.value.regulation import spike_ratio
from steadyq.value.shapes import Params

__all__ = [
    "action_gap",
    "chance_of_same_action",
    "churn",
    "disagreement",
    "dormant_fraction",
    "effective_rank",
    "flip_probability",
    "mean_noise",
    "member_norm",
    "plasticity_probe",
    "same_action_share",
    "spike_ratio",
    "stable_rank",
    "tail_ratio",
    "tails",
    "target_gap",
    "unit_scores",
    "unit_sizes",
    "update_noise",
    "vote_split",
]

DORMANT = (0.025, 0.1)
"""Thresholds on a unit's normalised score below which ReDo calls it dormant: strict, and the one it recycles at."""


def same_action_share(q_next: Tensor, action: Tensor, where: Tensor | None = None) -> Tensor:
    """Share of transitions with a = argmax q(s', .), `[..., batch, action] x [batch] -> [...]`; NaN over none.

    `where[batch]` restricts it, for example to r > 0. This is the paper's Fig. 1 statistic, before any masking.
    """
    same = (q_next.argmax(-1) == action).double()
    kept = torch.ones_like(action, dtype=torch.bool) if where is None else where
    return same[..., kept].mean(-1)


def chance_of_same_action(q_next: Tensor, action: Tensor) -> Tensor:
    """The share expected if the greedy action at s' had nothing to do with a: sum_a P(a) P(a* = a), `[...]`.

    At least as large as 1 / actions where both favour the same actions: a policy that always goes left repeats
    actions without any coupling between reward and bootstrap.
    """
    actions = q_next.shape[-1]
    taken = torch.bincount(action, minlength=actions).double() / len(action)
    chosen = torch.nn.functional.one_hot(q_next.argmax(-1), actions).double().mean(-2)
    return (chosen * taken).sum(-1)


def target_gap(online: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean square of online minus target values, and the same over the spread of values, `[member]` each.

    A relative gap of zero means that targets move with every update: there is no target network.
    """
    gap = (online - target).double().flatten(1).square().mean(1).sqrt()
    spread = target.double().flatten(1).std(1, correction=0)
    return gap, gap / spread.clamp_min(1e-12)


def action_gap(q: Tensor) -> Tensor:
    """Best minus second-best value, `[..., action] -> [...]`."""
    top = q.topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def disagreement(q: Tensor) -> Tensor:
    """Standard deviation between members, mean over states and actions, `[member, batch, action] -> []`."""
    return q.std(0, correction=0).mean()


def vote_split(q: Tensor) -> Tensor:
    """Share of members and states where a member's greedy action is not the ensemble's."""
    return (q.argmax(-1) != q.mean(0).argmax(-1)).double().mean()


def mean_noise(q: Tensor) -> Tensor:
    """Standard error of the ensemble's mean value against the state's other actions, [batch, action].

    From the spread of its members, each centred over the actions: what a member adds to all of them alike cannot turn
    an argmax.
    """
    centred = q - q.mean(-1, keepdim=True)
    return centred.std(0, correction=1) / math.sqrt(q.shape[0])


def update_noise(before: Tensor, after: Tensor) -> Tensor:
    """How much one update moved each action's value against the others, as a root mean square, [batch, action].

    The noise that a single network shows: what all actions of a state share cannot turn its greedy action.
    """
    moved = after - before
    moved = moved - moved.mean(-1, keepdim=True)
    return moved.square().mean().sqrt().expand(moved.shape[-2:])


def flip_probability(q: Tensor, noise: Tensor) -> Tensor:
    """Chance that independent Gaussian noise lifts the strongest rival above the greedy action, mean over states.

    `[batch, action] x [batch, action] -> []`: max over a' of Phi(-gap / sqrt(noise_a*^2 + noise_a'^2)), the paper's
    Pr(eps_a' - eps_a* > gap) for one a'.
    """
    q, noise = q.double(), noise.double().clamp_min(1e-300)
    best = q.argmax(-1, keepdim=True)
    gap = q.gather(-1, best) - q
    scale = (noise.gather(-1, best).square() + noise.square()).sqrt()
    each = 0.5 * torch.erfc(gap / scale / math.sqrt(2))
    return each.scatter(-1, best, 0.0).max(-1).values.mean()


def churn(before: Tensor, after: Tensor) -> Tensor:
    """Share of states whose greedy action differs between two parameter sets, `[..., batch, action] -> [...]`."""
    return (before.argmax(-1) != after.argmax(-1)).double().mean(-1)


def tails(error: Tensor) -> Tensor:
    """Kurtosis of the TD errors, `[member, batch] -> [member]`: 3 for a Gaussian, large if a few errors dominate."""
    centred = error.double() - error.double().mean(1, keepdim=True)
    variance = centred.square().mean(1)
    return centred.pow(4).mean(1) / variance.square().clamp_min(1e-300)


def tail_ratio(error: Tensor) -> Tensor:
    """99th percentile of |TD error| over its median, `[member, batch] -> [member]`: 3.8 for a Gaussian."""
    size = error.double().abs()
    high, middle = torch.quantile(size, torch.tensor([0.99, 0.5], dtype=torch.float64, device=size.device), dim=1)
    ratio: Tensor = high / middle.clamp_min(1e-300)
    return ratio


def singular_values(features: Tensor) -> Tensor:
    """Singular values of features[member, batch, unit], largest first.

    As roots of the smaller Gram matrix's eigenvalues, many times faster than a decomposition of the features: exact to
    1e-8 of the largest, which is all that ranks need.
    """
    wide = features.double()
    gram = wide @ wide.mT if wide.shape[1] <= wide.shape[2] else wide.mT @ wide
    squared: Tensor = torch.linalg.eigvalsh(gram)
    return squared.clamp_min(0).sqrt().flip(1)


def stable_rank(singular: Tensor) -> Tensor:
    """Sum of squared singular values over the largest squared, `[member, value] -> [member]`."""
    square = singular.square()
    return square.sum(1) / square[:, 0].clamp_min(1e-300)


def effective_rank(singular: Tensor, delta: float = 0.01) -> Tensor:
    """Fewest singular values that hold 1 - delta of their sum (srank), `[member, value] -> [member]`."""
    share = singular.cumsum(1) / singular.sum(1, keepdim=True).clamp_min(1e-300)
    return 1 + (share < 1 - delta).sum(1)


def plasticity_probe(
    forward: Callable[[Params, Tensor], Tensor],
    params: Params,
    observation: Tensor,
    *,
    generator: torch.Generator,
    steps: int = 100,
    rate: float = 1e-3,
) -> Tensor:
    """Fit random targets from a copy of the parameters; returns the share of the error that is left, [member].

    `forward(params, observation)` gives `[member, batch, ...]`. The targets are the present outputs plus unit Gaussian
    noise, so that a network is asked to learn as much wherever it stands; compare with freshly drawn parameters.
    """
    copy = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    state, adam = AdamState.zeros(copy), Adam(rate)
    with torch.no_grad():
        start = forward(copy, observation)
    noise = torch.randn(start.shape[1:], generator=generator).to(start.device)

    def each(parts: Params) -> Tensor:
        return (forward(parts, observation) - start - noise).square().flatten(1).mean(1)

    whole = torch.ones(start.shape[0], device=start.device)
    for _ in range(steps):
        gradient = torch.autograd.grad(each(copy).sum(), list(copy.values()), materialize_grads=True)
        with torch.no_grad():
            adam.step_(copy, dict(zip(copy, gradient, strict=True)), state, whole)
    with torch.no_grad():
        return each(copy) / noise.square().mean()


def by_layer(fractions: Sequence[Tensor], units: Sequence[int]) -> Tensor:
    """Mean of layers' fractions weighted by their units, `[member] each -> [member]`."""
    total = torch.stack([fraction * count for fraction, count in zip(fractions, units, strict=True)]).sum(0)
    return total / sum(units)
