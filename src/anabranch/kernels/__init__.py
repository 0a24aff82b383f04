"""Which kernel runs a task: providers propose, measurement decides (`tuning.select`)."""

from anabranch.kernels.library import ALL, LIMITED, PROVIDERS, in_order, with_all_engines

__all__ = ["ALL", "LIMITED", "PROVIDERS", "in_order", "with_all_engines"]
