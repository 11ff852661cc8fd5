"""What approximates: network descriptions, and the stacked ensemble that runs them."""

from steadyq.nets.encoders import MLP, MinAtarNet, Network, ResNet
from steadyq.nets.ensemble import Ensemble, Params

__all__ = ["MLP", "Ensemble", "MinAtarNet", "Network", "Params", "ResNet"]
