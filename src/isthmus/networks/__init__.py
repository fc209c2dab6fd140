"""Networks: ordinary ``torch.nn.Module``s with one extra method, ``trace(X)``."""

from isthmus.networks.from_modules import from_torch
from isthmus.networks.fully_connected import FullyConnected
from isthmus.networks.hourglass import Hourglass
from isthmus.networks.kernel import KernelRidge
from isthmus.networks.leaky_resnet import LeakyResNet, LeakyStep

__all__ = ["FullyConnected", "Hourglass", "KernelRidge", "LeakyResNet", "LeakyStep", "from_torch"]
