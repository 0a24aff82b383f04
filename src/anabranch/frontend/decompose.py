"""A program of torch.export, traced once more -> the same in functional ATen.

`run_decompositions` first prepares every composite operator of ATen, some five hundred, for how it
is taken apart, and undoes that in the end: 0.25 s a program, twice what the trace takes. Those
that are taken apart as they always are need no preparation, which leaves the forty that stay
whole. Which those are is asked of torch once a process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._export import config as export_config
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram, exported_program
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    OutputKind,
    TensorArgument,
)

from anabranch.frontend.functional_calls import call_forms
from anabranch.frontend.operators import decompositions
from anabranch.frontend.trace_kernels import own_kernels

DecompositionTable = dict[Any, Callable[..., Any]]

aten = torch.ops.aten
SPLIT = "_split_decomp_table_to_cia_and_python_decomp"
"""Torch's function from a table to the composites that it prepares, and the rest of the table."""
REMOVE = "_remove_unnecessary_copy_op_pass"
"""Torch's pass that leaves out copies into buffers."""


def decompose(program: ExportedProgram) -> ExportedProgram:
    """The program in the operators of `decompositions`. Raises what torch raises."""
    _unite(program)
    _untie(program)
    _fit_copies(program.graph)
    with (
        own_kernels(),
        _few_prepared(program),
        _new_values_apart(),
        torch._inductor.config.patch(fallback_random=True),  # draws that nobody reads stay
        export_config.patch(enable_auto_functionalized_v2_for_export=False),
    ):
        decomposed: ExportedProgram = program.run_decompositions(decompositions())
    call_forms(decomposed.graph)
    return decomposed


def _unite(program: ExportedProgram) -> None:
    """Have a buffer that the model also reaches as what a plain object holds, as a cache of
    transformers does, be the buffer: torch takes it for a constant, and refuses writes to it."""
    signature = program.graph_signature
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    pairs = list(zip(placeholders, signature.input_specs, strict=True))
    buffers = {
        id(program.state_dict.get(spec.target, program.constants.get(spec.target))): node
        for node, spec in pairs
        if spec.kind is InputKind.BUFFER and spec.target is not None
    }
    for node, spec in pairs:
        if spec.kind is not InputKind.CONSTANT_TENSOR or spec.target is None:
            continue
        buffer = buffers.get(id(program.constants.get(spec.target)))
        if buffer is not None:
            node.replace_all_uses_with(buffer)
            program.graph.erase_node(node)
            signature.input_specs.remove(spec)
            del program.constants[spec.target]


def _untie(program: ExportedProgram) -> None:
    """Give names of a tensor that nothing reads under them another one: torch refuses programs that
    write to a tensor of several names."""
    state = program.state_dict
    names: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    placeholders = (node for node in program.graph.nodes if node.op == "placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.BUFFER and spec.target in state and not node.users:
            tied = names[id(state[spec.target])]
            if len(tied) > 1:
                tied.remove(spec.target)
                state[spec.target] = state[spec.target].detach().clone()


def _fit_copies(graph: fx.Graph) -> None:
    """Cast and expand what `copy_` takes of another dtype or shape: torch loses that where a whole
    buffer is written, and has the buffer in the other one."""
    for node in list(graph.nodes):
        if node.target is not aten.copy_.default:
            continue
        written, source = (operand.meta["val"] for operand in node.args[:2])
        if not isinstance(source, FakeTensor):
            continue
        for target, wanted, other in (
            (aten.to.dtype, written.dtype, written.dtype != source.dtype),
            (aten.expand.default, list(written.shape), written.shape != source.shape),
        ):
            if other and all(isinstance(size, int) for size in (*written.shape, *source.shape)):
                with graph.inserting_before(node), source.fake_mode:
                    fitted = graph.call_function(target, (node.args[1], wanted))
                    source = target(source, wanted)
                fitted.meta = {**node.meta, "val": source}
                node.update_arg(1, fitted)


@contextmanager
def _new_values_apart() -> Iterator[None]:
    """Torch leaves out copies into buffers, and calls a buffer's new value by the name of the node
    that computes it. Where one node computes those of several buffers (`a.copy_(y); b.copy_(y)`),
    it takes them for one, and refuses the program: each gets a copy of its own here. So does the
    caller where the model returns such a buffer: `y` is another tensor, which may be returned, too,
    or be an input."""
    own = getattr(exported_program, REMOVE, None)
    if own is None:
        yield
        return

    def remove(module: fx.GraphModule, signature: ExportGraphSignature) -> Any:
        written = {*signature.buffers_to_mutate, *signature.parameters_to_mutate}
        _copy_apart(module.graph, written)
        _return_copies(module.graph, signature, written)
        return own(module, signature)

    setattr(exported_program, REMOVE, remove)
    try:
        yield
    finally:
        setattr(exported_program, REMOVE, own)


def _copy_apart(graph: fx.Graph, written: Collection[str]) -> None:
    """Have no two of the nodes called `written` copy the same node."""
    news = {node for node in graph.output_node().all_input_nodes if node.name in written}
    copies = [node for node in graph.nodes if node in news and node.target is aten.copy.default]
    taken = news.difference(copies)
    for node in copies:
        source: Any = node.args[1]
        while source in copies:
            source = source.args[1]
        if source in taken:
            with graph.inserting_before(node):
                source = graph.call_function(aten.clone.default, (node.args[1],))
            source.meta = dict(node.meta)
            node.update_arg(1, source)
        taken.add(source)


def _return_copies(
    graph: fx.Graph, signature: ExportGraphSignature, written: Collection[str]
) -> None:
    """Return a copy of each of the nodes called `written` that copies another node."""
    output = graph.output_node()
    values: Any = output.args[0]
    returned, copied = list(values), dict[fx.Node, fx.Node]()
    for place, spec in enumerate(signature.output_specs):
        node = returned[place]
        if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(node, fx.Node):
            continue
        if node.name in written and node.target is aten.copy.default:
            if node not in copied:
                with graph.inserting_before(output):
                    copied[node] = graph.call_function(aten.clone.default, (node,))
                copied[node].meta = dict(node.meta)
            returned[place] = copied[node]
            spec.arg = TensorArgument(copied[node].name)
    output.args = (tuple(returned), *output.args[1:])


@contextmanager
def _few_prepared(program: ExportedProgram) -> Iterator[None]:
    """Torch prepares the composites alone that stay whole. A program that calls composites which
    somebody registered gets all of it, for those are in no table; so does one where torch has
    another name for this."""
    split = getattr(exported_program, SPLIT, None)
    if split is None or _calls_others(program):
        yield
        return
    setattr(exported_program, SPLIT, lambda table: _whole(split))
    try:
        yield
    finally:
        setattr(exported_program, SPLIT, split)


def _whole(
    split: Callable[[DecompositionTable], tuple[DecompositionTable, DecompositionTable]],
) -> tuple[DecompositionTable, DecompositionTable]:
    """The result of `split` for our table, without the composites that are taken apart."""
    whole, rest = _asked(split)
    return dict(whole), dict(rest)


@functools.cache
def _asked(
    split: Callable[[DecompositionTable], tuple[DecompositionTable, DecompositionTable]],
) -> tuple[DecompositionTable, DecompositionTable]:
    composites, rest = split(dict(decompositions()))
    own = (op for op in composites if op.namespace == "aten" and op not in decompositions())
    return {op: composites[op] for op in own}, rest


def _calls_others(program: ExportedProgram) -> bool:
    """Whether it calls a composite operator that is not ATen's."""
    graphs = (m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule))
    targets = {node.target for graph in graphs for node in graph.nodes}
    return any(
        isinstance(target, torch._ops.OpOverload)
        and target.namespace != "aten"
        and target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
        for target in targets
    )
