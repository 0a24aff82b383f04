from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.frontend.models import Net, f
from torch.utils import _pytree as pytree

from anabranch.errors import InputError
from anabranch.frontend import Captured, capture
from anabranch.frontend.structure import (
    flatten_call,
    same_literal,
    unflatten_result,
)
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.trees import read_tree, tree_text


class Nameless:
    """Registered with pytree, under no name."""


@pytest.fixture(scope="module")
def captured() -> Captured:
    model = Net(lambda net, x, d, n, *, mask=None, scale=1.0: (x + d["a"] - d["b"]) * n * scale)
    args = (f(2, 3), {"a": f(3), "b": f(3)}, 3)
    return capture(model, args, {"mask": f(2), "scale": 0.5})


def flatten(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return flatten_call(captured.signature, captured.graph.inputs, args, kwargs)


def test_tensors_in_the_order_of_inputs(captured: Captured) -> None:
    x, a, b, m = f(2, 3), f(3), f(3), f(2)
    for args, kwargs in (
        ((x, {"a": a, "b": b}, 3), {"mask": m, "scale": 0.5}),
        ((x, {"b": b, "a": a}, 3), {"scale": 0.5, "mask": m}),
        ((x.t().contiguous().t(), {"a": a, "b": b}, 3), {"mask": m, "scale": 0.5}),
    ):
        found = flatten(captured, args, kwargs)
        assert all(torch.equal(p, q) for p, q in zip(found, (x, a, b, m), strict=True))


D = {"a": f(3), "b": f(3)}
WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((f(2, 4), D, 3), {"mask": f(2), "scale": 0.5}, r"args\[0\] is a tensor float32\[2,4\]"),
    ((f(2, 3).double(), D, 3), {"mask": f(2), "scale": 0.5}, r"float64\[2,3\](.|\n)*f32\[2,3\]"),
    ((f(2, 3), D, 4), {"mask": f(2), "scale": 0.5}, r"args\[2\] is 4(.|\n)*compiled for 3"),
    ((f(2, 3), D, 3.0), {"mask": f(2), "scale": 0.5}, r"args\[2\] is 3.0"),
    ((f(2, 3), D, torch.tensor(3)), {"mask": f(2), "scale": 0.5}, r"args\[2\] is a tensor"),
    ((f(2, 3), D, 3), {"mask": None, "scale": 0.5}, r"kwargs\['mask'\] is a NoneType"),
    ((f(2, 3), D, 3), {"mask": f(2), "scale": 0.25}, r"kwargs\['scale'\] is 0.25"),
    ((f(2, 3), D), {"mask": f(2), "scale": 0.5}, r"f\(\*, \{'a': \*, 'b': \*\}, mask=\*"),
    ((f(2, 3), {"a": f(3)}, 3), {"mask": f(2), "scale": 0.5}, "'b'"),
    ((f(2, 3), [f(3), f(3)], 3), {"mask": f(2), "scale": 0.5}, r"f\(\*, \[\*, \*\], \*"),
    ((f(2, 3), {"a": f(3), "b": [f(3)]}, 3), {"mask": f(2), "scale": 0.5}, r"\['b'\] is a list"),
    ((f(2, 3), D, 3), {"scale": 0.5}, "mask"),
    ((f(2, 3), D, 3), {"mask": f(2), "scale": 0.5, "more": 1}, "more"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_differs_is_said(captured: Captured, number: int) -> None:
    args, kwargs, message = WRONG[number]
    with pytest.raises(InputError, match=message):
        flatten(captured, args, kwargs)


def test_calls_of_tensors_alone() -> None:
    captured = capture(Net(lambda net, x, y: x + y), (f(2, 3), f(3)))
    x, y = f(2, 3), f(3)
    assert all(a is b for a, b in zip(flatten(captured, (x, y), {}), (x, y), strict=True))
    with pytest.raises(InputError, match=r"args\[1\] is a tensor float32\[2\]"):
        flatten(captured, (x, f(2)), {})
    with pytest.raises(InputError, match=r"args\[1\] is 3"):
        flatten(captured, (x, 3), {})
    with pytest.raises(InputError, match=r"called with f\(\*\)"):
        flatten(captured, (x,), {})
    with pytest.raises(InputError, match=r"called with f\(\*, y=\*\)"):
        flatten(captured, (x,), {"y": y})


@pytest.mark.parametrize("zero", [0.0, complex(1.0, 0.0)])
def test_zeros_of_two_signs_are_two_literals(zero: complex) -> None:
    other = zero.conjugate() if isinstance(zero, complex) else -zero
    assert other == zero and same_literal(zero, zero) and same_literal(other, other)
    assert not same_literal(zero, other) and not same_literal(other, zero)


def test_nan_is_the_same_literal() -> None:
    tree = tree_text(pytree.tree_flatten(((0.0,), {}))[1])
    signature = Signature(tree, (Leaf(None, float("nan")),), "", ())
    assert flatten_call(signature, (), (float("nan"),), {}) == []
    with pytest.raises(InputError, match="compiled for nan"):
        flatten_call(signature, (), (0.0,), {})


def test_results_by_value() -> None:
    captured = capture(Net(lambda net, x: {"y": x + 1, "x": [x, None, "z"]}), (f(2),))
    x = f(2)
    tensors = {captured.graph.outputs[0].name: x + 1, captured.graph.inputs[0].name: x}
    found = unflatten_result(captured.signature, tensors)
    assert found["x"][0] is x and found["x"][1:] == [None, "z"] and list(found) == ["y", "x"]


def test_trees_without_text_need_the_live_one() -> None:
    pytree.register_pytree_node(Nameless, lambda held: ([1], None), lambda values, _: Nameless())
    assert tree_text(pytree.tree_flatten(Nameless())[1]) == ""
    with pytest.raises(InputError, match="does not say the structure"):
        read_tree("")
    good = pytree.tree_flatten(((1, [2]), {"a": 3}))[1]
    assert read_tree(tree_text(good)) == good


def test_torchs_own_tuples_have_a_text() -> None:
    x = torch.randn(2, 3)
    made = {"a": x.topk(2), "b": (x.sort(1), [x, x.max(1)]), "torch": (x,)}
    tree = pytree.tree_flatten(made)[1]
    again = read_tree(tree_text(tree))
    assert again == tree
    built = pytree.tree_unflatten(list(range(again.num_leaves)), again)
    assert type(built["b"][0]) is torch.return_types.sort and built["b"][0].indices == 3
    for other in ("pytree_register_structseq", "unknown"):
        with pytest.raises(InputError, match="no such tuple"):
            read_tree(tree_text(tree).replace("return_types.sort", f"return_types.{other}"))
