"""Proof by numbers: what a body computes on inputs of each set, and whether a kernel's results are
that.

    body, seed --> inputs (`ir.inputs`), the body op by op, in high precision, the slack of each
                   element --> `differs(outs)`: None, or in words what is wrong

    finite    all elements, each by what rounding explains there, and all together by their norm
    special   NaN, infinities and signs: the class of each element
    real      as finite, on what the example gives at this place
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.domains import ATTENTION
from anabranch.ir.error_bounds import slack
from anabranch.ir.graph import Graph, Input, types
from anabranch.ir.inputs import Numbers, legal, random_inputs
from anabranch.ir.protocols import Target
from anabranch.ir.reference import eager_and_reference, wide_of
from anabranch.ir.refused import Refused
from anabranch.ir.tolerances import Screen, comparable, compare, mistaken, screen

Set = Literal["finite", "special", "real"]
"""Which inputs: `finite` ones may be less daring where those lead to infinities and worse."""
RUNGS: tuple[Numbers, ...] = ("finite", "plain", "positive")
MOSTLY = 0.9
"""At least this part of the results is finite, or tamer numbers are asked first."""
REFUSED = (RuntimeError, IndexError, ValueError, ZeroDivisionError)
"""What operators raise that refuse what they are given."""


CONVERTS = frozenset({"aten._to_copy", "aten.copy", "aten.bucketize", "aten.searchsorted"})
"""Operators that make integers of floats by their values."""


SIGNED = frozenset(
    f"aten.{name}"
    for name in (
        *("neg", "abs", "add", "sub", "mul", "div", "reciprocal", "sqrt", "where", "masked_fill"),
        *("round", "floor", "ceil", "trunc", "tanh", "sin", "tan", "erf", "copysign", "_to_copy"),
    )
)
"""Operators that say which sign a zero has."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The right results of a body on `inputs`, `own` in its own precision, `truth` in a higher one;
    empty where nothing can be said. `slack`: by element. `signs`: zeros have theirs; `spread`: what
    is not finite is only to spread no further. `judged`: whether anything is said."""

    kind: Set
    inputs: tuple[Tensor, ...]
    own: tuple[Tensor, ...] = ()
    truth: tuple[Tensor, ...] = ()
    slack: tuple[Tensor | None, ...] = ()
    tf32: bool = False
    signs: bool = False
    spread: bool = False

    @property
    def judged(self) -> bool:
        """Whether results can be compared with this answer at all."""
        return bool(self.own)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that the answer holds, wherever they lie."""
        held = (*self.inputs, *self.own, *self.truth, *self.slack)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def screen(self) -> Screen | None:
        """What lets most right results pass; None where there is no quick look."""
        return screen(self.own, self.truth, self.slack, self.tf32, self.signs)

    def differs(self, outs: Sequence[Tensor]) -> Refused | None:
        """How results differ from what they are to be, if they do."""
        if not self.judged:
            return None
        for i, (out, own, truth, off) in enumerate(
            zip(outs, self.own, self.truth, self.slack, strict=True)
        ):
            said = mistaken(out, own, truth, off, self.tf32, self.signs, self.spread)
            if said:
                return Refused(f"error: of {self.kind} numbers result {i}: {said}")
        if self.kind == "special":
            return None
        for error, allowed in compare(outs, self.own, self.truth, self.tf32):
            if not error <= allowed:
                said = f"error {error:.2e} where {allowed:.2e} is allowed"
                return Refused(f"{said}, of {self.kind} numbers")
        return None


def answer(
    body: Graph,
    kind: Set,
    seed: int,
    target: Target,
    fill: bool = False,
    bare: bool = False,
) -> tuple[Graph, Answer]:
    """The body with its constants, and what it is to compute on random inputs. `fill`: constants
    are drawn, too; `bare`: without the slack of each element. Of special numbers nothing is said
    of bodies that make integers of their floats."""
    rungs: tuple[Numbers, ...] = RUNGS if kind == "finite" else ("special",)
    best: tuple[Graph, Answer] | None = None
    for numbers in rungs:
        filled, inputs = _drawn(body, seed, target, numbers, fill)
        trial = Answer(kind, tuple(inputs))
        if legal(filled, inputs):
            trial = answered(filled, kind, inputs, target, bare)
        if trial.judged and (kind == "special" or _mostly_finite(trial)):
            return filled, trial
        if best is None or trial.judged or not best[1].judged:
            best = filled, trial
    assert best is not None
    return best


def answered(
    body: Graph, kind: Set, inputs: Sequence[Tensor], target: Target, bare: bool = False
) -> Answer:
    """What the body is to compute on these inputs. `bare`: without the slack of each element."""
    nothing = Answer(kind, tuple(inputs))
    if any(ops.draws(node) for node in body.nodes):
        return nothing  # anew each time
    if kind == "special" and _makes_integers(body):
        return nothing
    tf32 = target.spec.tf32
    try:
        own, truth = eager_and_reference(body, inputs, target)
        off: tuple[Tensor | None, ...] = (None,) * len(own)
        if not bare:
            with torch.no_grad(), target.full_precision():
                off = slack(body, inputs, target.device, wide_of(body, inputs), tf32)
    except REFUSED:
        return nothing
    if kind == "special":
        # What is finite is compared elsewhere: here a few wild numbers stretch every scale.
        off = tuple(None for _ in off)
    signs = not bare and _plain(body)
    spread = kind == "special" and any(ATTENTION in node.op for node in body.nodes)
    return Answer(kind, tuple(inputs), own, truth, off, tf32, signs, spread)


def _drawn(
    body: Graph, seed: int, target: Target, numbers: Numbers, fill: bool
) -> tuple[Graph, list[Tensor]]:
    if not fill:
        return body, random_inputs(body, seed, target.device, numbers)
    count = len(body.constants)
    asked = (*(Input(c.name, c.type) for c in body.constants), *body.inputs)
    whole = replace(body, inputs=asked, constants=())
    drawn = random_inputs(whole, seed, target.device, numbers)
    constants = tuple(
        replace(constant, value=value)
        for constant, value in zip(body.constants, drawn[:count], strict=True)
    )
    return replace(body, constants=constants), drawn[count:]


def with_drawn_constants(body: Graph, target: Target) -> Graph:
    """The body with plain numbers as its constants, for who runs it where nobody knows them."""
    return _drawn(body, 0, target, "plain", fill=True)[0]


def _mostly_finite(answer: Answer) -> bool:
    return all(
        not tensor.is_floating_point()
        or not tensor.numel()
        or float(comparable(tensor).isfinite().float().mean()) >= MOSTLY
        for tensor in (*answer.own, *answer.truth)
    )


def _makes_integers(body: Graph) -> bool:
    """Whether floats become integers, which of NaN and infinities are anything."""
    table = types(body)
    return any(
        not result_type.dtype.is_floating_point
        and result_type.dtype != torch.bool
        and ops.packet_name(node.op) in CONVERTS
        and any(table[name].dtype.is_floating_point for name in node.uses)
        for node in body.nodes
        for result_type in node.types
    )


def _plain(body: Graph) -> bool:
    """Whether zeros have signs that every way of computing agrees on: nothing is summed up, and of
    zeros of both signs none is taken for the larger."""
    return all(
        node.op != "aten.div.Tensor_mode"
        and (ops.packet_name(node.op) in SIGNED or ops.kind_of(node) in ("move", "view"))
        for node in body.nodes
    )
