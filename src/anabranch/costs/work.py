"""What a task demands of a machine: Task, TargetSpec -> flops, bytes, and the share of its SMs.

What a launch reads and writes at its border counts as traffic; what flows between the nodes of its
body stays on the chip, unless the kernel is a sequence of several launches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from anabranch.costs.serial_work import chained_us, walked_us
from anabranch.ir import ops
from anabranch.ir.components import components
from anabranch.ir.graph import Graph, Node, Ref, types
from anabranch.ir.state import overwritten, part_types
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources, Task
from anabranch.ir.types import DTYPE_NAMES, TensorType

CONTRACT = Resources(ctas=0, threads=128, registers=128, shared=32768, estimated=True)
POINTWISE = Resources(ctas=0, threads=256, registers=32, shared=0, estimated=True)
CONTRACT_TILE = 64 * 32
POINTWISE_TILE = 256 * 4
"""What a launch is taken to use where nobody has told: a middling tile of ours."""
PRODUCTS = frozenset(
    (
        *("linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "wide_mm"),
        *("_addmm_activation", "addmm_activation"),
    )
)
"""Matrix products that cuBLAS runs."""
WIDE = 16
"""Channels in a group that fill a tile of tensor cores: fewer cost as many."""
NARROW_GROUP_SHARE = 0.15
"""The part of the peak that convolutions reach whose groups do not fill a tile, counted as if they
did. On an H200 in fp16 3x3 with 4 channels in a group takes 5.1 us, with 8 4.1, and 5x5 with 2
17.7; by a plain count of multiply-adds none would take 3. Depthwise ones do without tensor
cores."""


@dataclass(frozen=True, slots=True)
class Work:
    """`busy_us`: time of the arithmetic alone at peak rates; `moved_us`: of the traffic alone.
    `depth`: multiply-adds one after the other in the longest contraction, 0 without one; `share`:
    the part of the machine's CTA slots that it fills; `launches`: 0 if there is nothing to do.
    `ctas`: of its largest launch; `per_sm`: how many of them a processor holds. `awaited_us`: of
    the traffic, what one CTA may have to wait for: that of one independent part, None for all.
    `bound`: see `bound`. `steps`: those of recurrences, beside the first. `walked_us`: of its
    longest row, or its longest chain of operators, see `serial_work`. `padded_us`: of convolutions
    in groups that are too narrow for tensor cores."""

    busy_us: float
    moved_us: float
    depth: int
    share: float
    launches: int
    ctas: int = 1
    per_sm: int = 1
    awaited_us: float | None = None
    bound: bool = False
    steps: int = 0
    walked_us: float = 0.0
    padded_us: float = 0.0


def work(task: Task, spec: TargetSpec) -> Work:
    """Of the kernel's body where one is chosen, else of the task's."""
    kernel = task.kernel
    body = task.body if kernel is None else kernel.body
    table = types(body)
    nodes = [node for node in body.nodes if not ops.is_view(node, table)]
    if not nodes:
        return Work(0.0, 0.0, 0, 0.0, 0)
    several = kernel is not None and kernel.launches > 1
    moved = sum(ops.traffic(node, table) for node in nodes) if several else _border(body, table)
    depth = max(_depth(node, table) for node in nodes)
    resources = kernel.resources if kernel is not None else None
    resources = resources or _guess(body, table, depth)
    ctas, per_sm = resources.ctas, per_processor(resources, spec)
    if spec.kind == "cpu":  # torch's kernels use every core
        ctas, per_sm = spec.sms, 1
    return Work(
        busy_us=sum(ops.flops(node, table) / _rate(node, spec) for node in nodes) * 1e6,
        moved_us=moved / spec.bandwidth * 1e6,
        depth=depth,
        share=min(1.0, ctas / (spec.sms * per_sm)),
        launches=kernel.launches if kernel is not None else 1,
        steps=sum(ops.serial(node, table) - 1 for node in nodes),
        ctas=ctas,
        per_sm=per_sm,
        awaited_us=_awaited(body, table, spec) if len(body.outputs) > 1 and not several else None,
        bound=spec.kind != "cpu" and _bound(task, body),
        walked_us=max(0.0 if several else chained_us(body), _walked_us(nodes, table)),
        padded_us=sum(_padded_us(node, table, spec) for node in nodes),
    )


def _padded_us(node: Node, table: Mapping[str, TensorType], spec: TargetSpec) -> float:
    """What a convolution takes with every group as wide as a tile; 0 unless its groups are too
    narrow for that, and where there are no tensor cores to fill."""
    if spec.kind != "cuda" or node.op not in ops.CONVOLUTIONS:
        return 0.0
    arguments, rate = ops.arguments(node), _rate(node, spec)
    weight, groups = arguments["weight"], arguments["groups"]
    assert isinstance(weight, Ref) and isinstance(groups, int)
    first, second = table[weight.name].shape[:2]
    sides = second, first // groups  # channels of a group: in and out, or out and in
    wide = groups == 1 or second == 1 or min(sides) >= WIDE
    if wide or rate <= dict(spec.peak_flops).get("f32", 0.0):
        return 0.0
    tiles = math.prod(max(WIDE, side) / side for side in sides)
    return ops.flops(node, table) * tiles / (NARROW_GROUP_SHARE * rate) * 1e6


def _walked_us(nodes: Sequence[Node], table: Mapping[str, TensorType]) -> float:
    return max(walked_us(node, table) for node in nodes)


def bound(kernel: str, operators: Sequence[str]) -> bool:
    """Whether this kernel's launches go on from the launch before on their stream or from none, by
    its name (provider.name) and its body's operators. cuBLAS's are, as far as BERT shows: with the
    library's kernels drawing launches to sixteen streams costs about 1 us a product, with generated
    kernels nothing. Why is not known.

    >>> bound("aten.aten", ["linear"]), bound("triton.contraction", ["linear"])
    (True, False)
    """
    return kernel.startswith("aten.") and not PRODUCTS.isdisjoint(operators)


def per_processor(resources: Resources, spec: TargetSpec) -> int:
    """How many CTAs of such a kernel a processor holds at once, at least 1."""
    registers = max(1, resources.threads * resources.registers)
    return max(
        1,
        min(
            spec.ctas_per_sm,
            spec.threads_per_sm // max(1, resources.threads),
            spec.registers_per_sm // registers,
            spec.shared_per_sm // max(1, resources.shared),
        ),
    )


def main_node(task: Task) -> Node | None:
    """What a task is mostly about: its contraction, else its first node; None for an empty one."""
    nodes = task.body.nodes
    contract = (node for node in nodes if ops.contracts(node))
    return next(contract, nodes[0] if nodes else None)


def computes(task: Task) -> bool:
    """Whether the task multiplies and accumulates; all others are bound by memory."""
    return any(ops.contracts(node) for node in task.body.nodes)


def contracts_in_f32(task: Task) -> bool:
    """Whether its time depends on tf32 being allowed."""
    return any(ops.contracts(node) and node.type.dtype == torch.float32 for node in task.body.nodes)


def _bound(task: Task, body: Graph) -> bool:
    kernel = task.kernel
    name = "aten." if kernel is None else f"{kernel.provider}.{kernel.name}"
    return bound(name, [ops.packet_name(node.op).removeprefix("aten.") for node in body.nodes])


def _border(body: Graph, table: Mapping[str, TensorType]) -> int:
    """Bytes that cross it: of what comes in at most all of it, however many read it; of what is
    written over in part, what is written, or what comes in once more."""
    size = {name: type.numel * type.dtype.itemsize for name, type in table.items()}
    over = {state.name for state in body.states}
    if over and any(overwritten(node) in over for node in body.nodes):
        coming = [*(v.name for v in body.inputs), *(c.name for c in body.constants)]
        entered = sum(size[name] for name in coming if name not in over)
        parts = part_types(body)
        if parts:
            size |= {name: type.numel * type.dtype.itemsize for name, type in parts.items()}
            return entered + sum(size[ref.name] for ref in body.outputs)
        return 2 * entered
    moved = {ref.name: size[ref.name] for ref in body.outputs}
    entering = {value.name for value in body.inputs} | {c.name for c in body.constants}
    entering -= moved.keys()
    for node in body.nodes:
        for name, read in ops.reads(node, table).items():
            if name in entering:
                moved[name] = min(size[name], moved.get(name, 0) + read)
    return sum(moved.values())


def _awaited(body: Graph, table: Mapping[str, TensorType], spec: TargetSpec) -> float | None:
    """Microseconds of the traffic of the part that has most, where there are several parts."""
    parts = components(body)
    if len(parts) < 2:
        return None
    return max(_border(part, table) for part in parts) / spec.bandwidth * 1e6


def _depth(node: Node, table: Mapping[str, TensorType]) -> int:
    if not ops.contracts(node) or not node.type.numel:
        return 0
    return ops.flops(node, table) // (2 * node.type.numel)


def _rate(node: Node, spec: TargetSpec) -> float:
    """Peak operations per second: tensor cores for contractions, plain fp32 for all else."""
    rates = dict(spec.peak_flops)
    plain = rates.get("f32") or max(rates.values(), default=1e12)
    if not ops.contracts(node):
        return plain
    name = DTYPE_NAMES[node.type.dtype]
    if name == "f32" and spec.tf32:
        name = "tf32"
    return rates.get(name) or plain


def _guess(body: Graph, table: Mapping[str, TensorType], depth: int) -> Resources:
    table = {**table, **part_types(body)}
    written = max((table[ref.name].numel for ref in body.outputs), default=0)
    like, tile = (CONTRACT, CONTRACT_TILE) if depth else (POINTWISE, POINTWISE_TILE)
    ctas = max(1, math.ceil(written / tile))
    return Resources(ctas, like.threads, like.registers, like.shared, estimated=True)
