"""Layers with what stands before them, as networks have them: bodies of two launches, or of one.

>>> [node.name for node in bottleneck(64, 56, 256).nodes]
['conv', 'relu', 'expand', 'sum', 'out']
"""

from __future__ import annotations

from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph


def image(channels: int, size: int, dtype: str) -> str:
    """One image, channels last."""
    c, s = channels, size
    return f"{dtype}[1,{c},{s},{s}]{{{c * s * s},1,{c * s},{c}}}"


def weight(out: int, channels: int, taps: int, dtype: str) -> str:
    """Channels last; of a depthwise convolution channels are the fastest axis all the same."""
    k, c, r = out, channels, taps
    strides = f"1,1,{r * k},{k}" if c == 1 else f"{c * r * r},1,{c * r},{c}"
    return f"{dtype}[{k},{c},{r},{r}]{{{strides}}}"


def call(taps: int, stride: int = 1, groups: int = 1) -> str:
    """The arguments of a convolution behind its bias, padded to keep the image at stride 1."""
    return f"[{stride}, {stride}], [{taps // 2}, {taps // 2}], [1, 1], False, [0, 0], {groups}"


def bottleneck(channels: int, size: int, out: int, taps: int = 3, dtype: str = "f16") -> Graph:
    """A convolution that keeps its channels, relu, and single pixels to more channels, with the
    residual and its relu."""
    x, y = image(channels, size, dtype), image(out, size, dtype)
    return parse_graph(f"""
    graph bottleneck {{
      input %x: {x}
      input %residual: {y}
      const %w: {weight(channels, channels, taps, dtype)} = w
      const %b: {dtype}[{channels}] = b
      const %v: {weight(out, channels, 1, dtype)} = v
      const %d: {dtype}[{out}] = d
      %conv: {x} = aten.convolution.default(%x, %w, %b, {call(taps)})
      %relu: {x} = aten.relu.default(%conv)
      %expand: {y} = aten.convolution.default(%relu, %v, %d, {call(1)})
      %sum: {y} = aten.add.Tensor(%expand, %residual)
      %out: {y} = aten.relu.default(%sum)
      return %out
    }}""")


def squeeze(channels: int, size: int, middle: int, out: int, dtype: str = "f16") -> Graph:
    """Single pixels to few channels, relu, and 3 x 3 to more channels with its relu."""
    return parse_graph(f"""
    graph squeeze {{
      input %x: {image(channels, size, dtype)}
      const %w: {weight(middle, channels, 1, dtype)} = w
      const %b: {dtype}[{middle}] = b
      const %v: {weight(out, middle, 3, dtype)} = v
      const %d: {dtype}[{out}] = d
      %conv: {image(middle, size, dtype)} = aten.convolution.default(%x, %w, %b, {call(1)})
      %relu: {image(middle, size, dtype)} = aten.relu.default(%conv)
      %expand: {image(out, size, dtype)} = aten.convolution.default(%relu, %v, %d, {call(3)})
      %out: {image(out, size, dtype)} = aten.relu.default(%expand)
      return %out
    }}""")


def separable(
    channels: int, size: int, out: int, taps: int = 3, stride: int = 1, dtype: str = "f16"
) -> Graph:
    """A depthwise convolution with its activation, and single pixels to other channels."""
    after = (size + 2 * (taps // 2) - taps) // stride + 1
    y, z = image(channels, after, dtype), image(out, after, dtype)
    return parse_graph(f"""
    graph separable {{
      input %x: {image(channels, size, dtype)}
      const %w: {weight(channels, 1, taps, dtype)} = w
      const %b: {dtype}[{channels}] = b
      const %v: {weight(out, channels, 1, dtype)} = v
      const %d: {dtype}[{out}] = d
      %conv: {y} = aten.convolution.default(%x, %w, %b, {call(taps, stride, channels)})
      %act: {y} = aten.clamp.default(%conv, 0, 6)
      %out: {z} = aten.convolution.default(%act, %v, %d, {call(1)})
      return %out
    }}""")


def pooled(channels: int, size: int, out: int, pool: str, dtype: str = "f16") -> Graph:
    """A pooling that keeps the size, and single pixels with their relu."""
    x, y = image(channels, size, dtype), image(out, size, dtype)
    return parse_graph(f"""
    graph pooled {{
      input %x: {x}
      const %v: {weight(out, channels, 1, dtype)} = v
      const %d: {dtype}[{out}] = d
      %pool: {x} = aten.{pool}.default(%x, [3, 3], [1, 1], [1, 1])
      %conv: {y} = aten.convolution.default(%pool, %v, %d, {call(1)})
      %out: {y} = aten.relu.default(%conv)
      return %out
    }}""")


def layers(
    rows: int, depth: int, middle: int, out: int, act: str = "gelu", dtype: str = "f16"
) -> Graph:
    """Two linear layers with an activation between them."""
    return parse_graph(f"""
    graph layers {{
      input %x: {dtype}[{rows},{depth}]
      const %w: {dtype}[{middle},{depth}] = w
      const %b: {dtype}[{middle}] = b
      const %v: {dtype}[{out},{middle}] = v
      const %d: {dtype}[{out}] = d
      %first: {dtype}[{rows},{middle}] = aten.linear.default(%x, %w, %b)
      %act: {dtype}[{rows},{middle}] = aten.{act}.default(%first)
      %out: {dtype}[{rows},{out}] = aten.linear.default(%act, %v, %d)
      return %out
    }}""")


PAIRS: dict[str, Graph] = {
    "64x56x56 3x3, 1x1 to 256": bottleneck(64, 56, 256),
    "128x28x28 3x3, 1x1 to 512": bottleneck(128, 28, 512),
    "256x14x14 3x3, 1x1 to 1024": bottleneck(256, 14, 1024),
    "64x56x56 1x1, 1x1 to 64": bottleneck(64, 56, 64, taps=1),
    "128x28x28 1x1 to 16, 3x3 to 64": squeeze(128, 28, 16, 64),
    "32x112x112 depthwise, to 16": separable(32, 112, 16),
    "96x112x112 depthwise / 2, to 24": separable(96, 112, 24, stride=2),
    "144x56x56 depthwise, to 24": separable(144, 56, 24),
    "192x28x28 depthwise, to 32": separable(192, 28, 32),
    "576x14x14 depthwise, to 96": separable(576, 14, 96),
    "960x7x7 depthwise, to 160": separable(960, 7, 160),
    "44x28x28 depthwise 5x5, to 44": separable(44, 28, 44, taps=5),
    "192x28x28 max pool, to 32": pooled(192, 28, 32, "max_pool2d"),
    "288x35x35 average pool, to 64": pooled(288, 35, 64, "avg_pool2d"),
    "128 rows 768, 3072, 768": layers(128, 768, 3072, 768),
    "3136 rows 96, 384, 96": layers(3136, 96, 384, 96),
    "784 rows 192, 768, 192": layers(784, 192, 768, 192),
    "64 rows 128, 256, 64": layers(64, 128, 256, 64, "relu"),
    "1 row 512, 2048, 512": layers(1, 512, 2048, 512),
    "1 row 400, 400, 400": layers(1, 400, 400, 400, "relu"),
    "256 rows 400, 400, 400": layers(256, 400, 400, 400, "relu"),
}
"""Bottlenecks of ResNet-50, separable layers of MobileNet-v2 and NASNet, poolings of GoogLeNet and
Inception-v3, the layers of BERT, Swin, recommenders and small MLPs."""
