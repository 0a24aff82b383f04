"""Memory of the device: what a plan says that it holds, and what is given back."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from tests.gpu.shared import shared_cache
from tests.gpu.test_devices import QUICK, made

import anabranch
from anabranch.integrations.dynamo import anabranch_backend

pytestmark = pytest.mark.gpu


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # which it keeps for each stream that it has seen
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("kernels", ["library", "all"])
def test_a_plan_holds_what_it_says_and_gives_it_back(kernels: str) -> None:
    model, x = made()
    options: dict[str, Any] = {**QUICK, "kernels": kernels}
    anabranch.compile(model, (x,), **options)(x)  # workspaces that libraries keep
    before = allocated()
    fast = anabranch.compile(model, (x,), **options)
    del_me = weakref.ref(fast.executable())
    held, said = allocated() - before, fast.memory()
    slack = 512 * (len(fast.entries[0].plan.tasks.constants) + 64)
    assert said.weights > 0 and said.inputs == x.nbytes and said.arena > 0
    own = said.total - said.libraries
    # The graph's pool is reserved as a whole, and only what lies in it now counts as allocated.
    assert own - said.pool - slack <= held <= own + slack + (2 << 20), (held, said)
    for _ in range(3):
        fast(x)
    del fast
    assert del_me() is None
    assert allocated() <= before + slack


def test_a_reset_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(shared_cache() or ""))
    monkeypatch.setenv("ANABRANCH_BUDGET", "30")

    def run() -> None:
        model, x = made()
        with torch.no_grad():
            torch.compile(model, backend=anabranch_backend)(x)
        torch.compiler.reset()

    run()
    before = allocated()
    for _ in range(2):
        run()
        assert allocated() <= before + (1 << 20)
