"""As much of torchvision as the programs use, on random data."""

from torchvision import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
