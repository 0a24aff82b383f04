"""Anything -> a functional Graph with the user's source lines.

`from_torch` takes modules and exported programs, `from_fx` the ATen graphs that torch.compile hands
to a backend. `structure` turns calls into lists of tensors and back, `fingerprint` names a model
without exporting it, `rebind` gives a graph without weights those of a model, and `capture` keeps
captured graphs between processes.
"""

from anabranch.frontend.captured import Captured
from anabranch.frontend.from_fx import capture_fx
from anabranch.frontend.from_torch import capture

__all__ = ["Captured", "capture", "capture_fx"]
