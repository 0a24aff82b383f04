"""Which operators a file may name, and how it may call them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from anabranch.artifact.operators import OPAQUE, check_arguments, check_operator, named
from anabranch.errors import ArtifactError, OptionError
from anabranch.ir import custom_ops
from anabranch.ir.graph import Node, Ref
from anabranch.ir.types import TensorType

TYPE = TensorType((2, 3), torch.float32)
DEFINED: list[str] = []
"""Schemas that tests defined: torch keeps their names."""


@pytest.mark.parametrize(
    "op",
    [
        "aten.relu.default",
        "aten.linalg_qr.default",
        "aten.acos.default",
        "aten.avg_pool2d_backward.default",
    ],
)
def test_operators_that_compute_tensors_of_tensors_may_be_named(op: str) -> None:
    check_operator(op, frozenset())


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("aten.add_.Tensor", "writes to what it is given"),
        ("aten.add.out", "writes to what it is given"),
        ("aten.empty.memory_format", "may not call unasked"),
        ("aten.from_file.default", "may not call unasked"),
        ("aten.relu_backward.default", "may not call unasked"),
        ("mylib.secret.default", 'operators=["mylib::secret"]'),
        ("aten.relu.no_such_overload", "not an operator here"),
        ("__import__('os')", "may not call unasked"),
    ],
)
def test_others_are_refused_with_the_reason(op: str, said: str) -> None:
    with pytest.raises(ArtifactError) as refused:
        check_operator(op, frozenset())
    assert said in str(refused.value)


def test_a_user_names_operators_with_or_without_their_overload() -> None:
    assert named(["mylib::attend", "lib.f.x"]) == {"mylib.attend", "lib.f.x"}
    with pytest.raises(ArtifactError):
        named(["attend"])
    with pytest.raises(ArtifactError, match="3 names no operator"):
        named([3])  # type: ignore[list-item]
    for wrong in ("mylib::attend", 3):
        with pytest.raises(OptionError, match="operators is a "):
            named(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="not an operator here"):
        check_operator("mylib.attend.default", named(["mylib::attend"]))


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), (), "'self' is missing"),
        ((Ref("x"), 1), (), "too many arguments"),
        ((Ref("x"),), (("self", Ref("x")),), "too many arguments"),
        ((Ref("x"),), (("other", 1),), "no argument of it"),
        (("a text",), (), "should be Tensor"),
    ],
)
def test_arguments_are_those_of_the_schema(args: tuple, kwargs: tuple, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ArtifactError) as refused:
        check_arguments(Node("y", "aten.relu.default", args, kwargs, (TYPE,)))
    assert said in refused.value.why


def test_what_a_model_makes_is_as_the_schema_says() -> None:
    check_arguments(Node("y", "aten.add.Tensor", (Ref("x"), 2), (("alpha", 3),), (TYPE,)))
    check_arguments(Node("y", "aten.sum.dim_IntList", (Ref("x"), (0,)), (), (TYPE,)))


@pytest.mark.parametrize(
    ("op", "library", "asked"),
    [
        ("mylib.attend.default", "mylib::attend", "mylib::attend"),
        ("mylib.attend.default", "mylib::attend.default", "mylib::attend"),
        ("mylib.attend.default", "mylib::other", None),
        ("mylib.attend.default", "mylib::attend.other", None),
    ],
)
def test_what_a_user_names_is_asked_for_in_its_library(
    op: str, library: str, asked: str | None
) -> None:
    with pytest.raises(ArtifactError) as refused:
        check_operator(op, named([library]))
    if asked:
        assert "not an operator here" in refused.value.why
        assert refused.value.next.startswith("import the library that defines it, then load")
    else:
        assert refused.value.next.endswith('operators=["mylib::attend"]')


def test_an_operator_of_torch_that_is_not_here_asks_for_another_torch() -> None:
    with pytest.raises(ArtifactError, match="load it with the version of torch that saved it"):
        check_operator("aten.relu.no_such_overload", frozenset())


def test_what_is_no_name_asks_for_one() -> None:
    for op in ("relu", "aten.relu", "aten.relu.default.more", "aten.relu.default\n"):
        with pytest.raises(ArtifactError) as refused:
            check_operator(op, frozenset({op}))
        assert refused.value.next.endswith('operators=["ns::name"]')


@pytest.mark.parametrize("op", sorted(OPAQUE))
def test_operators_of_the_table_are_functional_ones_of_torch(op: str) -> None:
    packet = getattr(torch.ops.aten, op.removeprefix("aten."))
    taken = 0
    for overload in packet.overloads():
        with contextlib.suppress(ArtifactError):
            check_operator(f"{op}.{overload}", frozenset())
            taken += 1
    assert taken


@pytest.mark.parametrize(
    "op",
    [
        "aten.empty_strided.default",
        "aten.masked_select.default",
        "aten.new_empty.default",
        "aten.nonzero.default",
        "aten.max_pool2d_with_indices_backward.default",
        "aten.sym_size.int",
        "aten.no_such_operator.default",
        "aten.relu_.default",
        "aten.is_pinned.default",
        "aten.convolution_backward.default",
        "prims.add.default",
        "anabranch.other.default",
    ],
)
def test_operators_of_no_table_are_refused(op: str) -> None:
    with pytest.raises(ArtifactError):
        check_operator(op, frozenset())


@pytest.mark.parametrize("op", sorted(custom_ops.ALL))
def test_operators_of_this_package_may_be_named(op: str) -> None:
    check_operator(op, frozenset())


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        ("(Tensor x) -> Tensor", ""),
        ("(Tensor x) -> Tensor[]", ""),
        ("(Tensor x) -> (Tensor, Tensor)", ""),
        ("(Tensor x) -> ()", "something else than tensors"),
        ("(Tensor x) -> int", "something else than tensors"),
        ("(Tensor x) -> (Tensor, int)", "something else than tensors"),
        ("(Tensor x) -> Tensor?", "something else than tensors"),
        ("(Tensor(a!) x) -> Tensor", "writes to what it is given"),
        ("(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", "writes to what it is given"),
    ],
)
def test_even_a_users_operator_makes_tensors_and_writes_nothing(signature: str, said: str) -> None:
    number = len(DEFINED)
    DEFINED.append(f"f{number}{signature}")
    with torch.library._scoped_library("anabranch_operators", "FRAGMENT") as library:
        library.define(DEFINED[-1])
        op = f"anabranch_operators.f{number}.default"
        if said:
            with pytest.raises(ArtifactError, match=said):
                check_operator(op, frozenset({op}))
        else:
            check_operator(op, frozenset({op}))


X = Ref("x")
CALLS: list[tuple[str, tuple[Any, ...], tuple[Any, ...], str]] = [
    ("aten.add.Tensor", (X, 2.0), (("alpha", 3.0),), ""),
    ("aten.add.Tensor", (X, True), (("alpha", 3),), ""),
    ("aten.add.Tensor", (X,), (("other", X),), ""),
    ("aten.add.Tensor", (X, X, X), (), "should be number"),
    ("aten.add.Tensor", (X, "2"), (), "should be Tensor"),
    ("aten.add.Tensor", (X, (2,)), (), "should be Tensor"),
    ("aten.add.Tensor", (X, X), (("alpha", X),), "should be number"),
    ("aten.add.Tensor", (X, X), (("alpha", None),), "should be number"),
    ("aten.sum.dim_IntList", (X, None), (), ""),
    ("aten.sum.dim_IntList", (X, (0, 1), True), (("dtype", torch.float64),), ""),
    ("aten.sum.dim_IntList", (X, 1), (), ""),
    ("aten.sum.dim_IntList", (X, (0, 1.0)), (), "should be Optional"),
    ("aten.sum.dim_IntList", (X, (0,), 1), (), "should be bool"),
    ("aten.sum.dim_IntList", (X, (0,), None), (), "should be bool"),
    ("aten.cat.default", ((X, X), 1), (), ""),
    ("aten.cat.default", (X, 1), (), "should be List"),
    ("aten.cat.default", ((X, None), 1), (), "should be List"),
    ("aten.index.Tensor", (X, (None, X)), (), ""),
    ("aten.gelu.default", (X,), (("approximate", "tanh"),), ""),
    ("aten.gelu.default", (X,), (("approximate", 1),), "should be str"),
    ("aten.upsample_nearest2d.vec", (X, None, (2.0, 1)), (), ""),
    ("aten.upsample_nearest2d.vec", (X, None, 2.0), (), ""),
    ("aten.upsample_nearest2d.vec", (X, None, (True,)), (), "should be Optional"),
    ("aten.zeros_like.default", (X,), (("layout", torch.strided), ("pin_memory", False)), ""),
    ("aten.zeros_like.default", (X,), (("layout", None), ("device", None)), ""),
    ("aten.zeros_like.default", (X,), (("memory_format", torch.channels_last),), ""),
    ("aten.zeros_like.default", (X,), (("layout", torch.sparse_coo),), "never set 'layout'"),
    ("aten.zeros_like.default", (X,), (("layout", 1),), "never set 'layout'"),
    ("aten.zeros_like.default", (X,), (("pin_memory", True),), "never set 'pin_memory'"),
    ("aten.zeros_like.default", (X,), (("device", "cpu"),), "should be Optional"),
    ("aten.zeros_like.default", (X,), (("dtype", torch.sparse_coo),), "strided tensors alone"),
    ("aten.rand.generator", ((3,),), (("generator", None),), ""),
    ("aten.rand.generator", ((3,),), (("generator", "x"),), "should be Optional"),
]


@pytest.mark.parametrize(("op", "args", "kwargs", "said"), CALLS)
def test_each_argument_is_of_its_kind(
    op: str, args: tuple[Any, ...], kwargs: tuple[Any, ...], said: str
) -> None:
    node = Node("y", op, args, kwargs, (TYPE,))
    if said:
        with pytest.raises(ArtifactError) as refused:
            check_arguments(node)
        assert said in refused.value.why
    else:
        check_arguments(node)
