"""The door to Ray, which need not be installed: only workers that it holds need it."""

from __future__ import annotations

import importlib
from typing import Any

from anabranch.errors import OptionError


def ray_package() -> Any:
    """The module `ray`; OptionError, saying what to install, without it."""
    try:
        return importlib.import_module("ray")
    except ImportError as missing:
        raise OptionError(
            "workers of Ray need the package ray",
            f"{type(missing).__name__}: {missing}",
            "pip install 'anabranch[ray]', or use workers='auto' for the GPUs of this machine",
        ) from missing
