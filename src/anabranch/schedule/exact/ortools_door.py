"""The door to OR-tools' CP-SAT, which need not be installed."""

from __future__ import annotations

import importlib
from typing import Any

from anabranch.errors import OptionError


def cp_sat() -> Any:
    """The module `ortools.sat.python.cp_model`; OptionError, saying what to install, without it."""
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as missing:
        raise OptionError(
            "exact schedules need OR-tools",
            f"{type(missing).__name__}: {missing}",
            "pip install 'anabranch[solver]'",
        ) from missing
