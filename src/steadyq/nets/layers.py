"""What networks are described with: named layers, the pieces between them, and what a description must say.

A description holds no parameters. `wire(run, x)` runs the network through an executor, one method for each piece: a
loop over members, grouped tensors or GPU kernels (`forms.py`), or a mere record of the pieces (`trace.py`).
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

T = TypeVar("T")
Group = Literal["encoder", "head", "prior", "kept"]
"""Which part of a network a layer belongs to: the last hidden layer and the outputs are the head, all before it the
encoder; a prior never learns, nor does what an injection keeps.
"""
FIXED: tuple[Group, ...] = ("prior", "kept")
"""Groups that never learn."""
Initial = Literal["torch", "xavier"]
"""How weights are drawn: uniform in +-1/sqrt(fan-in), biases too, as PyTorch does; or Xavier's uniform, biases zero."""


@dataclass(frozen=True)
class Conv:
    """A square convolution with bias."""

    inputs: int
    outputs: int
    size: int = 3
    stride: int = 1
    padding: int = 1
    image: tuple[int, int] = (0, 0)  # input height and width, for shape tables and cost

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of one member's weight."""
        return (self.outputs, self.inputs, self.size, self.size)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.inputs, *self.image)

    @property
    def image_out(self) -> tuple[int, int]:
        """Output height and width."""
        height, width = ((side + 2 * self.padding - self.size) // self.stride + 1 for side in self.image)
        return height, width

    @property
    def written(self) -> int:
        """Numbers put out per input."""
        return self.outputs * math.prod(self.image_out)

    @property
    def multiplications(self) -> int:
        """Multiply-adds per input."""
        return math.prod(self.weight_shape) * math.prod(self.image_out)


@dataclass(frozen=True)
class Linear:
    """A linear map with bias."""

    inputs: int
    outputs: int
    flattens: tuple[int, ...] = ()  # the feature map it flattens, where it does

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of one member's weight."""
        return (self.outputs, self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.flattens or (self.inputs,)

    @property
    def written(self) -> int:
        """Numbers put out per input."""
        return self.outputs

    @property
    def multiplications(self) -> int:
        """Multiply-adds per input."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class LayerNorm:
    """Each sample brought to mean 0 and variance 1 over all its features, then a gain and a bias for each unit.

    Over an image that is all channels and positions together with one gain a channel: how large a sample's features
    are is lost, where they are is kept. (Flax's default, which purejaxql uses, treats every position alone.)
    """

    outputs: int
    image: tuple[int, ...] = ()  # height and width, where its units are channels

    @property
    def inputs(self) -> int:
        """As many as it puts out."""
        return self.outputs

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of one member's gains."""
        return (self.outputs,)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.outputs, *self.image)

    @property
    def written(self) -> int:
        """Numbers put out per input."""
        return math.prod(self.input_shape)

    @property
    def multiplications(self) -> int:
        """Multiply-adds per input: one a number for the gain."""
        return self.written


@dataclass(frozen=True)
class Noise:
    """How much a linear layer's weights and biases spread: beside W and b of layer `name`, those of `name.sigma`.

    Of factorised Gaussian noise (Fortunato et al. 2018), W + sigma_W x f(out) f(in)^T and b + sigma_b x f(out), the
    second summand is the linear map f(out) x (sigma_W (f(in) x) + sigma_b) of x: a layer like any other.
    """

    inputs: int
    outputs: int
    spread: float = 0.5  # sigma_0: all begin at sigma_0 / sqrt(inputs)
    flattens: tuple[int, ...] = ()

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of one member's weight."""
        return (self.outputs, self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.flattens or (self.inputs,)

    @property
    def written(self) -> int:
        """Numbers put out per input."""
        return self.outputs

    @property
    def multiplications(self) -> int:
        """Multiply-adds per input."""
        return self.inputs * self.outputs


SIGMA = ".sigma"
"""Behind the name of a layer whose noise it is."""

Layer = Conv | Linear | LayerNorm | Noise


def pooled(image: tuple[int, int]) -> tuple[int, int]:
    """Height and width after `Executor.max_pool`."""
    return (image[0] + 1) // 2, (image[1] + 1) // 2


class Executor(Protocol[T]):
    """Runs a network's pieces; T is what stands for activations. A form may lack a piece: `forms.missing` names it."""

    def layer(self, name: str, x: T, *, relu: bool = False, residual: T | None = None) -> T:
        """A convolution or linear layer (which flattens images), the sum with `residual`, ReLU."""

    def noisy(self, name: str, x: T) -> T:
        """A linear layer with its noise, or without where none is given."""

    def norm(self, name: str, x: T) -> T:
        """A `LayerNorm`."""

    def relu(self, x: T, units: str) -> T:
        """ReLU by itself; `units` is the layer whose units are seen behind it."""

    def crelu(self, x: T, units: str) -> T:
        """Each unit's ReLU(x) and ReLU(-x), side by side: twice as many channels or features."""

    def add(self, x: T, y: T) -> T:
        """The sum of two activations."""

    def max_pool(self, x: T) -> T:
        """Largest of 3x3 positions at every second one, padded as TensorFlow's SAME: n rows become ceil(n / 2)."""

    def average(self, x: T) -> T:
        """The mean of each channel over all positions."""

    def renormalise(self, x: T) -> T:
        """Each sample's features stretched to between 0 and 1: (x - min) / (max - min + 1e-5), as in SPR and BBF."""

    def dueling(self, value: T, advantage: T) -> T:
        """V + A - mean of A over actions, from flat `[..., atom]` and `[..., action * atom]`."""

    def acted(self, x: T, step: int) -> T:
        """A latent and the action taken so many steps later: planes behind its channels, or numbers behind its units,
        of which the action's are 1 and the others 0.
        """

    def together(self, *batches: T) -> T:
        """Several batches as one, in their order."""

    def offset(self, x: T, by: T, scale: float) -> T:
        """x + scale x by, of which x alone learns."""

    def cosines(self, count: int) -> T:
        """cos(pi i tau), i = 0, ..., count - 1, of every quantile tau that each sample is asked for."""

    def asked(self, x: T, quantiles: T) -> T:
        """A sample's features times those of each of its quantiles: as many rows a sample."""


class Wiring(Protocol):
    """Layers by name, and how some of them are run on an observation."""

    @property
    def layers(self) -> dict[str, Layer]:
        """All layers, whether this runs them or not."""

    def __hash__(self) -> int:
        """Descriptions are values."""

    def wire(self, run: Executor[T], x: T) -> T | tuple[T, ...]:
        """Run on x; the last piece makes the last of what it returns."""


class Network(Protocol):
    """A network: its layers by name, which are watched for spikes, who reads whom, and how they are wired."""

    @property
    def layers(self) -> dict[str, Layer]:
        """All layers, in the order they run."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The output layers."""

    @property
    def initial(self) -> Initial:
        """How weights are drawn."""

    @property
    def cosines(self) -> int:
        """Size of the embedding of the quantiles that it is asked for; 0 where it puts out what it puts out."""

    @property
    def transition(self) -> int:
        """Actions that a model of the next latent knows, where the network has one; 0 without."""

    @property
    def spectral_layers(self) -> tuple[str, ...]:
        """Layers whose weight is divided by its largest singular value (`spectral.py`)."""

    @property
    def monitored(self) -> tuple[str, ...]:
        """Layers whose spike ratio is measured."""

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Hidden layers whose units are read by the named layers and by nothing else: units that can be recycled.

        Layers that add to a residual stream are not among them; a normalisation counts as part of the layer before it.
        """

    def group(self, name: str) -> Group:
        """The part of the network that a layer belongs to."""

    def __hash__(self) -> int:
        """Descriptions are values."""

    def wire(self, run: Executor[T], x: T) -> T:
        """Run the network on x; returns the flat outputs."""


class Encoding(Network, Protocol):
    """A network that says what lies between its encoder and its outputs."""

    def latent(self, run: Executor[T], x: T) -> T:
        """What the encoder makes of x."""

    def following(self, run: Executor[T], x: T, step: int) -> T:
        """The next latent, after the action taken so many steps later."""

    def project(self, run: Executor[T], x: T, *, plain: bool = False) -> T:
        """The last hidden units of a latent; plain ones before their ReLU and without noise."""

    def contrasted(self, run: Executor[T], x: T) -> T:
        """What a contrastive loss compares latents by."""

    def outputs_of(self, run: Executor[T], x: T) -> T:
        """The outputs from a latent."""
