r"""Transposed convolutions as sums of products: each result asks which taps reach it.

    out[h] = sum[t](x[q // s - t] * w[q % s + s * t])        q = h + padding, s = stride

A tap i reaches out[h] from x[(q - i) / s] where that is whole, so i is q % s and every s-th one
after it. Results h = s * group + place of one place have taps of their own: cut in two, `place` is
an axis of the weight alone (stride 2, kernel 2: one matrix product with four times the columns) or
a stack of products (stride 2, kernel 4: four of them, each of 2 x 2 taps).
"""

from __future__ import annotations

from anabranch.kernels.dfg.build import arith, both, bounded, cast, choose, reduce
from anabranch.kernels.dfg.index import Axis, Index, axis
from anabranch.kernels.dfg.nouns import Expr, Within
from anabranch.kernels.dfg.values import At, Call, Point, Refusal, Value


def transposed(call: Call, stride: tuple[int, ...], padding: tuple[int, ...],
               dilation: tuple[int, ...]) -> tuple[At, ...]:  # fmt: skip
    """The lowering of a transposed convolution; its weight is (in, out of a group, ...)."""
    x, weight, bias = (call.given.get(name) for name in ("input", "weight", "bias"))
    assert isinstance(x, Value) and isinstance(weight, Value)
    image, size = call.type.shape[2:], weight.shape[2:]
    for n, by, apart in zip(image, stride, dilation, strict=True):
        if by > 1 and apart > 1:
            raise Refusal("a transposed convolution has both a stride and a dilation")
        if n % by:
            raise Refusal(f"a transposed convolution makes {n} results in strides of {by}")
    name = call.node.name
    taps = [
        Axis(f"{name}_{'ijk'[d]}", -(-k // by))
        for d, (k, by) in enumerate(zip(size, stride, strict=True))
    ]
    share, each = x.shape[1] // call.given.get("groups", 1), weight.shape[1]
    channel = Axis(f"{name}_c", share)

    def at(point: Point, within: Within) -> Expr:
        source: list[Index] = []
        place: list[Index] = []
        there: Within = ()
        held: Within = ()
        for d, (tap, by) in enumerate(zip(taps, stride, strict=True)):
            q, t = point[2 + d] + padding[d], axis(tap.name, tap.extent)
            source.append(q // by - t * dilation[d])
            place.append(q % by + t * by)
            there = both(there, bounded(source[d], 0, x.shape[2 + d]))
            held = both(held, bounded(place[d], 0, size[d]))
        c = point[1] // each * share + axis(channel.name, share)
        a = cast(x.at((point[0], c, *source), both(within, there)), call.dtype)
        b = cast(weight.at((c, point[1] % each, *place), both(within, held)), call.dtype)
        product = arith("mul", choose(there, a, 0.0), choose(held, b, 0.0))
        total = reduce("sum", (channel, *taps), product)
        if isinstance(bias, Value):
            total = arith("add", total, cast(bias.at((point[1],), within), call.dtype))
        return total

    return (at,)
