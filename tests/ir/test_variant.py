"""A launch variant is a value with one text; the texts that are recorded stay as they are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ir.test_tiles import tiles
from tests.kernels.triton.samples import SAMPLES

from anabranch.errors import VerifyError
from anabranch.ir.tiles import GRAMMARS, HORIZONTAL, PointwiseTile, RowsTile
from anabranch.ir.variant import (
    PdlMode,
    Variant,
    parse_variant,
    text_variant,
    verify_variant,
)
from anabranch.targets.sim.target import PROFILES

GOLDEN = Path(__file__).parents[1] / "golden"
TEXT = re.compile(rf"(?<![\w.])(?:{'|'.join([*GRAMMARS, HORIZONTAL])}):[0-9a-z][\w.:+]*")

variants = st.builds(Variant, tiles, st.sampled_from([None, *PdlMode]), st.integers(0, 100))


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        (Variant(PointwiseTile(512, 2)), "pointwise:512.w2"),
        (Variant(PointwiseTile(512, 2), PdlMode.HOIST_CONSTANTS), "pointwise:512.w2.pe"),
        (Variant(RowsTile(2, 64, 4), carveout=50), "rows:2x64.w4.c50"),
        (Variant(RowsTile(2, 64, 4), PdlMode.WAIT_ONLY, 0), "rows:2x64.w4.pn.c0"),
    ],
)
def test_the_text_of_a_variant(variant: Variant, text: str) -> None:
    assert text_variant(variant) == str(variant) == text
    assert parse_variant(text) == variant
    assert text.startswith(f"{variant.template}:")


@given(variants)
def test_every_variant_parses_back(variant: Variant) -> None:
    verify_variant(variant)
    assert parse_variant(str(variant)) == variant


@given(variants, variants)
def test_the_text_is_the_key(one: Variant, other: Variant) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(variants, st.data())
def test_a_damaged_text_is_refused_or_is_of_another_variant(
    variant: Variant, data: st.DataObject
) -> None:
    """Nothing is read as a value that is written otherwise."""
    text = str(variant)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 2))
    damaged = text[:at] + data.draw(st.text("0149.:+xabcpkw", max_size=2)) + text[at + cut :]
    try:
        found = parse_variant(damaged)
    except ValueError as refused:
        assert len(str(refused).split()) > 4
    else:
        assert str(found) == damaged


def recorded() -> list[str]:
    """Every variant of the shipped profiles, the golden files and the samples."""
    found: set[str] = set()
    for file in PROFILES.glob("*.json"):
        labels = (task["label"] for task in json.loads(file.read_text()).get("tasks", {}).values())
        head = (label.split(": ")[0].split(" ") for label in labels)
        found |= {words[1] for words in head if words[0].startswith("triton.")}
    for file in (one for one in GOLDEN.rglob("*") if one.is_file()):
        found |= set(TEXT.findall(file.read_text("utf-8")))
    return sorted(found | {variant for variant, _ in SAMPLES.values()})


RECORDED = recorded()


def test_recorded_texts_are_of_every_template() -> None:
    """So that the next test sees each grammar."""
    assert {text.partition(":")[0] for text in RECORDED} == {*GRAMMARS, HORIZONTAL}


@given(st.sampled_from(RECORDED), st.sampled_from([None, *PdlMode]), st.integers(0, 100))
def test_recorded_texts_stay_as_they_are(text: str, pdl: PdlMode | None, carveout: int) -> None:
    variant = parse_variant(text)
    launched = replace(variant, pdl=pdl, carveout=carveout)
    assert parse_variant(str(launched)) == launched
    assert str(replace(launched, pdl=variant.pdl, carveout=variant.carveout)) == text


def test_all_recorded_texts_parse_back() -> None:
    assert [str(parse_variant(text)) for text in RECORDED] == RECORDED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is of no template"),
        ("0", "is of no template"),
        ("pointwise:512.w2.q7", "is no variant of pointwise"),
        ("pointwise:512.w2.c50.pe", "is no variant of pointwise"),
        ("pointwise:512.w2.px", "has .px, which is no mode: n, w, l, e, a, f"),
        ("pointwise:512.w2.pe.pe", "is no variant of pointwise"),
        ("pointwise:512.w2.c100", "it is written pointwise:512.w2"),
        ("pointwise:512.w2.c101", "is not from 0 to 100 percent"),
        ("pointwise:512.w2.c050", "it is written pointwise:512.w2.c50"),
        ("pointwise:512.w2\n", "is no variant"),
        ("horizontal:pointwise:512.w2.pe+rows:1x64.w2", "is no variant of pointwise"),
    ],
)
def test_damaged_texts_are_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_variant(text)


def test_verify_says_what_is_wrong() -> None:
    with pytest.raises(VerifyError, match="is not from 0 to 100 percent"):
        verify_variant(Variant(PointwiseTile(512, 2), carveout=101))
    with pytest.raises(VerifyError, match="warps of pointwise"):
        verify_variant(Variant(PointwiseTile(512, 0)))
