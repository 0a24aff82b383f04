"""Calls that are read without pytree: the same tensors, the same refusals, the same results."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from tests.frontend.models import f
from torch.utils import _pytree as pytree

from anabranch.errors import InputError
from anabranch.frontend.call_readers import assembler, reader
from anabranch.frontend.structure import flatten_call, unflatten_result
from anabranch.ir.graph import Input, Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.types import type_of

Pair = namedtuple("Pair", "a b")
Call = tuple[tuple[Any, ...], dict[str, Any]]


def described(call: Call) -> tuple[Signature, list[Input], pytree.TreeSpec]:
    """The signature of calls like this one."""
    leaves, tree = pytree.tree_flatten(call)
    inputs = [
        Input(f"x{i}", type_of(leaf))
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    ]
    names = iter(inputs)
    given = [
        Leaf(Ref(next(names).name)) if isinstance(leaf, torch.Tensor) else Leaf(None, leaf)
        for leaf in leaves
    ]
    return Signature("", tuple(given), "", ()), inputs, tree


def read(compiled: Call, given: Call) -> list[torch.Tensor] | None:
    found = reader(*described(compiled))(*given)
    return None if found is None else list(found)


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


X, Y, M = f(2, 3), f(3), f(2)
FLAT: Call = (X, Y), {}
DEEP: Call = (X, {"a": Y, "b": [M, (3, None)]}), {"mask": M, "scale": 0.5}
TURNED: Call = (X, {"b": [M, (3, None)], "a": Y}), {"scale": 0.5, "mask": M}
TAKEN: list[tuple[Call, Call]] = [
    (FLAT, FLAT),
    (FLAT, ((X.t().contiguous().t(), Y), {})),
    (FLAT, ((torch.nn.Parameter(X), Y.expand(3)), {})),
    (DEEP, DEEP),
    (DEEP, TURNED),
    (((), {}), ((), {})),
    (((3, X), {}), ((3, X), {})),
    (((float("nan"),), {}), ((float("nan"),), {})),
    (((X, []), {"e": {}}), ((X, []), {"e": {}})),
]


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_reads_what_pytree_reads(number: int) -> None:
    compiled, given = TAKEN[number]
    signature, inputs, tree = described(compiled)
    found = read(compiled, given)
    assert found is not None and same(found, flatten_call(signature, inputs, *given, tree))


REFUSED: list[tuple[Call, Call]] = [
    (FLAT, ((X,), {})),
    (FLAT, ((X, Y, Y), {})),
    (FLAT, ((X,), {"y": Y})),
    (FLAT, ((X, Y), {"z": Y})),
    (FLAT, ((X, f(2)), {})),
    (FLAT, ((X, f(1, 3)), {})),
    (FLAT, ((X, Y.double()), {})),
    (FLAT, ((X, Y.to("meta")), {})),
    (FLAT, ((X.to_sparse(), Y), {})),
    (FLAT, ((X, 3), {})),
    (FLAT, ((X, None), {})),
    (FLAT, ((X, [Y]), {})),
    (FLAT, ((X, (Y,)), {})),
    (DEEP, ((X, {"a": Y, "b": (M, (3, None))}), DEEP[1])),
    (DEEP, ((X, {"a": Y, "b": [M, [3, None]]}), DEEP[1])),
    (DEEP, ((X, {"a": Y, "b": [M, (3, M)]}), DEEP[1])),
    (DEEP, ((X, {"a": Y, "c": [M, (3, None)]}), DEEP[1])),
    (DEEP, ((X, {"a": Y}), DEEP[1])),
    (DEEP, ((X, [Y, M]), DEEP[1])),
    (DEEP, (DEEP[0], {"mask": M})),
    (DEEP, (DEEP[0], {"mask": M, "scale": 1})),
    (DEEP, (DEEP[0], {"mask": M, "scale": 0.25})),
    (DEEP, (DEEP[0], {"mask": M, "scale": torch.tensor(0.5)})),
    (((3,), {}), ((True,), {})),
    (((1,), {}), ((True,), {})),
    (((0.0,), {}), ((float("nan"),), {})),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_differs_is_left_to_who_can_say_it(number: int) -> None:
    compiled, given = REFUSED[number]
    signature, inputs, tree = described(compiled)
    assert read(compiled, given) is None
    with pytest.raises(InputError):
        flatten_call(signature, inputs, *given, tree)


class Strict:
    """Takes nothing but tensors."""

    def __init__(self, *parts: torch.Tensor) -> None:
        assert all(isinstance(part, torch.Tensor) for part in parts)
        self.parts = parts


pytree.register_pytree_node(
    Strict, lambda strict: (strict.parts, None), lambda parts, _: Strict(*parts)
)


@pytest.mark.parametrize("number", range(3))
def test_other_classes_are_left_to_pytree(number: int) -> None:
    given: Call = ((Pair(X, Y), OrderedDict(a=X, b=Y), Strict(X, Y))[number],), {}
    signature, inputs, tree = described(given)
    assert read(given, given) is None
    assert same(flatten_call(signature, inputs, *given, tree), [X, Y])
    for plain in ((X, Y), {"a": X, "b": Y}):
        assert read(((plain,), {}), given) is None
        assert read(given, ((plain,), {})) is None


RESULTS: list[Any] = [
    "y",
    ("y", ["x", None]),
    {"y": "y", "more": ["x", {"z": "z"}], "three": 3},
    ["y", "y"],
    (),
    None,
    Pair("y", ("x", "z")),
    Strict(f(1), f(1)),
]


@pytest.mark.parametrize("number", range(len(RESULTS)))
def test_assembles_what_pytree_does(number: int) -> None:
    tensors = {"x": f(2), "y": f(3), "z": f(4)}
    leaves, tree = pytree.tree_flatten(RESULTS[number])
    outputs = tuple(Leaf(Ref(x)) if isinstance(x, str) else Leaf(None, x) for x in leaves)
    signature = Signature("", (), "", outputs)
    found = assembler(signature, ["x"], ["y", "z"], tree)(
        [tensors["x"]], [tensors["y"], tensors["z"]]
    )
    want = unflatten_result(signature, tensors, tree)
    assert pytree.tree_flatten(found)[1] == pytree.tree_flatten(want)[1]
    assert all(
        a is b for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(want), strict=True)
    )


def test_what_is_written_to_an_input_is_the_callers_own_tensor() -> None:
    x, y = torch.zeros(2), torch.zeros(2)
    outputs = tuple(Leaf(Ref(name)) for name in ("moved", "x", "sum", "y"))
    signature = Signature("", (), "", outputs, (("x", Ref("moved")),))
    tree = pytree.tree_flatten((0, 0, 0, 0))[1]
    moved, total = torch.ones(2), torch.full((2,), 2.0)
    found = assembler(signature, ["x", "y"], ["moved", "sum"], tree)([x, y], [moved, total])
    assert found[0] is x and found[1] is x and found[2] is total and found[3] is y
    assert torch.equal(x, torch.ones(2)) and torch.equal(y, torch.zeros(2))
