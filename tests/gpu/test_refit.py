"""New weights in a plan's own memory: a captured graph goes on reading where it read."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu.shared import shared_cache
from torch import Tensor, nn

import anabranch
from anabranch.models.load import load_model
from anabranch.models.zoo import ZOO

pytestmark = pytest.mark.gpu


def other_weights(model: nn.Module) -> nn.Module:
    """The same model with weights of a like size."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in (*made.named_parameters(), *made.named_buffers()):
            if tensor.is_floating_point():
                noise = torch.rand_like(tensor) * 0.2 + 0.9
                tensor.mul_(noise if "running_mean" not in name else 1.0)
    return made


@pytest.fixture(scope="module", params=[torch.float32, torch.float16])
def compiled(request: pytest.FixtureRequest) -> tuple[Any, Tensor, Any]:
    model = ZOO["resnet50"].build("tiny").cuda().to(request.param).eval()
    x = ZOO["resnet50"].inputs("tiny", 1)[0].cuda().to(request.param)
    options: dict[str, Any] = {"search": "none", "horizontal_fusion": "none", "pdl": "off"}
    options["budget"] = 12.0
    return model, x, anabranch.compile(model, (x,), cache_dir=shared_cache(), **options)


def agree(fast: Any, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        want = model(x).float()
    assert (fast(x).float() - want).norm() <= 0.03 * want.norm()


def test_a_captured_graph_is_refitted_without_capturing(
    compiled: tuple[Any, Tensor, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, fast = compiled
    graph = fast.executable()._graph
    assert graph is not None
    agree(fast, model, x)
    held = torch.cuda.memory_allocated()

    def captured(*_: object, **__: object) -> None:
        raise AssertionError("a graph is captured")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", captured)
    for _ in range(3):
        new = other_weights(model)
        fast.refit(new, check=True)
        assert fast.executable()._graph is graph
        agree(fast, new, x)
        del new
    fast.refit({name: value.cpu() for name, value in model.state_dict().items()})
    agree(fast, model, x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held + (1 << 20)


def test_calls_on_other_streams_have_old_weights_or_new_ones(
    compiled: tuple[Any, Tensor, Any],
) -> None:
    model, x, fast = compiled
    new = other_weights(model)
    wants = []
    for one in (model, new):
        fast.refit(one)
        wants.append(fast(x).clone())
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    apart = (wants[0] - wants[1]).float().norm()

    def alike(found: Tensor, want: Tensor) -> bool:
        return bool((found - want).float().norm() < 0.1 * apart)

    side.wait_stream(torch.cuda.current_stream())
    for i in range(20):
        with torch.cuda.stream(side):
            found = fast(x)
        fast.refit((model, new)[i % 2])
        torch.cuda.synchronize()
        # What was asked before the weights of this round has those of the round before.
        assert alike(found, wants[(i + 1) % 2])
        assert alike(fast(x), wants[i % 2])


def best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, the device included."""
    found = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


@pytest.mark.alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_refit_takes_at_most_three_copies_of_the_weights(dtype: torch.dtype) -> None:
    """Of ResNet-50 in full; which kernels read the weights is all the same."""
    net, args = load_model("zoo:resnet50", 1)
    model, x = net.cuda().to(dtype).eval(), args[0].cuda().to(dtype)
    options: dict[str, Any] = {"search": "none", "kernels": "library"}
    fast = anabranch.compile(model, (x,), cache_dir=shared_cache(), **options)
    state, target = model.state_dict(), copy.deepcopy(model)
    fast.refit(state)
    copied = best(lambda: target.load_state_dict(state))
    taken = best(lambda: fast.refit(state))
    print(f"refit {taken * 1e3:.2f} ms, load_state_dict {copied * 1e3:.2f} ms")
    assert taken <= 3 * copied, (taken, copied)
