"""Writing kernels: a body and a variant -> the program, and which variants a body has.

    variants(body, spec)                          ["pointwise:512.w2", "pointwise:1024.w4", ...]
    program(body, "pointwise:1024.w4").text      a Triton module

A variant starts with the name of its template. Both are functions of their arguments alone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from anabranch.ir import ops
from anabranch.ir.components import components
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.kernels.dfg.lower import MOST_NODES
from anabranch.kernels.dfg.scans import RUNNING
from anabranch.kernels.triton import (
    attention,
    attention_axes,
    contraction,
    gemm_chain,
    pointwise,
    recurrence,
    rows,
    sequence,
    window,
)
from anabranch.kernels.triton.horizontal import NAME as ABREAST
from anabranch.kernels.triton.horizontal import abreast, parts_of
from anabranch.kernels.triton.horizontal import variants as side_by_side
from anabranch.kernels.triton.l1_carveout import apart
from anabranch.kernels.triton.module_text import header
from anabranch.kernels.triton.pdl import ASKED, EARLY, dependent, split
from anabranch.kernels.triton.program import Program
from anabranch.options import Pruning


@dataclass(frozen=True, slots=True)
class Template:
    """`variants(body, spec)`: what to try on such a machine, [] where the template does not fit.
    `found_in(body)`: what it sees in the body, or why it does not fit.
    `write(body, variant)`: the kernel; ValueError where there is none. `early`: the same, ready to
    read constants before it waits, or to ask for so many lines of them a thread, where more than
    the order of its lines has to change for that. `limited`: as `variants`, pruned by the
    performance upper limit, where the template has one."""

    variants: Callable[[Graph, TargetSpec], list[str]]
    found_in: Callable[[Graph], object]
    write: Callable[[Graph, str], Program]
    early: Callable[[Graph, str, int], Program] | None = None
    limited: Callable[[Graph, TargetSpec], list[str]] | None = None


TEMPLATES: dict[str, Template] = {
    "pointwise": Template(pointwise.variants, pointwise.found_in, pointwise.write),
    "window": Template(window.variants, window.found_in, window.write),
    "rows": Template(rows.variants, rows.found_in, rows.write),
    "contraction": Template(
        contraction.variants,
        contraction.found_in,
        contraction.write,
        contraction.early,
        contraction.limited,
    ),
    "attention": Template(attention.variants, attention.found_in, attention.write),
    "pair": Template(gemm_chain.variants, gemm_chain.found_in, gemm_chain.write),
    "recurrence": Template(recurrence.variants, recurrence.found_in, recurrence.write),
    "sequence": Template(sequence.variants, sequence.found_in, sequence.write, sequence.early),
}


LEARNED: dict[tuple[Graph, str], Program] = {}
"""What earlier processes wrote: a memo of a function of its arguments alone."""


def program(body: Graph, variant: str) -> Program:
    """The kernel of this variant. ValueError where the body has no such kernel."""
    constants = tuple(Constant(c.name, c.type, c.digest) for c in body.constants)
    bare = Graph(body.name, body.inputs, constants, body.nodes, body.outputs)
    return _of_task(bare, apart(variant)[0], tuple(node.origin for node in body.nodes))


@functools.lru_cache(maxsize=1 << 10)
def _of_task(body: Graph, base: str, origins: tuple[str, ...]) -> Program:
    """Asked several times for each kernel of a plan: by who recalls it, compiles it and loads it.
    `origins` stand in the text, and are left out where bodies are compared; the body is without the
    content of weights, which would be kept alive."""
    del origins
    same = canonical(body, content=False)
    written = _program(same, base)
    names = dict(zip(_values(same), _values(body), strict=True))
    return replace(
        written,
        text="\n".join([*header(body, base), written.text]),
        pointers=tuple(names[name] for name in written.pointers),
    )


def unnamed(body: Graph, variant: str) -> Program:
    """As `program`, in names that equal bodies share and without its header, in any carve-out: the
    very same object for all that share a text."""
    return _program(canonical(body, content=False), apart(variant)[0])


def learn(body: Graph, variant: str, written: Program) -> None:
    """Take over what `unnamed` answered in a process with the same files of this room."""
    LEARNED.setdefault((canonical(body, content=False), apart(variant)[0]), written)


def variants(body: Graph, spec: TargetSpec, pruning: Pruning = "time") -> list[str]:
    """What all templates that fit the body offer. `pruning`: whether tiles are ranked by the time
    that they are expected to take, or by the part of the machine's peak that they may reach."""
    return list(_variants(canonical(body, content=False), spec, pruning))


def why_none(body: Graph) -> str:
    """Why no template writes the body, in the words of those that are for such nodes."""
    operators = {node.op for node in body.nodes}
    kinds = Counter(ops.info(node.op).kind for node in body.nodes)
    near = ["rows", "window"] if kinds["reduce"] else ["pointwise"]
    if len(body.nodes) > MOST_NODES:
        near = ["recurrence"]
    if kinds["contract"]:
        near = ["contraction" if kinds["contract"] == 1 else "pair"]
    if kinds["contract"] and any(ops.packet_name(op) in RUNNING for op in operators):
        near = ["sequence"]
    if attention_axes.OPERATOR in operators:
        near = ["attention"]
    same = canonical(body, content=False)
    found = {name: TEMPLATES[name].found_in(same) for name in near}
    no_tile = "no tile of it fits the machine"
    reasons = (why.sentence if isinstance(why, Refused) else no_tile for why in found.values())
    return "; ".join(f"{name}: {why}" for name, why in zip(found, reasons, strict=True))


def is_ours(variant: str) -> bool:
    """Whether a template here writes kernels of this name."""
    name = variant.partition(":")[0]
    return name in TEMPLATES or name == ABREAST


@functools.lru_cache(maxsize=1 << 14)
def _program(body: Graph, variant: str) -> Program:
    """The kernel of a body whose names are positions: equal layers are written once."""
    if (body, variant) in LEARNED:
        return LEARNED[body, variant]
    name = variant.partition(":")[0]
    base, mode = split(variant)
    if name == ABREAST:
        return abreast(body, [_program(part, one) for part, one in _parts(body, base, mode)])
    if name not in TEMPLATES:
        raise ValueError(f"{variant} is of no template there is")
    if not mode:
        return TEMPLATES[name].write(body, base)
    early = TEMPLATES[name].early if mode in EARLY else None
    written = early(body, base, ASKED.get(mode, 0)) if early else _program(body, base)
    return dependent(written, mode, frozenset(constant.name for constant in body.constants))


@functools.lru_cache(maxsize=1 << 14)
def _variants(body: Graph, spec: TargetSpec, pruning: Pruning) -> tuple[str, ...]:
    by_limit = pruning == "limit"
    offers = ((by_limit and t.limited) or t.variants for t in TEMPLATES.values())
    found = tuple(variant for offer in offers for variant in offer(body, spec))
    parts = components(body) if not found else ()
    if len(parts) < 2:
        return found
    return tuple(side_by_side([_variants(part, spec, pruning) for part in parts]))


def _parts(body: Graph, variant: str, mode: str) -> list[tuple[Graph, str]]:
    """The independent parts of a body, each with its variant. ValueError if their numbers differ,
    or a part has parts."""
    parts, each = components(body), parts_of(variant)
    if len(parts) != len(each):
        raise ValueError(f"{variant} has not a variant for each of {len(parts)} parts")
    return [(part, f"{v}.p{mode}" if mode else v) for part, v in zip(parts, each, strict=True)]


def _values(body: Graph) -> list[str]:
    """The names of all values, in order."""
    declared = [value.name for value in body.inputs] + [value.name for value in body.constants]
    return declared + [result for node in body.nodes for result in node.results]
