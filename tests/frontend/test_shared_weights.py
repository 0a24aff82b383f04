"""Weights that share memory: new ones that would leave a plan with two versions are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import WeightsError


class Cut(nn.Module):
    """Reads its weight whole, and a part of it that `keep` hides or not."""

    def __init__(self, keep: Callable[[Any, Tensor], Callable[[], Tensor]]) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.arange(24.0) / 8)
        self.part = keep(self, self.flat.data)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.part() + self.flat.sum()


def _attribute(model: Any, flat: Tensor) -> Callable[[], Tensor]:
    model.cut = flat[4:20].view(4, 4).t()

    def cut() -> Tensor:
        found: Tensor = model.cut
        return found

    return cut


def _listed(_: Any, flat: Tensor) -> Callable[[], Tensor]:
    held = [flat[4:20].view(4, 4)]
    return lambda: held[0]


def _parameter(model: Any, flat: Tensor) -> Callable[[], Tensor]:
    model.cut = nn.Parameter(flat.as_strided((4, 4), (3, 2), 1))

    def cut() -> Tensor:
        found: Tensor = model.cut
        return found

    return cut


KEPT = {"an attribute": _attribute, "a list": _listed, "a parameter": _parameter}


def compiled(model: nn.Module, folder: Path | None) -> anabranch.Compiled:
    return anabranch.compile(
        model.eval(),
        torch.randn(2, 4),
        target="cpu",
        search="none",
        scheduler="sequential",
        cache_dir=folder and str(folder),
    )


@pytest.mark.parametrize("saved", (False, True))
@pytest.mark.parametrize("kept", KEPT)
def test_a_state_dict_is_never_taken_in_part(kept: str, saved: bool, tmp_path: Path) -> None:
    model = Cut(KEPT[kept])
    fast, x = compiled(model, None), torch.randn(3, 4)[:2]
    if saved:
        fast.save(tmp_path / "plan")
        fast = anabranch.load(tmp_path / "plan", target="cpu")
    before = fast(x)
    new = {name: value.clone() for name, value in model.state_dict().items()}
    fast.refit(new)  # the same values
    new["flat"] += 1
    with pytest.raises(WeightsError, match=r"flat.* shared memory.* differ now"):
        fast.refit(new)
    torch.testing.assert_close(fast(x), before)
    model.load_state_dict(new)  # writes to what shares its memory, too
    if kept == "a parameter":
        fast.refit(model.state_dict())
        torch.testing.assert_close(fast(x), model(x).detach())


def test_the_model_itself_brings_its_views() -> None:
    model = Cut(_attribute)
    fast, x = compiled(model, None), torch.randn(2, 4)
    with torch.no_grad():
        model.flat.copy_(torch.randn(24))
        model.flat[5] = torch.nan
    fast.refit(model)
    torch.testing.assert_close(fast(x), model(x).detach(), equal_nan=True)


def test_a_weight_that_only_its_view_shows_is_asked() -> None:
    class Shown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.turned = self.linear.weight.detach().t()

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.turned

    model = Shown()
    fast = compiled(model, None)
    new = {name: value + 1 for name, value in model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"linear\.weight.*shared memory"):
        fast.refit(new)
    model.load_state_dict(new)
    fast.refit(model)
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), model(x))


def test_what_lies_between_each_other_and_shares_nothing_is_free() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            both = torch.randn(4, 8)
            self.left, self.right = nn.Parameter(both[:, :4]), nn.Parameter(both[:, 4:])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.left + x @ self.right

    model, other = Rows(), Rows()
    fast = compiled(model, None)
    assert fast.entries[0].plan.recipe is not None
    assert not fast.entries[0].plan.recipe.conditions
    fast.refit(other.state_dict())
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), other(x).detach())


@pytest.mark.parametrize("kept", KEPT)
def test_a_warm_start_knows_who_shares(kept: str, tmp_path: Path) -> None:
    new = {"flat": torch.randn(24)}
    for _ in range(2):
        model = Cut(KEPT[kept])
        fast = compiled(model, tmp_path)
        with pytest.raises(WeightsError):
            fast.refit(model.state_dict() | new)


def test_views_of_the_same_bytes_in_another_type_take_no_new_weights() -> None:
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.bits = self.weight.detach().view(torch.int32)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.bits

    model = Typed()
    fast = compiled(model, None)
    with pytest.raises(WeightsError, match="shared memory"):
        fast.refit(model)
