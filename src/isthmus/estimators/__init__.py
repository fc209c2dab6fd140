"""scikit-learn estimators: discovery as ``fit``, coordinates as ``transform``."""

from isthmus.estimators.autoencoder import AutoencoderDenoising, BottleneckAutoencoder
from isthmus.estimators.classifier import BottleneckClassifier
from isthmus.estimators.regressor import BottleneckRegressor

__all__ = ["AutoencoderDenoising", "BottleneckAutoencoder", "BottleneckClassifier", "BottleneckRegressor"]
