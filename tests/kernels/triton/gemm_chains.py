"""Bodies of two products, one behind the other, as networks have them."""

from __future__ import annotations

from tests.kernels.triton.bodies import read

from anabranch.ir.graph import Graph
from anabranch.ir.ops import channels_last_strides
from anabranch.ir.types import contiguous_strides


def image(shape: tuple[int, ...], dtype: str, last: bool = True) -> str:
    """The text of an image's type."""
    strides = channels_last_strides(shape) if last else contiguous_strides(shape)
    return f"{dtype}[{','.join(map(str, shape))}]{{{','.join(map(str, strides))}}}"


def convolutions(
    channels: int,
    size: tuple[int, int],
    middle: int,
    out: int,
    *,
    batch: int = 1,
    taps: tuple[int, int] = (3, 1),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] | None = None,
    groups: tuple[int, int] = (1, 1),
    between: str = "aten.relu.default(%conv)",
    dtype: str = "f16",
    last: bool = True,
) -> Graph:
    """Relu(convolution(between(convolution + bias)) + bias + residual); taps, strides, paddings and
    groups are those of the first and of the second one."""
    first, second = padding or (taps[0] // 2, taps[1] // 2)

    def sized(n: int, at: int, pad: int) -> int:
        return (n + 2 * pad - taps[at]) // stride[at] + 1

    inner = tuple(sized(n, 0, first) for n in size)
    outer = tuple(sized(n, 1, second) for n in inner)
    x, y, z = (
        image((batch, c, *n), dtype, last)
        for c, n in ((channels, size), (middle, inner), (out, outer))
    )
    w = image((middle, channels // groups[0], taps[0], taps[0]), dtype, last)
    if last and groups[0] == channels:  # as weights of depthwise convolutions are laid out
        w = f"{dtype}[{middle},1,{taps[0]},{taps[0]}]{{1,1,{taps[0] * middle},{middle}}}"
    v = image((out, middle // groups[1], taps[1], taps[1]), dtype, last)
    calls = [
        f"[{s}, {s}], [{p}, {p}], [1, 1], False, [0, 0], {g}"
        for s, p, g in zip(stride, (first, second), groups, strict=True)
    ]
    return read(f"""
    graph convolutions {{
      input %x: {x}
      input %y: {z}
      const %w: {w} = w
      const %b: {dtype}[{middle}] = b
      const %v: {v} = v
      const %d: {dtype}[{out}] = d
      %conv: {y} = aten.convolution.default(%x, %w, %b, {calls[0]})
      %act: {y} = {between}
      %conv2: {z} = aten.convolution.default(%act, %v, %d, {calls[1]})
      %sum: {z} = aten.add.Tensor(%conv2, %y)
      %r: {z} = aten.relu.default(%sum)
      return %r
    }}""")


def layers(rows: int, depth: int, middle: int, out: int, dtype: str = "f16") -> Graph:
    """Linear, gelu, linear."""
    return read(f"""
    graph layers {{
      input %x: {dtype}[{rows},{depth}]
      const %w: {dtype}[{middle},{depth}] = w
      const %b: {dtype}[{middle}] = b
      const %v: {dtype}[{out},{middle}] = v
      const %d: {dtype}[{out}] = d
      %a: {dtype}[{rows},{middle}] = aten.linear.default(%x, %w, %b)
      %g: {dtype}[{rows},{middle}] = aten.gelu.default(%a)
      %r: {dtype}[{rows},{out}] = aten.linear.default(%g, %v, %d)
      return %r
    }}""")
