r"""Transposed convolutions as sums of products: each result asks which taps reach it.

    out[h] = sum[t](x[q // s - t] * w[q % s + s * t])        q = h + padding, s = stride

A tap i reaches out[h] from x[(q - i) / s] where that is whole, so i is q % s and every s-th one
after it. Results h = s * group + place of one place have taps of their own: cut in two, `place` is
an axis of the weight alone (stride 2, kernel 2: one matrix product with four times the columns) or
a stack of products (stride 2, kernel 4: four of them, each of 2 x 2 taps).
"""

from __future__ import annotations

from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Axis, Index, axis
from anabranch.kernels.dfg.lowering_api import At, LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.simplify import arith, both, bounded, cast, choose, reduce


class Spread:
    """The windows of an image, each of which one of its sources is spread over: for a result, the
    sources that reach it. `image`: how many sources there are, per dimension."""

    def __init__(self, name: str, image: tuple[int, ...], size: tuple[int, ...],
                 stride: tuple[int, ...], padding: tuple[int, ...],
                 dilation: tuple[int, ...]) -> None:  # fmt: skip
        if any(by > 1 and apart > 1 for by, apart in zip(stride, dilation, strict=True)):
            raise NotLowered(f"%{name} has both a stride and a dilation")
        self.image, self.size, self.stride = image, size, stride
        self.padding, self.dilation = padding, dilation
        self.taps = tuple(
            Axis(f"{name}_{'ijk'[d]}", -(-k // by))
            for d, (k, by) in enumerate(zip(size, stride, strict=True))
        )

    def sources(self, point: Point) -> tuple[Point, Within]:
        """The elements that reach this point, an index of the taps, and which of them are there."""
        indices, inside = list[Index](), Within()
        for d, (tap, by) in enumerate(zip(self.taps, self.stride, strict=True)):
            t = axis(tap.name, tap.extent)
            indices.append((point[d] + self.padding[d]) // by - t * self.dilation[d])
            inside = both(inside, bounded(indices[d], 0, self.image[d]))
        return tuple(indices), inside

    def places(self, point: Point) -> tuple[Point, Within]:
        """Where in the window of each source the point lies, and which of that is in it."""
        indices, inside = list[Index](), Within()
        for d, (tap, by) in enumerate(zip(self.taps, self.stride, strict=True)):
            indices.append((point[d] + self.padding[d]) % by + axis(tap.name, tap.extent) * by)
            inside = both(inside, bounded(indices[d], 0, self.size[d]))
        return tuple(indices), inside


def transposed(call: LoweringCall, stride: tuple[int, ...], padding: tuple[int, ...],
               dilation: tuple[int, ...]) -> tuple[At, ...]:  # fmt: skip
    """The lowering of a transposed convolution; its weight is (in, out of a group, ...)."""
    x, weight, bias = (call.arguments.get(name) for name in ("input", "weight", "bias"))
    assert isinstance(x, Value) and isinstance(weight, Value)
    name, size = call.node.name, weight.shape[2:]
    spread = Spread(name, x.shape[2:], size, stride, padding, dilation)
    for n, by in zip(call.type.shape[2:], stride, strict=True):
        if n % by:
            raise NotLowered(f"a transposed convolution makes {n} results in strides of {by}")
    share, each = x.shape[1] // call.arguments.get("groups", 1), weight.shape[1]
    channel = Axis(f"{name}_c", share)

    def at(point: Point, within: Within) -> Expr:
        source, there = spread.sources(point[2:])
        place, held = spread.places(point[2:])
        c = point[1] // each * share + axis(channel.name, share)
        a = cast(x.at((point[0], c, *source), both(within, there)), call.dtype)
        b = cast(weight.at((c, point[1] % each, *place), both(within, held)), call.dtype)
        product = arith("mul", choose(both(there, held), a, 0.0), choose(held, b, 0.0))
        total = reduce("sum", (channel, *spread.taps), product)
        if isinstance(bias, Value):
            total = arith("add", total, cast(bias.at((point[1],), within), call.dtype))
        return total

    return (at,)
