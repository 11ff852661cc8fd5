"""Proportional sampling: frequencies, weights, and the checks at its boundary."""

import pytest
import torch

from steadyq.replay.priority import Priorities, Sampling


def filled(p: list[float], alpha: float = 0.6, beta: float = 0.4) -> Priorities:
    """Slots with the given priorities."""
    priorities = Priorities(len(p), Sampling(alpha, beta, epsilon=0.0))
    slots = torch.arange(len(p))
    priorities.enable(slots, torch.tensor(True))
    priorities.update(slots, priorities.stamp.clone(), torch.tensor(p))
    return priorities


def frequencies(priorities: Priorities, draws: int = 2000, batch: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(len(priorities.mass))
    for _ in range(draws):
        index, _, _ = priorities.sample(torch.rand(batch, generator=generator, dtype=torch.float64))
        counts += torch.bincount(index, minlength=len(counts))
    return counts / counts.sum()


def test_sampling_frequency_matches_p_to_the_alpha() -> None:
    p = [0.1, 1.0, 4.0, 0.5, 9.0]
    expected = torch.tensor(p) ** 0.6
    torch.testing.assert_close(frequencies(filled(p)), expected / expected.sum(), rtol=0, atol=0.005)


def test_alpha_zero_samples_uniformly_with_weights_one_and_ignores_priorities() -> None:
    priorities = filled([0.1, 1.0, 4.0, 9.0], alpha=0.0)
    torch.testing.assert_close(frequencies(priorities), torch.full((4,), 0.25), rtol=0, atol=0.01)
    _, weight, _ = priorities.sample(torch.rand(16, dtype=torch.float64))
    assert weight.tolist() == [1.0] * 16


def test_importance_weights_by_hand() -> None:
    # Masses 1, 4 (alpha 1): P = 1/5, 4/5; (N P)^-1/2 = (2/5)^-1/2, (8/5)^-1/2; the largest becomes 1, the other 1/2.
    priorities = filled([1.0, 4.0], alpha=1.0, beta=0.5)
    index, weight, _ = priorities.sample(torch.tensor([0.0, 0.99], dtype=torch.float64))
    assert index.tolist() == [0, 1]
    assert weight.tolist() == pytest.approx([1.0, 0.5])
    assert weight.dtype == torch.float32
    # N counts the slots that can be drawn, and the largest weight is the batch's: alone, any slot has weight 1.
    _, alone, _ = priorities.sample(torch.tensor([0.9], dtype=torch.float64))
    assert alone.tolist() == [1.0]


def test_one_draw_falls_into_each_stratum() -> None:
    priorities = filled([1.0] * 8, alpha=1.0)
    for uniform in (0.0, 0.5, 0.999):
        index, _, _ = priorities.sample(torch.full((8,), uniform, dtype=torch.float64))
        assert index.tolist() == list(range(8))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 1e-16])
def test_slots_without_mass_are_never_drawn(uniform: float) -> None:
    priorities = filled([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    priorities.disable(torch.tensor([0, 2, 5]))  # the first, one between, and the last
    index, weight, _ = priorities.sample(torch.full((64,), uniform, dtype=torch.float64))
    assert set(index.tolist()) == {1, 3, 4}
    assert weight.isfinite().all()


def test_new_transitions_get_the_largest_priority_seen() -> None:
    priorities = Priorities(6, Sampling(alpha=0.5, epsilon=0.0))
    priorities.enable(torch.tensor([0, 1]), torch.tensor(True))
    assert priorities.mass[:2].tolist() == [1.0, 1.0]  # before any was measured, 1
    priorities.update(torch.tensor([0, 1]), priorities.stamp[:2], torch.tensor([16.0, 0.25]))
    priorities.enable(torch.tensor([2]), torch.tensor(True))
    assert priorities.mass[:3].tolist() == [4.0, 0.5, 4.0]
    priorities.update(torch.tensor([0, 2]), priorities.stamp[[0, 2]], torch.tensor([0.25, 0.25]))
    priorities.enable(torch.tensor([3]), torch.tensor(True))
    assert float(priorities.mass[3]) == 4.0  # the largest ever, not the largest now


def test_epsilon_is_added_before_the_exponent() -> None:
    priorities = Priorities(1, Sampling(alpha=0.5, epsilon=0.25))
    priorities.enable(torch.tensor([0]), torch.tensor(True))
    priorities.update(torch.tensor([0]), torch.tensor([0]), torch.tensor([0.0]))
    assert float(priorities.mass[0]) == 0.5


def test_an_update_skips_slots_rewritten_since_they_were_sampled() -> None:
    priorities = filled([1.0, 1.0, 1.0], alpha=1.0)
    index, _, stamp = priorities.sample(torch.full((3,), 0.5, dtype=torch.float64))
    assert index.tolist() == [0, 1, 2]
    priorities.disable(torch.tensor([1, 2]))  # 1 is overwritten and sampleable again, 2 is still open
    priorities.enable(torch.tensor([1]), torch.tensor(True))
    priorities.update(index, stamp, torch.tensor([5.0, 70.0, 80.0]))
    assert priorities.mass.tolist() == [5.0, 1.0, 0.0]
    assert float(priorities.largest) == 5.0  # a stale loss does not raise the largest either


def test_one_priority_per_index_or_an_error() -> None:
    priorities = filled([1.0, 2.0, 3.0, 4.0])
    index, _, stamp = priorities.sample(torch.rand(4, dtype=torch.float64))
    with pytest.raises(ValueError, match="one priority per sampled slot: 4 slots, 2 priorities"):
        priorities.update(index, stamp, torch.ones(2))
    with pytest.raises(ValueError, match="one priority per sampled slot"):
        priorities.update(index, stamp, torch.ones(1, 4))


def test_a_loss_that_is_not_finite_does_not_break_sampling() -> None:
    priorities = filled([1.0, 2.0, 3.0])
    before = priorities.mass.clone()
    priorities.update(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([torch.nan, torch.inf]))
    assert torch.equal(priorities.mass, before)
    assert float(priorities.largest) == 3.0
