"""Parts of states that kernels compute and write in their places, against eager."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.interpreter import check, run
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled
from torch import Tensor

from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import random_tensor
from anabranch.ir.state import written_parts
from anabranch.ir.task import Kernel
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant, parse_variant
from anabranch.kernels.triton.codegen import program, variants, why_none
from anabranch.kernels.triton.in_place import why_not_in_place

pytest.importorskip("triton")

ROWS = {
    # the state, what is written, the call; of %x and its negated half
    "a row of each head": ("[2,3,9,8]", "[2,3,1,8]", "index_copy.default(%k, 2, %at, {})", [5]),
    "rows of a matrix": ("[9,6]", "[4,6]", "index_copy.default(%k, 0, %at, {})", [8, 0, 3, 1]),
    "columns": ("[5,9]", "[5,2]", "index_copy.default(%k, -1, %at, {})", [7, 2]),
    "elements": ("[9]", "[3]", "index_copy.default(%k, 0, %at, {})", [4, 0, 8]),
    "an element": ("[9]", "[1]", "index_copy.default(%k, 0, %at, {})", [8]),
    "the rows of a prompt": ("[2,9,8]", "[2,5,8]", "slice_scatter.default(%k, {}, 1, 0, 5)", [0]),
    "the last rows": ("[9,8]", "[3,8]", "slice_scatter.default(%k, {}, 0, -3, 99)", [0]),
    "every second": ("[9,8]", "[9,3]", "slice_scatter.default(%k, {}, 1, 1, 7, 2)", [0]),
    "one row": ("[4,9,8]", "[4,8]", "select_scatter.default(%k, {}, 1, -2)", [0]),
    "an index": ("[9,8]", "[3,8]", "index_put.default(%k, [%at], {})", [-1, 0, -8]),
    "an index within": ("[2,9,8]", "[2,3,8]", "index_put.default(%k, [None, %at], {})", [2, -3, 8]),
    "one for all": ("[2,9,8]", "[2,1,8]", "index_put.default(%k, [None, %at], {})", [2, -3, 8]),
}
DTYPES = ("f16", "bf16", "f32", "i64")


def part(name: str, dtype: str = "f32") -> tuple[Graph, list[Tensor]]:
    """The body that computes a part of a state and writes it, and what it is called with."""
    state, shape, call, at = ROWS[name]
    body = parse_graph(f"""
graph step {{
  input %x: {dtype}{shape}
  input %at: i64[{len(at)}]
  state %k: {dtype}{state} -> %k_1
  %y: {dtype}{shape} = aten.mul.Tensor(%x, 3)
  %z: {dtype}{shape} = aten.sub.Tensor(%y, %x)
  %k_1: {dtype}{state} = aten.{call.format("%z")}
  return %k_1
}}
""")
    given = [random_tensor(value.type, i) for i, value in enumerate(body.inputs)]
    return body, [
        torch.tensor(at) if g.dtype == torch.int64 and g.dim() == 1 and i == 1 else g
        for i, g in enumerate(given)
    ]


def offered(body: Graph) -> list[Variant]:
    """All of the template, and a last tile that the elements do not fill."""
    several = [v for v in variants(body, gpu()) if v.template == "scatter"]
    return [*several[:2], parse_variant("scatter:64.w1")]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_is_written_and_the_rest_stays(name: str, dtype: str) -> None:
    body, given = part(name, dtype)
    several = offered(body)
    assert len(several) > 1
    for variant in several:
        kernel = Kernel("triton", "scatter", body, variant)
        assert why_not_in_place(kernel, {"k_1": "k"}) is None
    check(body, several[::2] if dtype == "f32" else several[-1:], given, over={"k_1": "k"})


def stored(body: Graph, given: Sequence[Tensor]) -> Tensor:
    """The state after one launch of a kernel."""
    values = {v.name: x.clone() for v, x in zip(body.inputs, given, strict=True)}
    written = program(body, offered(body)[-1])
    return run(written, values, {"k_1": types(body)["k_1"]}, over={"k_1": "k"})["k_1"]


@pytest.mark.parametrize(
    ("name", "at", "kept"),
    [
        ("rows of a matrix", [9, -1, 3, 2**40], [2]),
        ("elements", [-(2**40), 99, 5], [2]),
        ("an index", [-9, -10, 9], [0]),
    ],
)
def test_nothing_is_written_at_an_index_outside(name: str, at: list[int], kept: list[int]) -> None:
    body, given = part(name)
    given[1] = torch.tensor(at)
    wanted = given[2].clone()
    for row in kept:
        wanted[at[row]] = (given[0] * 3 - given[0])[row]
    torch.testing.assert_close(stored(body, given), wanted)


def test_of_two_elements_for_one_place_either_is_there() -> None:
    body, given = part("elements")
    given[1] = torch.tensor([4, 4, 0])
    new, rows = stored(body, given), given[0] * 3 - given[0]
    assert any(torch.allclose(new[4], row) for row in rows[:2])
    torch.testing.assert_close(new[0], rows[2])


KEYS = """
graph step {
  input %x: f16[1,1,512]
  input %y: f16[1,1,512]
  input %cos: f16[1,64]
  input %at: i64[1]
  state %k: f16[1,8,1024,64] -> %k_1
  state %v: f16[1,8,1024,64] -> %v_1
  %h: f16[1,1,8,64] = aten.reshape.default(%x, [1, 1, 8, 64])
  %t: f16[1,8,1,64]{512,64,512,1} = aten.transpose.int(%h, 1, 2)
  %a: f16[1,8,1,32]{512,64,512,1}, %a.1: f16[1,8,1,32]{512,64,512,1} = aten.split.Tensor(%t, 32, -1)
  %n: f16[1,8,1,32] = aten.neg.default(%a.1)
  %c: f16[1,8,1,64] = aten.cat.default([%n, %a], -1)
  %m: f16[1,8,1,64] = aten.mul.Tensor(%c, %cos)
  %z: f16[1,8,1,64] = aten.add.Tensor(%t, %m)
  %k_1: f16[1,8,1024,64] = aten.index_copy.default(%k, 2, %at, %z)
  %g: f16[1,1,8,64] = aten.reshape.default(%y, [1, 1, 8, 64])
  %u: f16[1,8,1,64]{512,64,512,1} = aten.transpose.int(%g, 1, 2)
  %v_1: f16[1,8,1024,64] = aten.index_copy.default(%v, 2, %at, %u)
  return %k_1, %v_1
}
"""


def test_keys_and_values_share_a_launch() -> None:
    """The rows of a megabyte each are all that it writes."""
    body = parse_graph(KEYS)
    given = [random_tensor(value.type, i) for i, value in enumerate(body.inputs)]
    given[3] = torch.tensor([1023])
    over = {"k_1": "k", "v_1": "v"}
    assert written_parts(body) == over
    first = variants(body, gpu())[0]
    check(body, [first], given, over=over)
    text = program(body, first).text
    assert "k_ptr" not in text and text.count("tl.store") == 2


@pytest.mark.parametrize("name", ["keys", "an index within", "every second"])
def test_compiles_without_spills(name: str, tmp_path: Path) -> None:
    body = parse_graph(KEYS) if name == "keys" else part(name, "f16")[0]
    built = compiled(program(body, "scatter:256.w1"), 90, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", built["usage"]))
    assert stack <= SPILLED and not local, built["usage"]
    if name == "keys":
        assert re.search(r"st\.global\.v4\.b32", built["ptx"]), "not in vectors"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("state %k: f32[9,6] -> %k_1", "input %k: f32[9,6]", "no part of a state"),
        ("(%x, 3)", "(%w, 3)", "no part of a state"),
        ("  return %k_1", "  %o: f32[9,6] = aten.neg.default(%k_1)\n  return %k_1", "no part"),
        ("(%y, %x)", "(%y, %x)\n  %s: f32[4,1] = aten.sum.dim_IntList(%z, [1], True)", "reduces"),
        ("  return %k_1", "  %o: f32[6] = aten.select.int(%z, 0, 0)\n  return %k_1, %o", "several"),
    ],
)
def test_why_there_is_no_kernel(before: str, after: str, why: str) -> None:
    state, shape, call, at = ROWS["rows of a matrix"]
    source = "%s_1" if "sum" in after else "%z"
    text = f"""
graph step {{
  input %x: f32{shape}
  input %at: i64[{len(at)}]
  state %k: f32{state} -> %k_1
  %y: f32{shape} = aten.mul.Tensor(%x, 3)
  %z: f32{shape} = aten.sub.Tensor(%y, %x)
  %k_1: f32{state} = aten.{call.format(source)}
  return %k_1
}}
"""
    if "%w" in after:
        text = text.replace("  %y", "  %w: f32[4,6] = aten.slice.Tensor(%k, 0, 0, 4)\n  %y", 1)
    if "sum" in after:
        after += "\n  %s_1: f32[4,6] = aten.sub.Tensor(%z, %s)"
    assert before in text
    body = parse_graph(text.replace(before, after))
    assert "scatter" not in {variant.template for variant in variants(body, gpu())}
    with pytest.raises(ValueError, match=why):
        program(body, "scatter:64.w1")
    if body.states:
        assert why in why_none(body)


def test_what_lies_elsewhere_is_not_written_in_part() -> None:
    """The elements that are not written would be anybody's."""
    body, _ = part("rows of a matrix")
    kernel = Kernel("triton", "scatter", body, parse_variant("scatter:64.w1"))
    assert "but a part" in str(why_not_in_place(kernel, {}))
    assert "but a part" in str(why_not_in_place(kernel, {"k_1": "x"}))
    bare = replace(kernel, body=replace(body, states=()))
    with pytest.raises(ValueError, match="no part of a state"):
        why_not_in_place(bare, {"k_1": "k"})
