"""Networks: ordinary ``torch.nn.Module``s with one extra method, ``trace(X)``."""

from isthmus.networks._convolutional import ConvolutionalNet, ConvolutionalTrace
from isthmus.networks._fully_connected import CompactNetwork, FullyConnected, Hourglass, PartlyLinear
from isthmus.networks._kernel_ridge import KernelRidge
from isthmus.networks._leaky_resnet import LeakyResNet, LeakyStep
from isthmus.networks._reading import from_torch

__all__ = [
    "CompactNetwork",
    "ConvolutionalNet",
    "ConvolutionalTrace",
    "FullyConnected",
    "Hourglass",
    "KernelRidge",
    "LeakyResNet",
    "LeakyStep",
    "PartlyLinear",
    "from_torch",
]
