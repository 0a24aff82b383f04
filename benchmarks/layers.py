"""Single layers as bodies of tasks, for measuring kernels: no model, no weights.

>>> convolution(64, 56, 256, 1, "f16").outputs[0].name
'relu'
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph


def convolution(channels: int, size: int, out: int, taps: int, dtype: str = "f16") -> Graph:
    """Relu(convolution + bias) of one image, padded to keep its size, channels last."""
    c, s, k, r = channels, size, out, taps
    image, result = f"{{{c * s * s},1,{c * s},{c}}}", f"{{{k * s * s},1,{k * s},{k}}}"
    weight, pad = f"{{{c * r * r},1,{c * r},{c}}}", f"[{r // 2}, {r // 2}]"
    call = f"aten.convolution.default(%x, %w, %b, [1, 1], {pad}, [1, 1], False, [0, 0], 1)"
    return parse_graph(f"""
    graph convolution {{
      input %x: {dtype}[1,{c},{s},{s}]{image}
      const %w: {dtype}[{k},{c},{r},{r}]{weight} = w
      const %b: {dtype}[{k}] = b
      %conv: {dtype}[1,{k},{s},{s}]{result} = {call}
      %relu: {dtype}[1,{k},{s},{s}]{result} = aten.relu.default(%conv)
      return %relu
    }}""")


def linear(rows: int, depth: int, columns: int, dtype: str = "f16") -> Graph:
    """A linear layer with bias."""
    return parse_graph(f"""
    graph linear {{
      input %x: {dtype}[{rows},{depth}]
      const %w: {dtype}[{columns},{depth}] = w
      const %b: {dtype}[{columns}] = b
      %out: {dtype}[{rows},{columns}] = aten.linear.default(%x, %w, %b)
      return %out
    }}""")


def products(batch: int, rows: int, depth: int, columns: int, dtype: str = "f16") -> Graph:
    """Products of matrices, a stack of them: neither factor is constant."""
    return parse_graph(f"""
    graph products {{
      input %x: {dtype}[{batch},{rows},{depth}]
      input %y: {dtype}[{batch},{depth},{columns}]
      %out: {dtype}[{batch},{rows},{columns}] = aten.bmm.default(%x, %y)
      return %out
    }}""")


def attention(
    heads: int,
    queries: int,
    keys: int,
    size: int,
    dtype: str = "f16",
    causal: bool = False,
    mask: str = "",
) -> Graph:
    """Attention of one sample whose heads lie side by side within a token. `mask`: its dtype, for
    one that all heads share."""
    width = heads * size
    few, many = (f"[1,{heads},{n},{size}]{{{n * width},{size},{width},1}}" for n in (queries, keys))
    mask_input = f"input %m: {mask}[{queries},{keys}]" if mask else ""
    call = f"aten.scaled_dot_product_attention.default(%q, %k, %v, {'%m' if mask else None}, 0.0"
    return parse_graph(f"""
    graph attention {{
      input %q: {dtype}{few}
      input %k: {dtype}{many}
      input %v: {dtype}{many}
      {mask_input}
      %out: {dtype}{few} = {call}, {causal})
      return %out
    }}""")


def branches(
    channels: int, size: int, filters: Sequence[tuple[int, int]], pool: bool, dtype: str = "f16"
) -> Graph:
    """Convolutions of one image side by side, and a pooling of it: `filters` has for each the
    channels it gives and its window."""
    c, s, nodes, constants, results = channels, size, list[str](), list[str](), list[str]()
    image = f"{dtype}[1,{c},{s},{s}]{{{c * s * s},1,{c * s},{c}}}"
    for at, (k, r) in enumerate(filters):
        weight = f"{dtype}[{k},{c},{r},{r}]{{{c * r * r},1,{c * r},{c}}}"
        result = f"{dtype}[1,{k},{s},{s}]{{{k * s * s},1,{k * s},{k}}}"
        rest = f"None, [1, 1], [{r // 2}, {r // 2}], [1, 1], False, [0, 0], 1"
        constants.append(f"const %w{at}: {weight} = w{at}")
        nodes.append(f"%conv{at}: {result} = aten.convolution.default(%x, %w{at}, {rest})")
        nodes.append(f"%relu{at}: {result} = aten.relu.default(%conv{at})")
        results.append(f"%relu{at}")
    if pool:
        nodes.append(f"%max: {image} = aten.max_pool2d.default(%x, [3, 3], [1, 1], [1, 1])")
        results.append("%max")
    lines = [f"input %x: {image}", *constants, *nodes, f"return {', '.join(results)}"]
    return parse_graph("\n".join(["graph branches {", *lines, "}"]))


def _named(*layers: tuple[int, int, int, int]) -> dict[str, Graph]:
    return {f"{c}x{s}x{s} -> {k}, {r}x{r}": convolution(c, s, k, r) for c, s, k, r in layers}


SAMPLE: dict[str, Graph] = {
    **_named((64, 56, 64, 1), (64, 56, 256, 1), (128, 28, 512, 1), (96, 56, 24, 1)),
    **_named((128, 8, 128, 1), (192, 7, 48, 1), (16, 56, 32, 3), (32, 14, 32, 3)),
    "1x2048 @ 2048x1000": linear(1, 2048, 1000),
    "1x4096 @ 4096x10": linear(1, 4096, 10),
    "12 of 128x64 @ 64x128": products(12, 128, 64, 128),
    "12 of 128x128 @ 128x64": products(12, 128, 128, 64),
}
"""Layers that have few tiles, some hundreds each, so that all can be tried in minutes."""
LARGE: dict[str, Graph] = {
    **_named((64, 56, 64, 3), (128, 28, 128, 3), (256, 14, 256, 3), (512, 7, 512, 3)),
    **_named((512, 28, 128, 1), (1024, 14, 256, 1), (2048, 7, 512, 1), (768, 17, 192, 1)),
    **_named((256, 14, 1024, 1)),
    "128x768 @ 768x768": linear(128, 768, 768),
    "128x3072 @ 3072x768": linear(128, 3072, 768),
}
"""Layers that have a thousand tiles or two."""
OTHERS: dict[str, Graph] = {
    **_named((32, 112, 64, 1), (144, 28, 40, 1), (240, 28, 80, 1), (672, 14, 112, 1)),
    **_named((128, 28, 32, 3), (384, 13, 256, 3), (24, 56, 24, 5), (832, 7, 384, 1)),
    "197x768 @ 768x3072": linear(197, 768, 3072),
    "4x4096 @ 4096x1024": linear(4, 4096, 1024),
    "1x1280 @ 1280x1000": linear(1, 1280, 1000),
    "16 of 256x64 @ 64x256": products(16, 256, 64, 256),
}
"""Layers to which no ranking was fitted, mostly of networks that are not in the zoo."""
BATCHED: dict[str, Graph] = {
    "2048x768 @ 768x768": linear(2048, 768, 768),
    "2048x768 @ 768x3072": linear(2048, 768, 3072),
    "2048x3072 @ 3072x768": linear(2048, 3072, 768),
    "50176x64 @ 64x256": linear(50176, 64, 256),
    "12544x512 @ 512x128": linear(12544, 512, 128),
    "3136x1024 @ 1024x256": linear(3136, 1024, 256),
    "192 of 128x64 @ 64x128": products(192, 128, 64, 128),
}
"""Layers at batch 16, of BERT, and 1x1 convolutions of ResNet-50 as products."""
INDEPENDENT: dict[str, Graph] = {
    "192x28x28 -> 64, 96, 16, pool": branches(192, 28, ((64, 1), (96, 1), (16, 1)), True),
    "480x14x14 -> 192, 96, 16, pool": branches(480, 14, ((192, 1), (96, 1), (16, 1)), True),
    "832x7x7 -> 256, 160, 32, pool": branches(832, 7, ((256, 1), (160, 1), (32, 1)), True),
    "128x17x17 -> 128, 128, 3x3 both": branches(128, 17, ((128, 3), (128, 3)), False),
    "448x8x8 -> 384 3x3, 320 1x1": branches(448, 8, ((384, 3), (320, 1)), False),
}
"""Layers that do not depend on each other, as branches of networks have them."""
