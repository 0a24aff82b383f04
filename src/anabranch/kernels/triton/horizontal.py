"""Horizontal fusion: independent parts of a body as one launch, each with CTAs of its own.

    horizontal:contraction:64x32x64.k1.w4.s3+window:16x32u2.w4     98 CTAs of a convolution, 49 of
                                                                   a pooling of the same input
    cta = tl.program_id(0)
    if cta < 98:
        part_0(x_ptr, weight_ptr, convolution_ptr, cta)
    else:
        part_1(x_ptr, max_pool2d_ptr, cta - 98)

A launch costs about a microsecond, and a fork to another stream with its join two or three: layers
of a few microseconds that do not depend on each other run together for the price of the longest,
as long as the GPU has room for all CTAs. Every part is the kernel it would be alone, with numbers
of its own in place of the grid's, and loads as many steps ahead; only warps are the same for all,
and registers and shared memory those of the part that needs most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from anabranch.ir.entry_name import entry_name
from anabranch.ir.graph import Graph, types
from anabranch.ir.tiles import HorizontalTile, PartTile
from anabranch.kernels.triton.module_text import called, function_text, module_text
from anabranch.kernels.triton.names import names_of
from anabranch.kernels.triton.program import Program
from anabranch.kernels.triton.statements import (
    INDENT,
    EndUnless,
    For,
    If,
    KernelTree,
    Spelled,
    Statement,
    in_a_row,
    printed,
    wrapped,
)

WARPS = (4, 8)
"""Of all parts."""
ALIGNED = 16
"""Bytes that every part's scratch begins at a multiple of."""


def joint_tiles(offers: Sequence[Sequence[PartTile]]) -> list[HorizontalTile]:
    """What to try, of what each part has on offer: with each number of warps the best ranked of
    all parts, and those that come next."""
    if len(offers) < 2 or not all(offers):
        return []
    tiles = [
        HorizontalTile(tuple(_with_warps(offer, warps, rank) for offer in offers))
        for rank in (0, 1)
        for warps in WARPS
    ]
    return list(dict.fromkeys(tiles))


def write_horizontal(body: Graph, trees: Sequence[KernelTree]) -> Program:
    """The parts' kernels as one. ValueError where they cannot be."""
    if len(trees) < 2 or len({tree.warps for tree in trees}) > 1:
        raise ValueError("a horizontal fusion has several parts, of equally many warps")
    if any(tree.described for tree in trees):
        raise ValueError("persistent CTAs share a launch with no other part")
    names, table = names_of(body), types(body)
    values = tuple(dict.fromkeys(name for tree in trees for name in tree.pointers))
    scratch, counters = _sums([-(-tree.scratch // ALIGNED) * ALIGNED for tree in trees], trees)
    functions: dict[str, None] = {}
    stages = max(tree.stages for tree in trees)
    for at, tree in enumerate(trees):
        functions |= dict.fromkeys([*called(tree), _part(tree, f"part_{at}", stages)])
    parameters = [f"{names[name]}_ptr" for name in values]
    parameters += ["scratch_ptr"] * bool(scratch[-1]) + ["counters_ptr"] * bool(counters[-1])
    entry = entry_name("horizontal", body)
    lines = ["@triton.jit", f"def {entry}({', '.join(parameters)}):"]
    lines += [f"{INDENT}# {names[name]}: {table[name].text}" for name in values]
    lines.append(f"{INDENT}cta = tl.program_id(0)")
    first = 0
    for at, tree in enumerate(trees):
        pointers = [f"{names[name]}_ptr" for name in tree.pointers]
        pointers += [f"scratch_ptr + {scratch[at]}"] * bool(tree.scratch)
        pointers += [f"counters_ptr + {counters[at]}"] * bool(tree.counters)
        last = at == len(trees) - 1
        test = "else" if last else f"{'elif' if at else 'if'} cta < {first + tree.ctas}"
        place = f"cta - {first}" if at else "cta"
        call = f"{INDENT}{INDENT}part_{at}({', '.join([*pointers, place])})"
        lines += [f"{INDENT}{test}:", *wrapped(call)]
        first += tree.ctas
    return Program(
        text=module_text(
            frozenset().union(*(tree.calls for tree in trees)), [*functions, "\n".join(lines)]
        ),
        entry=entry,
        pointers=values,
        dtypes=tuple(table[name].dtype for name in values),
        grid=(first, 1, 1),
        warps=trees[0].warps,
        stages=stages,
        scratch=scratch[-1],
        counters=counters[-1],
        pdl=all(tree.pdl for tree in trees),
    )


def _with_warps(offer: Sequence[PartTile], warps: int, rank: int) -> PartTile:
    """The offer of this rank among those of so many warps; if there are fewer, of all, changed."""
    same = [tile for tile in offer if tile.warps == warps]
    chosen = same[rank] if rank < len(same) else offer[min(rank, len(offer) - 1)]
    return replace(chosen, warps=warps)


def _sums(scratch: Sequence[int], trees: Sequence[KernelTree]) -> tuple[list[int], list[int]]:
    """Where each part's scratch and counters begin, and where all end."""
    starts, counters = [0], [0]
    for size, tree in zip(scratch, trees, strict=True):
        starts.append(starts[-1] + size)
        counters.append(counters[-1] + tree.counters)
    return starts, counters


def _part(tree: KernelTree, name: str, stages: int) -> str:
    """The kernel as a function of its pointers and the number of its CTA. `stages`: of loops that
    say nothing."""
    statements = tree.statements
    if tree.stages != stages:
        statements = _staged(statements, tree.stages)
    lines = _one_way_out(statements, in_a_row(tree.grid, "cta"))
    return function_text(name, tree, lines, ("cta",))


def _staged(statements: tuple[Statement, ...], stages: int) -> tuple[Statement, ...]:
    """Loops say how many steps ahead they load."""

    def staged(statement: Statement) -> Statement:
        if isinstance(statement, For) and statement.over == "range":
            return replace(statement, body=_staged(statement.body, stages), stages=stages)
        return (
            replace(statement, body=_staged(statement.body, stages))
            if isinstance(statement, For | If)
            else statement
        )

    return tuple(map(staged, statements))


def _one_way_out(statements: Sequence[Statement], spelled: Spelled) -> Iterator[str]:
    """Lines in which what follows an early end stands in a condition: Triton writes functions into
    their callers, and a branch there has one way out."""
    for at, statement in enumerate(statements):
        if isinstance(statement, EndUnless):
            yield from printed(statements[:at], spelled)
            yield f"if {statement.name} == {statement.value}:"
            yield from (INDENT + line for line in _one_way_out(statements[at + 1 :], spelled))
            return
    yield from printed(statements, spelled)
