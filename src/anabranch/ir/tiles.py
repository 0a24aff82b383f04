"""Tile: what one CTA of a generated kernel computes, and how; a class for each template.

    contraction:64x32x128.k4.w4.s3    64 rows by 32 columns, steps of 128 along the depth, which is
                                      split among 4 CTAs; 4 warps, 3 stages of loads

>>> parse_tile("contraction:64x32x128.k4.w4.s3.tf32")
ContractionTile(m=64, n=32, k=128, split=4, warps=4, stages=3, tf32=True, added_first=False, ctas=1)
>>> text_tile(RowsTile(16, 64, warps=4))
'rows:16x64.w4'

`GRAMMARS` has the text of each template's tile. A field stands in braces; what stands in brackets
is written where the field differs from its default, and a flag is written without a number. One
tile has one text, so that texts can be keys.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from anabranch.errors import VerifyError

LARGEST = 1 << 16
"""No number of a tile is larger."""
BETWEEN = "+"
"""Stands between the tiles of a horizontal fusion."""


@dataclass(frozen=True, slots=True)
class PointwiseTile:
    """`elements` of the flat index space a CTA."""

    elements: int
    warps: int


@dataclass(frozen=True, slots=True)
class ScatterTile:
    """`elements` of those that are written, as a flat index space, a CTA."""

    elements: int
    warps: int


@dataclass(frozen=True, slots=True)
class WindowTile:
    """`pixels` groups of `together` neighbouring results by `lanes` along the vectors a CTA."""

    pixels: int
    lanes: int
    together: int
    warps: int


@dataclass(frozen=True, slots=True)
class RowsTile:
    """`height` rows a CTA, `width` columns of them at a time; `split` CTAs share a row."""

    height: int
    width: int
    warps: int
    split: int = 1


@dataclass(frozen=True, slots=True)
class ContractionTile:
    """`m` rows by `n` columns, `k` of the depth a step; `split` CTAs share the depth. `tf32`: fp32
    factors are multiplied in it; `added_first`: the addend is read before the products. `ctas`: of
    persistent CTAs how many walk over the tiles; 1 where each tile has a CTA of its own."""

    m: int
    n: int
    k: int
    split: int
    warps: int
    stages: int
    tf32: bool = False
    added_first: bool = False
    ctas: int = 1


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """`rows` queries a CTA, `places` keys a step; `split` CTAs share the keys."""

    rows: int
    places: int
    warps: int
    stages: int
    tf32: bool = False
    split: int = 1


@dataclass(frozen=True, slots=True)
class GemmChainTile:
    """`m` rows by `n` columns of the second product, chunks of `middle` columns of the first, `k`
    of its depth a step; `split` CTAs share the chunks."""

    m: int
    n: int
    middle: int
    k: int
    split: int
    warps: int
    stages: int
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class RecurrenceTile:
    """`elements` of the flat index space a CTA, `at_once` steps whose reads are under way together;
    `ahead`: a block of steps reads what the next one needs."""

    elements: int
    at_once: int
    warps: int
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class SequenceTile:
    """All `m` steps of `n` channels a CTA, `k` of the depth a step of the products."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    tf32: bool = False


PartTile = (
    PointwiseTile
    | ScatterTile
    | WindowTile
    | RowsTile
    | ContractionTile
    | AttentionTile
    | GemmChainTile
    | RecurrenceTile
    | SequenceTile
)


@dataclass(frozen=True, slots=True)
class HorizontalTile:
    """Independent parts in one launch: the tile of each, all of equally many warps."""

    parts: tuple[PartTile, ...]

    @property
    def warps(self) -> int:
        """Warps of a CTA, the same for every part of the launch."""
        return self.parts[0].warps


Tile = PartTile | HorizontalTile

HORIZONTAL = "horizontal"
"""The template of horizontal fusion: its text is those of its parts."""
GRAMMARS: dict[str, tuple[type[PartTile], str]] = {
    "pointwise": (PointwiseTile, "{elements}.w{warps}"),
    "scatter": (ScatterTile, "{elements}.w{warps}"),
    "window": (WindowTile, "{pixels}x{lanes}u{together}.w{warps}"),
    "rows": (RowsTile, "{height}x{width}[.k{split}].w{warps}"),
    "contraction": (
        ContractionTile,
        "{m}x{n}x{k}.k{split}.w{warps}.s{stages}[.tf32{tf32}][.r{added_first}][.g{ctas}]",
    ),
    "attention": (
        AttentionTile,
        "{rows}x{places}[.k{split}].w{warps}.s{stages}[.tf32{tf32}]",
    ),
    "gemm_chain": (
        GemmChainTile,
        "{m}x{n}x{middle}x{k}.k{split}.w{warps}.s{stages}[.tf32{tf32}]",
    ),
    "recurrence": (RecurrenceTile, "{elements}.u{at_once}[.a{ahead}].w{warps}"),
    "sequence": (SequenceTile, "{m}x{n}x{k}.w{warps}.s{stages}[.tf32{tf32}]"),
}
PIECE = re.compile(r"(\[?)([^\[\]{}]*)\{(\w+)\}\]?")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A field of a tile and the characters before it; `default`: where it has this value, neither
    is written (None: always); `flag`: it has no number."""

    field: str
    prefix: str
    default: int | None
    flag: bool


def template_of(tile: Tile) -> str:
    """The name of the template that the tile belongs to."""
    if isinstance(tile, HorizontalTile):
        return HORIZONTAL
    return next(name for name, (kind, _) in GRAMMARS.items() if kind is type(tile))


def of_template(tile: Tile, kind: type[PartTile]) -> bool:
    """Whether it is a tile of this class, or has such a part."""
    return any(isinstance(part, kind) for part in parts_of(tile))


def parts_of(tile: Tile) -> tuple[PartTile, ...]:
    """The tiles of its parts; itself where it has none."""
    return tile.parts if isinstance(tile, HorizontalTile) else (tile,)


@functools.lru_cache(maxsize=1 << 14)
def text_tile(tile: Tile) -> str:
    """The template, a colon, and the fields as its grammar has them."""
    if isinstance(tile, HorizontalTile):
        return f"{HORIZONTAL}:{BETWEEN.join(map(text_tile, tile.parts))}"
    template = template_of(tile)
    text = f"{template}:"
    for piece in _pieces(template):
        value = getattr(tile, piece.field)
        if value != piece.default:
            text += piece.prefix if piece.flag else f"{piece.prefix}{value}"
    return text


@functools.lru_cache(maxsize=1 << 14)
def parse_tile(text: str) -> Tile:
    """The tile that `text_tile` printed. ValueError, in words, for any other text."""
    template, colon, rest = text.partition(":")
    if template == HORIZONTAL and colon:
        return _parse_parts(text, rest)
    if template not in GRAMMARS or not colon:
        raise ValueError(
            f"{text!r} is of no template there is: {', '.join(GRAMMARS)}, {HORIZONTAL}"
        )
    kind, grammar = GRAMMARS[template]
    match = _pattern(template).fullmatch(rest)
    if match is None:
        raise ValueError(f"{text} is no variant of {template}, whose tiles are {grammar}")
    values = {
        piece.field: told is not None if piece.flag else int(told)
        for piece, told in zip(_pieces(template), match.groups(), strict=True)
        if told is not None or piece.flag
    }
    build: Callable[..., PartTile] = kind
    tile = build(**values)
    try:
        verify_tile(tile)
    except VerifyError as broken:
        raise ValueError(str(broken)) from broken
    if text_tile(tile) != text:
        raise ValueError(f"{text} is no variant of {template}: it is written {text_tile(tile)}")
    return tile


def verify_tile(tile: Tile) -> None:
    """Every number is between 1 and `LARGEST`; the parts of a horizontal fusion are several, of
    equally many warps."""
    if isinstance(tile, HorizontalTile):
        warps = {part.warps for part in tile.parts}
        if len(tile.parts) < 2 or len(warps) > 1:
            raise VerifyError("a horizontal fusion has several parts, of equally many warps")
        for part in tile.parts:
            verify_tile(part)
        return
    for field in fields(tile):
        value = getattr(tile, field.name)
        if not isinstance(value, bool) and not 1 <= value <= LARGEST:
            raise VerifyError(f"{field.name} of {text_tile(tile)} is not from 1 to {LARGEST}")


def _parse_parts(text: str, rest: str) -> HorizontalTile:
    parts: list[PartTile] = []
    for part_text in rest.split(BETWEEN):
        part = parse_tile(part_text)
        if isinstance(part, HorizontalTile):
            raise ValueError(f"{text} has a part that is a horizontal fusion itself")
        parts.append(part)
    tile = HorizontalTile(tuple(parts))
    try:
        verify_tile(tile)
    except VerifyError as broken:
        raise ValueError(f"{text}: {broken}") from broken
    return tile


@functools.cache
def _pieces(template: str) -> tuple[_Piece, ...]:
    return tuple(_read_grammar(template))


def _read_grammar(template: str) -> Iterator[_Piece]:
    kind, grammar = GRAMMARS[template]
    defaults = {field.name: field.default for field in fields(kind)}
    for bracket, prefix, name in PIECE.findall(grammar):
        default: Any = defaults[name] if bracket else None
        yield _Piece(name, prefix, default, isinstance(default, bool))


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    pattern = ""
    for piece in _pieces(template):
        prefix = re.escape(piece.prefix)
        group = f"({prefix})" if piece.flag else rf"{prefix}([0-9]{{1,6}})"
        pattern += group if piece.default is None else f"(?:{group})?"
    return re.compile(pattern)
