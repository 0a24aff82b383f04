"""A trace with cuts -> steps in turn: sections, which become plans, and what runs as eager does.

    section   linear, relu, sum, gt           static shapes, no question: a plan
    eager     index (cut), check, mul         what asks for values, or has a size that depends on
                                              them
    section   ...

Each step takes all operators of its kind that can run by then, so that there are few steps. Nothing
runs before a check that stood before it: what follows may be wrong, or fail, where that does not
hold. A section of a few operators is not worth a launch of its own and runs as eager does.

Sections read states where they lie. One that computes the new value of a state writes it there,
where no call can be found to go another way after that (`cut_stores`); else the way copies it there
at its end.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from anabranch.frontend.captured import Captured
from anabranch.frontend.contiguous_calls import LAID
from anabranch.frontend.cut_answers import by_mask
from anabranch.frontend.cut_simplify import has_effects
from anabranch.frontend.cut_stores import StateStore, stores
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.from_fx import capture_fx
from anabranch.frontend.operators import has_random
from anabranch.frontend.state import with_state
from anabranch.frontend.value_checks import CHECKS
from anabranch.ir import ops
from anabranch.ir.ops import packet_name

SectionKind = Literal["section", "eager"]
LEAST_WORK = 3
"""Operators that compute, fewer of which are not worth a plan of their own: to copy what it reads,
to launch it and to copy what it gives takes as many launches."""
ASKING = frozenset(("aten.index_put", "aten.index_put_", "aten._index_put_impl_"))
"""Operators that ask where a mask is true, though nobody sees it in their results."""

SIZES = frozenset((torch.ops.aten.sym_size.int,))


@dataclass(frozen=True, slots=True)
class CutStep:
    """Some operators of a trace, to be run at once. `module`: its forward takes the values named in
    `weights`, those in `reads` and those in `states`, and returns those in `gives` and what states
    become. `states`: by the name of a value that a section reads where a state lies what the model
    calls that; `news`: by the same name of one that it writes the node of the new value."""

    kind: SectionKind
    module: fx.GraphModule
    weights: tuple[str, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    nodes: tuple[str, ...]
    states: Mapping[str, str] = field(default_factory=dict)
    news: Mapping[str, str] = field(default_factory=dict)

    @property
    def operators(self) -> tuple[str, ...]:
        """What it calls, without numbers of sizes and checks, in order."""
        targets = [node.target for node in self.module.graph.nodes if node.op == "call_function"]
        return tuple(
            packet_name(str(target)).removeprefix("aten.")
            for target in targets
            if isinstance(target, torch._ops.OpOverload) and target not in SIZES
        )


def split(
    trace: CutTrace, refused: Collection[str] = (), placed: Collection[str] = ()
) -> list[CutStep]:
    """The steps of a trace. `refused`: nodes that must not be in a section; `placed`: the states
    that plans can read and write where they lie, by what the model calls them."""
    fixed = _fixed(trace)
    kinds = _kinds(trace, {*refused}, fixed)
    while True:
        runs = _runs(trace.graph, kinds)
        small = [
            node
            for kind, nodes in runs
            if kind == "section" and sum(map(_works, nodes)) < LEAST_WORK
            for node in nodes
        ]
        if not small:
            break
        kinds.update(dict.fromkeys(small, "eager"))
    return _steps(trace, runs, fixed, placed)


def _fixed(trace: CutTrace) -> set[fx.Node]:
    """What is computed of nothing but weights: each step that reads it computes it itself, a plan
    once and for all. What is returned is a copy, which one step gives."""
    apart = {cut.node for cut in trace.cuts} | {*trace.graph.output_node().all_input_nodes}
    fixed: set[fx.Node] = set()
    for node in trace.graph.nodes:
        if node.op == "get_attr" or node.name in trace.weights:
            fixed.add(node)
        elif node.op == "call_function" and node not in apart and not has_effects(node):
            getitem = node.target is operator.getitem
            if fixed.issuperset(node.all_input_nodes) and (getitem or _static(node)):
                fixed.add(node)
    return fixed


def _kinds(
    trace: CutTrace, refused: Collection[str], fixed: Collection[fx.Node]
) -> dict[fx.Node, SectionKind]:
    asking = {cut.node for cut in trace.cuts}
    kinds: dict[fx.Node, SectionKind] = {}
    for node in trace.graph.nodes:
        if node.op != "call_function" or node in fixed:
            continue
        source = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(source, fx.Node):
            kinds[node] = kinds.get(source, "eager")
        else:
            plain = node not in asking and node.name not in refused and _static(node)
            kinds[node] = "section" if plain else "eager"
    return kinds


def _static(node: fx.Node) -> bool:
    """Whether a plan can run it: all sizes and numbers are known, and nothing is written to."""
    if not isinstance(node.target, torch._ops.OpOverload) or _in_order(node):
        return False
    if packet_name(str(node.target)) in ASKING:
        indices = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args[1]]  # type: ignore[union-attr] # the schema says that these are a list
        if by_mask(indices):
            return False
    if packet_name(str(node.target)) in CHECKS:
        return all(map(_has_type, node.all_input_nodes))
    return all(map(_has_type, (node, *node.all_input_nodes)))


def _has_type(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op == "get_attr" and value is None:
        return True
    parts = value if isinstance(value, tuple | list) else (value,)
    return all(
        isinstance(part, Tensor)
        and all(type(size) is int for size in (*part.shape, *part.stride()))
        and part.layout == torch.strided
        for part in parts
    )


def _runs(
    graph: fx.Graph, kinds: Mapping[fx.Node, SectionKind]
) -> list[tuple[SectionKind, list[fx.Node]]]:
    """The nodes in turns of one kind; each turn takes all that can run by then."""
    waiting, behind, check = list(kinds), dict[fx.Node, fx.Node | None](), None
    for node in waiting:
        behind[node] = check
        check = node if "check" in node.meta else check
    runs: list[tuple[SectionKind, list[fx.Node]]] = []
    done: set[fx.Node] = {node for node in graph.nodes if node not in kinds}
    kind: SectionKind = "section"
    while waiting:
        taken: list[fx.Node] = []
        left: list[fx.Node] = []
        for node in waiting:
            before = behind[node]
            ready = (before is None or before in done) and done.issuperset(node.all_input_nodes)
            if ready and kinds[node] == kind and not (left and _in_order(node)):
                taken.append(node)
                done.add(node)
            else:
                left.append(node)
        if taken:
            runs.append((kind, taken))
        waiting, kind = left, "eager" if kind == "section" else "section"
    return runs


def _in_order(node: fx.Node) -> bool:
    """Whether it runs after all that stands before it."""
    mutable = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    return mutable or has_random(node)


def writes(step: CutStep) -> bool:
    """Whether it writes to an input of the call, or draws random numbers."""
    return any(map(_in_order, step.module.graph.nodes))


def writes_last(step: CutStep) -> bool:
    """Whether an operator that fails in the step has left all that it writes to as it was: a step
    that runs as eager does, and has nothing but copies behind the first."""
    if step.kind == "section":
        return False
    copy, part = torch.ops.aten.copy_.default, torch.ops.aten.slice.Tensor  # fail for no numbers
    targets = [node.target for node in step.module.graph.nodes if node.op == "call_function"]
    return copy not in targets or {copy, part}.issuperset(targets[targets.index(copy) :])


def _works(node: fx.Node) -> bool:
    """Whether it computes something of what the section reads, and is more than a view."""
    if node.target is operator.getitem or not node.all_input_nodes:
        return False
    return ops.info(str(node.target)).kind != "view"


def _steps(
    trace: CutTrace,
    runs: Sequence[tuple[SectionKind, list[fx.Node]]],
    fixed: Collection[fx.Node],
    placed: Collection[str],
) -> list[CutStep]:
    output = next(node for node in reversed(trace.graph.nodes) if node.op == "output")
    held = {
        node: trace.states[node.name]
        for node in trace.graph.nodes
        if trace.states.get(node.name) in placed
    }
    stored = stores(trace.graph, held, runs)
    copies = {store.copy for store in stored}
    kept = [(kind, [node for node in nodes if node not in copies]) for kind, nodes in runs]
    runs = [(kind, nodes) for kind, nodes in kept if nodes]
    home = {node: i for i, (_, nodes) in enumerate(runs) for node in nodes}
    shown = {store.new: held[store.state] for store in stored if store.shown}
    steps = []
    for number, (kind, nodes) in enumerate(runs):
        inside = _with_fixed(nodes, fixed)
        outside = dict.fromkeys(
            used for node in inside for used in node.all_input_nodes if used not in inside
        )
        ours = [store for store in stored if home[store.new] == number and store.part is None]
        parts = [store for store in stored if home[store.new] == number and store.part is not None]
        states = {
            node: path
            for node, path in {**held, **shown}.items()
            if kind == "section" and (node in outside or any(store.state is node for store in ours))
        }
        weights = [node for node in outside if node.name in trace.weights]
        reads = [node for node in outside if node.name not in trace.weights and node not in states]
        gives = [
            node
            for node in nodes
            if node not in shown
            and any(user is output or home.get(user, number) > number for user in node.users)
        ]
        news = [store.new for store in ours]
        taken = [*weights, *reads, *states]
        module = _module(trace.held, kind, taken, inside, [*gives, *news], parts)
        step = CutStep(
            kind,
            module,
            _names(weights),
            _names(reads),
            _names(gives),
            _names(nodes),
            {node.name: path for node, path in states.items()},
            {store.state.name: store.new.name for store in ours},
        )
        steps.append(step)
    return steps


def _names(nodes: Sequence[fx.Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _with_fixed(nodes: Sequence[fx.Node], fixed: Collection[fx.Node]) -> dict[fx.Node, None]:
    """The nodes, with what they read that is computed of weights alone; in an order to run in."""
    ordered: dict[fx.Node, None] = {}

    def add(node: fx.Node) -> None:
        for used in node.all_input_nodes:
            if used in fixed and used.op != "placeholder" and used not in ordered:
                add(used)
        ordered[node] = None

    for node in nodes:
        add(node)
    return ordered


def _module(
    holder: nn.Module,
    kind: SectionKind,
    reads: Sequence[fx.Node],
    nodes: Collection[fx.Node],
    gives: Sequence[fx.Node],
    parts: Sequence[StateStore],
) -> fx.GraphModule:
    """`parts`: what it writes of states, at its end."""
    graph = fx.Graph()
    copy_of: dict[fx.Node, fx.Node] = {}
    for node in reads:
        # `graph.placeholder` writes names otherwise: SelfAttention_q as self_attention_q.
        copy_of[node] = graph.create_node("placeholder", node.name, name=node.name)
        copy_of[node].meta = dict(node.meta)
    last = {store.new for store in parts}
    for node in nodes:
        if node not in last:
            copy_of[node] = graph.node_copy(node, copy_of.__getitem__)
    for store in parts:
        base, source, *where = fx.map_arg(store.new.args, copy_of.__getitem__)
        part = graph.call_function(store.part, (base, *where))
        graph.call_function(torch.ops.aten.copy_.default, (part, source))
    graph.output(tuple(copy_of[node] for node in gives))
    for node in list(graph.nodes) if kind == "eager" else ():
        _reshape(graph, node)
    return fx.GraphModule(holder, graph)


def _reshape(graph: fx.Graph, node: fx.Node) -> None:
    """A given tensor may lie in memory in another way than in the trace: where that had a view, a
    copy may be needed, and where it had a view of a copy, perhaps none."""
    if LAID in node.meta and node.target is torch.ops.aten.clone.default:
        node.target = torch.ops.aten.contiguous.default
    elif node.target is torch.ops.aten.view.default:
        node.target = torch.ops.aten.reshape.default
    elif node.target is torch.ops.aten._unsafe_view.default:
        copy: Any = node.args[0]
        if copy.target is torch.ops.aten.clone.default:
            node.target, node.args = torch.ops.aten.reshape.default, (copy.args[0], *node.args[1:])
            if not copy.users:
                graph.erase_node(copy)


def captured_section(
    step: CutStep,
    weights: Mapping[str, Tensor],
    trace: CutTrace,
    model: Any,
    places: Mapping[str, Tensor],
) -> Captured:
    """The graph of a section, with these weights as constants. `places`: where states lie, by what
    the model calls them."""
    examples = [node.meta["val"] for node in step.module.graph.nodes if node.op == "placeholder"]
    names = {**trace.weights, **step.states}
    held = {name: places[path] for name, path in step.states.items()}
    captured = capture_fx(step.module, examples, weights, trace.name, names, held, step.news)
    return with_state(captured, model)


def own_constants(module: fx.GraphModule) -> None:
    """Copy tensors that the model's code made or holds: nobody else may write to these."""
    for name, tensor in [*module.named_buffers()]:
        module.register_buffer(name, tensor.detach().clone())
