"""Train for a while, look, and train longer: the run is the one that would have been, had it been longer at first.

    python examples/longer.py

On the command line the same is `steadyq train CartPole-v1 --steps 4000`, then `--steps 8000`.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

import steadyq as sq


def weights(run: sq.RunFolder) -> dict[str, torch.Tensor]:
    """The parameters in a run's newest checkpoint: a safetensors file, no pickle."""
    return load_file(run.checkpoints()[-1] / "online.safetensors")


def main() -> None:
    """Compare a run in two parts with one in one."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=4_000)
    options.add_argument("--out", type=Path, default=Path("runs/longer"))
    given = options.parse_args()

    recipe = sq.presets.steady("CartPole-v1", **{"operator.forbid": "auto", "evaluation.episodes": 10})

    first = sq.train(recipe, steps=given.steps, run=given.out / "parts")
    assert first.result is not None
    print(f"after {given.steps:,} steps: {first.result['mean_return']:.1f}; going on\n")

    parts = sq.train(recipe, steps=2 * given.steps, run=given.out / "parts")
    whole = sq.train(recipe, steps=2 * given.steps, run=given.out / "whole", quiet=True)

    one, other = weights(parts), weights(whole)
    same = all(torch.equal(one[name], other[name]) for name in one)
    print(f"in two parts and in one: {'the same to the last bit' if same else 'different'}")
    print(f"the earlier evaluation is still there: {parts.path}/result-{given.steps}.json")


if __name__ == "__main__":
    main()
