"""Functional forms of operators that write to their arguments: the same values, and no writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import ArtifactError
from anabranch.ir import ops
from anabranch.ir.functional_forms import functional_form, original


@torch.library.custom_op("forms::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: float = 2.0) -> None:
    x.mul_(by)


@torch.library.custom_op("forms::both", mutates_args=("out",))
def both(x: Tensor, out: Tensor, more: list[int] | None = None) -> Tensor:
    out.copy_(x * 3)
    return x + 1


@both.register_fake
def _(x: Tensor, out: Tensor, more: list[int] | None = None) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("forms::perhaps_", mutates_args=("x",))
def perhaps_(x: Tensor | None) -> None:
    pass


def test_a_form_writes_nothing_and_returns_what_was_written() -> None:
    x = torch.randn(4, 3)
    before = x.clone()
    form = functional_form(torch.ops.forms.both.default)
    assert form is not None and not form._schema.is_mutable
    result, written = form(x, x.new_zeros(4, 3), more=[1])
    assert torch.equal(x, before)
    assert torch.equal(result, before + 1) and torch.equal(written, before * 3)


def test_names_lead_from_one_to_the_other() -> None:
    form = functional_form(torch.ops.forms.scale_.default)
    assert original(str(form)) == "forms.scale_.default"
    assert ops.resolve(str(form)) is form
    assert original("aten.add_.Tensor") == "aten.add_.Tensor"
    with pytest.raises(KeyError):
        ops.resolve("anabranch_functional.forms__nothing.default")


def test_what_may_be_none_has_no_form() -> None:
    assert functional_form(torch.ops.forms.perhaps_.default) is None


class Writer(nn.Module):
    """Writes to a new tensor, to a state, to a slice of a result, and to its input."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        y: Tensor = torch.ops.forms.both(x, out, more=[1])
        torch.ops.forms.scale_(self.total, by=3.0)
        torch.ops.forms.scale_(y[1:, :2])
        torch.ops.forms.scale_(x)
        return out + y + self.total


def test_models_compile_save_and_load(tmp_path: Path) -> None:
    model, x = Writer().eval(), torch.randn(4, 4)
    fast = anabranch.compile(Writer().eval(), (x.clone(),), target="cpu", cache_dir=None)
    fast.save(tmp_path / "writer.anabranch")
    with pytest.raises(ArtifactError, match=r'operators=\["forms::'):
        anabranch.load(tmp_path / "writer.anabranch")
    loaded = anabranch.load(
        tmp_path / "writer.anabranch", operators=["forms::scale_", "forms::both"]
    )
    for _ in range(2):
        theirs, ours, others = x.clone(), x.clone(), x.clone()
        wanted = model(theirs)
        torch.testing.assert_close(fast(ours), wanted)
        torch.testing.assert_close(loaded(others), wanted)
        assert torch.equal(ours, theirs) and torch.equal(others, theirs)
    assert torch.equal(fast.state_dict()["total"], model.total)
