"""Templates under former names, as plans saved and profiles recorded before 2026-11-27 have them.

triton.pair pair:32x64x64x64.k1.w4.s3   ->   triton.gemm_chain gemm_chain:32x64x64x64.k1.w4.s3
"""

from __future__ import annotations

import re

TEMPLATES = {"pair": "gemm_chain", "abreast": "horizontal"}
"""Former names and those of today."""
_THEN = re.compile(rf"\b({'|'.join(TEMPLATES)})\b")


def with_current_names(text: str) -> str:
    """The name of a template, or the text of a variant, as it is now.

    >>> with_current_names("abreast:rows:1x32.w4+pointwise:512.w4")
    'horizontal:rows:1x32.w4+pointwise:512.w4'
    """
    return _THEN.sub(lambda match: TEMPLATES[match[1]], text)
