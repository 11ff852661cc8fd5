"""The paper's method in one file, for reading: a list of ordinary networks, ordinary optimizers, loops over members.

    python reference/steady.py --env CartPole-v1 --steps 20000
    python reference/steady.py --env MinAtar/Breakout-v1 --steps 50000

Nothing here is fast and nothing is shared with the library; tests hold the library's update equal to `Agent.update`.
`l.N` is a line of the paper's LaTeX text; `line n` a line of its Algorithm 1 (l.434). Where the paper is silent or
contradicts itself the comment says which reading was taken.
"""

import argparse
import copy
import dataclasses
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    """Every number; those the paper prints (l.1104-1151) are its own unless a comment says otherwise."""

    env: str = "CartPole-v1"
    steps: int = 20_000
    seed: int = 0
    members: int = 4  # m; the paper: 16
    quantiles: int = 51  # K
    hidden: int = 128  # the paper's encoder is a ResNet; here a small network
    gamma: float = 0.99
    rate: float = 1e-3  # the paper: 1e-4, with 4 updates per step
    clip: float = 10.0
    tau: float = 0.005
    kappa: float = 1.0
    batch: int = 32
    capacity: int = 100_000
    warmup: int = 1000  # the paper: 2000
    ratio: int = 1  # updates per step; the paper: 4
    alpha: float = 0.6
    beta: float = 0.4
    priority_epsilon: float = 1e-6
    epsilon_end: float = 0.01
    epsilon_steps: int = 5000  # the paper: 2001
    forbid: int = 1  # 0 switches the constraint a' != a off
    sign: int = 1  # learn from the sign of the reward (l.1012)
    ceiling: int = 1  # 0 switches the bound on targets off
    threshold: float = 6.0  # spike ratio above which a layer is reset
    check_every: int = 1000  # steps between checks (l.837)


@dataclass(frozen=True)
class Batch:
    """A mini-batch, shared by all members (line 9)."""

    observation: Tensor  # [batch, ...]
    action: Tensor  # [batch]
    reward: Tensor  # [batch]
    discount: Tensor  # [batch] gamma, 0 where the trajectory terminated
    next_observation: Tensor  # [batch, ...]
    weight: Tensor  # [batch] importance weights


class Net(nn.Module):
    """One member Z_theta: K quantiles for every action."""

    def __init__(self, shape: tuple[int, ...], actions: int, options: Options) -> None:
        super().__init__()
        self.actions, self.quantiles = actions, options.quantiles
        if len(shape) == 3:  # a MinAtar board, channels first
            self.conv: nn.Module = nn.Conv2d(shape[0], 16, 3)
            features = 16 * (shape[1] - 2) * (shape[2] - 2)
        else:
            self.conv = nn.Identity()
            features = int(np.prod(shape))
        self.hidden = nn.Linear(features, options.hidden)
        self.head = nn.Linear(options.hidden, actions * options.quantiles)

    def forward(self, x: Tensor) -> Tensor:
        """Return z[batch, action, quantile]."""
        if isinstance(self.conv, nn.Conv2d):
            x = torch.relu(self.conv(x))
        z: Tensor = self.head(torch.relu(self.hidden(x.flatten(1))))
        return z.view(-1, self.actions, self.quantiles)


def quantile_loss(z: Tensor, y: Tensor, kappa: float) -> Tensor:
    """Quantile Huber loss of z[batch, i] towards y[batch, j], [batch]: Eq. l.408, all K x K pairs written out."""
    count = z.shape[1]
    tau = (torch.arange(count) + 0.5) / count  # tau_j = (j - 0.5) / K, counted from 1 (l.442)
    u = y[:, None, :] - z[:, :, None]  # u[b, i, j] = y_j - z_i
    huber = torch.where(u.abs() <= kappa, 0.5 * u**2, kappa * (u.abs() - 0.5 * kappa))
    rho = (tau[None, :, None] - (u < 0).float()).abs() * huber / kappa
    return rho.sum((1, 2)) / count**2  # 1/K^2 as printed, not QR-DQN's 1/K


def spike_ratio(weight: Tensor) -> float:
    """Return max|W| / 0.99-quantile of |W|: Eq. l.299."""
    size = weight.detach().abs().flatten()
    return float(size.max() / torch.quantile(size, 0.99))


class Replay:
    """Prioritised experience replay (l.1019) over a list."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.items: list[tuple[Any, ...]] = []
        self.priority: list[float] = []
        self.place = 0
        self.largest = 1.0

    def add(self, *item: Any) -> None:
        """Keep (s, a, r, discount, s'); the oldest makes room. New items get the largest priority so far."""
        if len(self.items) < self.options.capacity:
            self.items.append(item)
            self.priority.append(self.largest)
        else:
            self.items[self.place], self.priority[self.place] = item, self.largest
            self.place = (self.place + 1) % self.options.capacity

    def sample(self, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw one item per stratum in proportion to p^alpha; weights (N P)^-beta over their largest."""
        mass = np.array(self.priority) ** self.options.alpha
        points = (np.arange(len(uniform)) + uniform) / len(uniform) * mass.sum()
        index = np.searchsorted(mass.cumsum(), points, side="right")
        weight = (len(mass) * mass[index] / mass.sum()) ** -self.options.beta
        return index, weight / weight.max()

    def batch(self, index: np.ndarray, weight: np.ndarray) -> Batch:
        """Collect the drawn items."""
        observation, action, reward, discount, following = zip(*(self.items[i] for i in index), strict=True)
        return Batch(
            torch.as_tensor(np.stack(observation)),
            torch.tensor(action),
            torch.tensor(reward, dtype=torch.float32),
            torch.tensor(discount, dtype=torch.float32),
            torch.as_tensor(np.stack(following)),
            torch.as_tensor(weight, dtype=torch.float32),
        )

    def update(self, index: np.ndarray, loss: Tensor) -> None:
        """Priority of an item: its unweighted loss, averaged over members (the paper does not say), plus epsilon."""
        for i, value in zip(index.tolist(), loss.tolist(), strict=True):
            self.priority[i] = value + self.options.priority_epsilon
            self.largest = max(self.largest, self.priority[i])


class Agent:
    """m members: online networks theta_i, target networks theta_i^-, one Adam each."""

    def __init__(self, shape: tuple[int, ...], actions: int, options: Options) -> None:
        self.options = options
        self.online = [Net(shape, actions, options) for _ in range(options.members)]
        self.target = copy.deepcopy(self.online)
        self.adam = [torch.optim.Adam(net.parameters(), options.rate) for net in self.online]
        self.ceiling = float("inf")

    @torch.no_grad()
    def act(self, observation: np.ndarray) -> int:
        """Return the greedy action of the ensemble-averaged value (line 6, Eq. l.421)."""
        z = torch.stack([net(torch.as_tensor(observation)[None]) for net in self.online])
        return int(z.mean((0, 3)).argmax())

    def update(self, batch: Batch, order: list[int]) -> Tensor:
        """One step of every member (lines 10-25), `order` being pi; returns the members' mean loss, [batch]."""
        rows = torch.arange(len(batch.action))
        with torch.no_grad():
            z_next = [net(batch.next_observation) for net in self.target]
            chosen = []
            for z in z_next:  # lines 10-17: every member selects with its own target network
                q = z.mean(-1)  # Eq. l.397
                for b, (action, reward) in enumerate(zip(batch.action, batch.reward, strict=True)):
                    if reward > 0 and self.options.forbid:
                        q[b, action] = -torch.inf  # lines 12-15: a' != a if r > 0 (Eq. l.369)
                chosen.append(q.argmax(-1))  # line 16

        losses = []
        for i, (online, target, adam) in enumerate(zip(self.online, self.target, self.adam, strict=True)):
            # Line 21: member i values what member pi(i) selected. The printed target has no terminal mask.
            y = batch.reward[:, None] + batch.discount[:, None] * z_next[i][rows, chosen[order[i]]]
            y = y.clamp(max=self.ceiling)  # section 4.1.3, from above only
            z = online(batch.observation)[rows, batch.action]
            loss = quantile_loss(z, y, self.options.kappa)
            adam.zero_grad()
            (batch.weight * loss).mean().backward()  # type: ignore[no-untyped-call]  # line 23
            nn.utils.clip_grad_norm_(online.parameters(), self.options.clip)  # l.1060; of each member alone
            adam.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.lerp_(fast, self.options.tau)  # line 25 is a hard copy; Polyak by l.1058
            losses.append(loss.detach())
        return torch.stack(losses).mean(0)

    def regulate(self) -> list[str]:
        """Reset every layer of every member that spikes (lines 26-29); returns their names."""
        reset = []
        for i, (online, target, adam) in enumerate(zip(self.online, self.target, self.adam, strict=True)):
            for name, layer in online.named_modules():
                if not isinstance(layer, nn.Linear | nn.Conv2d) or spike_ratio(layer.weight) <= self.options.threshold:
                    continue
                layer.reset_parameters()  # weight and bias, drawn as at the start
                for p in layer.parameters():
                    adam.state.pop(p, None)  # l.1093: optimizer states are cleared, the step count with them
                target.load_state_dict(online.state_dict())  # l.1093: the target network is synchronized
                reset.append(f"member {i} {name}")
        return reset


def derangement(members: int, rng: np.random.Generator) -> list[int]:
    """Draw pi (line 18) without fixed points: line 18 says "permutation", l.353 demands j != i."""
    order = rng.permutation(members)
    while members > 1 and (order == np.arange(members)).any():
        order = rng.permutation(members)
    return [int(i) for i in order]


def best_return(rewards: list[float], gamma: float) -> float:
    """Return B(T) = max_t G_t of a finished trajectory (Eq. l.380)."""
    best, g = -float("inf"), 0.0
    for reward in reversed(rewards):
        g = reward + gamma * g
        best = max(best, g)
    return best


def frame(observation: Any) -> np.ndarray:
    """Return an observation as float32, images channels first."""
    array = np.asarray(observation, np.float32)
    return array.transpose(2, 0, 1) if array.ndim == 3 else array


def make(name: str) -> gymnasium.Env[Any, Any]:
    """Open a Gymnasium environment; MinAtar registers itself when asked."""
    if name.startswith("MinAtar/"):
        from minatar.gym import register_envs

        register_envs()
    return gymnasium.make(name)


def train(options: Options) -> Agent:
    """Algorithm 1."""
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    env = make(options.env)
    observation, _ = env.reset(seed=options.seed)
    state = frame(observation)
    actions = int(env.action_space.n)  # type: ignore[attr-defined]
    agent, replay = Agent(state.shape, actions, options), Replay(options)
    rewards: list[float] = []  # what the learner saw of the running trajectory
    bound, largest, score = -float("inf"), -float("inf"), 0.0
    recent: deque[float] = deque(maxlen=10)
    for t in range(1, options.steps + 1):  # line 1
        epsilon = max(options.epsilon_end, 1 - (1 - options.epsilon_end) * (t - 1) / options.epsilon_steps)
        action = int(rng.integers(actions)) if rng.random() < epsilon else agent.act(state)  # lines 3-7
        observation, raw, terminated, truncated, _ = env.step(action)
        reward, following = float(np.sign(float(raw))) if options.sign else float(raw), frame(observation)
        replay.add(state, action, reward, 0.0 if terminated else options.gamma, following)  # line 8
        rewards.append(reward)
        score, state, largest = score + float(raw), following, max(largest, reward)
        if terminated or truncated:
            bound = max(bound, best_return(rewards, options.gamma))
            recent.append(score)
            observation, _ = env.reset()
            rewards, score, state = [], 0.0, frame(observation)
        if options.ceiling and bound > -float("inf"):
            agent.ceiling = max(bound, largest)  # never below a reward already seen
        if t > options.warmup:
            for _ in range(options.ratio):
                index, weight = replay.sample(rng.random(options.batch))  # line 9
                loss = agent.update(replay.batch(index, weight), derangement(options.members, rng))
                replay.update(index, loss)
            # Not at the last step: what is reset then would never learn again.
            if t % options.check_every == 0 and t < options.steps and (reset := agent.regulate()):
                print(f"step {t:7,}  reset {', '.join(reset)}")
        if t % 1000 == 0:
            mean = f"{np.mean(recent):8.2f}" if recent else "       -"
            print(f"step {t:7,}  epsilon {epsilon:.2f}  return of the last {len(recent)} games {mean}", flush=True)
    return agent


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description="The paper's method, in one file.")
    for field in dataclasses.fields(Options):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    train(Options(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
