"""A plan owns its constants: whatever happens to the model, results stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch


class Net(nn.Module):
    """A norm that folds into its convolution, a bias that is read as it is, a weight read turned,
    and a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.line, self.turned = nn.Linear(4, 2), nn.Parameter(torch.randn(2, 2))
        self.plain = torch.randn(2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.line(self.norm(self.conv(x)).mean((2, 3)))
        return y @ self.turned.t() + self.plain


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 5, 5, generator=torch.Generator().manual_seed(1))


def spoil(model: Net) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers(), model.plain):
            if tensor.is_floating_point():
                tensor.mul_(3).add_(1)


def test_results_stay_those_of_the_model_as_it_was(tmp_path: Path) -> None:
    for _ in range(2):  # the second is recalled from the cache
        model, x = Net().eval(), image()
        fast = anabranch.compile(model, (x,), target="cpu", cache_dir=tmp_path / "cache")
        with torch.no_grad():
            want = model(x)
            spoil(model)
            assert not torch.allclose(want, model(x), rtol=0.1)
        torch.testing.assert_close(fast(x), want, rtol=1e-4, atol=1e-5)
        fast.save(tmp_path / "plan")
        again = anabranch.load(tmp_path / "plan", target="cpu")
        torch.testing.assert_close(again(x), want, rtol=1e-4, atol=1e-5)


def closure() -> tuple[Callable[..., Any], list[Tensor]]:
    held = [torch.randn(3), torch.randn(3)]

    def function(x: Tensor) -> Tensor:
        return x * held[0] + held[1].exp()

    return function, held


def test_tensors_closed_over_are_owned_too() -> None:
    function, held = closure()
    x = torch.randn(2, 3)
    fast = anabranch.compile(function, (x,), target="cpu", cache_dir=None)
    want = function(x)
    for tensor in held:
        tensor.add_(5)
    torch.testing.assert_close(fast(x), want)


@pytest.mark.parametrize("target", ["cpu", "sim:h200"])
def test_no_constant_lies_in_the_models_memory(target: str) -> None:
    model = Net().eval()
    fast = anabranch.compile(model, (image(),), target=target, cache_dir=None)
    theirs = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    plan = fast.entries[0].plan
    bodies = [task.body for task in plan.tasks.tasks]
    held = [*plan.tasks.constants, *(c for body in bodies for c in body.constants)]
    assert held and all(c.value is not None for c in held)
    ours = {c.value.untyped_storage().data_ptr() for c in held}  # type: ignore[union-attr]
    assert not ours & theirs
    assert plan.recipe is not None
    told = sum(c.type.nbytes for c in plan.tasks.constants)
    told += sum(one.nbytes for one in plan.recipe.kept.values())  # which graph wins is measured
    assert fast.known["weights_bytes"] == told
    assert "a copy beside the model's own" in fast.explain(whole=True)


def test_plans_of_several_sizes_share_what_they_own() -> None:
    """Planned for a simulated GPU: on a CPU, what is derived for a size follows timings."""
    model = Net().eval()
    fast = anabranch.compile(model, (image(),), target="sim:h200", search="none", cache_dir=None)
    fast.add((image(3),))
    one, two = (
        {c.digest: c.value.data_ptr() for c in entry.plan.tasks.constants}  # type: ignore[union-attr]
        for entry in fast.entries
    )
    assert len(one) == len(two) and one == two
