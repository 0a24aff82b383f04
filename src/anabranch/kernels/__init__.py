"""Which kernel runs a task: providers propose, measurement decides (`select`)."""

from anabranch.kernels.library import GENERATED, PROVIDERS
from anabranch.kernels.select import select

__all__ = ["GENERATED", "PROVIDERS", "select"]
