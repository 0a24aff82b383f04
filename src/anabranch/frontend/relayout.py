"""The types of a graph's values for inputs that lie in memory otherwise than the example's.

    %relu = relu(%x)       x in channels_last: the result, too
    %mm = mm(%flat, %w)    contiguous, however x lies
    %new = select_scatter(%x, %row, 0, 1)    x with gaps: as a clone of x, without

Shapes and dtypes stay: strides alone are inferred anew, by fake tensors of the device that calls
run on, as in the trace that the graph is of. Tensors of no device (meta) lie otherwise:

    pixel_shuffle(x, 2)    x in channels_last, on a CPU: channels_last; on a GPU, and on meta: rows
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from anabranch.frontend.surroundings import neutral
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, types
from anabranch.ir.ops import packet_name
from anabranch.ir.types import TensorType, meta, type_of

Strides = tuple[int, ...]
VIEW, RESHAPE = "aten.view.default", "aten.reshape.default"
CLONE, VIEW_OF_COPY = "aten.clone.default", "aten._unsafe_view.default"
"""The operator that a reshape is captured as where the example lay so that it copied."""
WRITTEN = frozenset(
    f"aten.{name}.default"
    for name in (
        "copy",
        "select_scatter",
        "slice_scatter",
        "diagonal_scatter",
        "as_strided_scatter",
    )
)
"""What writes to a clone of its operand became, which is not there any more. Torch keeps gaps."""


def types_for(
    graph: Graph, input_strides: Sequence[Strides], device: torch.device
) -> dict[str, TensorType] | None:
    """The types of all values, by name, for inputs of a call with these strides on this device;
    None where they cannot be inferred."""
    own, table = types(graph), types(graph)
    copies = {node.name: node.uses[0] for node in graph.nodes if node.op == CLONE}
    for value, strides in zip(graph.call_inputs, input_strides, strict=True):
        table[value.name] = TensorType(value.type.shape, value.type.dtype, strides)
    try:
        with _traced() as mode:
            infer = _Inference(table, device, mode)
            for node in graph.nodes:
                copied = copies.get(node.uses[0]) if node.op == VIEW_OF_COPY else None
                reads = (*node.uses, copied)
                if any(table[name] != own[name] for name in reads if name is not None):
                    table.update(zip(node.results, infer.types_of(node, copied), strict=True))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # whatever torch says
        return None
    return table


@contextmanager
def _traced() -> Iterator[FakeTensorMode]:
    """Within it operators give what they give in a trace."""
    mode = FakeTensorMode()
    with neutral(), own_kernels(), enable_python_dispatcher(), mode:
        yield mode


@dataclass(frozen=True, slots=True)
class _Inference:
    """`table`: the types of values so far, by name."""

    table: Mapping[str, TensorType]
    device: torch.device
    mode: FakeTensorMode

    def types_of(self, node: Node, copied: str | None) -> Sequence[TensorType]:
        """The types of its results. A view of what lies otherwise is a copy, as a reshape makes
        one; and what was a view of a copy (of `copied`) may be none of a copy."""
        if copied is not None:
            return self._infer(RESHAPE, (Ref(copied), *node.args[1:]), node.kwargs)
        op = RESHAPE if node.op == VIEW else node.op
        types = self._infer(op, node.args, node.kwargs)
        return [_without_gaps(type) for type in types] if node.op in WRITTEN else types

    def _infer(
        self, op: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]
    ) -> Sequence[TensorType]:
        if op == ops.ATTENTION or packet_name(op) in ops.RECURRENT:  # which differ from any trace
            return ops.infer(op, args, kwargs, self.table)
        node = Node("probe", op, args, kwargs, ())
        return [type_of(result) for result in ops.call(node, self._fake, self.device)]

    def _fake(self, name: str) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            return FakeTensor(self.mode, meta(self.table[name]), self.device)


def _without_gaps(type: TensorType) -> TensorType:
    """As a clone of such a tensor lies."""
    with torch._C._DisableTorchDispatch():
        return TensorType(type.shape, type.dtype, torch.empty_like(meta(type)).stride())
