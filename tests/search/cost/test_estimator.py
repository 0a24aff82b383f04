"""Prices: known tasks at their cost, new ones on the same scale, constants for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.rewrite.graphs import read

from anabranch.costs import Roofline
from anabranch.fusion import partition
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.search.cost.estimator import Appraiser, Taken
from anabranch.search.cost.task_cuts import TaskCutter, TaskPiece, without_constants
from anabranch.trace import Trace

SPEC = TargetSpec("cuda", "any", sms=132)


class Slow(Roofline):
    """Everything takes three times what an estimate says."""

    def task(self, task: Task) -> Cost:
        return scaled(super().task(task), 3)


def measured(us: float) -> Cost:
    return Cost(us, "measured")


def scaled(cost: Cost, times: float) -> Cost:
    """As measured, so many times."""
    return measured(times * cost.us)


def taken(tasks: TaskGraph) -> Taken:
    """What each of them takes, slowly."""
    return [(task, Slow(SPEC).task(task)) for task in tasks.tasks]


def twins(width: int) -> Graph:
    """Two convolutions of one input, of so many channels each."""
    window = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1"
    shape = f"f32[1,{width},8,8]"
    return read(
        "graph g {\n  input %x: f32[1,16,8,8]\n"
        f"  const %w: f32[{width},16,1,1] = w\n  const %v: f32[{width},16,1,1] = v\n"
        f"  %a: {shape} = aten.convolution.default(%x, %w, None, {window})\n"
        f"  %b: {shape} = aten.convolution.default(%x, %v, None, {window})\n"
        "  return %a, %b\n}"
    )


def test_new_tasks_are_priced_on_the_scale_of_known_ones() -> None:
    tasks = partition(twins(16), Trace(), SPEC)
    price = Appraiser(taken(tasks), TaskCutter(SPEC, False), 0.0)
    known, other = price(twins(16)), price(twins(32))
    rough = Roofline(SPEC)
    wide = sum(rough.task(task).us for task in partition(twins(32), Trace(), SPEC).tasks)
    assert known.us == pytest.approx(sum(Slow(SPEC).task(task).us for task in tasks.tasks))
    assert other.us == pytest.approx(3 * wide)


def test_another_wrapping_is_no_faster_than_what_is_known() -> None:
    """A bias that somebody else adds does not make a convolution faster, nor does a relu less."""
    window = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1"
    kind = "f32[1,16,8,8]"
    head = (
        f"graph g {{\n  input %x: {kind}\n  const %w: f32[16,16,1,1] = w\n"
        "  const %b: f32[16] = b\n  const %c: f32[1,16,1,1] = c\n"
    )
    whole = f"  %a: {kind} = aten.convolution.default(%x, %w, %b, {window})\n"
    apart = (
        f"  %p: {kind} = aten.convolution.default(%x, %w, None, {window})\n"
        f"  %a: {kind} = aten.add.Tensor(%p, %c)\n"
    )
    end = f"  %r: {kind} = aten.relu.default(%a)\n  return %r\n}}"
    fast, slow = (read(head + body + end) for body in (apart, whole))
    (task,) = partition(slow, Trace(), SPEC).tasks
    twice = scaled(Roofline(SPEC).task(task), 2)
    price = Appraiser(
        [(task, twice), *taken(partition(twins(16), Trace(), SPEC))], TaskCutter(SPEC, True), 0
    )
    assert price(fast).us >= price(slow).us * 0.99


def test_parts_that_are_written_into_a_whole_are_known_and_the_whole_is_free() -> None:
    """A plan has its parts where the whole is; a graph that is priced has them on their own."""
    kind, slot = "f32[1,16,8,8]", "f32[1,16,8,8]{2048,64,8,1}"
    relu = "graph g {{\n  input %x: {0}\n  %r: {1} = aten.relu.default(%x)\n  return %r\n}}"
    both = read(
        f"graph g {{\n  input %x: {kind}\n  %r: {kind} = aten.relu.default(%x)\n"
        f"  %s: {kind} = aten.sigmoid.default(%x)\n"
        "  %c: f32[1,32,8,8] = aten.cat.default([%r, %s], 1)\n  return %c\n}"
    )
    (part,) = partition(read(relu.format(kind, slot)), Trace(), SPEC).tasks
    (other,) = partition(
        read(relu.format(kind, slot).replace("relu", "sigmoid")), Trace(), SPEC
    ).tasks
    known = [(part, measured(7.0)), (other, measured(5.0))]
    assert Appraiser(known, TaskCutter(SPEC, True), 0.0)(both) == Price(12.0)
    assert Appraiser(known, TaskCutter(SPEC, False), 0.0)(both).us > 12.0


def test_the_critical_path_counts_as_much_as_was_asked() -> None:
    tasks = partition(twins(16), Trace(), SPEC)
    sums = Appraiser(taken(tasks), TaskCutter(SPEC, False), 0.0)(twins(16))
    mixed = Appraiser(taken(tasks), TaskCutter(SPEC, False), 2.0)(twins(16))
    assert mixed.us == pytest.approx(
        sums.us + 2 * sums.us / 2
    )  # either of two equal ones is the path


def test_what_depends_on_constants_alone_costs_nothing() -> None:
    text = """graph g {{
      input %x: f32[4]
      const %w: f32[4] = w
      const %v: f32[4] = v
      {extra}
      %out: f32[4] = aten.mul.Tensor(%x, %{factor})
      return %out
    }}"""
    plain = read(text.format(extra="", factor="w"))
    folded = read(text.format(extra="%s: f32[4] = aten.add.Tensor(%w, %v)", factor="s"))
    assert without_constants(plain) is plain
    after = without_constants(folded)
    assert [node.name for node in after.nodes] == ["out"]
    assert [constant.name for constant in after.constants] == ["s"]
    price = Appraiser(taken(partition(plain, Trace(), SPEC)), TaskCutter(SPEC, False), 1.0)
    assert price(folded) == price(plain)


def test_a_product_is_no_faster_under_another_name() -> None:
    """As a linear it is known; as a product of matrices it would be estimated otherwise."""
    head = "graph g {\n  input %x: f32[64,32]\n  const %w: f32[16,32] = w\n"
    plain = read(head + "  %y: f32[64,16] = aten.linear.default(%x, %w, None)\n  return %y\n}")
    other = read(
        head + "  %t: f32[32,16]{1,32} = aten.t.default(%w)\n"
        "  %y: f32[64,16] = aten.mm.default(%x, %t)\n  return %y\n}"
    )
    (task,) = partition(plain, Trace(), SPEC).tasks
    price = Appraiser([(task, measured(40.0))], TaskCutter(SPEC, True), 0.0)
    assert price(plain) == Price(40.0)
    assert price(other).us == pytest.approx(40.0, rel=0.1)


def test_values_with_gaps_between_them_are_dear_to_read() -> None:
    """Every second channel of another is no value that is known, wherever it lies."""
    window = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1"
    text = (
        "graph g {{\n  input %x: f32[1,16,8,8]{}\n  const %w: f32[16,16,1,1] = w\n"
        "  %a: f32[1,16,8,8]{{1024,1,128,16}} = "
        f"aten.convolution.default(%x, %w, None, {window})\n  return %a\n}}}}"
    )
    dense, part, gaps = (
        read(text.format(lies))
        for lies in ("{1024,1,128,16}", "{2048,1,256,32}", "{2048,2,256,32}")
    )
    (task,) = partition(dense, Trace(), SPEC).tasks
    price = Appraiser([(task, measured(5.0))], TaskCutter(SPEC, True), 0.0)
    assert price(dense) == price(part) == Price(5.0)
    assert price(gaps).us == pytest.approx(10.0)


def test_moves_in_a_row_are_one_launch() -> None:
    """Where kernels are generated; and a move that somebody else reads, too, is one of its own."""
    lines = [
        "graph g {",
        "  input %x: f16[1,3,8,8]",
        "  %pad: f16[1,3,10,10] = aten.constant_pad_nd.default(%x, [1, 1, 1, 1])",
        "  %out: f16[1,12,5,5] = aten.pixel_unshuffle.default(%pad, 2)",
        "  return %out",
        "}",
    ]
    both, alone = read("\n".join(lines)), read("\n".join([*lines[:4], "  return %out, %pad", "}"]))
    (pad, _) = partition(both, Trace(), SPEC).tasks
    for generates, one, two in ((True, 0.0, 7.0), (False, 7.0, 7.0)):
        price = Appraiser([(pad, measured(7.0))], TaskCutter(SPEC, generates), 0.0)
        rest = price(both).us - one
        assert price(alone).us == pytest.approx(rest + two) and rest > 0
        assert price.fresh(both) == price.fresh(alone)


def test_small_groups_say_little_of_wide_ones() -> None:
    """Groups of four channels are slow on tensor cores: that is no reason for those of sixteen to
    be, and is one for others of four."""

    def grouped(channels: int, size: int) -> Graph:
        window = f"[1, 1], [1, 1], [1, 1], False, [0, 0], {64 // channels}"
        shape = f"f16[1,64,{size},{size}]"
        return read(
            f"graph g {{\n  input %x: {shape}\n  const %w: f16[64,{channels},3,3] = w\n"
            f"  %y: {shape} = aten.convolution.default(%x, %w, None, {window})\n  return %y\n}}"
        )

    (small,) = partition(grouped(4, 8), Trace(), SPEC).tasks
    slow = scaled(Roofline(SPEC).task(small), 10)
    price = Appraiser([(small, slow)], TaskCutter(SPEC, True), 0.0)

    def times(channels: int) -> float:
        """The price of another size, by its own estimate."""
        graph = grouped(channels, 7)
        return price(graph).us / Roofline(SPEC).task(partition(graph, Trace(), SPEC).tasks[0]).us

    assert times(4) > 8 and times(16) > 8  # nothing else is known
    (one,) = partition(grouped(16, 8), Trace(), SPEC).tasks
    known = Roofline(SPEC).task(one)
    told = [*((small, slow) for _ in range(3)), *((one, known) for _ in range(3))]
    price = Appraiser(told, TaskCutter(SPEC, True), 0.0)
    assert times(16) < 2 and times(4) > 8


def test_new_tasks_are_timed_once_where_they_can_be() -> None:
    """Together for a graph; what a kernel takes is not what one in another layout takes; of what
    cannot be timed it is estimated as ever."""
    tasks, asked = partition(twins(16), Trace(), SPEC), list[list[str]]()

    def measure(pieces: Sequence[TaskPiece]) -> dict[str, float]:
        asked.append([piece.text for piece in pieces])
        return {piece.text: 7.0 for piece in pieces if "[1,32" in piece.text}

    price = Appraiser(taken(tasks), TaskCutter(SPEC, False), 0.0, measure=measure)
    plain = Appraiser(taken(tasks), TaskCutter(SPEC, False), 0.0)
    assert price(twins(16)) == plain(twins(16)) and not asked
    assert price(twins(32)).us == 14.0
    assert price(twins(24)) == plain(twins(24))
    assert [len(texts) for texts in asked] == [1, 1]
    price(twins(32)), price(twins(24))
    assert len(asked) == 2
