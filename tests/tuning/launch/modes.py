"""Reads how a generated kernel is launched."""

from __future__ import annotations

from anabranch.ir.task import Kernel, variant_of


def letter_of(kernel: Kernel) -> str:
    """The letter of its mode of dependent launch, "" for none."""
    variant = variant_of(kernel)
    assert variant is not None, kernel
    return variant.pdl or ""
