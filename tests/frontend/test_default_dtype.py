"""What depends on torch's default dtype is told the dtype that the model was captured under."""

from __future__ import annotations

import pytest
import torch

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
