"""What an update of each variant of a study costs, alone on this machine: plan a sweep by it, or choose at equal cost.

python experiments/variant_times.py studies/swift-settling.toml --json results/bench/h200-swift-settling.json
"""

import argparse
import json
from pathlib import Path

import torch

from steadyq import envs
from steadyq.bench.clock import milliseconds
from steadyq.bench.every import backends, noisy, update_of
from steadyq.build import device_for, draw_layout, learner_for, ring_for
from steadyq.device.kernels.triton import compiling_ahead
from steadyq.recipe import Recipe
from steadyq.run.provenance import provenance
from steadyq.run.update import Learning
from steadyq.suite.study import find_study


def cost(recipe: Recipe) -> float:
    """Milliseconds an update of a recipe, kernels compiled before."""
    device, spec = device_for(recipe), envs.spec(recipe.env, recipe.protocol)

    def learning() -> Learning:
        learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), device)
        ring = noisy(ring_for(recipe, spec, device), spec, recipe.replay.capacity)
        return Learning(learner, ring, draw_layout(recipe, spec))

    if device.type == "cuda":
        with compiling_ahead(device):
            update_of(recipe, spec, learning(), captured=False)()
    backends(recipe.compute.precision != "fp32", search=False)
    return milliseconds(update_of(recipe, spec, learning()), device, budget=0.5)


def main() -> None:
    """Time every variant on the study's first game; print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="a study's name or file")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    args = parser.parse_args()
    study = find_study(args.study)
    found = {}
    for name in study.labels:
        found[name] = cost(study.recipe(name, study.games[0], study.seeds[0]))
        print(f"{found[name]:8.3f} ms  {name}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"ms an update": found, "machine": provenance()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
