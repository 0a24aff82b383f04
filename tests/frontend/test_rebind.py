from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.frontend.models import Net, f
from torch import nn

from anabranch.errors import CaptureError
from anabranch.frontend import capture
from anabranch.frontend.rebind import rebind
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph, text_graph


def net() -> Net:
    made = Net(
        lambda net, x: net.linear(x) * net.scale + net.plain + torch.tensor([1.0, 2.0, 3.0]),
        linear=nn.Linear(3, 3),
        scale=f(3),
    )
    made.__dict__["plain"] = f(3)
    return made


def without_values(graph: Graph) -> Graph:
    return parse_graph(text_graph(graph))


def test_same_weights_give_an_equal_graph_that_runs() -> None:
    model = net()
    captured = capture(model, (f(2, 3),))
    held = {name for name, _ in captured.sources}
    contents = {c.name: c.value for c in captured.graph.constants if c.name not in held}
    assert len(held) == 4 and len(contents) == 1
    bound = rebind(without_values(captured.graph), captured.sources, model, contents)  # type: ignore[arg-type]
    assert bound == captured.graph
    x = f(2, 3)
    torch.testing.assert_close(eval_graph(bound, [x])[0], model(x))
    bare = rebind(without_values(captured.graph), captured.sources, model)
    assert [c.name for c in bare.constants if c.value is None] == list(contents)


def test_other_weights_give_other_digests_and_results() -> None:
    model, other = net(), net()
    captured = capture(model, (f(2, 3),))
    contents: dict[str, Any] = {c.name: c.value for c in captured.graph.constants}
    bound = rebind(without_values(captured.graph), captured.sources, other, contents)
    assert bound != captured.graph
    assert replace(bound, constants=()) == replace(captured.graph, constants=())
    x = f(2, 3)
    torch.testing.assert_close(eval_graph(bound, [x])[0], other(x))


def test_missing_and_changed_weights_are_refused() -> None:
    model = net()
    captured = capture(model, (f(2, 3),))
    with pytest.raises(CaptureError, match="nothing for the constant linear"):
        rebind(captured.graph, captured.sources, nn.Module())
    model.linear = nn.Linear(3, 3).double()
    with pytest.raises(CaptureError, match="f64"):
        rebind(captured.graph, captured.sources, model)
