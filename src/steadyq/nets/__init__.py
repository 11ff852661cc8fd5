"""What approximates: network descriptions, and the stacked ensemble that runs them."""

from steadyq.nets.encoders import MLP, Described, Impala, MinAtarNet, Residual, ResNet
from steadyq.nets.ensemble import Ensemble, Params
from steadyq.nets.layered import Layered
from steadyq.nets.layers import Conv, LayerNorm, Linear, Network
from steadyq.nets.modules import ModuleEnsemble, ModuleNetwork

__all__ = [
    "MLP",
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
    "Params",
    "ResNet",
    "Residual",
]
