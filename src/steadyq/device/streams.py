"""Work beside other work: on a GPU, kernels that do not fill it, or wait for memory, run while others compute."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


class Beside:
    """A second stream next to the current one; on a CPU everything runs in order.

    Memory that one stream gives back is handed out again there, while the other may still be reading it. So what is
    read on the second stream is kept until the first has waited for it, and what is made there is used after `join`.
    Not for work inside `reading`, nor for several threads on one stream: the second of a second may be the first.
    """

    def __init__(self, device: torch.device) -> None:
        self.first: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.queued: deque[tuple[Any, tuple[Any, ...]]] = deque()

    @contextmanager
    def reading(self, *kept: Any) -> Iterator[None]:
        """Queue what follows on the second stream, after all that the first was given so far."""
        if self.first is None:
            yield
            return
        second = _second(self.first)
        second.wait_stream(self.first)
        with torch.cuda.stream(second):
            yield
        self.queued.append((second.record_event(), kept))

    def join(self, leave: int = 0) -> None:
        """Let the first stream wait for all pieces of work queued beside it but the last `leave`."""
        while len(self.queued) > leave:
            done, _ = self.queued.popleft()
            self.first.wait_event(done)


@cache
def _second(first: Any) -> Any:
    """A stream that is not `first`: PyTorch hands out a few in turn."""
    while (stream := torch.cuda.Stream(first.device)) == first:  # type: ignore[no-untyped-call]
        pass
    return stream
