"""Code generation: a body and a variant -> the program, and which variants a body has.

    variants(body, spec)                          pointwise:512.w2, pointwise:1024.w4, ...
    program(body, "pointwise:1024.w4").text      a Triton module

Variants are values (`ir.variant`); their texts are read here, where they come from a file. Both are
functions of their arguments alone.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from anabranch.ir import ops
from anabranch.ir.components import components
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import (
    ContractionTile,
    HorizontalTile,
    PartTile,
    ScatterTile,
    Tile,
    of_template,
    template_of,
)
from anabranch.ir.variant import PdlMode, Variant, parse_variant, without_carveout
from anabranch.kernels.dfg.lower import MOST_NODES
from anabranch.kernels.dfg.scans import SCANS
from anabranch.kernels.triton import (
    attention,
    attention_axes,
    contraction,
    gemm_chain,
    pointwise,
    recurrence,
    rows,
    scatter,
    sequence,
    window,
)
from anabranch.kernels.triton.horizontal import joint_tiles, write_horizontal
from anabranch.kernels.triton.light_limits import not_slow
from anabranch.kernels.triton.module_text import header, module
from anabranch.kernels.triton.pdl import ASKED, EARLY, dependent
from anabranch.kernels.triton.program import LaunchGrid, Program
from anabranch.kernels.triton.statements import KernelTree
from anabranch.options import PruningName


@dataclass(frozen=True, slots=True)
class Template:
    """`tiles(body, spec)`: what to try on such a machine, [] where the template does not fit; they
    are of the class that `ir.tiles` has for the template. `found_in(body)`: what it sees in the
    body, or why it does not fit, as a sentence. `write(body, tile)`: the kernel; ValueError where
    there is none. `early`: the same, ready to read constants before it waits, or to ask for so many
    lines of them a thread, where more than the order of its lines has to change for that.
    `limited`: as `tiles`, pruned by the performance upper limit, where the template has one.
    `grid(body, tile)`: the grid of the kernel that `write` gives, where that follows from sizes."""

    tiles: Callable[[Graph, TargetSpec], Sequence[PartTile]]
    found_in: Callable[[Graph], object]
    write: Callable[[Graph, Any], KernelTree]
    early: Callable[[Graph, Any, int], KernelTree] | None = None
    limited: Callable[[Graph, TargetSpec], Sequence[PartTile]] | None = None
    grid: Callable[[Graph, Any], LaunchGrid] | None = None


TEMPLATES: dict[str, Template] = {
    "pointwise": Template(
        pointwise.tiles,
        pointwise.found_in,
        pointwise.write,
        limited=not_slow(pointwise.tiles),
        grid=pointwise.grid,
    ),
    "scatter": Template(scatter.tiles, scatter.found_in, scatter.write, grid=scatter.grid),
    "window": Template(
        window.tiles,
        window.found_in,
        window.write,
        limited=not_slow(window.tiles),
        grid=window.grid,
    ),
    "rows": Template(
        rows.tiles,
        rows.found_in,
        rows.write,
        rows.early,
        limited=not_slow(rows.tiles),
        grid=rows.grid,
    ),
    "contraction": Template(
        contraction.tiles,
        contraction.found_in,
        contraction.write,
        contraction.early,
        contraction.limited,
        contraction.grid,
    ),
    "attention": Template(attention.tiles, attention.found_in, attention.write),
    "gemm_chain": Template(gemm_chain.tiles, gemm_chain.found_in, gemm_chain.write),
    "recurrence": Template(recurrence.tiles, recurrence.found_in, recurrence.write),
    "sequence": Template(sequence.tiles, sequence.found_in, sequence.write, sequence.early),
}


LEARNED: dict[tuple[Graph, Variant], Program] = {}
"""What earlier processes wrote: a memo of a function of its arguments alone."""


def program(body: Graph, variant: Variant | str) -> Program:
    """The kernel of this variant. ValueError where the body has no such kernel, or for a text that
    is no variant."""
    constants = tuple(Constant(c.name, c.type, c.digest) for c in body.constants)
    bare = Graph(body.name, body.inputs, constants, body.nodes, body.outputs)
    base = _read(variant)
    if of_template(base.tile, ScatterTile):  # which alone looks at states
        bare = replace(bare, states=body.states)
    return _of_task(bare, base, tuple(node.origin for node in body.nodes))


@functools.lru_cache(maxsize=1 << 12)
def _of_task(body: Graph, base: Variant, origins: tuple[str, ...]) -> Program:
    """Asked several times for each kernel of a plan: by who recalls it, compiles it and loads it.
    `origins` stand in the text, and are left out where bodies are compared; the body is without the
    content of weights, which would be kept alive."""
    del origins
    same = canonical(body, content=False)
    written = _program(same, base)
    names = dict(zip(_values(same), _values(body), strict=True))
    return replace(
        written,
        text="\n".join([*header(body, str(base)), written.text]),
        pointers=tuple(names[name] for name in written.pointers),
    )


def unnamed(body: Graph, variant: Variant | str) -> Program:
    """As `program`, in names that equal bodies share and without its header, in any carve-out: the
    very same object for all that share a text."""
    return _program(canonical(body, content=False), _read(variant))


@dataclass(frozen=True, slots=True)
class LaunchSize:
    """How many CTAs a launch has, and of how many warps."""

    ctas: int
    warps: int


def launch_size(body: Graph, tile: PartTile) -> LaunchSize:
    """Of the kernel of this tile, which is written only where its size does not follow from the
    body's. ValueError where there is no such kernel."""
    grid = TEMPLATES[template_of(tile)].grid
    if grid is not None:
        return LaunchSize(math.prod(grid(canonical(body, content=False), tile)), tile.warps)
    written = unnamed(body, Variant(tile))
    return LaunchSize(written.ctas, written.warps)


def learn(body: Graph, variant: Variant | str, written: Program) -> None:
    """Take over what `unnamed` answered in a process with the same files of this room."""
    LEARNED.setdefault((canonical(body, content=False), _read(variant)), written)


def variants(body: Graph, spec: TargetSpec, pruning: PruningName = "time") -> list[Variant]:
    """What all templates that fit the body offer. `pruning`: whether tiles are ranked by the time
    that they are expected to take, or by the part of the machine's peak that they may reach."""
    return list(_variants(canonical(body, content=False), spec, pruning))


def why_none(body: Graph) -> str:
    """Why no template writes the body, in the words of those that are for such nodes."""
    operators = {node.op for node in body.nodes}
    kinds = Counter(ops.kind_of(node) for node in body.nodes)
    near = ["rows", "window"] if kinds["reduce"] else ["pointwise"]
    if body.states:
        near = ["scatter"]
    if len(body.nodes) > MOST_NODES:
        near = ["recurrence"]
    if kinds["contract"]:
        near = ["contraction" if kinds["contract"] == 1 else "gemm_chain"]
    if kinds["contract"] and any(ops.packet_name(op) in SCANS for op in operators):
        near = ["sequence"]
    if attention_axes.OPERATOR in operators:
        near = ["attention"]
    same = canonical(body, content=False)
    matches = {name: TEMPLATES[name].found_in(same) for name in near}
    no_tile = "no tile of it fits the machine"
    reasons = (why.sentence if isinstance(why, Refused) else no_tile for why in matches.values())
    return "; ".join(f"{name}: {why}" for name, why in zip(matches, reasons, strict=True))


@functools.lru_cache(maxsize=1 << 14)
def _program(body: Graph, variant: Variant) -> Program:
    """The kernel of a body whose names are positions: equal layers are written once."""
    if (body, variant) in LEARNED:
        return LEARNED[body, variant]
    tile = variant.tile
    if isinstance(tile, HorizontalTile):
        parts = _parts(body, tile, variant.pdl)
        return write_horizontal(body, [_tree(part, part_variant) for part, part_variant in parts])
    return module(_tree(body, variant))


@functools.lru_cache(maxsize=1 << 10)
def _tree(body: Graph, variant: Variant) -> KernelTree:
    """The kernel before it is text, of one template."""
    template, tile, mode = TEMPLATES[variant.template], variant.tile, variant.pdl
    if mode is None:
        return template.write(body, tile)
    early = template.early if mode in EARLY else None
    tree = early(body, tile, ASKED.get(mode, 0)) if early else _tree(body, Variant(tile))
    return dependent(tree, mode, frozenset(constant.name for constant in body.constants))


@functools.lru_cache(maxsize=1 << 14)
def _variants(body: Graph, spec: TargetSpec, pruning: PruningName) -> tuple[Variant, ...]:
    return tuple(map(Variant, _tiles(body, spec, pruning)))


def _tiles(body: Graph, spec: TargetSpec, pruning: PruningName) -> Sequence[Tile]:
    by_limit = pruning == "limit"
    offers = ((by_limit and t.limited) or t.tiles for t in TEMPLATES.values())
    tiles = tuple(tile for offer in offers for tile in offer(body, spec))
    parts = components(body) if not tiles else ()
    if len(parts) < 2:
        return tiles
    each = ([variant.tile for variant in _variants(part, spec, pruning)] for part in parts)
    return joint_tiles([[tile for tile in own if _may_share(tile)] for own in each])


def _may_share(tile: Tile) -> TypeGuard[PartTile]:
    """Whether its CTAs may be some of a launch, beside those of other parts."""
    persistent = isinstance(tile, ContractionTile) and tile.ctas > 1
    return not isinstance(tile, HorizontalTile) and not persistent


def _read(variant: Variant | str) -> Variant:
    """What the text depends on. ValueError for a text that is no variant."""
    return without_carveout(parse_variant(variant) if isinstance(variant, str) else variant)


def _parts(body: Graph, tile: HorizontalTile, mode: PdlMode | None) -> list[tuple[Graph, Variant]]:
    """The independent parts of a body, each with its variant. ValueError if their numbers
    differ."""
    parts = components(body)
    if len(parts) != len(tile.parts):
        raise ValueError(f"{Variant(tile)} has not a tile for each of {len(parts)} parts")
    return [(part, Variant(own, mode)) for part, own in zip(parts, tile.parts, strict=True)]


def _values(body: Graph) -> list[str]:
    """The names of all values, in order."""
    declared = [value.name for value in body.inputs] + [value.name for value in body.constants]
    return declared + [result for node in body.nodes for result in node.results]
