"""The networks there are: each an encoder, a hidden layer and outputs, wired once for every form."""

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal

from steadyq.errors import UserError
from steadyq.nets.layers import SIGMA, Conv, Executor, Group, Initial, Layer, LayerNorm, Linear, Noise, T, pooled

Norm = Literal["none", "layer"]
Activation = Literal["relu", "crelu"]
Pooling = Literal["flatten", "average"]


@dataclass(frozen=True)
class Described(ABC):
    """What all descriptions share: an encoder, a hidden layer over its latent, then outputs read off its units.

    With `norm` every layer but shortcuts and outputs is followed by a `LayerNorm` before anything else happens to what
    it puts out. With `dueling` the outputs are V + A - mean A, `atoms` values and `outputs` (actions x atoms)
    advantages. With `transition`, a number of actions, there is a model of the next latent beside it: two layers over
    latent and action, 3x3 convolutions where it is an image, and a predictor behind the hidden layer, as SPR and BBF
    have them; `wire` reads neither. With `contrast`, a number of units, there are a projection of the latent and a
    product that compares two of them, as CURL has them; `wire` reads neither of these either. With `noisy` the hidden
    layer and the outputs have noise, which begins at so much over the root of their inputs. With `cosines` the outputs
    are those of quantiles that come with an observation: the latent is multiplied by features of each, a linear layer
    of so many cosines, as in IQN. With `activation` crelu a hidden unit gives its positive and its negative part, and
    whoever reads it is twice as wide. With `spectral` some weights are divided by their largest singular value.
    """

    observation: tuple[int, ...]
    outputs: int
    _: KW_ONLY
    atoms: int = 1
    dueling: bool = False
    norm: Norm = "none"
    initial: Initial = "torch"
    transition: int = 0
    contrast: int = 0
    noisy: float = 0.0
    cosines: int = 0
    activation: Activation = "relu"
    spectral: bool = False

    @property
    @abstractmethod
    def body(self) -> dict[str, Layer]:
        """All layers but outputs and normalisation."""

    @property
    def output(self) -> str:
        """Name of the output layer, where there is one."""
        return "head"

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Body, normalisation, outputs."""
        body, found = self.body, dict[str, Layer]()
        for name, layer in body.items():
            found[name] = layer
            if self.norm == "layer" and not name.endswith("shortcut"):
                image = layer.image_out if isinstance(layer, Conv) else ()
                found[f"{name}.norm"] = LayerNorm(layer.outputs, image)
        features = self.wide(body[self.hidden_layer].outputs)
        sizes = (self.atoms, self.outputs) if self.dueling else (self.outputs,)
        if self.cosines:
            found["tau"] = Linear(self.cosines, body[self.hidden_layer].inputs)
        found |= {name: Linear(features, size) for name, size in zip(self.heads, sizes, strict=True)}
        return found | self.noises(found) | self.predicting

    def noises(self, layers: dict[str, Layer]) -> dict[str, Layer]:
        """The noise of the hidden layer and of the outputs, where they have any."""
        found = dict[str, Layer]()
        for name in (self.hidden_layer, *self.heads) if self.noisy else ():
            layer = layers[name]
            found[name + SIGMA] = Noise(layer.inputs, layer.outputs, self.noisy, getattr(layer, "flattens", ()))
        return found

    def wide(self, units: int) -> int:
        """Numbers that are read of so many units behind their activation."""
        return 2 * units if self.activation == "crelu" else units

    @property
    def spectral_layers(self) -> tuple[str, ...]:
        """The last hidden layer: one is enough (Gogianu et al. 2021)."""
        return (self.hidden_layer,) if self.spectral else ()

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Of the latent that the hidden layer reads."""
        return self.body[self.hidden_layer].input_shape

    @cached_property
    def predicting(self) -> dict[str, Layer]:
        """What an auxiliary loss adds: the model of the next latent and its predictor, or projection and product."""
        if not self.transition and not self.contrast:
            return {}
        if len(self.body) == 1:
            raise UserError("a loss of the latent needs a layer before the last hidden one: give network.hidden two")
        (units, *image), hidden = self.latent_shape, self.body[self.hidden_layer].outputs
        if self.contrast:
            return {
                "contrast.1": Linear(math.prod(self.latent_shape), hidden, flattens=self.latent_shape if image else ()),
                "contrast.1.norm": LayerNorm(hidden),
                "contrast.2": Linear(hidden, self.contrast),
                "contrast.2.norm": LayerNorm(self.contrast),
                "contrast.product": Linear(self.contrast, self.contrast),
            }
        size = (image[0], image[1]) if image else (0, 0)
        kind = partial(Conv, image=size) if image else Linear
        return {
            "transition.1": kind(units + self.transition, units),
            "transition.2": kind(units, units),
            "predictor": Linear(hidden, hidden),
        }

    @cached_property
    def hidden_layer(self) -> str:
        """Name of the last hidden layer."""
        return next(reversed(self.body))

    @property
    def heads(self) -> tuple[str, ...]:
        """The output layers."""
        return ("value", "advantage") if self.dueling else (self.output,)

    @cached_property
    def monitored(self) -> tuple[str, ...]:
        """All convolutions and linear layers that values come through, but shortcuts and noise."""
        return tuple(
            name
            for name, layer in self.layers.items()
            if isinstance(layer, (Conv, Linear)) and not name.endswith("shortcut") and name not in self.predicting
        )

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Each layer is read by the next, the last by the outputs."""
        found: dict[str, tuple[str, ...]] = {name: self.noise_too(reader) for name, reader in pairwise(self.body)}
        return {**found, self.hidden_layer: self.noise_too(*self.heads)}

    def noise_too(self, *readers: str) -> tuple[str, ...]:
        """Layers and their noise, which reads what they read."""
        return (*readers, *(name + SIGMA for name in readers if name + SIGMA in self.layers))

    def group(self, name: str) -> Group:
        """The last hidden layer and what lies beside and behind it are the head; the transition is of the encoder."""
        head = (self.hidden_layer, *self.heads, "tau", "predictor")
        beside = name.removesuffix(".norm").removesuffix(SIGMA) in head or name.startswith("contrast.")
        return "head" if beside else "encoder"

    def units(self, run: Executor[T], name: str, x: T, *, relu: bool = True, residual: T | None = None) -> T:
        """A layer, its normalisation, the sum with `residual`, its activation."""
        if self.norm == "none":
            fused = relu and self.activation == "relu"
            y = run.layer(name, x, relu=fused, residual=residual)
            return self.active(run, y, name) if relu and not fused else y
        return self.finished(run, name, run.layer(name, x), relu=relu, residual=residual)

    def finished(self, run: Executor[T], name: str, y: T, *, relu: bool = True, residual: T | None = None) -> T:
        """What follows a layer that has run by itself."""
        y = run.norm(f"{name}.norm", y) if self.norm == "layer" else y
        y = y if residual is None else run.add(y, residual)
        return self.active(run, y, name) if relu else y

    def active(self, run: Executor[T], x: T, units: str) -> T:
        """The activation of a layer's units."""
        return run.crelu(x, units) if self.activation == "crelu" else run.relu(x, units)

    @abstractmethod
    def latent(self, run: Executor[T], x: T) -> T:
        """What the encoder makes of x, for the hidden layer to read."""

    def following(self, run: Executor[T], x: T, step: int) -> T:
        """The next latent, after the action taken so many steps later."""
        return run.layer("transition.2", run.layer("transition.1", run.acted(x, step), relu=True), relu=True)

    def read(self, run: Executor[T], x: T) -> T:
        """A latent as the hidden layer reads it."""
        return x

    def project(self, run: Executor[T], x: T, *, plain: bool = False) -> T:
        """The last hidden units of a latent; plain ones before their ReLU and without noise."""
        x = self.read(run, x)
        return self.units(run, self.hidden_layer, x, relu=False) if plain else self.hidden_units(run, x)

    def hidden_units(self, run: Executor[T], x: T) -> T:
        """The last hidden layer, with its noise where it has any."""
        name = self.hidden_layer
        return self.finished(run, name, run.noisy(name, x)) if self.noisy else self.units(run, name, x)

    def contrasted(self, run: Executor[T], x: T) -> T:
        """Linear, LayerNorm, ReLU, linear, LayerNorm over a latent."""
        x = run.norm("contrast.1.norm", run.layer("contrast.1", x))
        return run.norm("contrast.2.norm", run.layer("contrast.2", run.relu(x, "contrast.1")))

    def outputs_of(self, run: Executor[T], x: T) -> T:
        """The outputs from a latent."""
        if not self.cosines:
            return self.values(run, self.project(run, x))
        quantiles = run.layer("tau", run.cosines(self.cosines), relu=True)
        return self.values(run, self.hidden_units(run, run.asked(self.read(run, x), quantiles)))

    def values(self, run: Executor[T], x: T) -> T:
        """The outputs from the last hidden units."""
        if self.dueling:
            return run.dueling(self.linear(run, "value", x), self.linear(run, "advantage", x))
        return self.linear(run, self.output, x)

    def linear(self, run: Executor[T], name: str, x: T) -> T:
        """An output layer, with its noise where it has any."""
        return run.noisy(name, x) if self.noisy else run.layer(name, x)

    def wire(self, run: Executor[T], x: T) -> T:
        """Encoder, hidden layer, outputs."""
        return self.outputs_of(run, self.latent(run, x))


@dataclass(frozen=True)
class Convolutional(Described):
    """An encoder of images whose latent is perhaps renormalised, and pooled before the hidden layer."""

    _: KW_ONLY
    pooling: Pooling = "flatten"
    renormalise: bool = False

    def projection(self, channels: int, image: tuple[int, int], width: int) -> Linear:
        """The hidden layer over the latent."""
        if self.pooling == "average":
            return Linear(channels, width)
        return Linear(channels * math.prod(image), width, flattens=(channels, *image))

    @abstractmethod
    def encode(self, run: Executor[T], x: T) -> T:
        """The latent of images, before pooling."""

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Of the last convolution's output."""
        last = list(self.body.values())[-2]
        return (self.wide(last.outputs), *last.image_out) if isinstance(last, Conv) else super().latent_shape

    def latent(self, run: Executor[T], x: T) -> T:
        """Encoded, and perhaps renormalised."""
        x = self.encode(run, x)
        return run.renormalise(x) if self.renormalise else x

    def following(self, run: Executor[T], x: T, step: int) -> T:
        """Renormalised as the latent is."""
        x = super().following(run, x, step)
        return run.renormalise(x) if self.renormalise else x

    def read(self, run: Executor[T], x: T) -> T:
        """All positions or their mean."""
        return run.average(x) if self.pooling == "average" else x


@dataclass(frozen=True)
class Residual(Convolutional):
    """An encoder in residual blocks, each of a conv1 and a conv2."""

    observation: tuple[int, int, int]

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Each block's first convolution, and the hidden layer; all others add to the residual stream."""
        found: dict[str, tuple[str, ...]] = {
            name: (name.replace("conv1", "conv2"),) for name in self.layers if name.endswith("conv1")
        }
        return {**found, self.hidden_layer: self.noise_too(*self.heads)}

    @property
    def spectral_layers(self) -> tuple[str, ...]:
        """The blocks' convolutions, as in Beyond The Rainbow: neither what opens a stage nor linear layers."""
        blocks = tuple(name for name in self.body if name.endswith(("conv1", "conv2")))
        return blocks if self.spectral else ()


@dataclass(frozen=True)
class ResNet(Residual):
    """The paper's encoder (layer table l.835): a stem and four stages of two post-activation blocks, no normalisation.

    Stage widths are (8, 16, 32, 64) x `scale`. Atari strides are (1, 2, 2, 2); Procgen's (2, 2, 2, 2).
    Where a block changes shape its shortcut is a strided 1x1 convolution: trainable, but not among the 19 layers
    the paper's table monitors.
    """

    scale: int = 4
    head_multiple: int = 128
    strides: tuple[int, int, int, int] = (1, 2, 2, 2)

    @property
    def output(self) -> str:
        """The paper's name."""
        return "quantile head"

    @cached_property
    def body(self) -> dict[str, Layer]:
        """Stem, blocks and head under the paper's names."""
        if self.activation == "crelu":
            raise UserError("crelu does not fit a resnet: its shortcuts would add an image that is twice as wide")
        channels, *image = self.observation
        size = (image[0], image[1])
        width = 8 * self.scale
        layers: dict[str, Layer] = {"stem.0": Conv(channels, width, image=size)}
        for stage, stride in enumerate(self.strides, start=1):
            wider = 8 * self.scale * 2 ** (stage - 1)
            for block in range(2):
                first = Conv(width, wider, stride=stride if block == 0 else 1, image=size)
                name = f"l{stage}.{block}"
                layers[f"{name}.conv1"] = first
                layers[f"{name}.conv2"] = Conv(wider, wider, image=first.image_out)
                if first.stride != 1 or width != wider:
                    layers[f"{name}.shortcut"] = Conv(width, wider, size=1, stride=first.stride, padding=0, image=size)
                width, size = wider, first.image_out
        return {**layers, "head.1": self.projection(width, size, self.head_multiple * self.scale)}

    def encode(self, run: Executor[T], x: T) -> T:
        """Block(x) = ReLU(conv2(ReLU(conv1(x))) + shortcut(x))."""
        x = self.units(run, "stem.0", x)
        for stage in range(1, 5):
            for block in range(2):
                name = f"l{stage}.{block}"
                short = run.layer(f"{name}.shortcut", x) if f"{name}.shortcut" in self.layers else x
                x = self.units(run, f"{name}.conv1", x)
                x = self.units(run, f"{name}.conv2", x, residual=short)
        return x


@dataclass(frozen=True)
class Impala(Residual):
    """The encoder of IMPALA and BBF: three stages of a convolution, max-pooling and two pre-activation blocks.

    Stage widths are (16, 32, 32) x `width`; BBF takes width 4, renormalises the latent and has 2048 hidden units.
    """

    width: int = 4
    hidden: int = 2048

    @cached_property
    def body(self) -> dict[str, Layer]:
        """stage1.conv, stage1.0.conv1, stage1.0.conv2, ..., hidden."""
        channels, height, width = self.observation
        size, layers = (height, width), dict[str, Layer]()
        for stage, multiple in enumerate((16, 32, 32), start=1):
            wide = multiple * self.width
            layers[f"stage{stage}.conv"] = Conv(channels, wide, image=size)
            channels, size = wide, pooled(size)
            for block in range(2):
                for conv in ("conv1", "conv2"):
                    layers[f"stage{stage}.{block}.{conv}"] = Conv(self.wide(wide), wide, image=size)
        return {**layers, "hidden": self.projection(self.wide(channels), size, self.hidden)}

    def encode(self, run: Executor[T], x: T) -> T:
        """Block(x) = conv2(ReLU(conv1(ReLU(x)))) + x; a ReLU after the last."""
        last = ""
        for stage in range(1, 4):
            last = f"stage{stage}.conv"
            x = run.max_pool(self.units(run, last, x, relu=False))
            for block in range(2):
                name = f"stage{stage}.{block}"
                inner = self.units(run, f"{name}.conv1", self.active(run, x, last))
                last = f"{name}.conv2"
                x = self.units(run, last, inner, relu=False, residual=x)
        return self.active(run, x, last)


@dataclass(frozen=True)
class MinAtarNet(Described):
    """The network of the MinAtar paper: one 3x3 convolution and one hidden layer."""

    observation: tuple[int, int, int]
    channels: int = 16
    hidden: int = 128

    @cached_property
    def body(self) -> dict[str, Layer]:
        """conv, hidden."""
        inputs, height, width = self.observation
        conv = Conv(inputs, self.channels, padding=0, image=(height, width))
        features = (self.wide(self.channels), *conv.image_out)
        return {"conv": conv, "hidden": Linear(math.prod(features), self.hidden, flattens=features)}

    def latent(self, run: Executor[T], x: T) -> T:
        """The convolution's units."""
        return self.units(run, "conv", x)


@dataclass(frozen=True)
class MLP(Described):
    """Fully connected layers over a flat observation."""

    hidden: tuple[int, ...] = (128, 128)

    @cached_property
    def body(self) -> dict[str, Layer]:
        """fc1, fc2, ..."""
        read = (math.prod(self.observation), *map(self.wide, self.hidden))
        return {f"fc{i}": Linear(*sizes) for i, sizes in enumerate(zip(read, self.hidden, strict=False), start=1)}

    def latent(self, run: Executor[T], x: T) -> T:
        """ReLU after each hidden layer but the last."""
        for name in list(self.body)[:-1]:
            x = self.units(run, name, x)
        return x
