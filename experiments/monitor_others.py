"""Stable-Baselines3 runs that are sick on purpose and healthy ones, and what the monitor says of each.

python experiments/monitor_others.py             judges results/monitor/sb3.tar.xz, writes its table to docs/monitor.md
python experiments/monitor_others.py --runs DIR  trains what is missing in DIR, packs it, and does the same

Settings and what belongs to each were written down before the runs were made; thresholds are the default ones.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyq.suite.archive import pack
from steadyq.suite.runs import Run, read_runs

ROOT = Path(__file__).parents[1]
ARCHIVE, PAGE = ROOT / "results" / "monitor" / "sb3.tar.xz", ROOT / "docs" / "monitor.md"
BEGIN, END = "<!-- experiments/monitor_others.py -->\n", "<!-- end -->\n"
ENV = "CartPole-v1"
USUAL: dict[str, Any] = {
    "learning_rate": 1e-3,
    "buffer_size": 10_000,
    "learning_starts": 500,
    "batch_size": 64,
    "train_freq": 1,
    "target_update_interval": 250,
    "exploration_fraction": 0.3,
}
ZOO: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "batch_size": 64,
    "train_freq": 256,
    "gradient_steps": 128,
    "target_update_interval": 10,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""rl-baselines3-zoo's for DQN on CartPole-v1."""


@dataclass(frozen=True)
class Case:
    """Settings of Stable-Baselines3's DQN, and the parameter that advice must name; none: nothing is to be found."""

    name: str
    what: str
    settings: dict[str, Any]
    steps: int
    seeds: tuple[int, ...]
    parameter: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("usual", "ordinary settings", USUAL, 6000, (0, 1, 2, 3, 4)),
    Case("zoo", "rl-baselines3-zoo's settings", ZOO, 6000, (0, 1, 2, 3, 4)),
    Case("no-target", "ordinary, `target_update_interval=1, tau=1`", USUAL, 6000, (0, 1, 2), "target_update_interval",
         {"target_update_interval": 1, "tau": 1.0}),
    Case("rate", "ordinary, `learning_rate=0.1`", USUAL, 6000, (0, 1, 2), "learning_rate", {"learning_rate": 0.1}),
    Case("steps-16", "ordinary, `gradient_steps=16`", USUAL, 2000, (0, 1, 2), "gradient_steps", {"gradient_steps": 16}),
)  # fmt: skip


def learn(case: Case, seed: int, path: Path) -> None:
    """Train one model under the callback, measured twelve times."""
    from stable_baselines3 import DQN

    from steadyq.monitor.integrations.sb3 import StabilityCallback

    model = DQN("MlpPolicy", ENV, seed=seed, device="cpu", **{**case.settings, **case.changes})
    model.learn(case.steps, callback=StabilityCallback(path, every=case.steps // 12))


def judged(case: Case, run: Run) -> tuple[bool, list[str], str]:
    """Whether the verdict is right, the findings' names, and the advice that names the case's parameter."""
    found = run.verdict().findings
    names = [finding.name for finding in found]
    advice = [text for finding in found for text, _ in finding.switches if case.parameter and case.parameter in text]
    return (bool(advice) if case.parameter else not found), names, advice[0] if advice else ""


def table(runs: dict[str, Run]) -> str:
    """All runs as Markdown."""
    lines = ["| run | steps | seed | right | found | advice that names it | return, last 10 games |", "|" + "---|" * 7]
    right: dict[bool, list[bool]] = {True: [], False: []}
    for case in CASES:
        for seed in case.seeds:
            run = runs[f"{case.name}-seed{seed}"]
            good, names, advice = judged(case, run)
            right[bool(case.parameter)].append(good)
            said = ", ".join(names) or "nothing"
            mean = run.metrics[-1]["return_10"]
            lines.append(
                f"| `{case.name}`: {case.what} | {case.steps:,} | {seed} | {'yes' if good else '**no**'} | {said} | "
                f"{advice or '-'} | {mean:.0f} |"
            )
    sick, healthy = right[True], right[False]
    return (
        f"Sick runs named with their parameter: **{sum(sick)} of {len(sick)}**. Healthy runs left alone: "
        f"**{sum(healthy)} of {len(healthy)}**.\n\n" + "\n".join(lines) + "\n"
    )


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, if a folder is given, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the runs; without it, the archive")
    args = parser.parse_args(arguments)
    if args.runs:
        import torch

        torch.set_num_threads(1)
        for case in CASES:
            for seed in case.seeds:
                path = args.runs / f"{case.name}-seed{seed}"
                if not (path / "done").exists():
                    print(f"{case.name}, seed {seed}", flush=True)
                    learn(case, seed, path)
                    (path / "done").touch()
        pack(args.runs, ARCHIVE, "sb3")
    runs = {run.path.name: run for run in read_runs([ARCHIVE])}
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(before + BEGIN + table(runs) + END + after)


if __name__ == "__main__":
    main()
