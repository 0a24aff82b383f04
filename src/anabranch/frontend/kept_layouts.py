"""Tensors of a program that lie as they did after an operator has written to them.

    y = torch.empty(4, 6)                 %r = add.out(%x, 1, out=empty_like(%y))
    torch.add(x, 1, out=y)          ->    %y' = copy_(%y, %r)
    y.masked_fill_(mask, 0)         ->    %y' = copy_(%y, masked_fill_(clone(%y), mask, 0))

A functional form has a result of its own, which lies as its operands do, or in rows. A copy over
the tensor lies as the tensor, however inputs of a call lie, and no kernel makes one where both lie
alike. Inputs, weights and buffers lie as they do and are left alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from anabranch.frontend.contiguous_calls import several

aten = torch.ops.aten
ROWS = frozenset(
    f"{name}_"
    for name in (
        *("addbmm", "addmm", "baddbmm", "cumprod", "cumsum", "renorm", "tril", "triu"),
        *("index_add", "index_copy", "index_reduce", "masked_fill", "masked_scatter"),
        *("scatter", "scatter_add", "scatter_reduce"),
    )
)
"""Operators in place whose functional forms lie in rows, however their operands lie."""


def keep_layouts(program: ExportedProgram) -> None:
    """Have operators that write to tensors which the program makes write to copies first, in place,
    where the tensors keep their sizes."""
    graph = program.graph
    for node in list(graph.nodes):
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
            continue
        arguments = op._schema.arguments
        outs = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
        if len(outs) != 1 or len(op._schema.returns) != 1:
            continue
        if arguments[-1].name == outs[0] and arguments[-1].kwarg_only:
            _write_copy(graph, node, node.kwargs.get(outs[0]), aten.empty_like.default, outs[0])
        elif op._schema.name.partition("::")[2] in ROWS and node.args:
            _write_copy(graph, node, node.args[0], aten.clone.default, None)


def _write_copy(graph: fx.Graph, node: fx.Node, written: Any, maker: Any, out: str | None) -> None:
    """Have the node write to what `maker` gives of `written`, its argument called `out` or its
    first one, and copy that over it."""
    if not isinstance(written, fx.Node) or _root(written).op != "call_function":
        return
    was, result = written.meta.get("val"), node.meta.get("val")
    if not isinstance(was, Tensor) or not isinstance(result, Tensor) or not several(was):
        return
    mode: Any = getattr(was, "fake_mode", None)
    if mode is None or was.shape != result.shape or any(type(n) is not int for n in was.shape):
        return
    with graph.inserting_before(node), mode:
        fresh = graph.call_function(maker, (written,))
        fresh.meta = {**node.meta, "val": maker(was)}
    if out is None:
        node.update_arg(0, fresh)
    else:
        node.update_kwarg(out, fresh)
    with graph.inserting_after(node):
        copy = graph.call_function(aten.copy_.default, (written, node))
    copy.meta = dict(node.meta)
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _root(node: fx.Node) -> fx.Node:
    """Whose memory the value of the node lies in, as far as schemas say."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        returns = node.target._schema.returns if hasattr(node.target, "_schema") else ()
        if node.target is not aten.detach.default and not (returns and returns[0].alias_info):
            break
        node = node.args[0]
    return node
