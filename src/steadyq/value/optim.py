"""Adam over stacked members: every member clips, steps and counts for itself, in place at fixed addresses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from steadyq.device.kernels.adam import risen
from steadyq.value.shapes import Params


@dataclass
class AdamState:
    """Moments and step counts; `step[name][member]` restarts alone when that member's layer is reset."""

    first: Params
    second: Params
    step: Params  # [member] float32 per tensor

    @classmethod
    def zeros(cls, params: Params) -> "AdamState":
        """Start with empty moments."""
        return cls(
            first={name: torch.zeros_like(p) for name, p in params.items()},
            second={name: torch.zeros_like(p) for name, p in params.items()},
            step={name: torch.zeros(p.shape[0], device=p.device) for name, p in params.items()},
        )


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


@dataclass(frozen=True)
class Adam:
    """Adam's constants; `step_` moves every member by its own gradient, scale and step count.

    Clearing moments without their step count would make the next updates 3-6 x rate (the corrections have faded
    while v is tiny); with the count cleared too they stay at 1 x rate.
    """

    rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    @torch.no_grad()
    def step_(self, params: Params, gradient: Params, state: AdamState, scale: Tensor) -> None:
        """Take one step on `scale[member] * gradient`, in place; PyTorch's fused pass where it runs."""
        if next(iter(params.values())).device.type == "cpu":
            self.fused_(params, gradient, state, scale)
        else:
            self.plain_(params, gradient, state, scale)

    def plain_(self, params: Params, gradient: Params, state: AdamState, scale: Tensor) -> None:
        """The formula: p -= rate * m_hat / (sqrt(v_hat) + epsilon)."""
        beta1, beta2 = self.betas
        for name, p in params.items():
            g = gradient[name] * along(scale, p)
            m, v, t = state.first[name], state.second[name], state.step[name]
            t.add_(1)
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            root = (v.sqrt() / along(risen(beta2, t).sqrt(), p)).add_(self.epsilon)
            p.sub_(along(self.rate / risen(beta1, t), p) * m / root)

    def fused_(self, params: Params, gradient: Params, state: AdamState, scale: Tensor) -> None:
        """The same in one pass per tensor: each member is handed over as tensors of its own, views of the stack."""
        for name in params:
            state.step[name].add_(1)
        for member, factor in enumerate(scale.unbind()):
            p, g, m, v, t = (
                [stack[name][member] for name in params]
                for stack in (params, gradient, state.first, state.second, state.step)
            )
            g = [part.contiguous() for part in g]  # the fused pass reads memory in order
            torch._fused_adam_(  # what torch.optim.Adam(fused=True) calls
                p, g, m, v, [], t,
                lr=self.rate, beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.epsilon,
                amsgrad=False, maximize=False, grad_scale=factor.reciprocal(), found_inf=None,
            )  # fmt: skip


@torch.no_grad()
def polyak_(target: Params, online: Params, tau: float) -> None:
    """Move the target parameters by tau towards the online ones."""
    for name, p in target.items():
        p.lerp_(online[name], tau)
