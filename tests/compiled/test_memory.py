"""What a compiled model holds, and that it goes with it, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch

QUICK: dict[str, Any] = {
    **{"search": "none", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(100, 100) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


WEIGHTS = 3 * 4 * (100 * 100 + 100)
X = torch.randn(8, 100)


@pytest.mark.parametrize("target", ["cpu", "sim:h200"])
def test_bytes_by_kind(target: str) -> None:
    fast = anabranch.compile(Layers().eval(), (X,), target=target, cache_dir=None, **QUICK)
    one = fast.memory()
    assert one.weights == WEIGHTS and one.inputs == X.nbytes
    assert one.arena == fast.entries[0].plan.arena_bytes and one.kernels == 0
    assert one.total == one.weights + one.inputs + one.arena + one.pool + one.libraries
    assert str(one).startswith(f"weights {WEIGHTS:,} B, inputs 3,200 B, arena ")
    assert fast.explain().endswith(f"Held on the device: {one}")
    fast.add((torch.randn(16, 100),))
    both = fast.memory()
    assert both.inputs == 3 * X.nbytes and WEIGHTS <= both.weights <= 2 * WEIGHTS
    assert both.arena == max(entry.plan.arena_bytes for entry in fast.entries)


@pytest.mark.parametrize(("target", "nbytes"), [("cpu", 0), ("sim:h200", 34_603_008)])
def test_a_forecast_has_what_cublas_keeps_for_a_stream(target: str, nbytes: int) -> None:
    options = {**QUICK, "target": target, "cache_dir": None, "kernels": "library"}
    assert anabranch.compile(Layers().eval(), (X,), **options).memory().libraries == nbytes


def test_all_of_it_goes_with_the_compiled(tmp_path: Path) -> None:
    def made() -> list[weakref.ref[Any]]:
        model = Layers().eval()
        fast = anabranch.compile(model, (X,), target="cpu", cache_dir=tmp_path, **QUICK)
        fast(X)
        fast.explain()
        fast.save(tmp_path / "layers.anabranch")
        again = anabranch.load(tmp_path / "layers.anabranch", target="cpu")
        again(X)
        held: list[Any] = [model, fast, again, fast.executable(), again.executable()]
        for one in (fast, again):
            constants = one.entries[0].plan.tasks.constants
            held += [c.value.untyped_storage() for c in constants if c.value is not None]
        refs = [weakref.ref(one) for one in held]
        del held[5:], one, constants
        assert all(ref() is not None for ref in refs)
        return refs

    made()  # what is imported and cached once
    gc.collect()
    gc.disable()
    try:
        assert not any(ref() is not None for ref in made())
    finally:
        gc.enable()


def test_a_reset_of_torch_compile_lets_the_plan_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    made: list[weakref.ref[anabranch.Compiled]] = []
    init = anabranch.Compiled.__init__

    def noted(compiled: anabranch.Compiled, *args: Any, **kwargs: Any) -> None:
        init(compiled, *args, **kwargs)
        made.append(weakref.ref(compiled))

    monkeypatch.setattr(anabranch.Compiled, "__init__", noted)
    model = Layers().eval()
    with torch.no_grad():
        torch.compile(model, backend="anabranch")(X)
    assert made and made[0]() is not None
    torch.compiler.reset()
    gc.collect()
    assert all(ref() is None for ref in made)
