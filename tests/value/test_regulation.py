"""Axis 3: what a reset touches, what it leaves alone, and how large the next step is."""

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyq.monitor.verdict import RULES
from steadyq.nets import MLP, Ensemble, MinAtarNet, Network, ResNet
from steadyq.value.estimators import Quantile
from steadyq.value.flat import Flat
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Controlled
from steadyq.value.optim import Adam
from steadyq.value.regulation import (
    ANSWERS,
    Always,
    Answer,
    Dormant,
    Evidence,
    Intervention,
    Periodic,
    Recycle,
    Regulation,
    Reinitialise,
    Replace,
    ShrinkPerturb,
    Spike,
    Trigger,
    Verdict,
    spike_ratio,
    spike_ratios,
)
from steadyq.value.shapes import Batch, DrawLayout, Params
from steadyq.value.utility import Replacement

RATE, MEMBERS = 1e-3, 3
LAYERS = ("fc1", "fc2", "head")


def trained(updates: int = 30, by_unit: bool = False, flat: bool = False) -> Learner:
    settings = Settings(
        Adam(rate=RATE), clip=10.0, tau=0.05, hard_copy_every=0, unit_steps=by_unit, replacement=Replacement(0.0, 0)
    )
    ensemble = Ensemble(MLP((4,), 2 * 5, (16, 16)), MEMBERS, actions=2, atoms=5)
    learner = Learner(ensemble, Quantile(5), Controlled(), settings, torch.Generator().manual_seed(0))
    if flat:  # all parameters in one buffer, as on a GPU
        learner.flat = buffer = Flat(learner.online, settings.adam, torch.float32, (), by_unit)
        learner.online = learner.online_low = buffer.online
        learner.target, learner.adam = buffer.target, buffer.adam
        learner.target_low = buffer.target_low
    for step in range(updates):
        update(learner, step)
    return learner


def update(learner: Learner, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = 16
    batch = Batch(
        observation=torch.randn(count, 4, generator=generator),
        action=torch.randint(2, (count,), generator=generator),
        reward=(reward := torch.randn(count, generator=generator)),
        discount=torch.full((count,), 0.9),
        next_observation=torch.randn(count, 4, generator=generator),
        weight=torch.ones(count),
        index=torch.arange(count),
        stamp=torch.zeros(count, dtype=torch.int64),
        rewarded=reward > 0,
    )
    learner.update(batch, DrawLayout(MEMBERS, count).plain(order=[1, 2, 0], forbid=True, rate=RATE))


def copied(params: Params) -> Params:
    return {name: p.clone() for name, p in params.items()}


def reset(learner: Learner, mask: Tensor, seed: int = 7) -> None:
    evidence = Evidence(LAYERS, torch.where(mask, 7.0, 1.0))
    Regulation(Spike(6.0), Reinitialise())(learner, evidence, torch.Generator().manual_seed(seed))


def only(member: int, layer: str) -> Tensor:
    mask = torch.zeros(MEMBERS, len(LAYERS), dtype=torch.bool)
    mask[member, LAYERS.index(layer)] = True
    return mask


def test_a_reset_touches_the_named_member_and_layer_only() -> None:
    learner = trained()
    groups = (learner.online, learner.adam.first, learner.adam.second, learner.adam.step)
    before, target = [copied(group) for group in groups], copied(learner.target)
    reset(learner, only(1, "fc2"))
    for group, old in zip(groups, before, strict=True):
        for name, p in group.items():
            for member in range(MEMBERS):
                hit = member == 1 and name in ("fc2.weight", "fc2.bias")
                assert torch.equal(p[member], old[name][member]) != hit, (name, member)
    # Its moments and step counts are cleared; its whole target network is the online one; others' targets stay.
    for name in ("fc2.weight", "fc2.bias"):
        for moments in (learner.adam.first, learner.adam.second, learner.adam.step):
            assert not moments[name][1].any()
    for name, p in learner.target.items():
        assert torch.equal(p[1], learner.online[name][1])
        assert not torch.equal(p[1], target[name][1])
        for member in (0, 2):
            assert torch.equal(p[member], target[name][member])


def test_a_reset_layer_is_drawn_as_at_the_start() -> None:
    learner = trained()
    with torch.no_grad():
        learner.online["fc2.weight"][1] *= 100
    reset(learner, only(1, "fc2"))
    bound = 1 / math.sqrt(16)
    for part in ("weight", "bias"):
        size = learner.online[f"fc2.{part}"][1].abs()
        assert 0.7 * bound < float(size.max()) <= bound
    assert float(spike_ratio(learner.online["fc2.weight"])[1]) < 1.1


def test_a_reset_keeps_every_address() -> None:
    learner = trained(3)
    groups = (learner.online, learner.target, learner.adam.first, learner.adam.second, learner.adam.step)
    before = [p.data_ptr() for group in groups for p in group.values()]
    reset(learner, torch.ones(MEMBERS, len(LAYERS), dtype=torch.bool))
    assert [p.data_ptr() for group in groups for p in group.values()] == before


def test_the_random_stream_does_not_depend_on_which_members_spiked() -> None:
    one, other = trained(3), trained(3)
    reset(one, only(0, "fc2"))
    reset(other, only(0, "fc2") | only(2, "fc2"))
    assert torch.equal(one.online["fc2.weight"][0], other.online["fc2.weight"][0])


def test_an_empty_mask_changes_nothing() -> None:
    learner = trained(3)
    before, target = copied(learner.online), copied(learner.target)
    reset(learner, torch.zeros(MEMBERS, len(LAYERS), dtype=torch.bool))
    for name, p in learner.online.items():
        assert torch.equal(p, before[name])
        assert torch.equal(learner.target[name], target[name])


def largest_step(learner: Learner, name: str, member: int) -> float:
    before = learner.online[name][member].clone()
    update(learner, seed=1000)
    return float((learner.online[name][member] - before).abs().max())


def test_the_first_update_after_a_reset_is_at_most_one_rate() -> None:
    learner = trained()
    reset(learner, only(1, "fc2"))
    assert 0.5 * RATE < largest_step(learner, "fc2.weight", 1) < 1.001 * RATE


def test_keeping_the_step_count_would_make_it_several_times_the_rate() -> None:
    """Why the count is cleared with the moments: bias corrections that have faded leave v far too small."""
    learner = trained()
    for name in ("fc2.weight", "fc2.bias"):
        learner.adam.step[name].fill_(10_000)
    reset(learner, only(1, "fc2"))
    for name in ("fc2.weight", "fc2.bias"):
        learner.adam.step[name][1] = 10_000
    assert largest_step(learner, "fc2.weight", 1) > 3 * RATE


def test_the_spike_ratio_by_hand() -> None:
    # |W| = 0, 1, ..., 100: the 0.99-quantile is exactly the 100th value, 99. Signs do not matter.
    weight = torch.arange(101.0).mul(torch.tensor([1.0, -1.0]).repeat(51)[:101])[None]
    assert float(spike_ratio(weight)) == pytest.approx(100 / 99)
    # Position 0.9 * 4 = 3.6 lies between 4 and 10: 4 + 0.6 * 6 = 7.6. The second member has no spike.
    two = torch.tensor([[10.0, -2.0, 3.0, 1.0, 4.0], [2.0, 2.0, -2.0, 2.0, 2.0]])
    assert spike_ratio(two, 0.9).tolist() == pytest.approx([10 / 7.6, 1.0])
    assert spike_ratio(two, 1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(3, 1152), (2, 8, 4, 3, 3), (1, 7), (2, 1)])
def test_the_spike_ratio_equals_torch_quantile(shape: tuple[int, ...]) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    size = weight.abs().flatten(1)
    expected = size.max(1).values / torch.quantile(size, 0.99, dim=1)
    torch.testing.assert_close(spike_ratio(weight), expected)


def test_the_spike_ratio_works_above_the_limit_of_torch_quantile() -> None:
    weight = torch.rand(1, 2**24 + 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(weight, 0.99)
    sizes = weight.numpy()[0]
    position = 0.99 * (len(sizes) - 1)
    low, high = np.partition(sizes, [math.floor(position), math.ceil(position)])[
        [math.floor(position), math.ceil(position)]
    ]
    expected = sizes.max() / (low + (position - math.floor(position)) * (high - low))
    assert float(spike_ratio(weight)) == pytest.approx(float(expected), rel=1e-6)


def test_ratios_come_per_member_and_layer_from_weights_alone() -> None:
    learner = trained(0)
    with torch.no_grad():
        learner.online["fc2.weight"][1, 0, 0] = 50.0
        learner.online["fc1.bias"][0, 0] = 50.0  # biases are not measured
    ratios = spike_ratios(learner.online, LAYERS)
    assert ratios.shape == (MEMBERS, 3)
    assert (ratios > 6).nonzero().tolist() == [[1, 1]]
    assert float(spike_ratio(torch.zeros(1, 10))) == 0.0  # a dead layer has no spike, and no division by zero


# -- every trigger times every intervention ---------------------------------------------------------------------------

TRIGGERS: dict[str, Trigger] = {
    "spike": Spike(6.0),
    "periodic": Periodic(40),
    "dormant": Dormant(0.1, 0.0),
    "verdict": Verdict(),
    "none": Always(),
}
INTERVENTIONS: dict[str, Intervention] = {
    "reinitialise": Reinitialise(),
    "shrink_perturb": ShrinkPerturb(encoder=0.5, head=0.25),
    "recycle": Recycle(0.1),
    "replace": Replace(),
}
FOLLOWING = {"fc1": "fc2", "fc2": "head"}
BY_UNIT = ("recycle", "replace")
CROSSINGS = [
    (trigger, intervention)
    for trigger, intervention in itertools.product(TRIGGERS, INTERVENTIONS)
    if trigger != "none" or intervention in BY_UNIT
]
DORMANT = {"fc1": {0: [3]}, "fc2": {1: [5], 2: [1, 4]}}  # by layer and member: its dormant, or least useful, units


def evidence(learner: Learner | None = None) -> Evidence:
    """Member 1 spikes in fc2, which the monitor has found too; some units of all members are dormant, or due."""
    spikes = torch.ones(MEMBERS, 3)
    spikes[1, 1] = 9.0
    scores = {name: torch.ones(MEMBERS, 16) for name in DORMANT}
    utility = None if learner is None else learner.utility
    for name, members in DORMANT.items():
        for member, units in members.items():
            scores[name][member, units] = torch.tensor(0.1)  # exactly the threshold is dormant
            if utility is not None:
                utility.owed[name][member] = len(units) + 0.5
        if utility is not None:
            utility.value[name].copy_(scores[name])
            utility.age[name].fill_(100)
            utility.mean[name].zero_()  # nothing to make up for
    return Evidence(LAYERS, spikes, scores, ("weight spikes",), utility)


def masked(trigger: str) -> list[tuple[int, str]]:
    """The members' layers that a trigger names."""
    everything = [(member, layer) for member in range(MEMBERS) for layer in LAYERS]
    dormant = [(0, "fc1"), (1, "fc2"), (2, "fc2")]
    spiked = [(1, "fc2")]
    return {"spike": spiked, "verdict": spiked, "dormant": dormant, "periodic": everything, "none": everything}[trigger]


def expected(trigger: str, intervention: str, params: Params) -> dict[str, Tensor]:
    """Which numbers must change, by name."""
    touched = {name: torch.zeros(p.shape, dtype=torch.bool) for name, p in params.items()}
    for member, layer in masked(trigger):
        if intervention not in BY_UNIT:
            for part in ("weight", "bias"):
                touched[f"{layer}.{part}"][member] = True
        elif units := DORMANT.get(layer, {}).get(member):
            touched[f"{layer}.weight"][member, units] = True
            touched[f"{layer}.bias"][member, units] = True
            touched[f"{FOLLOWING[layer]}.weight"][member][:, units] = True
    return touched


def assert_changed(now: Params, before: Params, where: dict[str, Tensor], what: str) -> None:
    for name, p in now.items():
        assert torch.equal(p != before[name], where[name]), f"{what} of {name}"


@pytest.mark.parametrize("flat", [False, True], ids=["tensors", "buffer"])
@pytest.mark.parametrize(
    ("trigger", "intervention", "target"),
    [
        (*crossing, target)
        for crossing, target in itertools.product(CROSSINGS, ["synchronise", "own", "keep"])
        if crossing[1] != "replace" or target == "keep"
    ],
)
def test_every_regulation_touches_what_it_names_and_nothing_else(
    trigger: str, intervention: str, target: Literal["synchronise", "own", "keep"], flat: bool
) -> None:
    learner = trained(by_unit=True, flat=flat)
    learner.updates = 41
    adam = learner.adam
    groups = (learner.online, learner.target, adam.first, adam.second, adam.step)
    addresses = [p.data_ptr() for group in groups for p in group.values()]
    online, behind, *moments = [copied(group) for group in groups]
    where = expected(trigger, intervention, online)

    regulation = Regulation(TRIGGERS[trigger], INTERVENTIONS[intervention], target)
    events = regulation(learner, evidence(learner), torch.Generator().manual_seed(3))

    assert_changed(learner.online, online, where, "online")
    for state, old, what in zip(
        (adam.first, adam.second, adam.step), moments, ("first", "second", "step"), strict=True
    ):
        for name, p in state.items():
            assert not p[where[name]].any(), f"{what} moment of {name} is cleared where it was touched"
            assert torch.equal(p[~where[name]], old[name][~where[name]]), f"{what} moment of {name} stays elsewhere"
    hit = [any(bool(mask[member].any()) for mask in where.values()) for member in range(MEMBERS)]
    match target:
        case "synchronise":
            for name, p in learner.target.items():
                for member in range(MEMBERS):
                    source = learner.online if hit[member] else behind
                    assert torch.equal(p[member], source[name][member]), (name, member)
        case "own":
            assert_changed(learner.target, behind, where, "target")
            drawn = [name for name in where if name.endswith("weight") and where[name].any()]
            if intervention != "recycle":  # whose readers are zero in both
                for name in drawn:
                    assert not torch.equal(learner.target[name], learner.online[name])
        case "keep":
            assert_changed(learner.target, behind, {name: torch.zeros_like(m) for name, m in where.items()}, "target")
    assert [p.data_ptr() for group in groups for p in group.values()] == addresses
    assert learner.since_restart == (0 if trigger == "periodic" else 41)
    assert events
    assert all(event["kind"] == intervention and event["trigger"] == trigger for event in events)


@pytest.mark.parametrize(("trigger", "intervention"), [c for c in CROSSINGS if c[1] not in BY_UNIT])
def test_whole_layers_are_reset_where_steps_are_counted_by_member(trigger: str, intervention: str) -> None:
    learner = trained()
    online, steps = copied(learner.online), copied(learner.adam.step)
    where = expected(trigger, intervention, online)
    Regulation(TRIGGERS[trigger], INTERVENTIONS[intervention])(learner, evidence(), torch.Generator().manual_seed(3))
    assert_changed(learner.online, online, where, "online")
    for name, step in learner.adam.step.items():
        touched = where[name].flatten(1).any(1)
        assert torch.equal(step, torch.where(touched, 0, steps[name]))


def test_units_cannot_be_recycled_where_steps_are_counted_by_member() -> None:
    learner = trained(3)
    with pytest.raises(ValueError, match=r"fc1.weight counts its steps by member"):
        Regulation(Dormant(), Recycle())(learner, evidence(), torch.Generator())


GROUPS = {
    "reinitialise": [{"scope": "encoder", "strength": 1.0}, {"scope": "head", "strength": 1.0}],
    "shrink_perturb": [{"scope": "encoder", "strength": 0.5}, {"scope": "head", "strength": 0.25}],
}
STRENGTHS = {("shrink_perturb", "fc1"): 0.5, ("shrink_perturb", "fc2"): 0.25}


def expected_events(trigger: str, intervention: str) -> list[dict[str, Any]]:
    if trigger == "periodic" and intervention in GROUPS:
        return GROUPS[intervention]
    found: list[dict[str, Any]] = []
    for member, layer in masked(trigger):
        units = len(DORMANT.get(layer, {}).get(member, []))
        ratio = 9.0 if (member, layer) == (1, "fc2") else 1.0
        if units or intervention not in BY_UNIT:
            strength = STRENGTHS.get((intervention, layer), 1.0)
            measured = {"units": units} if intervention in BY_UNIT else {"ratio": ratio}
            found.append({"scope": "layer", "member": member, "layer": layer, "strength": strength, **measured})
    return found


@pytest.mark.parametrize(("trigger", "intervention"), CROSSINGS)
def test_events_say_what_was_done_why_where_and_how_much(trigger: str, intervention: str) -> None:
    regulation = Regulation(
        TRIGGERS[trigger], INTERVENTIONS[intervention], "keep" if intervention == "replace" else "own"
    )
    learner = trained(3, by_unit=True)
    events = regulation(learner, evidence(learner), torch.Generator())
    about: dict[str, Any] = {"kind": intervention, "trigger": trigger}
    about |= {"findings": ["weight spikes"]} if trigger == "verdict" else {}
    assert events == [about | event for event in expected_events(trigger, intervention)]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_nothing_to_do_is_no_event_and_changes_nothing(trigger: str) -> None:
    learner = trained(3)
    before = [copied(group) for group in (learner.online, learner.target, learner.adam.first, learner.adam.step)]
    calm = Evidence(LAYERS, torch.ones(MEMBERS, 3), {name: torch.ones(MEMBERS, 16) for name in DORMANT})
    nothing: Intervention = Reinitialise()
    if trigger in ("periodic", "none"):
        nothing = ShrinkPerturb(encoder=0.0, head=0.0)
    assert Regulation(TRIGGERS[trigger], nothing)(learner, calm, torch.Generator()) == []
    after = (learner.online, learner.target, learner.adam.first, learner.adam.step)
    for group, old in zip(after, before, strict=True):
        assert all(torch.equal(p, old[name]) for name, p in group.items())


# -- when a trigger is due --------------------------------------------------------------------------------------------


def interventions(periodic: Periodic, updates: int, together: int) -> list[int]:
    """After how many updates of a run it intervenes, looked at after each `together` of them."""
    learner, found = trained(0), []
    for learner.updates in range(together, updates + 1, together):
        if periodic.due(False, learner.updates, learner.since_restart):
            found.append(learner.updates)
            learner.restart()
    return found


def test_periodic_interventions_by_hand() -> None:
    bbf = Periodic(40_000, 120_000)  # replay ratio 2, 200,000 updates: three resets and none after 120,000
    assert interventions(bbf, 200_000, 2) == [40_000, 80_000, 120_000]
    # Three at a time never meet 40,000; lateness does not add up, and does not cost the last one.
    assert interventions(bbf, 200_000, 3) == [40_002, 80_001, 120_000]
    assert interventions(Periodic(40_000, 120_000), 200_000, 7) == [40_005, 80_003, 120_001]
    assert interventions(Periodic(40_000, 119_999), 200_000, 2) == [40_000, 80_000]
    assert interventions(Periodic(40_000, 100_000), 200_000, 2) == [40_000, 80_000]
    assert interventions(Periodic(40_000), 200_000, 2) == [40_000, 80_000, 120_000, 160_000, 200_000]
    assert interventions(Periodic(3), 16, 8) == [8, 16]  # several periods at once are one
    assert not Periodic(40).due(True, 0, 0)  # a measurement has nothing to do with it


@pytest.mark.parametrize("trigger", [Spike(), Dormant(), Always()])
def test_what_is_measured_is_due_with_every_measurement(trigger: Trigger) -> None:
    assert trigger.due(True, 0, 0)
    assert not trigger.due(False, 10**9, 10**9)


def test_the_dormant_mask_by_hand() -> None:
    scores = torch.tensor([[0.0, 0.1, 1.9, 2.0], [0.11, 0.5, 1.39, 2.0], [0.0, 0.0, 0.0, 4.0]])  # 2, 0 and 3 of 4
    ensemble = trained(0).ensemble
    seen = Evidence(LAYERS, torch.ones(3, 3), {"fc1": scores, "head": scores})  # nobody reads the head's outputs
    for share, hit in ((0.0, [True, False, True]), (0.5, [False, False, True]), (0.75, [False] * 3)):
        assert {name: m.tolist() for name, m in Dormant(0.1, share)(seen, ensemble).items()} == {"fc1": hit}
    assert Dormant(0.05)(seen, ensemble)["fc1"].tolist() == [True, False, True]


# -- shrink and perturb, by group -------------------------------------------------------------------------------------


def blank(network: Network, members: int = 2, atoms: int = 3) -> Learner:
    settings = Settings(Adam(RATE), clip=10.0, tau=0.05, hard_copy_every=0, unit_steps=True)
    ensemble = Ensemble(network, members, 2, atoms)
    return Learner(ensemble, Quantile(atoms), Controlled(), settings, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("encoder", "head"), [(0.5, 1.0), (0.2, 0.0), (0.0, 1.0)])
def test_shrink_and_perturb_blends_each_group_by_its_own_strength(encoder: float, head: float) -> None:
    learner = blank(ResNet((2, 8, 8), 6, scale=1, head_multiple=4, strides=(1, 2, 2, 2)))
    network, before = learner.ensemble.network, copied(learner.online)
    events = Regulation(Periodic(1), ShrinkPerturb(encoder, head))(
        learner, Evidence(network.monitored, torch.ones(2, 19)), torch.Generator().manual_seed(5)
    )
    twin, shortcuts = torch.Generator().manual_seed(5), 0
    for name, layer in network.layers.items():
        share = head if name in ("head.1", "quantile head") else encoder
        fresh = learner.ensemble.initial_layer(layer, twin) if share else ()
        for part, drawn in zip(("weight", "bias"), fresh or (None, None), strict=True):
            p, old = learner.online[f"{name}.{part}"], before[f"{name}.{part}"]
            if drawn is None:
                assert torch.equal(p, old), name
            else:
                torch.testing.assert_close(p, (1 - share) * old + share * drawn, rtol=1e-6, atol=1e-7)
                assert not torch.equal(p, old), name
        shortcuts += name.endswith("shortcut") and not torch.equal(
            learner.online[f"{name}.weight"], before[f"{name}.weight"]
        )
    assert shortcuts == (3 if encoder else 0)  # they are not watched for spikes, and intervened on like the rest
    scopes = {event["scope"]: event["strength"] for event in events}
    assert scopes == {group: share for group, share in (("encoder", encoder), ("head", head)) if share}


# -- recycling units --------------------------------------------------------------------------------------------------

RECYCLED: dict[str, tuple[Network, str, str, list[int]]] = {
    # network, layer, its reader, and the columns of the reader that read units 1 and 3
    "linear, linear": (MLP((4,), 6, (5, 7)), "fc1", "fc2", [1, 3]),
    # a 2 x 2 map of every channel, channels outermost
    "conv, linear": (MinAtarNet((2, 4, 4), 6, channels=5, hidden=3), "conv", "hidden", [4, 5, 6, 7, 12, 13, 14, 15]),
    "conv, conv": (ResNet((2, 8, 8), 6, scale=1, head_multiple=4), "l2.0.conv1", "l2.0.conv2", [1, 3]),
}


@pytest.mark.parametrize("case", RECYCLED)
def test_recycled_units_are_drawn_anew_and_read_by_nobody_at_first(case: str) -> None:
    network, layer, reader, columns = RECYCLED[case]
    learner = blank(network)
    for p in learner.online.values():
        p += 3.0  # away from any fresh draw, and from zero
    before = copied(learner.online)
    scores = torch.ones(2, network.layers[layer].outputs)
    scores[1, [1, 3]] = 0.0
    seen = Evidence(network.monitored, torch.ones(2, len(network.monitored)), {layer: scores})
    Regulation(Dormant(0.1), Recycle(0.1), "keep")(learner, seen, torch.Generator().manual_seed(0))

    weight, bias, outgoing = (learner.online[name] for name in (f"{layer}.weight", f"{layer}.bias", f"{reader}.weight"))
    bound = 1 / math.sqrt(math.prod(network.layers[layer].weight_shape[1:]))
    rows = torch.zeros(weight.shape, dtype=torch.bool)
    rows[1, [1, 3]] = True
    assert (weight[rows].abs() <= bound).all()
    assert weight[rows].unique().numel() == rows.sum()  # each weight its own draw
    assert torch.equal(weight[~rows], before[f"{layer}.weight"][~rows])
    assert (bias[1] == 0).nonzero().flatten().tolist() == [1, 3]
    assert torch.equal(bias[0], before[f"{layer}.bias"][0])
    silent = (outgoing == 0).flatten(3).all(3).all(1) if outgoing.dim() == 5 else (outgoing == 0).all(1)
    assert [row.nonzero().flatten().tolist() for row in silent] == [[], columns]
    read = torch.zeros(outgoing.shape, dtype=torch.bool)
    read[1][:, columns] = True
    assert torch.equal(outgoing[~read], before[f"{reader}.weight"][~read])
    others = before.keys() - {f"{layer}.weight", f"{layer}.bias", f"{reader}.weight"}
    assert all(torch.equal(learner.online[name], before[name]) for name in others)


@pytest.mark.parametrize("case", RECYCLED)
def test_the_columns_that_are_silenced_are_the_ones_that_read_the_units(case: str) -> None:
    """What the network puts out does not depend on a recycled unit: its incoming weights may be anything."""
    network, layer, _, _ = RECYCLED[case]
    learner = blank(network)
    scores = torch.ones(2, network.layers[layer].outputs)
    scores[:, [1, 3]] = 0.0
    seen = Evidence(network.monitored, torch.ones(2, len(network.monitored)), {layer: scores})
    Regulation(Dormant(0.1), Recycle(0.1))(learner, seen, torch.Generator().manual_seed(0))
    x = torch.rand(3, *network.observation, generator=torch.Generator().manual_seed(1))  # type: ignore[attr-defined]
    before = learner.ensemble.forward(learner.online, x)
    learner.online[f"{layer}.bias"][:, [1, 3]] += 50.0
    torch.testing.assert_close(learner.ensemble.forward(learner.online, x), before)
    learner.online[f"{layer}.bias"][:, 0] += 50.0
    assert not torch.allclose(learner.ensemble.forward(learner.online, x), before)


def away(network: Network) -> Learner:
    """A learner whose parameters are away from any fresh draw, and have made seven steps."""
    learner = blank(network)
    for p, step in zip(learner.online.values(), learner.adam.step.values(), strict=True):
        p += 3.0
        step += 7
    return learner


def test_a_recycled_units_noise_begins_again_and_nobody_hears_what_it_sends() -> None:
    network = MLP((4,), 6, (5, 7), noisy=0.5)
    for layer, readers in (("fc1", ("fc2", "fc2.sigma")), ("fc2", ("head", "head.sigma"))):
        learner = away(network)
        before = copied(learner.online)
        scores = torch.ones(2, network.layers[layer].outputs)
        scores[1, [1, 3]] = 0.0
        seen = Evidence(network.monitored, torch.ones(2, len(network.monitored)), {layer: scores})
        Regulation(Dormant(0.1), Recycle(0.1), "keep")(learner, seen, torch.Generator().manual_seed(0))
        for reader in readers:
            silent = (learner.online[f"{reader}.weight"] == 0).all(1)
            assert [row.nonzero().flatten().tolist() for row in silent] == [[], [1, 3]]
        touched = {f"{layer}.weight", f"{layer}.bias", *(f"{reader}.weight" for reader in readers)}
        for part in ("weight", "bias") if layer == "fc2" else ():  # the first layer has no noise
            name = f"fc2.sigma.{part}"
            touched.add(name)
            begun = torch.full_like(before[name][1, [1, 3]], 0.5 / 5**0.5)
            torch.testing.assert_close(learner.online[name][1, [1, 3]], begun)
            rest = torch.ones(2, 7, dtype=torch.bool)
            rest[1, [1, 3]] = False
            assert torch.equal(learner.online[name][rest], before[name][rest])
            assert not learner.adam.step[name][1, [1, 3]].any()
            assert (learner.adam.step[name][rest] > 0).all()
        assert all(torch.equal(learner.online[name], before[name]) for name in before.keys() - touched)


def test_a_layer_that_is_drawn_anew_begins_with_its_noise_again() -> None:
    network = MLP((4,), 6, (5, 7), noisy=0.5)
    learner = away(network)
    before, spikes = copied(learner.online), torch.ones(2, len(network.monitored))
    spikes[1, network.monitored.index("fc2")] = 10.0
    seen = Evidence(network.monitored, spikes)
    events = Regulation(Spike(6.0), Reinitialise())(learner, seen, torch.Generator().manual_seed(0))
    assert [(event["member"], event["layer"]) for event in events] == [(1, "fc2")]
    changed = {name for name, p in learner.online.items() if not torch.equal(p, before[name])}
    assert changed == {"fc2.weight", "fc2.bias", "fc2.sigma.weight", "fc2.sigma.bias"}
    for part in ("weight", "bias"):
        name = f"fc2.sigma.{part}"
        assert torch.equal(learner.online[name][0], before[name][0])
        torch.testing.assert_close(learner.online[name][1], torch.full_like(before[name][1], 0.5 / 5**0.5))
        assert not learner.adam.step[name][1].any()
        assert learner.adam.step[name][0].all()
        assert torch.equal(learner.target[name][1], learner.online[name][1])


def recycled(keep_steps: bool) -> float:
    """The largest step of the weights that read the recycled units, over the rate, in the update after."""
    learner = trained(by_unit=True)
    for step in learner.adam.step.values():
        step.fill_(10_000)
    scores = {name: torch.ones(MEMBERS, 16) for name in ("fc1", "fc2")}
    scores["fc2"][1] = 0.0
    Regulation(Dormant(0.1), Recycle(0.1))(
        learner, Evidence(LAYERS, torch.ones(MEMBERS, 3), scores), torch.Generator().manual_seed(0)
    )
    assert not learner.adam.step["head.weight"][1].any()
    assert (learner.adam.step["head.weight"][0] == 10_000).all()
    assert (learner.adam.step["fc1.weight"] == 10_000).all()
    if keep_steps:
        learner.adam.step["head.weight"].fill_(10_000)
    return largest_step(learner, "head.weight", 1) / RATE


def test_the_first_update_of_a_recycled_unit_is_at_most_one_rate() -> None:
    assert 0.5 < recycled(keep_steps=False) < 1.001


def test_keeping_a_recycled_units_steps_would_make_it_several_times_the_rate() -> None:
    assert recycled(keep_steps=True) > 3


# -- the monitor's findings -------------------------------------------------------------------------------------------


def evidence_of(*findings: str) -> Evidence:
    """fc2 of member 1 has a spike; unit 3 of member 0 and unit 5 of member 2 of fc1 are dormant."""
    scores = {name: torch.ones(MEMBERS, 16) for name in ("fc1", "fc2")}
    scores["fc1"][0, 3] = scores["fc1"][2, 5] = 0.0
    return Evidence(LAYERS, torch.tensor([[1.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]), scores, findings)


ACCUSED = {
    "weight spikes": {"fc1": [0, 0, 0], "fc2": [0, 1, 0], "head": [0, 0, 0]},
    "dormant units": {"fc1": [1, 0, 1], "fc2": [0, 0, 0]},
    "rank collapse": {"fc2": [1, 1, 1], "head": [1, 1, 1]},
    "growing weights": {"fc1": [1, 1, 1], "fc2": [1, 1, 1], "head": [1, 1, 1]},
    "violent updates": {},
    "overestimation": {},
}


@pytest.mark.parametrize("finding", ACCUSED)
def test_a_finding_accuses_the_layers_that_it_is_about(finding: str) -> None:
    learner = trained(1)
    mask = Verdict()(evidence_of(finding), learner.ensemble)
    assert {name: hit.int().tolist() for name, hit in mask.items()} == ACCUSED[finding]
    assert (finding in ANSWERS) == bool(ACCUSED[finding])


def test_findings_are_named_as_the_monitor_names_them() -> None:
    names = {rule.name for rule in RULES if rule.mechanism == "parameter"}
    assert ANSWERS.keys() < names
    assert names - ANSWERS.keys() == {"violent updates"}


@pytest.mark.parametrize("flat", [False, True])
def test_every_finding_is_answered_by_its_own_intervention(flat: bool) -> None:
    learner, plain = trained(by_unit=True, flat=flat), trained(by_unit=True, flat=flat)
    before = copied(plain.online)
    seen = evidence_of("weight spikes", "dormant units")
    events = Regulation(Verdict(), Answer(), "keep")(learner, seen, torch.Generator().manual_seed(3))
    assert [(event["member"], event["layer"]) for event in events] == [(0, "fc1"), (1, "fc2"), (2, "fc1")]
    assert all(event["findings"] == ["weight spikes", "dormant units"] for event in events)
    assert {event["kind"] for event in events} == {"answer"}
    # Member 1's spiked layer is drawn anew, dormant units have fresh rows and silent columns; nothing else moved.
    changed = {name: (p != before[name]) for name, p in learner.online.items()}
    assert changed["fc2.weight"][1].all()
    assert changed["fc1.weight"].any(2).nonzero().tolist() == [[0, 3], [2, 5]]
    assert changed["fc2.weight"][0].any(0).nonzero().flatten().tolist() == [3]
    assert changed["fc2.weight"][2].any(0).nonzero().flatten().tolist() == [5]
    assert not learner.online["fc2.weight"][0, :, 3].any()
    assert not changed["head.weight"].any()
    for name, where in changed.items():
        if name.endswith("weight"):
            assert torch.equal(learner.adam.step[name] == 0, where | (learner.adam.step[name] == 0))
            assert not learner.adam.first[name][where].any()


def test_growth_is_answered_by_shrinking() -> None:
    learner = trained(by_unit=True)
    before = copied(learner.online)
    Regulation(Verdict(), Answer())(learner, evidence_of("growing weights"), torch.Generator().manual_seed(3))
    for name, p in learner.online.items():
        rest = (p - 0.8 * before[name]).abs().max()
        assert 0 < float(rest) <= 0.2 * 0.51  # a fifth of a fresh draw, at most 1/sqrt(4) each
        assert torch.equal(learner.target[name], p)


def test_a_finding_without_an_answer_changes_nothing() -> None:
    learner = trained(by_unit=True)
    before = copied(learner.online)
    assert Regulation(Verdict(), Answer())(learner, evidence_of("violent updates"), torch.Generator()) == []
    assert all(torch.equal(p, before[name]) for name, p in learner.online.items())
