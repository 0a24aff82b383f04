"""Guards on the inputs of a model that is cut, as those of one plan.

    if x.is_contiguous():         what the model asks of its inputs: answers as the example's
    x.reshape(-1).add_(1)         a view in one layout, a copy in another: lies as the example did
    x.as_strided((2, 2), (3, 1))  counts in memory: begins there, and has the same strides
    torch.rand_like(x)            draws in the order of memory: has its axes in the same order

A call that breaks one of them was not compiled, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.from_torch import apart
from anabranch.frontend.input_queries import answered
from anabranch.frontend.layout_dependence import depends_on_layouts, guards_as
from anabranch.frontend.observe import Observed
from anabranch.frontend.operators import has_random
from anabranch.frontend.source import origin
from anabranch.frontend.state import tensors_of, unwrapped
from anabranch.frontend.strided import STRIDED
from anabranch.frontend.surroundings import Surroundings
from anabranch.ir.input_guards import InputGuard, What
from anabranch.ir.ops import IN_ROWS


def guards_of(
    model: Callable[..., Any],
    trace: CutTrace,
    seen: Observed | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
) -> tuple[InputGuard, ...]:
    """What must be of the tensors of a call as it was of the example's. `seen`: a call of the model
    with these arguments, `under` these switches of torch. CaptureError where the trace was given
    other answers than the model."""
    guards = dict[tuple[int, What], InputGuard]()
    if seen is not None and seen.questions:
        inputs = (args, dict(kwargs))
        for guard in answered(trace.in_tree, inputs, apart(inputs), seen.questions):
            guards[guard.leaf, guard.what] = guard
    layouts = [*_asked_of_layouts(trace)]
    line = trace.written_by_strides
    states = dict(tensors_of(unwrapped(model))) if isinstance(model, nn.Module) else {}
    written = [states[name] for name in trace.states.values()]
    if line is not None and depends_on_layouts(model, args, kwargs, under, written):
        layouts.append(("layout", line))
    for what, line in layouts:
        for guard in guards_as(trace.leaves, what, line):
            guards.setdefault((guard.leaf, guard.what), guard)
    return tuple(guards.values())


def _asked_of_layouts(trace: CutTrace) -> Iterator[tuple[What, str]]:
    """What counts of how inputs lie, and the line for which it does."""
    for node in trace.graph.nodes:
        if str(node.target) in STRIDED:
            yield "stride", origin(node)
            yield "storage_offset", origin(node)
        elif has_random(node) and node.all_input_nodes and str(node.target) not in IN_ROWS:
            yield "order", origin(node)
