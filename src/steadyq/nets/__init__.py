"""What approximates: network descriptions, and the stacked ensemble that runs them."""

from steadyq.nets.branches import Branches
from steadyq.nets.encoders import MLP, Described, Impala, MinAtarNet, Residual, ResNet
from steadyq.nets.ensemble import Ensemble, Params
from steadyq.nets.layered import Layered
from steadyq.nets.layers import Conv, LayerNorm, Linear, Network
from steadyq.nets.modules import ModuleEnsemble, ModuleNetwork
from steadyq.nets.packing import Packing

__all__ = [
    "MLP",
    "Branches",
    "Conv",
    "Described",
    "Ensemble",
    "Impala",
    "LayerNorm",
    "Layered",
    "Linear",
    "MinAtarNet",
    "ModuleEnsemble",
    "ModuleNetwork",
    "Network",
    "Packing",
    "Params",
    "ResNet",
    "Residual",
]
