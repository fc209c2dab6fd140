"""Networks: ordinary ``torch.nn.Module``s with one extra method, ``trace(X)``."""

from isthmus.networks.compact import CompactNetwork
from isthmus.networks.convolutional import ConvolutionalNet
from isthmus.networks.convolutional_trace import ConvolutionalTrace
from isthmus.networks.from_modules import from_torch
from isthmus.networks.fully_connected import FullyConnected
from isthmus.networks.hourglass import Hourglass
from isthmus.networks.kernel import KernelRidge
from isthmus.networks.layers import PartlyLinear
from isthmus.networks.leaky_resnet import LeakyResNet, LeakyStep

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
