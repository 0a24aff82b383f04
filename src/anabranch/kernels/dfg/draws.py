"""Random numbers that are counted: each element is a function of where it is.

uniform(random, 3, [n, k]) at (i, j) = the 3rd draw's number i k + j
"""

from __future__ import annotations

import math

import torch

from anabranch.ir import custom_ops, ops
from anabranch.kernels.dfg.expr import Arith, Expr, Within
from anabranch.kernels.dfg.index_expr import LARGEST_INT32, number, weighted
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, Point
from anabranch.kernels.dfg.simplify import const, position


def _uniform(call: LoweringCall) -> tuple[At, ...]:
    random, shape = call.x, call.type.shape
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    width = torch.int64 if math.prod(shape) > LARGEST_INT32 else torch.int32

    def at(point: Point, within: Within) -> Expr:
        place = position(weighted(zip(point, strides, strict=True)), width)
        draw = const(call.arguments["number"], torch.int32)
        states = (random.at((number(k),), within) for k in range(2))
        return Arith("uniform", (*states, draw, place), torch.float32)

    return (at,)


DRAWS: dict[str, Lowering] = {ops.packet_name(custom_ops.UNIFORM): _uniform}
