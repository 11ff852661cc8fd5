"""The ring against a brute-force history in plain Python: every sampleable transition, field by field."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from steadyq.envs.vector import EnvSpec, Step
from steadyq.replay.priority import Sampling
from steadyq.replay.ring import Part, Ring
from steadyq.run.explore import FrameStack
from steadyq.value.shapes import Draw, DrawLayout

GAMMA = 0.9


def drawn(horizon: int, gamma: float = GAMMA, uniform: np.ndarray | None = None) -> Draw:
    given = {} if uniform is None else {"uniform": uniform}
    return DrawLayout(1, 16).plain(horizon=horizon, gamma=gamma, **given)


def spec_of(lanes: int, stack: int, shape: tuple[int, ...] = (1, 2, 3)) -> EnvSpec:
    image = len(shape) == 3
    return EnvSpec("Fake", shape, "uint8" if image else "float32", 1.0, stack, 3, lanes, ("a", "b", "c"), 1)


def add(ring: Ring, action: np.ndarray, reward: np.ndarray, step: Step) -> None:
    """Store one step of every lane: the host's half, then the device's."""
    ring.write(torch.from_numpy(ring.packed(action, reward, step)))


@dataclass
class Past:
    """One step of one lane as it happened."""

    number: int  # also stored as the action, so that a sample says which step it is
    observation: np.ndarray
    reward: float
    next_observation: np.ndarray  # after a truncation the final frame's stack, not the next trajectory's first
    ended: bool
    terminated: bool


@dataclass
class World:
    """Random frames, rewards and ends on every lane, fed to a ring and remembered in lists."""

    spec: EnvSpec
    capacity: int
    n: int = 1
    future: int = 0
    seed: int = 0
    ends: float = 0.2  # share of steps that end a trajectory: termination, life loss and truncation alike
    truncations: bool = True
    lanes: list[list[Past]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.ring = self.fresh()
        self.lanes = [[] for _ in range(self.spec.lanes)]
        self.number = itertools.count()
        first = self.frames()
        self.shown = [[frame] for frame in first]  # the frames of each lane's running trajectory
        self.ring.begin(first)
        self.stack = FrameStack(self.spec)
        self.stack.push(first)

    def fresh(self) -> Ring:
        return Ring(self.spec, self.capacity, steps=self.n, future=self.future, sampling=Sampling())

    def frames(self) -> np.ndarray:
        shape = (self.spec.lanes, *self.spec.frame_shape)
        if self.spec.frame_dtype == "uint8":
            return self.rng.integers(1, 256, shape, dtype=np.uint8)
        return self.rng.normal(size=shape).astype(np.float32)

    def stacked(self, frames: list[np.ndarray]) -> np.ndarray:
        blank = [np.zeros_like(frames[0])] * self.spec.stack
        return np.concatenate((blank + frames)[-self.spec.stack :])

    def play(self) -> None:
        """One step of every lane."""
        lanes = self.spec.lanes
        action = np.array([next(self.number) for _ in range(lanes)])
        reward = self.rng.normal(size=lanes).astype(np.float32)
        ended = self.rng.random(lanes) < self.ends
        truncated = ended & (self.rng.random(lanes) < 0.5) & self.truncations
        terminated = ended & ~truncated
        final, following = self.frames(), self.frames()
        frame = np.where(ended.reshape(-1, *[1] * len(self.spec.frame_shape)), following, final)
        for lane in range(lanes):
            before = self.stacked(self.shown[lane])
            self.shown[lane].append(final[lane])
            past = Past(
                int(action[lane]), before, float(reward[lane]), self.stacked(self.shown[lane]), bool(ended[lane]),
                bool(terminated[lane]),
            )  # fmt: skip
            self.lanes[lane].append(past)
            if ended[lane]:
                self.shown[lane] = [following[lane]]
        life_lost = terminated & (self.rng.random(lanes) < 0.5)  # the game goes on: for the ring, an end like any other
        add(self.ring, action, reward, Step(frame, reward, terminated, truncated, ended & ~life_lost, final))
        self.stack.push(frame, ended)
        seen = self.ring.observation(self.ring.open_slots)
        for lane in range(lanes):  # what the agent sees, in training and in evaluation, is what the lists say
            for own in (seen, self.stack.observation):
                np.testing.assert_array_equal(own[lane].numpy(), self.stacked(self.shown[lane]))

    def check_horizon(self, horizon: int, gamma: float) -> None:
        """Compare every sampleable transition with the lists, at an n below the largest."""
        index = self.ring.priorities.mass.nonzero().squeeze(1)
        stamp = self.ring.priorities.stamp[index]
        batch = self.ring.gather(index, torch.ones(len(index)), stamp, drawn(horizon, gamma))
        at = {past.number: (lane, place) for lane, pasts in enumerate(self.lanes) for place, past in enumerate(pasts)}
        for row, number in enumerate(batch.action.tolist()):
            lane, place = at[number]
            reward, discount = 0.0, 1.0
            for past in self.lanes[lane][place : place + horizon]:
                reward += discount * past.reward
                discount *= gamma
                if past.ended:
                    break
            assert float(batch.reward[row]) == pytest.approx(reward, abs=1e-5)
            assert float(batch.discount[row]) == pytest.approx(0.0 if past.terminated else discount)
            if not past.terminated:
                np.testing.assert_array_equal(batch.next_observation[row].numpy(), past.next_observation)
            assert bool(batch.rewarded[row]) == (self.lanes[lane][place].reward > 0)

    def check_future(self) -> int:
        """Compare the steps after every sampleable transition with the lists; return how many observations were known.

        What follows a truncation's final frame, or a termination, is another trajectory's.
        """
        index = self.ring.priorities.mass.nonzero().squeeze(1)
        stamp = self.ring.priorities.stamp[index]
        batch = self.ring.gather(index, torch.ones(len(index)), stamp, drawn(1))
        at = {past.number: (lane, place) for lane, pasts in enumerate(self.lanes) for place, past in enumerate(pasts)}
        assert batch.future is not None
        assert len(batch.future.action) == self.future
        for row, number in enumerate(batch.action.tolist()):
            lane, place = at[number]
            over = False
            for k in range(self.future):
                past = None if over else self.lanes[lane][place + k]
                assert bool(batch.future.known[k, row]) == (past is not None and not past.terminated)
                if past is not None:
                    assert int(batch.future.action[k, row]) == past.number
                    over = past.ended
                    if not past.terminated:
                        np.testing.assert_array_equal(batch.future.observation[k, row].numpy(), past.next_observation)
        return int(batch.future.known.sum())

    def complete(self, lane: int, place: int) -> bool:
        longest = max(self.n, self.future)
        window = self.lanes[lane][place : place + longest]
        return len(window) == longest or any(past.ended for past in window)

    def check(self) -> list[int]:
        """Compare every sampleable transition with the lists; return how many each lane keeps."""
        index = self.ring.priorities.mass.nonzero().squeeze(1)
        batch = self.ring.gather(index, torch.ones(len(index)), self.ring.priorities.stamp[index], drawn(self.n))
        at = {past.number: (lane, place) for lane, pasts in enumerate(self.lanes) for place, past in enumerate(pasts)}
        kept: list[list[int]] = [[] for _ in self.lanes]
        for row, number in enumerate(batch.action.tolist()):
            lane, place = at[number]
            kept[lane].append(place)
            window = self.lanes[lane][place : place + self.n]
            reward, discount = 0.0, 1.0
            for past in window:
                reward += discount * past.reward
                discount *= GAMMA
                if past.ended:
                    break
            np.testing.assert_array_equal(batch.observation[row].numpy(), window[0].observation)
            assert float(batch.reward[row]) == pytest.approx(reward, abs=1e-5)
            if past.terminated:
                assert float(batch.discount[row]) == 0.0
            else:
                assert float(batch.discount[row]) == pytest.approx(discount)
                np.testing.assert_array_equal(batch.next_observation[row].numpy(), past.next_observation)
        for lane, places in enumerate(kept):
            complete = [place for place in range(len(self.lanes[lane])) if self.complete(lane, place)]
            # Exactly the newest of those whose window is complete, each once.
            assert sorted(places) == (complete[-len(places) :] if places else [])
        return [len(places) for places in kept]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
def test_every_transition_is_rebuilt_as_it_happened_over_several_wrap_arounds(lanes: int, n: int, stack: int) -> None:
    world = World(spec_of(lanes, stack), capacity=17 * lanes, n=n, seed=lanes + 10 * n + 100 * stack)
    for _ in range(120):
        world.play()
        world.check()
    assert world.ring.wrapped
    # Trajectories shorter and longer than window and stack, cut and terminated, have all been there.
    pasts = [past for lane in world.lanes for past in lane]
    assert any(past.ended and past.terminated for past in pasts)
    assert any(past.ended and not past.terminated for past in pasts)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(("n", "future"), [(1, 1), (1, 4), (3, 2), (2, 5)])
@pytest.mark.parametrize("stack", [1, 4])
def test_the_steps_after_a_transition_are_handed_out_as_they_happened(
    lanes: int, n: int, future: int, stack: int
) -> None:
    """A transition waits until its future is complete, and n-step returns stay what they are without one."""
    world = World(spec_of(lanes, stack), capacity=17 * lanes, n=n, future=future, seed=lanes + 10 * n + 100 * stack)
    known = 0
    for _ in range(80):
        world.play()
        world.check()
        known += world.check_future()
    assert world.ring.wrapped
    assert known


def test_without_a_wish_for_them_no_later_steps_are_gathered() -> None:
    world = World(spec_of(1, 2), capacity=17)
    for _ in range(5):
        world.play()
    index = world.ring.priorities.mass.nonzero().squeeze(1)
    assert world.ring.gather(index, torch.ones(len(index)), index, drawn(1)).future is None


def test_flat_observations_work_as_images_do() -> None:
    world = World(spec_of(2, 3, shape=(4,)), capacity=30, n=2, seed=5)
    for _ in range(60):
        world.play()
        world.check()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
def test_as_many_transitions_are_kept_as_the_capacity_says(lanes: int, n: int, stack: int) -> None:
    world = World(spec_of(lanes, stack), capacity=10 * lanes, n=n, ends=0.1, truncations=False, seed=3)
    for step in range(60):
        world.play()
        kept = world.check()
        assert all(count <= 10 + n - 1 for count in kept)
        if step > 20:
            assert all(count >= 10 for count in kept)
    assert world.ring.transitions == sum(
        world.complete(lane, place) for lane in range(lanes) for place in range(len(world.lanes[lane]))
    )


def test_a_truncation_bootstraps_from_its_final_frame_and_a_termination_not_at_all() -> None:
    ring = Ring(spec_of(1, 2, shape=(1,)), 10, steps=1, sampling=Sampling())
    one = np.ones(1, bool)
    ring.begin(np.array([[1.0]], np.float32))
    first, final, next_life, last = (np.array([[value]], np.float32) for value in (5.0, 2.0, 8.0, 6.0))
    add(ring, np.array([0]), np.array([1.0]), Step(first, np.ones(1), ~one, one, one, final))
    add(ring, np.array([1]), np.array([1.0]), Step(next_life, np.ones(1), one, ~one, ~one, last))
    index = ring.priorities.mass.nonzero().squeeze(1)
    batch = ring.gather(index, torch.ones(2), torch.zeros(2), drawn(1, 0.5))
    assert batch.observation.tolist() == [[0.0, 1.0], [0.0, 5.0]]  # zeros before a trajectory's first frame
    assert batch.discount.tolist() == [0.5, 0.0]
    assert batch.next_observation[0].tolist() == [1.0, 2.0]  # the final frame, not the 5 that follows
    now = ring.observation(torch.tensor([int(ring.head[0])]))
    assert now.tolist() == [[0.0, 8.0]]  # a lost life restarts the stack though the game goes on


def test_n_step_rewards_by_hand() -> None:
    ring = Ring(spec_of(1, 1, shape=(1,)), 20, steps=3, sampling=Sampling())
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    ring.begin(np.zeros((1, 1), np.float32))
    sampleable = []
    for number, terminated in enumerate([no, no, no, no, yes, no]):
        reward = 2.0**number
        frame = np.full((1, 1), number + 1, np.float32)
        add(ring, np.array([number]), np.array([reward]), Step(frame, np.ones(1), terminated, no, terminated, frame))
        sampleable.append(int((ring.priorities.mass > 0).sum()))
    assert sampleable == [0, 0, 1, 2, 5, 5]  # a window closes after three steps, or with the trajectory
    index = ring.priorities.mass.nonzero().squeeze(1)
    batch = ring.gather(index, torch.ones(5), torch.zeros(5), drawn(3, 0.5))
    assert batch.reward.tolist() == [1 + 1 + 1, 2 + 2 + 2, 4 + 4 + 4, 8 + 8, 16]
    assert batch.discount.tolist() == [0.125, 0.125, 0.0, 0.0, 0.0]
    assert batch.next_observation[:2].flatten().tolist() == [3.0, 4.0]


def test_an_overlap_bootstraps_from_the_state_before_the_last_step() -> None:
    ring = Ring(spec_of(1, 1, shape=(1,)), 20, steps=3, overlap=True, sampling=Sampling())
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    ring.begin(np.zeros((1, 1), np.float32))
    for number, terminated in enumerate([no, no, no, yes, no, no]):
        frame, reward = np.full((1, 1), number + 1, np.float32), np.array([2.0**number])
        add(ring, np.array([number]), reward, Step(frame, np.ones(1), terminated, no, terminated, frame))
    index = ring.priorities.mass.nonzero().squeeze(1)
    for horizon, summed, discount, seen in (
        (3, [3, 6, 8, 8], [0.125, 0.125, 0.0, 0.0], [2, 3]),
        (2, [2, 4, 8, 8], [0.25, 0.25, 0.25, 0.0], [1, 2, 3]),
    ):
        batch = ring.gather(index, torch.ones(4), torch.zeros(4), drawn(horizon, 0.5))
        assert batch.reward.tolist() == summed
        assert batch.discount.tolist() == discount  # the n-th step's own end is not seen
        assert batch.next_observation.flatten().tolist()[: len(seen)] == seen


@pytest.mark.parametrize("pause", [5, 33, 77])
def test_it_continues_from_its_state(pause: int) -> None:
    whole, parts = (World(spec_of(3, 4), capacity=60, n=3, seed=1) for _ in range(2))
    for step in range(90):
        if step == pause:
            saved = {name: tensor.clone() for name, tensor in parts.ring.state().items()}
            parts.ring = parts.fresh()
            parts.ring.restore(saved)
        whole.play()
        parts.play()
    assert parts.check() == whole.check()
    ours, theirs = whole.ring.state(), parts.ring.state()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_samples_carry_weights_stamps_and_indices_that_update_accepts() -> None:
    world = World(spec_of(2, 4), capacity=40, seed=2)
    for _ in range(50):
        world.play()
    batch = world.ring.sample(drawn(1, uniform=np.random.default_rng(0).random(16)))
    assert batch.observation.shape == (16, 4, 2, 3)
    assert batch.observation.dtype == torch.uint8
    mass = world.ring.priorities.mass.clone()
    world.play()  # overwrites two lanes' oldest: what was sampled there is stale now
    gone = (mass > 0) & (world.ring.priorities.mass == 0)
    world.ring.priorities.update(batch.index, batch.stamp, torch.full((16,), 5.0))
    assert gone.any()
    assert (world.ring.priorities.mass[gone] == 0).all()


@pytest.mark.parametrize("largest", [3, 5])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_smaller_n_is_read_from_the_same_ring_at_any_time(lanes: int, largest: int) -> None:
    """Over wrap-arounds, truncations, life losses and seams, with every n and a discount of its own."""
    world = World(spec_of(lanes, 2), capacity=13 * lanes, n=largest, seed=lanes + largest)
    compared = 0
    for step in range(80):
        world.play()
        for horizon in range(1, largest + 1):
            world.check_horizon(horizon, gamma=0.5 + 0.07 * horizon)
            compared += 1
        assert step < 40 or world.ring.wrapped
    assert compared == 80 * largest


def test_the_largest_n_is_the_default_reading_and_a_larger_one_is_cut_to_it() -> None:
    world = World(spec_of(1, 1), capacity=20, n=3, seed=4)
    for _ in range(30):
        world.play()
    index = world.ring.priorities.mass.nonzero().squeeze(1)
    stamp, ones = world.ring.priorities.stamp[index], torch.ones(len(index))
    three, nine, one = (world.ring.gather(index, ones, stamp, drawn(n)) for n in (3, 9, 1))
    assert torch.equal(three.reward, nine.reward)
    assert torch.equal(three.discount, nine.discount)
    assert not torch.equal(three.reward, one.reward)
    assert torch.equal(one.reward, world.ring.reward[index])


def test_an_action_is_rewarded_by_its_own_reward_alone() -> None:
    ring = Ring(spec_of(1, 1, shape=(1,)), 20, steps=3, sampling=Sampling())
    no, frame = np.zeros(1, bool), np.zeros((1, 1), np.float32)
    ring.begin(frame)
    for number, reward in enumerate([0.0, 5.0, -9.0, 1.0, 0.0]):
        add(ring, np.array([number]), np.array([reward]), Step(frame, np.array([reward]), no, no, no, frame))
    index = ring.priorities.mass.nonzero().squeeze(1)
    batch = ring.gather(index, torch.ones(3), torch.zeros(3), drawn(3, 1.0))
    assert batch.reward.tolist() == [-4.0, -3.0, -8.0]
    assert batch.rewarded.tolist() == [False, True, False]


def test_uniform_draws_ignore_priorities_and_carry_no_weight() -> None:
    world = World(spec_of(1, 1), capacity=40, ends=0.0, seed=2)
    for _ in range(40):
        world.play()
    kept = world.ring.priorities.mass.nonzero().squeeze(1)
    world.ring.priorities.update(kept[:1], world.ring.priorities.stamp[kept[:1]], torch.tensor([1e6]))
    batch = world.ring.uniformly(20_000, np.random.default_rng(0), drawn(1))
    share = torch.bincount(batch.index, minlength=len(world.ring.priorities.mass))[kept] / 20_000
    assert share.sum() == 1.0
    torch.testing.assert_close(share, torch.full((len(kept),), 1 / len(kept)), rtol=0, atol=0.01)
    assert batch.weight.eq(1).all()
    few = [world.ring.uniformly(9, np.random.default_rng(seed), drawn(1)).index.tolist() for seed in (0, 1, 1)]
    assert few[0] != few[1] == few[2]
    assert max(few[1]) > kept[len(kept) // 2]  # new ones among them
    assert min(few[1]) < kept[len(kept) // 2]


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_runs_that_share_a_ring_have_what_each_would_have_alone(lanes: int, alpha: float) -> None:
    """Written, sampled, set priorities, saved and put back: slots are the run's own, shifted to where it begins."""
    spec, runs, batch, rng = spec_of(lanes, 2), 3, 8, np.random.default_rng(lanes)
    sampling = Sampling(alpha=alpha)
    made = {"capacity": 13 * lanes, "steps": 3, "sampling": sampling}
    alone = [Ring(spec, **made) for _ in range(runs)]  # type: ignore[arg-type]
    shared = Ring(spec, **made, runs=runs)  # type: ignore[arg-type]
    parts = [Part(shared, run) for run in range(runs)]
    layout = DrawLayout(1, batch)

    def frames() -> np.ndarray:
        return rng.integers(1, 256, (runs, lanes, *spec.frame_shape), dtype=np.uint8)

    for own, part, frame in zip(alone, parts, frames(), strict=True):
        own.begin(frame)
        part.begin(frame)
    for number in range(60):
        frame, final = frames(), frames()
        action = rng.integers(3, size=(runs, lanes))
        reward = rng.normal(size=(runs, lanes)).astype(np.float32)
        ended = rng.random((runs, lanes)) < 0.2
        truncated = ended & (rng.random((runs, lanes)) < 0.5)
        final = np.where(ended[..., None, None, None], final, frame)
        columns = (frame, reward, ended & ~truncated, truncated, ended, final)
        for run, own in enumerate(alone):
            add(own, action[run], reward[run], Step(*(column[run] for column in columns)))
        flat = Step(*(column.reshape(runs * lanes, *column.shape[2:]) for column in columns))
        add(shared, action.ravel(), reward.ravel(), flat)
        if number < 8:
            continue
        packed = [
            layout.pack(**layout.nothing | {"uniform": rng.random(batch), "horizon": 2, "gamma": GAMMA})
            for _ in range(runs)
        ]
        found = shared.sample(layout.together(torch.from_numpy(np.array(packed))))
        priority = torch.from_numpy(rng.random(runs * batch))
        shared.priorities.update(found.index, found.stamp, priority)
        for run, own in enumerate(alone):
            wanted, rows = (
                own.sample(layout.unpack(torch.from_numpy(packed[run]))),
                slice(run * batch, (run + 1) * batch),
            )
            for name in ("observation", "action", "reward", "discount", "next_observation", "weight", "stamp"):
                assert torch.equal(getattr(found, name)[rows], getattr(wanted, name)), name
            assert torch.equal(found.index[rows] - run * lanes * own.length, wanted.index)
            own.priorities.update(wanted.index, wanted.stamp, priority[rows])
            uniform = [each.uniformly(4, np.random.default_rng(number), layout.plain()) for each in (own, parts[run])]
            assert torch.equal(uniform[0].observation, uniform[1].observation)
    again = Ring(spec, **made, runs=runs)  # type: ignore[arg-type]
    for run, own in enumerate(alone):
        state = parts[run].state()
        for name, tensor in own.state().items():
            assert torch.equal(state[name], tensor), name
        Part(again, run).restore({name: tensor.clone() for name, tensor in state.items()})
    assert shared.wrapped
    assert again.wrapped
    assert again.transitions == shared.transitions
    for name, tensor in again.slotted():
        assert torch.equal(tensor, dict(shared.slotted())[name]), name
    assert torch.equal(again.open_slots, shared.open_slots)
