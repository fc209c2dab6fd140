"""scikit-learn estimators: discovery as ``fit``, coordinates as ``transform``."""

from isthmus.estimators._autoencoder import AutoencoderDenoising, BottleneckAutoencoder
from isthmus.estimators._classifier import BottleneckClassifier
from isthmus.estimators._regressor import BottleneckRegressor

__all__ = ["AutoencoderDenoising", "BottleneckAutoencoder", "BottleneckClassifier", "BottleneckRegressor"]
