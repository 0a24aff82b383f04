"""Checks that a model makes of values: how a graph holds them, and how a call makes them.

    torch.linalg.inv(x)              linalg     %inv.1, what inv_ex says of how it went
    torch._assert_async(c, "why")    assert     %c; F.one_hot has two: no class below 0 or too large
    torch._check(x.sum().item() > 0) true       %gt, of tensors in the place of Python's numbers

A check has no result, and a graph is functional: what is checked becomes an output of the graph
that no caller gets. A call makes the checks once all kernels have run, before anything is written
to inputs, with the operators of eager: it raises what the model raises. On a GPU it waits for the
answer where eager does, and asserts on the device where eager does that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from anabranch.frontend.source import origin
from anabranch.ir import custom_ops
from anabranch.ir.graph import Arg, Ref
from anabranch.ir.ops import packet_name
from anabranch.ir.plan import ValueCheck

LINALG, ASSERT, SCALAR = "aten._linalg_check_errors", "aten._assert_async", "aten._assert_scalar"
OF_PYTHON = packet_name(custom_ops.CHECK)
CHECKS = frozenset((LINALG, ASSERT, SCALAR, OF_PYTHON))
"""Operators that raise for some values, and give nothing."""
ITEMS = frozenset(("aten._local_scalar_dense.default", "aten.item.default"))
COMPUTED: dict[Any, tuple[str, str]] = {
    operator.gt: ("gt.Scalar", "lt.Scalar"),
    operator.lt: ("lt.Scalar", "gt.Scalar"),
    operator.ge: ("ge.Scalar", "le.Scalar"),
    operator.le: ("le.Scalar", "ge.Scalar"),
    operator.eq: ("eq.Scalar", "eq.Scalar"),
    operator.ne: ("ne.Scalar", "ne.Scalar"),
    operator.add: ("add.Scalar", "add.Scalar"),
    operator.mul: ("mul.Scalar", "mul.Scalar"),
    operator.sub: ("sub.Scalar", "rsub.Scalar"),
    operator.mod: ("remainder.Scalar", "remainder.Scalar_Tensor"),
    operator.and_: ("logical_and", ""),
    operator.or_: ("logical_or", ""),
}
"""By what Python does with two numbers, what ATen calls that with a number behind or before."""
FAILS = "a check of the model fails"
WRITTEN = (
    "a plan checks once it has run: what the model writes to its buffers (and a training step to "
    "its weights) has been written, and may be without meaning; go back by reset_state() or a "
    "checkpoint"
)

# Torch 2.11 leaves this one out of a graph, for nothing reads what it gives.
torch.fx.has_side_effect(torch.ops.aten._linalg_check_errors.default)
torch.fx.has_side_effect(custom_ops.OPS.check.default)

Step = Callable[..., Ref]
"""step(node, op, source, *rest, **kwargs): one more node of the graph under construction."""


def called(node: fx.Node) -> tuple[str, tuple[Any, ...]] | None:
    """The check that an FX node is, and what it is called with; None if it is none. One that must
    run between two others is with_effects(token, check, ...)."""
    ordered = is_ordered(node)
    name = packet_name(str(node.args[1] if ordered else node.target))
    return (name, node.args[2:] if ordered else node.args) if name in CHECKS else None


def is_ordered(node: fx.Node) -> bool:
    """Whether the node is a check, or another operator without a result, in the order of others."""
    return getattr(node.target, "__name__", "") == "with_effects"


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """F.one_hot by operators, with the checks that eager makes, in rows as eager's. Torch 2.13 has
    the checks, and lets the result lie as x; before, it lost them on their way into a graph."""
    if num_classes == -1:
        num_classes = x.max().item() + 1  # type: ignore[assignment] # an integer
    torch._assert_async((x >= 0).all(), "one_hot: Class values must be non-negative.")
    few = "one_hot: Class values must be smaller than num_classes."
    torch._assert_async((x < num_classes).all(), few)
    classes = torch.arange(num_classes, dtype=x.dtype, device=x.device)
    is_class = x.unsqueeze(-1) == classes
    return is_class.to(torch.int64, memory_format=torch.contiguous_format)


@dataclass(slots=True)
class CheckedValues:
    """The checks of a graph under construction. `values`: what FX nodes became; `step` adds to the
    graph; `numbers`: what stands for Python's numbers."""

    values: Mapping[fx.Node, Arg]
    step: Step
    checks: list[ValueCheck] = field(default_factory=list)
    numbers: dict[fx.Node, Arg] = field(default_factory=dict)

    def add(self, node: fx.Node, name: str, args: Sequence[Any]) -> None:
        """One more check."""
        subject, text = args[0], args[1] if len(args) > 1 else ""
        if name == SCALAR:
            value = self._number(subject)
            if isinstance(value, (bool, int, float)):
                if not value:  # the graph is made for this number of Python's
                    raise RuntimeError(text or FAILS)
                return
            self._keep(node, subject, "true", value)
        else:
            value = self.values.get(subject) if isinstance(subject, fx.Node) else None
            kinds = {LINALG: "linalg", OF_PYTHON: "true"}
            self._keep(node, subject, kinds.get(name, "assert"), value, text)

    def _keep(self, node: fx.Node, subject: Any, kind: Any, value: Arg, text: str = "") -> None:
        ref = value if isinstance(value, Ref) else None
        line = origin(node) or (origin(subject) if isinstance(subject, fx.Node) else "")
        check = ValueCheck(kind, ref, text, line)
        if ref is None or check not in self.checks:
            self.checks.append(check)

    def _number(self, value: Any) -> Arg:
        """What stands for a number of Python's in the graph: a scalar of float64, int64 or bool, or
        the number itself; None where that is not known."""
        if not isinstance(value, fx.Node):
            return value if isinstance(value, (bool, int, float)) else None
        if value not in self.numbers:
            self.numbers[value] = self._computed(value)
        return self.numbers[value]

    def _computed(self, node: fx.Node) -> Arg:
        if str(node.target) in ITEMS:
            return self._item(node)
        operands = [self._number(arg) for arg in node.args]
        if callable(node.target) and all(isinstance(arg, bool | int | float) for arg in operands):
            number: Arg = node.target(*operands) if operands else None
            return number
        if node.target is torch.sym_not and isinstance(operands[0], Ref):
            return self.step(node, "aten.logical_not.default", operands[0])
        if node.target is torch.sym_ite and operands[1:] == [1, 0] and isinstance(operands[0], Ref):
            return self.step(node, "aten._to_copy.default", operands[0], dtype=torch.int64)
        if node.target not in COMPUTED or any(arg is None for arg in operands):
            return None
        first, other = operands
        behind, before = COMPUTED[node.target]
        packet = behind.partition(".")[0]
        if isinstance(first, Ref) and isinstance(other, Ref):
            kind = "default" if packet.startswith("logical") else "Tensor"
            return self.step(node, f"aten.{packet}.{kind}", first, other)
        if not before:
            return None
        if isinstance(first, Ref):
            return self.step(node, f"aten.{behind}", first, other)
        if before.endswith("Scalar_Tensor"):
            return self.step(node, f"aten.{before}", first, other)
        return self.step(node, f"aten.{before}", other, first)

    def _item(self, node: fx.Node) -> Arg:
        source = self.values.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
        fake = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else None
        if not isinstance(source, Ref) or not isinstance(fake, Tensor) or fake.is_complex():
            return None
        if fake.dim():
            source = self.step(node, "aten.reshape.default", source, ())
        wide = torch.float64 if fake.is_floating_point() else torch.int64
        if fake.dtype not in (wide, torch.bool):
            source = self.step(node, "aten._to_copy.default", source, dtype=wide)
        return source


def checker(
    checks: Sequence[ValueCheck], places: Mapping[str, int], stateful: bool = False
) -> Callable[[Sequence[Tensor]], None] | None:
    """A function that makes the checks of a call, given its values in these places; None where
    there is nothing to check. `stateful`: states have been written by then."""
    told = [(check, places[check.ref.name]) for check in checks if check.ref is not None]
    if not told:
        return None

    def check_all(values: Sequence[Tensor]) -> None:
        for check, place in told:
            try:
                _make(check, values[place])
            except RuntimeError as failed:
                if check.origin:
                    failed.add_note(f"in the model at {check.origin}")
                if stateful:
                    failed.add_note(WRITTEN)
                raise

    return check_all


def _make(check: ValueCheck, value: Tensor) -> None:
    aten: Any = torch.ops.aten
    if check.kind == "linalg":
        aten._linalg_check_errors(value, check.text, is_matrix=value.dim() == 0)
    elif check.kind == "assert":
        aten._assert_async.msg(value, check.text or FAILS)
    elif not value.item():
        raise RuntimeError(check.text or (f"{FAILS} ({check.origin})" if check.origin else FAILS))
