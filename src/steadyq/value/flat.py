"""All members' parameters in one buffer, and their targets, moments and gradient in others like it.

What a GPU gains: one pass clips, steps, averages the target and refreshes the low-precision copies, 38 bytes read or
written per parameter and each of them once (`fused.adam_`). Everything else sees ordinary named tensors, which are
views of the buffers.
"""

import math
from collections.abc import Container

import torch
from torch import Tensor

from steadyq.device.kernels.adam import BLOCK, adam_
from steadyq.value.optim import Adam, AdamState, clip_scale, decays
from steadyq.value.shapes import Params

LARGE = 1 << 20
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
        self.settings, self.rate = settings, torch.tensor(settings.rate, device=self.device)
        self.shapes = {name: p.shape for name, p in initial.items()}
        blocks = [-(-math.prod(shape[1:]) // BLOCK) for shape in self.shapes.values()]
        self.starts = dict(zip(self.shapes, (BLOCK * sum(blocks[:i]) for i in range(len(blocks))), strict=True))
        self.size = BLOCK * sum(blocks)
        tensor = [i for i, count in enumerate(blocks) for _ in range(count)]
        self.segment = torch.tensor(tensor, dtype=torch.int32, device=self.device)
        self.steps = self._buffer() if by_unit else torch.zeros(self.members, len(blocks), device=self.device)
        coefficients = [settings.decay if decays(p) and name not in still else 0.0 for name, p in initial.items()]
        self.decay = torch.tensor(coefficients, device=self.device) if settings.decay else None
        self.buffers = {name: self._buffer() for name in ("online", "target", "first", "second")}
        self.online, self.target, first, second = (self.views(buffer) for buffer in self.buffers.values())
        steps = self.views(self.steps) if by_unit else dict(zip(self.shapes, self.steps.unbind(1), strict=True))
        self.adam = AdamState(first, second, steps)
        self.dtype, self.exact = dtype, exact
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

        `rate` replaces the learning rate from now on.
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
        """Where in the buffers each stretch of gradient belongs, [member, count]: large tensors as they are, the many
        small ones of one precision between them joined into one.
        """
        found: list[tuple[int, list[tuple[str, Tensor]]]] = []
        joining: torch.dtype | None = None
        for name, g in gradient.items():
            flat = (g.permute(0, 1, 3, 4, 2) if g.dim() == 5 else g).flatten(1)
            dtype = torch.float32 if name in self.exact else self.dtype
            large = flat.shape[1] >= LARGE
            if large or joining != dtype:
                found.append((self.starts[name], []))
            found[-1][1].append((name, flat))
            joining = None if large else dtype
        return [
            (start, parts[0][1] if parts[0][1].shape[1] >= LARGE else self.joined(start, parts))
            for start, parts in found
        ]

    def joined(self, start: int, parts: list[tuple[str, Tensor]]) -> Tensor:
        """Small neighbours side by side, each at its place, nothing between them: one launch copies many of them."""
        last, g = parts[-1]
        dtype, end = torch.float32 if last in self.exact else self.dtype, self.starts[last] + g.shape[1]
        if start not in self.joins:
            count = -(-(end - start) // BLOCK) * BLOCK
            self.joins[start] = torch.zeros(self.members, count, dtype=dtype, device=self.device)
        whole = self.joins[start]
        places = [(self.starts[name] - start, g.to(dtype)) for name, g in parts]
        torch._foreach_copy_(
            [whole[m, at : at + g.shape[1]] for at, g in places for m in range(self.members)],
            [g[m] for _, g in places for m in range(self.members)],
        )
        return whole

    @torch.no_grad()
    def refresh_(self) -> None:
        """Bring the low-precision copies up to date after something else wrote the parameters."""
        for low, name in zip(self.low or (), ("online", "target"), strict=False):
            low.copy_(self.buffers[name])

    def _buffer(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(self.members, self.size, dtype=dtype, device=self.device)

    def _view(self, buffer: Tensor, name: str) -> Tensor:
        members, *shape = self.shapes[name]
        flat = buffer[:, self.starts[name] : self.starts[name] + math.prod(shape)]
        if len(shape) != 4:
            return flat.view(members, *shape)
        outputs, inputs, height, width = shape
        return flat.view(members, outputs, height, width, inputs).permute(0, 1, 4, 2, 3)
