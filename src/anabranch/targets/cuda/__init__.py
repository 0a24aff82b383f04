"""The CUDA target: one multi-stream CUDA graph per plan, timed by replays on the device."""

from anabranch.targets.cuda.device import available, gpus
from anabranch.targets.cuda.target import open_cuda

__all__ = ["available", "gpus", "open_cuda"]
