"""Simplification: all that always helps, before anything is searched.

captured -> retype -> [ PASSES until nothing changes ] -> layout -> [ PASSES again ]
         -> sequence_pieces -> [ PASSES again ] -> simplified

For a GPU that may multiply in tf32, constant factors are rounded to that at the end, which is the
one step that changes values on purpose. Then the new values of states come to their places, which
is no choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Pass, Stepper
from anabranch.options import Options
from anabranch.rewrite.output_layout import with_readers_kept
from anabranch.rewrite.passes import PASSES
from anabranch.rewrite.passes.depthwise import depthwise
from anabranch.rewrite.passes.embedding_bags import bags, largest_of_bags
from anabranch.rewrite.passes.fold_batch_norm import fold_batch_norm
from anabranch.rewrite.passes.grouped_heads import grouped_heads
from anabranch.rewrite.passes.identities import identities
from anabranch.rewrite.passes.layout import layout
from anabranch.rewrite.passes.place_states import place_states
from anabranch.rewrite.passes.retype import retype
from anabranch.rewrite.passes.round_factors import ERROR, round_factors
from anabranch.rewrite.passes.sequence_pieces import sequence_pieces
from anabranch.rewrite.rules import special
from anabranch.trace import Trace

TracedPass = Callable[[Graph, Trace], Graph]
FOR_GENERATED: dict[str, TracedPass] = {
    "grouped_heads": grouped_heads,
    "bags": bags,
    "largest_of_bags": largest_of_bags,
}
"""What pays where kernels are generated, once."""
ROUNDING_GAIN = 8
"""How many times its own error a rounding may change a result that many layers lie behind."""
FIXED_POINT_ROUNDS = 10
"""More than any graph has needed; two passes that undo each other end here and not never."""


def simplify(graph: Graph, stepper: Stepper, options: Options, kind: str = "cpu") -> Graph:
    """The graph, equal in value and cheaper. `kind` of target: on "cuda", convolutions get the
    layout that tensor cores want."""
    graph = captured = stepper.step(graph, "retype", retype)
    graph = _until_still(graph, stepper, options)
    if kind == "cuda" and options.kernels == "all":
        before = graph
        for name, run in _allowed(FOR_GENERATED, options).items():
            graph = stepper.step(graph, name, _heard(run, stepper.trace))
        graph = graph if graph is before else _until_still(graph, stepper, options)
    if kind == "cuda" and options.channels_last:
        arranged = stepper.step(
            graph, "layout", partial(layout, trace=stepper.trace, tf32=options.tf32)
        )
        if arranged is not graph:
            graph = _until_still(arranged, stepper, options)
        if options.kernels == "all":
            graph = stepper.step(graph, "depthwise", partial(depthwise, trace=stepper.trace))
    if kind == "cuda":
        cut = stepper.step(graph, "sequence_pieces", partial(sequence_pieces, trace=stepper.trace))
        graph = graph if cut is graph else _until_still(cut, stepper, options)
    if kind == "cuda" and options.tf32 and options.kernels == "all":
        rounds = partial(round_factors, trace=stepper.trace)
        graph = stepper.step(graph, "round_factors", rounds, tolerance=ROUNDING_GAIN * ERROR)
    graph = stepper.step(graph, "readers_kept", lambda now: with_readers_kept(now, captured))
    return place_states(graph)


def _until_still(graph: Graph, stepper: Stepper, options: Options) -> Graph:
    rounded = {"fold_batch_norm": partial(fold_batch_norm, exact=options.folding == "exact")}
    table = _allowed({**PASSES, **rounded}, options)
    table["identities"] = partial(identities, exact=options.exact)
    passes = {name: _heard(run, stepper.trace) for name, run in table.items()}
    for _ in range(FIXED_POINT_ROUNDS):
        before = graph
        graph = stepper.run(graph, passes)
        if graph is before:
            return graph
    stepper.trace.add(
        "warning", "rewrite", graph.name, f"still changing after {FIXED_POINT_ROUNDS} rounds"
    )
    return graph


def _allowed(passes: Mapping[str, TracedPass], options: Options) -> dict[str, TracedPass]:
    """Without those that change what special numbers give, where that is not to be."""
    exact = options.exact
    return {n: run for n, run in passes.items() if not (exact and n in special.PASSES)}


def _heard(run: TracedPass, trace: Trace) -> Pass:
    """The pass, its events going to the trace."""
    return lambda graph: run(graph, trace)
