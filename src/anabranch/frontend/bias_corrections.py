"""What a power lacks of one, without what single precision loses of it.

    torch   1 - 0.999 ** step         of 0.999 fp32 is off by 3e-8, of the difference by 3e-5
    here    -expm1(step * log 0.999)  off by roundings alone

Optimizers correct their moments by such numbers. Eager computes them of Python's doubles, a graph
of the counts of steps that lie on the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

aten: Any = torch.ops.aten
LACKS = {
    aten.rsub.Scalar: -1,  # (power, 1): 1 - power
    aten.sub.Tensor: 1,  # (power, 1): power - 1
    aten.sub.Scalar: 1,
}


def without_cancellation(step: fx.GraphModule) -> None:
    """Write what powers of a number between zero and one lack of one by way of `expm1`, where
    they are in single precision. Changes the graph."""
    for node in list(step.graph.nodes):
        sign = LACKS.get(getattr(node, "target", None))
        if sign is None or len(node.args) != 2 or node.args[1] != 1 or node.kwargs:
            continue
        power = node.args[0]
        if not isinstance(power, fx.Node) or power.target is not aten.pow.Scalar:
            continue
        factor, exponent = power.args
        single = node.meta["val"].dtype == torch.float32
        if not isinstance(factor, float) or not 0 < factor < 1 or not single:
            continue
        with step.graph.inserting_before(node):
            logarithm = step.graph.call_function(aten.mul.Tensor, (exponent, math.log(factor)))
            lacks = step.graph.call_function(aten.expm1.default, (logarithm,))
            new = [logarithm, lacks]
            if sign < 0:
                new.append(step.graph.call_function(aten.neg.default, (lacks,)))
        for added in new:
            added.meta = dict(node.meta)
        node.replace_all_uses_with(new[-1])
        step.graph.erase_node(node)
    step.recompile()
