"""What approximates: network descriptions, and the stacked ensemble that runs them."""

from steadyq.nets.encoders import MLP, Impala, MinAtarNet, Nature, ResNet
from steadyq.nets.ensemble import Ensemble, Params
from steadyq.nets.layers import Network

__all__ = ["MLP", "Ensemble", "Impala", "MinAtarNet", "Nature", "Network", "Params", "ResNet"]
