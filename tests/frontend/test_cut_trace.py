"""Tracing a model that asks for values: the graph of one way, its cuts, and what must hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anabranch.errors import CaptureError
from anabranch.frontend.cut_answers import answers_of
from anabranch.frontend.cut_checks import Unseen
from anabranch.frontend.cut_trace import CutTrace, trace_cuts
from anabranch.frontend.surroundings import surroundings

aten = torch.ops.aten


def traced(function: Any, *args: Any) -> CutTrace:
    return trace_cuts(function, args, {}, surroundings())


def rerun(trace: CutTrace, *args: Any) -> list[Any]:
    """The graph on other values."""
    module = torch.fx.GraphModule(trace.held, trace.graph)
    found: list[Any] = module(*args)
    return found


def checks(trace: CutTrace) -> list[str]:
    return [check.text for cut in trace.cuts for check in cut.checks]


def targets(trace: CutTrace) -> list[Any]:
    return [node.target for node in trace.graph.nodes if node.op == "call_function"]


def test_sizes_and_numbers_are_symbols() -> None:
    def model(x: Tensor) -> Tensor:
        y = x[x > 0]
        return y * x.sum().item() + y.shape[0]

    trace = traced(model, torch.tensor([1.0, -1.0, 2.0]))
    assert [cut.operator for cut in trace.cuts] == ["index", "item"] and not checks(trace)
    assert all(cut.origin.startswith("test_cut_trace.py:") for cut in trace.cuts)
    for x in (torch.tensor([3.0, 4.0, 5.0]), torch.tensor([-1.0, -1.0, -1.0])):
        torch.testing.assert_close(rerun(trace, x), [model(x)])


def test_what_python_decides_is_checked() -> None:
    def model(x: Tensor) -> Tensor:
        rows = x.nonzero()
        if rows.shape[0] == 0:
            return x
        if rows.shape[0] > 2:
            x = x + 1
        if x.max() > 10:
            x = x - 10
        return x * 2

    trace = traced(model, torch.tensor([1.0, 0.0, 2.0, 3.0]))
    assert checks(trace) == ["nonzero.shape[0] != 0", "nonzero.shape[0] > 2", "item == False"]
    x = torch.tensor([1.0, 1.0, 2.0, 3.0])
    torch.testing.assert_close(rerun(trace, x), [model(x)])
    for other in (torch.zeros(4), torch.tensor([1.0, 0, 0, 0]), torch.tensor([11.0, 1, 1, 1])):
        with pytest.raises(Unseen):
            rerun(trace, other)


def test_a_number_may_be_negative_where_a_size_is_not() -> None:
    def model(x: Tensor) -> Tensor:
        n = x[0].item()
        return x[x > 0] + n if n >= 0 else x

    trace = traced(model, torch.tensor([2, 3]))
    assert checks(trace) == ["item >= 0"]
    with pytest.raises(Unseen, match="item >= 0"):
        rerun(trace, torch.tensor([-2, 3]))


def test_a_number_that_counts_is_fixed() -> None:
    def model(x: Tensor, times: Tensor) -> Tensor:
        for _ in range(int(times)):
            x = x + 1
        return x

    trace = traced(model, torch.zeros(2), torch.tensor(3))
    assert checks(trace) == ["item == 3"]
    assert targets(trace).count(aten.add.Tensor) == 3


def test_the_same_is_asked_once() -> None:
    def model(x: Tensor) -> Tensor:
        return x[x > 0].sum() + x[x > 0].prod() + x[x > 0].new_ones(2).sum()

    trace = traced(model, torch.tensor([1.0, -1.0, 2.0]))
    assert targets(trace).count(aten.index.Tensor) == 1 and len(trace.cuts) == 1


def test_views_that_are_returned_are_of_tensors_of_their_own() -> None:
    def model(x: Tensor) -> Any:
        best = x.topk(2)[0], x.topk(2)[0]
        return x.nonzero(), *torch.where(x), x.nonzero().t(), *best

    x = torch.tensor([1.0, 0.0, 2.0, 3.0])
    rows, places, columns, *best = rerun(traced(model, x), x)
    memories = [t.untyped_storage().data_ptr() for t in (rows, places, columns, *best)]
    assert len(set(memories)) == len(memories)


def test_random_numbers_are_drawn_as_often() -> None:
    def model(x: Tensor) -> Tensor:
        x = x + torch.rand(3) + torch.rand(3)
        return x[x > -9.0]

    trace = traced(model, torch.zeros(3))
    assert targets(trace).count(aten.rand.default) == 2
    torch.manual_seed(1)
    ours = rerun(trace, torch.zeros(3))
    torch.manual_seed(1)
    torch.testing.assert_close(ours, [model(torch.zeros(3))])


def test_names_are_the_models() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor, pair: list[Tensor]) -> Tensor:
            found: Tensor = self.layer(x)[pair[0] > pair[1]]
            return found

    trace = traced(Model().eval(), torch.ones(3, 2), [torch.ones(3), torch.zeros(3)])
    assert trace.weights == {"layer_weight": "layer.weight", "layer_bias": "layer.bias"}
    assert trace.inputs == ("x", "pair_0", "pair_1")


def test_strides_are_those_of_values() -> None:
    """`nonzero` gives its rows with strides (1, rows): a view of them is a copy for who reads it in
    order."""

    def model(x: Tensor) -> Tensor:
        return x.nonzero().reshape(-1)

    trace = traced(model, torch.ones(2, 3))
    x = torch.tensor([[1.0, 0, 1], [0, 1, 0]])
    torch.testing.assert_close(rerun(trace, x), [model(x)])


def test_python_on_values_is_refused() -> None:
    def model(x: Tensor) -> Tensor:
        return x + float(x.numpy().sum())

    with pytest.raises(CaptureError, match="calls numpy") as refused:
        traced(model, torch.ones(3))
    assert "test_cut_trace.py" in refused.value.source


def test_operators_that_read_numbers_by_themselves_are_refused_with_what_to_give_them() -> None:
    def model(x: Tensor, at: Tensor) -> Tensor:
        return torch.tensor_split(x, at)[0]

    with pytest.raises(CaptureError, match=r"(?s)reads the numbers.*indices\.tolist\(\)"):
        traced(model, torch.ones(6), torch.tensor([2, 4]))


def test_a_list_is_read_number_by_number() -> None:
    def model(x: Tensor, sizes: Tensor) -> Tensor:
        return torch.cat([part.sum(0, True) for part in torch.split(x, sizes.tolist())])

    x, sizes = torch.randn(6), torch.tensor([1, 2, 3])
    trace = traced(model, x, sizes)
    assert [cut.operator for cut in trace.cuts] == ["item"] * 3
    torch.testing.assert_close(rerun(trace, x, sizes), [model(x, sizes)])


def test_answers_are_those_of_values() -> None:
    def model(x: Tensor) -> Tensor:
        return x[x > x.mean().item()]

    answers, result, left, *_ = answers_of(
        model, (torch.tensor([1.0, 2.0, 6.0]),), {}, surroundings()
    )
    assert [answer.op for answer in answers] == [
        aten._local_scalar_dense.default,
        aten.index.Tensor,
    ]
    assert answers[0].result == 3.0 and answers[1].result.shape == (1,) and result.tolist() == [6.0]
    assert not left


def test_the_model_is_left_as_it_was() -> None:
    layer = nn.Linear(2, 2).eval()
    before = {name: value.clone() for name, value in layer.state_dict().items()}

    def model(x: Tensor) -> Tensor:
        y: Tensor = layer(x)
        return y[y > 0]

    given = torch.ones(3, 2)
    state = torch.random.get_rng_state()
    traced(model, given)
    assert torch.equal(given, torch.ones(3, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
