"""Around a pass: checks, fuel, dump; and the numbers by which results are judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anabranch.errors import VerifyError
from anabranch.ir.graph import Graph, Node, Ref
from anabranch.ir.inputs import random_tensor
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.text import parse_graph
from anabranch.ir.tolerances import compare, relative_error, tolerance
from anabranch.ir.types import TensorType
from anabranch.trace import Trace

GRAPH = parse_graph("""
graph g {
  input %x: f32[4]
  %y: f32[4] = aten.relu.default(%x)
  return %y
}""")


def wrong(graph: Graph) -> Graph:
    return replace(graph, nodes=(replace(graph.nodes[0], op="aten.neg.default"),))


def broken(graph: Graph) -> Graph:
    node = graph.nodes[0]
    return replace(graph, nodes=(Node("y", node.op, (Ref("nowhere"),), (), node.types),))


def test_the_guilty_pass_is_named() -> None:
    with pytest.raises(VerifyError, match="pass negate changed output 0"):
        Stepper(Trace(), check=2).step(GRAPH, "negate", wrong)
    with pytest.raises(VerifyError, match="after pass break"):
        Stepper(Trace(), check=1).step(GRAPH, "break", broken)


def test_fuel_runs_out() -> None:
    trace = Trace()
    stepper = Stepper(trace, fuel=1)
    once = stepper.run(GRAPH, {"one": wrong, "two": broken})
    assert once.nodes[0].op == "aten.neg.default"
    assert [event.why for event in trace.events if event.kind == "refused"] == ["out of fuel"]


def test_dumps_what_changed(tmp_path: Path) -> None:
    Stepper(Trace(), dump=tmp_path).run(GRAPH, {"same": lambda g: g, "neg": wrong})
    (file,) = tmp_path.iterdir()
    assert file.name == "01_01_neg.txt" and "aten.neg" in file.read_text()


def test_random_tensors_are_seeded_and_strided() -> None:
    type = TensorType((2, 3), torch.float16, (1, 2))
    a, b, c = random_tensor(type, 1), random_tensor(type, 1), random_tensor(type, 2)
    assert torch.equal(a, b) and not torch.equal(a, c) and a.stride() == (1, 2)
    assert set(random_tensor(TensorType((50,), torch.int64), 0).tolist()) == {0, 1}
    unit = random_tensor(TensorType((50,), torch.float32), 0, unit=True)
    assert 0 <= unit.min() < 0.2 and 0.8 < unit.max() <= 1


def test_errors_are_relative_and_nan_is_infinite() -> None:
    reference = torch.tensor([3.0, 4.0])
    assert relative_error(reference * 1.1, reference) == pytest.approx(0.1)
    assert relative_error(torch.tensor([3.0, float("nan")]), reference) == float("inf")
    nan = torch.tensor([3.0, float("nan")])
    assert relative_error(nan, nan) == 0.0
    assert relative_error(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0


def test_the_tolerance_follows_the_dtype_and_the_plain_model() -> None:
    assert tolerance(torch.float32, 0.0) < tolerance(torch.float32, 0.0, tf32=True)
    assert tolerance(torch.float16, 1e-2) == pytest.approx(2.1e-2)
    truth = torch.ones(4)
    ((error, allowed),) = compare([truth.half() * 1.01], [truth.half()], [truth])
    assert error > allowed
