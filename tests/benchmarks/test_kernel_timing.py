"""What surrounds the timing of many kernels: their tensors, and which results are accepted."""

from __future__ import annotations

import pytest
import torch
from benchmarks.kernel_timing import expected, tensors_of, wrong
from benchmarks.layers import convolution, linear, products

from anabranch.ir.graph import Graph, types
from anabranch.ir.types import type_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("body", [convolution(8, 5, 12, 3), linear(3, 16, 8), products(2, 4, 8, 4)])
def test_tensors_are_as_the_body_says_and_results_near_one(body: Graph) -> None:
    values, table = tensors_of(body, CPU), types(body)
    names = {v.name for v in body.inputs} | {c.name for c in body.constants}
    assert values.keys() == names | {ref.name for ref in body.outputs}
    assert all(type_of(tensor) == table[name] for name, tensor in values.items())
    own, truth = expected(body, values)
    assert truth[0].dtype == torch.float64 and 0.05 < truth[0].std() < 10
    assert torch.allclose(own[0].double(), truth[0], atol=0.05)


def test_a_wrong_result_and_a_changing_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    body = linear(3, 16, 8)
    values = tensors_of(body, CPU)
    wanted = expected(body, values)
    out, calls = values["out"], list[int]()

    def right() -> None:
        out.copy_(wanted[0][0])

    def near() -> None:
        out.copy_(wanted[0][0] * 1.1)

    def changing() -> None:
        calls.append(1)
        out.copy_(wanted[0][0] + len(calls) * 1e-2)

    assert wrong(body, values, right, wanted) == ""
    assert wrong(body, values, near, wanted).startswith("error")
    assert wrong(body, values, changing, wanted) == "two runs gave different bits"
    assert wrong(body, values, lambda: None, wanted), "nothing was written"
