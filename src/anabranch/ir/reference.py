"""References: what kernels are compared with: a graph op by op, as precise as it is and more so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Target

ROUGH = ("aten.lstm.", "aten.gru.", "aten.rnn_tanh.", "aten.rnn_relu.", "aten._cudnn_rnn.")
"""Operators whose library rounds more than torch's own kernels do: cuDNN's gates are 1e-5 off."""
Evaluate = Callable[..., tuple[Tensor, ...]]
"""As `eval_graph`: of a graph, its inputs, a device and a precision."""


def eager_and_reference(
    graph: Graph, inputs: Sequence[Tensor], target: Target, evaluate: Evaluate = eval_graph
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The graph op by op in its own precision, and in a higher one: fp64 for fp32, fp32 for half
    types (whose products are exact there). On the target's device, where a graph takes its live
    values and one layer's weights in the higher precision; on the CPU where that does not fit.
    `evaluate`: what runs the graph."""
    precision = wide_of(graph, inputs)
    wide = precision == torch.float64

    def evaluated(precision: torch.dtype | None, exact: bool) -> tuple[Tensor, ...]:
        try:
            with target.full_precision() if exact else target.own_precision():
                return evaluate(graph, inputs, target.device, precision)
        except torch.OutOfMemoryError as full:
            try:
                with target.full_precision(lean=True):
                    return evaluate(graph, inputs, target.device, precision)
            except torch.OutOfMemoryError:
                return _on_cpu(graph, inputs, target, precision, full, evaluate)

    # Short cuts that the user allowed, and those of a library, are the model's own rounding.
    rough = any(node.op.startswith(ROUGH) for node in graph.nodes)
    own = evaluated(None, exact=not rough and not (wide and target.spec.tf32))
    return own, evaluated(precision, exact=True)


def _on_cpu(
    graph: Graph,
    inputs: Sequence[Tensor],
    target: Target,
    precision: torch.dtype | None,
    full: torch.OutOfMemoryError,
    evaluate: Evaluate,
) -> tuple[Tensor, ...]:
    """What does not fit on the device. `full`: what is raised where an operator has no CPU
    kernel."""
    cpu = torch.device("cpu")
    try:
        results = evaluate(graph, [value.to(cpu) for value in inputs], cpu, precision)
    except (RuntimeError, NotImplementedError):
        raise full from None
    return tuple(value.to(target.device) for value in results)


def wide_of(graph: Graph, inputs: Sequence[Tensor]) -> torch.dtype:
    """The precision of references."""
    dtypes = {value.dtype for value in inputs} | {c.type.dtype for c in graph.constants}
    return torch.float64 if dtypes & {torch.float32, torch.float64} else torch.float32
