"""Anybody's `torch.nn.Module` as the network of an ensemble, run member by member.

A module is a function of its parameters, which the ensemble keeps stacked like all others: checkpoints, resets and the
monitor see no difference. What they see of its inside are its convolutions and linear layers that have a bias.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from steadyq.errors import UserError, one_line, shown
from steadyq.nets.ensemble import Ensemble, Params
from steadyq.nets.layers import Conv, Executor, Group, Initial, Layer, Linear

Make = Callable[[], nn.Module]


class ModuleNetwork:
    """What a module is made of, found by running it once on zeros; `make` makes it anew, differently initialised."""

    initial: Initial = "torch"
    cosines = transition = 0
    spectral_layers: tuple[str, ...] = ()
    readers: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 nobody knows who reads whom

    def __init__(self, name: str, make: Make, observation: tuple[int, ...], outputs: int) -> None:
        self.name, self.make, self.observation, self.outputs = name, make, observation, outputs
        with torch.random.fork_rng(devices=[]):
            self.template = make().eval()
        if bad := next((kind for kind in map(type, self.template.modules()) if issubclass(kind, _REMEMBERING)), None):
            raise UserError(f"the network {name} has a {bad.__name__}, which remembers batches: use a LayerNorm")
        if not dict(self.template.named_parameters()):
            raise UserError(f"the network {name} has no parameters: there is nothing to learn")
        self.layers = self._found()
        self.heads = (next(reversed(self.layers)),)
        self.monitored = tuple(self.layers)

    def _found(self) -> dict[str, Layer]:
        """Layers in the order they run."""
        found: dict[str, Layer] = {}

        def seen(name: str) -> Callable[..., None]:
            def hook(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                if isinstance(module, nn.Linear):
                    found.setdefault(name, Linear(module.in_features, module.out_features))
                else:
                    image = (int(inputs[0].shape[2]), int(inputs[0].shape[3]))
                    sides = (module.kernel_size[0], module.stride[0], module.padding[0])
                    found.setdefault(name, Conv(module.in_channels, module.out_channels, *sides, image))

            return hook

        hooks = [module.register_forward_hook(seen(name)) for name, module in _layers(self.template).items()]
        try:
            with torch.no_grad():
                out = self.template(torch.zeros(2, *self.observation))
        except Exception as raised:
            said = f"{type(raised).__name__}: {one_line(raised)}"
            raise UserError(f"the network {self.name} fails on observations {self.observation}: {said}") from raised
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(out, Tensor) or out.shape != (2, self.outputs):
            shape = tuple(out.shape) if isinstance(out, Tensor) else shown(out)
            raise UserError(
                f"the network {self.name} returned {shape} for a batch of 2; it must return (2, {self.outputs}): "
                f"actions x atoms, as it is told"
            )
        if not found:
            raise UserError(f"the network {self.name} has no Linear or square Conv2d with a bias to watch")
        return found

    def group(self, name: str) -> Group:
        """The last two layers are the head."""
        return "head" if name in tuple(self.layers)[-2:] else "encoder"

    def wire(self, run: Executor[Any], x: Any) -> NoReturn:
        """A module is called, not wired."""
        raise TypeError("a module is called, not wired")


@dataclass(frozen=True)
class ModuleEnsemble(Ensemble):
    """Members of somebody's module, one after another."""

    @cached_property
    def module(self) -> ModuleNetwork:
        """The network, as what it is."""
        if not isinstance(self.network, ModuleNetwork):
            raise TypeError(f"{self.network} is described, not a module")
        return self.network

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters, members first."""
        return {name: (self.members, *p.shape) for name, p in self.module.template.named_parameters()}

    def initial(self, generator: torch.Generator, device: torch.device | str = "cpu") -> Params:
        """Make the module once for every member, each with a seed of its own."""
        drawn: list[Params] = []
        for _ in range(self.members):
            seed = int(torch.randint(2**31 - 1, (), generator=generator))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                drawn.append({name: p.detach().float() for name, p in self.module.make().named_parameters()})
        return {name: torch.stack([each[name] for each in drawn]).to(device) for name in drawn[0]}

    def forward(
        self,
        params: Params,
        observation: Tensor,
        around: Callable[[Executor[Tensor]], Executor[Tensor]] | None = None,
        taus: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return z[member, batch, action, atom]; `around` is shown what each layer reads of the one before."""
        x = self.seen(observation).contiguous()  # stacks of a GPU's replay have their channels last
        template = self.module.template.to(x.device)
        z: list[Tensor] = []
        for member in range(self.members):
            hooks = [] if around is None else _noting(template, self.module.layers, around)
            try:
                own = {name: p[member] for name, p in params.items()}
                z.append(torch.func.functional_call(template, own, (x,)))
            finally:
                for hook in hooks:
                    hook.remove()
        return torch.stack(z).view(self.members, len(x), self.actions, self.atoms)


_REMEMBERING = nn.modules.batchnorm._NormBase


class _Units:
    """An executor that has one piece: units that somebody's module has already put through its activation."""

    def relu(self, x: Tensor, units: str) -> Tensor:
        return x


def _layers(module: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and square convolutions with a bias, by name."""
    return {name: layer for name, layer in module.named_modules() if name and _plain(layer)}


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    if not isinstance(layer, nn.Conv2d) or layer.bias is None or layer.groups != 1:
        return False
    return len({*layer.kernel_size}) == len({*layer.stride}) == len({*layer.padding}) == 1


def _noting(
    template: nn.Module, layers: dict[str, Layer], around: Callable[[Executor[Tensor]], Executor[Tensor]]
) -> list[Any]:
    """Hooks that show `around` what every layer but the first reads, once in a call."""
    run, passed = around(_Units()), list[str]()  # type: ignore[arg-type]

    def hook(name: str) -> Callable[..., Any]:
        def reading(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            before, first = passed[-1:], name not in passed
            passed.append(name)
            return (run.relu(inputs[0], before[0]), *inputs[1:]) if before and first else None

        return reading

    modules = dict(template.named_modules())
    return [modules[name].register_forward_pre_hook(hook(name)) for name in layers]
