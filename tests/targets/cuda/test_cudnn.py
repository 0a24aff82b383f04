"""Handles of cuDNN are lent, not made anew; plans of one structure share a graph."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.ir.task import Kernel
from anabranch.ir.text import parse_graph
from anabranch.targets.cuda.cudnn import ENGINES, Cudnn, HandlePool, handles


def test_no_two_hold_one_handle_at_once_and_no_more_are_made_than_that() -> None:
    pool = HandlePool(itertools.count().__next__)
    with pool.lend() as first, pool.lend() as second:
        assert {first, second} == {0, 1}
    for _ in range(5):
        with pool.lend() as again:
            assert again in (0, 1)
    assert sorted(pool.free) == [0, 1]


def test_a_handle_comes_back_from_a_call_that_fails() -> None:
    pool = HandlePool(itertools.count().__next__)
    with pytest.raises(RuntimeError), pool.lend():
        raise RuntimeError("no engine")
    assert pool.free == [0]


class FakeGraph(MagicMock):
    """A graph of cuDNN's front end with three plans, each of its own workspace; it is written with
    the plan that it built last. `shares`: whether it builds a second one."""

    def __init__(self, shares: bool = True, **named: Any) -> None:
        super().__init__(**named)
        self.built: list[int] = []
        self.shares = shares

    def _get_child_mock(self, /, **named: Any) -> MagicMock:
        return MagicMock(**named)

    def get_execution_plan_count(self) -> int:
        return 3

    def build_plan_at_index(self, index: int) -> None:
        if index == 1 or (self.built and not self.shares):
            raise RuntimeError("no plan")
        self.built.append(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index in self.built
        return 100 + index

    def serialize(self) -> bytes:
        return b"%d" % self.built[-1]


CONV = "aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)"


def convolution(width: int) -> Graph:
    return parse_graph(f"""
graph conv {{
  input %x: f32[1,4,{width},8]
  input %w: f32[4,4,1,1]
  %c: f32[1,4,{width},8] = {CONV}
  return %c
}}""")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cudnn]]:
    """Engines of a fake front end, where there is neither cuDNN nor a GPU."""

    def of(shares: bool = True) -> Cudnn:
        library = MagicMock(
            cudnnGraphNotSupportedError=OSError, pygraph=lambda **_: FakeGraph(shares)
        )
        monkeypatch.setitem(sys.modules, "cudnn", library)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        return Cudnn(False, torch.device("cuda", 0))

    handles.cache_clear()
    yield of
    handles.cache_clear()


def kernels() -> list[Kernel]:
    bodies = [convolution(8), convolution(16)]
    return [
        Kernel("cudnn", "convolution", body, str(at), True)
        for body in bodies
        for at in (2, 0, 1, 3)
    ]


@pytest.mark.parametrize("shares", [True, False])
def test_plans_of_one_structure_share_a_graph_and_what_fails_there_is_built_alone(
    engines: Callable[..., Cudnn], shares: bool
) -> None:
    library = engines(shares)
    library.build(kernels())
    for kernel in kernels():
        index = int(str(kernel.variant))
        if index in (1, 3):
            with pytest.raises(TargetError, match="no engine 3" if index == 3 else "no plan"):
                library.engine(kernel)
            continue
        engine = library.engine(kernel)
        assert (engine.index, engine.workspace) == (index, 100 + index)
        assert index in engine.graph.built
    ok = [library.engine(kernel).graph for kernel in kernels() if kernel.variant in ("0", "2")]
    assert len({id(graph) for graph in ok}) == (2 if shares else 4)


def test_what_is_kept_is_the_plan_of_its_own_graph(
    engines: Callable[..., Cudnn], tmp_path: Path
) -> None:
    wanted = [kernel for kernel in kernels() if kernel.variant in ("0", "2")]
    with Cache.open(tmp_path) as cache:
        library = engines()
        library.build(wanted, cache, "a GPU")
        for kernel in wanted:
            key = ENGINES.key("a GPU", f"{structure_text(kernel.body)}{kernel.variant}")
            assert ENGINES.get(cache, key) == str(kernel.variant).encode()
