"""Random numbers that are written to a tensor: a seed gives those of eager, however it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontend.laid_otherwise import turned
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import anabranch
from anabranch.errors import InputError
from anabranch.frontend.ordered_draws import DRAWS
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.ir import custom_ops, ops
from anabranch.ir.graph import Node, Ref
from anabranch.ir.types import type_of

OPTIONS: dict[str, Any] = {"target": "cpu", "effort": "fast", "cache_dir": None}
EXAMPLES: dict[str, Callable[[Tensor], Tensor]] = {
    "in rows": lambda x: x.clone(),
    "turned": turned,
}
MODELS: dict[str, Callable[[Tensor], Tensor]] = {
    "bernoulli": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "of a transpose": lambda x: torch.empty_like(x.t()).bernoulli_(0.3),
    "of a part": lambda x: (x * 2)[:, 1:4].bernoulli_(0.5),
    "by probabilities": lambda x: (x * 2).bernoulli_(torch.linspace(0, 1, 24).view(4, 6)),
    "of an input": lambda x: x.bernoulli_(0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "alpha dropout in place": lambda x: F.alpha_dropout(x * 2, 0.5, True, inplace=True),
    "dropout in place": lambda x: F.dropout(x * 2, 0.5, True, inplace=True),
    "uniform": lambda x: torch.empty_like(x).uniform_(),
    "rand into": lambda x: torch.rand(4, 6, out=x * 2),
    "randn into": lambda x: torch.randn(4, 6, out=x * 2),
    "randint into": lambda x: torch.randint(3, 90, (4, 6), out=x * 2),
    "normal into": lambda x: torch.normal(2.0, 3.0, (4, 6), out=x * 2),
    "bernoulli into": lambda x: torch.bernoulli(torch.full((4, 6), 0.5), out=x * 2),
    "into another size": lambda x: torch.rand(4, 6, out=x.new_empty(0)),
}
IN_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.5),
    "normal of tensors": lambda x: torch.normal(x * 2, torch.ones_like(x)),
    "normal of deviations": lambda x: torch.normal(1.0, x.sigmoid()),
    "poisson": lambda x: torch.poisson(x.sigmoid() * 9),
}


def seeded(model: Callable[[Tensor], Any], x: Tensor) -> Any:
    torch.manual_seed(3)
    return model(x)


def cut(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def and_asks(x: Tensor) -> tuple[Tensor, ...]:
        return model(x), x[x > 0], ((x @ x.t()).relu() @ x).tanh()

    return and_asks


@pytest.mark.parametrize("name", MODELS)
def test_elements_have_the_numbers_of_eager(name: str) -> None:
    model, x = MODELS[name], torch.randn(4, 6)
    for lay in EXAMPLES.values():
        fast = anabranch.compile(model, (lay(x),), **OPTIONS)
        assert torch.equal(seeded(fast, lay(x)), seeded(model, lay(x)))
        for other in EXAMPLES.values():
            try:
                drawn = seeded(fast, other(x))
            except InputError as refused:
                assert "in this order random numbers are drawn" in str(refused)
            else:
                assert torch.equal(drawn, seeded(model, other(x)))


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"of an input", "randn into"}))
def test_elements_of_a_model_that_is_cut_have_the_numbers_of_eager(name: str) -> None:
    model, x = cut(MODELS[name]), torch.randn(4, 6)
    for lay in EXAMPLES.values():
        fast = anabranch.compile(model, (lay(x),), **OPTIONS)
        for result, wanted in zip(seeded(fast, lay(x)), seeded(model, lay(x)), strict=True):
            torch.testing.assert_close(result, wanted)


def test_dropout_of_a_model_that_is_cut_draws_in_the_order_of_its_operand() -> None:
    x = torch.randn(4, 6)
    model = cut(lambda x: F.dropout(x * 2, 0.5, training=True))
    fast = anabranch.compile(model, (turned(x),), **OPTIONS)
    torch.testing.assert_close(seeded(fast, turned(x)), seeded(model, turned(x)))
    with pytest.raises(InputError, match="in this order random numbers are drawn"):
        fast(x)


@pytest.mark.parametrize("lay", EXAMPLES)
def test_dropout_that_is_on_draws_as_eager_does(lay: str) -> None:
    """As a model has it whose uncertainty its samples show."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        return F.dropout(x.relu(), 0.5) + 1, F.dropout(x.half(), 0.3), F.dropout1d(x, 0.5)

    x = EXAMPLES[lay](torch.randn(4, 6))
    fast = anabranch.compile(model, (x,), **OPTIONS)
    results = seeded(fast, x)
    torch.testing.assert_close(results, seeded(model, x))
    assert not torch.equal(fast(x)[0], results[0])


@pytest.mark.parametrize("name", IN_ROWS)
def test_all_layouts_are_taken_of_what_draws_row_by_row(name: str) -> None:
    model, x = IN_ROWS[name], torch.randn(4, 6)
    for lay in EXAMPLES.values():
        fast = anabranch.compile(model, (lay(x),), **OPTIONS)
        for other in EXAMPLES.values():
            drawn, wanted = seeded(fast, other(x)), seeded(model, other(x))
            assert torch.equal(drawn, wanted) and drawn.stride() == wanted.stride()


def test_what_torch_does_not_know_without_values_is_drawn_where_it_depends_on_no_layout() -> None:
    model: Callable[[Tensor], Tensor] = lambda x: x + torch.binomial(COUNTS, COUNTS / 20)  # noqa: E731
    fast, x = anabranch.compile(model, (torch.randn(4, 6),), **OPTIONS), torch.randn(4, 6)
    assert torch.equal(seeded(fast, turned(x)), seeded(model, turned(x)))


COUNTS = torch.arange(6.0)


def test_the_operator_lies_as_its_operand_and_draws() -> None:
    x = turned(torch.randn(4, 6))
    torch.manual_seed(3)
    drawn = torch.ops.anabranch.bernoulli_like(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(drawn, x.bernoulli_(0.5)) and drawn.stride() == (1, 4)
    types = {"x": type_of(x)}
    assert ops.infer(custom_ops.BERNOULLI_LIKE, (Ref("x"), 0.5), (), types) == (type_of(drawn),)
    assert ops.draws(Node("d", custom_ops.BERNOULLI_LIKE, (Ref("x"), 0.5), (), (type_of(drawn),)))


def test_torch_draws_as_it_did_outside_our_traces() -> None:
    before = [({**op.py_kernels}, {**op.python_key_table}) for op in DRAWS]
    with own_kernels():
        assert all(op.python_key_table for op in DRAWS)
    assert [(op.py_kernels, op.python_key_table) for op in DRAWS] == before
    x = turned(torch.randn(4, 6))
    traced = make_fx(torch.func.functionalize(lambda x: (x * 2).bernoulli_(0.5)))(x)
    assert "bernoulli_like" not in traced.code
