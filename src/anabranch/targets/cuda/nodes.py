"""The nodes of a captured graph: what its launches take of the GPU, and their L1 carve-out.

    call --capture--> graph --> [Resources(ctas=98, threads=128, registers=54, shared=8448), None]

Kernels of libraries say nowhere else how they are launched, but to a profiler; and a process that
was profiled once pays for it in every launch from then on: CUPTI stays attached, and graphs of 100
kernels that took 3 us to launch take 60. None stands for a node that is no kernel: a copy, a fill.

Which carve-out a kernel prefers (`kernels.triton.l1_carveout`) is said to its node, for only there
it can be said to kernels of libraries too.

Some kernels of libraries are launched as programmatic dependents, and do not wait for what they
read. On an H200 the convolutions that cuDNN generates for Hopper did so (`cudnn_generated_fort_
native_sm90_convFwd...`, 22 of NASNet-A Large's 540 launches): replays of one graph were off by up
to 0.13, each by another number, and all were right once these began when those before had ended.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

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


PROGRAMMATIC = 1
"""CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: the later kernel waits by itself."""


class EdgeData(ctypes.Structure):
    """CUgraphEdgeData; all zeros are an edge by which the later node starts when the earlier one
    has ended."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


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


def join(graph: int, waiting: Collection[str], library: Library | None = None) -> int:
    """Have the kernels of the graph at this address start when those before them have ended, but
    for the ones of these names, which wait by themselves; before it is instantiated. How many edges
    were others. TargetError for what the driver refuses, and from one before CUDA 12.3."""
    library = library or opened()
    earlier, later, data = _edges(graph, library)
    names: dict[int | None, str] = {}
    changed = []
    for at, edge in enumerate(data):
        if edge.type != PROGRAMMATIC:
            continue
        if later[at] not in names:
            names[later[at]] = _name(later[at], library)
        if names[later[at]] not in waiting:
            changed.append(at)
    if not changed:
        return 0
    count = len(changed)
    ends = ctypes.c_void_p * count
    firsts, seconds = ends(*(earlier[at] for at in changed)), ends(*(later[at] for at in changed))
    was, full = (EdgeData * count)(*(data[at] for at in changed)), (EdgeData * count)()
    for call, kind in (("cuGraphRemoveDependencies_v2", was), ("cuGraphAddDependencies_v2", full)):
        library.ask(call, ctypes.c_void_p(graph), firsts, seconds, kind, ctypes.c_size_t(count))
    return count


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


def _edges(graph: int, library: Library) -> tuple[Any, Any, Any]:
    """The nodes that edges come from, those that they go to, and what is said of each."""
    count = ctypes.c_size_t()
    asked = "cuGraphGetEdges_v2", ctypes.c_void_p(graph)
    library.ask(*asked, None, None, None, ctypes.byref(count))
    ends = ctypes.c_void_p * count.value
    earlier, later, data = ends(), ends(), (EdgeData * count.value)()
    library.ask(*asked, earlier, later, data, ctypes.byref(count))
    return earlier, later, data


def _name(node: int | None, library: Library) -> str:
    """Of the kernel of a node; "" of one that the driver has no name for."""
    _, function = _launch_of(node, library)
    name = ctypes.c_char_p()
    library.ask("cuFuncGetName", ctypes.byref(name), function)
    return (name.value or b"").decode(errors="replace")


def _launch_of(node: int | None, library: Library) -> tuple[KernelNodeParams, ctypes.c_void_p]:
    """How the node launches its kernel, and which function that is."""
    params = KernelNodeParams()
    library.ask("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(params))
    function = ctypes.c_void_p(params.function)
    if not params.function:  # a kernel of a library that is loaded for no context in particular
        kernel = ctypes.c_void_p(params.kernel)
        library.ask("cuKernelGetFunction", ctypes.byref(function), kernel)
    return params, function


def _kernel(node: int | None, library: Library) -> Resources:
    kernel_node_params, function = _launch_of(node, library)
    return Resources(
        ctas=math.prod(kernel_node_params.grid),
        threads=math.prod(kernel_node_params.block),
        registers=library.attribute(function, "registers"),
        shared=kernel_node_params.shared + library.attribute(function, "shared"),
    )
