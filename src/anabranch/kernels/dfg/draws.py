"""Random numbers that are counted: each element is a function of where it is.

uniform(seed, offset, 3, [n, k]) at (i, j) = the 3rd draw's number i k + j
"""

from __future__ import annotations

import math

import torch

from anabranch.ir import custom_ops, ops
from anabranch.kernels.dfg.expr import Arith, Expr, Within
from anabranch.kernels.dfg.index_expr import LARGEST_INT32, weighted
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, Point
from anabranch.kernels.dfg.simplify import const, position


def _uniform(call: LoweringCall) -> tuple[At, ...]:
    seed, offset, shape = call.given["seed"], call.given["offset"], call.type.shape
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    width = torch.int64 if math.prod(shape) > LARGEST_INT32 else torch.int32

    def at(point: Point, within: Within) -> Expr:
        place = position(weighted(zip(point, strides, strict=True)), width)
        number = const(call.given["number"], torch.int32)
        states = (seed.at((), within), offset.at((), within))
        return Arith("uniform", (*states, number, place), torch.float32)

    return (at,)


DRAWS: dict[str, Lowering] = {ops.packet_name(custom_ops.UNIFORM): _uniform}
