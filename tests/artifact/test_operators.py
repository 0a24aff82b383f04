"""Which operators a file may name, and how it may call them."""

from __future__ import annotations

import pytest
import torch

from anabranch.artifact.operators import check_arguments, check_operator, named
from anabranch.errors import ArtifactError
from anabranch.ir.graph import Node, Ref
from anabranch.ir.ops import make_node
from anabranch.ir.types import TensorType

TYPE = TensorType((2, 3), torch.float32)


@pytest.mark.parametrize("op", ["aten.relu.default", "aten.linalg_qr.default", "aten.acos.default"])
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
    table = {"x": TYPE}
    check_arguments(make_node("y", "aten.add.Tensor", (Ref("x"), 2), table, (("alpha", 3),)))
    check_arguments(make_node("y", "aten.sum.dim_IntList", (Ref("x"), (0,)), table))
