"""What is not traced once more is, name for name, what a trace makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.frontend import from_torch
from anabranch.frontend.captured import Captured
from anabranch.frontend.direct import SPELLINGS, direct
from anabranch.ir.text import text_graph
from anabranch.models.zoo import ZOO


class Does(nn.Module):
    """A function of one tensor, with a weight of each kind at hand."""

    def __init__(self, function: Callable[[Does, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.line, self.image = nn.Conv1d(4, 6, 3, 2, 1), nn.Conv2d(4, 6, (3, 1), groups=2)
        self.solid, self.norm = nn.Conv3d(4, 2, 2, bias=False), nn.BatchNorm2d(4)
        self.bare, self.steps = nn.BatchNorm1d(4, affine=False), nn.LSTM(6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def normed(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, ...]:
    """As programs have it that were taken apart before."""
    made: tuple[Tensor, ...] = torch.ops.aten._native_batch_norm_legit_no_training(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, 0.1, 1e-5
    )
    return made


def old_name(x: Tensor) -> Tensor:
    x.mul_(2)
    y = x - 1
    x.sigmoid_()
    return y * x


def read_before(x: Tensor) -> Tensor:
    y = x * 2
    x.relu_()
    return x + y


def seen_before(x: Tensor) -> Tensor:
    y = x.transpose(1, 2)
    x.relu_()
    return x + y.transpose(1, 2)


def dropped_before(x: Tensor) -> Tensor:
    y = F.dropout(x, 0.5, False)
    x.relu_()
    return x - y


def silent_before(x: Tensor) -> Tensor:
    y: Tensor = torch.ops.aten._unsafe_view(x, [2, -1])
    x.relu_()
    return y


def flat_before(x: Tensor) -> Tensor:
    y = x.flatten(1)
    x.relu_()
    return y


X = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
SPELLED: dict[str, tuple[Callable[[Does, Tensor], Any], Tensor]] = {
    "conv1d": (lambda m, x: m.line(x), X.reshape(2, 4, 36)),
    "conv2d": (lambda m, x: m.image(x).relu(), X),
    "conv2d by numbers": (lambda m, x: F.conv2d(x, m.image.weight, None, (2,), 1, 1, 2), X),
    "conv2d by default": (lambda m, x: F.conv2d(x[:, :2], m.image.weight), X),
    "conv2d channels last": (lambda m, x: m.image(x), X.to(memory_format=torch.channels_last)),
    "conv3d": (lambda m, x: m.solid(x), X.reshape(2, 4, 3, 3, 4)),
    "batch_norm": (lambda m, x: m.norm(x) + m.norm(x * 2), X),
    "batch_norm without weights": (lambda m, x: m.bare(x), X.reshape(2, 4, 36)),
    "a norm of three results": (lambda m, x: normed(m.norm, x)[0].relu(), X),
    "flatten": (lambda m, x: (x.flatten(1), x.flatten(), x.flatten(2, 3) + 1), X),
    "unflatten": (lambda m, x: torch.unflatten(x, 1, (2, -1)), X),
    "reshape": (lambda m, x: (x.reshape(2, -1), x.reshape(2, 4, 6, 6), x.reshape(-1) + 1), X),
    "softmax": (lambda m, x: x.softmax(-1) + F.softmax(x, 1), X),
    "relu6": (lambda m, x: F.relu6(x * 8), X),
    "dropout": (lambda m, x: (F.dropout(x, 0.5, False) + 1, F.dropout(x, 0.1, False)), X),
    "pad": (lambda m, x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, -1, 0), value=float("-inf"))), X),
    "chunk": (lambda m, x: [a + 1 for a in x.chunk(4, 2)], X),
    "chunk along the first axis": (lambda m, x: [a + 1 for a in x.chunk(2)], X),
    "chunk unevenly": (lambda m, x: x.chunk(3, -1)[1] * 2 if x.shape[-1] else x, X[..., :5]),
    "square": (lambda m, x: x.square().sum(1), X),
    "a recurrence that nobody reads": (lambda m, x: (m.steps(x.reshape(6, 8, 6))[0], x + 1)[1], X),
    "nothing is read": (lambda m, x: (x.flatten(1), x + 1)[1], X),
    "what comes in": (lambda m, x: (x, x.flatten(1)), X),
    "in place": (lambda m, x: (x + 1).relu_(), X),
    "in place, and read by its old name": (lambda m, x: old_name(x + 1), X),
    "in place, many times": (lambda m, x: m.norm(x).relu_().add_(x, alpha=2).clamp_(0, 1) * x, X),
    "in place of a convolution": (lambda m, x: F.relu6(m.image(x), inplace=True) + 1, X),
    "in place, and no view behind it": (lambda m, x: F.silu(m.norm(x), True).sum(1), X),
    "in place, and dropout behind it": (lambda m, x: F.dropout((x + 1).relu_(), 0.5, False), X),
    "in place, and read before": (lambda m, x: read_before(x + 1), X),
    "in place, at the end": (lambda m, x: [y := x + 1, F.hardswish(y, inplace=True)], X),
    "dropout in place": (lambda m, x: F.dropout(x.flatten(1), 0.5, False, True) + 1, X),
}
TRACED: dict[str, tuple[Callable[[Does, Tensor], Any], Tensor]] = {
    "written to an input": (lambda m, x: x.relu_() + 1, X),
    "written to a view": (lambda m, x: (x + 1)[:, :2].relu_(), X),
    "a view was taken before": (lambda m, x: seen_before(x + 1), X),
    "to a power": (lambda m, x: (x + 1).pow_(2), X),
    "a view that does not say so": (lambda m, x: silent_before(x + 1), X),
    "a view behind dropout": (lambda m, x: F.dropout(F.silu(x + 1, True), 0.5, False, True)[0], X),
    "dropout was before": (lambda m, x: dropped_before(x + 1), X),
    "a view is taken behind it": (lambda m, x: F.silu(x + 1, True).flatten(1), X),
    "what may be a view was": (lambda m, x: flat_before(x + 1), X),
    "one of several": (lambda m, x: (x + 1).chunk(2, 1)[0].relu_(), X),
    "written elsewhere": (lambda m, x: (x + 1).copy_(x.transpose(2, 3)), X),
    "of a narrower dtype": (lambda m, x: (x + 1).add_(x.double()), X),
    "padding by name": (lambda m, x: F.conv2d(x, m.image.weight, padding="same", groups=2), X),
    "one image": (lambda m, x: m.image(x), X[0]),
    "another mode": (lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect"), X),
    "what is not beside each other": (lambda m, x: x.transpose(1, 3).flatten(1), X),
    "softmax in another dtype": (lambda m, x: x.softmax(-1, torch.float64), X),
    "reshaped where it is turned": (lambda m, x: x.transpose(1, 2).reshape(2, -1), X),
    "flat already": (lambda m, x: x.flatten(1), X.reshape(8, 36)),
    "products": (lambda m, x: x @ x.transpose(2, 3), X),
    "statistics of the batch": (lambda m, x: F.batch_norm(x, None, None, training=True), X),
}


def captured(model: nn.Module, args: tuple[Any, ...]) -> Captured:
    return from_torch.capture(model.eval(), args)


def same(model: nn.Module, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    export, programs = from_torch._exported, list[Any]()

    def exported(*args: Any) -> Any:
        """One program for both: exporting is what takes long."""
        if not programs:
            programs.append(export(*args))
        return programs[0]

    def counted(program: torch.export.ExportedProgram) -> torch.fx.Graph | None:
        graph = direct(program)
        asked.append(graph is not None)
        return graph

    monkeypatch.setattr(from_torch, "_exported", exported)
    monkeypatch.setattr(from_torch, "direct", counted)
    found = captured(model, args)
    monkeypatch.setattr(from_torch, "direct", lambda program: None)
    traced = captured(model, args)
    assert asked == [True]
    assert text_graph(found.graph) == text_graph(traced.graph)
    assert (found.graph, found.signature) == (traced.graph, traced.signature)
    assert found.sources == traced.sources


@pytest.mark.parametrize("name", ["googlenet", "bert_base", "sru", "deepfm"])
def test_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same(ZOO[name].build("tiny"), ZOO[name].inputs("tiny", 1), monkeypatch)


@pytest.mark.parametrize("name", SPELLED)
def test_spellings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = SPELLED[name]
    same(Does(function), (x,), monkeypatch)


def test_an_input_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    same(nn.Sequential(nn.Flatten(), nn.ReLU()), (X,), monkeypatch)  # it is called `input` there


@pytest.mark.parametrize("name", TRACED)
def test_what_is_traced(name: str) -> None:
    function, x = TRACED[name]
    with torch.no_grad():
        program = torch.export.export(Does(function).eval(), (x,), strict=False)
    assert direct(program) is None


def test_a_power_in_place_is_captured() -> None:
    """There is a `pow` of the same overload's name, of a number and a tensor."""
    assert captured(Does(lambda m, x: (x + 1).pow_(2)), (X,)).graph.nodes


def test_each_spelling_is_tried() -> None:
    found = set[str]()
    for function, x in SPELLED.values():
        with torch.no_grad():
            program = torch.export.export(Does(function).eval(), (x,), strict=False)
        found |= {str(node.target) for node in program.graph.nodes}
    assert found >= SPELLINGS.keys()
