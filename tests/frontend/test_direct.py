"""What is not traced once more is, name for name, what a trace makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.frontend import from_torch
from anabranch.frontend.captured import Captured
from anabranch.frontend.composites import TAKEN_APART
from anabranch.frontend.direct import SPELLINGS, direct, taken_apart
from anabranch.frontend.operators import decompositions
from anabranch.frontend.surroundings import neutral
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
        self.table, self.held = nn.Parameter(torch.rand(6, 8)), nn.Buffer(torch.rand(6, 8))

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


def silent_before(x: Tensor) -> Tensor:
    y: Tensor = torch.ops.aten._unsafe_view(x, [2, -1])
    x.relu_()
    return y


def flat_before(x: Tensor) -> Tensor:
    y = x.flatten(1)
    x.relu_()
    return y


X = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
ROWS = torch.tensor([[0, 5, 2], [1, 1, 3]])
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
APART: tuple[Callable[[Does, Tensor], Any], ...] = (
    lambda m, x: x @ x.transpose(2, 3),
    lambda m, x: (x[0, 0] @ m.table, x.transpose(2, 3) @ m.table, m.table @ x[0, 0].new_ones(8)),
    lambda m, x: (x[0] @ m.held, m.held.T @ x, m.table.detach().T @ x),
    lambda m, x: (x @ x, x @ x + 1)[1],  # a product that nobody reads, and that is counted
    lambda m, x: (x[0, 0, 0].outer(x[0, 1, 0]), torch.tensordot(x, x, [[1], [1]])),
    lambda m, x: torch.einsum("bcij,jk->kbc", x, m.held),
    lambda m, x: x * torch.tensor(2.0) + torch.ones(6).clone(),
    lambda m, x: (x.transpose(1, 2).reshape(2, -1), x.transpose(1, 3).flatten(1)),
    lambda m, x: (torch.unflatten(x.transpose(1, 3), 1, (2, 3)), x.flatten(1).flatten(1)),
    lambda m, x: (x.mT, x[0, 0].T, x.movedim(1, 0), x.movedim((0, 1), (2, 0))),
    lambda m, x: (x.swapaxes(1, 2), x.narrow(3, 1, 2), x.mT.contiguous()),
    lambda m, x: (x.view_as(x + 1), x[:1].expand_as(x), x.type_as(x.int())),
    lambda m, x: (x.tile(2), x.repeat_interleave(2, 1), x.repeat_interleave(3)),
    lambda m, x: (torch.concat([x, x], 1), torch.hstack([x, x])),
    lambda m, x: (x.double(), x.to(ROWS), x.to("cpu"), x.to(x.dtype) + 1, x.to("cpu", x.dtype)),
    lambda m, x: (x.double().int(), x + 1)[1],
    lambda m, x: (x.softmax(-1, torch.float64), x.log_softmax(1), x.log_softmax(0, torch.double)),
    lambda m, x: (F.selu(x), x.where(x > 0, 1), torch.where(x > 0, 1.0, x)),
    lambda m, x: torch.where(x > 0, 1.0, 2.0) * x,
    lambda m, x: x.clip(0, 1).multiply(x).divide(x + 2).true_divide(x - 9),
    lambda m, x: (x.var(1), x.std(1, keepdim=True), torch.var_mean(x, 2)[0]),
    lambda m, x: (x.var(), x.std(), torch.var_mean(x, 1)),
    lambda m, x: (torch.linalg.norm(x), torch.linalg.norm(x, dim=1)),
    lambda m, x: F.conv1d(x.flatten(2), m.line.weight, padding="valid"),
    lambda m, x: F.conv2d(x, m.image.weight, padding="same", groups=2),
    lambda m, x: F.conv2d(torch.complex(x, x + 1), m.image.weight * 1j, groups=2),
    lambda m, x: F.conv3d(x.reshape(1, 4, 3, 4, 6), m.solid.weight, padding="same"),
    lambda m, x: (m.line(x[0, 0, :4]), m.image(x[0]), m.solid(x.reshape(4, 3, 4, 6))),
    lambda m, x: F.conv_transpose1d(x.flatten(2)[..., :6].mT, m.line.weight),
    lambda m, x: F.conv_transpose2d(x, x[:1].reshape(4, 1, 6, 6), None, 2),
    lambda m, x: F.conv_transpose3d(x.reshape(2, 2, 2, 6, 6), m.solid.weight),
    lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    lambda m, x: F.grid_sample(x, x[..., :2], align_corners=False),
    lambda m, x: F.embedding_bag(ROWS, m.table),
    lambda m, x: F.embedding_bag(ROWS, m.held, mode="sum", padding_idx=1),
)
"""Of which each consists of other calls."""
TRACED: dict[str, tuple[Callable[[Does, Tensor], Any], Tensor]] = {
    "written to an input": (lambda m, x: x.relu_() + 1, X),
    "written to a view": (lambda m, x: (x + 1)[:, :2].relu_(), X),
    "a view was taken before": (lambda m, x: seen_before(x + 1), X),
    "to a power": (lambda m, x: (x + 1).pow_(2), X),
    "a view that does not say so": (lambda m, x: silent_before(x + 1), X),
    "a view behind dropout": (lambda m, x: F.dropout(F.silu(x + 1, True), 0.5, False, True)[0], X),
    "a view is taken behind it": (lambda m, x: F.silu(x + 1, True).flatten(1), X),
    "what may be a view was": (lambda m, x: flat_before(x + 1), X),
    "one of several": (lambda m, x: (x + 1).chunk(2, 1)[0].relu_(), X),
    "written elsewhere": (lambda m, x: (x + 1).copy_(x.transpose(2, 3)), X),
    "of a narrower dtype": (lambda m, x: (x + 1).add_(x.double()), X),
    "products of what may have a gradient": (lambda m, x: (m.table[:, :6] + 1) @ x[0], X),
    "rows of what may have a gradient": (lambda m, x: F.embedding_bag(ROWS, m.table * 2), X),
    "a constant before what a layer holds": (lambda m, x: m.norm(x + torch.tensor(2.0)), X),
    "padded in a circle": (lambda m, x: F.pad(x, (1, 1, 1, 1), mode="circular"), X),
    "numbers of the code, written to": (lambda m, x: torch.tensor([1.0, 2]).add_(x.sum()), X),
    "let go of in place": (lambda m, x: (x + 1).detach_(), X),
    "statistics of the batch": (lambda m, x: F.batch_norm(x, None, None, training=True), X),
}


def apart(m: Does, x: Tensor) -> list[Any]:
    return [function(m, x) for function in APART]


ALL = {**SPELLED, **TRACED, "apart": (apart, X)}


def captured(model: nn.Module, args: tuple[Any, ...]) -> Captured:
    return from_torch.capture(model.eval(), args)


@cache
def exported(name: str) -> tuple[nn.Module, tuple[Any, ...], Any]:
    """One program for all that is asked of it: exporting is what takes long."""
    function, x = ALL[name]
    model = Does(function).eval()
    with neutral():
        return model, (x,), from_torch._exported(model, (x,), {})


def same(
    model: nn.Module, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, program: Any = None
) -> None:
    asked: list[bool] = []
    export, programs = from_torch._exported, [program] if program else []

    def exported(*args: Any) -> Any:
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


@pytest.mark.parametrize("name", ["bert_base", "sru", "deepfm"])
def test_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same(ZOO[name].build("tiny"), ZOO[name].inputs("tiny", 1), monkeypatch)


@pytest.mark.parametrize("name", [*SPELLED, "apart"])
def test_spellings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same(*exported(name)[:2], monkeypatch, exported(name)[2])


class Calls(nn.Module):
    """Many calls of tensors that come in, are weights, or are held."""

    def __init__(self, calls: Sequence[Callable[[list[Tensor]], Any]], tensors: list[Tensor]):
        super().__init__()
        self.calls, self.count = calls, len(tensors)
        self.weights = nn.ParameterList(
            nn.Parameter(one, one.is_floating_point()) for one in tensors[1::3]
        )
        for index, tensor in enumerate(tensors[2::3]):
            self.register_buffer(f"held_{index}", tensor)

    def forward(self, *given: Tensor) -> list[Any]:
        kinds = [list(given), list(self.weights), list(self.buffers())]
        tensors = [kinds[i % 3][i // 3] for i in range(self.count)]
        return [call(tensors) for call in self.calls]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "turned": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "first axis last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "repeated": lambda x: x[:1].expand(x.shape),
}


def products(draw: random.Random) -> Iterator[tuple[list[Tensor], Callable[..., Any]]]:
    """Two operands each. Only what comes in, or is held, lies otherwise: of what is computed from a
    weight it is not known whether it has a gradient."""
    batches = [((), ()), ((), (2,)), ((2,), ()), ((2,), (2,)), ((1,), (2,)), ((3, 2), (2,))]
    batches += [((1, 2), (3, 1)), ((2, 1, 2), (3, 1)), ((2,), (1,)), ((0,), ())]
    while True:
        rows, inner, columns = (draw.choice((1, 2, 3)) for _ in range(3))
        first, second = draw.choice(batches)
        shapes = [(*first, rows, inner), (*second, inner, columns)]
        if not draw.randrange(6):
            shapes[draw.randrange(2)] = (inner,)
        layouts = [draw.choice(list(LAYOUTS)) for _ in shapes]
        operands = [torch.rand(shape) for shape in shapes]
        yield (
            operands,
            lambda pair, layouts=layouts: torch.matmul(
                *(
                    one if isinstance(one, nn.Parameter) else LAYOUTS[layout](one)
                    for one, layout in zip(pair, layouts, strict=True)
                )
            ),
        )


MOVES: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x.reshape(-1),
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.reshape(-1, x.shape[-1]),
    lambda x: x.reshape(*x.shape[:-1], 1, -1),
    lambda x: x.flatten(),
    lambda x: x.flatten(1),
    lambda x: x.flatten(0, -2),
    lambda x: torch.unflatten(x, 0, (-1, 1)),
    lambda x: x.contiguous(),
    lambda x: x.mT.contiguous(),
    lambda x: x.mT.reshape(x.shape),
    lambda x: x.double(),
    lambda x: x.int(),
    lambda x: x.to(torch.float16, copy=True),
    lambda x: x.to(x.dtype, memory_format=torch.contiguous_format),
    lambda x: torch.einsum("...ij->...ji", x),
    lambda x: torch.einsum("...ij,...kj->...ik", x, x),
    lambda x: torch.einsum("...ij->...i", x),
)


def moves(draw: random.Random) -> Iterator[tuple[list[Tensor], Callable[..., Any]]]:
    while True:
        shape = tuple(draw.choice((1, 2, 3)) for _ in range(draw.choice((2, 3, 4))))
        dtype = draw.choice((torch.float32, torch.float16, torch.float64, torch.int64))
        layout, move = LAYOUTS[draw.choice(list(LAYOUTS))], draw.choice(MOVES)
        yield (
            [torch.ones(shape, dtype=dtype)],
            lambda pair, layout=layout, move=move: move(layout(pair[0])),
        )


@pytest.mark.parametrize("kind", [products, moves])
def test_drawn(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors: list[Tensor] = []
    calls: list[Callable[[list[Tensor]], Any]] = []

    def reads(call: Callable[..., Any], first: int, last: int) -> None:
        calls.append(lambda of: call(of[first:last]))

    drawn = kind(random.Random(1))
    for _ in range(50):
        operands, call = next(drawn)
        reads(call, len(tensors), len(tensors) + len(operands))
        tensors += operands
    same(Calls(calls, tensors), tuple(tensors[::3]), monkeypatch)


def test_in_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.inference_mode():
        model = Does(lambda m, x: (x[0] @ m.table[:, :6], x.transpose(1, 2).flatten(1)))
    same(model, (X,), monkeypatch)


def test_an_input_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    same(nn.Sequential(nn.Flatten(), nn.ReLU()), (X,), monkeypatch)  # it is called `input` there


@pytest.mark.parametrize("name", TRACED)
def test_what_is_traced(name: str) -> None:
    assert direct(exported(name)[2][0]) is None


def test_a_power_in_place_is_captured() -> None:
    """There is a `pow` of the same overload's name, of a number and a tensor."""
    assert captured(Does(lambda m, x: (x + 1).pow_(2)), (X,)).graph.nodes


def test_each_spelling_is_tried() -> None:
    found = set[str]()
    for name in (*SPELLED, "apart"):
        found |= {str(node.target) for node in exported(name)[2][0].graph.nodes}
    assert found >= SPELLINGS.keys()
    assert found >= TAKEN_APART


def test_what_a_trace_takes_apart_is_known_without_its_table() -> None:
    table = decompositions()
    assert table and all(map(taken_apart, table))
    whole = (torch.ops.aten.linear.default, torch.ops.aten.layer_norm.default)
    assert not any(op in table or taken_apart(op) for op in (*whole, torch.ops.aten.mm.default))


def test_no_table_is_made_for_a_program_that_is_not_traced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise AssertionError("the table takes a tenth of a second")

    monkeypatch.setattr(torch.export, "default_decompositions", refused)
    decompositions.cache_clear()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    captured = from_torch.capture(model, (torch.ones(1, 3, 8, 8),))
    assert len(captured.graph.nodes) >= 3
