"""What the monitor costs end to end: the same run with it on and off, taking turns, and the ratio of medians.

python studies/monitor_cost.py                    prints the table and writes results/monitor/cost.json
python studies/monitor_cost.py --repeats 3 --only CartPole-v1
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import steadyq as sq
from steadyq.runs import provenance

RUNS = (("CartPole-v1", "steady"), ("CartPole-v1", "dqn"), ("MinAtar/Breakout", "steady"))
PLAIN = {"record.tensorboard": False, "evaluation.episodes": 1, "evaluation.random_episodes": 1}


def timed(env: str, preset: str, steps: int, **changes: Any) -> dict[str, float]:
    """Train once; seconds of training by the wall clock, and of the whole process's CPU time."""
    recipe = sq.presets.PRESETS[preset](env, steps=steps, **PLAIN, **changes)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run = sq.train(recipe, run=Path(folder) / "run")
        cpu = time.process_time() - began
        return {"wall": float(run.metrics()[-1]["seconds"]), "cpu": cpu}


def compared(env: str, preset: str, steps: int, repeats: int) -> dict[str, Any]:
    """On and off by turns, the first of each pair changing, after one run that only warms up."""
    timed(env, preset, 1200)
    seconds: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
    for repeat in range(repeats):
        for which in ("on", "off") if repeat % 2 else ("off", "on"):
            off = {"monitor.every": 0} if which == "off" else {}
            seconds[which].append(timed(env, preset, steps, **off))
    ratios = {
        clock: median(one[clock] for one in seconds["on"]) / median(one[clock] for one in seconds["off"])
        for clock in ("cpu", "wall")
    }
    return {"env": env, "preset": preset, "steps": steps, "repeats": repeats, "ratio": ratios, "seconds": seconds}


def table(results: list[dict[str, Any]]) -> str:
    """One row per run: medians, ratio, and the spread of the repeats without the monitor."""
    lines = [
        "| run | steps, repeats | off, CPU s | on, CPU s | on / off, CPU | on / off, wall | spread of off, CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        off, on = ([one["cpu"] for one in result["seconds"][which]] for which in ("off", "on"))
        ratio = result["ratio"]
        lines.append(
            f"| {result['preset']}, {result['env']} | {result['steps']:,}, {result['repeats']} | {median(off):.2f} "
            f"| {median(on):.2f} | {100 * (ratio['cpu'] - 1):+.1f}% | {100 * (ratio['wall'] - 1):+.1f}% "
            f"| {min(off):.2f} to {max(off):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and say it."""
    parser = argparse.ArgumentParser(description="Time the same run with and without the monitor.")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="environments")
    parser.add_argument("--out", type=Path, default=Path("results/monitor/cost.json"))
    options = parser.parse_args()
    results = [
        compared(env, preset, options.steps, options.repeats)
        for env, preset in RUNS
        if not options.only or env in options.only
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"results": results, **provenance(), "command": "python studies/monitor_cost.py"}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
