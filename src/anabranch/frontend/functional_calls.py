"""Calls of a user's operators that write to their arguments -> calls of their functional forms.

    as torch.export has them:
        %pair = auto_functionalized(scale_, x=%x)      ->  %all = form(x=%x)
        %new = getitem(%pair, 1)                           %new = getitem(%all, 0)

    as they are recorded:
        scale_(%x)                                     ->  %all = form(%x)
                                                           copy_(%x, getitem(%all, 0))

What has no functional form is left alone, and whoever translates the graph refuses it.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized

from anabranch.frontend.fake_results import BUILT_IN
from anabranch.frontend.translate import mutable
from anabranch.ir.functional_forms import functional_form

COPY = torch.ops.aten.copy_.default


def call_forms(graph: fx.Graph) -> None:
    """In a program of torch.export: auto_functionalized gives (None, x) or (results, .., x)."""
    for node in list(graph.nodes):
        if node.target is not auto_functionalized:
            continue
        op, values = node.args[0], dict(node.kwargs)
        form = functional_form(op) if isinstance(op, torch._ops.OpOverload) else None
        if form is None:
            continue
        nothing = 0 if op._schema.returns else 1
        with graph.inserting_before(node):
            call = graph.call_function(form, (), values)
        call.meta = {**node.meta, "val": list(node.meta["val"][nothing:])}
        for user in list(node.users):
            user.update_arg(1, user.args[1] - nothing)
        node.replace_all_uses_with(call)
        graph.erase_node(node)


def write_copies(graph: fx.Graph) -> None:
    """In a recorded graph, where a call of the operator itself writes. CaptureError for one that
    has no functional form: what it writes to would not be seen."""
    for node in list(graph.nodes):
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable:
            continue
        if op.namespace in BUILT_IN:
            continue
        form = functional_form(op)
        if form is None:
            raise mutable(node, str(op))
        _call_and_copy(graph, node, op, form)
    graph.lint()


def _call_and_copy(
    graph: fx.Graph, node: fx.Node, op: torch._ops.OpOverload, form: torch._ops.OpOverload
) -> None:
    schema, count = op._schema, len(op._schema.returns)
    named = {
        **dict(zip((a.name for a in schema.arguments), node.args, strict=False)),
        **node.kwargs,
    }
    written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    with graph.inserting_before(node):
        call = graph.call_function(form, node.args, node.kwargs)
        places = [
            graph.call_function(operator.getitem, (call, count + i)) for i in range(len(written))
        ]
        copies = [
            graph.call_function(COPY, (named[name], place))
            for name, place in zip(written, places, strict=True)
        ]
        result = graph.call_function(operator.getitem, (call, 0)) if count == 1 else call
    for new in {call, result, *places, *copies}:
        new.meta = {key: value for key, value in node.meta.items() if key != "val"}
    node.replace_all_uses_with(result)  # of several results they are the first elements of the call
    graph.erase_node(node)
