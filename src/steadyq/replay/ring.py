"""Single-frame experience ring on the learner's device.

Each lane (parallel environment) owns a contiguous segment that it fills in a circle. A slot holds the newest frame of
the observation the agent acted on, and what followed. Observations are rebuilt by gathering the last `stack` frames,
zeros before the trajectory's first: 0.7 GB for 100,000 Atari transitions where stacked pairs would take 5.6.

A lane's head is the open slot: its frame is known, its action is not yet. After a truncation one extra slot keeps the
final frame, so that the bootstrap sees it; termination needs none because its discount is zero.
"""

import numpy as np
import torch
from torch import Tensor

from steadyq.device.capture import to_device
from steadyq.device.kernels import replay
from steadyq.device.kernels.triton import available
from steadyq.envs.vector import EnvSpec, Step
from steadyq.replay.priority import Priorities, Sampling
from steadyq.value.shapes import Batch, Draw, Future

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2


class Ring:
    """Stores steps of all lanes; samples n-step transitions, with `future` steps after them where that is not 0.

    With `overlap` they bootstrap from the state before the last step, and do not see that step end the trajectory.
    Several `runs` may share one: the lanes of the first, then those of the next, each with priorities of its own, and
    with a `Part` for what concerns it alone.
    """

    def __init__(
        self,
        spec: EnvSpec,
        capacity: int,
        *,
        steps: int = 1,
        future: int = 0,
        overlap: bool = False,
        sampling: Sampling,
        device: torch.device | str = "cpu",
        runs: int = 1,
    ) -> None:
        self.runs, self.lanes = runs, runs * spec.lanes
        self.stack, self.future, self.overlap = spec.stack, future, overlap
        self.n = steps = max(steps, future)  # of the window that must be complete before its first step is sampled
        # On top of the capacity: the open slot, those it takes from the oldest stacks, and open n-step windows.
        self.length = -(-capacity // spec.lanes) + spec.stack + steps - 1
        slots = self.length * self.lanes
        dtype = torch.uint8 if spec.frame_dtype == "uint8" else torch.float32
        self.frame_dtype = np.dtype(spec.frame_dtype)
        self.frame = torch.zeros(slots, *spec.frame_shape, dtype=dtype, device=device)
        self.action = torch.zeros(slots, dtype=torch.int64, device=device)
        self.reward = torch.zeros(slots, dtype=torch.float32, device=device)
        self.end = torch.zeros(slots, dtype=torch.uint8, device=device)
        self.age = torch.zeros(slots, dtype=torch.int64, device=device)  # frames since the trajectory's first
        # What may be played on each frame, where the environment says so.
        self.allowed = torch.ones(slots, spec.num_actions, dtype=torch.bool, device=device) if spec.masked else None
        self.priorities = Priorities(slots, sampling, device, runs)
        self.first = np.arange(self.lanes) * self.length  # of each lane's segment
        self.head = np.zeros(self.lanes, np.int64)  # open slot of each lane, within its segment
        self.waiting = np.zeros(self.lanes, np.int64)  # steps whose n-step window is still open
        self.head_age = np.zeros(self.lanes, np.int64)
        self.written = np.zeros(self.lanes, np.int64)  # sampleable transitions ever written
        self.round = np.zeros(self.lanes, np.bool_)  # whether a lane has gone round once
        self.device = torch.device(device)
        self.open_slots = torch.zeros(self.lanes, dtype=torch.int64, device=device)  # the lanes' open slots
        self._counting = torch.tensor(range(steps + 1), dtype=torch.float32, device=device)

    def begin(self, frame: np.ndarray, allowed: np.ndarray | None = None) -> None:
        """Open the first slot of every lane with the first frames, and with what may be played on them."""
        Part(self).begin(frame, allowed)

    def packed(self, action: np.ndarray, reward: np.ndarray, step: Step) -> np.ndarray:
        """The host's half of a step: completes every lane's open slot with what the action led to, opens the next.

        Returns what `write`, the device's half, must be given next, as bytes to travel at once. Final frames of
        truncated lanes are rare and of no fixed number: they are stored here.
        """
        end = np.where(step.terminated, TERMINATED, TRUNCATED * step.truncated)
        here, (behind, ready) = self._slots(), self._ready(end)
        self.head_age += 1
        cut = np.flatnonzero(end == TRUNCATED)
        if len(cut):
            self.priorities.disable(self._to_device(self._advance(cut)))
            final = [self._slots()[cut], step.final_frame[cut], self.head_age[cut]]
            final += [] if step.final_allowed is None else [step.final_allowed[cut]]
            self._open(*map(self._to_device, final))
        self.head_age[end != RUNNING] = 0
        gone = self._advance(slice(None))
        opened, bits = self._slots(), reward.astype(np.float64).view(np.int64)
        behind = np.where(ready, behind, opened[:, None])  # a slot to name where none is ready
        numbers = (here, action, bits, end, behind.ravel(), ready.ravel(), gone, opened, self.head_age)
        parts = [np.concatenate(numbers, dtype=np.int64), step.frame.astype(self.frame_dtype, copy=False).ravel()]
        if step.allowed is not None:
            parts.append(step.allowed.ravel())
        return np.concatenate([part.view(np.uint8) for part in parts])

    def write(self, packed: Tensor) -> Tensor:
        """The device's half of a step, of fixed shape and so fit to be captured; returns the slots now open."""
        lanes = self.lanes
        sizes = [lanes * count for count in (1, 1, 1, 1, self.n, self.n, self.stack, 1, 1)]
        masks = 0 if self.allowed is None else lanes * self.allowed.shape[1]
        first, after = 8 * sum(sizes), len(packed) - masks
        numbers, frame = packed[:first].view(torch.int64), packed[first:after].view(self.frame.dtype)
        allowed = None if self.allowed is None else packed[after:].view(lanes, -1) > 0
        here, action, reward, end, behind, ready, gone, opened, age = torch.split(numbers, sizes)
        self.action[here] = action
        self.reward[here] = reward.view(torch.float64).float()
        self.end[here] = end.to(torch.uint8)
        self.priorities.enable(behind, ready > 0)
        self.priorities.disable(gone)
        self._open(opened, frame.view(lanes, *self.frame.shape[1:]), age, allowed)
        return self.open_slots.copy_(opened)

    def sample(self, draw: Draw) -> Batch:
        """Draw one transition per entry of `draw.uniform[batch]`, with the draw's n and discount."""
        index, weight, stamp = self.priorities.sample(draw.uniform)
        return self.gather(index, weight, stamp, draw)

    def uniformly(self, count: int, rng: np.random.Generator, draw: Draw) -> Batch:
        """Draw transitions uniformly, whatever the priorities."""
        return Part(self).uniformly(count, rng, draw)

    def gather(self, index: Tensor, weight: Tensor, stamp: Tensor, draw: Draw) -> Batch:
        """Rebuild the n-step transitions that begin at the given slots."""
        own = self.reward[index]
        reward, discount, after = self._window(index, own, draw)
        here, there = self.observation(torch.cat((index, after))).chunk(2)  # one gather, not two
        return Batch(
            observation=here,
            action=self.action[index],
            reward=reward,
            discount=discount,
            next_observation=there,
            weight=weight,
            index=index,
            stamp=stamp,
            rewarded=own > 0,
            allowed=None if self.allowed is None else self.allowed[index],
            next_allowed=None if self.allowed is None else self.allowed[after],
            future=self._future(index) if self.future else None,
        )

    def _future(self, index: Tensor) -> Future:
        """What the steps from the given slots on did and led to; the frame after a termination is not kept."""
        slots = self._shift(index, torch.arange(self.future + 1, device=self.device)[:, None])  # [step + 1, batch]
        end = self.end[slots[:-1]]
        over = (end != RUNNING).cumsum(0) - (end != RUNNING).long() > 0  # before the step
        seen = self.observation(slots[1:].flatten())  # [step * batch, ...]
        return Future(seen.view(*end.shape, *seen.shape[1:]), self.action[slots[:-1]], ~over & (end != TERMINATED))

    def _window(self, index: Tensor, own: Tensor, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
        """Discounted reward of the n steps from the given slots, what multiplies the bootstrap, and the slot of s'.

        Windows are gathered up to the largest n there will be; `draw.horizon` says how much of them counts.
        """
        if available(self.end):
            return replay.window(
                index, self.end, self.reward, draw.gamma, draw.horizon,
                length=self.length, n=self.n, overlap=self.overlap, terminated=TERMINATED,
            )  # fmt: skip
        if self.n == 1:
            return own, draw.gamma * (self.end[index] != TERMINATED), self._after(index)
        powers = draw.gamma**self._counting
        window = self._shift(index[:, None], torch.arange(self.n, device=self.device))  # [batch, n]
        ended = self.end[window] != RUNNING
        # A step counts while no earlier step of the window ended the trajectory.
        counts = (ended.cumsum(1) - ended.long() == 0) & (self._counting[1:] <= draw.horizon)
        taken = counts.sum(1)  # 1..n
        reward = (self.reward[window] * powers[:-1] * counts).sum(1)
        last = window.gather(1, taken[:, None] - 1).squeeze(1)
        over = self.end[last] == TERMINATED
        if self.overlap:
            over = over & (taken < draw.horizon)
        return reward, powers[taken] * ~over, self._after(last)

    def _after(self, last: Tensor) -> Tensor:
        """Where the state lies that is bootstrapped from."""
        return last if self.overlap else self._shift(last, 1)

    def observation(self, index: Tensor) -> Tensor:
        """Rebuild the stacked observations at the given slots, [batch, stack * channel, ...]."""
        if self.stack == 1:
            return self.frame[index]
        if self.frame.dim() == 4 and available(self.frame):
            return replay.stacked(self.frame, self.age, index, stack=self.stack, length=self.length)
        back = torch.arange(self.stack - 1, -1, -1, device=self.device)
        frames = self.frame[self._shift(index[:, None], -back)]  # [batch, stack, channel, ...]
        known = back <= self.age[index][:, None]
        frames = frames * known.view(*known.shape, *[1] * (frames.dim() - 2)).to(frames.dtype)
        return frames.flatten(1, 2)

    def _ready(self, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The last n slots of every lane, [lane, n], and whose n-step window is complete now: sampling may see them."""
        back, ended = np.arange(self.n), end != RUNNING
        self.waiting += 1
        ready = (back < self.waiting[:, None]) & (ended[:, None] | (back == self.n - 1))
        self.waiting[:] = np.where(ended, 0, np.minimum(self.waiting, self.n - 1))
        self.written += ready.sum(1)
        return self.first[:, None] + (self.head[:, None] - back) % self.length, ready

    def _advance(self, lanes: np.ndarray | slice) -> np.ndarray:
        """Move the heads on; returns the slots there, and those whose stack reached back into them: they are gone."""
        self.head[lanes] = head = (self.head[lanes] + 1) % self.length
        self.round[lanes] |= head == 0
        gone: np.ndarray = self.first[lanes][:, None] + (head[:, None] + np.arange(self.stack)) % self.length
        return gone.ravel()

    def _open(self, slots: Tensor, frame: Tensor, age: Tensor, allowed: Tensor | None = None) -> None:
        self.frame[slots] = frame
        self.age[slots] = age
        if self.allowed is not None and allowed is not None:
            self.allowed[slots] = allowed
        self.end.index_fill_(0, slots, RUNNING)

    def _slots(self) -> np.ndarray:
        """The open slot of every lane."""
        slots: np.ndarray = self.first + self.head
        return slots

    def _shift(self, index: Tensor, by: Tensor | int) -> Tensor:
        """Move indices within their lane's circle."""
        lane = index // self.length * self.length
        return lane + (index - lane + by) % self.length

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.device)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; slots never written are left out."""
        return Part(self).state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`, in place."""
        Part(self).restore(state)

    @property
    def transitions(self) -> int:
        """Sampleable transitions ever written."""
        return int(self.written.sum())

    @property
    def wrapped(self) -> bool:
        """Whether a lane has gone round once."""
        return bool(self.round.any())

    @property
    def nbytes(self) -> int:
        """The memory it takes; on the device `meta` it takes none, and says what it would."""
        return sum(tensor.nbytes for _, tensor in self.slotted())

    def slotted(self) -> list[tuple[str, Tensor]]:
        """All that is kept of every slot, by name."""
        p = self.priorities
        masks = [] if self.allowed is None else [("allowed", self.allowed)]
        return [
            *masks,
            ("frame", self.frame),
            ("action", self.action),
            ("reward", self.reward),
            ("end", self.end),
            ("age", self.age),
            ("mass", p.mass),
            ("stamp", p.stamp),
        ]


class Part:
    """What of a ring is one run's own: its beginning, its state, what it looks at by itself. Alone, it has all."""

    def __init__(self, ring: Ring, run: int = 0) -> None:
        lanes = ring.lanes // ring.runs
        self.ring, self.run, self.lanes = ring, run, slice(run * lanes, (run + 1) * lanes)
        self.slots = slice(run * lanes * ring.length, (run + 1) * lanes * ring.length)
        self.open_slots = ring.open_slots[self.lanes]
        self.frame, self.allowed, self.observation = ring.frame, ring.allowed, ring.observation

    @property
    def nbytes(self) -> int:
        """Its share of the ring's memory."""
        return self.ring.nbytes // self.ring.runs

    def begin(self, frame: np.ndarray, allowed: np.ndarray | None = None) -> None:
        """Open the first slot of every lane with the first frames, and with what may be played on them."""
        ring = self.ring
        ring.head_age[self.lanes] = 0
        opened = [self._slots(), frame, ring.head_age[self.lanes], *([] if allowed is None else [allowed])]
        ring._open(*map(ring._to_device, opened))
        self.open_slots.copy_(ring._to_device(self._slots()))

    def uniformly(self, count: int, rng: np.random.Generator, draw: Draw) -> Batch:
        """Draw transitions uniformly, whatever the priorities."""
        ring = self.ring
        there = self.slots.start + (ring.priorities.mass[self.slots] > 0).nonzero().squeeze(1)
        index = there[torch.from_numpy(rng.integers(len(there), size=count)).to(there.device)]
        return ring.gather(index, torch.ones(count, device=there.device), ring.priorities.stamp[index], draw)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; slots never written are left out."""
        ring, lanes = self.ring, self.lanes
        wrapped = bool(ring.round[lanes].any())
        used = slice(0, ring.length if wrapped else int(ring.head[lanes].max()) + ring.stack)
        return {name: tensor[:, used] for name, tensor in self._slotted()} | {
            "largest": ring.priorities.largest[self.run],
            "head": torch.from_numpy(ring.head[lanes]),
            "waiting": torch.from_numpy(ring.waiting[lanes]),
            "head_age": torch.from_numpy(ring.head_age[lanes]),
            "counters": torch.tensor([int(ring.written[lanes].sum()), int(wrapped)]),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`, in place."""
        ring, lanes = self.ring, self.lanes
        ring.priorities.mass[self.slots].zero_()
        for name, tensor in self._slotted():
            tensor[:, : state[name].shape[1]].copy_(state[name])
        ring.priorities.largest[self.run].copy_(state["largest"])
        for name, array in (("head", ring.head), ("waiting", ring.waiting), ("head_age", ring.head_age)):
            array[lanes] = state[name].numpy()
        transitions, wrapped = state["counters"].tolist()
        ring.written[lanes], ring.round[lanes] = 0, bool(wrapped)
        ring.written[lanes.start] = transitions
        self.open_slots.copy_(ring._to_device(self._slots()))

    def _slots(self) -> np.ndarray:
        return self.ring._slots()[self.lanes]

    def _slotted(self) -> list[tuple[str, Tensor]]:
        """Of every slot, `[lane, slot, ...]`."""
        ring = self.ring
        return [
            (name, tensor.view(ring.lanes, ring.length, *tensor.shape[1:])[self.lanes])
            for name, tensor in ring.slotted()
        ]
