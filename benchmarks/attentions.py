"""Attention of many queries: the library's kernels, and ours with every tile there is.

    PYTHONPATH=src python3 -m benchmarks.attentions --json FILE
    PYTHONPATH=src python3 -m benchmarks.attentions --only bert-9x476 --tiles 20

The library's are `F.scaled_dot_product_attention`, which chooses one, and cuDNN's, as a plan would
call them. Times are of one call in a CUDA graph of twenty; ours are compared with the body in fp64
first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.kernel_timing import CHAIN, WHY, Batch, Bench, chain, tensors_of
from torch import Tensor
from torch.nn import functional as F

from anabranch.bench.harness import write
from anabranch.costs.samples import summarised
from anabranch.ir import attention_ops
from anabranch.ir.graph import Graph
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph
from anabranch.ir.tiles import AttentionTile
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.attention import found_in
from anabranch.kernels.triton.attention_axes import Attention
from anabranch.kernels.triton.attention_tiles import ranked
from anabranch.targets.cuda.timing import interleaved

SECONDS = 0.03
"""Of timing for each kernel."""
SLOWEST = 2.0
UNLISTED = [(128, 64, 4, 2), (128, 64, 4, 3), (128, 128, 4, 2), (64, 64, 4, 4), (128, 64, 8, 4)]
"""Rows, keys, warps and stages that no ranking offers; tried where there are as many queries."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of queries, keys and values that lie side by side in one product, as in a plan."""

    batch: int
    heads: int
    tokens: int
    width: int
    mask: bool = False
    causal: bool = False
    keys: int = 0
    """Of another source than the queries; 0: as many as there are queries, and of the same."""
    shared: int = 0
    """Heads of keys that are kept apart, as a decoder has them; 0: as many as there are queries."""

    def body(self) -> Graph:
        """The attention alone."""
        if self.shared:
            return self._of_a_decoder()
        of = f"{self.batch},{self.heads},{self.tokens},{self.width}"
        whole = self.heads * self.width
        n, own = self.keys or self.tokens, 1 if self.keys else 3

        def strides(tokens: int, apart: int) -> str:
            return f"{{{tokens * whole * apart},{self.width},{whole * apart},1}}"

        beside = f"{self.batch},{self.heads},{n},{self.width}"
        mask = f"input %mask: b1[{self.batch},1,1,{n}]" if self.mask else ""
        named = f", is_causal={self.causal}" if self.causal else ""
        return parse_graph(f"""
        graph attention {{
          input %q: f16[{of}]{strides(self.tokens, own)}
          input %k: f16[{beside}]{strides(n, 2 if self.keys else 3)}
          input %v: f16[{beside}]{strides(n, 2 if self.keys else 3)}
          {mask}
          %out: f16[{of}]{strides(self.tokens, 1)} = \
aten.scaled_dot_product_attention.default(%q, %k, %v{", %mask" if self.mask else ""}{named})
          return %out
        }}""")

    def _of_a_decoder(self) -> Graph:
        """One query of each head, that meets the keys of its group."""
        of, kept = f"{self.batch},{self.heads},1,{self.width}", f"{self.keys},{self.width}"
        return parse_graph(f"""
        graph attention {{
          input %q: f16[{of}]
          input %k: f16[{self.batch},{self.shared},{kept}]
          input %v: f16[{self.batch},{self.shared},{kept}]
          input %mask: b1[1,1,1,{self.keys}]
          %out: f16[{of}] = aten.scaled_dot_product_attention.default(\
%q, %k, %v, %mask, enable_gqa=True)
          return %out
        }}""")


SIZES = {
    "bert-1x128": Sizes(1, 12, 128, 64),
    "bert-16x128": Sizes(16, 12, 128, 64),
    "bert-2x60": Sizes(2, 12, 60, 64, mask=True),
    "bert-1x476": Sizes(1, 12, 476, 64, mask=True),
    "bert-4x300": Sizes(4, 12, 300, 64, mask=True),
    "bert-9x476": Sizes(9, 12, 476, 64, mask=True),
    "bert-32x512": Sizes(32, 12, 512, 64, mask=True),
    "gpt2-4x512": Sizes(4, 12, 512, 64, causal=True),
    "vit-1x197": Sizes(1, 6, 197, 64),
    "vit-32x197": Sizes(32, 6, 197, 64),
    "sd-2x4096": Sizes(2, 8, 4096, 40),
    "sd-2x1024": Sizes(2, 8, 1024, 80),
    "sd-2x256": Sizes(2, 8, 256, 160),
    "sd-2x4096-77": Sizes(2, 8, 4096, 40, keys=77),
    "dit-2x256": Sizes(2, 6, 256, 64),
    "whisper-1x1500": Sizes(1, 6, 1500, 64),
    "llama-1x1024": Sizes(1, 32, 1024, 128, causal=True),
    "step-1x1024": Sizes(1, 32, 1, 64, keys=1024, shared=8),
    "step-8x1024": Sizes(8, 32, 1, 64, keys=1024, shared=8),
    "step-1x8192": Sizes(1, 32, 1, 128, keys=8192, shared=8),
    "sam-1x4096": Sizes(1, 12, 4096, 64),
}
"""As networks have them: rows by tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(SIZES))
    parser.add_argument("--tiles", type=int, default=1000, help="so many best ranked ones")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    timed: list[dict[str, Any]] = []
    for row in rows(flags.only or list(SIZES), flags.tiles):
        timed.append(row)
        print(row, flush=True)
        if flags.json is not None:
            write(flags.json, "attentions", "cuda", vars(flags), timed)


def rows(names: list[str], most: int) -> Iterator[dict[str, Any]]:
    """For each attention microseconds of the library's kernels and of ours, or why not."""
    bench = Bench.of()
    batches = [(name, offered(SIZES[name].body(), bench.spec, most)) for name in names]
    for (name, batch), (_, soon) in zip(batches, [*batches[1:], ("", None)], strict=True):
        yield {
            "name": name,
            "library": library_us(batch[0], SIZES[name], bench.device),
            "ours": bench.times(batch, soon, each=SECONDS),
        }


def offered(body: Graph, spec: TargetSpec, most: int) -> Batch:
    """The tiles that are foreseen to take no more than `SLOWEST` times the fastest."""
    attention = found_in(body)
    assert isinstance(attention, Attention), attention
    order = ranked(attention, spec)
    tiles = [tile for tile, us in order if us <= SLOWEST * order[0][1]][:most]
    if attention.m >= 2 * max(rows for rows, *_ in UNLISTED):
        tiles += [AttentionTile(*sizes) for sizes in UNLISTED]
    return body, list(map(Variant, dict.fromkeys(tiles)))


def library_us(body: Graph, sizes: Sizes, device: torch.device) -> dict[str, float | str]:
    """Microseconds of the library's launches by whose they are."""
    values = tensors_of(body, device)
    q, k, v, *masks = (values[value.name] for value in body.inputs)
    mask = masks[0] if masks else None
    scale = sizes.width**-0.5

    def chosen() -> Tensor:
        gqa = sizes.shared > 0
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=sizes.causal, enable_gqa=gqa)

    def cudnn() -> Tensor:
        return attention_ops.by_cudnn(q, k, v, mask, sizes.causal, scale)

    times: dict[str, float | str] = {}
    for call in (chosen, cudnn):
        try:
            times[call.__name__] = summarised(interleaved([chain(call)], SECONDS)[0], CHAIN).us
        except RuntimeError as failed:
            times[call.__name__] = " ".join(str(failed).split())[:WHY]
    return times


if __name__ == "__main__":
    main()
