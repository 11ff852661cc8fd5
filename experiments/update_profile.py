"""Where an update's time goes, kernel by kernel: one replay of a preset's captured update as the GPU ran it.

python experiments/update_profile.py --preset swift --json profile.json
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from steadyq import envs, presets
from steadyq.bench.clock import milliseconds
from steadyq.bench.every import learning_of, update_of
from steadyq.bench.updates import backends
from steadyq.device.kernels.triton import compiling_ahead
from steadyq.run.provenance import provenance

REPLAYS = 5


def main() -> None:
    """Print every kernel of an update in order, and each kind's share; write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="swift")
    parser.add_argument("--env", default="Atari/Alien")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    recipe, device = presets.recipe_for(args.preset, args.env), torch.device("cuda")
    spec = envs.spec(recipe.env, recipe.protocol)
    with compiling_ahead(device):
        update_of(recipe, spec, learning_of(recipe, spec, device), captured=False)()
    backends(recipe.compute.precision != "fp32", search=False)
    update = update_of(recipe, spec, learning_of(recipe, spec, device))
    alone = milliseconds(update, device)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(REPLAYS):
            update()
        torch.cuda.synchronize()
    trace = Path("update-trace.json")
    seen.export_chrome_trace(str(trace))
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") in kinds]
    trace.unlink()
    events.sort(key=lambda e: e["ts"])
    each = len(events) // REPLAYS
    last, totals = events[-each:], defaultdict[str, float](float)
    start, rows = last[0]["ts"], []
    for event in last:
        where, name = event["args"], event["name"]
        rows.append(
            [round(event["ts"] - start, 1), round(event["dur"], 1), where["stream"], where.get("grid"), name[:90]]
        )
        totals[name[:60]] += event["dur"]
    for row in rows:
        print(*row)
    print(f"{alone:.3f} ms an update; {each} kernels, {sum(totals.values()) / 1e3:.3f} ms of them")
    for name, total in sorted(totals.items(), key=lambda item: -item[1])[:25]:
        print(f"{total:8.1f} us  {name}")
    if args.json:
        args.json.write_text(json.dumps({"ms": alone, "kernels": rows, "machine": provenance()}) + "\n")


if __name__ == "__main__":
    main()
