"""Templates under former names, as plans saved and profiles recorded before 2026-11-27 have them.

triton.pair pair:32x64x64x64.k1.w4.s3   ->   triton.gemm_chain gemm_chain:32x64x64x64.k1.w4.s3
"""

from __future__ import annotations

import re
from dataclasses import replace

from anabranch.ir.task import GENERATED, Kernel

TEMPLATES = {"pair": "gemm_chain", "abreast": "horizontal"}
"""Former names and those of today."""
_FORMER = {now: then for then, now in TEMPLATES.items()}
_THEN = re.compile(rf"\b({'|'.join(TEMPLATES)})\b")
_NOW = re.compile(rf"\b({'|'.join(_FORMER)})\b")


def with_current_names(text: str) -> str:
    """The name of a template, or the text of a variant, as it is now.

    >>> with_current_names("abreast:rows:1x32.w4+pointwise:512.w4")
    'horizontal:rows:1x32.w4+pointwise:512.w4'
    """
    return _THEN.sub(lambda found: TEMPLATES[found[1]], text)


def with_former_names(kernel: Kernel) -> Kernel | None:
    """The kernel as it was recorded then; None if its names are the same today."""
    now = str(kernel.variant)
    then = _NOW.sub(lambda found: _FORMER[found[1]], now)
    if kernel.provider != GENERATED or then == now:
        return None
    name = _FORMER.get(kernel.name, kernel.name)
    source = kernel.source.replace(f"# {now}\n", f"# {then}\n", 1)
    return replace(kernel, name=name, variant=then, source=source)
