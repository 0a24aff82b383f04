"""torch's switch, wanted by several threads at once."""

from __future__ import annotations

import threading

import pytest
import torch

from anabranch.ir.deterministic_switch import in_order


@pytest.mark.parametrize("before", [False, True])
def test_it_is_on_until_the_last_thread_is_done_and_then_as_it_was(before: bool) -> None:
    entered, leave, seen = threading.Event(), threading.Event(), list[bool]()

    def other() -> None:
        with in_order():
            entered.set()
            leave.wait(10)
            seen.append(torch.are_deterministic_algorithms_enabled())

    torch.use_deterministic_algorithms(before)
    try:
        with in_order():
            thread = threading.Thread(target=other)
            thread.start()
            assert entered.wait(10)
            assert not torch._C._get_deterministic_fill_uninitialized_memory()
        assert torch.are_deterministic_algorithms_enabled(), "the other one still wants it"
        leave.set()
        thread.join(10)
        assert seen == [True]
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    finally:
        torch.use_deterministic_algorithms(False)
