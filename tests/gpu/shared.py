"""A cache that all GPU tests of a run share: equal kernels are compiled and checked once."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "GPU_TESTS_CACHE"
"""Set by `tools/gpu_tests.py` to an empty folder of the run."""


def shared_cache(otherwise: Path | None = None) -> Path | None:
    """The folder of the run; `otherwise` where tests run without one."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else otherwise
