"""The monitor in other people's loops: it measures what is there, leaves no trace, and its folder reads like ours."""

import copy
import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steadyq as sq
from steadyq import cli
from steadyq.monitor.attach import StabilityMonitor
from steadyq.report.html import write_report
from steadyq.suite.runs import read

ROOT = Path(__file__).parents[2]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def transitions(size: int = 32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    now, after = (torch.randn(size, 4, generator=generator) for _ in range(2))
    action = torch.randint(0, 3, (size, 1), generator=generator)
    reward = torch.randint(0, 2, (size, 1), generator=generator).float()
    return now, action, reward, after, torch.zeros(size, 1)


def watched(path: Path, q: nn.Module, target: nn.Module, optimizer: Any = None, **more: Any) -> StabilityMonitor:
    monitor = StabilityMonitor(q, target, optimizer, path=path, gamma=0.9, every=10, **more)
    for step in range(12):
        monitor.step(1.0, step % 4 == 3)
    return monitor


def test_figures_equal_those_by_hand(tmp_path: Path) -> None:
    q, target = network(0).eval(), network(1).eval()
    optimizer = torch.optim.SGD(q.parameters(), lr=0.5)
    monitor = watched(tmp_path / "run", q, target, optimizer)
    now, action, reward, after, _ = data = transitions()
    before = [p.detach().clone() for p in q.parameters()]
    greedy = q(now).argmax(1)
    q(now).square().mean().backward()
    optimizer.step()
    row = monitor.update(*data)
    assert row is not None
    with torch.no_grad():
        assert row["churn"] == pytest.approx((q(now).argmax(1) != greedy).float().mean().item(), rel=1e-5)
        assert row["q_greedy"] == pytest.approx(q(now).max(1).values.mean().item(), rel=1e-5)
        same = target(after).argmax(1) == action.squeeze(1)
        assert row["same_action"] == pytest.approx(same.float().mean().item(), rel=1e-5)
        rewarded = reward.squeeze(1) > 0
        assert row["same_action_rewarded"] == pytest.approx(same[rewarded].float().mean().item(), rel=1e-5)
        y = reward.squeeze(1) + 0.9 * target(after).max(1).values
        error = (y - q(now).gather(1, action).squeeze(1)).abs().mean().item()
        assert row["td_error"] == pytest.approx(error, rel=1e-5)
        moved = torch.cat([(p - old).flatten() for p, old in zip(q.parameters(), before, strict=True)]).norm()
        assert row["update_norm"] == pytest.approx(moved.item(), rel=1e-4)
        assert row["layers"].keys() == {"0", "3", "5"}
        hidden = torch.relu(q[0](now)).mean(0)
        assert row["layers"]["0"]["dormant"] == pytest.approx((hidden <= 0.1 * hidden.mean()).float().mean().item())
    loss = torch.nn.functional.smooth_l1_loss(q(now).gather(1, action).squeeze(1), y)
    norm = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(q.parameters()))]).norm()
    assert row["gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)
    # Trajectories of four steps: G = 3.439, 2.71, 1.9, 1.
    assert row["return_best"] == pytest.approx(1 + 0.9 + 0.81 + 0.729)
    assert row["return_mean"] == pytest.approx((3.439 + 2.71 + 1.9 + 1) / 4)


def test_double_lets_the_online_network_select(tmp_path: Path) -> None:
    q, target = network(0).eval(), network(1).eval()
    now, action, reward, after, _ = data = transitions()
    row = watched(tmp_path / "run", q, target, double=True).update(*data)
    assert row is not None
    with torch.no_grad():
        value = target(after).gather(1, q(after).argmax(1, keepdim=True))
        error = (reward + 0.9 * value - q(now).gather(1, action)).abs().mean().item()
    assert row["td_error"] == pytest.approx(error, rel=1e-5)
    assert "churn" not in row  # no optimizer was given: nobody knows the weights before the update


def test_nothing_is_touched(tmp_path: Path) -> None:
    q, target = network(0).train(), network(1).train()
    q[4].eval()
    monitor = watched(tmp_path / "run", q, target)
    torch.manual_seed(3)
    assert monitor.update(*transitions()) is not None
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert [m.training for m in q] == [True, True, True, True, False, True]
    assert all(p.grad is None for p in q.parameters())
    assert not any(module._forward_hooks for module in q.modules())
    assert monitor.update(*transitions()) is None  # not due again


def test_activations_in_place_make_no_difference(tmp_path: Path) -> None:
    rows = []
    for inplace in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(inplace), nn.Linear(32, 32), nn.ReLU(inplace), nn.Linear(32, 3))
        with torch.no_grad():
            net[2].bias[:16] = -100.0  # half of the second layer is dead
        rows.append(watched(tmp_path / str(inplace), net, copy.deepcopy(net)).update(*transitions()))
    for row in rows:
        assert row is not None
        row.pop("seconds", None)
    assert rows[0] == rows[1]
    assert rows[0]["layers"]["2"]["dormant_gradient"] >= 0.5


def test_quantiles_are_recognised(tmp_path: Path) -> None:
    torch.manual_seed(0)
    q = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 15), nn.Unflatten(1, (3, 5)))
    row = watched(tmp_path / "run", q, q, quantiles=True).update(*transitions())
    assert row is not None
    z = q(transitions()[0])
    assert row["crossing"] == pytest.approx((z[..., 1:] < z[..., :-1]).float().mean().item(), rel=1e-5)
    assert row["target_gap_relative"] == 0
    assert json.loads((tmp_path / "run" / "meta.json").read_text())["quantiles"] == 5


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    with pytest.raises(sq.UserError, match="not an empty folder"):
        StabilityMonitor(network(), path=tmp_path)


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cleanrl_style", ROOT / "examples" / "cleanrl_style.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_adds_few_lines_and_its_folder_makes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "examples" / "cleanrl_style.py").read_text()
    assert text.count("# monitor:") == 4
    example().main(["--steps", "4200", "--path", str(tmp_path / "good")])
    example().main(["--steps", "3200", "--learning-rate", "0.5", "--path", str(tmp_path / "bad")])
    good, bad = read(tmp_path / "good"), read(tmp_path / "bad")
    assert [row["step"] for row in good.diagnostics] == [1005, 2001, 3001, 4001]
    assert good.recipe.preset == "QNetwork"
    assert good.meta is not None
    write_report([tmp_path / "good"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Verdict" in page
    assert "Nothing unstable was found" in page
    assert 'id="chart-overestimation"' in page
    assert 'id="chart-spikes"' in page
    assert "steady_" not in page.split("<script")[0]
    assert bad.diagnostics[-1]["update_ratio"] is not None
    with pytest.raises(SystemExit):
        cli.main(["diagnose", str(tmp_path / "bad"), "--json"])
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert ["a lower learning_rate, now 0.5", ""] in found["violent updates"]["switches"]


def missing(package: str) -> None:
    """Skip without the package; in CI, where the Makefile installs it, fail."""
    if importlib.util.find_spec(package) is None:
        message = f"{package} is not installed (pip install 'steadyq[sb3]')"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


def learn(kind: str, path: Path | None, steps: int = 1500) -> Any:
    import stable_baselines3

    from steadyq.monitor.integrations.sb3 import StabilityCallback

    if kind == "DQN":
        model_class, more = stable_baselines3.DQN, {}
    else:
        import sb3_contrib

        model_class, more = sb3_contrib.QRDQN, {"policy_kwargs": {"n_quantiles": 11}}
    model = model_class(
        "MlpPolicy", "CartPole-v1", learning_starts=200, target_update_interval=300, seed=0, device="cpu", **more
    )
    model.learn(steps, callback=StabilityCallback(path, every=250, batch=64) if path else None)
    return model


@pytest.mark.parametrize("kind", ["DQN", "QRDQN"])
def test_stable_baselines3_is_watched_and_learns_the_same(
    kind: str, tmp_path: Path, report_path: Callable[[str], Path]
) -> None:
    missing("stable_baselines3")
    missing("sb3_contrib")
    torch.set_num_threads(1)
    model, plain = learn(kind, tmp_path / kind), learn(kind, None)
    for name, p in model.policy.state_dict().items():
        assert torch.equal(p, plain.policy.state_dict()[name]), name
    run = read(tmp_path / kind)
    # The first update, at 201 or soon after, and one every 250 steps.
    assert [row["step"] for row in run.diagnostics] == pytest.approx([203, 250, 500, 750, 1000, 1250], abs=5)
    last = sq.RunFolder(tmp_path / kind).diagnostics()[-1]
    assert last["members"].keys() >= {"dormant", "spike", "update_ratio", "churn"}
    assert last["return_best"] > 5
    assert 0 < last["update_ratio"] < 0.1
    assert (last.get("crossing") is not None) == (kind == "QRDQN")
    assert run.recipe.env == "Gymnasium/CartPole-v1"  # the name that our own runs have
    assert run.meta is not None
    assert run.meta["actions"] == 2
    assert np.isfinite([row["q_greedy"] for row in run.diagnostics]).all()
    page = report_path(f"sb3-{kind.lower()}.html")
    kept = shutil.copytree(tmp_path / kind, page.with_suffix(""), dirs_exist_ok=True)  # what the page links to
    write_report([kept], page)
    text = page.read_text()
    assert f"sb3 {kind}" in text
    assert 'id="verdict"' in text
    assert 'id="chart-overestimation"' in text


def test_the_callback_goes_on_with_the_next_learn_and_refuses_what_has_no_q_network(tmp_path: Path) -> None:
    missing("stable_baselines3")
    import stable_baselines3

    from steadyq.monitor.integrations.sb3 import StabilityCallback

    torch.set_num_threads(1)
    model = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", learning_starts=50, seed=0, device="cpu")
    callback = StabilityCallback(tmp_path / "parts", every=100, batch=16)
    model.learn(150, callback=callback)
    model.learn(150, callback=callback, reset_num_timesteps=False)
    steps = [row["step"] for row in read(tmp_path / "parts").diagnostics]
    assert steps == pytest.approx([53, 100, 200, 300], abs=5)
    model.save(tmp_path / "model.zip")
    again = stable_baselines3.DQN.load(tmp_path / "model.zip", env=model.get_env())
    again.learn(150, callback=StabilityCallback(tmp_path / "parts", every=100, batch=16), reset_num_timesteps=False)
    run = read(tmp_path / "parts")
    assert [row["step"] for row in run.diagnostics] == pytest.approx([53, 100, 200, 300, 400], abs=60)
    assert run.recipe.preset == "sb3 DQN, learning_starts 50"
    assert run.meta is not None
    assert run.meta["parameters"]["target_update_interval"] == 10_000
    with pytest.raises(sq.UserError, match="holds a watched run"):
        model.learn(10, callback=StabilityCallback(tmp_path / "parts"))
    ppo = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(sq.UserError, match="not PPO: it has no Q-network"):
        ppo.learn(16, callback=StabilityCallback(tmp_path / "ppo"))
    for wrong in ({"every": 0}, {"batch": 1}):
        with pytest.raises(sq.UserError, match="must be at least"):
            StabilityCallback(tmp_path / "wrong", **wrong)
    wrapped = gymnasium.wrappers.TransformObservation(
        gymnasium.make("CartPole-v1"),
        lambda x: {"x": x},
        gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(-9, 9, (4,))}),
    )
    of_dicts = stable_baselines3.DQN("MultiInputPolicy", wrapped, learning_starts=5, device="cpu")
    with pytest.raises(sq.UserError, match="observations are a Dict"):
        of_dicts.learn(20, callback=StabilityCallback(tmp_path / "dict"))
    assert not (tmp_path / "dict").exists()


def test_a_loop_that_diverged_is_said_to_have_and_makes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    q, target = network(0).eval(), network(1).eval()
    monitor = StabilityMonitor(q, target, path=tmp_path / "run", gamma=0.9, every=2)
    for step in range(12):
        if step == 6:
            with torch.no_grad():
                q[0].weight.fill_(torch.nan)
        monitor.step(1.0, step % 4 == 3)
        monitor.update(*transitions())
    with pytest.raises(SystemExit):
        cli.main(["diagnose", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert "values or weights are no longer finite since step 8" in said
    assert "try a lower rate; a lower clip" in said  # not the names of our options


def test_the_target_is_compared_at_every_update_after_a_row(tmp_path: Path) -> None:
    """Copied after every update it is no target network; copied now and then it may be equal when a row is measured."""
    for name, every in (("none", 1), ("copies", 4)):
        q, target = network(0).eval(), network(1).eval()
        target.load_state_dict(q.state_dict())
        optimizer = torch.optim.SGD(q.parameters(), lr=0.01)
        monitor = StabilityMonitor(
            q,
            target,
            optimizer,
            path=tmp_path / name,
            every=32,
            parameters={"lr": 0.01, "target_network_frequency": every},
        )
        for step in range(256):
            monitor.step(1.0, step % 4 == 3)
            optimizer.zero_grad()
            q(transitions()[0]).square().mean().backward()
            optimizer.step()
            if step % every == every - 1:
                target.load_state_dict(q.state_dict())
            monitor.update(*transitions())
    none, copies = read(tmp_path / "none"), read(tmp_path / "copies")
    assert none.diagnostics[2]["target_same"] == 1
    assert copies.diagnostics[2]["target_same"] == 0.25
    assert [finding.name for finding in none.verdict().findings] == ["no target network"]
    assert none.verdict().findings[0].advice() == "try a larger target_network_frequency, now 1 (slow targets)"
    assert not copies.verdict().findings


def test_a_stable_baselines3_run_is_evaluated_compared_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing("stable_baselines3")
    import stable_baselines3

    from steadyq.cli import main
    from steadyq.monitor.integrations.sb3 import StabilityCallback

    torch.set_num_threads(1)
    options: Any = {"learning_starts": 50, "seed": 3, "device": "cpu"}

    def watching(evaluate_on: Any) -> StabilityCallback:
        return StabilityCallback(tmp_path / "run", every=60, batch=16, evaluate_on=evaluate_on, episodes=4)

    model = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", **options)
    model.learn(120, callback=watching("CartPole-v1"))
    plain = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", **options).learn(120)
    for name, p in model.policy.state_dict().items():
        assert torch.equal(p, plain.policy.state_dict()[name]), name
    first = read(tmp_path / "run").result
    assert first is not None
    assert (first["steps"], len(first["returns"]), first["random_episodes"]) == (120, 4, 4)
    model.save(tmp_path / "model.zip")
    again = stable_baselines3.DQN.load(tmp_path / "model.zip", env=model.get_env())
    again.learn(60, callback=watching(gymnasium.make("CartPole-v1")), reset_num_timesteps=False)
    later = read(tmp_path / "run").result
    assert later is not None
    assert later["steps"] == 180
    assert later["random_return"] == first["random_return"]  # the same games
    assert json.loads((tmp_path / "run" / "result-120.json").read_text())["returns"] == first["returns"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path / "run")])
    assert ended.value.code == 0
    assert f"{later['mean_return']:.2f}" in capsys.readouterr().out
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "After 180 steps the agent scores" in (tmp_path / "page.html").read_text()
    monitor = StabilityMonitor(network(0), network(1), path=tmp_path / "mine")
    for scores in ((), (1.0, float("nan"))):
        with pytest.raises(sq.UserError, match="returns must be the finite scores of one game or more"):
            monitor.finish(scores, (1.0,))


def test_a_folder_goes_on_from_a_checkpoint_of_yours(tmp_path: Path) -> None:
    def loop(begin: int, end: int, **more: Any) -> None:
        monitor = StabilityMonitor(network(0), network(1), path=tmp_path / "run", every=5, name="mine", **more)
        for step in range(begin, end):
            monitor.step(1.0, step % 4 == 3)
            monitor.update(*transitions())

    loop(0, 23)
    with open(tmp_path / "run" / "diagnostics.jsonl", "a") as file:
        file.write('{"step": 2')  # killed while it wrote
    with pytest.raises(sq.UserError, match="holds a watched run: choose another path, or pass resume=STEPS"):
        loop(0, 5)
    with pytest.raises(sq.UserError, match="holds another run: seed is 0 there and 3 here"):
        loop(12, 20, resume=12, seed=3)
    loop(12, 31, resume=12)
    run = read(tmp_path / "run")
    assert [row["step"] for row in run.diagnostics] == [1, 5, 10, 15, 20, 25, 30]
    assert [row["updates"] for row in run.metrics] == [
        1,
        5,
        10,
        13,
        18,
        23,
        28,
    ]
    assert list(run.events.games[0]) == [4, 8, 12, 16, 20, 24, 28]
    assert run.metrics[-1]["games"] == 7
    assert run.diagnostics[3]["return_best"] is None  # no game has ended since
    assert run.diagnostics[4]["return_best"] == run.diagnostics[2]["return_best"]
    assert [event["step"] for event in sq.RunFolder(tmp_path / "run").events() if event["event"] == "resume"] == [12]
    write_report([tmp_path / "run"], tmp_path / "page.html")


def test_what_cannot_be_watched_is_refused_at_once(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for wrong, said in (
        ({"every": 0}, "every must be at least 1"),
        ({"lanes": 0}, "lanes must be at least 1"),
        ({"gamma": float("nan")}, "gamma must be between 0 and 1"),
    ):
        with pytest.raises(sq.UserError, match=said):
            StabilityMonitor(net, path=tmp_path / "run", **wrong)
    with pytest.raises(sq.UserError, match="Linear has none that trains"):
        StabilityMonitor(nn.Linear(4, 2), path=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monitor = StabilityMonitor(net, path=tmp_path / "run", lanes=2)
    with pytest.raises(sq.UserError, match=r"reward has shape \(3,\), and the monitor watches 2 lanes"):
        monitor.step([1, 2, 3], False)
    single = StabilityMonitor(nn.Sequential(nn.Linear(4, 1)), path=tmp_path / "single")
    with pytest.raises(sq.UserError, match="single action"):
        single.update(torch.zeros(5, 4), torch.zeros(5), torch.zeros(5), torch.zeros(5, 4), torch.zeros(5))


def test_a_stable_baselines3_model_without_a_target_network_is_told_its_own_parameter(tmp_path: Path) -> None:
    missing("stable_baselines3")
    import stable_baselines3

    from steadyq.monitor.integrations.sb3 import StabilityCallback

    torch.set_num_threads(1)
    for name, interval in (("none", 1), ("copies", 100)):
        model = stable_baselines3.DQN(
            "MlpPolicy", "CartPole-v1", learning_starts=100, train_freq=1, target_update_interval=interval, seed=0,
            device="cpu", policy_kwargs={"net_arch": [16]},
        )  # fmt: skip
        model.learn(900, callback=StabilityCallback(tmp_path / name, every=100, batch=32))
    (found,) = [each for each in read(tmp_path / "none").verdict().findings if each.name == "no target network"]
    assert found.advice() == "try a larger target_update_interval, now 1 (slow targets)"
    assert "no target network" not in [each.name for each in read(tmp_path / "copies").verdict().findings]
