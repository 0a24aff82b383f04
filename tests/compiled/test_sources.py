"""Weights that a plan still has, also where it has them in another shape or order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from anabranch.compiled.sources import sources
from anabranch.ir.graph import Arg, Constant, Derivation, Ref
from anabranch.ir.ops import make_node
from anabranch.ir.types import type_of

W = torch.arange(24.0).reshape(2, 3, 4)


def weight(value: Tensor, *names: str) -> Constant:
    return Constant(names[0], type_of(value), names[0], value, source=names)


def derived(of: Constant, op: str, *args: Arg) -> Constant:
    """The constant that an operator makes of another one."""
    node = make_node("made", op, (Ref(of.name), *args), {of.name: of.type})
    assert of.value is not None
    value = getattr(torch.ops.aten, op.split(".")[1])(of.value, *args)
    how = Derivation(node, 0, {of.name: of})
    return Constant(f"{of.name}_{op}", type_of(value), "made", value, how)


def found(*constants: Constant) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    plan: Any = SimpleNamespace(tasks=SimpleNamespace(constants=constants), recipe=None)
    return sources(plan)


def test_a_weight_is_there_under_all_of_its_names() -> None:
    known, lost = found(weight(W, "a.weight", "tied.weight"))
    assert known.keys() == {"a.weight", "tied.weight"} and lost == ()
    assert known["a.weight"] is known["tied.weight"] is not None


def test_moves_of_numbers_are_taken_back() -> None:
    one = weight(W, "one")
    turned = derived(derived(one, "aten.permute.default", (2, 0, 1)), "aten.view.default", (4, 6))
    (value,) = found(turned)[0].values()
    assert value.shape == W.shape and torch.equal(value, W)
    assert value.data_ptr() == turned.value.data_ptr()  # type: ignore[union-attr]


def test_what_was_computed_is_named_and_not_there() -> None:
    scaled = derived(weight(W, "two"), "aten.mul.Tensor", 2)
    known, lost = found(scaled, weight(W, "three"))
    assert known.keys() == {"three"} and lost == ("two",)
    assert found(scaled, weight(W, "two"))[1] == ()
