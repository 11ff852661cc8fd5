"""One row of diagnostics.jsonl from one look at a learner: the same for our own ensembles and for other people's."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steadyq.monitor import diagnostics as d
from steadyq.value.estimators import Estimator, td_error
from steadyq.value.operators import take
from steadyq.value.shapes import Params


@dataclass(frozen=True)
class Snapshot:
    """What one batch shows of a learner; members first, a single network is one member."""

    action: Tensor  # [batch]
    rewarded: Tensor  # [batch] bool: the action itself
    estimator: Estimator  # what z and y mean
    z: Tensor  # [member, batch, action, atom] online at s
    q: Tensor  # [member, batch, action] their means
    q_target: Tensor  # [member, batch, action] target network at s
    q_next: Tensor  # [member, batch, action] target network at s', before any masking
    y: Tensor  # [member, batch, atom] regression targets
    features: Tensor  # [member, batch, unit] what the last layer reads
    weights: Params
    gradients: Params
    layers: tuple[str, ...]  # whose `.weight` is watched for spikes
    q_before: Tensor | None = None  # [member, batch, action] online at s before the last update
    weights_before: Params | None = None
    ceiling: Tensor | None = None
    scores: Params = field(default_factory=dict)  # [member, unit] by layer: `unit_scores` of what its units put out
    gradient_scores: Params = field(default_factory=dict)  # of the loss's gradient, where units' own weights receive it


@torch.no_grad()
def row(shot: Snapshot) -> dict[str, Any]:
    """Every diagnostic of the snapshot; None where it is not defined or not finite.

    Flat columns are the ensemble's, or means over members; `members` and `layers` hold what lies behind them.
    """
    members: dict[str, Tensor] = {}
    columns: dict[str, Any] = {}
    layers: dict[str, dict[str, Tensor]] = {name: {} for name in dict.fromkeys([*shot.layers, *shot.scores])}
    _operator(shot, columns, members)
    _estimator(shot, columns, members)
    _parameters(shot, columns, members, layers)
    columns |= {name: value.mean() for name, value in members.items() if name not in columns}
    return {
        **{name: _plain(value) for name, value in columns.items()},
        "members": {name: _plain(value) for name, value in members.items()},
        "layers": {layer: {name: _plain(value) for name, value in own.items()} for layer, own in layers.items() if own},
    }


def _operator(shot: Snapshot, columns: dict[str, Any], members: dict[str, Tensor]) -> None:
    action, rewarded, mean_next = shot.action, shot.rewarded, shot.q_next.mean(0)
    mean = shot.q.mean(0)
    columns["q_taken"] = mean.gather(1, action[:, None]).mean()
    columns["q_greedy"] = mean.max(1).values.mean()
    columns["q_top"] = mean.max()
    columns["transitions"], columns["rewarded"] = len(action), rewarded.double().mean()
    for name, where in (("", None), ("_rewarded", rewarded), ("_unrewarded", ~rewarded)):
        columns[f"same_action{name}"] = d.same_action_share(mean_next, action, where)
        members[f"same_action{name}"] = d.same_action_share(shot.q_next, action, where)
    columns["same_action_chance"] = d.chance_of_same_action(mean_next, action)
    members["q_greedy"] = shot.q.max(2).values.mean(1)
    members["target_gap"], members["target_gap_relative"] = d.target_gap(shot.q, shot.q_target)
    if shot.ceiling is not None:
        members["clipped"] = shot.estimator.held(shot.y, shot.ceiling).double().mean(1)


def _estimator(shot: Snapshot, columns: dict[str, Any], members: dict[str, Tensor]) -> None:
    mean = shot.q.mean(0)
    columns["action_gap"] = d.action_gap(mean).mean()
    columns["q_spread_states"] = mean.max(1).values.double().std(correction=0)
    members["action_gap"] = d.action_gap(shot.q).mean(1)
    noise = None
    if shot.q.shape[0] > 1:
        columns["disagreement"], columns["vote_split"] = d.disagreement(shot.q), d.vote_split(shot.q)
        noise = d.mean_noise(shot.q)
    elif shot.q_before is not None:
        noise = d.update_noise(shot.q_before, shot.q)
    if noise is not None:
        columns["noise"], columns["flip_probability"] = noise.mean(), d.flip_probability(mean, noise)
    if shot.q_before is not None:
        columns["churn"] = d.churn(shot.q_before.mean(0), mean)
        members["churn"] = d.churn(shot.q_before, shot.q)
    taken = take(shot.z, shot.action.expand(shot.z.shape[0], -1))
    error = td_error(shot.estimator, taken, shot.y)
    members["td_error"] = error.abs().mean(1)
    members["td_kurtosis"], members["td_tail"] = d.tails(error), d.tail_ratio(error)
    if (crossing := shot.estimator.crossing(shot.z)) is not None:
        members["crossing"] = crossing


def _parameters(
    shot: Snapshot, columns: dict[str, Any], members: dict[str, Tensor], layers: dict[str, dict[str, Tensor]]
) -> None:
    spikes = torch.stack([d.spike_ratio(shot.weights[f"{name}.weight"]) for name in shot.layers], 1)  # [member, layer]
    members["spike"] = spikes.max(1).values
    columns["spike"], columns["spike_layer"] = spikes.max(), shot.layers[int(spikes.max(0).values.argmax())]
    for name, ratios in zip(shot.layers, spikes.unbind(1), strict=True):
        layers[name]["spike"] = ratios.max()
        layers[name]["weight_norm"] = d.member_norm({name: shot.weights[f"{name}.weight"]}).mean()
        layers[name]["gradient_norm"] = d.member_norm({name: shot.gradients[f"{name}.weight"]}).mean()
    strict, usual = d.DORMANT
    for column, source, threshold in (
        ("dormant_strict", shot.scores, strict),
        ("dormant", shot.scores, usual),
        ("dormant_gradient", shot.gradient_scores, usual),
    ):
        fractions = {name: d.dormant_fraction(scores, threshold) for name, scores in source.items()}
        for name, fraction in fractions.items():
            layers[name][column] = fraction.mean()
        if fractions:
            members[column] = d.by_layer(list(fractions.values()), [scores.shape[1] for scores in source.values()])
    if shot.features.isfinite().all():
        singular = d.singular_values(shot.features)
        members["stable_rank"], members["effective_rank"] = d.stable_rank(singular), d.effective_rank(singular).double()
        columns["rank_possible"] = singular.shape[1]
    members["weight_norm"], members["gradient_norm"] = d.member_norm(shot.weights), d.member_norm(shot.gradients)
    if shot.weights_before is not None:
        change = {name: p - shot.weights_before[name] for name, p in shot.weights.items()}
        members["update_norm"] = d.member_norm(change)
        members["update_ratio"] = members["update_norm"] / members["weight_norm"].clamp_min(1e-30)


def _plain(value: Any) -> Any:
    """Numbers for JSON: six significant digits, None where not finite."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
