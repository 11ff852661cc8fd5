"""The learning step: equal to the single-file reference, to members trained alone, and faithful to its weights."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from steadyq.nets import MLP, Ensemble, MinAtarNet, Network, ResNet
from steadyq.replay.priority import Priorities, Sampling
from steadyq.value.estimators import Quantile, Scalar
from steadyq.value.learner import Learner, Settings, means
from steadyq.value.operators import Controlled, Double, Greedy, Mixture, Munchausen
from steadyq.value.optim import Adam
from steadyq.value.regulation import spike_ratio
from steadyq.value.shapes import Batch, Draw, DrawLayout

ATOMS, ACTIONS, COUNT = 7, 3, 12
NETWORKS: dict[str, Network] = {
    "mlp": MLP((5,), ACTIONS * ATOMS, (16,)),
    "minatar": MinAtarNet((4, 6, 6), ACTIONS * ATOMS, channels=16, hidden=16),
}
SHAPES: dict[str, tuple[int, ...]] = {"mlp": (5,), "minatar": (4, 6, 6)}


def learner_of(network: Network, members: int, form: Any = "stacked", clip: float = 10.0, seed: int = 0) -> Learner:
    settings = Settings(adam=Adam(rate=1e-3), clip=clip, tau=0.05, hard_copy_every=0)
    ensemble = Ensemble(network, members, ACTIONS, ATOMS, form=form)
    generator = torch.Generator().manual_seed(seed)
    return Learner(ensemble, Quantile(ATOMS), Controlled(), settings, generator)


def random_batch(shape: tuple[int, ...], seed: int, count: int = COUNT) -> Batch:
    """Rewards of every sign, some terminal transitions, importance weights in (0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(5, count, generator=generator)
    return Batch(
        observation=torch.randn(count, *shape, generator=generator),
        action=(draw[0] * ACTIONS).long(),
        reward=(reward := (draw[1] * 3).floor() - 1),
        discount=0.99 * (draw[2] > 0.2),
        next_observation=torch.randn(count, *shape, generator=generator),
        weight=0.1 + 0.9 * draw[3],
        index=torch.arange(count),
        stamp=torch.zeros(count, dtype=torch.int64),
        rewarded=reward > 0,
    )


def draw(order: list[int], forbid: bool = True, **more: Any) -> Draw:
    return DrawLayout(len(order), COUNT, COUNT if "keep" in more else 0).plain(
        order=order, forbid=forbid, rate=1e-3, **more
    )


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    path = Path(__file__).parents[2] / "reference" / "steady.py"
    spec = importlib.util.spec_from_file_location("steady_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def reference_names(network: Network) -> dict[str, str]:
    """The library's layer -> the reference's."""
    return {"fc1": "hidden", "head": "head"} if isinstance(network, MLP) else {name: name for name in network.layers}


def close(mine: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("forbid", [True, False])
def test_update_equals_the_reference_over_consecutive_updates(kind: str, forbid: bool, reference: ModuleType) -> None:
    network, shape, members = NETWORKS[kind], SHAPES[kind], 3
    clip = {"mlp": 0.1, "minatar": 0.2}[kind]
    mine = learner_of(network, members, clip=clip)
    with torch.no_grad():
        for p in mine.online.values():
            p[2] *= 2  # a member with larger gradients than the others
        for name, p in mine.target.items():
            p.copy_(mine.online[name] + 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    mine.ceiling.fill_(0.7)

    options = reference.Options(
        members=members, quantiles=ATOMS, hidden=16, rate=1e-3, clip=clip, tau=0.05, forbid=int(forbid)
    )
    theirs = reference.Agent(shape, ACTIONS, options)
    theirs.ceiling = 0.7
    names = reference_names(network)
    for i in range(members):
        for networks, params in ((theirs.online, mine.online), (theirs.target, mine.target)):
            state = {f"{names[n.rsplit('.', 1)[0]]}.{n.rsplit('.', 1)[1]}": p[i] for n, p in params.items()}
            networks[i].load_state_dict(state)

    clipped, held = [], []
    for step, order in enumerate([[1, 2, 0], [2, 0, 1], [1, 2, 0], [1, 2, 0], [2, 0, 1]]):
        batch = random_batch(shape, seed=step)
        update = mine.update(batch, draw(order, forbid))
        loss = theirs.update(
            reference.Batch(
                batch.observation, batch.action, batch.reward, batch.discount, batch.next_observation, batch.weight
            ),
            order,
        )
        close(update.priority, loss, f"priorities of update {step}")
        clipped.append(float(update.measures["gradient_clipped"]))
        held.append(float(update.measures["clipped"]))
    assert 0 < np.mean(clipped) < 1, "the clip must bind for some members and not for others"
    assert 0 < np.mean(held) < 1, "the ceiling must bind for some targets and not for others"

    for i in range(members):
        online, target = dict(theirs.online[i].named_parameters()), dict(theirs.target[i].named_parameters())
        for name, p in mine.online.items():
            layer, part = name.rsplit(".", 1)
            other = online[f"{names[layer]}.{part}"]
            moments = theirs.adam[i].state[other]
            close(p[i], other.detach(), f"online {name} of member {i}")
            close(mine.target[name][i], target[f"{names[layer]}.{part}"].detach(), f"target {name} of member {i}")
            close(mine.adam.first[name][i], moments["exp_avg"], f"first moment {name} of member {i}")
            close(mine.adam.second[name][i], moments["exp_avg_sq"], f"second moment {name} of member {i}")
            assert float(mine.adam.step[name][i]) == float(moments["step"]) == 5


def test_prioritised_sampling_equals_the_reference(reference: ModuleType) -> None:
    rng = np.random.default_rng(0)
    theirs = reference.Replay(reference.Options(capacity=50))
    mine = Priorities(50, Sampling(0.6, 0.4, 1e-6))
    for step in range(120):
        slot = step % 50
        theirs.add(step)
        mine.disable(torch.tensor([slot]))
        mine.enable(torch.tensor([slot]), torch.tensor(True))
        uniform = rng.random(8)
        index, weight = theirs.sample(uniform)
        my_index, my_weight, stamp = mine.sample(torch.from_numpy(uniform))
        assert my_index.tolist() == index.tolist()
        np.testing.assert_allclose(my_weight.numpy(), weight, rtol=1e-6)
        loss = torch.from_numpy(rng.exponential(size=8)[index % 8])  # one loss per item, however often it is drawn
        theirs.update(index, loss)
        mine.update(my_index, stamp, loss)


def test_the_spike_ratio_equals_the_reference(reference: ModuleType) -> None:
    weight = torch.randn(3, 40, 50, generator=torch.Generator().manual_seed(0))
    assert spike_ratio(weight).tolist() == pytest.approx([reference.spike_ratio(w) for w in weight], rel=1e-6)


def test_the_reference_runs_and_its_reset_clears_what_the_librarys_does(
    reference: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"steps": 1000, "warmup": 940, "members": 2, "quantiles": 5, "hidden": 8, "threshold": 1.0}
    agent = reference.train(reference.Options(**options, check_every=500))
    said = capsys.readouterr().out
    assert "return of the last 10 games" in said
    assert "reset" not in said  # step 500 is still warm-up, and step 1,000 the last: its network is what is kept
    assert all(adam.state for adam in agent.adam)
    assert agent.regulate() == ["member 0 hidden", "member 0 head", "member 1 hidden", "member 1 head"]
    for online, target, adam in zip(agent.online, agent.target, agent.adam, strict=True):
        assert not adam.state  # every layer spiked at this threshold: no moments, no step counts are left
        for name, p in online.state_dict().items():
            assert torch.equal(p, target.state_dict()[name])


def test_the_reference_resets_before_its_last_step(reference: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"steps": 120, "warmup": 40, "check_every": 30, "members": 2, "quantiles": 5, "hidden": 8}
    reference.train(reference.Options(**options, threshold=1.0))
    steps = [line.split()[1] for line in capsys.readouterr().out.splitlines() if "reset" in line]
    assert steps == ["60", "90"]


@pytest.mark.parametrize("form", ["stacked", "loop"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_stacked_members_equal_members_trained_alone(kind: str, form: str) -> None:
    network, shape = NETWORKS[kind], SHAPES[kind]
    together = learner_of(network, 3, form, clip=0.2)
    alone = [learner_of(network, 1, "loop", clip=0.2) for _ in range(3)]
    for i, learner in enumerate(alone):
        for mine, all_of_them in ((learner.online, together.online), (learner.target, together.target)):
            for name, p in mine.items():
                p[0] = all_of_them[name][i]
    for step in range(4):
        batch = random_batch(shape, seed=step)
        update = together.update(batch, draw([0, 1, 2]))
        each = [learner.update(batch, draw([0])) for learner in alone]
        close(update.priority, torch.stack([one.priority for one in each]).mean(0), "priority")
    for i, learner in enumerate(alone):
        for name in together.online:
            close(together.online[name][i], learner.online[name][0], f"online {name}")
            close(together.target[name][i], learner.target[name][0], f"target {name}")


def test_importance_weights_scale_each_samples_gradient() -> None:
    learner = learner_of(NETWORKS["mlp"], 2)
    batch = random_batch((5,), seed=0, count=2)
    y = torch.randn(2, 2, ATOMS, generator=torch.Generator().manual_seed(0))

    def gradient(batch: Batch, weight: list[float], y: torch.Tensor) -> torch.Tensor:
        leaves = {name: p.detach().requires_grad_() for name, p in learner.online.items()}
        weighted = replace(batch, weight=torch.tensor(weight))
        loss, _ = learner.loss(learner.values(leaves, batch.observation), weighted, y, DrawLayout(2, 2).plain())
        return torch.autograd.grad(loss, leaves["fc1.weight"])[0]

    first, second = gradient(batch, [1.0, 0.0], y), gradient(batch, [0.0, 1.0], y)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(gradient(batch, [0.3, 0.9], y), 0.3 * first + 0.9 * second)
    alone = replace(batch, **{name: getattr(batch, name)[:1] for name in ("observation", "action", "weight")})
    single = gradient(alone, [1.0], y[:, :1])
    torch.testing.assert_close(first, single / 2)  # the mean is over the batch, whatever the weights


def test_priorities_are_unweighted_and_one_per_sample() -> None:
    one, other = learner_of(NETWORKS["mlp"], 2), learner_of(NETWORKS["mlp"], 2)
    batch = random_batch((5,), seed=0)
    update = one.update(batch, draw([1, 0]))
    unweighted = other.update(replace(batch, weight=torch.ones(COUNT)), draw([1, 0]))
    assert update.priority.shape == (COUNT,)
    assert torch.equal(update.priority, unweighted.priority)
    assert not torch.equal(one.online["fc1.weight"], other.online["fc1.weight"])


def test_members_clip_alone() -> None:
    """A member with a huge gradient does not slow the others down, as one global norm would."""
    together, alone = learner_of(NETWORKS["mlp"], 2, clip=0.1), learner_of(NETWORKS["mlp"], 1, clip=0.1)
    for params in (together.online, together.target):
        for p in params.values():
            p[1] *= 30
    for mine, both in ((alone.online, together.online), (alone.target, together.target)):
        for name, p in mine.items():
            p[0] = both[name][0]
    batch = random_batch((5,), seed=0)
    together.update(batch, draw([0, 1]))
    alone.update(batch, draw([0]))
    for name in alone.online:
        close(together.adam.first[name][0], alone.adam.first[name][0], name)


def test_the_target_moves_by_tau_or_by_hard_copies() -> None:
    batch = random_batch((5,), seed=0)
    soft = learner_of(NETWORKS["mlp"], 1)
    before = soft.target["fc1.weight"].clone()
    soft.update(batch, draw([0]))
    torch.testing.assert_close(soft.target["fc1.weight"], before + 0.05 * (soft.online["fc1.weight"] - before))

    hard = learner_of(NETWORKS["mlp"], 1)
    hard.settings = replace(hard.settings, hard_copy_every=3)
    for _ in range(2):
        hard.update(batch, draw([0]))
        hard.count()
    assert torch.equal(hard.target["fc1.weight"], before)
    hard.update(batch, draw([0]))
    learned = hard.online["fc1.weight"].clone()
    hard.count()
    assert torch.equal(hard.target["fc1.weight"], learned)
    assert torch.equal(hard.online["fc1.weight"], learned)


def test_the_online_networks_select_where_the_operator_says_so() -> None:
    batch, targets = random_batch((5,), seed=0), []
    for operator in (Double(), Controlled("online"), Controlled("target")):
        learner = learner_of(NETWORKS["mlp"], 1)
        learner.operator = operator
        learner.target["head.bias"][0, :ATOMS] += 5  # the target networks would always select action 0
        learner.online["head.bias"][0, ATOMS : 2 * ATOMS] += 5  # the online networks action 1
        targets.append(float(learner.update(batch, draw([0], forbid=False)).measures["target"]))
    assert targets[0] == targets[1]
    assert targets[2] > targets[0] + 2


def test_an_update_happens_in_place_and_measures_what_it_says() -> None:
    learner = learner_of(NETWORKS["mlp"], 3)
    learner.ceiling.fill_(0.5)
    groups = (learner.online, learner.target, learner.adam.first, learner.adam.second, learner.adam.step)
    before = [p.data_ptr() for group in groups for p in group.values()]
    batch = random_batch((5,), seed=0)
    with torch.no_grad():
        now, later = (learner.values(p, x) for p, x in ((learner.online, batch.observation),
                                                        (learner.target, batch.next_observation)))  # fmt: skip
    measures = learner.update(batch, draw([1, 2, 0])).measures
    assert [p.data_ptr() for group in groups for p in group.values()] == before
    rows = torch.arange(COUNT)
    same = later.q.mean(0).argmax(-1) == batch.action
    assert float(measures["q_taken"]) == pytest.approx(float(now.q[:, rows, batch.action].mean()), rel=1e-5)
    assert float(measures["q_max"]) == pytest.approx(float(now.q.max(-1).values.mean()), rel=1e-5)
    assert float(measures["same_action"]) == pytest.approx(float(same.float().mean()))
    assert float(measures["rewarded"]) == pytest.approx(float((batch.reward > 0).float().mean()))
    both = (same & (batch.reward > 0)).float().mean()
    assert float(measures["same_action_and_rewarded"]) == pytest.approx(float(both))
    assert 0 < float(measures["clipped"]) < 1


def test_a_scalar_resnet_learner_runs_the_same_step() -> None:
    settings = Settings(adam=Adam(rate=1e-3), clip=10.0, tau=0.05, hard_copy_every=0)
    learners = []
    for form in ("stacked", "loop"):
        ensemble = Ensemble(ResNet((2, 9, 9), ACTIONS, 1, 4), 2, ACTIONS, 1, 255.0, form)  # type: ignore[arg-type]
        learners.append(Learner(ensemble, Scalar(), Controlled(), settings, torch.Generator().manual_seed(0)))
    batch = random_batch((2, 9, 9), seed=0, count=4)
    pixels = {name: (getattr(batch, name) * 50).clamp(0, 255).byte() for name in ("observation", "next_observation")}
    updates = [learner.update(replace(batch, **pixels), draw([1, 0])) for learner in learners]
    close(updates[0].priority, updates[1].priority, "priority")


# -- what else the target may be --------------------------------------------------------------------------------------


def test_the_target_is_the_mean_of_the_last_copies() -> None:
    """Three copies kept: after each hard copy the oldest is replaced; all begin as the initial network."""
    network = MLP((5,), ACTIONS, (16,))
    settings = Settings(adam=Adam(rate=1e-2), clip=10.0, tau=0.05, hard_copy_every=2, snapshots=3)
    learner = Learner(Ensemble(network, 2, ACTIONS, 1), Scalar(), Greedy(), settings, torch.Generator().manual_seed(0))
    kept = [{name: p.clone() for name, p in learner.online.items()}] * 3
    observation = random_batch((5,), seed=9).observation
    for step in range(9):
        learner.update(random_batch((5,), seed=step), draw([0, 1]))
        learner.count()
        if step % 2:
            kept = [*kept[1:], {name: p.clone() for name, p in learner.online.items()}]
        every = torch.stack([learner.ensemble.forward(params, observation) for params in kept])
        found = learner.target_values(observation)
        close(found.z, every.mean(0), f"after {step + 1} updates")
        close(found.q, every.mean(0).squeeze(-1), "means")
    for name, p in learner.target.items():
        assert torch.equal(p, kept[-1][name])  # acting and resets see the newest


def test_a_mixtures_loss_reaches_every_member_by_its_share() -> None:
    network, batch = MLP((5,), ACTIONS, (16,)), random_batch((5,), seed=0)
    settings = Settings(adam=Adam(rate=1e-3), clip=1e9, tau=0.05, hard_copy_every=0)
    learner = Learner(
        Ensemble(network, 3, ACTIONS, 1), Scalar(), Mixture(Scalar()), settings, torch.Generator().manual_seed(0)
    )
    share = torch.tensor([0.2, 0.5, 0.3])
    drawn = DrawLayout(3, COUNT).plain(share=share.numpy(), rate=1e-3)
    leaves = {name: p.clone().requires_grad_() for name, p in learner.online.items()}
    with torch.no_grad():
        after = learner.ensemble.forward(learner.target, batch.next_observation).squeeze(-1)  # [member, batch, action]
        y = batch.reward + batch.discount * (share[:, None, None] * after).sum(0).max(-1).values
    q = learner.ensemble.forward(leaves, batch.observation).squeeze(-1)[:, torch.arange(COUNT), batch.action]
    each = torch.nn.functional.huber_loss((share[:, None] * q).sum(0), y, reduction="none")
    gradient = torch.autograd.grad((batch.weight * each).mean(), list(leaves.values()))
    update = learner.update(batch, drawn)
    close(update.priority, each.detach(), "priority")
    for name, g in zip(leaves, gradient, strict=True):
        close(learner.adam.first[name], 0.1 * g, name)
        assert g.abs().sum() > 0


def test_the_munchausen_reward_is_added_before_the_ceiling() -> None:
    network, batch = MLP((5,), ACTIONS, (16,)), random_batch((5,), seed=0)
    settings = Settings(adam=Adam(rate=1e-3), clip=1e9, tau=0.05, hard_copy_every=0)
    operator = Munchausen(0.1)
    learner = Learner(Ensemble(network, 2, ACTIONS, 1), Scalar(), operator, settings, torch.Generator().manual_seed(0))
    learner.ceiling.fill_(0.3)
    with torch.no_grad():
        here, after = (learner.values(learner.target, x) for x in (batch.observation, batch.next_observation))
        bonus = operator.bonus(here, batch)
        soft = operator(after, after, batch, draw([0, 1])).squeeze(-1)
        expected = (batch.reward + bonus + batch.discount * soft).clamp(max=0.3)
    assert bonus.min() < 0
    y, _, _ = learner.targets(batch, draw([0, 1]))
    close(y.squeeze(-1), expected, "targets")


def test_what_members_disagree_on_weighs_less() -> None:
    learner, batch = learner_of(NETWORKS["mlp"], 2), random_batch((5,), seed=0)
    learner.settings = replace(learner.settings, certainty=10.0)
    z = torch.zeros(2, COUNT, ATOMS)
    z[0, 3], z[1, 3] = 1.0, 3.0  # standard deviation 1
    weight = learner.weight(z, batch) / batch.weight
    expected = torch.ones(COUNT)
    expected[3] = 0.5 + 1 / (1 + np.exp(10.0))
    close(weight, expected, "weights")
    y, _, weights = learner.targets(batch, draw([0, 1], forbid=False))
    assert (weights < batch.weight).any()
    loss = learner.update(batch, draw([0, 1], forbid=False)).measures["loss"]
    other = learner_of(NETWORKS["mlp"], 2)
    each = other.update(batch, draw([0, 1], forbid=False))
    now = learner_of(NETWORKS["mlp"], 2)
    losses = now.each(now.values(now.online, batch.observation).z, batch, y, draw([0, 1]))
    close(loss, (weights * losses).mean(), "loss")
    close(each.priority, losses.mean(0), "priorities are unweighted")


# -- which members learn from which samples ---------------------------------------------------------------------------


def everything(learner: Learner) -> dict[str, dict[str, torch.Tensor]]:
    adam = learner.adam
    groups = {"online": learner.online, "first": adam.first, "second": adam.second, "step": adam.step}
    return {group: {name: p.clone() for name, p in params.items()} for group, params in groups.items()}


@pytest.mark.parametrize("form", ["stacked", "loop"])
@pytest.mark.parametrize("active", [[0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]], ids=["one", "some", "none", "all"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_member_that_does_not_learn_does_not_move_and_its_target_still_follows(
    kind: str, active: list[int], form: str
) -> None:
    """Learning before gave it moments, which alone would move it."""
    network, shape = NETWORKS[kind], SHAPES[kind]
    mine, all_of_them = (learner_of(network, 3, form, clip=0.2) for _ in range(2))
    for step in range(2):
        for learner in (mine, all_of_them):
            learner.update(random_batch(shape, seed=step), draw([1, 2, 0]))
    before, target = everything(mine), {name: p.clone() for name, p in mine.target.items()}
    batch = random_batch(shape, seed=9)
    keep = np.array(active)[:, None]
    update = mine.update(batch, draw([1, 2, 0], keep=keep))
    whole = all_of_them.update(batch, draw([1, 2, 0]))
    after, others = everything(mine), everything(all_of_them)
    for group, params in after.items():
        for name, p in params.items():
            for member, moved in enumerate(active):
                if moved:  # as if everybody had learned: the others' absence changes nothing
                    close(p[member], others[group][name][member], f"{group} {name} of member {member}")
                else:
                    assert torch.equal(p[member], before[group][name][member]), (group, name, member)
    for name, p in mine.target.items():
        torch.testing.assert_close(p, target[name].lerp(mine.online[name], 0.05))
    assert not torch.equal(mine.target["head.weight"], target["head.weight"])
    assert torch.equal(update.priority, whole.priority)  # all members judge a sample, whoever learns from it


def test_a_member_learns_from_the_samples_it_keeps_as_if_the_rest_had_no_weight() -> None:
    keep = np.zeros((2, COUNT))
    keep[0, :5], keep[1, 5:] = 1, 1
    mine, batch = learner_of(NETWORKS["mlp"], 2), random_batch((5,), seed=0)
    mine.update(batch, draw([1, 0], keep=keep))
    for member in range(2):
        only = learner_of(NETWORKS["mlp"], 2)
        only.update(replace(batch, weight=batch.weight * torch.tensor(keep[member])), draw([1, 0]))
        for name in mine.online:
            close(mine.adam.first[name][member], only.adam.first[name][member], f"{name} of member {member}")
            close(mine.online[name][member], only.online[name][member], f"{name} of member {member}")


def test_importance_weights_count_once_whoever_learns() -> None:
    """Twice the weight is twice the first moment of the member that learns, below the clip."""
    moments = []
    for scale in (1.0, 2.0):
        learner, batch = learner_of(NETWORKS["mlp"], 2, clip=1e9), random_batch((5,), seed=0)
        learner.update(replace(batch, weight=scale * batch.weight), draw([1, 0], keep=[[1.0], [0.0]]))
        moments.append(learner.adam.first["fc1.weight"].clone())
    torch.testing.assert_close(moments[1][0], 2 * moments[0][0])
    assert not moments[1][1].any()


def test_the_rate_of_an_update_comes_with_its_draw() -> None:
    batch, steps = random_batch((5,), seed=0), []
    for rate in (1e-3, 1e-5):
        learner = learner_of(NETWORKS["mlp"], 1)
        before = learner.online["fc1.weight"].clone()
        learner.update(batch, DrawLayout(1, COUNT).plain(rate=rate))
        steps.append(float((learner.online["fc1.weight"] - before).abs().max()))
    assert steps == pytest.approx([1e-3, 1e-5], rel=1e-2)


def test_updates_are_counted_from_the_last_scheduled_reset() -> None:
    learner = learner_of(NETWORKS["mlp"], 1)
    for _ in range(5):
        learner.count()
    learner.restart()
    learner.count()
    assert (learner.updates, learner.since_restart) == (6, 1)


def test_means_are_those_of_each_tensor_alone() -> None:
    several = [torch.rand(3, 4), torch.tensor([1.0, torch.inf]), torch.tensor([True, False, True]), torch.rand(2, 3, 5)]
    for found, each in zip(means(several), several, strict=True):
        torch.testing.assert_close(found, each.float().mean())
