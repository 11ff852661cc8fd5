"""All members' parameters in one buffer, and their targets, moments and gradient in others like it.

What a GPU gains: one pass clips, steps, averages the target and refreshes the low-precision copies, 38 bytes read or
written per parameter and each of them once (`kernels.adam`). Everything else sees ordinary named tensors, which are
views of the buffers.
"""

import math
from collections.abc import Container

import torch
from torch import Tensor

from steadyq.device.kernels.adam import BLOCK, adam_
from steadyq.value.optim import Adam, AdamState, clip_scale, decays
from steadyq.value.shapes import Params

LARGE = 1 << 18
"""Parameters per member from which a tensor's gradient is worth leaving where it is."""


class Flat:
    """Parameters `[member, n]` by name; each tensor starts at a multiple of `BLOCK`, so that it counts its own steps.

    Convolution weights lie as `[out, ky, kx, in]`, the order in which the kernels read them. `online_low` and
    `target_low` are what forward passes read: copies in `dtype`, but for the `exact` ones, or the parameters.
    """

    def __init__(
        self,
        initial: Params,
        settings: Adam,
        dtype: torch.dtype,
        exact: tuple[str, ...],
        by_unit: bool = False,
        still: Container[str] = (),
    ) -> None:
        some = next(iter(initial.values()))
        self.members, self.device = some.shape[0], some.device
        self.settings, self.rate = settings, torch.full((self.members,), settings.rate, device=self.device)
        self.shapes = {name: p.shape for name, p in initial.items()}
        self.counts = {name: math.prod(shape[1:]) for name, shape in self.shapes.items()}
        blocks = {name: -(-count // BLOCK) for name, count in self.counts.items()}
        # The many small tensors lie side by side, those of one precision together, and the large ones behind them.
        self.exact = exact if dtype != torch.float32 else ()  # of another precision than the rest
        order = sorted(self.shapes, key=lambda name: (self.counts[name] >= LARGE, name in self.exact))
        self.starts = {name: BLOCK * sum(blocks[before] for before in order[:i]) for i, name in enumerate(order)}
        self.size = BLOCK * sum(blocks.values())
        places = {name: i for i, name in enumerate(self.shapes)}
        tensor = [places[name] for name in order for _ in range(blocks[name])]
        self.segment = torch.tensor(tensor, dtype=torch.int32, device=self.device)
        self.steps = self._buffer() if by_unit else torch.zeros(self.members, len(blocks), device=self.device)
        coefficients = [settings.decay if decays(p) and name not in still else 0.0 for name, p in initial.items()]
        self.decay = torch.tensor(coefficients, device=self.device) if settings.decay else None
        self.buffers = {name: self._buffer() for name in ("online", "target", "first", "second")}
        self.online, self.target, first, second = (self.views(buffer) for buffer in self.buffers.values())
        steps = self.views(self.steps) if by_unit else dict(zip(self.shapes, self.steps.unbind(1), strict=True))
        self.adam = AdamState(first, second, steps)
        self.dtype = dtype
        self.joins: dict[int, Tensor] = {}  # by their start, what small tensors' gradients are joined in
        self.low = None if dtype == torch.float32 else (self._buffer(dtype), self._buffer(dtype))
        self.online_low, self.target_low = self.online, self.target
        if self.low is not None:
            kept = ({name: part[name] for name in exact} for part in (self.online, self.target))
            self.online_low, self.target_low = (self.views(low) | own for low, own in zip(self.low, kept, strict=True))
        for name, p in initial.items():
            self.online[name].copy_(p)
            self.target[name].copy_(p)
        self.refresh_()

    def views(self, buffer: Tensor) -> Params:
        """The named tensors inside a buffer."""
        return {name: self._view(buffer, name) for name in self.shapes}

    @torch.no_grad()
    def step_(
        self,
        gradient: Params,
        clip: float,
        tau: float | None,
        active: Tensor | None = None,
        rate: Tensor | None = None,
    ) -> Tensor:
        """One step of every active member, and of all targets unless tau is None; returns the gradient norms, [member].

        `rate`, of all or of each member, replaces the learning rate from now on.
        """
        parts = self.runs(gradient)
        norms = [torch.linalg.vector_norm(g, dim=1, dtype=torch.float32) for _, g in parts]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        scale = clip_scale(norm, clip)
        if rate is not None:
            self.rate.copy_(rate)
        self.steps += 1 if active is None else (active > 0)[:, None]
        online_low, target_low = self.low or (None, None)
        for start, part in parts:
            adam_(
                self.buffers["online"], self.buffers["first"], self.buffers["second"], part, start=start,
                step=self.steps, scale=scale, lr=self.rate, betas=self.settings.betas, eps=self.settings.epsilon,
                active=active, decay=self.decay,
                target=None if tau is None else self.buffers["target"], tau=tau or 0.0,
                shadow=online_low, target_shadow=None if tau is None else target_low, segment=self.segment,
            )  # fmt: skip
        return norm

    def runs(self, gradient: Params) -> list[tuple[int, Tensor]]:
        """Where in the buffers each stretch of gradient belongs, [member, count]: large tensors as they are, all small
        ones of one precision joined into one.
        """
        flat = {name: (g.permute(0, 1, 3, 4, 2) if g.dim() == 5 else g).flatten(1) for name, g in gradient.items()}
        large = [(self.starts[name], g) for name, g in flat.items() if g.shape[1] >= LARGE]
        small = [name for name, g in flat.items() if g.shape[1] < LARGE]
        kinds = ([name for name in small if name not in self.exact], [name for name in small if name in self.exact])
        return [self.joined({name: flat[name] for name in names}) for names in kinds if names] + large

    def joined(self, parts: Params) -> tuple[int, Tensor]:
        """Small neighbours side by side, each at its place, zeros between them: a few launches copy all of them."""
        start = min(self.starts[name] for name in parts)
        if start not in self.joins:
            last = max(parts, key=lambda name: self.starts[name])
            dtype = torch.float32 if last in self.exact else self.dtype
            count = self.starts[last] + -(-self.counts[last] // BLOCK) * BLOCK - start
            self.joins[start] = torch.zeros(self.members, count, dtype=dtype, device=self.device)
        whole = self.joins[start]
        rows = [(self.starts[name] - start, g.to(whole.dtype)) for name, g in parts.items()]
        torch._foreach_copy_(
            [whole[m, at : at + g.shape[1]] for at, g in rows for m in range(self.members)],
            [g[m] for _, g in rows for m in range(self.members)],
        )
        return start, whole

    @torch.no_grad()
    def refresh_(self) -> None:
        """Bring the low-precision copies up to date after something else wrote the parameters."""
        for low, name in zip(self.low or (), ("online", "target"), strict=False):
            low.copy_(self.buffers[name])

    def _buffer(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(self.members, self.size, dtype=dtype, device=self.device)

    def _view(self, buffer: Tensor, name: str) -> Tensor:
        members, *shape = self.shapes[name]
        flat = buffer[:, self.starts[name] : self.starts[name] + self.counts[name]]
        if len(shape) != 4:
            return flat.view(members, *shape)
        outputs, inputs, height, width = shape
        return flat.view(members, outputs, height, width, inputs).permute(0, 1, 4, 2, 3)
