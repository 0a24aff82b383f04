"""Variant: which of a template's kernels runs a task, and how it is launched.

    contraction:16x64x128.k4.w4.s3.pe.c50
    |           |                  |  +- carve-out: half of the L1 memory is shared memory
    |           |                  +---- programmatic dependent launch, here HOIST_CONSTANTS
    |           +----------------------- the tile, as `ir.tiles` has it for the template
    +----------------------------------- the template

>>> variant = parse_variant("pointwise:512.w2.pe")
>>> variant.template, variant.tile
('pointwise', PointwiseTile(elements=512, warps=2))
>>> str(replace(variant, pdl=PdlMode.WAIT_ONLY, carveout=75))
'pointwise:512.w2.pn.c75'

Equal variants have equal texts, and different ones different texts: the text is the key.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from anabranch.errors import VerifyError
from anabranch.ir.tiles import (
    ContractionTile,
    Tile,
    parse_tile,
    template_of,
    text_tile,
    verify_tile,
)

WHOLE_PERCENT = 100
"""Percent of the L1 memory that is shared memory where a variant says nothing."""
LAUNCHED = re.compile(r"(?P<tile>.*?)(?:\.p(?P<pdl>[a-z]))?(?:\.c(?P<carveout>[0-9]{1,3}))?")


class PdlMode(StrEnum):
    """How a kernel takes part in programmatic dependent launch, by the letter in its text.

    WAIT_ONLY: the next kernel starts when this one ends, but is set up by then.
    TRIGGER_AT_WAIT: the next kernel may start right after the wait, while this one works.
    TRIGGER_BEFORE_STORE: the next kernel may start before this one stores its results.
    HOIST_CONSTANTS: the same; constants (weights, biases, scales) are read before the wait.
    PREFETCH_L2: the same; weights for which registers have no room are prefetched into L2.
    PREFETCH_L2_EARLY: as PREFETCH_L2, with the trigger right after the wait.
    """

    WAIT_ONLY = "n"
    TRIGGER_AT_WAIT = "w"
    TRIGGER_BEFORE_STORE = "l"
    HOIST_CONSTANTS = "e"
    PREFETCH_L2 = "a"
    PREFETCH_L2_EARLY = "f"


@dataclass(frozen=True, slots=True)
class Variant:
    """A generated kernel of a task: its tile, which names the template; `pdl`: its mode of
    programmatic dependent launch, None for none; `carveout`: percent of the L1 memory that is
    shared memory under it."""

    tile: Tile
    pdl: PdlMode | None = None
    carveout: int = WHOLE_PERCENT

    @property
    def template(self) -> str:
        """The name of the template that the tile belongs to."""
        return template_of(self.tile)

    def __str__(self) -> str:
        return text_variant(self)


def text_variant(variant: Variant) -> str:
    """The tile, the mode of dependent launch and the carve-out, the last two where they say
    anything."""
    pdl = f".p{variant.pdl.value}" if variant.pdl else ""
    carveout = f".c{variant.carveout}" if variant.carveout != WHOLE_PERCENT else ""
    return f"{text_tile(variant.tile)}{pdl}{carveout}"


@functools.lru_cache(maxsize=1 << 14)
def parse_variant(text: str) -> Variant:
    """The variant that `text_variant` printed. ValueError, in words, for any other text."""
    match = LAUNCHED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no variant: TEMPLATE:TILE [.pMODE] [.cPERCENT]")
    mode, percent = match["pdl"], match["carveout"]
    if mode is not None and mode not in {member.value for member in PdlMode}:
        raise ValueError(f"{text} has .p{mode}, which is no mode: {', '.join(PdlMode)}")
    variant = Variant(
        parse_tile(match["tile"]),
        PdlMode(mode) if mode else None,
        WHOLE_PERCENT if percent is None else int(percent),
    )
    try:
        verify_variant(variant)
    except VerifyError as broken:
        raise ValueError(str(broken)) from broken
    if text_variant(variant) != text:
        raise ValueError(f"{text} is no variant: it is written {variant}")
    return variant


def without_carveout(variant: Variant) -> Variant:
    """What the kernel's text depends on: the carve-out is said to the launch alone."""
    return replace(variant, carveout=WHOLE_PERCENT)


def undescribed(variant: Variant | str) -> Variant:
    """The same kernel without tensor descriptors: with a CTA for each tile."""
    variant = parse_variant(variant) if isinstance(variant, str) else variant
    assert isinstance(variant.tile, ContractionTile), "no other template has them"
    return replace(variant, tile=replace(variant.tile, ctas=1))


def verify_variant(variant: Variant) -> None:
    """The tile holds, and the carve-out is a percentage."""
    verify_tile(variant.tile)
    if not 0 <= variant.carveout <= WHOLE_PERCENT:
        raise VerifyError(f"the carve-out of {variant} is not from 0 to {WHOLE_PERCENT} percent")
