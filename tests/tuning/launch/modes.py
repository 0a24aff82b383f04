"""Reads how a generated kernel is launched."""

from __future__ import annotations

from anabranch.ir.task import Kernel
from anabranch.ir.variant import Variant


def letter_of(kernel: Kernel) -> str:
    """The letter of its mode of dependent launch, "" for none."""
    assert isinstance(kernel.variant, Variant), kernel
    return kernel.variant.pdl or ""
