"""Operators of the user's that come back to the plan that runs them, by whatever way: told, and
never waited for without end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.deadline import TIME
from anabranch.errors import AnabranchError, TargetError
from anabranch.targets import calling

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}
X = torch.arange(6.0).reshape(2, 3)
WITHIN: list[Callable[[], object]] = []
"""What the operator does beside its work."""
BEFORE: list[Callable[[], object]] = []
"""What the model does before its own."""

LIBRARY: Any = torch.library
OPS = LIBRARY.Library("anabranch_calling", "FRAGMENT")
OPS.define("twice(Tensor x) -> Tensor")


def twice(x: Tensor) -> Tensor:
    for act in list(WITHIN):
        act()
    return x * 2


OPS.impl("twice", twice, "CPU")
OPS.impl("twice", lambda x: torch.empty_like(x), "Meta")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for act in BEFORE:
            act()
        made: Tensor = torch.ops.anabranch_calling.twice(self.linear(x))
        return made + 1


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    torch.manual_seed(0)
    WITHIN.clear()
    made = anabranch.compile(Net().eval().requires_grad_(False), (X,), **QUICK)
    monkeypatch.setattr(calling, "TIME", replace(TIME, operator_wait_s=0.3))
    yield made
    WITHIN.clear()


def within(fast: Any, act: Callable[[], object]) -> tuple[Any, list[BaseException]]:
    """What a call returns whose operator does this once on another thread and waits for it; and
    what that raised."""
    raised: list[BaseException] = []

    def once() -> None:
        WITHIN.clear()

        def run() -> None:
            try:
                act()
            except AnabranchError as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    WITHIN.append(once)
    return fast(X), raised


def test_a_thread_of_an_operator_that_calls_the_plan_is_told(fast: Any) -> None:
    want = fast.model(X)
    got, raised = within(fast, lambda: fast(X))
    assert torch.allclose(got, want, atol=1e-6) and torch.allclose(fast(X), want, atol=1e-6)
    assert [type(one) for one in raised] == [TargetError]
    assert "its operator anabranch_calling.twice has run for" in str(raised[0])


def test_so_is_one_that_refits_it(fast: Any) -> None:
    state = {name: value * 0 for name, value in fast.model.state_dict().items()}
    want = fast.model(X)
    got, raised = within(fast, lambda: fast.load_state_dict(state))
    assert torch.allclose(got, want, atol=1e-6) and torch.allclose(fast(X), want, atol=1e-6)
    assert len(raised) == 1 and "to call or refit the plan" in str(raised[0])
    fast.load_state_dict(state)
    assert torch.equal(fast(X), torch.ones(2, 3))


def test_a_pool_that_was_there_before_is_told_too(fast: Any) -> None:
    with ThreadPoolExecutor(1) as pool:

        def once() -> None:
            WITHIN.clear()
            with pytest.raises(TargetError, match="has run for"):
                pool.submit(fast, X).result(20)

        WITHIN.append(once)
        assert torch.allclose(fast(X), fast.model(X), atol=1e-6)


def test_an_operator_that_refits_its_own_plan_is_refused(fast: Any) -> None:
    state = fast.model.state_dict()
    WITHIN.append(lambda: fast.load_state_dict(state))
    with pytest.raises(TargetError, match="an operator of plan Net calls that plan itself"):
        fast(X)
    WITHIN.clear()
    fast.load_state_dict(state)
    assert torch.allclose(fast(X), fast.model(X), atol=1e-6)


def test_a_model_that_calls_the_plan_is_no_weights_for_it(fast: Any) -> None:
    """`refit` calls it, to compare, while no call may run."""
    BEFORE.append(lambda: fast(X))
    with pytest.raises(AnabranchError, match="calls that plan itself"):
        fast.refit(fast.model, check=True)
    BEFORE.clear()
    assert torch.allclose(fast(X), fast.model(X), atol=1e-6)


def test_who_calls_while_an_operator_works_waits_for_it(fast: Any) -> None:
    """Many calls, each of which takes its time, and together longer than one may."""
    done: queue.SimpleQueue[bool] = queue.SimpleQueue()
    WITHIN.append(lambda: threading.Event().wait(0.1))
    want = fast.model(X)

    def call() -> None:
        done.put(torch.allclose(fast(X), want, atol=1e-6))

    threads = [threading.Thread(target=call, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert all(done.get(timeout=30) for _ in threads)
