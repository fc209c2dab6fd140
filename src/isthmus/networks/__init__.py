"""Networks: ordinary ``torch.nn.Module``s with one contract, :class:`Network`."""

from isthmus.networks._convolutional import ConvolutionalNet, ConvolutionalTrace
from isthmus.networks._fully_connected import FullyConnected
from isthmus.networks._kernel_ridge import KernelRidge
from isthmus.networks._leaky_resnet import LeakyResNet, LeakyStep
from isthmus.networks._network import Layer, Network
from isthmus.networks._reading import from_torch
from isthmus.networks._smooth import SmoothNetwork
from isthmus.networks._standardized import FAMILIES, Standardized

__all__ = [
    "FAMILIES",
    "ConvolutionalNet",
    "ConvolutionalTrace",
    "FullyConnected",
    "KernelRidge",
    "Layer",
    "LeakyResNet",
    "LeakyStep",
    "Network",
    "SmoothNetwork",
    "Standardized",
    "from_torch",
]
