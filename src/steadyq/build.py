"""What a recipe builds: device, network, axes, learner, replay buffer.

Every choice is a `match` that ends in `assert_never`: a kind that recipes know and nothing builds is a type error.
"""

import contextlib
import math
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch

from steadyq.device.cpu import LARGE
from steadyq.device.kernels.triton import compiles
from steadyq.device.program import compiler
from steadyq.envs.factories import network_factory
from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError, one_line, shown
from steadyq.nets import (
    MLP,
    Branches,
    Ensemble,
    Impala,
    Layered,
    MinAtarNet,
    ModuleEnsemble,
    ModuleNetwork,
    Network,
    Packing,
    ResNet,
)
from steadyq.nets.encoders import Convolutional
from steadyq.nets.forms import Form, best_form, check
from steadyq.nets.injection import Injected
from steadyq.nets.layered import cnn, data_efficient
from steadyq.nets.prior import WithPrior
from steadyq.recipe import Recipe
from steadyq.replay.augmentation import Augmentation
from steadyq.replay.priority import Sampling
from steadyq.replay.ring import Ring
from steadyq.schedule import Schedule
from steadyq.value import acting
from steadyq.value.auxiliary import Auxiliary, Contrastive, SelfPrediction
from steadyq.value.estimators import Categorical, Estimator, HLGauss, Implicit, Quantile, Scalar
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import (
    Controlled,
    Double,
    Greedy,
    Maxmin,
    Mixture,
    Munchausen,
    Operator,
    Others,
    Pooled,
    Softmax,
)
from steadyq.value.optim import Adam
from steadyq.value.penalties import Penalties
from steadyq.value.regulation import (
    Always,
    Answer,
    Dormant,
    Inject,
    Intervention,
    Periodic,
    Recycle,
    Regulation,
    Reinitialise,
    Replace,
    ShrinkPerturb,
    Spike,
    Trigger,
    Verdict,
)
from steadyq.value.shapes import DrawLayout
from steadyq.value.utility import Replacement

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
        wanted = "bf16" if gpu and recipe.network.kind in ("resnet", "impala") else "fp32"
    if wanted != "fp32" and not gpu:
        raise UserError(f"compute.precision {wanted} needs a GPU; a CPU computes in fp32 (use auto or fp32)")
    if gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted != "fp32"
    match wanted:
        case "bf16":
            return torch.bfloat16
        case "fp32" | "tf32":
            return torch.float32
    assert_never(wanted)


def wants_gpu(recipe: Recipe) -> bool:
    """Whether the recipe asks for what a CPU does not do."""
    compute = recipe.compute
    return compute.device == "cuda" or compute.precision in ("tf32", "bf16") or compute.form == "kernels"


def form_for(recipe: Recipe, network: Network) -> Form:
    """How the members run."""
    wanted = recipe.compute.form
    if isinstance(network, ModuleNetwork):
        if wanted not in ("auto", "loop"):
            raise UserError(f"compute.form {wanted} cannot run a module, whose members run one by one: use auto")
        return "loop"
    if wanted == "auto":
        wanted = best_form(network, device_for(recipe))
    elif wanted == "kernels" and not compiles(device_for(recipe)):
        raise UserError("compute.form kernels needs a GPU and Triton: use auto, stacked or loop")
    check(network, wanted)
    return wanted


LONG = 20_000
"""Updates from which it pays to compile them on a CPU."""


def compiled_for(recipe: Recipe, ensemble: Ensemble) -> bool:
    """Whether updates and acting are compiled on a CPU; a GPU captures them in any case."""
    wanted = recipe.compute.compile
    if wanted == "never" or device_for(recipe).type != "cpu":
        return False
    if wanted == "always":
        if not compiler():
            raise UserError(
                "compute.compile always needs a C++ compiler and Python's headers: install them or use auto"
            )
        return True
    small = ensemble.form != "loop" and work(ensemble, recipe.replay.batch) < LARGE
    return small and recipe.updates >= LONG and bool(compiler())


def network_for(recipe: Recipe, spec: EnvSpec) -> Network:
    """One member's network for the environment's observations and actions."""
    section = recipe.network
    if section.kind == "own":
        return _own(recipe, spec)
    network = _network_for(recipe, spec)
    atoms = estimator_for(recipe).atoms
    network = replace(
        network,
        atoms=atoms,
        dueling=section.dueling,
        norm=section.norm,
        activation=section.activation,
        spectral=recipe.regulation.spectral,
        initial=section.initial,
        transition=spec.num_actions if recipe.auxiliary.kind == "spr" else 0,
        contrast=recipe.auxiliary.units if recipe.auxiliary.kind == "curl" else 0,
        noisy=section.noisy,
        cosines=recipe.estimator.cosines if recipe.estimator.kind == "implicit" else 0,
    )
    if isinstance(network, Convolutional):
        network = replace(network, pooling=section.pooling, renormalise=section.renormalise)
    whole: Network = Injected(network) if recipe.regulation.intervention == "inject" else network
    return WithPrior(whole, recipe.ensemble.prior) if recipe.ensemble.prior else whole


def _own(recipe: Recipe, spec: EnvSpec) -> Network:
    """What the recipe's factory returns: a description, or a module."""
    name, outputs = recipe.network.factory, spec.num_actions * estimator_for(recipe).atoms
    factory, shape = network_factory(name), _seen(spec)

    def make() -> Any:
        try:
            return factory(shape, outputs)
        except UserError:
            raise
        except Exception as raised:
            said = f"{type(raised).__name__}: {one_line(raised)}"
            raise UserError(f"network.factory {name} failed for {shape} and {outputs} outputs: {said}") from raised

    with torch.random.fork_rng(devices=[]):
        made = make()
    if isinstance(made, torch.nn.Module):
        if recipe.regulation.intervention in ("recycle", "replace"):
            raise UserError(
                f"regulation.intervention {recipe.regulation.intervention} needs a network described in layers: nobody "
                "knows who reads the units of a module"
            )
        return ModuleNetwork(name, make, shape, outputs)
    if not hasattr(made, "wire") or not hasattr(made, "layers"):
        raise UserError(f"network.factory {name} returned {shown(made)}; it must be a torch.nn.Module or a description")
    network: Network = made
    return network


def _network_for(recipe: Recipe, spec: EnvSpec) -> ResNet | Impala | MinAtarNet | MLP | Layered | Branches:
    """The network in its sizes."""
    section, outputs = recipe.network, spec.num_actions * estimator_for(recipe).atoms
    match section.kind:
        case "mlp":
            return MLP(_seen(spec), outputs, section.hidden)
        case "joined":
            if (packing := packing_for(spec)) is None:
                raise UserError(
                    f"network.kind joined is for an image beside other things; {recipe.env} has shape "
                    f"{spec.observation_shape}: use {'cnn' if len(spec.observation_shape) == 3 else 'mlp'}"
                )
            return Branches(_seen(spec), outputs, packing.shapes, section.hidden)
        case "layers":
            return Layered(_seen(spec), outputs, section.layers)
        case "cnn":
            image = _image(recipe, spec)
            return Layered(image, outputs, cnn(image, section.hidden[0]))
        case "der":
            image = _image(recipe, spec)
            return Layered(image, outputs, data_efficient(image, section.hidden[0]))
        case "own":
            raise AssertionError("a factory's network is built by it")
        case "minatar":
            return MinAtarNet(_image(recipe, spec), outputs, section.channels, section.hidden[0])
        case "impala":
            return Impala(_image(recipe, spec), outputs, section.width, section.hidden[0])
        case "resnet":
            return ResNet(_image(recipe, spec), outputs, section.scale, section.head_multiple, section.strides)
    assert_never(section.kind)


def packing_for(spec: EnvSpec) -> Packing | None:
    """How frames that hold several things are unpacked."""
    return None if spec.parts is None else Packing(spec.parts.numbers, spec.parts.pixels, spec.stack)


def _seen(spec: EnvSpec) -> tuple[int, ...]:
    """An observation as a network sees it: several things in one row, one after another."""
    packing = packing_for(spec)
    return spec.observation_shape if packing is None else (packing.values,)


def _image(recipe: Recipe, spec: EnvSpec) -> tuple[int, int, int]:
    shape = spec.observation_shape
    if len(shape) != 3:
        shown = f"has shape {shape}: use mlp" if spec.parts is None else "shows several things at once: use joined"
        raise UserError(f"network.kind {recipe.network.kind} needs image observations, {recipe.env} {shown}")
    return (shape[0], shape[1], shape[2])


def estimator_for(recipe: Recipe) -> Estimator:
    """Axis 2 of the recipe."""
    section = recipe.estimator
    match section.kind:
        case "scalar":
            return Scalar(section.kappa)
        case "quantile":
            return Quantile(section.quantiles, section.kappa, section.reduction)
        case "categorical":
            return Categorical(section.atoms, section.low, section.high)
        case "implicit":
            return Implicit(section.samples, section.fixed, section.kappa, section.reduction)
        case "hl_gauss":
            return HLGauss(section.atoms, section.low, section.high, section.smoothing)
    assert_never(section.kind)


def operator_for(recipe: Recipe) -> Operator:
    """Axis 1 of the recipe."""
    section = recipe.operator
    match section.kind:
        case "controlled":
            return Controlled(section.selector)
        case "greedy":
            return Greedy()
        case "double":
            return Double()
        case "maxmin":
            return Maxmin(section.subset)
        case "rem":
            return Mixture(estimator_for(recipe))
        case "ebql":
            return Others(estimator_for(recipe))
        case "tqc":
            return Pooled(section.drop)
        case "softmax":
            return Softmax(estimator_for(recipe), section.temperature)
        case "munchausen":
            return Munchausen(section.temperature, section.scale, section.least)
    assert_never(section.kind)


def auxiliary_for(recipe: Recipe) -> Auxiliary | None:
    """The loss beside the values', if there is one."""
    section = recipe.auxiliary
    match section.kind:
        case "none":
            return None
        case "spr":
            return SelfPrediction(section.steps, section.weight)
        case "curl":
            return Contrastive(section.weight, section.momentum)
    assert_never(section.kind)


def regulation_for(recipe: Recipe) -> Regulation | None:
    """Axis 3 of the recipe; None only measures."""
    intervention = _intervention(recipe)
    return None if intervention is None else Regulation(_trigger(recipe), intervention, recipe.regulation.target)


def _trigger(recipe: Recipe) -> Trigger:
    section = recipe.regulation
    match section.trigger:
        case "spike":
            return Spike(section.threshold)
        case "periodic":
            return Periodic(section.period, section.period if section.intervention == "inject" else section.last)
        case "dormant":
            return Dormant(section.dormant, section.dormant_share)
        case "verdict":
            return Verdict()
        case "none":
            return Always()
    assert_never(section.trigger)


def _intervention(recipe: Recipe) -> Intervention | None:
    section = recipe.regulation
    match section.intervention:
        case "none":
            return None
        case "reinitialise":
            return Reinitialise()
        case "shrink_perturb":
            return ShrinkPerturb(section.encoder, section.head)
        case "recycle":
            return Recycle(section.dormant)
        case "replace":
            return Replace()
        case "inject":
            return Inject()
        case "answer":
            return Answer()
    assert_never(section.intervention)


def acting_for(recipe: Recipe, *, training: bool) -> acting.Acting:
    """How the ensemble acts; in evaluation without what only explores."""
    section = recipe.ensemble
    match section.act:
        case "mean":
            return acting.Mean()
        case "minimum":
            return acting.Minimum()
        case "member":
            return acting.OneMember() if training else acting.Mean()
        case "optimistic":
            return acting.Optimistic(section.bonus) if training else acting.Mean()
    assert_never(section.act)


def augmentation_for(recipe: Recipe, spec: EnvSpec) -> Augmentation:
    """What is done to sampled images."""
    found = Augmentation(recipe.replay.shift, recipe.replay.intensity, recipe.auxiliary.compared)
    wanted = {"replay.shift": found.shift, "replay.intensity": found.intensity, "auxiliary.shift": found.compared}
    name = next((name for name, value in wanted.items() if value), "")
    if name and len(spec.observation_shape) != 3:
        shown = f"has shape {spec.observation_shape}" if spec.parts is None else "shows several things at once"
        raise UserError(f"{name} needs image observations, {recipe.env} {shown}")
    return found


def draw_layout(recipe: Recipe, spec: EnvSpec) -> DrawLayout:
    """How an update's draw travels."""
    return DrawLayout(
        members=recipe.ensemble.members,
        batch=recipe.replay.batch,
        keep=int(recipe.ensemble.learn == "one"),
        augmented=augmentation_for(recipe, spec).active,
        future=recipe.auxiliary.future,
        samples=recipe.estimator.samples if recipe.estimator.kind == "implicit" else 0,
        noise=ensemble_for(recipe, spec).noise_size if recipe.network.noisy else 0,
        compared=recipe.auxiliary.compared > 0,
        masked=recipe.ensemble.share if recipe.ensemble.learn == "some" else 0.0,
    )


def ensemble_for(recipe: Recipe, spec: EnvSpec, members: int | None = None, runs: int = 1) -> Ensemble:
    """All members' networks, or as many as are given, of one run or of several in one stack."""
    network, dtype = network_for(recipe, spec), precision_for(recipe)
    module = isinstance(network, ModuleNetwork)
    if module and dtype != torch.float32:
        raise UserError(f"compute.precision {recipe.compute.precision}: a module computes in fp32 (use auto)")
    return (ModuleEnsemble if module else Ensemble)(
        network=network,
        members=runs * (members or recipe.ensemble.members),
        actions=spec.num_actions,
        atoms=estimator_for(recipe).atoms,
        pixel_max=spec.pixel_max,
        form=form_for(recipe, network),
        dtype=dtype,
        packing=packing_for(spec),
        fixed=recipe.estimator.fixed,
        runs=runs,
    )


def work(ensemble: Ensemble, batch: int) -> int:
    """Multiply-adds of one forward pass."""
    return batch * ensemble.members * sum(layer.multiplications for layer in ensemble.network.layers.values())


def computing(ensemble: Ensemble, device: torch.device) -> dict[str, str]:
    """Where and how it runs, in words."""
    precision = str(ensemble.dtype).removeprefix("torch.")
    if precision == "float32" and device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        precision = "tf32"
    return {"device": str(device), "form": ensemble.form, "precision": precision}


def learner_for(
    recipe: Recipe,
    spec: EnvSpec,
    generator: torch.Generator,
    device: torch.device,
    members: int | None = None,
    kind: type[Learner] = Learner,
    runs: int = 1,
) -> Learner:
    """The learning step of one run or of several, with freshly drawn parameters of all members or as many as given."""
    optim = recipe.optim
    rate = Schedule.of(optim.rate).start
    rules = recipe.regulation
    replacement = Replacement(rules.replacement, rules.maturity) if rules.intervention == "replace" else None
    settings = Settings(
        adam=Adam(rate, (optim.beta1, optim.beta2), optim.epsilon, optim.decay),
        clip=optim.clip,
        tau=optim.tau,
        hard_copy_every=optim.hard_copy_every,
        snapshots=recipe.operator.snapshots,
        certainty=recipe.ensemble.certainty,
        penalties=Penalties(rules.pull, rules.parseval, rules.project),
        unit_steps=rules.intervention in ("recycle", "replace", "answer"),
        replacement=replacement,
    )
    axes = ensemble_for(recipe, spec, members, runs), estimator_for(recipe), operator_for(recipe)
    return kind(*axes, settings, generator, device, auxiliary_for(recipe))


def ring_for(recipe: Recipe, spec: EnvSpec, device: torch.device, runs: int = 1) -> Ring:
    """An empty replay buffer, of one run or of several."""
    section = recipe.replay
    sampling = Sampling(section.alpha, section.beta, section.epsilon)
    return Ring(
        spec,
        section.capacity,
        steps=section.largest_n,
        future=recipe.auxiliary.future,
        overlap=section.overlap,
        sampling=sampling,
        device=device,
        runs=runs,
    )


def check_memory(recipe: Recipe, spec: EnvSpec, runs: int = 1) -> None:
    """Raise if the networks or the replay buffer of so many runs cannot fit into the device's memory."""
    device = device_for(recipe)
    have = memory(device) // runs
    weights = sum(math.prod(shape) for shape in ensemble_for(recipe, spec).shapes().values())
    copies = COPIES + recipe.operator.snapshots - 1 + int(recipe.auxiliary.kind == "curl")
    if (size := 4 * copies * weights) > have:
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
