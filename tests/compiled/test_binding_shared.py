"""Inputs that are one memory: right, or refused, when compiled and when called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anabranch
from anabranch.errors import InputError

QUICK: dict[str, Any] = {
    **{"search": "none", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}


def compiled(model: Any, *args: Any, **options: Any) -> Any:
    return anabranch.compile(model, args, target="cpu", cache_dir=None, **QUICK, **options)


def writes(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    base.add_(1)
    return view * 2


def x() -> torch.Tensor:
    return torch.randn(4, 6)


def test_one_tensor_may_be_two_inputs_that_are_read() -> None:
    one = x()
    fast = compiled(lambda a, b: a + 2 * b, one, one)
    other = x()
    assert torch.equal(fast(one, other), one + 2 * other)
    slices = compiled(lambda a, b: a - b, one[:3], one[1:])
    assert torch.equal(slices(other[:3], one[1:]), other[:3] - one[1:])


def test_a_written_input_is_nobody_elses() -> None:
    fast = compiled(writes, x(), x())
    for base, view in (pair := x(), pair), (pair[:], pair), (x()[:1].expand(4, 6), pair):
        kept = base.clone()
        with pytest.raises(InputError, match="share memory"):
            fast(base, view)
        assert torch.equal(base, kept)
    whole = torch.randn(4, 12)
    base, view = whole[:, :6], whole[:, 6:]
    want = base + 1, view * 2
    assert torch.equal(fast(base, view), want[1]) and torch.equal(base, want[0])
    with pytest.raises(InputError, match="share memory, and the model writes to"):
        compiled(writes, pair, pair[:])


def test_results_that_are_handed_back() -> None:
    """Buffers of the plan, which the next call overwrites."""
    for model in (lambda a: a.add_(1) * 2, lambda a: (a, a * 2), lambda a: (a.t(), a + 1)):
        fast = compiled(model, torch.randn(4, 4), outputs="view")
        result = fast(torch.randn(4, 4))
        result = result if isinstance(result, torch.Tensor) else result[-1]
        with pytest.raises(InputError, match="input a is a result of this compiled model"):
            fast(fast.entries[-1].run.outputs[0])
    step = compiled(lambda a: a * 2, torch.ones(3), outputs="view")
    assert torch.equal(step(step(torch.ones(3))), torch.full((3,), 4.0))


@pytest.mark.filterwarnings("ignore:inputs share memory")
@pytest.mark.parametrize("first", ["apart", "shared"])
def test_torch_compile_asks_who_shares(first: str) -> None:
    options: Any = {**QUICK, "cache_dir": None}
    fast = torch.compile(writes, backend="anabranch", options=options)
    orders = ("apart", "shared") if first == "apart" else ("shared", "apart")
    with torch.no_grad():
        for how in (*orders, *orders):
            base = x()
            kept = base.clone()
            if how == "apart":
                assert torch.equal(fast(base, kept.clone()), kept * 2)
            else:
                assert torch.equal(fast(base, base[:]), (kept + 1) * 2)
            assert torch.equal(base, kept + 1)
