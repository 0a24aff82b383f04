"""What tasks demand: traffic at the border, arithmetic inside, CTA slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.bench.record import label
from anabranch.costs.observed import ObservedTask, observed_bound
from anabranch.costs.work import contracts_in_f32, work
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.task import Kernel, Resources, Task
from anabranch.ir.types import TensorType


def test_a_convolution(make: Any) -> None:
    found = work(make.conv(64, 56, 64, 3), make.spec)
    flops = 2 * 64 * 64 * 9 * 56 * 56
    moved = 2 * (2 * 64 * 56 * 56 + 64 * 64 * 9)
    assert found.busy_us == pytest.approx(flops / 9.89e14 * 1e6)
    assert found.moved_us == pytest.approx(moved / 4.8e12 * 1e6)
    assert (found.depth, found.launches) == (64 * 9, 1)


def test_groups_are_as_wide_as_a_tile_of_tensor_cores(make: Any) -> None:
    def padded(c: int, groups: int, **told: Any) -> float:
        return work(make.conv(c, 28, c, 3, groups=groups, **told), make.spec).padded_us

    assert padded(128, 8) == padded(128, 1) == 0.0, "16 channels fill it"
    assert padded(128, 128) == 0.0, "depthwise ones do without"
    assert padded(128, 32) == pytest.approx(4 * padded(32, 8))
    assert padded(128, 32) > padded(128, 16) > 0
    assert padded(128, 32, dtype=torch.float32) == 0.0, "and so does plain single precision"


def test_what_stays_inside_a_launch_is_no_traffic(make: Any) -> None:
    task = make.conv(64, 56, 64, 3)
    y = task.body.nodes[0]
    relu = Node("z", "aten.relu.default", (Ref("y"),), (), y.types)
    fused = Task("z", replace(task.body, nodes=(y, relu), outputs=(Ref("z"),)))
    alone, both = work(task, make.spec), work(fused, make.spec)
    assert both.moved_us == alone.moved_us
    assert both.busy_us > alone.busy_us
    twice = replace(fused, kernel=Kernel("library", "two calls", fused.body, launches=2))
    assert work(twice, make.spec).moved_us > alone.moved_us
    assert work(twice, make.spec).launches == 2


def test_of_a_table_the_rows_that_are_looked_up_are_traffic(make: Any) -> None:
    """One lookup in a table of everything asks for no more than many in tables of their own; twice
    all of a table is all of it."""
    rows, few = TensorType((26 * 10_000, 10), torch.half), TensorType((4, 26), torch.int64)
    found = TensorType((4, 26, 10), torch.half)
    node = Node("y", "aten.embedding.default", (Ref("w"), Ref("i")), (), (found,))
    again = replace(node, name="z")

    def body(table: TensorType, *nodes: Node) -> Graph:
        held, ids = (Constant("w", table, "-"),), (Input("i", few),)
        return Graph("y", ids, held, nodes, tuple(Ref(node.name) for node in nodes))

    nbytes, indices = 4 * 26 * 10 * 2, 4 * 26 * 8
    once = work(Task("y", body(rows, node)), make.spec)
    twice = work(Task("y", body(rows, node, again)), make.spec)
    short = work(Task("y", body(TensorType((5, 10), torch.half), node, again)), make.spec)
    per_us = make.spec.bandwidth * 1e-6
    assert once.moved_us * per_us == pytest.approx(2 * nbytes + indices)
    assert twice.moved_us * per_us == pytest.approx(4 * nbytes + indices)
    assert short.moved_us * per_us == pytest.approx(2 * nbytes + indices + 5 * 10 * 2)


def test_of_independent_parts_each_waits_for_its_own_traffic(make: Any) -> None:
    one, two = make.conv(64, 56, 64, 3), make.conv(32, 56, 32, 3)
    assert work(one, make.spec).awaited_us is None
    other = replace(
        two.body,
        inputs=(replace(two.body.inputs[0], name="x2"),),
        constants=(replace(two.body.constants[0], name="w2"),),
        nodes=(replace(two.body.nodes[0], name="y2", args=_named(two.body.nodes[0].args)),),
        outputs=(Ref("y2"),),
    )
    body = Graph(
        "both",
        (*one.body.inputs, *other.inputs),
        (*one.body.constants, *other.constants),
        (*one.body.nodes, *other.nodes),
        (*one.body.outputs, *other.outputs),
    )
    both = work(Task("both", body), make.spec)
    assert both.awaited_us == pytest.approx(work(one, make.spec).moved_us)
    apart = work(one, make.spec).moved_us + work(two, make.spec).moved_us
    assert both.moved_us == pytest.approx(apart)


def _named(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(Ref(f"{arg.name}2") if isinstance(arg, Ref) else arg for arg in args)


def test_views_are_nothing(make: Any) -> None:
    type = TensorType((8, 1), torch.float16)
    node = Node("v", "aten.view.default", (Ref("x"), (8, 1)), (), (type,))
    x = make.relu("a").body.inputs
    found = work(Task("v", Graph("v", x, (), (node,), (Ref("v"),))), make.spec)
    assert (found.launches, found.moved_us, found.share) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("resources", "share"),
    [
        (Resources(132, 1024, 32, 0), 0.5),  # threads: two CTAs an SM
        (Resources(132, 128, 256, 0), 0.5),  # registers: two
        (Resources(132, 64, 16, 232448), 1.0),  # shared memory: one
        (Resources(66, 32, 16, 0), 66 / (132 * 32)),  # CTAs: at most 32 an SM
        (Resources(9999, 1024, 32, 0), 1.0),
    ],
)
def test_share_is_ctas_over_those_that_fit(make: Any, resources: Resources, share: float) -> None:
    task = make.relu("a")
    kernel = Kernel("test", "k", task.body, resources=resources)
    assert work(replace(task, kernel=kernel), make.spec).share == pytest.approx(share)
    assert work(task, replace(make.spec, kind="cpu")).share == 1.0


def test_tf32_counts_for_contractions_in_fp32_only(make: Any) -> None:
    half, single = make.conv(64, 14, 64, 3), make.conv(64, 14, 64, 3, torch.float32)
    with_tf32 = replace(make.spec, tf32=True)
    assert work(single, with_tf32).busy_us < work(single, make.spec).busy_us
    assert work(half, with_tf32) == work(half, make.spec)
    assert contracts_in_f32(single)
    assert not contracts_in_f32(half)


@pytest.mark.parametrize(
    ("provider", "name", "expected"),
    [("aten", "aten", True), ("aten", "addmm_activation", True), ("triton", "contraction", False)],
)
def test_products_of_cublas_are_bound_and_their_labels_say_so(
    make: Any, provider: str, name: str, expected: bool
) -> None:
    x = TensorType((128, 768), torch.float16)
    w = TensorType((768, 768), torch.float16)
    y = Node("y", "aten.linear.default", (Ref("x"), Ref("w")), (), (x,))
    body = Graph("product", (Input("x", x),), (Constant("w", w, "0"),), (y,), (Ref("y"),))
    task = Task("product", body, Kernel(provider, name, body))
    assert work(task, make.spec).bound is expected
    assert observed_bound(ObservedTask(key="", us=1.0, label=label(task))) is expected
    assert work(replace(task, kernel=None), make.spec).bound
    assert not work(task, replace(make.spec, kind="cpu")).bound


def test_other_kernels_of_libraries_are_not_bound(make: Any) -> None:
    task = make.conv(64, 56, 64, 3)
    for provider in ("aten", "cudnn"):
        chosen = replace(task, kernel=Kernel(provider, "aten", task.body))
        assert not work(chosen, make.spec).bound
        assert not observed_bound(ObservedTask(key="", us=1.0, label=label(chosen)))
