"""What the time of a kernel is made of: a task with a kernel -> its launches, each as terms.

    contraction:32x32x64.k4.w4.s3      one 1, waves 1, steps 9, read 3.1, last .25, split 1, ...
    aten.aten: convolution, relu       convolution: one 1, moved .4, steps 18; pointwise: one 1, ...

A term is a number that grows with one part of the time: the launch, the steps of a CTA one after
the other, bytes through L2, products. `costs.kernel_model` has a factor for each, fitted to
timings, by family: a template, a call of a library, a kind of operator. A kernel of which nobody
knows terms has none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.costs.kernel_model import LaunchTerms
from anabranch.costs.serial_work import walked_us
from anabranch.ir import ops
from anabranch.ir.components import components
from anabranch.ir.graph import Graph, Node, Ref, types
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.state import part_types, written_parts
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Task
from anabranch.ir.tiles import (
    AttentionTile,
    ContractionTile,
    GemmChainTile,
    HorizontalTile,
    PartTile,
    RowsTile,
    SequenceTile,
    Tile,
    WindowTile,
    template_of,
)
from anabranch.ir.types import TensorType
from anabranch.ir.variant import Variant
from anabranch.kernels.tile_cost import CLOCK, LANES, grouped, peak_of, resident, time_us
from anabranch.kernels.triton import (
    attention,
    attention_tiles,
    contraction,
    contraction_tiles,
    gemm_chain,
    gemm_chain_tiles,
    persistent,
    rows,
    sequence,
    window,
)
from anabranch.kernels.triton.codegen import LaunchSize, launch_size
from anabranch.kernels.triton.contraction_axes import Contraction
from anabranch.kernels.triton.k_loop import FLAT_DEPTH_RATIO

TypeTable = Mapping[str, TensorType]
WARPS_OF_SM = 64
LIBRARY_SIDE, LIBRARY_DEPTH = 64, 32
"""Of the tiles of libraries, about."""
WAIT_US, NUMBER_US, RUN_US = 0.073, 4.4e-5, 1.66e-3
"""Microseconds that a CTA waits for a block of a row, for each number of it, and for each run of
neighbours in memory. Fitted to four kernels of group norms of 64 x 64 pixels: of ten channels 39.1
us by eight warps and 4,096 numbers and 52.4 by four and 1,024, of thirty 60.7 and 92.9; six others
of a U-Net are within 8%. All on an H200 on which the U-Net took 6.03 ms, and 0.70 of that where
clocks were as they are in the profile, as these numbers are."""
VECTOR = 8
"""Channels that a library reads at once: others are padded or read one by one."""


def terms_of(task: Task, spec: TargetSpec) -> tuple[LaunchTerms, ...]:
    """The launches that the task's kernel consists of, () where nobody knows."""
    kernel = task.kernel
    if kernel is None or spec.kind != "cuda":
        return ()
    if kernel.provider == GENERATED:
        variant = kernel.variant
        if not isinstance(variant, Variant):
            return ()
        return _generated(canonical(kernel.body, content=False), variant.tile, spec)
    table = types(kernel.body)
    nodes = [node for node in kernel.body.nodes if not ops.is_view(node, table)]
    if kernel.provider == "aten" and kernel.name == "aten":
        parts = part_types(kernel.body)
        return tuple(_called(node, table, spec, parts.get(node.name)) for node in nodes)
    contracts = [node for node in nodes if ops.contracts(node)]
    if len(contracts) != 1:
        return ()
    maker = "cudnn" if "convolution" in kernel.name else kernel.provider
    own = f"{maker} {kernel.variant or 'call'}"
    return (_product_call(contracts[0], table, spec, own, nodes, _border(kernel.body, table)),)


def _border(body: Graph, table: TypeTable) -> int:
    """Bytes that it reads and writes."""
    table = {**table, **part_types(body)}
    moved = sum(type.nbytes for type in _read(body))
    return moved + sum(table[ref.name].nbytes for ref in body.outputs)


def _read(body: Graph) -> list[TensorType]:
    """The types of what it reads; of what it writes a part it reads nothing."""
    over = set(written_parts(body).values())
    read = [value.type for value in body.inputs if value.name not in over]
    return read + [constant.type for constant in body.constants]


def _called(
    node: Node, table: TypeTable, spec: TargetSpec, part: TensorType | None = None
) -> LaunchTerms:
    """An operator that ATen runs. `part`: what it writes, where that is but a part of a state."""
    moved, kind = ops.traffic(node, table), ops.kind_of(node)
    if kind == "contract":
        return _product_call(node, table, spec, "aten", [node], moved)
    sources = [table[name] for name in dict.fromkeys(node.uses)]
    if part is not None:
        sources = [table[name] for name in dict.fromkeys(node.uses[1:])]
        moved = part.nbytes + sum(source.nbytes for source in sources)
    strange = sum(source.nbytes for source in sources if source.strides != node.type.strides)
    largest = max((source.numel for source in sources), default=0)
    terms = {
        "one": 1.0,
        "moved": moved / spec.bandwidth * 1e6,
        "reads": float(len(sources)),
        "strange": strange / spec.bandwidth * 1e6,
        "lanes": ops.flops(node, table) / (spec.sms * LANES * CLOCK),
        "row": largest / max(1, node.type.numel) / 1024 if kind == "reduce" else 0.0,
        "serial": float(ops.serial(node, table) - 1),
    }
    named = kind if kind in ("pointwise", "factory") else ops.packet_name(node.op)
    walked = walked_us(node, table)
    return LaunchTerms(f"aten {named}", "aten", _kept(terms), walked=walked)


def _product_call(
    node: Node, table: TypeTable, spec: TargetSpec, own: str, nodes: Sequence[Node], moved: int
) -> LaunchTerms:
    """A call of a library that multiplies; `nodes`: its epilogue, too."""
    m, n, k, batches, shape = _product(node, table)
    blocks = math.ceil(m / LIBRARY_SIDE) * math.ceil(n / LIBRARY_SIDE) * batches
    steps = k / LIBRARY_DEPTH
    convolves = shape.startswith("conv")
    terms = {
        "one": 1.0,
        "moved": moved / spec.bandwidth * 1e6,
        "steps": steps,
        "root": math.sqrt(k),
        "waves": max(1.0, blocks / spec.sms) * steps,
        "blocks": blocks / spec.sms,
        "busy": ops.flops(node, table) / peak_of(node.type.dtype, spec) * 1e6,
        "after": float(len(nodes) - 1),
        "odd": float(n % VECTOR > 0 or k % VECTOR > 0),
        "strange": float(convolves and not ops.channels_last(table[node.uses[0]])),
    }
    pool = "depthwise" if shape == "conv depthwise" else "conv" if convolves else "product"
    return LaunchTerms(f"{own} {shape}", f"{own.split()[0]} {pool}", _kept(terms))


def _kept(terms: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((name, value) for name, value in terms.items() if value)


def _product(node: Node, table: TypeTable) -> tuple[int, int, int, int, str]:
    """Rows, columns, depth, how many, and which sort of product it is."""
    out = node.type
    deep = max(1, ops.flops(node, table) // (2 * max(1, out.numel)))
    name = ops.packet_name(node.op)
    if "conv" in name:
        second = node.args[1]
        assert isinstance(second, Ref)
        weight, argument = table[second.name], ops.arguments(node).get("groups", 1)
        groups = argument if isinstance(argument, int) else 1
        n = weight.shape[0] // groups
        m = out.numel // max(1, weight.shape[0])
        window = math.prod(weight.shape[2:])
        shape = "conv1" if window == 1 else "conv"
        if groups > 1:
            shape = "conv depthwise" if weight.shape[1] == 1 else "conv grouped"
        return m, n, deep, groups, shape
    if "attention" in name:
        batches = math.prod(out.shape[:-2])
        return out.shape[-2], out.shape[-1], deep, batches, "attention"
    if name in ("aten.bmm", "aten.baddbmm", "aten.matmul") and len(out.shape) > 2:
        return out.shape[-2], out.shape[-1], deep, math.prod(out.shape[:-2]), "bmm"
    n = out.shape[-1] if out.shape else 1
    return out.numel // max(1, n), n, deep, 1, "product"


@functools.lru_cache(maxsize=1 << 14)
def _generated(body: Graph, tile: Tile, spec: TargetSpec) -> tuple[LaunchTerms, ...]:
    """Of a body whose names are positions: equal layers of several cuts have the same."""
    if isinstance(tile, HorizontalTile):
        return _side_by_side(body, tile, spec)
    table, template = types(body), template_of(tile)
    us = _ranked_us(body, tile, spec)
    if us is not None:
        return (LaunchTerms(template, template, (("ranked", us),)),)
    size = launch_size(body, tile)
    if isinstance(tile, ContractionTile):
        product = contraction.found_in(body)
        if isinstance(product, Refused):
            return ()
        own = "contraction of a row" if product.m == 1 else template
        own = "contraction of taps" if product.reads > 1 else own
        terms = _shared(size, body, table, spec) | _contraction(product, tile, body, table, spec)
        if tile.ctas > 1:  # too few were timed for factors of their own
            terms = {name: persistent.GAIN * value for name, value in terms.items()}
        return (LaunchTerms(own, template, _kept(terms)),)
    terms = _shared(size, body, table, spec) | _light(body, tile, size, table, spec)
    walked = _walked_us(body, tile, size, spec) if isinstance(tile, RowsTile) else 0.0
    return (LaunchTerms(template, "light", _kept(terms), walked=walked),)


def _walked_us(body: Graph, tile: RowsTile, size: LaunchSize, spec: TargetSpec) -> float:
    """Microseconds that a CTA waits for the blocks of its rows, one after the other and once for
    each reduction that needs another one; 0 where a row is held in registers."""
    row = rows.found_in(body)
    if isinstance(row, Refused):
        return 0.0
    blocks = math.ceil(row.col.extent / (tile.width * tile.split))
    if blocks == 1:
        return 0.0
    turns = max(1.0, size.ctas * size.warps / (spec.sms * WARPS_OF_SM))
    runs = row.col.extent / tile.split / rows.run_length(row)
    runs *= 1 if row.side_by_side else tile.height
    walk = RUN_US * runs + blocks * (WAIT_US + NUMBER_US * tile.height * tile.width)
    return turns * rows.walks(row) * walk


def _side_by_side(body: Graph, tile: HorizontalTile, spec: TargetSpec) -> tuple[LaunchTerms, ...]:
    """Parts of one launch, beside the first of them."""
    each = [
        _generated(part, own, spec) for part, own in zip(components(body), tile.parts, strict=True)
    ]
    if not all(each):
        return ()
    parts = [launch for launches in each for launch in launches]
    shares = [min(1.0, dict(part.terms).get("ctas", 1.0)) for part in parts]
    return tuple(
        replace(part, beside=i > 0, share=share)
        for i, (part, share) in enumerate(zip(parts, shares, strict=True))
    )


def _ranked_us(body: Graph, tile: PartTile, spec: TargetSpec) -> float | None:
    """The time by which a template ranks such tiles, where too few of them were timed for terms of
    their own."""
    if isinstance(tile, AttentionTile):
        match = attention.found_in(body)
        if not isinstance(match, Refused):
            us = attention_tiles.time_us(attention_tiles.AttentionSizes.of(match), tile, spec)
            return us if math.isfinite(us) else None
    if isinstance(tile, GemmChainTile):
        chain = gemm_chain.found_in(body)
        if not isinstance(chain, Refused):
            return dict(gemm_chain_tiles.ranked(chain, spec)).get(tile)
    if isinstance(tile, SequenceTile):
        layer = sequence.found_in(body)
        if not isinstance(layer, Refused):
            bounds = dict(sequence.ranked(layer, spec))
            return bounds[tile].us if tile in bounds else None
    return None


def _shared(size: LaunchSize, body: Graph, table: TypeTable, spec: TargetSpec) -> dict[str, float]:
    return {
        "one": 1.0,
        "ctas": size.ctas / spec.sms,
        "warps": size.ctas * size.warps / (spec.sms * WARPS_OF_SM),
        "moved": _border(body, table) / spec.bandwidth * 1e6,
    }


def _contraction(
    contraction: Contraction, tile: ContractionTile, body: Graph, table: TypeTable, spec: TargetSpec
) -> dict[str, float]:
    block = contraction_tiles.work_of(contraction, tile, spec)
    peak = peak_of(contraction.dtype, spec)
    held = max(1, resident(block, spec))
    together = min(held, math.ceil(block.blocks / spec.sms))
    turns = max(1.0, block.blocks / (held * spec.sms))
    steps = turns * block.steps
    warps = block.warps
    idle = max(1.0, 4 / (warps * together))
    product = 2.0 * block.m * block.n * block.k * together / (peak / spec.sms * 1e-6)
    if not grouped(block, spec):
        product *= max(1.0, warps * 128 / (block.m * block.n))
    nodes = [n for n in body.nodes if not ops.is_view(n, table)]
    us = time_us(block, spec, peak)
    before, read_before = _before_product(body, nodes)
    fast = contraction.depth[-1].extent if contraction.depth else 1
    chunks = math.ceil(fast / block.k)
    flat = len(contraction.depth) > 1 and chunks * block.k > FLAT_DEPTH_RATIO * fast
    held_rows = steps * block.m * block.k / (warps * 1e3)
    vector = math.gcd(VECTOR, fast)
    copies = steps * block.read / 512 / warps / max(1, min(block.stages - 1, block.steps))
    return {
        "before": before * held_rows,
        "through": steps if before else 0.0,
        "read before": read_before * steps,
        "narrow": copies * (VECTOR / vector - 1),
        "narrow load": steps * block.read * together / 1e5 * (VECTOR / vector - 1),
        "flat": held_rows if flat else 0.0,
        "masked": held_rows if len(contraction.depth) > 1 else 0.0,
        "turns": turns,
        "steps": steps,
        "hidden": steps / max(1, min(block.stages - 1, block.steps)),
        "copies": copies,
        "load": steps * block.read * together / 1e5,
        "issue": steps * warps,
        "products": steps * product * idle,
        "sums": turns * block.m * block.n / (1024 * warps),
        "split": float(block.split > 1),
        "splits": float(block.split if block.split > 1 else 0),
        "meet": block.split * block.m * block.n / 1e4 if block.split > 1 else 0.0,
        "taps": steps * block.m * block.k * (block.reads if block.reads > 1 else 0) / warps / 1e3,
        "added": float(contraction.added and not tile.added_first),
        "added first": float(tile.added_first),
        "epilogue": float(len(nodes) - 1),
        "ranked": us if math.isfinite(us) else 0.0,
    }


def _before_product(body: Graph, nodes: Sequence[Node]) -> tuple[int, int]:
    """How many operators compute what is multiplied, and how many constants these read."""
    constants = {constant.name for constant in body.constants}
    makers = {result: node for node in body.nodes for result in node.results}
    product = next((n for n in nodes if ops.contracts(n)), None)
    reached: dict[str, Node] = {}
    left = [makers[name] for name in product.uses if name in makers] if product else []
    while left:
        node = left.pop()
        if node.name not in reached:
            reached[node.name] = node
            left += [makers[name] for name in node.uses if name in makers]
    own = [node for node in reached.values() if node in nodes]
    return len(own), len({name for node in own for name in node.uses if name in constants})


def _light(
    body: Graph, tile: PartTile, size: LaunchSize, table: TypeTable, spec: TargetSpec
) -> dict[str, float]:
    nodes = [n for n in body.nodes if not ops.is_view(n, table)]
    table, read = {**table, **part_types(body)}, _read(body)
    written = sum(table[ref.name].numel for ref in body.outputs)
    threads = size.ctas * size.warps * 32
    each = written / max(1, threads)
    turns = max(1.0, size.ctas * size.warps / (spec.sms * WARPS_OF_SM))
    flops = sum(ops.flops(node, table) for node in nodes)
    terms = {
        "reads": float(len(read)),
        "nodes": float(len(nodes)),
        "each": each * turns,
        "turns": turns,
        "lanes": flops / (spec.sms * LANES * CLOCK),
        "alone": flops / max(1, threads) / 1e2,
    }
    strange = 0
    out = table[body.outputs[0].name]
    for type in read:
        if len(type.shape) == len(out.shape) and not ops.same_layout(type, out):
            strange += type.nbytes
    terms["strange"] = strange / spec.bandwidth * 1e6
    if isinstance(tile, WindowTile):
        windows = window.found_in(body)
        if not isinstance(windows, Refused):
            side = max(1.0, math.sqrt(windows.reads))
            taps = windows.reads * (1 + (tile.together - 1) / side) / tile.together
            terms["taps"] = written * taps * 2 / (spec.sms * 48 * CLOCK)
            terms["taps alone"] = each * taps * turns
            terms["loads"] = taps * tile.together
    if isinstance(tile, RowsTile):
        row = rows.found_in(body)
        if not isinstance(row, Refused):
            blocks = math.ceil(row.col.extent / (tile.width * tile.split))
            terms["blocks"] = blocks * turns
            terms["split"] = float(tile.split > 1)
            terms["splits"] = float(tile.split if tile.split > 1 else 0)
            terms["across"] = float(size.warps > 1)
            terms["held"] = turns * blocks * tile.height * tile.width / (32 * size.warps)
    return terms
