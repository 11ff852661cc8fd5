"""Adam over stacked members: every member clips, steps and counts for itself, in place at fixed addresses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from steadyq.device.kernels.adam import risen
from steadyq.device.program import recording
from steadyq.value.shapes import Params


@dataclass
class AdamState:
    """Moments and step counts; `step[name][member]` restarts alone when that member's layer is reset.

    Where single units are reset, every parameter counts for itself: `step[name]` has the parameter's shape.
    """

    first: Params
    second: Params
    step: Params

    @classmethod
    def zeros(cls, params: Params, by_unit: bool = False) -> "AdamState":
        """Start with empty moments."""
        return cls(
            first={name: torch.zeros_like(p) for name, p in params.items()},
            second={name: torch.zeros_like(p) for name, p in params.items()},
            step={
                name: torch.zeros(p.shape if by_unit else p.shape[:1], device=p.device) for name, p in params.items()
            },
        )

    def clear_(self, name: str, where: Tensor) -> None:
        """Forget moments and steps of the members `where[member]`, or of the parameters where[member, ...]."""
        step = self.step[name]
        if where.dim() > 1 and step.dim() == 1:
            raise ValueError(f"{name} counts its steps by member: start with `AdamState.zeros(params, by_unit=True)`")
        for state in (self.first[name], self.second[name], step):
            state.masked_fill_(along(where, state) if where.dim() == 1 else where, 0)


def member_norm(gradient: Params) -> Tensor:
    """Return each member's gradient norm over all its parameters, [member]."""
    parts = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradient.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return norm


def clip_scale(norm: Tensor, clip: float) -> Tensor:
    """Return what each member's gradient is multiplied by, so that its norm is at most `clip`."""
    return (clip / norm.clamp_min(1e-6)).clamp_max(1.0)


def along(members: Tensor, like: Tensor) -> Tensor:
    """View a [member] tensor so that it broadcasts over `like[member, ...]`."""
    return members.view(-1, *[1] * (like.dim() - 1))


def decays(p: Tensor) -> bool:
    """Whether weight decay takes hold of p[member, ...]: of weights, not of biases and scales."""
    return p.dim() > 2


def settled(x: Tensor) -> Tensor:
    """x, as a sum that a compiler does not repeat for every number that x is broadcast to."""
    return x if not recording() or x.dim() > 1 else x.expand(2, -1).amax(0)


@dataclass(frozen=True)
class Adam:
    """Adam's constants; `step_` moves every member by its own gradient, scale and step count.

    Clearing moments without their step count would make the next updates 3-6 x rate (the corrections have faded
    while v is tiny); with the count cleared too they stay at 1 x rate. `decay` is AdamW's, of weights alone.
    """

    rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 0.0

    @torch.no_grad()
    def step_(
        self,
        params: Params,
        gradient: Params,
        state: AdamState,
        scale: Tensor,
        active: Tensor | None = None,
        rate: Tensor | None = None,
    ) -> None:
        """Take one step on `scale[member] * gradient`, in place; members with `active[member]` 0 stay as they are."""
        some, count = next(iter(params.items()))
        by_unit = state.step[some].dim() > 1
        if count.device.type == "cpu" and not by_unit and not recording():
            self.fused_(params, gradient, state, scale, active, rate)
        else:
            self.plain_(params, gradient, state, scale, active, rate)

    def plain_(
        self,
        params: Params,
        gradient: Params,
        state: AdamState,
        scale: Tensor,
        active: Tensor | None = None,
        rate: Tensor | None = None,
    ) -> None:
        """The formula: p -= rate * m_hat / (sqrt(v_hat) + epsilon), after p -= rate * decay * p."""
        beta1, beta2 = self.betas
        for name, p in params.items():
            lr = self.rate if rate is None else rate if rate.dim() == 0 else along(rate.to(p.dtype), p)
            m, v, t = (part[name] for part in (state.first, state.second, state.step))
            g, steps = gradient[name] * along(scale, p), t + 1
            first, second = m.lerp(g, 1 - beta1), (v * beta2).addcmul(g, g, value=1 - beta2)
            rise1, rise2 = (settled(risen(beta, steps)) for beta in self.betas)
            if t.dim() == 1:
                rise1, rise2 = along(rise1, p), along(rise2, p)
            kept = p * (1 - lr * self.decay) if self.decay and decays(p) else p
            moved = kept - lr / rise1 * first / (second.sqrt() / rise2.sqrt() + self.epsilon)
            for old, new in ((p, moved), (m, first), (v, second), (t, steps)):
                old.copy_(new if active is None else torch.where(along(active > 0, old), new, old))

    def fused_(
        self,
        params: Params,
        gradient: Params,
        state: AdamState,
        scale: Tensor,
        active: Tensor | None = None,
        rate: Tensor | None = None,
    ) -> None:
        """The same in one pass per tensor: each member is handed over as tensors of its own, views of the stack."""
        rates = torch.as_tensor(self.rate if rate is None else rate).expand(len(scale)).tolist()
        moves = [True] * len(scale) if active is None else (active > 0).tolist()
        weights = [name for name, p in params.items() if self.decay and decays(p)]
        rest = [name for name in params if name not in weights]
        for member in (member for member, moved in enumerate(moves) if moved):
            for names, decay, run in ((rest, 0.0, torch._fused_adam_), (weights, self.decay, torch._fused_adamw_)):
                if not names:
                    continue
                p, g, m, v, t = (
                    [stack[name][member] for name in names]
                    for stack in (params, gradient, state.first, state.second, state.step)
                )
                torch._foreach_add_(t, 1)
                g = [part.contiguous() for part in g]  # the fused pass reads memory in order
                run(  # what torch.optim.Adam(fused=True) and AdamW(fused=True) call
                    p, g, m, v, [], t,
                    lr=rates[member], beta1=self.betas[0], beta2=self.betas[1], weight_decay=decay, eps=self.epsilon,
                    amsgrad=False, maximize=False, grad_scale=scale[member].reciprocal(), found_inf=None,
                )  # fmt: skip


@torch.no_grad()
def polyak_(target: Params, online: Params, tau: float) -> None:
    """Move the target parameters by tau towards the online ones."""
    for name, p in target.items():
        p.lerp_(online[name], tau)
