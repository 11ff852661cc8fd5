"""Which members learn from which transition, where only some do: a mask of the transition's own.

It is hashed from the slot in which the transition lies, the write that put it there, and a key of the member's. So it
stays what it is for as long as the transition is kept, is the same on every device, and takes no memory.
"""

from torch import Tensor

WHOLE = 2**32
LOW = WHOLE - 1
SLOT, STAMP = 0x1E3779B1, 0x5BD1E995
ROUNDS = ((16, 0x7FEB352D), (15, 0x31848BAB), (16, 0x7FEB352D))
"""Shifts and factors below 2^31: products of numbers below 2^32 with them fit into the 63 bits of an int64."""


def kept(key: Tensor, slot: Tensor, stamp: Tensor, share: float) -> Tensor:
    """1 where a member, by its key `[member]` or `[member, batch]`, learns from a transition: `[member, batch]`."""
    x = (slot * SLOT + stamp * STAMP + key.view(len(key), -1)) & LOW
    for shift, factor in ROUNDS:
        x = (x ^ (x >> shift)) * factor & LOW
    return ((x ^ (x >> 15)) < round(share * WHOLE)).float()
