"""A replay buffer's experience as trajectories, and a buffer filled with trajectories from elsewhere."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from steadyq.envs.vector import Step
from steadyq.replay.ring import TERMINATED, TRUNCATED, Ring


@dataclass(frozen=True)
class Episode:
    """One trajectory as the learner saw it, in single frames."""

    frame: np.ndarray
    """[steps + 1, *frame_shape]; a ring does not keep the frame after a termination, and then the last is zeros."""
    action: np.ndarray
    """[steps] numbers from 0."""
    reward: np.ndarray
    """[steps] the learner's."""
    terminated: bool
    """Whether its value ends with it; else it was cut, or goes on, and bootstraps from its last frame."""
    age: int = 0
    """Frames of the same trajectory before its first that are not here any more."""
    allowed: np.ndarray | None = None
    """[steps + 1, action] what may be played on each frame, where the environment says so."""

    def __len__(self) -> int:
        return len(self.reward)


def episodes_in(ring: Ring) -> Iterator[Episode]:
    """All trajectories in the ring, lane by lane, oldest first; those that are not finished are cut where they are."""
    for first, head in zip(ring.first.tolist(), ring.head.tolist(), strict=True):
        back = ring.length - 1 if ring.wrapped else head
        slots = first + (head + np.arange(-back, 1)) % ring.length
        age = ring.age[torch.from_numpy(slots)].cpu().numpy()
        begins = np.union1d(np.flatnonzero(age == 0), [0])
        for place in np.split(slots, begins[1:]):
            episode = _episode(ring, torch.from_numpy(place))
            if len(episode):
                yield episode


def _episode(ring: Ring, slots: torch.Tensor) -> Episode:
    """The trajectory in some slots: the last holds its final frame, or its last step where it terminated."""
    terminated = int(ring.end[slots[-1]]) == TERMINATED
    steps = slots if terminated else slots[:-1]
    frame = ring.frame[slots].cpu().numpy()
    allowed = None if ring.allowed is None else ring.allowed[slots].cpu().numpy()
    if terminated:
        frame = np.concatenate([frame, np.zeros_like(frame[:1])])
        allowed = None if allowed is None else np.concatenate([allowed, np.ones_like(allowed[:1])])
    action, reward = ring.action[steps].cpu().numpy(), ring.reward[steps].cpu().numpy()
    assert not (ring.end[steps[:-1]] == TRUNCATED).any()
    return Episode(frame, action, reward, terminated, int(ring.age[slots[0]]), allowed)


def fill(ring: Ring, episodes: Iterable[Episode], told: Callable[[np.ndarray, Step], None]) -> None:
    """Write trajectories into an empty ring of one lane, as if they were played; `told` is told every step."""
    before: Episode | None = None
    for episode, after in itertools.pairwise(itertools.chain(episodes, [None])):
        if episode is None or not len(episode):
            continue
        if before is None:
            ring.begin(episode.frame[:1], None if episode.allowed is None else episode.allowed[:1])
        before = episode
        start = int(ring.open_slots)
        for at in range(len(episode)):
            ended = at == len(episode) - 1
            follows = after if ended and after is not None and len(after) else None
            step = _step(episode, at, follows)
            packed = ring.packed(episode.action[at : at + 1], step.reward, step)
            ring.write(torch.from_numpy(packed).to(ring.device))
            told(step.reward, step)
        if episode.age:  # what stood before its first frames is not known
            blind = min(len(episode), ring.stack - 1)
            slots = (start + np.arange(blind)) % ring.length
            ring.priorities.disable(torch.from_numpy(slots).to(ring.device))


def _step(episode: Episode, at: int, follows: Episode | None) -> Step:
    ended = at == len(episode) - 1
    last, next_one = episode.frame[at + 1 : at + 2], slice(0, 1)
    allowed = None if episode.allowed is None else episode.allowed[at + 1 : at + 2]
    return Step(
        frame=last if follows is None else follows.frame[next_one],
        reward=episode.reward[at : at + 1].astype(np.float32),
        terminated=np.array([ended and episode.terminated]),
        truncated=np.array([ended and not episode.terminated]),
        game_over=np.array([ended]),
        final_frame=last,
        allowed=allowed if follows is None or follows.allowed is None else follows.allowed[next_one],
        final_allowed=allowed,
    )
