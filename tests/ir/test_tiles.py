"""The tile of a template has one text, which parses back; damaged ones are refused in words."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import VerifyError
from anabranch.ir.tiles import (
    GRAMMARS,
    LARGEST,
    AttentionTile,
    ContractionTile,
    GemmChainTile,
    HorizontalTile,
    PartTile,
    PointwiseTile,
    RecurrenceTile,
    RowsTile,
    SequenceTile,
    Tile,
    WindowTile,
    parse_tile,
    template_of,
    text_tile,
    verify_tile,
)

WRITTEN: dict[str, Tile] = {
    "pointwise:512.w2": PointwiseTile(512, 2),
    "window:16x32u2.w4": WindowTile(16, 32, 2, 4),
    "rows:1x1024.w4": RowsTile(1, 1024, 4),
    "rows:32x64.k64.w4": RowsTile(32, 64, 4, split=64),
    "contraction:64x32x128.k4.w8.s3": ContractionTile(64, 32, 128, 4, 8, 3),
    "contraction:1x8x512.k1.w4.s1.tf32": ContractionTile(1, 8, 512, 1, 4, 1, tf32=True),
    "contraction:64x32x64.k1.w4.s4.r": ContractionTile(64, 32, 64, 1, 4, 4, added_first=True),
    "contraction:64x32x64.k1.w4.s4.g132": ContractionTile(64, 32, 64, 1, 4, 4, ctas=132),
    "contraction:8x8x8.k1.w4.s2.tf32.r": ContractionTile(8, 8, 8, 1, 4, 2, True, True),
    "attention:16x128.w4.s1": AttentionTile(16, 128, 4, 1),
    "attention:16x64.k8.w4.s2.tf32": AttentionTile(16, 64, 4, 2, tf32=True, split=8),
    "gemm_chain:64x256x64x32.k4.w8.s3.tf32": GemmChainTile(64, 256, 64, 32, 4, 8, 3, True),
    "recurrence:128.u8.w4": RecurrenceTile(128, 8, 4),
    "recurrence:512.u2.a.w4": RecurrenceTile(512, 2, 4, ahead=True),
    "sequence:16x32x128.w4.s3": SequenceTile(16, 32, 128, 4, 3),
    "horizontal:rows:1x64.w4+pointwise:512.w4": HorizontalTile(
        (RowsTile(1, 64, 4), PointwiseTile(512, 4))
    ),
}


WARPS = st.integers(1, 64)


def part_tiles(warps: st.SearchStrategy[int] = WARPS) -> st.SearchStrategy[PartTile]:
    """Tiles of every template, of so many warps."""
    return st.sampled_from([kind for kind, _ in GRAMMARS.values()]).flatmap(
        lambda kind: st.builds(
            kind,
            **{
                field.name: st.booleans()
                if isinstance(field.default, bool)
                else warps
                if field.name == "warps"
                else st.integers(1, LARGEST)
                for field in fields(kind)
            },
        )
    )


def horizontal_tiles() -> st.SearchStrategy[HorizontalTile]:
    alike = WARPS.flatmap(
        lambda warps: st.lists(part_tiles(st.just(warps)), min_size=2, max_size=4)
    )
    return alike.map(lambda parts: HorizontalTile(tuple(parts)))


tiles = st.one_of(part_tiles(), horizontal_tiles())


@pytest.mark.parametrize("text", WRITTEN)
def test_the_text_of_a_tile(text: str) -> None:
    assert text_tile(WRITTEN[text]) == text
    assert parse_tile(text) == WRITTEN[text]
    assert template_of(WRITTEN[text]) == text.partition(":")[0]


@given(tiles)
def test_every_tile_parses_back(tile: Tile) -> None:
    verify_tile(tile)
    assert parse_tile(text_tile(tile)) == tile


@given(tiles, tiles)
def test_different_tiles_have_different_texts(one: Tile, other: Tile) -> None:
    assert (text_tile(one) == text_tile(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is of no template there is: pointwise, "),
        ("pointwise", "is of no template there is"),
        ("later:512.w2", "is of no template there is"),
        ("horizontal", "is of no template there is"),
        ("pointwise:512", r"is no variant of pointwise, whose tiles are \{elements\}"),
        ("rows:7", r"is no variant of rows, whose tiles are \{height\}x\{width\}"),
        ("contraction:64x32", "is no variant of contraction, whose tiles are "),
        ("contraction:64x32x64.k1.w4.s3.r.tf32", "is no variant of contraction"),
        ("attention:16x128.w4.s1.tf", "is no variant of attention"),
        ("pointwise:0512.w2", "is no variant of pointwise: it is written pointwise:512.w2"),
        ("rows:8x8.k1.w4", "is no variant of rows: it is written rows:8x8.w4"),
        ("pointwise:512.w0", "warps of pointwise:512.w0 is not from 1 to 65536"),
        ("pointwise:65537.w1", "elements of pointwise:65537.w1 is not from 1 to 65536"),
        ("pointwise:12345678.w1", "is no variant of pointwise"),
        ("pointwise:٣.w1", "is no variant of pointwise"),
        ("horizontal:pointwise:512.w2", "has several parts, of equally many warps"),
        ("horizontal:pointwise:512.w2+rows:1x64.w4", "has several parts, of equally many warps"),
        ("horizontal:pointwise:512.w2+rows:1x64", "rows:1x64 is no variant of rows"),
    ],
)
def test_damaged_texts_are_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_tile(text)


def test_verify_says_what_is_wrong() -> None:
    with pytest.raises(VerifyError, match="m of contraction:0x8x8"):
        verify_tile(ContractionTile(0, 8, 8, 1, 4, 3))
    with pytest.raises(VerifyError, match="several parts, of equally many warps"):
        verify_tile(HorizontalTile((RowsTile(1, 64, 4),)))
    with pytest.raises(VerifyError, match="height of rows:0x64"):
        verify_tile(HorizontalTile((RowsTile(0, 64, 4), PointwiseTile(512, 4))))
