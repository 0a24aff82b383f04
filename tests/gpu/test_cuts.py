"""Models that ask for values, on a GPU: plans and eager steps on one device, equal to eager."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import Any

import pytest
import torch
from benchmarks.cuts import CALLS, MODELS, alike, made
from tests.compiled.cut_drawings import Drawn, inputs
from tests.compiled.test_cuts import Branching, Masked, Numbered, net, rows
from tests.gpu.shared import shared_cache
from torch import nn

import anabranch
from anabranch.compiled.cuts import CutModel

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def compiled(model: nn.Module, *args: Any, **options: Any) -> CutModel:
    told = {"cache_dir": shared_cache(), "search": "none", "budget": 10.0, **options}
    found = anabranch.compile(model, args, **told)
    assert isinstance(found, CutModel)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_models_are_equal_to_eager_whatever_the_values(name: str, dtype: torch.dtype) -> None:
    model, drawn = made(name, True, CUDA, dtype)
    fast = compiled(model, *drawn(0))
    with torch.no_grad():
        for seed in range(1, CALLS + 1):
            ours, theirs = fast(*drawn(seed)), model(*drawn(seed))
            # In half precision a score may fall on the other side of a threshold.
            if dtype == torch.float32 or name != "detector":
                assert alike(ours, theirs), seed
    assert fast.unseen_calls == 0
    steps = fast.known["forms"][0]["paths"][0]["steps"]
    assert all(step["source"] == "measured" and step["us"] > 0 for step in steps)
    assert fast.known["read_us"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_drawn_models_are_equal_to_eager(seed: int) -> None:
    model = Drawn(seed).eval().to(CUDA)
    fast = anabranch.compile(
        model,
        tuple(x.to(CUDA) for x in inputs(0)),
        cache_dir=shared_cache(),
        search="none",
        kernels="library",
        scheduler="sequential",
    )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of ways that the example did not go
        for number in range(CALLS):
            given = tuple(x.to(CUDA) for x in inputs(number))
            torch.testing.assert_close(fast(*given), model(*given), rtol=1e-3, atol=1e-3)


def test_ways_forms_and_streams() -> None:
    model = net(Branching).to(CUDA)
    fast = compiled(model, rows(1.0).to(CUDA), unseen="refuse")
    fast.add((rows(-1.0).to(CUDA),))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch annotates it not
    with torch.no_grad():
        for sign in (1.0, -1.0, 1.0, -1.0):
            x = rows(sign).to(CUDA)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-3)
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-3)
            torch.cuda.synchronize()


def test_threads_get_their_own_results() -> None:
    model = net(Numbered).to(CUDA)
    fast = compiled(model, rows().to(CUDA))
    given = [torch.randn(6, 8, device=CUDA) for _ in range(4)]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(50):
                ours, theirs = fast(given[number]), model(given[number])
                if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_weights_are_held_once_and_refitted() -> None:
    model, other = net(Numbered).to(CUDA), Numbered().eval().to(CUDA)
    fast, x = compiled(model, rows().to(CUDA)), rows().to(CUDA)
    assert fast.memory().weights <= 2 * sum(p.nbytes for p in model.parameters())
    copied = copy.deepcopy(fast)
    fast.refit(other, check=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), other(x), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(copied(x), model(x), rtol=1e-3, atol=1e-3)


def test_a_plan_and_an_eager_step_are_captured_as_one_and_launched() -> None:
    """What ends in a mask: its plan is one CUDA graph, and the step behind it reads its results."""
    model = net(Masked).to(CUDA)
    fast = compiled(model, rows().to(CUDA))
    assert [step["kind"] for step in fast.known["forms"][0]["paths"][0]["steps"]] == [
        "plan",
        "eager",
    ]
    assert all(not entry.run.failure for entry in fast.entries if entry.run is not None)
    kept = []
    with torch.no_grad():
        for seed in range(CALLS):
            torch.manual_seed(seed)
            x = torch.randn(6, 8, device=CUDA)
            kept.append((fast(x), model(x)))
    for ours, theirs in kept:  # results are the caller's own
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
