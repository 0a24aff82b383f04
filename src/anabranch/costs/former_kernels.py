"""Kernels as profiles recorded before 2026-11-27 name them.

gemm_chain:32x64x64x64.k1.w4.s3, def gemm_chain_linear_relu_linear
  ->   pair:32x64x64x64.k1.w4.s3, def pair_linear_relu_linear
"""

from __future__ import annotations

import re
from dataclasses import replace

from anabranch.ir.entry_name import entry_name
from anabranch.ir.former_names import TEMPLATES
from anabranch.ir.task import GENERATED, Kernel

_FORMER = {now: then for then, now in TEMPLATES.items()}
_NOW = re.compile(rf"\b({'|'.join(_FORMER)})\b")


def with_former_names(kernel: Kernel) -> Kernel | None:
    """The kernel as it was recorded then; None if its names are the same today."""
    now = str(kernel.variant)
    then = _NOW.sub(lambda match: _FORMER[match[1]], now)
    if kernel.provider != GENERATED or then == now:
        return None
    name = _FORMER.get(kernel.name, kernel.name)
    source = kernel.source.replace(f"# {now}\n", f"# {then}\n", 1)
    today = f"def {entry_name(kernel.name, kernel.body)}("
    source = source.replace(today, f"def {entry_name(name, kernel.body)}(", 1)
    return replace(kernel, name=name, variant=then, source=source)
