"""A single-file DQN in the style of CleanRL, with the stability monitor added in the marked lines.

python examples/cleanrl_style.py --steps 10000 --path runs/cleanrl
steadyq diagnose runs/cleanrl
steadyq report runs/cleanrl --out report.html
"""

import argparse
import random
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional

import steadyq as sq  # monitor: 1


class QNetwork(nn.Module):
    """Two hidden layers."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Q of every action."""
        return self.network(x)


def main(arguments: list[str] | None = None) -> None:
    """Train on CartPole."""
    parser = argparse.ArgumentParser(description="DQN on CartPole, watched")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--path", default="runs/cleanrl")
    args = parser.parse_args(arguments)
    gamma, batch_size, warmup, train_frequency, target_network_frequency = 0.99, 128, 1000, 4, 500

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    env = gym.make("CartPole-v1")
    env.action_space.seed(args.seed)
    q_network, target_network = QNetwork(4, 2), QNetwork(4, 2)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate)
    replay: deque[tuple[np.ndarray, int, float, np.ndarray, bool]] = deque(maxlen=10_000)
    own = {"train_frequency": train_frequency, "target_network_frequency": target_network_frequency, **vars(args)}
    monitor = sq.StabilityMonitor(  # monitor: 2
        q_network, target_network, optimizer, gamma=gamma, path=args.path, env="CartPole-v1", seed=args.seed,
        parameters=own,
    )  # fmt: skip

    obs, _ = env.reset(seed=args.seed)
    for step in range(args.steps):
        epsilon = max(0.05, 1 - step / (0.5 * args.steps))
        if random.random() < epsilon:
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q_network(torch.as_tensor(obs)[None]).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        monitor.step(reward, terminated, truncated)  # monitor: 3
        replay.append((obs, action, float(reward), next_obs, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs

        if step > warmup and step % train_frequency == 0:
            sample = random.sample(replay, batch_size)
            o, a, r, n, d = (torch.as_tensor(np.array(part)) for part in zip(*sample, strict=True))
            with torch.no_grad():
                target = r.float() + gamma * target_network(n).max(1).values * (1 - d.float())
            loss = functional.mse_loss(target, q_network(o).gather(1, a[:, None]).squeeze(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.update(o, a, r, n, d)  # monitor: 4
            if step % target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())
    env.close()


if __name__ == "__main__":
    main()
