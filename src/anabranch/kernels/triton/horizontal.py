"""Kernels abreast: independent parts of a body as one launch, each with CTAs of its own.

    abreast:contraction:64x32x64.k1.w4.s3+window:16x32u2.w4     98 CTAs of a convolution, 49 of a
                                                                pooling that reads the same input
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

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from anabranch.ir.graph import Graph, types
from anabranch.ir.tiles import HORIZONTAL, HorizontalTile, PartTile
from anabranch.kernels.triton.module_text import entry_name, in_a_row, wrapped
from anabranch.kernels.triton.names import names_of
from anabranch.kernels.triton.program import Program

WARPS = (4, 8)
"""Of all parts."""
ALIGNED = 16
"""Bytes that every part's scratch begins at a multiple of."""
INDENT = "    "


def joint_tiles(offers: Sequence[Sequence[PartTile]]) -> list[HorizontalTile]:
    """What to try, of what each part has on offer: with each number of warps the best ranked of
    all parts, and those that come next."""
    if len(offers) < 2 or not all(offers):
        return []
    found = [
        HorizontalTile(tuple(_with_warps(offer, warps, rank) for offer in offers))
        for rank in (0, 1)
        for warps in WARPS
    ]
    return list(dict.fromkeys(found))


def abreast(body: Graph, programs: Sequence[Program]) -> Program:
    """The parts' kernels as one. ValueError where they cannot be."""
    if len(programs) < 2 or len({program.warps for program in programs}) > 1:
        raise ValueError("kernels abreast are several, of equally many warps")
    names, table = names_of(body), types(body)
    values = tuple(dict.fromkeys(name for program in programs for name in program.pointers))
    scratch, counters = _sums([-(-p.scratch // ALIGNED) * ALIGNED for p in programs], programs)
    functions: dict[str, str] = {}
    stages = max(program.stages for program in programs)
    for at, program in enumerate(programs):
        functions |= dict(_functions(program, f"part_{at}", stages))
    given = [f"{names[name]}_ptr" for name in values]
    given += ["scratch_ptr"] * bool(scratch[-1]) + ["counters_ptr"] * bool(counters[-1])
    entry = entry_name(HORIZONTAL, body)
    lines = ["@triton.jit", f"def {entry}({', '.join(given)}):"]
    lines += [f"{INDENT}# {names[name]}: {table[name].text}" for name in values]
    lines.append(f"{INDENT}cta = tl.program_id(0)")
    first = 0
    for at, program in enumerate(programs):
        pointers = [f"{names[name]}_ptr" for name in program.pointers]
        pointers += [f"scratch_ptr + {scratch[at]}"] * bool(program.scratch)
        pointers += [f"counters_ptr + {counters[at]}"] * bool(program.counters)
        last = at == len(programs) - 1
        test = "else" if last else f"{'elif' if at else 'if'} cta < {first + program.ctas}"
        place = f"cta - {first}" if at else "cta"
        call = f"{INDENT}{INDENT}part_{at}({', '.join([*pointers, place])})"
        lines += [f"{INDENT}{test}:", *wrapped(call)]
        first += program.ctas
    text = "\n\n\n".join(
        ["import triton\nimport triton.language as tl", *functions.values(), "\n".join(lines)]
    )
    return Program(
        text + "\n",
        entry,
        values,
        tuple(table[name].dtype for name in values),
        (first, 1, 1),
        programs[0].warps,
        stages,
        scratch[-1],
        counters[-1],
        all(program.pdl for program in programs),
    )


def _with_warps(offer: Sequence[PartTile], warps: int, rank: int) -> PartTile:
    """The offer of this rank among those of so many warps; if there are fewer, of all, changed."""
    same = [tile for tile in offer if tile.warps == warps]
    chosen = same[rank] if rank < len(same) else offer[min(rank, len(offer) - 1)]
    return replace(chosen, warps=warps)


def _sums(scratch: Sequence[int], programs: Sequence[Program]) -> tuple[list[int], list[int]]:
    """Where each part's scratch and counters begin, and where all end."""
    starts, counters = [0], [0]
    for size, program in zip(scratch, programs, strict=True):
        starts.append(starts[-1] + size)
        counters.append(counters[-1] + program.counters)
    return starts, counters


def _functions(program: Program, name: str, stages: int) -> Iterator[tuple[str, str]]:
    """A program's functions by name; its entry as one of them, with the CTA's number added.
    `stages`: of loops that say nothing."""
    lines = program.text.splitlines()
    for node in ast.parse(program.text).body:
        if isinstance(node, ast.FunctionDef):
            first = min(decorator.lineno for decorator in node.decorator_list)
            own = lines[first - 1 : node.end_lineno]
            if node.name == program.entry:
                if program.stages != stages:
                    own = [_staged(line, program.stages) for line in own]
                yield name, "\n".join(_numbered(own, program, name))
            else:
                yield node.name, "\n".join(own)


def _staged(line: str, stages: int) -> str:
    """The head of a loop that says how many steps ahead it loads; any other line as it is."""
    return re.sub(
        r"^(\s*for \w+ in) range\((.*)\):$", rf"\1 tl.range(\2, num_stages={stages}):", line
    )


def _numbered(lines: Sequence[str], program: Program, name: str) -> list[str]:
    """The entry as a function of its pointers and the number of its CTA."""
    text = "\n".join(lines).replace(f"def {program.entry}(", f"def {name}(")
    text = in_a_row(text, program.grid, "cta")
    head, _, rest = text.partition("):\n")
    return _without_returns(f"{head}, cta):\n{rest}".splitlines())


def _without_returns(lines: Sequence[str]) -> list[str]:
    """What follows an early return stands in a condition: Triton writes functions into their
    callers, and a branch there has one way out."""
    for at, line in enumerate(lines):
        if line.strip() == "return" and lines[at - 1].startswith(f"{INDENT}if "):
            test = lines[at - 1].replace("!=", "==")
            rest = _without_returns(lines[at + 1 :])
            return [*lines[: at - 1], test, *(f"{INDENT}{later}" for later in rest)]
    return list(lines)
