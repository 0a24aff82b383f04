"""What a model asks of its inputs beside their numbers: a call that answers otherwise is refused in
words, or runs right where the answer decides nothing; what cannot be checked is warned about."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import CaptureError, InputError

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def others() -> Iterator[Tensor]:
    """Tensors of the example's shape and dtype that are not as it is."""
    yield X + 1
    yield torch.randn(6, 4).t()
    yield torch.randn(30)[5:29].view(4, 6)
    yield torch.randn(4, 12)[:, ::2]
    yield torch.randn(1, 6).expand(4, 6)
    yield nn.Parameter(X.clone())
    yield nn.Parameter(X.clone()) * 1
    with torch.inference_mode():
        made = X + 1
    yield made
    flagged: Any = X.clone()
    flagged.flag = 1
    yield flagged


class Asks(nn.Module):
    def __init__(self, question: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.question = question

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.question(x) else x * 3


QUESTIONS: dict[str, Callable[[Tensor], bool]] = {
    "x.stride() is": lambda x: x.stride()[0] > 1,
    "x.is_contiguous() is": lambda x: x.is_contiguous(),
    "x.stride()  is": lambda x: x.is_contiguous(memory_format=torch.contiguous_format),
    "the strides of x, without those of size 1, are": lambda x: (x + 1).is_contiguous(),
    "x.stride()   is": lambda x: x.dim_order() == (0, 1),
    "x.storage_offset() is": lambda x: x.storage_offset() == 0,
    "x.requires_grad is": lambda x: x.requires_grad,
    "x.is_leaf is": lambda x: x.is_leaf,
    "x.grad_fn is there:": lambda x: x.grad_fn is None,
    "x.is_inference() is": lambda x: x.is_inference(),
    "x.requires_grad  is": lambda x: getattr(x, "requires_grad"),  # noqa: B009
    "the user's attributes of x are": lambda x: hasattr(x, "flag"),
    "the class of x is": lambda x: isinstance(x, nn.Parameter),
}


def quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


@pytest.mark.parametrize("told", QUESTIONS)
def test_another_answer_is_refused_in_words(told: str, tmp_path: Path) -> None:
    model = Asks(QUESTIONS[told]).eval()
    fast = anabranch.compile(model, (X,), **QUICK)
    fast.save(tmp_path / "plan")
    loaded = anabranch.load(tmp_path / "plan", target="cpu")
    refused = 0
    for x in others():
        for one in (fast, loaded):
            try:
                got = quietly(lambda one=one, x=x: one(x))  # type: ignore[misc]
            except InputError as error:
                refused += 1
                assert " ".join(told.split()) in error.why or "attributes" in error.why
                assert "test_input_queries.py:" in error.why or "the " in error.why[:4]
            else:
                assert torch.equal(got, model(x))
    assert refused >= 2 and refused % 2 == 0
    fast.add((torch.randn(6, 4).t(),))  # as another signature: both are answered
    assert torch.equal(fast(X), model(X))


def test_what_decides_nothing_is_not_checked() -> None:
    class Lays(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not x.is_contiguous():
                x = x.contiguous()
            _ = x.requires_grad, isinstance(x, nn.Parameter)
            return x * 2

    fast = anabranch.compile(Lays().eval(), (X,), **QUICK)
    for x in others():
        assert torch.equal(quietly(lambda x=x: fast(x)), x * 2)  # type: ignore[misc]


def test_what_the_example_does_not_show_is_checked() -> None:
    class Limits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp(max=50.0 if x.is_contiguous() else 60.0)

    fast = anabranch.compile(Limits().eval(), (X,), **QUICK)
    with pytest.raises(InputError, match=r"x.is_contiguous\(\) is False"):
        fast(torch.randn(6, 4).t())


def test_a_question_that_is_new_is_asked_of_a_graph_that_is_known(tmp_path: Path) -> None:
    """The same operators are called of the example: the graph is recalled."""
    looks = [False]

    class Limits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp(max=60.0 if looks[0] and not x.is_contiguous() else 50.0)

    for now in (False, True):
        looks[0] = now
        fast = anabranch.compile(Limits().eval(), (X,), **{**QUICK, "cache_dir": tmp_path})
    assert any(event.what == "Limits" and "recalled" in event.why for event in fast.trace.events)
    with pytest.raises(InputError, match=r"x.is_contiguous\(\) is False"):
        fast(torch.randn(6, 4).t())


def test_questions_about_weights_are_none_about_inputs() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale if self.scale.stride() == (1,) else x

    fast = anabranch.compile(Own().eval().requires_grad_(False), (X,), **QUICK)
    for x in others():
        assert torch.equal(quietly(lambda x=x: fast(x)), x)  # type: ignore[misc]


def test_what_no_call_can_be_checked_against_is_warned_about() -> None:
    with pytest.warns(
        UserWarning, match=r"forward reads _version of a tensor at test_input_queries"
    ):
        anabranch.compile(Asks(lambda x: x._version == 0).eval(), (X,), **QUICK)
    with (
        pytest.warns(UserWarning, match=r"forward reads data_ptr\(\) of a tensor at test_input"),
        pytest.raises(CaptureError, match="the model reads where a tensor lies in memory"),
    ):
        anabranch.compile(Asks(lambda x: x.data_ptr() % 16 == 0).eval(), (X,), **QUICK)


def test_an_example_that_is_not_what_is_captured_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"args\[0\].requires_grad is True, compiled for False"):
        anabranch.compile(Asks(lambda x: x.requires_grad).eval(), (nn.Parameter(X),), **QUICK)


def test_inputs_by_name_and_in_containers() -> None:
    class Nested(nn.Module):
        def forward(self, pair: list[Tensor], *, more: dict[str, Tensor]) -> Tensor:
            scale = 2 if more["y"].is_contiguous() else 3
            return (pair[0] + pair[1] + more["x"]) * scale + more["y"]

    model, turned = Nested().eval(), torch.randn(6, 4).t()
    fast = anabranch.compile(model, ([X, X + 1],), {"more": {"x": X, "y": X + 2}}, **QUICK)
    given = [turned, X], {"x": turned, "y": X}
    assert torch.equal(fast(given[0], more=given[1]), model(given[0], more=given[1]))
    with pytest.raises(InputError, match=r"more\['y'\].is_contiguous\(\) is False"):
        fast([X, X], more={"x": X, "y": turned})


@pytest.mark.parametrize("looks", [lambda x, y: x is y, lambda x, y: id(x) == id(y)])
def test_one_tensor_in_two_places(looks: Callable[[Tensor, Tensor], bool]) -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
            return (x if looks(x, y) else x * 2) + (0 if mask is None else mask)

    model, mask = Pair().eval(), torch.ones(6)
    fast = anabranch.compile(model, (X, X + 1, mask), **QUICK)
    assert torch.equal(fast(X, X + 1, mask), model(X, X + 1, mask))
    with pytest.raises(InputError, match=r"x and y are one tensor, which the model looks for"):
        fast(X, X, mask)


def test_values_do_not_tell_which_inputs_are_one_tensor() -> None:
    """A mask of the same type as the numbers, whose values the model looks at."""

    class Masks(nn.Module):
        def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            own = mask is X
            whole = torch.compiler.is_compiling() or own or bool(mask.all())
            return x + y if whole else (x + y) * mask

    ones = torch.ones(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = anabranch.compile(Masks().eval(), (X * 0, X, ones), **QUICK)
    assert torch.equal(fast(X, X, ones), X + X)


def test_two_places_that_nobody_compares_may_be_one_tensor() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            _ = self.training is x.requires_grad
            return x * 2 + y

    fast = anabranch.compile(Pair().eval(), (X, X + 1), **QUICK)
    assert torch.equal(fast(X, X), X * 2 + X)


FORMS: dict[str, tuple[Callable[[Any], Tensor], Any, Any]] = {
    "order": (lambda d: torch.cat(list(d.values())), {"a": X, "b": X + 1}, {"b": X, "a": X + 1}),
    "kind": (lambda p: p[0] * 2 if isinstance(p, list) else p[0], [X, X + 1], (X, X + 1)),
}


@pytest.mark.parametrize("what", FORMS)
def test_containers_of_another_form_are_refused_where_the_model_looks(what: str) -> None:
    function, given, other = FORMS[what]
    fast = anabranch.compile(function, (given,), **QUICK)
    assert torch.equal(fast(given), function(given))
    with pytest.raises(InputError, match="keys in another order than was compiled"):
        fast(other)
    fast.add((other,))
    assert torch.equal(fast(other), function(other))
    assert torch.equal(fast(given), function(given))


def test_what_two_stars_gather_has_an_order() -> None:
    def joined(x: Tensor, **more: Tensor) -> Tensor:
        return torch.cat([x, *more.values()])

    fast = anabranch.compile(joined, (X,), {"a": X, "b": X + 1}, **QUICK)
    assert torch.equal(fast(a=X, x=X, b=X + 1), torch.cat([X, X, X + 1]))
    with pytest.raises(InputError, match="more has a list where a tuple was, or keys in another"):
        fast(X, b=X + 1, a=X)


def test_containers_of_another_form_are_taken_where_it_does_not() -> None:
    def free(pair: Any, named: Any) -> Tensor:
        made: Tensor = pair[0] * 2 + pair[1] + named["x"] - named["y"]
        return made

    fast = anabranch.compile(free, ([X, X + 1], {"x": X, "y": X + 3}), **QUICK)
    given = (X, X + 1), {"y": X + 3, "x": X}
    assert torch.equal(fast(*given), free(*given))


def test_a_constant_that_is_returned_is_nobodys_to_write_to() -> None:
    class Returns(nn.Module):
        b: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.ones(6))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + self.b, self.b[:3]

    fast = anabranch.compile(Returns().eval(), (X,), outputs="view", **QUICK)
    fast(X)[1].mul_(5)
    got, part = fast(X)
    assert torch.equal(got, X + 1) and torch.equal(part, torch.ones(3))
