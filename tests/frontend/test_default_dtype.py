"""What depends on torch's default dtype is told the dtype that the model was captured under."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.default_dtype import default_dtype
from torch import Tensor

import anabranch
from anabranch.frontend.default_dtype import declared, undeclared
from anabranch.ir.graph import Arg, Ref
from anabranch.ir.types import TensorType

KNOWN = {
    "i": TensorType((4,), torch.int64),
    "f": TensorType((4,), torch.float64),
    "c": TensorType((4,), torch.complex128),
}


@pytest.mark.parametrize(
    ("args", "result", "found"),
    [
        ((Ref("i"), 3), torch.float64, True),  # div(i, 3)
        (((Ref("i"),),), torch.complex128, True),  # the complex numbers of that dtype
        ((Ref("i"), 3), torch.int64, False),
        ((Ref("i"), (Ref("f"),)), torch.float64, False),  # an operand says so
        ((Ref("c"),), torch.float64, False),
        ((Ref("i"), torch.float64), torch.float64, False),  # an argument says so
    ],
)
def test_who_depends_on_the_default_dtype(
    args: tuple[Arg, ...], result: torch.dtype, found: bool
) -> None:
    results = [TensorType((4,), result)]
    assert undeclared(torch.float64, args, (), results, KNOWN) is found


def test_a_call_is_told_the_dtype_or_gets_operands_of_it() -> None:
    def cast(ref: Ref) -> Ref:
        return Ref(f"{ref.name}_f64")

    float64, float32 = torch.float64, torch.float32
    ones = declared(float64, "aten.ones.default", ((4,),), (("dtype", None),), cast)
    assert ones == (((4,),), (("dtype", float64),))
    args: tuple[Arg, ...] = (Ref("i"), (Ref("j"), 3))
    told, _ = declared(float64, "aten.div.Tensor", args, (), cast)
    assert told == (Ref("i_f64"), (Ref("j_f64"), 3))
    assert declared(float32, "aten.div.Tensor", args, (), cast) == (args, ())


def _factory(x: Tensor, i: Tensor) -> Tensor:
    with default_dtype(torch.float64):
        thirds = torch.arange(1.0, 5.0) / 3
    return x + thirds


def _quotient(x: Tensor, i: Tensor) -> Tensor:
    with default_dtype(torch.float64):
        thirds = i / 3
    return thirds - (i / 3) + x


def _narrower(x: Tensor, i: Tensor) -> Tensor:
    with default_dtype(torch.float16):
        return x + torch.full((4,), 1 / 3) + (i / 3).float()


@pytest.mark.parametrize("model", [_factory, _quotient, _narrower])
def test_a_default_that_forward_sets_is_that_of_its_tensors(
    model: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, i = torch.randn(4), torch.tensor([1, 2, 4, 5])
    fast = anabranch.compile(model, (x, i), target="cpu", cache_dir=None, strict=True)
    for args in ((x, i), (x + 1, i + 1)):
        torch.testing.assert_close(fast(*args), model(*args), rtol=0, atol=1e-9)
    assert torch.get_default_dtype() == torch.float32
