"""Every new value of a state comes to the state's place.

    %n_1 = add(%n, 1)                  %n_1 = add(%n, 1)
    return %y, %n_1           ->       %n_2 = copy(%n, %n_1)
                                       return %y, %n_2

A node that writes few elements of a state in its place already (`ir.state`) stays, and so does a
state that this graph only reads, whose new value it is itself. Of two states with the same new
value each gets it. A state that is returned as it was is returned as a copy, for its place has the
new value then; and what two states exchange goes through a copy of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Ref, State, producers, types
from anabranch.ir.state import STORE, comes_to_place, overwriting
from anabranch.rewrite.build import Builder, drop_dead

CLONE = "aten.clone.default"


def place_states(graph: Graph) -> Graph:
    """The graph with its states in place, equal in value; the same object where they are."""
    graph = _returned_apart(graph)
    for through_copies in (False, True):
        written = overwriting(graph)
        left = [state for state in graph.states if not comes_to_place(graph, state, written)]
        if not left:
            break
        graph = _stored(graph, left, through_copies)
    return graph


def _returned_apart(graph: Graph) -> Graph:
    """What a state was is returned as a copy of it."""
    if not graph.states:
        return graph
    new = {state.output for state in graph.states}
    roots = {state.name: state.name for state in graph.states}
    table = types(graph)
    for node in graph.nodes:
        if ops.is_view(node, table) and node.uses[0] in roots:
            roots.update(dict.fromkeys(node.results, node.uses[0]))
    old = [i for i, ref in enumerate(graph.outputs) if i not in new and ref.name in roots]
    return _with_outputs(graph, {}, old) if old else graph


def _stored(graph: Graph, left: Sequence[State], through_copies: bool) -> Graph:
    """With copies of the new values of these states into their places."""
    old = {state.output: state.name for state in left}
    return _with_outputs(graph, old, list(old) if through_copies else ())


def _with_outputs(graph: Graph, stores: Mapping[int, str], copies: Sequence[int]) -> Graph:
    """With other outputs: copies of them, and what stores them over a state."""
    builder, type_of = Builder(graph), types(graph)
    for node in graph.nodes:
        builder.keep(node)
    outputs, makers = list(graph.outputs), producers(graph)
    for number in sorted({*stores, *copies}):
        value: Arg = outputs[number]
        maker = makers.get(outputs[number].name)
        if number in stores and maker is not None and maker.op == STORE:
            value = maker.args[1]  # it is stored already, and not through a copy
        if number in copies:
            value = builder.call(CLONE, value)
        if number in stores:
            state = stores[number]
            value = builder.call(STORE, Ref(state), value, name=f"{state}_next")
            store = builder.nodes[value.name]
            builder.nodes[value.name] = replace(store, types=(type_of[state],))
        assert isinstance(value, Ref)
        outputs[number] = value
    nodes = tuple(builder.nodes.values())
    return drop_dead(replace(graph, nodes=nodes, outputs=tuple(outputs)))
