"""Which networks find their weights in memory, and how what reads them is timed then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.costs.conftest import H200, FakeRun, FakeTarget
from tests.rewrite.graphs import read

from anabranch.costs.measured import Measured
from anabranch.costs.weights_read import picks_rows, uncached
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.task import Task
from anabranch.ir.types import TensorType
from anabranch.ir.uncached import Uncached

MB = 1 << 20
CACHED = replace(H200, l2_bytes=MB)


def product(width: int, rows: int = 1) -> Task:
    """A product that reads a weight of 1024 x width halves."""
    body = read(f"""
    graph y {{
      input %x: f16[{rows},1024]
      const %w: f16[{width},1024] = w
      %y: f16[{rows},{width}] = aten.linear.default(%x, %w)
      return %y
    }}""")
    return Task("y", body)


LOOKUP = """
    graph g {{
      input %at: i64[4]
      const %table: f16[{words},1024] = t
      const %w: f16[512,1024] = w
      %x: f16[4,1024] = aten.embedding.default(%table, %at)
      %y: f16[4,512] = aten.linear.default(%x, %w)
      return %y
    }}"""


def test_weights_stream_where_they_are_larger_than_the_cache() -> None:
    assert uncached(product(512).body, CACHED) is None, "as large as the cache"
    assert uncached(product(1024).body, CACHED) == Uncached()
    assert uncached(product(1024).body, H200) is None, "nobody knows its cache"


def test_a_table_of_which_some_rows_are_read_does_not_count() -> None:
    graph = read(LOOKUP.format(words=5000))
    assert uncached(graph, CACHED) is None and picks_rows(graph)
    assert not picks_rows(product(512).body)


@dataclass
class Cold(FakeTarget):
    """Remembers how many copies of a plan's weights it was to read by turns."""

    copies: list[tuple[int, int]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def load_cold(self, plan: Plan, repeat: int, copies: int, contents: Any = None) -> FakeRun:
        self.copies.append((repeat, copies))
        self.plans.append(plan)
        return FakeRun(plan, repeat)


def test_copies_are_twice_as_large_as_the_cache(prepare: Any) -> None:
    """A quarter of the cache: eight copies; four times as large: the cache keeps nothing of it."""
    target: Any = Cold(spec=CACHED)
    costs = Measured(target, prepare, cold=Uncached())
    costs.warm([product(128), product(2048), product(16), replace(product(1), name="z")])
    assert target.copies == [(8, 8), (48, 48), (48, 48)] and target.repeats == [8]


def test_times_of_cold_weights_are_others(prepare: Any, tmp_path: Any) -> None:
    target: Any = Cold(spec=CACHED)
    warm, cold = (Measured(target, prepare, cold=cold) for cold in (None, Uncached()))
    assert warm._key(product(128)) != cold._key(product(128))
    table = Task("y", read(LOOKUP.format(words=64)))
    assert warm._key(table) == cold._key(table), "of it some rows are read"


ATTENTION = """
    graph y {
      input %q: f16[1,8,1,64]
      input %keys: f16[1,8,512,64]
      input %values: f16[1,8,512,64]
      %y: f16[1,8,1,64] = aten.scaled_dot_product_attention.default(%q, %keys, %values)
      return %y
    }"""
KEPT = TensorType((1, 8, 512, 64), torch.float16)


def decoder(words: int) -> Graph:
    """A product, and keys that it keeps."""
    return read(f"""
    graph g {{
      input %x: f16[1,1024]
      state %keys: f16[1,8,512,64] -> %new
      const %w: f16[{words},1024] = w
      %y: f16[1,{words}] = aten.linear.default(%x, %w)
      %new: f16[1,8,512,64] = aten.add.Tensor(%keys, 1)
      return %y, %new
    }}""")


def test_states_of_some_size_stream_with_the_weights() -> None:
    assert uncached(decoder(1024), CACHED) == Uncached((KEPT,))
    assert uncached(decoder(256), CACHED) is None, "both together are as large as the cache"


@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_states_are_known_through_views_and_where_a_part_of_them_is_new(dtype: str) -> None:
    """Tokens first where they are kept, heads first where they are read, repeated for a group."""
    graph = read(f"""
    graph g {{
      input %at: i64[1]
      input %now: {dtype}[1,1,8,64]
      state %keys: {dtype}[1,4096,8,64] -> %new
      %new: {dtype}[1,4096,8,64] = aten.index_copy.default(%keys, 1, %at, %now)
      %heads: {dtype}[1,8,4096,64]{{2097152,64,512,1}} = aten.permute.default(%new, [0, 2, 1, 3])
      %some: {dtype}[1,8,512,64]{{2097152,64,512,1}} = aten.slice.Tensor(%heads, 2, 0, 512)
      %one: {dtype}[1,8,1,512,64]{{2097152,64,64,512,1}} = aten.unsqueeze.default(%some, 2)
      %all: {dtype}[1,8,2,512,64]{{2097152,64,0,512,1}} = aten.expand.default(%one, [1,8,2,512,64])
      %y: {dtype}[1,8,2,512,64]{{524288,65536,32768,64,1}} = aten.clone.default(%all)
      return %y, %new
    }}""")
    seen = uncached(graph, CACHED)
    assert seen is not None
    shapes = {(1, 4096, 8, 64), (1, 8, 4096, 64), (1, 8, 512, 64), (1, 8, 1, 512, 64)}
    assert {kind.shape for kind in seen.states} == shapes


def test_what_a_decoder_has_kept_is_read_by_turns(prepare: Any) -> None:
    """Keys and values of half the cache each: two copies; the query is the same."""
    target: Any = Cold(spec=CACHED)
    costs = Measured(target, prepare, cold=Uncached((KEPT,)))
    task = Task("y", read(ATTENTION))
    costs.warm([task])
    assert target.copies == [(8, 2)]
    (plan,) = target.plans
    assert [value.name for value in plan.tasks.inputs] == ["q"]
    assert [constant.name for constant in plan.tasks.constants] == ["keys", "values"]
    assert costs._key(task) != Measured(target, prepare, cold=Uncached())._key(task)


def test_memory_that_states_do_not_get_leaves_an_estimate(
    prepare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr("anabranch.costs.measured.random_tensor", full)
    costs = Measured(Cold(spec=CACHED), prepare, cold=Uncached((KEPT,)))  # type: ignore[arg-type]
    assert costs.task(Task("y", read(ATTENTION))).source == "estimated"


def test_plans_in_a_row_have_copies_of_their_weights_alone(prepare: Any) -> None:
    """Their states lie where calls find them."""
    costs = Measured(Cold(spec=CACHED), prepare, cold=Uncached((KEPT,)))  # type: ignore[arg-type]
    task = Task("y", read(ATTENTION))
    assert costs._copies((task,), states=True) == 2 and costs._copies((task,)) == 1
