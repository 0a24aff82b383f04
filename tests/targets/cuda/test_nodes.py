"""What nodes say of launches, from a driver that is made up: kernels, a copy, an event."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from anabranch.errors import TargetError
from anabranch.ir.task import Resources
from anabranch.targets.cuda import nodes
from anabranch.targets.cuda.driver import Library
from anabranch.targets.cuda.nodes import EdgeData, KernelNodeParams, join, launches, part
from anabranch.targets.cuda.probe import largest

GRAPH, EVENT = 0x9000, 7
KINDS = {0x10: 0, 0x20: 1, 0x30: EVENT, 0x40: 0}
REGISTERS = {0xF1: 54, 0xF2: 32}
STATIC = {0xF1: 256, 0xF2: 0}
NAMES = {0xF1: b"window_convolution", 0xF2: b"cudnn_generated"}
FULL, PROGRAMMATIC = (0, 0, 0), (1, 0, 1)
EDGES = [(0x10, 0x40, PROGRAMMATIC), (0x20, 0x40, FULL), (0x40, 0x10, PROGRAMMATIC)]
"""From, to, and ports and type: each of the two kernels is launched before the other has ended."""


class FakeCuda:
    """Handles are addresses; the second kernel is known as a kernel of a library alone."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.told: list[tuple[int, int, int, int]] = []
        self.edges = list(EDGES)

    def cuGraphGetEdges_v2(self, graph: Any, first: Any, then: Any, data: Any, count: Any) -> int:
        assert graph.value == GRAPH
        for at, (one, other, kind) in enumerate(self.edges if first is not None else ()):
            first[at], then[at] = one, other
            data[at].from_port, data[at].to_port, data[at].type = kind
        count._obj.value = len(self.edges)
        return 0

    def cuGraphRemoveDependencies_v2(
        self, graph: Any, first: Any, then: Any, data: Any, count: Any
    ) -> int:
        for edge in _edges(first, then, data, count):
            self.edges.remove(edge)
        return 0

    def cuGraphAddDependencies_v2(
        self, graph: Any, first: Any, then: Any, data: Any, count: Any
    ) -> int:
        self.edges += _edges(first, then, data, count)
        return 0

    def cuGraphKernelNodeSetAttribute(self, node: Any, attribute: Any, value: Any) -> int:
        self.told.append((node.value, attribute.value, value[0], ctypes.sizeof(value)))
        return 0

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: 719) if name == self.failing else getattr(type(self), f"_{name}")

    @staticmethod
    def _cuGetErrorName(status: Any, name: Any) -> int:
        assert status.value == 719
        name._obj.value = b"CUDA_ERROR_LAUNCH_FAILED"
        return 0

    @staticmethod
    def _cuGraphGetNodes(graph: Any, found: Any, count: Any) -> int:
        assert graph.value == GRAPH
        if found is not None:
            assert count._obj.value == len(KINDS) == len(found)
            found[:] = list(KINDS)
        count._obj.value = len(KINDS)
        return 0

    @staticmethod
    def _cuGraphNodeGetType(node: Any, kind: Any) -> int:
        kind._obj.value = KINDS[node.value]
        return 0

    @staticmethod
    def _cuGraphKernelNodeGetParams_v2(node: Any, taken: Any) -> int:
        first = node.value == 0x10
        taken._obj.function = 0xF1 if first else None
        taken._obj.kernel = None if first else 0xAA
        taken._obj.grid[:] = [7, 14, 1] if first else [2, 1, 1]
        taken._obj.block[:] = [128, 1, 1] if first else [32, 4, 2]
        taken._obj.shared = 8192 if first else 0
        return 0

    @staticmethod
    def _cuKernelGetFunction(function: Any, kernel: Any) -> int:
        assert kernel.value == 0xAA
        function._obj.value = 0xF2
        return 0

    @staticmethod
    def _cuFuncGetName(name: Any, function: Any) -> int:
        name._obj.value = NAMES[function.value]
        return 0

    @staticmethod
    def _cuFuncGetAttribute(value: Any, which: Any, function: Any) -> int:
        value._obj.value = {4: REGISTERS, 1: STATIC}[which.value][function.value]
        return 0


def _edges(first: Any, then: Any, data: Any, count: Any) -> list[tuple[int, int, Any]]:
    kinds = [(edge.from_port, edge.to_port, edge.type) for edge in data]
    return list(zip(first, then, kinds, strict=True))[: count.value]


def test_kernels_copies_and_no_events() -> None:
    first, copy, second = launches(GRAPH, Library(FakeCuda()))
    assert first == Resources(ctas=98, threads=128, registers=54, shared=8448)
    assert copy is None
    assert second == Resources(ctas=2, threads=256, registers=32, shared=0)
    assert largest([second, copy, first]) == first
    assert largest([None]) is None


@pytest.mark.parametrize(
    "call", ["cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams_v2"]
)
def test_a_refusal_names_the_call(call: str) -> None:
    with pytest.raises(TargetError, match=f"{call} failed") as failed:
        list(launches(GRAPH, Library(FakeCuda(call))))
    assert failed.value.why == "CUDA_ERROR_LAUNCH_FAILED (719)"


def test_kernels_are_told_how_to_part_l1() -> None:
    """By the numbers of CUlaunchAttributeID and the size of CUlaunchAttributeValue in cuda.h."""
    cuda = FakeCuda()
    part(GRAPH, 50, Library(cuda))
    assert cuda.told == [(0x10, 14, 50, 64), (0x40, 14, 50, 64)]


def test_a_kernel_that_is_not_known_to_wait_starts_when_those_before_it_have_ended() -> None:
    cuda = FakeCuda()
    assert join(GRAPH, {"window_convolution"}, Library(cuda)) == 1
    assert sorted(cuda.edges) == sorted(
        [(0x10, 0x40, FULL), (0x20, 0x40, FULL), (0x40, 0x10, PROGRAMMATIC)]
    )
    assert join(GRAPH, {"window_convolution"}, Library(cuda)) == 0
    assert join(GRAPH, set(), Library(cuda)) == 1
    assert all(kind == FULL for _, _, kind in cuda.edges)


def test_a_driver_without_edges_that_can_be_changed_says_so() -> None:
    """One before CUDA 12.3."""
    with pytest.raises(TargetError, match="cuGraphGetEdges_v2 failed") as failed:
        join(GRAPH, set(), Library(object()))
    assert failed.value.why == "this driver has no such function"


def test_an_edge_lies_where_the_driver_puts_it() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="compares with cuda-bindings")
    theirs = driver.CUgraphEdgeData()
    theirs.from_port, theirs.to_port = 1, 2
    theirs.type = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    ours = ctypes.cast(int(theirs.getPtr()), ctypes.POINTER(EdgeData)).contents
    assert (ours.from_port, ours.to_port, ours.type) == (1, 2, nodes.PROGRAMMATIC)
    assert ctypes.sizeof(EdgeData) == 8


def test_the_parameters_lie_where_the_driver_puts_them() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="compares with cuda-bindings")
    theirs = driver.CUDA_KERNEL_NODE_PARAMS()
    theirs.gridDimX, theirs.gridDimZ, theirs.blockDimY, theirs.sharedMemBytes = 3, 5, 4, 99
    ours = ctypes.cast(int(theirs.getPtr()), ctypes.POINTER(KernelNodeParams)).contents
    assert (ours.grid[0], ours.grid[2], ours.block[1], ours.shared) == (3, 5, 4, 99)


def test_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "NAME", "libno_such_driver.so.1")
    with pytest.raises(TargetError, match=r"opening libno_such_driver\.so\.1 failed"):
        part(GRAPH, 50)
