"""Operator by operator, the types that the bodies of a plan from a file compute are held against
the types that the file declares. Meta tensors have no memory.

    %y: f32[4] = aten.repeat.default(%x, [1000])     refused: it computes f32[4000]
    kernel body reads %z, its task does not          refused: the proof of order would not see it
    %v = aten.as_strided.default(%x, [9], [1], 8)    refused: it reaches beyond %x

A call is asked for once in a process, equal layers and loads of equal plans share it
(`ir.ops.infer`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anabranch.artifact.argument_checks import why_not
from anabranch.errors import VerifyError
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, types
from anabranch.ir.shapes import known_type
from anabranch.ir.task import GENERATED, Kernel, Task, TaskGraph, value_types
from anabranch.ir.types import TensorType
from anabranch.kernels.library import fits_cudnn
from anabranch.kernels.triton.in_place import why_not_in_place

MAX_RESULTS = 1 << 14
"""Results of one node."""
CUDNN = {
    # operator: where its arguments stand of those of a convolution
    "aten.cudnn_convolution": (0, 1, None, 3, 2, 4, 5),
    "aten.cudnn_convolution_relu": (0, 1, 2, 3, 4, 5, 6),
    "aten.cudnn_convolution_add_relu": (0, 1, 4, 5, 6, 7, 8),
}
"""Fused convolutions, for which torch has no meta kernel."""
RECURRENT = frozenset(f"{name}.input" for name in ops.RECURRENT)
"""Operators whose meta kernel walks over the steps of its first operand."""


def check_bodies(tasks: TaskGraph, asked: frozenset[str] = frozenset()) -> None:
    """VerifyError for a body whose operators compute other types than it declares, or a kernel
    that reads or writes other values than its task. `asked`: operators that the user vouches for,
    which need no meta kernel."""
    outer = value_types(tasks)
    check_nodes(Graph(tasks.name, (), (), tasks.aliases, ()), outer, asked)
    check_nodes(Graph(tasks.name, (), (), tasks.elided_concats, ()), outer, asked)
    constants = {constant.name: constant for constant in tasks.constants}
    for task in tasks.tasks:
        bodies = [task.body]
        if task.kernel is not None and task.kernel.body is not task.body:
            bodies.append(task.kernel.body)
        for body in bodies:
            check_nodes(body, types(body), asked)
            for constant in body.constants:
                same = constants.get(constant.name) == constant
                _unless(same, task.name, f"its constant %{constant.name} is not the plan's")
        if task.kernel is not None:
            _check_kernel(task, task.kernel)


def _check_kernel(task: Task, kernel: Kernel) -> None:
    """The kernel reads no more than the task, and writes the same, in the same types."""
    body, what = kernel.body, f"the kernel of {task.name}"
    read = {value.name: value.type for value in task.body.inputs}
    for value in body.inputs:
        same = read.get(value.name) == value.type
        _unless(same, what, f"it reads %{value.name} otherwise than its task")
    inner, outer = types(body), types(task.body)
    written = [(ref.name, inner[ref.name]) for ref in body.outputs]
    wanted = [(ref.name, outer[ref.name]) for ref in task.body.outputs]
    _unless(written == wanted, what, "it writes other values or types than its task")
    if kernel.provider == "cudnn":
        _unless(fits_cudnn(body), what, "its body is no convolution that cuDNN runs")
    if kernel.provider == GENERATED:
        try:
            why = why_not_in_place(kernel, task.overwrites)
        except ValueError as unwritten:
            raise VerifyError(f"{what}: {unwritten}") from unwritten
        _unless(why is None, what, f"it may not write over what it reads: {why}")


def check_nodes(graph: Graph, table: Mapping[str, TensorType], asked: frozenset[str]) -> None:
    """VerifyError for a node that computes other types than it declares. Those of results that
    nobody reads may differ, which of some operators depend on the device."""
    read = {name for node in graph.nodes for name in node.uses}
    read |= {ref.name for ref in graph.outputs}
    for node in graph.nodes:
        quick = known_type(node, table)
        if quick is not None and (quick.shape, quick.dtype) == (node.type.shape, node.type.dtype):
            continue
        what = f"%{node.name} of {graph.name}"
        results = _computed(node, table, what, asked)
        if results is None:
            continue
        _unless(len(results) == len(node.types), what, f"{node.op} has {len(results)} results")
        for name, declared, computed in zip(node.results, node.types, results, strict=True):
            same = (declared.shape, declared.dtype) == (computed.shape, computed.dtype)
            same = same or (name not in read and name != node.name)
            _unless(same, what, f"{node.op} computes {computed.text}, declared is {declared.text}")


def _computed(
    node: Node, table: Mapping[str, TensorType], what: str, asked: frozenset[str]
) -> tuple[TensorType, ...] | None:
    """The types of a node's results; None where only the user knows."""
    _check_reach(node, table, what)
    unfit = why_not(node, table)
    _unless(not unfit, what, f"{node.op}: {unfit}")
    _unless(_results(node, table) <= MAX_RESULTS, what, f"{node.op} has too many results")
    packet = ops.packet_name(node.op)
    try:
        if packet in CUDNN:
            places, node_args = CUDNN[packet], node.args
            conv: tuple[Arg, ...] = tuple(None if at is None else node_args[at] for at in places)
            args = (*conv[:6], False, (0,) * len(_shape(node.args[0], table)[2:]), conv[6])
            return ops.infer("aten.convolution.default", args, (), table)
        if node.op in RECURRENT:
            return _recurrent(node, table)
        return ops.infer(node.op, node.args, node.kwargs, table)
    except VerifyError:
        raise
    except Exception as failed:  # meta kernels raise whatever they like
        if isinstance(failed, NotImplementedError) and asked & {node.op, packet}:
            return None
        said = str(failed).strip().partition("\n")[0] or type(failed).__name__
        raise VerifyError(f"{what}: {node.op} does not take these arguments: {said}") from failed


def _recurrent(node: Node, table: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """As inferred for a sequence of one step, and as long as the operand."""
    arguments = ops.arguments(node)
    name, type = _name(node.args[0]), table[_name(node.args[0])]
    axis = 1 if arguments["batch_first"] and len(type.shape) == 3 else 0
    steps = type.shape[axis]
    short = TensorType(_with(type.shape, axis, min(steps, 1)), type.dtype)
    first, *states = ops.infer(node.op, node.args, node.kwargs, {**table, name: short})
    long = TensorType(_with(first.shape, axis, steps), first.dtype)
    return (long, *states)


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _results(node: Node, table: Mapping[str, TensorType]) -> int:
    """At most how many results a node has, before anything is computed."""
    if ops.resolve(node.op)._schema.returns[0].type.kind() != "ListType":
        return 1
    most = max((max(table[name].shape, default=1) for name in node.uses), default=1)
    cut = node.args[1] if len(node.args) > 1 else None
    if ops.packet_name(node.op) in ("aten.split", "aten.chunk") and isinstance(cut, int):
        return min(most, cut) if "chunk" in node.op else math.ceil(most / max(cut, 1))
    return len(cut) if isinstance(cut, tuple) else most


def _check_reach(node: Node, table: Mapping[str, TensorType], what: str) -> None:
    """An operator that chooses its elements by address stays within the value that it chooses
    from."""
    packet = ops.packet_name(node.op)
    if packet not in ("aten.as_strided", "aten.as_strided_scatter"):
        return
    arguments = ops.arguments(node)
    size, stride = _whole(arguments["size"], what), _whole(arguments["stride"], what)
    (start,) = _whole((arguments["storage_offset"] or 0,), what)
    source = table[_name(node.args[0])]
    reached = TensorType(size, source.dtype, stride).nbytes
    end = start * source.dtype.itemsize + reached
    message = f"it reaches byte {end} of a value of {source.nbytes} B"
    _unless(len(size) == len(stride) and end <= source.nbytes, what, message)


def _whole(arg: Arg, what: str) -> tuple[int, ...]:
    """The sizes, strides or offset of an argument."""
    items = arg if isinstance(arg, tuple) else (arg,)
    numbers = tuple(item for item in items if type(item) is int and item >= 0)
    _unless(len(numbers) == len(items), what, "it takes no such sizes, strides or offset")
    return numbers


def _shape(arg: Arg, table: Mapping[str, TensorType]) -> tuple[int, ...]:
    return table[_name(arg)].shape


def _name(arg: Arg) -> str:
    if not isinstance(arg, Ref):
        raise VerifyError(f"{arg!r} is no value")
    return arg.name


def _unless(condition: bool, what: str, message: str) -> None:
    if not condition:
        raise VerifyError(f"{what}: {message}")
