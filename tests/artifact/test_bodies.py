"""What bodies compute is what they declare, and kernels read and write what their tasks do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.artifact.bodies import check_bodies, check_nodes
from anabranch.errors import VerifyError
from anabranch.ir.graph import Constant, Graph, Input, Ref, State
from anabranch.ir.task import GENERATED, Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph, parse_node, parse_type
from anabranch.ir.types import TensorType

TABLE: Mapping[str, TensorType] = {
    name: parse_type(text)
    for name, text in {
        "x": "f32[9]",
        "i": "i64[9]",
        "wide": "f32[16384]",
        "wider": "f32[16385]",
        "image": "f32[1,3,8,8]",
        "w": "f32[4,3,3,3]",
        "bias": "f32[4]",
        "z": "f32[1,4,8,8]",
    }.items()
}


def check(line: str, asked: frozenset[str] = frozenset(), outputs: tuple[str, ...] = ()) -> None:
    node = parse_node(line)
    returned = tuple(map(Ref, outputs or node.results))
    check_nodes(Graph("g", (), (), (node,), returned), TABLE, asked)


STRIDED = "aten.as_strided.default(%x, [{}], [{}], {})"
TAKEN = {
    "by a rule": "%y: f32[9] = aten.relu.default(%x)",
    "by torch": "%y: i64[9] = aten.add.Tensor(%i, 2)",
    "all of a value": "%y: f32[9] = " + STRIDED.format(9, 1, 0),
    "less than a value": "%y: f32[4] = " + STRIDED.format(4, 1, 2),
    "to its end": "%y: f32[1] = " + STRIDED.format(1, 1, 8),
    "without offset": "%y: f32[9] = aten.as_strided.default(%x, [9], [1])",
    "every second": "%y: f32[5]{2} = " + STRIDED.format(5, 2, 0),
    "one over and over": "%y: f32[3,3]{0,1} = " + STRIDED.format("3, 3", "0, 1", 6),
    "put to the end": "%y: f32[9] = aten.as_strided_scatter.default(%x, %x, [9], [1], 0)",
}
REFUSED = {
    "%y of g: aten.relu.default computes f32[9], declared is f32[8]": (
        "%y: f32[8] = aten.relu.default(%x)"
    ),
    "computes f32[9], declared is f16[9]": "%y: f16[9] = aten.relu.default(%x)",
    "computes i64[9], declared is i64[8]": "%y: i64[8] = aten.add.Tensor(%i, 2)",
    "computes i64[9], declared is i32[9]": "%y: i32[9] = aten.add.Tensor(%i, 2)",
    "reaches byte 40 of a value of 36 B": "%y: f32[9] = " + STRIDED.format(9, 1, 1),
    "reaches byte 44 of a value of 36 B": "%y: f32[6]{2} = " + STRIDED.format(6, 2, 0),
    "reaches byte 36 of a value of 36 B": "%y: f32[3,3] = " + STRIDED.format("9, 1", "1", 0),
    "reaches byte 72 of a value of 36 B": (
        "%y: f32[9] = aten.as_strided_scatter.default(%x, %x, [9], [1], 9)"
    ),
    "there is no reduction 7": "%y: f32[] = aten.mse_loss.default(%x, %x, 7)",
    "aten.split.Tensor has too many results": "%y: f32[1] = aten.split.Tensor(%wider, 1)",
    "aten.unbind.int has too many results": "%y: f32[1] = aten.unbind.int(%wider)",
    "aten.chunk.default has too many results": "%y: f32[1] = aten.chunk.default(%wider, 99999)",
    "aten.unbind.int has 9 results": "%y: f32[] = aten.unbind.int(%x)",
    "aten.mm.default does not take these arguments": "%y: f32[9] = aten.mm.default(%x, %x)",
}
SIZES = ("[-1], [1], 0", "[9], [-1], 0", "[9], [1], -1", "[9], [True], 0", "[1.0], [1], 0")


@pytest.mark.parametrize("what", TAKEN)
def test_a_node_computes_what_it_declares(what: str) -> None:
    check(TAKEN[what])


@pytest.mark.parametrize("said", REFUSED)
def test_a_node_that_computes_something_else_is_refused(said: str) -> None:
    with pytest.raises(VerifyError) as refused:
        check(REFUSED[said])
    assert said in str(refused.value)


@pytest.mark.parametrize("given", SIZES)
def test_sizes_strides_and_offsets_are_whole_numbers(given: str) -> None:
    with pytest.raises(VerifyError, match="it takes no such sizes, strides or offset"):
        check(f"%y: f32[9] = aten.as_strided.default(%x, {given})")


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("split.Tensor(%x, 2)", 5),
        ("split.Tensor(%x, 3)", 3),
        ("split.Tensor(%wide, 1)", 16384),
        ("split.Tensor(%wider, 2)", 8193),
        ("split.Tensor(%x, 0)", None),
        ("chunk.default(%wider, 2)", 2),
        ("chunk.default(%x, 99999)", 9),
        ("split_with_sizes.default(%wider, [16384, 1])", 2),
        ("unbind.int(%wide)", 16384),
    ],
)
def test_results_are_counted_before_they_are_made(call: str, count: int | None) -> None:
    said = f"has {count} results" if count else "does not take these arguments"
    with pytest.raises(VerifyError, match=said):
        check(f"%y: f32[1], %y.1: f32[1], %y.2: f32[1], %y.3: f32[1] = aten.{call}")


def test_results_that_nobody_reads_may_differ_but_not_the_first() -> None:
    line = "%y: {}, %y.1: {} = aten.max.dim(%x, 0)"
    check(line.format("f32[]", "i64[]"))
    check(line.format("f32[]", "i32[]"), outputs=("y",))
    for first, second, outputs in (
        ("f32[]", "i32[]", ("y", "y.1")),
        ("f16[]", "i64[]", ("y",)),
    ):
        with pytest.raises(VerifyError, match=r"aten\.max\.dim computes"):
            check(line.format(first, second), outputs=outputs)


def test_a_result_that_another_node_reads_is_as_declared() -> None:
    pair = parse_node("%y: f32[], %y.1: i32[] = aten.max.dim(%x, 0)")
    reader = parse_node("%q: i32[] = aten.neg.default(%y.1)")
    table = {**TABLE, "y": parse_type("f32[]"), "y.1": parse_type("i32[]")}
    with pytest.raises(VerifyError, match="declared is i32"):
        check_nodes(Graph("g", (), (), (pair, reader), (Ref("q"),)), table, frozenset())


CONV = "[1, 1], [1, 1], [1, 1], 1"
CONVS = {
    "aten.cudnn_convolution.default": "%image, %w, {pad}, {stride}, {dil}, 1, True, True, True",
    "aten.cudnn_convolution_relu.default": "%image, %w, %bias, {stride}, {pad}, {dil}, 1",
    "aten.cudnn_convolution_add_relu.default": (
        "%image, %w, %z, 1.0, %bias, {stride}, {pad}, {dil}, 1"
    ),
}


@pytest.mark.parametrize("op", CONVS)
def test_fused_convolutions_are_as_large_as_others(op: str) -> None:
    """Stride, padding and dilation differ from each other, and so do sizes and channels."""
    call = f"{op}({CONVS[op]})".format(stride="[2, 1]", pad="[1, 2]", dil="[1, 2]")
    check(f"%y: f32[1,4,4,8] = {call}")
    with pytest.raises(VerifyError, match=r"computes f32\[1,4,4,8\]"):
        check(f"%y: f32[1,4,8,8] = {call}")


RNN = "aten.lstm.input(%seq, [%h, %h], [%wi, %wh, %b, %b], True, 1, 0.0, False, False, {})"
SEQUENCE = {
    name: parse_type(text)
    for name, text in {
        "h": "f32[1,2,4]",
        "wi": "f32[16,3]",
        "wh": "f32[16,4]",
        "b": "f32[16]",
    }.items()
}


@pytest.mark.parametrize(
    ("seq", "batch_first", "made"),
    [
        ("f32[7,2,3]", False, "f32[7,2,4]"),
        ("f32[2,7,3]", True, "f32[2,7,4]"),
        ("f32[1,2,3]", False, "f32[1,2,4]"),
    ],
)
def test_a_sequence_is_as_long_as_its_operand(seq: str, batch_first: bool, made: str) -> None:
    table = {**SEQUENCE, "seq": parse_type(seq)}
    states = "%y.1: f32[1,2,4], %y.2: f32[1,2,4]"

    def checked(declared: str) -> None:
        node = parse_node(f"%y: {declared}, {states} = {RNN.format(batch_first)}")
        check_nodes(Graph("g", (), (), (node,), (Ref("y"),)), table, frozenset())

    checked(made)
    for other in ("f32[6,2,4]", "f32[2,8,4]", "f32[7,2,5]"):
        with pytest.raises(VerifyError, match=r"aten\.lstm\.input computes"):
            checked(other)


def test_a_users_operator_needs_no_meta_kernel() -> None:
    with torch.library._scoped_library("anabranch_bodies", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        line = "%y: f32[3] = anabranch_bodies.twice.default(%x)"
        for name in ("anabranch_bodies.twice", "anabranch_bodies.twice.default"):
            check(line, frozenset({name}))
        for asked in (frozenset[str](), frozenset({"anabranch_bodies.other"})):
            with pytest.raises(VerifyError, match="does not take these arguments"):
                check(line, asked)
        with pytest.raises(VerifyError, match="does not take these arguments"):
            check("%y: f32[9] = aten.mm.default(%x, %x)", frozenset({"aten.mm"}))


BODY = parse_graph(
    """graph a {
  input %x: f32[9]
  input %y: f32[9]
  const %k: f32[9] = 3f
  %s: f32[9] = aten.add.Tensor(%x, %y)
  %a: f32[9] = aten.mul.Tensor(%s, %k)
  return %a
}"""
)
F32 = parse_type("f32[9]")
NET = TaskGraph(
    "net",
    (Input("x", F32), Input("y", F32)),
    (Constant("k", F32, "3f"),),
    (Task("a", BODY, Kernel("aten", "a", BODY)),),
    (),
    (Ref("a"),),
)
ALIAS = parse_node("%v: f32[3,3] = aten.view.default(%a, [3, 3])")
CONCAT = parse_node("%c: f32[18] = aten.cat.default([%a, %a])")


def kernel(**changed: Any) -> TaskGraph:
    body = replace(BODY, **changed)
    return replace(NET, tasks=(replace(NET.tasks[0], kernel=Kernel("aten", "a", body)),))


RENAMED = (replace(BODY.nodes[0]), replace(BODY.nodes[1], name="b"))
PLANS: dict[str, list[TaskGraph]] = {
    "reads %x otherwise than its task": [
        kernel(inputs=(Input("x", parse_type("f32[9]{2}")), BODY.inputs[1])),
    ],
    "reads %q otherwise than its task": [kernel(inputs=(*BODY.inputs, Input("q", F32)))],
    "writes other values or types than its task": [
        kernel(outputs=(Ref("s"),)),
        kernel(outputs=(Ref("a"), Ref("s"))),
        kernel(outputs=()),
        kernel(nodes=RENAMED, outputs=(Ref("b"),)),
        kernel(nodes=(BODY.nodes[0], replace(BODY.nodes[1], types=(parse_type("f32[9]{2}"),)))),
    ],
    "its constant %k is not the plan's": [
        kernel(constants=(Constant("k", F32, "4e"),)),
        replace(NET, constants=()),
        replace(NET, constants=(Constant("k", parse_type("f16[9]"), "3f"),)),
    ],
    "declared is": [
        kernel(nodes=(replace(BODY.nodes[0], types=(parse_type("f32[8]"),)), BODY.nodes[1])),
        replace(NET, tasks=(Task("a", replace(BODY, nodes=(BODY.nodes[0], replace(
            BODY.nodes[1], types=(parse_type("f32[8]"),))))),)),
        replace(NET, aliases=(replace(ALIAS, types=(parse_type("f32[3,4]"),)),)),
        replace(NET, elided_concats=(replace(CONCAT, types=(parse_type("f32[19]"),)),)),
    ],
    "its body is no convolution that cuDNN runs": [
        replace(NET, tasks=(replace(NET.tasks[0], kernel=Kernel("cudnn", "a", BODY)),)),
    ],
}  # fmt: skip


def test_a_kernel_reads_and_writes_what_its_task_does() -> None:
    check_bodies(NET)
    check_bodies(replace(NET, aliases=(ALIAS,), elided_concats=(CONCAT,)))
    check_bodies(replace(NET, tasks=(Task("a", BODY),)))
    node = replace(BODY.nodes[1], args=(Ref("x"), Ref("k")))
    check_bodies(kernel(inputs=BODY.inputs[:1], nodes=(node,)))


def test_only_generated_kernels_are_asked_whether_they_may_write_over_what_they_read() -> None:
    """A library's has results of its own, which a copy puts in place."""
    body = replace(BODY, states=(State("x", 0),))
    library, generated = (
        replace(NET, tasks=(Task("a", body, Kernel(provider, "a", body)),))
        for provider in ("aten", GENERATED)
    )
    check_bodies(library)
    with pytest.raises(VerifyError, match="it may not write over what it reads: no template"):
        check_bodies(generated)


@pytest.mark.parametrize("said", PLANS)
def test_a_plan_whose_parts_differ_is_refused(said: str) -> None:
    for tasks in PLANS[said]:
        with pytest.raises(VerifyError) as refused:
            check_bodies(tasks)
        assert said in str(refused.value)
