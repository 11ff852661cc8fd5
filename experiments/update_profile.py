"""Where an update's time goes, kernel by kernel: one replay of a preset's captured update as the GPU ran it.

python experiments/update_profile.py --preset swift --json profile.json
python experiments/update_profile.py --show results/bench/h200-swift-kernels.json
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from steadyq import envs, presets
from steadyq.bench.clock import milliseconds
from steadyq.bench.every import learning_of, update_of
from steadyq.bench.updates import backends
from steadyq.device.kernels.triton import compiling_ahead
from steadyq.run.provenance import provenance

REPLAYS = 5
KERNELS = {
    "convolutions, forward and input gradient": ("tile_kernel", "strip_kernel"),
    "convolutions, input gradient at stride 2": ("spread_kernel",),
    "convolutions, weight gradient": ("weight_tile_kernel", "weight_strip_kernel", "collect_kernel"),
    "optimizer pass": ("_adam_kernel",),
    "matrix products": ("nvjet", "gemm", "cutlass"),
}


def measured(preset: str, env: str) -> dict[str, Any]:
    """Milliseconds of an update alone, and its kernels: start and duration in microseconds, stream, grid, name."""
    recipe, device = presets.recipe_for(preset, env), torch.device("cuda")
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
    events.sort(key=lambda event: event["ts"])
    last = events[-(len(events) // REPLAYS) :]
    rows = []
    for event in last:
        when, where = round(event["ts"] - last[0]["ts"], 1), event["args"]
        rows.append([when, round(event["dur"], 1), where["stream"], where.get("grid"), event["name"][:90]])
    return {"ms": alone, "kernels": rows, "machine": provenance()}


def kind_of(name: str) -> str:
    """What a kernel is part of."""
    for kind, names in KERNELS.items():
        if name in names or (kind == "matrix products" and any(part in name for part in names)):
            return kind
    return "everything else"


def main() -> None:
    """Print every kernel of an update in order, and each kind's share; write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="swift")
    parser.add_argument("--env", default="Atari/Alien")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--show", type=Path, help="such a file, to be shown again")
    args = parser.parse_args()
    found = json.loads(args.show.read_text()) if args.show else measured(args.preset, args.env)
    totals: dict[str, list[float]] = defaultdict(list)
    for row in found["kernels"]:
        totals[kind_of(row[-1])].append(row[1])
        if not args.show:
            print(*row)
    first = min(row[0] for row in found["kernels"] if row[-1] in KERNELS["convolutions, forward and input gradient"])
    print(f"{found['ms']:.2f} ms an update alone, its first convolution after {first:.0f} us")
    print(f"{len(found['kernels'])} kernels, and their microseconds:\n")
    for kind, each in sorted(totals.items(), key=lambda item: -sum(item[1])):
        print(f"| {kind} | {len(each)} | {sum(each):.0f} |")
    if args.json:
        args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
