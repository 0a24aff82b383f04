"""How good the contraction kernels and their ranking are, on convolutions at batch 1.

    PYTHONPATH=src python3 benchmarks/convolutions.py --json FILE --seconds 200
    PYTHONPATH=src python3 benchmarks/convolutions.py --shape 256,14,256,3 --exhaustive

For each layer (channels, size, output channels, window; NHWC with bias and relu) the survivors of
the ranking, or with --exhaustive all tiles in an order drawn at random for as long as there is
time, are compiled in several processes and timed in CUDA graphs of a chain of calls, side by side
with ATen (convolution, then relu) and cuDNN's fused call. Every result is compared with fp64.

`rank`: where the winner stands in the ranking of shapes, depths and splits. `pruned`: the share of
all tiles that is never compiled. With --exhaustive, `loss` is how much slower the best survivor is
than the best of all that were timed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from anabranch.errors import AnabranchError
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.numbers import compare
from anabranch.ir.step import random_tensor
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.roles import Contraction, contraction_of
from anabranch.kernels.triton.tiles import Tile, ranked
from anabranch.kernels.triton.write import program, variants
from anabranch.targets.cuda.device import read_spec
from anabranch.targets.cuda.timing import interleaved, summarise
from anabranch.targets.cuda.triton import Triton

LAYERS = (
    *((64, 56, 64, 1), (64, 56, 64, 3), (64, 56, 256, 1), (256, 56, 64, 1), (128, 28, 128, 3)),
    *((512, 28, 128, 1), (128, 28, 512, 1), (256, 14, 256, 3), (1024, 14, 256, 1)),
    *((256, 14, 1024, 1), (512, 7, 512, 3), (2048, 7, 512, 1), (512, 7, 2048, 1)),
    *((768, 17, 192, 1), (1280, 8, 384, 1), (448, 8, 384, 3)),
)
"""Of ResNet-50, Inception-v3 and their like."""
CHAIN = 20
"""Calls in one graph."""
AT_ONCE = 48
"""Kernels that are compiled, then timed together."""


@dataclass
class Row:
    """What was found for one layer; times in microseconds a call."""

    layer: tuple[int, ...]
    aten: float = 0.0
    cudnn: float | None = None
    best: str = ""
    us: float = float("inf")
    predicted: float = 0.0
    rank: int | None = None
    pruned: float = 0.0
    tiles: int = 0
    survivor: float = float("inf")
    timed: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return self.survivor / self.us - 1


def main() -> int:
    parser = argparse.ArgumentParser(description="contraction kernels beside ATen and cuDNN")
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    parser.add_argument("--seconds", type=float, default=200.0, help="for all layers together")
    parser.add_argument("--shape", action="append", default=[], help="C,HW,K,R instead of ours")
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16", "f32"])
    parser.add_argument("--tf32", action="store_true", help="fp32 may be multiplied as tf32")
    parser.add_argument("--exhaustive", action="store_true", help="time all tiles, not survivors")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA GPU here", file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    spec = read_spec(device, given.tf32)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = given.tf32
    triton = Triton(device, spec.capability)
    layers = [tuple(map(int, text.split(","))) for text in given.shape] or list(LAYERS)
    rows, start = list[Row](), time.perf_counter()
    print(
        f"{'C HW K R':>18} {'aten':>7} {'cudnn':>7} {'ours':>7} {'model':>7} rank pruned  variant"
    )
    for done, layer in enumerate(layers):
        left = given.seconds - (time.perf_counter() - start)
        if left <= 0:
            print(f"out of time: {len(layers) - done} layers left out", file=sys.stderr)
            break
        deadline = time.perf_counter() + left / (len(layers) - done)
        body = body_of(layer, given.dtype)
        rows.append(measured(layer, body, spec, triton, deadline, given.exhaustive))
        print(line_of(rows[-1], given.exhaustive), flush=True)
    print(total_of(rows))
    if given.json:
        given.json.write_text(json.dumps(record_of(rows, spec), indent=1) + "\n", encoding="utf-8")
    return 0 if rows and all(row.timed for row in rows) else 1


def body_of(layer: Sequence[int], dtype: str) -> Graph:
    """Relu(convolution + bias) with the padding that keeps the size, channels last."""
    c, s, k, r = layer
    image, result = f"{{{c * s * s},1,{c * s},{c}}}", f"{{{k * s * s},1,{k * s},{k}}}"
    weight, pad = f"{{{c * r * r},1,{c * r},{c}}}", r // 2
    return parse_graph(f"""
    graph layer {{
      input %x: {dtype}[1,{c},{s},{s}]{image}
      const %w: {dtype}[{k},{c},{r},{r}]{weight} = w
      const %b: {dtype}[{k}] = b
      %conv: {dtype}[1,{k},{s},{s}]{result} = aten.convolution.default(%x, %w, %b, [1, 1], [{pad}, {pad}], [1, 1], False, [0, 0], 1)
      %relu: {dtype}[1,{k},{s},{s}]{result} = aten.relu.default(%conv)
      return %relu
    }}""")  # noqa: E501


def measured(
    layer: tuple[int, ...], body: Graph, spec: TargetSpec, triton: Triton, deadline: float,
    exhaustive: bool,
) -> Row:  # fmt: skip
    """The layer's row: rivals first, then tiles for as long as there is time."""
    found = contraction_of(lower(body))
    assert isinstance(found, Contraction), found
    order = ranked(found, spec)
    tried = survivors = variants(body, spec)
    if exhaustive:
        rest = [tile.text for tile, _ in order if tile.text not in survivors]
        tried = [*survivors, *random.Random(0).sample(rest, len(rest))]
    values = tensors_of(body)
    wanted = expected(body, values)
    row = Row(layer, tiles=len(order), pruned=1 - len(survivors) / len(order))
    row.aten, row.cudnn = rivals(values)
    for at in range(0, len(tried), AT_ONCE):
        if at and time.perf_counter() > deadline:
            break
        time_kernels(body, tried[at : at + AT_ONCE], values, wanted, triton, row)
    if row.timed:
        row.best = min(row.timed, key=row.timed.__getitem__)
        row.us = row.timed[row.best]
        row.survivor = min((row.timed[v] for v in survivors if v in row.timed), default=row.us)
        row.rank, row.predicted = standing(row.best, order)
    return row


def tensors_of(body: Graph) -> dict[str, torch.Tensor]:
    """Random inputs, constants and memory for the result, on the GPU; weights keep it near 1."""
    device = torch.device("cuda", 0)
    declared = [(value.name, value.type) for value in body.inputs]
    declared += [(constant.name, constant.type) for constant in body.constants]
    values = {name: random_tensor(type, k).to(device) for k, (name, type) in enumerate(declared)}
    values["w"] /= (values["w"][0].numel()) ** 0.5
    out = body.nodes[-1].type
    values["relu"] = torch.empty_strided(out.shape, out.strides, dtype=out.dtype, device=device)
    return values


def rivals(values: dict[str, torch.Tensor]) -> tuple[float, float | None]:
    pad, x = values["w"].shape[-1] // 2, values["x"]
    same: tuple[Any, ...] = ([1, 1], [pad, pad], [1, 1])

    def aten() -> object:
        return torch.relu(
            torch.ops.aten.convolution(x, values["w"], values["b"], *same, False, [0, 0], 1)
        )

    def cudnn() -> object:
        return torch.ops.aten.cudnn_convolution_relu(x, values["w"], values["b"], *same, 1)

    taken: list[float | None] = []
    for call in (aten, cudnn):
        try:
            replay = chain(call)
            taken.append(summarise(interleaved([replay], 0.1)[0], CHAIN).us)
        except RuntimeError as failed:
            print(f"{call.__name__}: {str(failed).splitlines()[0]}", file=sys.stderr)
            taken.append(None)
    return taken[0] or float("nan"), taken[1]


def time_kernels(
    body: Graph,
    tried: Sequence[str],
    values: dict[str, torch.Tensor],
    wanted: tuple[torch.Tensor, torch.Tensor],
    triton: Triton,
    row: Row,
) -> None:
    """Compiles these variants together, compares each result, times them side by side."""
    kernels = [kernel_of(body, variant) for variant in tried]
    with triton.building(kernels):
        pass
    ready: dict[str, Callable[[], None]] = {}
    for kernel in kernels:
        try:
            call = triton.runner(Task("layer", body, kernel), dict(values), None)
            why = wrong(values, call, wanted)
            if why:
                row.failed[kernel.variant] = why
            else:
                ready[kernel.variant] = chain(call)
        except (AnabranchError, RuntimeError) as failed:
            row.failed[kernel.variant] = " ".join(str(failed).split())[:200]
    samples = interleaved(list(ready.values()), 0.02 * len(ready))
    for variant, taken in zip(ready, samples, strict=True):
        row.timed[variant] = summarise(taken, CHAIN).us


def kernel_of(body: Graph, variant: str) -> Kernel:
    written = program(body, variant)
    return Kernel(
        "triton", "contraction", body, variant, writes_out=True, workspace=written.scratch,
        source=written.text,
    )  # fmt: skip


def wrong(
    values: dict[str, torch.Tensor],
    call: Callable[[], None],
    wanted: tuple[torch.Tensor, torch.Tensor],
) -> str:
    """Why a kernel's result is not accepted, "" if it is. Called twice: counters must be 0 again,
    and the bits the same."""
    values["relu"].fill_(float("nan"))
    call()
    first = values["relu"].clone()
    values["relu"].fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    if not torch.equal(first, values["relu"]):
        return "two runs gave different bits"
    own, truth = wanted
    error, allowed = compare([first], [own], [truth], torch.backends.cudnn.allow_tf32)[0]
    return f"error {error:.3g} > {allowed:.3g}" if error > allowed else ""


def expected(body: Graph, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The plain model's result, and that in fp64."""
    held = tuple(replace(c, value=values[c.name]) for c in body.constants)
    graph, given = replace(body, constants=held), [values["x"]]
    own = eval_graph(graph, given)[0]
    return own, eval_graph(graph, given, precision=torch.float64)[0]


def chain(call: Callable[[], object]) -> Callable[[], None]:
    """A CUDA graph of so many calls, one after the other."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CHAIN):
            call()

    def replay(kept: object = call) -> None:
        """`kept`: the call owns memory that the graph writes to."""
        graph.replay()

    return replay


def standing(variant: str, order: Sequence[tuple[Tile, Any]]) -> tuple[int | None, float]:
    """The rank of the variant's shape, depth and split among all, and the time it was given."""
    shapes: dict[str, float] = {}
    for tile, limit in order:
        shapes.setdefault(shape_of(tile.text), limit.us)
    wanted = shape_of(variant)
    return (list(shapes).index(wanted) + 1 if wanted in shapes else None), shapes.get(wanted, 0.0)


def shape_of(variant: str) -> str:
    return ".".join(variant.split(".")[:2])


def line_of(row: Row, exhaustive: bool) -> str:
    name = " ".join(map(str, row.layer))
    cudnn = f"{row.cudnn:7.2f}" if row.cudnn is not None else f"{'-':>7}"
    line = f"{name:>18} {row.aten:7.2f} {cudnn} {row.us:7.2f} {row.predicted:7.2f} {row.rank!s:>4}"
    line += f" {row.pruned:6.1%}  {row.best}"
    if exhaustive:
        line += f"  loss {row.loss:.1%} over {len(row.timed)} of {row.tiles}"
    return line + (f"  {len(row.failed)} failed" if row.failed else "")


def total_of(rows: Sequence[Row]) -> str:
    best = sum(min(row.us, row.cudnn or row.us) for row in rows)
    cudnn = sum(row.cudnn or row.aten for row in rows)
    aten, ours = sum(row.aten for row in rows), sum(row.us for row in rows)
    return f"{'total':>18} {aten:7.1f} {cudnn:7.1f} {ours:7.1f}  best of ours and cuDNN {best:.1f}"


def record_of(rows: Sequence[Row], spec: TargetSpec) -> dict[str, Any]:
    return {
        "device": spec.name,
        "versions": dict(spec.versions),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "calls_a_graph": CHAIN,
        "layers": [{**asdict(row), "loss": row.loss} for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
