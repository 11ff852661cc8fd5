"""What a recipe builds: device, network, axes, learner, replay buffer."""

import contextlib
import math
import os
import resource
from pathlib import Path

import torch

from steadyq.device.kernels.triton import compiles
from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError
from steadyq.nets import MLP, Ensemble, MinAtarNet, Network, ResNet
from steadyq.nets.ensemble import Form, best_form
from steadyq.recipe import Recipe
from steadyq.replay.priority import Sampling
from steadyq.replay.ring import Ring
from steadyq.value.estimators import Estimator, Quantile, Scalar
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Controlled, Double, Greedy, Operator
from steadyq.value.optim import Adam

COPIES = 5
"""Of every parameter in training: online and target network, gradient, Adam's two moments."""


def device_for(recipe: Recipe) -> torch.device:
    """The recipe's device; `auto` is a GPU if there is one."""
    wanted = recipe.compute.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("compute.device cuda: no GPU is visible to PyTorch here (use auto or cpu)")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def precision_for(recipe: Recipe) -> torch.dtype:
    """What the layers compute in; switches PyTorch's TF32 on or off for this process accordingly."""
    wanted, gpu = recipe.compute.precision, device_for(recipe).type == "cuda"
    if wanted == "auto":
        wanted = "bf16" if gpu and recipe.network.kind == "resnet" else "fp32"
    if wanted != "fp32" and not gpu:
        raise UserError(f"compute.precision {wanted} needs a GPU; a CPU computes in fp32 (use auto or fp32)")
    if gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted != "fp32"
    return torch.bfloat16 if wanted == "bf16" else torch.float32


def wants_gpu(recipe: Recipe) -> bool:
    """Whether the recipe asks for what a CPU does not do."""
    compute = recipe.compute
    return compute.device == "cuda" or compute.precision in ("tf32", "bf16") or compute.form == "kernels"


def form_for(recipe: Recipe, network: Network) -> Form:
    """How the members run."""
    wanted = recipe.compute.form
    if wanted == "auto":
        return best_form(network, device_for(recipe))
    if wanted == "kernels" and not isinstance(network, ResNet):
        raise UserError(f"compute.form kernels runs the resnet network, not {recipe.network.kind}: use auto or stacked")
    if wanted == "kernels" and not compiles(device_for(recipe)):
        raise UserError("compute.form kernels needs a GPU and Triton: use auto, stacked or loop")
    return wanted


def network_for(recipe: Recipe, spec: EnvSpec) -> Network:
    """One member's network for the environment's observations and actions."""
    section, outputs = recipe.network, spec.num_actions * estimator_for(recipe).atoms
    shape = spec.observation_shape
    if section.kind == "mlp":
        return MLP(shape, outputs, section.hidden)
    if len(shape) != 3:
        raise UserError(
            f"network.kind {section.kind} needs image observations, {recipe.env} has shape {shape}: use mlp"
        )
    image = (shape[0], shape[1], shape[2])
    if section.kind == "minatar":
        return MinAtarNet(image, outputs, section.channels, section.hidden[0])
    return ResNet(image, outputs, section.scale, section.head_multiple, section.strides)


def estimator_for(recipe: Recipe) -> Estimator:
    """Axis 2 of the recipe."""
    section = recipe.estimator
    if section.kind == "scalar":
        return Scalar(section.kappa)
    return Quantile(section.quantiles, section.kappa, section.reduction)


def operator_for(recipe: Recipe) -> Operator:
    """Axis 1 of the recipe."""
    if recipe.operator.kind == "controlled":
        return Controlled(recipe.operator.selector)
    return Double() if recipe.operator.kind == "double" else Greedy()


def ensemble_for(recipe: Recipe, spec: EnvSpec) -> Ensemble:
    """All members' networks."""
    network, dtype = network_for(recipe, spec), precision_for(recipe)
    return Ensemble(
        network=network,
        members=recipe.ensemble.members,
        actions=spec.num_actions,
        atoms=estimator_for(recipe).atoms,
        pixel_max=spec.pixel_max,
        form=form_for(recipe, network),
        dtype=dtype,
    )


def computing(ensemble: Ensemble, device: torch.device) -> dict[str, str]:
    """Where and how it runs, in words."""
    precision = str(ensemble.dtype).removeprefix("torch.")
    if precision == "float32" and device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        precision = "tf32"
    return {"device": str(device), "form": ensemble.form, "precision": precision}


def learner_for(recipe: Recipe, spec: EnvSpec, generator: torch.Generator, device: torch.device) -> Learner:
    """The learning step with freshly drawn parameters."""
    optim = recipe.optim
    settings = Settings(
        adam=Adam(optim.rate, (optim.beta1, optim.beta2), optim.epsilon),
        clip=optim.clip,
        tau=optim.tau,
        hard_copy_every=optim.hard_copy_every,
    )
    ensemble = ensemble_for(recipe, spec)
    return Learner(ensemble, estimator_for(recipe), operator_for(recipe), settings, generator, device)


def ring_for(recipe: Recipe, spec: EnvSpec, device: torch.device) -> Ring:
    """An empty replay buffer."""
    section = recipe.replay
    sampling = Sampling(section.alpha, section.beta, section.epsilon)
    gamma, steps = recipe.optim.gamma, section.n_step
    return Ring(spec, section.capacity, gamma=gamma, steps=steps, sampling=sampling, device=device)


def check_memory(recipe: Recipe, spec: EnvSpec) -> None:
    """Raise if the networks or the replay buffer cannot fit into the device's memory."""
    device = device_for(recipe)
    have = memory(device)
    weights = sum(math.prod(shape) for shape in ensemble_for(recipe, spec).shapes().values())
    if (size := 4 * COPIES * weights) > have:
        raise UserError(
            f"{recipe.ensemble.members} networks of {weights // recipe.ensemble.members:,} parameters take "
            f"{size / 1e9:,.1f} GB in training, {device} has {have / 1e9:,.1f}: make them smaller or fewer"
        )
    needed = ring_for(recipe, spec, torch.device("meta")).nbytes
    if needed > have:
        raise UserError(
            f"replay.capacity {recipe.replay.capacity:,} takes {needed / 1e9:,.1f} GB, {device} has {have / 1e9:,.1f}: "
            f"about {recipe.replay.capacity * have // needed:,} would fill it"
        )


def memory(device: torch.device) -> int:
    """All bytes of the device that this process may have."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    with contextlib.suppress(OSError, ValueError):  # a container's share, where it has one; "max" where it has not
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits)
