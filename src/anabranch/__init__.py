"""Anabranch: a PyTorch model in, a callable out that computes the same thing faster on a GPU.

>>> import anabranch
>>> fast = anabranch.compile(model, (x,))                # doctest: +SKIP
>>> y = fast(x)                                          # doctest: +SKIP

The modules behind these names are imported when the first of them is asked for: it takes seconds,
and whoever starts as a part of the package (the command line, which must hear Ctrl-C from the
start, and the process that tries kernels, which needs half of it) goes another way.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.api import compile, compile_step, load, load_step
    from anabranch.compiled.calls import Compiled
    from anabranch.compiled.training_step import TrainingStep
    from anabranch.errors import (
        AnabranchError,
        ArtifactError,
        CaptureError,
        DataDependentError,
        InputError,
        NumericsError,
        OnnxError,
        OptionError,
        ScheduleError,
        TargetError,
        WeightsError,
        WriteError,
    )
    from anabranch.frontend.onnx.importer import from_onnx
    from anabranch.integrations.warming import warm
    from anabranch.options import Options

__version__ = "0.1.0"

__all__ = [
    "AnabranchError",
    "ArtifactError",
    "CaptureError",
    "Compiled",
    "DataDependentError",
    "InputError",
    "NumericsError",
    "OnnxError",
    "OptionError",
    "Options",
    "ScheduleError",
    "TargetError",
    "TrainingStep",
    "WeightsError",
    "WriteError",
    "compile",
    "compile_step",
    "from_onnx",
    "load",
    "load_step",
    "warm",
]

_OF_OTHERS = {
    "Compiled": "compiled.calls",
    "Options": "options",
    "TrainingStep": "compiled.training_step",
    "compile": "api",
    "compile_step": "api",
    "from_onnx": "frontend.onnx.importer",
    "load": "api",
    "load_step": "api",
    "warm": "integrations.warming",
}
"""Where names are that are no errors."""
_FILES = ("api", "errors", "options")
"""Which are there without being imported, as they would be if this file imported them."""

if not TYPE_CHECKING:  # who checks types would take every name for one of these

    def __getattr__(name: str) -> Any:
        if name in _FILES:
            return _imported(name)
        if name not in __all__:
            raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
        value = getattr(_imported(_OF_OTHERS.get(name, "errors")), name)
        if name in ("compile", "compile_step", "load", "load_step"):
            _imported("integrations").name_backend()
        return value

    def _imported(name: str) -> Any:
        """Thousands of modules make no garbage: looking for some took a quarter of the time."""
        with import_module("anabranch.ir.gc_pause").uncollected():
            return import_module(f"anabranch.{name}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_FILES})
