"""Writing kernels: a body and a variant -> the program, and which variants a body has.

    variants(body, sms=132)                      ["pointwise:512.w2", "pointwise:1024.w4", ...]
    program(body, "pointwise:1024.w4").text      a Triton module

A variant starts with the name of its template. Both are functions of their arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ir.graph import Graph
from anabranch.kernels.triton import pointwise, rows, window
from anabranch.kernels.triton.program import Program


@dataclass(frozen=True, slots=True)
class Template:
    """`variants(body, sms)`: what to try on a GPU of so many multiprocessors, [] where the template
    does not fit. `write(body, variant)`: the kernel; ValueError where there is none."""

    variants: Callable[[Graph, int], list[str]]
    write: Callable[[Graph, str], Program]


TEMPLATES: dict[str, Template] = {
    "pointwise": Template(pointwise.variants, pointwise.write),
    "window": Template(window.variants, window.write),
    "rows": Template(rows.variants, rows.write),
}


def program(body: Graph, variant: str) -> Program:
    """The kernel of this variant. ValueError where the body has no such kernel."""
    name = variant.partition(":")[0]
    if name not in TEMPLATES:
        raise ValueError(f"{variant} is of no template there is")
    return TEMPLATES[name].write(body, variant)


def variants(body: Graph, sms: int) -> list[str]:
    """What all templates that fit the body offer."""
    return [variant for t in TEMPLATES.values() for variant in t.variants(body, sms)]
