"""Deliberately sick and ordinary healthy runs, and what `steadyq diagnose` says of each: writes docs/diagnose.md.

python experiments/diagnose.py                            judges the runs in results/, writes the page
python experiments/diagnose.py --runs DIR                 the same for a folder, and trains what is missing there first
python experiments/diagnose.py --runs DIR --only trap     trains one case and writes no page; --seeds 1 one seed of it
"""

import argparse
import dataclasses
import os
import shutil
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import steadyq as sq
from steadyq import envs
from steadyq.errors import UserError
from steadyq.monitor.verdict import RULES, Rule, Thresholds, findings, number, sustained, unsettled
from steadyq.suite.runs import Run, read_runs
from steadyq.suite.study import run_name
from steadyq.suite.variants import plain

SEEDS = (5, 6, 7, 8, 9)
"""Rules and thresholds were set on seeds 0 to 4 of earlier runs, and frozen before these were trained."""


@dataclass(frozen=True)
class Case:
    """One recipe, and what was said about it before its runs were trained."""

    name: str
    what: str
    preset: str
    env: str
    steps: int
    expected: tuple[str, ...] = ()
    """Findings of which at least one must be named; none: no finding at all."""
    changes: dict[str, Any] = field(default_factory=dict)

    def agrees(self, found: set[str]) -> bool:
        """Whether the verdict is the expected one; a sick run may have further findings."""
        return bool(found & set(self.expected)) if self.expected else not found


COMMON = {"evaluation.episodes": 20, "record.checkpoint_every": 100_000, "record.tensorboard": False}
HELD = {"operator.kind": "controlled", "operator.forbid": "rewarded", "operator.ceiling": "running_max"}
RUN_AHEAD = ("overestimation", "beyond the best return")

CASES = (
    Case("steady-cartpole", "steady", "steady", "CartPole-v1", 15_000),
    Case("steady-breakout", "steady", "steady", "MinAtar/Breakout", 15_000),
    Case("double-cartpole", "double_dqn", "double_dqn", "CartPole-v1", 15_000),
    Case("qr-cartpole", "qr_dqn", "qr_dqn", "CartPole-v1", 15_000),
    Case("dqn-breakout", "dqn", "dqn", "MinAtar/Breakout", 15_000),
    Case("trap-held", "the trap's recipe with constraint and ceiling on", "dqn", "CartPole-v1", 12_000, (),
         {"replay.ratio": 4, **HELD}),
    Case("trap", "constraint and ceiling off, dense reward: dqn at the paper's replay ratio of 4", "dqn",
         "CartPole-v1", 12_000, RUN_AHEAD, {"replay.ratio": 4}),
    Case("trap-8", "the same at a replay ratio of 8", "dqn", "CartPole-v1", 7_000, RUN_AHEAD, {"replay.ratio": 8}),
    Case("trap-long", "the same for as long as the healthy runs", "dqn", "CartPole-v1", 15_000, RUN_AHEAD,
         {"replay.ratio": 8}),
    Case("rate", "dqn, learning rate 50 times the preset's", "dqn", "CartPole-v1", 10_000, ("violent updates",),
         {"optim.rate": 0.05}),
    Case("rate-10", "dqn, learning rate 10 times the preset's", "dqn", "CartPole-v1", 8_000,
         ("violent updates", "weight spikes"), {"optim.rate": 0.01}),
    Case("ratio", "dqn, replay ratio 16, no resets", "dqn", "CartPole-v1", 6_000, ("growing weights",),
         {"replay.ratio": 16}),
    Case("no-target", "dqn, no target network", "dqn", "CartPole-v1", 10_000, ("no target network",),
         {"optim.tau": 1.0}),
    Case("ceiling", "the same, held by the ceiling alone", "dqn", "CartPole-v1", 8_000, ("ceiling reached",),
         {"optim.tau": 1.0, "operator.ceiling": "running_max"}),
    Case("asterix", "dqn, sparse reward", "dqn", "MinAtar/Asterix", 12_000, RUN_AHEAD),
)  # fmt: skip

RESULTS = Path(__file__).parents[1] / "results"
RESET = {
    "`swift`": ("swift-games.tar.xz",),
    "earlier `swift`": ("swift-settling.tar.xz", "swift-settled.tar.xz"),
    "`dqn`, `qr_dqn`": ("remedies.tar.xz/*-shrink-and-perturb-*", "remedies.tar.xz/*-redraw-the-head-*"),
}
"""Stored runs with planned resets."""

LOGS = ("recipe.toml", "metrics.jsonl", "diagnostics.jsonl", "events.jsonl", "result.json")


def name_of(case: Case, seed: int) -> str:
    """The name of a run's folder."""
    return run_name(envs.canonical(case.env), case.name, seed)


def train(case: Case, seed: int, runs: Path) -> None:
    """Train a case unless its folder is finished; keep the logs, not the weights."""
    run = runs / name_of(case, seed)
    if (run / "result.json").exists():
        return
    os.environ["STEADYQ_COMMAND"] = f"python experiments/diagnose.py --runs {runs} --only {case.name} --seeds {seed}"
    recipe = sq.presets.PRESETS[case.preset](case.env, steps=case.steps, seed=seed, **COMMON, **case.changes)
    sq.train(recipe, run=run)
    for path in run.iterdir():
        if path.name not in LOGS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


HEAD = """# How often `steadyq diagnose` is right

Nine recipes that are sick on purpose and six ordinary ones, five seeds each, judged at the default thresholds. A sick
run counts as named if at least one of the findings that belong to it is given, a healthy one as left alone if none is.
Healthy means stable, not good: `double_dqn` and `qr_dqn` are merely slow here.

Rules and thresholds were set on other seeds and frozen before these were trained. All of it is small: five seeds, three
small environments, small networks. On a task of your own take a finding as a place to look, and silence as no proof.
[monitor.md](monitor.md) does the same for runs of Stable-Baselines3.

![The verdict in a report](verdict.png)

*`steadyq report results/diagnose.tar.xz/Gymnasium-CartPole-v1-{rate,ratio,trap-held}-seed5 --out report.html`*
"""

NOTES = """## What the table says

**The trap** (constraint and ceiling off, dense reward). `trap` and `trap-held` differ in those two switches alone.
Every step of CartPole is rewarded and no return can exceed 100. Without the switches values climb to the best return
and past it, the faster the more updates a step; with them they stay near a quarter of it. TRAP
Sick values need not mean a bad score at the end: several of these runs still play 500.

What is named is the result, values without support, not the loop itself. The same-action share, the paper's own
statistic, cannot show it here: good play alternates on CartPole, so the share stays at chance while the loop turns and
falls below chance when the policy is good; both are healthy readings elsewhere. It has named no run of this study.

**A learning rate that is too high is named by the first update.** Adam's first step has size rate x sqrt(parameters),
whatever the data, and `violent updates` reads it in the first row, which every run measures at its first update; a row
later updates are small beside weights that have grown. FIRST
"""

LEVELS_TEXT = """## Where the thresholds come from

For every rule, the worst level its figure kept for three measurements in a row (for violent updates: in one), which
is what the threshold is held against: the range over the seeds. Bold is beyond the threshold. Thresholds lie between
the healthy and the sick, nearer to the sick: a false alarm costs trust. `overestimation` is at 2 because a healthy
`dqn` on Breakout reached 1.3 in passing; `beyond the best return` is at 1 by its meaning. Every one is an option,
`steadyq diagnose RUN --thresholds.spike 5`, and a field of `Thresholds`.
"""


RESETS_TEXT = """## Planned resets

A planned reset draws weights anew on purpose: COUNTS. For every rule the median of its figure in the half of a cycle
before a reset, soon after it (in the first half of the next cycle) and later in that cycle; behind it the share of rows
beyond the threshold, where there are any. On `excused` rules a row soon after a reset that is beyond the threshold is
not held against the run: there resets moved the figure towards it, or drew out single rows far beyond it. `violent
updates` grow too and stay far from theirs. How long a reset excuses is an option, `--thresholds.settling 0.25`; at 0 it
excuses nothing.
"""

RESETS_SAID = """
What that does to verdicts, on the runs of the first two columns of which anything is found without being told of their
resets. What is left then began before the first reset, or was there again once one had settled.
"""


def main() -> None:
    """Train what is missing and write the page."""
    parser = argparse.ArgumentParser(description="Train sick and healthy runs; write what diagnose says of them.")
    parser.add_argument("--runs", type=Path, default=Path("results/diagnose.tar.xz"), help="archive or folder of runs")
    parser.add_argument("--out", type=Path, default=Path("docs/diagnose.md"))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--only", nargs="*", help="train these cases (or all) and write no page")
    options = parser.parse_args()
    if not options.runs.is_file():
        for seed in options.seeds:
            for case in CASES:
                if not options.only or case.name in options.only:
                    train(case, seed, options.runs)
    elif options.only is not None:
        parser.error("--only trains into a folder: name one with --runs")
    if options.only is None:
        options.out.write_text(page(options.runs))


@dataclass(frozen=True)
class Judged:
    """A case with its runs by seed and the findings of each."""

    case: Case
    runs: dict[int, Run]

    def names(self, seed: int) -> list[str]:
        """What is named, earliest first."""
        return [finding.name for finding in self.runs[seed].verdict().findings]

    def right(self, seed: int) -> bool:
        """Whether the verdict is the expected one."""
        return self.case.agrees(set(self.names(seed)))

    def levels(self, rule: Rule) -> list[float]:
        """What a rule's figure kept up, in the runs where it is defined."""
        kept = (sustained(rule, run.diagnostics, Thresholds().rows) for run in self.runs.values())
        return [level for level in kept if level is not None]


def load(runs: Path) -> dict[str, Run]:
    """Every run of an archive or folder, by its name."""
    found = {run.path.name: run for run in read_runs([runs] if runs.is_file() else sorted(runs.iterdir()))}
    wanted = [name_of(case, seed) for case in CASES for seed in SEEDS]
    if missing := [name for name in wanted if name not in found]:
        raise UserError(f"{runs} has no {missing[0]}")
    return found


def judge(found: dict[str, Run]) -> list[Judged]:
    """Every case with all its runs."""
    return [Judged(case, {seed: found[name_of(case, seed)] for seed in SEEDS}) for case in CASES]


def page(runs: Path) -> str:
    """The whole document."""
    judged = judge(load(runs))
    parts = (
        HEAD,
        summary(judged),
        verdicts(judged),
        notes(judged),
        never(judged),
        LEVELS_TEXT,
        levels(judged),
        planned_resets(),
        cost(judged),
    )
    return "\n".join(parts)


def summary(judged: list[Judged]) -> str:
    """How many verdicts were the expected ones."""

    def count(sick: bool) -> str:
        right = [each.right(seed) for each in judged if bool(each.case.expected) == sick for seed in SEEDS]
        return f"{sum(right)} of {len(right)}"

    return f"Sick runs named: **{count(True)}**. Healthy runs left alone: **{count(False)}**.\n"


def verdicts(judged: list[Judged]) -> str:
    """Expected and given, one row per case."""
    heads = ["run", "environment, steps", "belongs to it", *(f"seed {s}" for s in SEEDS)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for each in judged:
        case = each.case
        said = [
            f"{'yes' if each.right(seed) else '**no**'}: {', '.join(each.names(seed)) or 'nothing'}" for seed in SEEDS
        ]
        expected = " or ".join(case.expected) or "nothing"
        lines.append(
            f"| `{case.name}`: {case.what} | {case.env}, {case.steps:,} | {expected} | " + " | ".join(said) + " |"
        )
    lines += ["", "What they scored, 20 games without exploration, and how far values went:", ""]
    lines += [
        "| run | return, by seed | greedy value over the best return, last row, by seed |",
        "|---|---|---|",
    ]
    for each in judged:
        scores = ", ".join(f"{run.result['mean_return']:.4g}" for run in each.runs.values() if run.result)
        last = [run.diagnostics[-1] for run in each.runs.values()]
        shares = ", ".join(number(row["q_greedy"] / row["return_best"]) for row in last)
        lines.append(f"| `{each.case.name}` | {scores} | {shares} |")
    return "\n".join(lines) + "\n"


def notes(judged: list[Judged]) -> str:
    """The text on the table, with the traps counted."""
    counts = [
        f"`{each.case.name}` on {sum(each.right(seed) for seed in SEEDS)}"
        for each in judged
        if each.case.name in ("trap", "trap-8", "trap-long", "ratio")
    ]
    later = [
        f"{sum(case.agrees(_later(each.runs[seed])) for seed in SEEDS)} of five `{case.name}` runs"
        for each in judged
        if (case := each.case).name in ("rate", "rate-10")
    ]
    marks = [
        (each.case.name, ", ".join(sorted(set.union(*(_later(each.runs[seed]) for seed in SEEDS)))))
        for each in judged
        if each.case.name in ("rate", "rate-10")
    ]
    said = "; ".join(f"`{name}`: {found}" for name, found in marks)
    name = f"findings that belong to them name {' and '.join(later)}"
    first = f"Without that row the\n{name}; all that is found is\n{said}.\n"
    text = NOTES.replace("TRAP\n", f"Of the five seeds the verdict names\n{', '.join(counts)}.\n")
    return text.replace("FIRST\n", first)


def _later(run: Run) -> set[str]:
    """What is named without the first row."""
    return {finding.name for finding in dataclasses.replace(run, diagnostics=run.diagnostics[1:]).verdict().findings}


def never(judged: list[Judged]) -> str:
    """The rules that no run of the study ever raised."""
    raised = {name for each in judged for seed in SEEDS for name in each.names(seed)}
    silent = [rule.name for rule in RULES if rule.name not in raised]
    return (
        f"**Rules that no run here raised:** {', '.join(silent) or 'none'}. Healthy runs stay within them;\n"
        "that they find their sickness has been shown on made-up rows only (`tests/monitor/test_verdict.py`).\n"
    )


def levels(judged: list[Judged]) -> str:
    """The level each rule saw in each case: the range over the seeds."""
    lines = ["| rule | threshold | " + " | ".join(f"`{each.case.name}`" for each in judged) + " |"]
    lines.append("|---|---|" + "---|" * len(judged))
    for rule in RULES:
        limit = getattr(Thresholds(), rule.threshold)

        def shown(values: list[float], rule: Rule = rule, limit: float = limit) -> str:
            marked = [
                f"**{number(value)}**" if (value < limit if rule.below else value > limit) else number(value)
                for value in sorted({min(values), max(values)})
            ]
            return " to ".join(marked)

        cells = []
        for each in judged:
            found = each.levels(rule)
            cells.append(shown(found) if found else "-")
        sign = "below" if rule.below else "above"
        lines.append(f"| {rule.name} | {sign} {plain(limit)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def planned_resets() -> str:
    """What planned resets did to every rule's figure in the stored runs, and what verdicts make of it."""
    groups = {
        name: [run for run in read_runs([RESULTS / file for file in files]) if run.events.planned]
        for name, files in RESET.items()
    }
    counts = [
        f"{sum(len(run.events.planned) for run in runs)} times in {len(runs)} runs of {name}"
        for name, runs in groups.items()
    ]
    heads = ["rule", "excused", *(f"{name}: before, soon, later" for name in groups)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for rule in RULES:
        cells = [_moved(rule, runs) for runs in groups.values()]
        lines.append(f"| {rule.name} | {'yes' if rule.settles else 'no'} | " + " | ".join(cells) + " |")
    said = ["| run | not told | told |", "|---|---|---|"]
    for name in list(groups)[:2]:
        for run in groups[name]:
            blind = findings(run.diagnostics, run.events.diverged, recipe=run.recipe)
            told = run.verdict().findings
            if blind:
                words = [
                    "; ".join(f"{each.name} {each.when()}{each.against()}" for each in found) or "nothing"
                    for found in (blind, told)
                ]
                said.append(f"| `{run.path.name}`, {name} | " + " | ".join(words) + " |")
    head, text = RESETS_TEXT.split("\n\n")
    text = textwrap.fill(text.replace("COUNTS", ", ".join(counts)), 120, break_long_words=False)
    return "\n".join([head, "", text, "", *lines, RESETS_SAID, *said]) + "\n"


def _moved(rule: Rule, runs: list[Run]) -> str:
    """A figure's median before planned resets, soon after and later, and how often it was beyond the threshold."""
    limit, settling = getattr(Thresholds(), rule.threshold), Thresholds().settling
    before, soon, later = list[float](), list[float](), list[float]()
    for run in runs:
        rows, steps = list(run.diagnostics), run.events.planned
        young = unsettled(rows, steps, settling)
        for i, row in enumerate(rows):
            if (value := rule.figure(rows, i)) is None:
                continue
            since = max((step for step in steps if step < row["step"]), default=0)
            ahead = min((step for step in steps if step >= row["step"]), default=None)
            if young[i]:
                soon.append(value)
            elif since:
                later.append(value)
            if ahead is not None and row["step"] > ahead - settling * (ahead - since):
                before.append(value)
    phases = before, soon, later
    if not all(phases):
        return "-"
    shares = [sum(value < limit if rule.below else value > limit for value in each) / len(each) for each in phases]
    beyond = f" ({', '.join(f'{share:.1%}' for share in shares)})" if any(shares) else ""
    return ", ".join(number(median(each)) for each in phases) + beyond


def cost(judged: list[Judged]) -> str:
    """Measuring time over training time, from the rows' own clocks."""
    shares = [
        100 * run.diagnostics.columns["seconds"].sum() / run.metrics.columns["seconds"][-1]
        for each in judged
        for run in each.runs.values()
    ]
    return (
        "## Cost\n\nBy the rows' own clocks measuring took "
        f"{median(shares):.2f}% of training time at the default cadence (median of these {len(shares)}\n"
        f"runs, at most {max(shares):.2f}%). [metrics.md](metrics.md#cost) has the same run timed with it on and off.\n"
    )


if __name__ == "__main__":
    main()
