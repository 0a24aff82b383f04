"""The writer: a task's body and a variant -> Program.

A variant begins with the name of its template. The same body and variant give the same text in
every process, so that a saved text can be compared with what is written anew.
"""

from __future__ import annotations

from anabranch.errors import TargetError
from anabranch.ir.graph import Graph
from anabranch.kernels.triton.program import Program


def program(body: Graph, variant: str) -> Program:
    """The program that computes the body in this variant. TargetError if no template has it."""
    raise TargetError(
        f"no template writes {body.name} in variant {variant!r}",
        "this version does not know the template",
        "compile the model again with this version",
    )
