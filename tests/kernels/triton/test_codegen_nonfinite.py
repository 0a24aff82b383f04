"""What is not finite stays in its row: folds, normalisations, attention and scans answer
nan and infinity where eager does, and what they answer for other rows is not touched."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import run
from torch import Tensor

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.ir.proof import answer
from anabranch.kernels.triton.codegen import program, variants
from anabranch.targets.cpu.target import CpuTarget

INF, NAN = float("inf"), float("nan")
ROWS, COLUMNS = 8, 19
X = f"input %x: f32[{ROWS},{COLUMNS}]"
SAME, ONE, PLACE = f"f32[{ROWS},{COLUMNS}]", f"f32[{ROWS}]", f"i64[{ROWS}]"
CALLS = {
    "softmax": f"%r: {SAME} = aten._softmax.default(%x, 1, False)",
    "log_softmax": f"%r: {SAME} = aten._log_softmax.default(%x, 1, False)",
    "amax": f"%r: {ONE} = aten.amax.default(%x, [1])",
    "amin": f"%r: {ONE} = aten.amin.default(%x, [1])",
    "argmax": f"%r: {PLACE} = aten.argmax.default(%x, 1)",
    "argmin": f"%r: {PLACE} = aten.argmin.default(%x, 1)",
    "sum": f"%r: {ONE} = aten.sum.dim_IntList(%x, [1])",
    "logsumexp": f"%r: {ONE} = aten.logsumexp.default(%x, [1])",
    "cumsum": f"%r: {SAME} = aten.cumsum.default(%x, 1)",
    "cumprod": f"%r: {SAME} = aten.cumprod.default(%x, 1)",
    "layer_norm": f"%r: {SAME} = aten.layer_norm.default(%x, [{COLUMNS}])",
    "masked sum": (
        f"%m: b1[{ROWS},{COLUMNS}] = aten.isnan.default(%x)\n"
        f"%f: {SAME} = aten.masked_fill.Scalar(%x, %m, 0.0)\n"
        f"%r: {ONE} = aten.sum.dim_IntList(%f, [1])"
    ),
    "columns": f"%r: f32[{COLUMNS}] = aten.amax.default(%x, [0])",
    "all": "%r: f32[] = aten.amax.default(%x, [0, 1])",
}


def rows() -> Tensor:
    """Finite; one nan first, last, twice; inf; -inf; all -inf; both infinities."""
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(4))
    x[1, 0] = NAN
    x[2, -1] = NAN
    x[3, 4], x[3, 9] = INF, NAN
    x[4, 7] = INF
    x[5, 3] = -INF
    x[6] = -INF
    x[7, 2], x[7, 11] = INF, -INF
    return x


def compared(graph: Graph, given: list[Tensor], most: int = 3) -> None:
    """Each kernel gives what eager gives, nan where eager has nan."""
    (out,) = graph.outputs
    values = {value.name: x for value, x in zip(graph.inputs, given, strict=True)}
    (want,) = eval_graph(graph, given)
    found = variants(graph, gpu(132))
    assert found, "no kernel is generated"
    for variant in found[:: max(1, len(found) // most)][:most]:
        got = run(program(graph, variant), values, {out.name: types(graph)[out.name]})[out.name]
        torch.testing.assert_close(
            got, want, equal_nan=True, rtol=1e-4, atol=1e-5, msg=str(variant)
        )


@pytest.mark.parametrize("name", CALLS)
def test_rows(name: str) -> None:
    compared(read(f"graph g {{\n{X}\n{CALLS[name]}\nreturn %r\n}}"), [rows()])


@pytest.mark.parametrize("groups", [1, 4])
def test_groups(groups: int) -> None:
    """An infinity in one group, and nan in another."""
    text = f"%r: f32[2,8,5,3] = aten.group_norm.default(%x, {groups})"
    x = torch.randn(2, 8, 5, 3, generator=torch.Generator().manual_seed(5))
    x[0, 1, 4, 2] = INF
    compared(read(f"graph g {{\ninput %x: f32[2,8,5,3]\n{text}\nreturn %r\n}}"), [x])


@pytest.mark.parametrize("masked", ["all", "some"])
def test_attention_of_masked_rows(masked: str) -> None:
    """A row that may look at nothing is what eager says, and its neighbours are as they were."""
    text = (
        "input %q: f32[1,2,20,16]\ninput %k: f32[1,2,20,16]\ninput %v: f32[1,2,20,16]\n"
        "input %m: f32[1,1,20,20]\n"
        "%r: f32[1,2,20,16] = "
        "aten.scaled_dot_product_attention.default(%q, %k, %v, %m, 0.0, False)"
    )
    dice = torch.Generator().manual_seed(6)
    given = [torch.randn(1, 2, 20, 16, generator=dice) for _ in range(3)]
    mask = torch.zeros(1, 1, 20, 20)
    mask[..., 3, :] = -INF
    mask[..., 17, 1:] = -INF
    if masked == "all":
        mask[:] = -INF
    given[0][0, 1, 5, 2], given[0][0, 0, 19, 0] = INF, NAN
    compared(read(f"graph g {{\n{text}\nreturn %r\n}}"), [*given, mask], 2)


def test_windows_of_a_convolution_do_not_see_beyond_the_edge() -> None:
    """What pads a tile is 0 and meets weights that are not finite only where eager pads."""
    text = (
        "input %x: f32[1,4,6,7]\ninput %w: f32[5,4,3,3]\n"
        "%c: f32[1,5,6,7] = aten.convolution.default("
        "%x, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)\n"
        "%r: f32[1,5,6,7] = aten.relu.default(%c)"
    )
    dice = torch.Generator().manual_seed(7)
    x, w = (torch.randn(*n, generator=dice) for n in ((1, 4, 6, 7), (5, 4, 3, 3)))
    x[0, 0, 0, 0], x[0, 2, 5, 6] = INF, NAN
    compared(read(f"graph g {{\n{text}\nreturn %r\n}}"), [x, w], 2)


def test_a_contraction_keeps_what_is_not_finite_in_its_row() -> None:
    text = (
        "input %x: f32[19,21]\ninput %w: f32[21,13]\n%c: f32[19,13] = aten.mm.default(%x, %w)\n"
        "%r: f32[19,13] = aten.relu.default(%c)"
    )
    dice = torch.Generator().manual_seed(8)
    x, w = torch.randn(19, 21, generator=dice), torch.randn(21, 13, generator=dice)
    x[18, 20], x[2, 0] = INF, NAN
    w[20, 12] = -INF
    compared(read(f"graph g {{\n{text}\nreturn %r\n}}"), [x, w], 3)


STATISTICS = {
    "var_mean": "%v: f32[1,3,1,1], %v.1: f32[1,3,1,1] = "
    "aten.var_mean.correction(%x, [0, 2, 3], correction=0, keepdim=True)",
    "by lines": "%v: f32[4,3,8,1], %v.1: f32[4,3,8,1] = "
    "aten.var_mean.correction(%x, [3], correction=0, keepdim=True)",
    "layer_norm": "%v: f32[4,3,8,8], %v.1: f32[4,3,8,1], %v.2: f32[4,3,8,1] = "
    "aten.native_layer_norm.default(%x, [8], None, None, 1e-05)",
    "max_pool": "%v: f32[4,3,4,4], %v.1: i64[4,3,4,4] = "
    "aten.max_pool2d_with_indices.default(%x, [3, 3], [2, 2], [1, 1])",
}


@pytest.mark.parametrize("name", STATISTICS)
def test_what_training_keeps_beside_is_proved_on_special_numbers(name: str) -> None:
    """By the proof that decides on a GPU whether a generated kernel may be taken."""
    text = f"graph g {{\ninput %x: f32[4,3,8,8]\n{STATISTICS[name]}\nreturn %v, %v.1\n}}"
    body = read(text)
    kinds = types(body)
    for seed in range(3):
        _, wanted = answer(body, "special", seed, CpuTarget())
        assert wanted.judged
        given = {"x": wanted.inputs[0]}
        found = run(
            program(body, variants(body, gpu(132))[0]),
            given,
            {ref.name: kinds[ref.name] for ref in body.outputs},
        )
        assert wanted.differs([found[ref.name] for ref in body.outputs]) is None
