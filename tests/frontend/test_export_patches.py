"""What is left out of an export is missed by nobody."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

import anabranch
from anabranch.frontend.export_patches import brief


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helped(x.relu())


def helped(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(self.linear(x)) + x
        return out


def exported() -> GraphModule:
    program = torch.export.export(Outer().eval(), (torch.ones(2, 3),), strict=False)
    graph: GraphModule = program.graph_module
    return graph


def users(graph: GraphModule) -> list[list[str]]:
    """The lines of each node's stack that are of this file."""
    stacks = [node.meta.get("stack_trace") or "" for node in graph.graph.nodes]
    return [[line for line in stack.splitlines() if __file__ in line] for stack in stacks]


def test_nodes_have_the_lines_of_the_user() -> None:
    with brief():
        made = exported()
    assert any(users(made))
    assert users(made) == users(exported())


def test_graphs_are_compiled_when_they_are_called() -> None:
    x = torch.randn(2, 3)
    model = Outer().eval()
    with brief():
        program = torch.export.export(model, (x,), strict=False)
    assert torch.equal(program.module()(x), model(x))
    assert "aten.relu" in program.graph_module.code


def test_switches_of_libraries_can_be_set_after_a_compilation() -> None:
    quick: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    anabranch.compile(model.eval(), (x,), **quick)
    optimizer = torch.optim.SGD(model.train().parameters(), 0.1)
    anabranch.compile_step(model, lambda model, x: model(x).sum(), optimizer, (x,), **quick)
    asked = torch._C._get_mkldnn_enabled, torch._C._get_cudnn_enabled
    libraries: tuple[Any, Any] = torch.backends.mkldnn, torch.backends.cudnn
    for library, runs in zip(libraries, asked, strict=True):
        assert library.enabled and runs()
        library.enabled = False
        try:
            assert not runs() and not library.enabled
        finally:
            library.enabled = True
