"""The nodes of a captured graph: what its launches take of the GPU, and their L1 carve-out.

    call --capture--> graph --> [Resources(ctas=98, threads=128, registers=54, shared=8448), None]

Kernels of libraries say nowhere else how they are launched, but to a profiler; and a process that
was profiled once pays for it in every launch from then on: CUPTI stays attached, and graphs of 100
kernels that took 3 us to launch take 60. None stands for a node that is no kernel: a copy, a fill.

Which carve-out a kernel prefers (`kernels.triton.l1_carveout`) is said to its node, for only there
it can be said to kernels of libraries too.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch

from anabranch.ir.task import Resources
from anabranch.targets.cuda.cached_memory import with_room
from anabranch.targets.cuda.capturing import captured
from anabranch.targets.cuda.driver import NAME, Library, refused

KERNEL, COPY, FILL = 0, 1, 2
"""CU_GRAPH_NODE_TYPE of what runs on the device; others are events and the like."""
CARVEOUT = 14
"""CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: percent."""
VALUE = ctypes.c_int * 16
"""CUlaunchAttributeValue: a union of 64 bytes, of which an attribute of one number is the first."""


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS; its layout has not changed since CUDA 12.0."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def launches_of(
    call: Callable[[], None], stream: torch.cuda.Stream, library: Library | None = None
) -> list[Resources | None]:
    """The kernels, copies and fills that a call would launch, in order. The call is captured and
    not run. RuntimeError where it cannot be captured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # which is an answer
        graph = with_room(partial(captured, call, stream, keep=True))
    return list(launches(graph.raw_cuda_graph(), library or opened()))


def launches(graph: int, library: Library) -> Iterator[Resources | None]:
    """Of the graph at this address. TargetError for what the driver refuses."""
    for node, kind in _nodes(graph, library):
        if kind == KERNEL:
            yield _kernel(node, library)
        elif kind in (COPY, FILL):
            yield None


def part(graph: int, percent: int, library: Library | None = None) -> None:
    """Have all kernels of the graph at this address ask for so much of L1 as shared memory, before
    it is instantiated. TargetError for what the driver refuses."""
    library = library or opened()
    for node, kind in _nodes(graph, library):
        if kind == KERNEL:
            asked = ctypes.c_void_p(node), ctypes.c_int(CARVEOUT), VALUE(percent)
            library.ask("cuGraphKernelNodeSetAttribute", *asked)


def opened() -> Library:
    """TargetError where there is no driver of this name."""
    try:
        return Library(ctypes.CDLL(NAME))
    except OSError as failed:
        raise refused(f"opening {NAME}", str(failed)) from failed


def _nodes(graph: int, library: Library) -> Iterator[tuple[int | None, int]]:
    """Handles and kinds."""
    count = ctypes.c_size_t()
    library.ask("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    handles = (ctypes.c_void_p * count.value)()
    library.ask("cuGraphGetNodes", ctypes.c_void_p(graph), handles, ctypes.byref(count))
    for node in handles:
        kind = ctypes.c_int()
        library.ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        yield node, kind.value


def _kernel(node: int | None, library: Library) -> Resources:
    kernel_node_params = KernelNodeParams()
    library.ask(
        "cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(kernel_node_params)
    )
    function = ctypes.c_void_p(kernel_node_params.function)
    if (
        not kernel_node_params.function
    ):  # a kernel of a library that is loaded for no context in particular
        library.ask(
            "cuKernelGetFunction",
            ctypes.byref(function),
            ctypes.c_void_p(kernel_node_params.kernel),
        )
    return Resources(
        ctas=math.prod(kernel_node_params.grid),
        threads=math.prod(kernel_node_params.block),
        registers=library.attribute(function, "registers"),
        shared=kernel_node_params.shared + library.attribute(function, "shared"),
    )
