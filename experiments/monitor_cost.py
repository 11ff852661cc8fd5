"""What the monitor costs end to end: the same run with it on and off, side by side in one process.

python experiments/monitor_cost.py        prints the table and writes results/monitor/cost.json

The two take turns every 50 steps, so that what else the machine does falls on both alike; they learn the same, bit for
bit. A repeat is 1,000 steps, which hold one measurement; the figure is the median over repeats of on / off, with its
95% bootstrap interval.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import steadyq as sq
from steadyq.device.cpu import prepare_process
from steadyq.monitor.verdict import Alarms
from steadyq.run.provenance import provenance
from steadyq.run.step import Training
from steadyq.run.writer import begin

RUNS = (("CartPole-v1", "steady"), ("CartPole-v1", "dqn"), ("MinAtar/Breakout", "steady"))
TURN, REPEAT = 50, 1000


def compared(env: str, preset: str, repeats: int, **changes: Any) -> dict[str, Any]:
    """CPU seconds of every repeat with the monitor on and off, after warm-up and one repeat that is thrown away."""
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        pair = {}
        for which, every in (("on", {}), ("off", {"monitor.every": 0})):
            recipe = sq.presets.PRESETS[preset](env, **{"record.tensorboard": False, **every, **changes})
            writer = begin(sq.RunFolder(Path(folder) / which), recipe)
            pair[which] = (Training(recipe, writer), Alarms(), writer)
            pair[which][0].start()
        warm = 2 * REPEAT
        for step in range(0, warm + repeats * REPEAT, TURN):
            for which in ("on", "off") if step // TURN % 2 else ("off", "on"):
                training, alarms, _ = pair[which]
                began = time.process_time()
                for _ in range(TURN):
                    training.step()
                    if training.diagnosed:
                        alarms.add(training.diagnosed)
                if step % REPEAT == 0:
                    seconds[which].append(0.0)
                seconds[which][-1] += time.process_time() - began
        for training, _, writer in pair.values():
            training.env.close()
            writer.close()
    seconds = {which: each[warm // REPEAT :] for which, each in seconds.items()}
    ratios = np.array(seconds["on"]) / np.array(seconds["off"])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    interval = np.quantile(np.median(drawn, axis=1), [0.025, 0.975]).tolist()
    return {"env": env, "preset": preset, "ratio": float(np.median(ratios)), "interval": interval, "seconds": seconds}


def table(results: list[dict[str, Any]]) -> str:
    """One row per run: medians of 1,000 steps, of on / off, and the interval of the latter."""
    lines = ["| run | repeats | off, CPU s | on, CPU s | monitor | 95% interval |", "|---|---|---|---|---|---|"]
    for result in results:
        off, on = result["seconds"]["off"], result["seconds"]["on"]
        low, high = (100 * (ratio - 1) for ratio in result["interval"])
        lines.append(
            f"| {result['preset']}, {result['env']} | {len(on)} | {median(off):.2f} | {median(on):.2f} "
            f"| {100 * (result['ratio'] - 1):+.1f}% | {low:+.1f}% to {high:+.1f}% |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and say it."""
    parser = argparse.ArgumentParser(description="Time the same run with and without the monitor.")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results/monitor/cost.json"))
    options = parser.parse_args()
    prepare_process(1)
    results = [compared(env, preset, options.repeats) for env, preset in RUNS]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"results": results, **provenance(), "command": "python experiments/monitor_cost.py"}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
