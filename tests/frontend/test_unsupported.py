"""Models and inputs that no graph can hold are refused in words of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import anabranch
from anabranch.errors import CaptureError

X = torch.randn(2, 4)
SCRIPT: Any = torch.jit.script


class Own(torch.Tensor):
    pass


class DataParallel(nn.Module):
    """Only by its name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        result: torch.Tensor = self.gru(packed)[0].data.softmax(0)
        return result


def own_weight() -> nn.Module:
    net = nn.Linear(4, 3)
    net.weight = nn.Parameter(net.weight.detach().as_subclass(Own), requires_grad=False)
    return net


def quantised() -> nn.Module:
    dynamic: Any = torch.ao.quantization.quantize_dynamic
    net: nn.Module = dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear}, dtype=torch.qint8)
    return net


def compiled(model: Any, *args: Any) -> Any:
    if isinstance(model, nn.Module):
        model.eval()
    return anabranch.compile(model, args, target="cpu", cache_dir=None, search="none")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: SCRIPT(nn.Linear(4, 3)), "the model is TorchScript"),
        (lambda: nn.Sequential(nn.ReLU(), SCRIPT(nn.Linear(4, 3))), "the part 1 is TorchScript"),
        (lambda: SCRIPT(lambda_free), "the model is TorchScript"),
        (quantised, r"the part 0 is quantised: torch\.ao"),
        (
            lambda: nn.Sequential(nn.LazyLinear(3)),
            r"the weight 0\.weight has no shape yet(.|\n)*once",
        ),
        (own_weight, "the weight weight is a Own"),
        (lambda: nn.DataParallel(nn.Linear(4, 3)), r"the model is a DataParallel(.|\n)*\.module"),
    ],
)
def test_models(model: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        compiled(model(), X)


def lambda_free(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: pack_padded_sequence(torch.randn(2, 3, 4), torch.tensor([3, 2]), True),
         r"the input args\[0\] is a PackedSequence(.|\n)*lengths"),
        (lambda: torch.nested.nested_tensor([X, X]), "is a nested tensor"),
        (lambda: X.as_subclass(Own), r"is a Own(.|\n)*as_subclass"),
        (lambda: 2j, r"is the complex number 2j(.|\n)*torch\.tensor\(2j\)"),
        (lambda: X.numpy(), "is a numpy ndarray"),
        (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "is quantised"),
    ],
)  # fmt: skip
def test_inputs(value: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        compiled(lambda x: x, value())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: (x, 3j), r"returns a complex number that is no tensor(.|\n)*torch\.tensor"),
        (lambda x: torch.full((2,), 1 + 2j), r"aten\.full(.|\n)*number \(1\+2j\)(.|\n)*tensor\("),
        (lambda x: torch.add(x + 0j, x, alpha=2j), r"aten\.add(.|\n)*2j(.|\n)*torch\.tensor\(2j"),
    ],
)
def test_complex_numbers_that_a_graph_cannot_keep(function: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        compiled(function, X)


def test_packed_rows_that_are_mixed_are_named() -> None:
    with pytest.raises(CaptureError, match=r"the model packs sequences(.|\n)*test_unsupported\.py"):
        compiled(Packs(), torch.randn(2, 3, 4), torch.tensor([3, 2]))


def test_what_only_looks_so_is_compiled() -> None:
    net = DataParallel()
    assert torch.equal(compiled(net, X)(X), X + 1)
    mixed = compiled(lambda x, y: x + y, X, X.half())
    assert torch.equal(mixed(X, X.half()), X + X.half())
    assert torch.equal(compiled(lambda x: x * torch.tensor(2j), X)(X), X * 2j)


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class Named(NamedTuple):
    y: torch.Tensor
    colour: Colour


class Holds:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


class Returns(nn.Module):
    def __init__(self, what: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self.linear(x))


RETURNED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "an enum": (lambda y: Colour.RED, r"returns Colour\.RED, a member of an Enum"),
    "beside a tensor": (lambda y: (y, Level.LOW), r"returns Level\.LOW, a member of an Enum"),
    "in a named tuple": (lambda y: Named(y, Colour.RED), r"returns Colour\.RED, a member"),
    "an object": (lambda y: Holds(y), r"an object of class \S+Holds"),
    "a set": (lambda y: {y}, "an object of class set$"),
    "a type": (lambda y: (y, y.dtype), r"an object of class torch\.dtype"),
    "a complex number": (lambda y: (y, 1j), "a complex number that is no tensor"),
}


@pytest.mark.parametrize("name", RETURNED)
def test_results_that_no_plan_gives_back_are_said(name: str) -> None:
    what, said = RETURNED[name]
    with pytest.raises(CaptureError) as refused:
        anabranch.compile(Returns(what).eval(), (X,), target="cpu", cache_dir=None)
    assert re.search(f"^the model {said}" if "returns" in said else said, refused.value.what)


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_training_step_gives_beside_its_loss_is_checked_too(name: str) -> None:
    """It would be given back as it was while the graph was made, with tensors without values."""
    what, said = RETURNED[name]
    model = Returns(what)

    def loss_fn(model: Any, x: torch.Tensor) -> Any:
        return model.linear(x).sum(), model(x)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(CaptureError) as refused:
        anabranch.compile_step(model, loss_fn, optimizer, (X,), target="cpu", cache_dir=None)
    assert refused.value.what.startswith("loss_fn returns")
    assert re.search(said, refused.value.what)


def test_a_model_that_is_cut_says_what_it_returns() -> None:
    class Distribution(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.distributions.Normal(x, 1.0)

    with pytest.raises(CaptureError, match=r"an object of class torch\.distributions\.normal"):
        anabranch.compile(Distribution().eval(), (X,), target="cpu", cache_dir=None)


@pytest.mark.parametrize("member", [Colour.RED, Level.LOW])
def test_members_of_an_enum_are_no_inputs(member: Enum) -> None:
    def scaled(x: torch.Tensor, how: Enum) -> torch.Tensor:
        return x * 2

    with pytest.raises(CaptureError, match=r"is \w+\.\w+, a member of an Enum") as refused:
        anabranch.compile(scaled, (X, member), target="cpu", cache_dir=None)
    assert ".value" in refused.value.next
