"""A network of your own: layers in words, or any torch.nn.Module, with the same checkpoints, monitor and resets.

python examples/own_network.py
"""

import argparse

import torch
from torch import Tensor, nn

import steadyq as sq


class Fourier(nn.Module):
    """Learned Fourier features before a small network: something no description of ours has.

    It is told the observation's shape and how many outputs there are (actions x atoms); it gets a batch of
    observations in float32 and returns a row of outputs for each.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.waves = nn.Linear(shape[0], 32)
        self.hidden = nn.Linear(64, 64)
        self.values = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Sines and cosines, a hidden layer, the outputs."""
        angle = self.waves(x)
        features = torch.cat([angle.sin(), angle.cos()], dim=1)
        values: Tensor = self.values(torch.relu(self.hidden(features)))
        return values


def main() -> None:
    """Train both on CartPole and compare what they cost and score."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=8_000)
    options.add_argument("--out", default="runs/own-network")
    given = options.parse_args()

    for name, network in (("layers", ["linear 64", "linear 64"]), ("module", Fourier)):
        run = sq.train(
            "steady",
            env="CartPole-v1",
            network=network,
            steps=given.steps,
            options={"operator.forbid": "auto", "evaluation.episodes": 10},
            run=f"{given.out}/{name}",
        )
        assert run.result is not None
        print(f"{name}: mean return {run.result['mean_return']:.1f}, {run.result['wall_seconds']:.0f} s\n")

    print(f"compare them: steadyq compare {given.out}/*   page: steadyq report {given.out}/* --out page.html")


if __name__ == "__main__":
    main()
