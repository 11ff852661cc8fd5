"""Which neighbouring pieces of a network the kernels form runs as one autograd node."""

from dataclasses import dataclass
from functools import cache

from steadyq.device.kernels.launch import native
from steadyq.device.kernels.trunk import Program, Step
from steadyq.nets.layers import Conv, Wiring
from steadyq.nets.trace import Piece, Value, pieces, trace


@dataclass(frozen=True)
class Joined:
    """Neighbouring pieces as one program: numbers of the values it reads and makes, and names of its convolutions."""

    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    convolutions: tuple[str, ...]


Part = Joined | tuple[int, Piece]
"""A program, or a piece by itself with the number of the value it makes."""


@cache
def parts(network: Wiring) -> tuple[Part, ...]:
    """The network's pieces in order, joined where they are convolutions that the kernels are written for, max-poolings
    and ReLUs of images.
    """
    found: list[Part] = []
    together: dict[int, Piece] = {}
    images = set[int]()
    for number, piece in enumerate(pieces(network), start=1):
        conv = _convolution(network, piece)
        seen = piece.kind in ("relu", "norm", "add", "renormalise") and piece.inputs[0] in images
        if conv is not None or piece.kind == "max_pool" or seen:
            images.add(number)
        written = conv is not None and native(conv.size, conv.stride, conv.padding)
        if written or piece.kind == "max_pool" or (piece.kind == "relu" and seen):
            together[number] = piece
        else:
            found += [*_joined(network, together), (number, piece)]
            together = {}
    return (*found, *_joined(network, together))


def _joined(network: Wiring, together: dict[int, Piece]) -> list[Part]:
    """Pieces as one program; mere ReLUs, or nothing, stay as they are."""
    if all(piece.kind == "relu" for piece in together.values()):
        return list(together.items())
    ordered, ends = trace(network)
    every = dict(enumerate(ordered, start=1))
    inputs = dict.fromkeys(i for piece in together.values() for i in piece.inputs if i not in together)
    read = {i for number, piece in every.items() if number not in together for i in piece.inputs}
    outputs = [number for number in together if number in read or number in ends]
    local = {number: i for i, number in enumerate((*inputs, *together))}
    steps = tuple(_step(network, piece, local) for piece in together.values())
    program = Program(len(inputs), steps, tuple(local[number] for number in outputs))
    names = tuple(piece.arguments[0] for piece in together.values() if piece.kind == "layer")
    return [Joined(program, tuple(inputs), tuple(outputs), names)]


def _step(network: Wiring, piece: Piece, local: dict[int, int]) -> Step:
    source = local[piece.inputs[0]]
    conv, options = _convolution(network, piece), dict(piece.options)
    if conv is None:
        return Step("pool" if piece.kind == "max_pool" else "relu", source)
    residual = options.get("residual")
    added = local[residual.number] if isinstance(residual, Value) else None
    return Step("conv", source, added, options.get("relu", False), conv.stride)


def _convolution(network: Wiring, piece: Piece) -> Conv | None:
    layer = network.layers[piece.arguments[0]] if piece.kind == "layer" else None
    return layer if isinstance(layer, Conv) else None
