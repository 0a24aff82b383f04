"""Which kernel runs a task: providers propose, measurement decides (`select`)."""

from anabranch.kernels.library import ALL, LIMITED, PROVIDERS
from anabranch.kernels.select import select

__all__ = ["ALL", "LIMITED", "PROVIDERS", "select"]
