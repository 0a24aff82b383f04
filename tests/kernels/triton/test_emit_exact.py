"""What is exact on paper stays so in a kernel: places that run backwards or far, numbers that
memory cannot hold, infinities, zeros with a sign, and all digits of fp64."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check, run
from torch import Tensor

from anabranch.frontend import capture
from anabranch.ir.graph import Graph, types
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.codegen import program, variants

Function = Callable[..., Tensor]
WIDE, BYTES = torch.randn(1, 8, 3, 5), torch.randint(0, 256, (4, 6), dtype=torch.uint8)
DOUBLES, HALVES = torch.randn(5, 7, dtype=torch.float64), torch.randn(4, 6).half()

BACKWARDS: dict[str, tuple[Function, Tensor]] = {
    "flip of a transpose": (lambda x: x.t().reshape(-1).flip(0) * 2, torch.randn(7, 4)),
    "flip of a shuffle": (lambda x: F.pixel_shuffle(x, 2).flip(-1, -2).relu(), WIDE),
    "flip of an enlarged image": (lambda x: F.interpolate(x, scale_factor=2).flip(-1) + 1, WIDE),
    "flip of a roll": (
        lambda x: torch.roll(x, (-3, 2), (0, 1)).reshape(-1).flip(0) + 1,
        torch.randn(7, 6),
    ),
    "flip of 50,000": (lambda x: x.repeat(1, 3).flip(1) * 2, torch.randn(1, 50_000)),
    "flip of 131,074 channels": (
        lambda x: F.channel_shuffle(x, 65_537).flip(1) * 2,
        torch.randn(1, 131_074, 1, 1),
    ),
}
FILLS: dict[str, tuple[Function, Tensor]] = {
    "a half among bytes": (lambda x: F.pad(x.float(), (1, 1), value=0.5) + 1, BYTES),
    "infinity among bytes": (lambda x: F.pad(x.float(), (1, 1), value=-inf) + 1, BYTES),
    "the largest of bytes": (lambda x: F.max_pool2d(x.float()[None, None], 3, 2, 1) + 1, BYTES),
    "more than halves hold": (lambda x: F.pad(x.float(), (1, 1), value=1e5) + 1, HALVES),
    "more digits than halves hold": (lambda x: F.pad(x.float(), (1, 1), value=0.1) * 2, HALVES),
}
DIGITS: dict[str, tuple[Function, Tensor]] = {
    "bounds": (lambda x: F.hardtanh(x, -0.3, 0.3) * 2, DOUBLES),
    "a fill": (lambda x: F.pad(x, (1, 1), value=0.1) * 2, DOUBLES),
    "tanh": (lambda x: torch.tanh(x * 0.05) * 2 + torch.tanh(x * 20), DOUBLES),
    "between pixels": (
        lambda x: F.interpolate(x[None, None], size=(11, 9), mode="bilinear") * 2,
        DOUBLES,
    ),
}


def graph_of(function: Function, *inputs: Tensor) -> Graph:
    return capture(function, inputs).graph


@pytest.mark.parametrize("case", [*BACKWARDS, *FILLS, *DIGITS])
def test_as_the_operators_have_it(case: str) -> None:
    function, x = {**BACKWARDS, **FILLS, **DIGITS}[case]
    graph = graph_of(function, x)
    check(graph, variants(graph, gpu(132))[:1], [x])


def test_rows_of_a_long_table_are_counted_in_64_bits() -> None:
    """More than 2**31 bytes, chosen by 32-bit numbers: times 64 these leave 32 bits."""
    graph = read("""
    graph g {
      input %i: i32[4]
      input %w: u8[33554440,64]
      %row: u8[4,64] = aten.embedding.default(%w, %i)
      %not: u8[4,64] = aten.bitwise_not.default(%row)
      return %not
    }""")
    assert "i.to(tl.int64)" in program(graph, "pointwise:256.w4").text


def made(function: Function, *inputs: Tensor) -> Tensor:
    graph = graph_of(function, *inputs)
    written = program(graph, variants(graph, gpu(132))[0])
    (out,) = graph.outputs
    values = {v.name: x for v, x in zip(graph.inputs, inputs, strict=True)}
    values |= {c.name: c.value for c in graph.constants if c.value is not None}
    return run(written, values, {out.name: types(graph)[out.name]})[out.name]


def test_the_sign_of_a_zero_is_part_of_the_number() -> None:
    x = torch.randn(5)
    quotients = made(lambda x: torch.stack([x / 0.0, x / -0.0]), x)
    assert torch.equal(quotients, torch.stack([x.sign() * inf, x.sign() * -inf]))
    assert made(lambda x: F.pad(x, (1, 0), value=-0.0) * 1.5, x)[0].signbit()


def test_hypotenuses_of_all_sizes() -> None:
    a = torch.tensor([3e20, 3e-30, 0.0, inf, nan, -inf, 1.0, -5.0])
    b = torch.tensor([4e20, 4e-30, 0.0, nan, -inf, 2.0, nan, 12.0])
    found = made(torch.hypot, a, b)
    torch.testing.assert_close(found, torch.hypot(a, b), equal_nan=True)


@pytest.mark.parametrize("exponent", [inf, -inf, nan])
def test_endless_powers_are_eagers(exponent: float) -> None:
    x = torch.tensor([0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 0.0, -0.0, inf, -inf, nan])
    found = made(lambda x: x.pow(exponent), x)
    torch.testing.assert_close(found, x.pow(exponent), equal_nan=True)


def test_a_number_of_no_type_is_a_refusal() -> None:
    graph = read(
        """
    graph g {
      input %x: i64[4]
      %pad: i64[6] = aten.constant_pad_nd.default(%x, [1, 1], inf)
      return %pad
    }""".replace("inf", "float('inf')")
    )
    assert "none of its type" in str(lower(graph))


def test_more_batches_than_a_grid_has_places() -> None:
    graph = read("""
    graph g {
      input %x: f16[70000,16,16]
      input %y: f16[70000,16,32]
      %z: f16[70000,16,32] = aten.bmm.default(%x, %y)
      return %z
    }""")
    written = program(graph, "contraction:16x16x16.k1.w4.s2")
    assert written.grid == (140_000, 1, 1)
    assert "tl.program_id(0) % 2" in written.text and "tl.program_id(0) // 2" in written.text


@pytest.mark.parametrize("rows", [128, 2112, 4224, 70_000])
@pytest.mark.parametrize("columns", [7, 513, 1024, 8192])
def test_rows_of_any_number_have_tiles(rows: int, columns: int) -> None:
    graph = read(f"""
    graph g {{
      input %x: f16[{rows},{columns}]
      %y: f16[{rows},{columns}] = aten.softmax.int(%x, -1)
      return %y
    }}""")
    found = variants(graph, gpu(132))
    assert found and not any(str(variant).startswith("rows:0") for variant in found)


ROUND: dict[str, Callable[[Tensor], Any]] = {
    "a larger one": lambda x: (x.clamp(min=2) * x.clamp(min=2) > 0, x.clamp(min=2) * 3 // 2),
    "a smaller one": lambda x: (x.clamp(max=100) + x.clamp(max=100)) // 7,
    "one of two": lambda x: (torch.where(x > 5, x, 3) * x).float(),
    "quotients": lambda x: (x // x.clamp(min=1), x % x.clamp(min=1)),
    "the largest": lambda x: x.amax(-1) + x.amax(-1) > 0,
    "a scan": lambda x: x.cumsum(-1, dtype=x.dtype) * 3 > 4,
}


@pytest.mark.parametrize("name", ROUND)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_small_integers_go_round_also_behind_numbers(name: str, dtype: torch.dtype) -> None:
    """Triton takes the larger of a small integer and a number in 32 bits, and reduces in them."""
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, 3, 7, 12, 26, 41, 100, limits.max], dtype=dtype).repeat(2, 1)
    graph = graph_of(ROUND[name], x)
    outs = [ref.name for ref in graph.outputs]
    wanted = {out: types(graph)[out] for out in outs}
    results = ROUND[name](x)
    first = variants(graph, gpu(132))[0]
    made = run(program(graph, first), {graph.inputs[0].name: x}, wanted)
    for out, want in zip(outs, results if isinstance(results, tuple) else (results,), strict=True):
        assert torch.equal(made[out], want), out


def results(function: Callable[..., Any], *given: Tensor) -> dict[str, Tensor]:
    """What the first variant's kernel makes of these, by name."""
    graph = graph_of(function, *given)
    wanted = {ref.name: types(graph)[ref.name] for ref in graph.outputs}
    values = dict(zip((value.name for value in graph.inputs), given, strict=True))
    return run(program(graph, variants(graph, gpu(132))[0]), values, wanted)


def test_the_larger_of_truth_values_is_one_itself() -> None:
    """Triton reduces it in 32 bits, where its inverse would be -2 or -1, both true."""
    x = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    made = results(lambda x: (~x.amax(-1), ~x.amin(-1), x.amax(-1) * 1.0), x)
    lists = [one.tolist() for one in made.values()]
    assert lists == [[False, True, False], [True, True, False], [1.0, 0.0, 1.0]]


def test_floats_become_bytes_by_way_of_64_bits() -> None:
    """As `c10::convert` has it on every device: PTX alone would make 0 of what is negative."""
    x = torch.tensor([-1.0, -2.9, -300.0, 255.9, 256.0, 70_000.0, 1e9, -0.5])
    (made,) = results(lambda x: x.to(torch.uint8), x).values()
    assert made.tolist() == [255, 254, 212, 255, 0, 112, 0, 0]


def test_an_index_that_is_the_same_everywhere_is_computed_by_the_kernel() -> None:
    """Python's `~True` is -2, and its truth values have no type to be cast from."""
    x = torch.tensor([[5, -6, 7], [-8, 9, 10]], dtype=torch.int8)
    last = lambda x: x.gather(-1, torch.full_like(x, 2, dtype=torch.int64))  # noqa: E731
    (made,) = results(last, x).values()
    assert made.tolist() == [[7, 7, 7], [10, 10, 10]]


def test_integers_beside_half_types_are_of_these_before_anything_is_computed() -> None:
    """257 is 256 of bf16, and 100,000 infinite in fp16, as ATen reads its operands."""
    x, y = torch.tensor([257, 515, -257, 6]), torch.tensor([256, 4, 2, 4], dtype=torch.bfloat16)
    functions = (lambda x, y: x % y, lambda x, y: x == y, lambda x, y: torch.where(y > 2, x, y) - y)
    made = [next(iter(results(one, x, y).values())).tolist() for one in functions]
    assert made == [[0, 0, 0, 2], [True, False, False, False], [0, 512, 0, 2]]
    large, halves = torch.tensor([100_000, 3]), torch.tensor([2.0, 2.0], dtype=torch.float16)
    for divide in (lambda x, y: x.to(y.dtype) / y, torch.div):
        (quotient,) = results(divide, large, halves).values()
        assert quotient.tolist() == [inf, 1.5]
    for join in (torch.cat, torch.stack):  # the sum is of two infinities, or of inf and a half
        pair = torch.tensor([100_000, -100_000])
        (total,) = results(lambda x, y: join([x, y], -1).sum(-1), pair, halves).values()  # noqa: B023
        assert total.isnan().item() if join is torch.cat else total.tolist() == [inf, -inf]
    number = torch.tensor(70_000.0)  # without axes it is of the other's type
    (product,) = results(lambda x, y: x * y * 0.001, halves, number).values()
    assert product.tolist() == [inf, inf]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool])
def test_rows_that_are_read_in_blocks_go_round_too(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Any:
        total = x.sum(-1) if dtype == torch.bool else x.sum(-1, dtype=dtype)
        return total * 3 // 2, ~x.amax(-1), ~x.amin(-1)

    x = torch.arange(1500).remainder(199).reshape(1, 1500).to(dtype)
    graph = capture(function, (x,)).graph
    wanted = {ref.name: types(graph)[ref.name] for ref in graph.outputs}
    written = program(graph, "rows:1x1024.w4")
    assert "for start in" in written.text
    made = run(written, {graph.inputs[0].name: x}, wanted).values()
    assert all(torch.equal(a, b) for a, b in zip(made, function(x), strict=True))


def test_truth_values_are_not_added_by_a_kernel() -> None:
    """A device adds them without a carry: two that are true would be false."""
    graph = graph_of(lambda x: x.sum(-1, dtype=torch.bool), torch.ones(2, 8, dtype=torch.bool))
    assert variants(graph, gpu(132)) == []


def test_a_number_that_is_rounded_to_a_half_type_has_a_type() -> None:
    x = torch.tensor([[-1.0, 7.0, 6.0], [0.5, 0.25, 9.0]], dtype=torch.float16)
    (places,) = results(lambda x: (torch.where(x > 5, 2.1, x) * 3).argmax(-1), x).values()
    assert places.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["gather", "index_select"])
def test_a_tensor_without_axes_is_a_library_s_to_choose_from(name: str) -> None:
    function = {"gather": torch.gather, "index_select": torch.index_select}[name]
    places = torch.tensor(0) if name == "gather" else torch.tensor([0])
    graph = graph_of(lambda x, i: function(x, 0, i), torch.tensor(3.0), places)
    assert variants(graph, gpu(132)) == []
