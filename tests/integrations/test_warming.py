"""Warming: all sizes are compiled ahead, and no call compiles anything."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.errors import InputError, OptionError
from anabranch.integrations import dynamo
from anabranch.integrations.training_pass import TrainingPass

QUICK: dict[str, Any] = {
    "search": "none",
    "horizontal_fusion": "none",
    "pdl": "off",
    "cache_dir": None,
}


@pytest.fixture(name="made")
def _made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many plans the backend has made."""
    torch._dynamo.reset()
    made: list[int] = []
    compile = dynamo._Lazy._compile

    def counted(self: Any, given: list[Any]) -> Any:
        made.append(1)
        return compile(self, given)

    monkeypatch.setattr(dynamo._Lazy, "_compile", counted)
    yield made
    torch._dynamo.reset()


def backend(model: nn.Module, **how: Any) -> Any:
    return torch.compile(model.eval(), backend="anabranch", options=QUICK, **how)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x).relu()
        return y, y.sum(-1)


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).transpose(0, 1).flatten(0, 1)


def test_rows_that_share_an_axis_of_the_result_are_cut_for_each_size(made: list[int]) -> None:
    net = Tokens()
    model = anabranch.warm(
        backend(net, dynamic=True), [torch.randn(b, s, 8) for b, s in ((4, 6), (16, 12))]
    )
    count = len(made)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for b, s in ((3, 5), (7, 12), (16, 5), (2, 11), (4, 6)):
            x = torch.randn(b, s, 8)
            torch.testing.assert_close(model(x), net(x), rtol=0, atol=0)
    assert len(made) == count


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_sizes_between_warmed_ones_are_padded(made: list[int]) -> None:
    net = Net()
    model = backend(net, dynamic=True)
    assert anabranch.warm(model, [torch.randn(n, 8) for n in (4, 16)]) is model
    assert len(made) == 2
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (4, 16, 3, 9, 15):
            x = torch.randn(n, 8)
            for got, want in zip(model(x), net(x), strict=True):
                torch.testing.assert_close(got, want)
    assert len(made) == 2


def test_what_cannot_be_padded_runs_as_it_is(made: list[int]) -> None:
    net = Centred()
    model = anabranch.warm(backend(net, dynamic=True), [torch.randn(n, 8) for n in (4, 16)])
    count = len(made)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="runs uncompiled"):
            x = torch.randn(7, 8)
            torch.testing.assert_close(model(x), net(x))
        with warnings.catch_warnings():  # once told
            warnings.simplefilter("error")
            torch.testing.assert_close(model(x), net(x))
        with pytest.warns(UserWarning, match="runs uncompiled"):
            one = torch.randn(1, 8)  # a graph of its own
            torch.testing.assert_close(model(one), net(one))
    assert len(made) == count


def test_sizes_that_dynamo_finds_out_itself(made: list[int]) -> None:
    net = Net()
    model = anabranch.warm(backend(net), [torch.randn(n, 8) for n in (3, 8, 32)])
    count = len(made)
    with torch.no_grad():
        x = torch.randn(20, 8)
        torch.testing.assert_close(model(x)[0], net(x)[0])
    assert len(made) == count


def test_mark_dynamic(made: list[int]) -> None:
    net, x = Net(), torch.randn(16, 8)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    model = anabranch.warm(backend(net), [x])
    with torch.no_grad():
        few = torch.randn(5, 8)
        torch.testing.assert_close(model(few)[1], net(few)[1])
    assert len(made) == 1


def test_compiled_models_are_warmed_with_sizes_or_calls() -> None:
    net = Net().eval()
    given: dict[str, Any] = {"dynamic_shapes": {"x": {0: Dim("n", max=64)}}, "sizes": [4]}
    fast = anabranch.compile(net, (torch.randn(4, 8),), target="cpu", **given, **QUICK)
    assert anabranch.warm(fast, [16, (8,), 4]) is fast
    assert sorted(entry.at for entry in fast.entries) == [(4,), (8,), (16,)]
    x = torch.randn(11, 8)
    torch.testing.assert_close(fast(x)[0], net(x)[0])
    plain = anabranch.compile(net, (torch.randn(4, 8),), target="cpu", **QUICK)
    anabranch.warm(plain, [torch.randn(5, 8)])
    assert len(plain.entries) == 2
    for wrong, words in (([65], "is not among n"), ([], "nothing to warm"), (["a"], "is no size")):
        with pytest.raises(OptionError, match=words):
            anabranch.warm(fast, wrong)
    with pytest.raises(OptionError, match="a size of nothing"):
        anabranch.warm(plain, [3])


@pytest.mark.parametrize("sizes", [8, torch.zeros(3, 4), {"input": torch.zeros(3, 4)}])
def test_sizes_to_warm_are_a_list(sizes: Any) -> None:
    fast = anabranch.compile(nn.ReLU().eval(), (torch.zeros(2, 4),), target="cpu", **QUICK)
    for warm in (fast.warm, lambda given: anabranch.warm(nn.ReLU(), given)):
        with pytest.raises(OptionError, match="give them in a list"):
            warm(sizes)


def test_what_cannot_be_warmed() -> None:
    with pytest.raises(OptionError, match="ran no graph that Anabranch compiles"):
        anabranch.warm(Net().eval(), [torch.randn(4, 8)])
    with pytest.raises(OptionError, match="is no call"):
        anabranch.warm(Net().eval(), [4])


def test_what_is_compiled_after_a_reset_is_not_closed(made: list[int]) -> None:
    """Dynamo numbers code from 0 again, and another model gets the number of one that is warm."""
    x = torch.randn(2, 4)
    anabranch.warm(torch.compile(nn.Linear(4, 4).eval(), backend="anabranch", options=QUICK), [x])
    torch.compiler.reset()
    other = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()
    fast = torch.compile(other, backend="anabranch", options=QUICK)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(x), other(x))
    assert made == [1, 1]


def test_what_cannot_be_called_is_not_warmed() -> None:
    with pytest.raises(OptionError, match="the model is a str"):
        anabranch.warm("model", [(torch.randn(2, 2),)])


def test_padding_is_proved_while_warming_and_no_call_captures(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    model = anabranch.warm(backend(net, dynamic=True), [torch.randn(n, 8) for n in (4, 16)])

    def refused(*arguments: Any) -> Any:
        raise AssertionError("a call captured its graph")

    monkeypatch.setattr(dynamo._Lazy, "_captured", refused)
    x = torch.randn(7, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], net(x)[0])
    assert len(made) == 2


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[: x.shape[0] // 2].exp()


class Beside(nn.Module):
    def forward(self, x: Tensor, more: dict[str, Tensor]) -> Tensor:
        return x.exp() - more["y"].mean(1)


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return (x * 2).sin() - x.mean(1, keepdim=True)


NOT_PADDED: list[tuple[Any, tuple[Any, ...], str]] = [
    (Centred(), (torch.randn(4, 8),), r"the first axis of x: aten\.mean\.dim: it works along"),
    (
        Halved(),
        (torch.randn(4, 8),),
        r"the first axis of x: .*a size in it is \(x\.shape\[0\]//2\)",
    ),
    (
        Beside(),
        (torch.randn(4, 8), {"y": torch.randn(8, 5)}),
        r"uncompiled: the second axis of more\['y'\]: aten\.mean",
    ),
    (Broken(), (torch.randn(4, 8),), r"uncompiled: the second axis of x: aten\.mean"),
]


@pytest.mark.parametrize("number", range(len(NOT_PADDED)))
def test_warming_says_why_calls_are_not_padded(number: int, made: list[int]) -> None:
    """By the user's inputs, and not by symbols of torch's."""
    model, call, words = NOT_PADDED[number]
    with pytest.warns(UserWarning, match=r"run uncompiled: ") as told:
        anabranch.warm(backend(model, dynamic=True), [call])
    text = " ".join(str(each.message) for each in told)
    assert re.search(words, text)
    assert not re.search(r"\bs\d+\b", text)


def test_calls_that_are_not_padded_are_refused_where_that_is_asked_for(made: list[int]) -> None:
    net = Centred()
    refusing = {**QUICK, "unseen": "refuse"}
    model = torch.compile(net.eval(), backend="anabranch", options=refusing, dynamic=True)
    with pytest.warns(UserWarning, match="are refused: "):
        anabranch.warm(model, [torch.randn(4, 8)])
    with torch.no_grad():
        x = torch.randn(4, 8)
        torch.testing.assert_close(model(x), net(x))
        with pytest.raises(InputError, match="it works along the padded axis"):
            model(torch.randn(3, 8))
        with pytest.raises(InputError, match="after the model was warmed"):
            model(torch.randn(1, 8))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return out


def test_encoders_whose_masks_say_what_is_padding(made: list[int]) -> None:
    def call(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
        lengths = torch.randint(1, tokens + 1, (batch, 1))
        return torch.randn(batch, tokens, 8), torch.arange(tokens) >= lengths

    net = Encoder()
    model = anabranch.warm(backend(net, dynamic=True), [call(4, 8), call(8, 16)])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch, tokens in ((3, 5), (8, 15), (2, 9)):
            inputs = call(batch, tokens)
            torch.testing.assert_close(model(*inputs), net(*inputs))
    assert len(made) == 2


def test_calls_in_other_modes_have_the_plans_that_were_warmed(made: list[int]) -> None:
    net = Net().requires_grad_(False)
    model = backend(net, dynamic=True)
    anabranch.warm(model, [torch.randn(n, 8) for n in (3, 16)])
    count = len(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in (torch.inference_mode(), torch.enable_grad(), torch.no_grad()):
            with mode:
                for n in (3, 7, 16):
                    x = torch.randn(n, 8)
                    torch.testing.assert_close(model(x), net(x))
    assert len(made) == count


def test_calls_that_need_gradients_compile_nothing_after_warming(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingPass, "_compile", lambda *_: pytest.fail("compiles in a call"))
    net = Net()
    model, x = backend(net, dynamic=True), torch.randn(3, 8)
    anabranch.warm(model, [x])
    with pytest.warns(UserWarning, match="needs gradients.*it runs uncompiled"):
        model(x)[1].sum().backward()
    ours = [weight.grad for weight in net.parameters()]
    net.zero_grad()
    net(x)[1].sum().backward()
    torch.testing.assert_close(ours, [weight.grad for weight in net.parameters()])
    torch._dynamo.reset()
    refusing = torch.compile(
        Net().eval(), backend="anabranch", options={**QUICK, "unseen": "refuse"}, dynamic=True
    )
    anabranch.warm(refusing, [x])
    with pytest.raises(InputError, match="needs gradients"):
        refusing(x)


class Cached(nn.Module):
    rows: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.rows += x.sum(0)
        self.count += 1
        return self.rows * self.count


def test_warming_leaves_buffers_as_they_were(made: list[int]) -> None:
    net = Cached()
    net.rows.fill_(3.0)
    model = backend(net, dynamic=True)
    anabranch.warm(model, [torch.randn(n, 8) for n in (3, 5)])
    assert len(made) == 2 and net.count == 0 and bool((net.rows == 3).all())
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x), 3 + x.sum(0))
    assert net.count == 1
