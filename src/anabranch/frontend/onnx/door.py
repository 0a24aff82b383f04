"""The door to onnx and onnx-ir, which need not be installed: only reading a file needs them."""

from __future__ import annotations

import importlib
from typing import Any

from anabranch.errors import OptionError


def onnx_packages() -> tuple[Any, Any]:
    """The modules `onnx` and `onnx_ir`; OptionError, saying what to install, without them."""
    try:
        onnx, ir = importlib.import_module("onnx"), importlib.import_module("onnx_ir")
        importlib.import_module("onnx_ir.passes.common")
    except ImportError as missing:
        raise OptionError(
            "files of ONNX need the packages onnx and onnx-ir",
            f"{type(missing).__name__}: {missing}",
            "pip install 'anabranch[onnx]'",
        ) from missing
    return onnx, ir
