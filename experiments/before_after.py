"""The bench's own functions at two commits in turn, on one machine: what a change costs.

git archive 91dbcf3 src | tar -x -C /tmp/before
python experiments/before_after.py /tmp/before/src --rounds 3 --json results/bench/h200-before-after.json

Each round is a process of the older tree and one of this one. The table has the least of all rounds: whatever else a
machine does, compiling kernels the first time too, only adds to a time.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = 2000


def measure() -> dict[str, Any]:
    """Milliseconds of updates, their parts, acting and whole steps, of the tree that is on the path."""
    import torch

    from steadyq import presets
    from steadyq.bench.steps import step_times
    from steadyq.bench.updates import Case, timed_form

    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    if not gpu:
        torch.set_num_threads(1)
    cases = {"4 x 2": Case(4, 2)} if gpu else {}
    cases["MinAtar, 4 members"] = Case(4, capacity=100_000 if gpu else 1000)
    found: dict[str, float] = {}
    for name, case in cases.items():
        form, precision = ("kernels", "bf16") if case.scale else ("stacked", "fp32")
        row = timed_form(case, form, precision, device, detail=True)
        found |= {f"{name}: update": row["update_ms"], f"{name}: act": row["act_ms"]}
        found |= {f"{name}: {part}": each for part, each in row["parts_ms"].items()}
    for env, scale, times in (("MinAtar/Breakout", "tiny", 4), ("Atari/Breakout", "small", 1))[: 1 + gpu]:
        rows = [step_times(presets.steady(env, scale=scale), STEPS) for _ in range(times)]
        found |= {f"{env}: {what}": min(row[f"{what}_ms"] for row in rows) for what in ("step", "learn", "act")}
    return found


def main() -> int:
    """Measure in turn, print a table, write the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the older tree's src; `here`: measure what is on the path, print JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.before == "here":
        print(json.dumps(measure()))
        return 0
    trees = {"before": Path(given.before).resolve(), "after": ROOT / "src"}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(given.rounds):
        for name, tree in trees.items():
            path = os.pathsep.join([str(tree), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
            words = [sys.executable, str(Path(__file__).resolve()), "here"]
            done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True)
            rounds[name].append(json.loads(done.stdout.splitlines()[-1]))
    if given.json:
        sys.path.insert(0, str(trees["after"]))
        from steadyq.run.provenance import provenance

        given.json.write_text(json.dumps({"rounds": rounds, **provenance()}, indent=1) + "\n")
    print(f"| ms | {' | '.join(trees)} | ratio |\n|---|---:|---:|---:|")
    for what in rounds["after"][0]:
        before, after = (min(each[what] for each in rounds[name]) for name in trees)
        print(f"| {what} | {before:.4f} | {after:.4f} | {after / before:.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
