"""DrawnModel: the same for the same seed, everything in turn, and models that torch itself can
run."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import anabranch
from anabranch.fuzz import script_prelude
from anabranch.fuzz.draw import draw
from anabranch.fuzz.drawing import (
    DrawnInput,
    DrawnLayer,
    DrawnModel,
    DrawnStep,
    built_model,
    model_text,
    values,
)
from anabranch.fuzz.kinds import KINDS
from anabranch.fuzz.program_builder import Rejected, Sheet


def test_equal_seeds_draw_equal_models() -> None:
    for seed in range(20):
        assert draw(seed) == draw(seed)
    assert len({model_text(draw(seed)) for seed in range(20)}) == 20


def test_every_kind_is_drawn_within_300_seeds() -> None:
    counts = Counter(step.kind for seed in range(300) for step in draw(seed).steps)
    assert set(counts) == set(KINDS)


def test_drawn_models_return_numbers_the_same_ones_each_time() -> None:
    for seed in (*range(40), 700424):
        drawing = draw(seed)
        build, inputs = built_model(drawing)
        found = values(drawing)
        assert all(value.isfinite().all() for value in found.values())
        with torch.no_grad():
            first, second = build().eval()(*inputs(0)), build().eval()(*inputs(0))
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        assert not all(map(torch.equal, inputs(0), inputs(1)))


@pytest.mark.parametrize(
    ("form", "kind"), [("tuple", tuple), ("list", list), ("dict", dict), ("one", torch.Tensor)]
)
def test_what_is_returned_is_arranged_in_forms(form: str, kind: type) -> None:
    drawing = DrawnModel(0, (DrawnInput("x0", "normal((2,), 1{shift})"),), (), (), ("x0",), form)  # type: ignore[arg-type]
    build, inputs = built_model(drawing)
    assert type(build()(*inputs(0))) is kind


def test_a_line_that_is_taken_back_leaves_all_as_it_was() -> None:
    """Views too: a copy of one has other strides, and then lines pass that no model can run."""
    sheet = Sheet(0)
    x = sheet.add_input("normal((2, 1, 3), 1{shift})")
    wide = sheet.add(f"{x}.expand(-1, 4, -1)")
    was = {name: (value.clone(), value.stride()) for name, value in sheet.values.items()}
    for line in (f"{wide}.view(24)", f"{x}.mul_(1e9)", f"{x}.add_(1).view(5)"):
        with pytest.raises(Rejected):
            sheet.add(line)
    for name, (value, strides) in was.items():
        assert torch.equal(sheet.values[name], value) and sheet.values[name].stride() == strides
    sheet.add(f"{x}.add_(1)")  # what stays is seen through the view
    assert torch.equal(sheet.values[wide], was[wide][0] + 1)


def test_no_line_ends_the_process() -> None:
    """A convolution that is dilated along an axis where its filter has one element."""
    sheet = Sheet(0)
    x = sheet.add_input("normal((1, 2, 5, 5), 1{shift})")
    w = sheet.add_input("normal((2, 2, 3, 1), 2{shift})")
    given = f"{x}, {w}, None, [1, 1], [0, 0], [1, 2], False, [0, 0], 1"
    y = sheet.add(f"torch.ops.aten.convolution.default({given})")
    assert sheet.values[y].shape == (1, 2, 3, 5)


def test_a_line_knows_what_it_reads() -> None:
    step = DrawnStep("linear", ("v12",), "self.w0(x1) + v1 * 2 - self.w10(v11)")
    assert step.uses == ("x1", "v1", "v11") and step.layers == ("w0", "w10")


def test_layers_are_modules_or_tensors() -> None:
    layers = (DrawnLayer("w0", "nn.BatchNorm1d(3)", 1), DrawnLayer("w1", "normal((3,), 2)", 2))
    given = (DrawnInput("x0", "normal((4, 3), 1{shift})"),)
    steps = (DrawnStep("norm", ("v0",), "self.w0(x0) * self.w1"),)
    build, _ = built_model(DrawnModel(0, given, layers, steps, ("v0",)))
    model = build()
    assert {name for name, _ in model.named_parameters()} == {"w0.weight", "w0.bias", "w1"}
    assert (model.get_buffer("w0.running_var") > 0).all()


def test_weights_of_convolutions_stay_finite_whatever_makes_them() -> None:
    """An index that no table has is found on a CPU, before a GPU ends the process's use of it."""
    compiled = anabranch.compile(
        lambda x, w, y: (torch.nn.functional.conv2d(x, w.relu() * 2), y * 2),
        (torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3), torch.randn(3)),
        target="cpu",
        search="none",
        cache_dir=None,
        kernels="library",
    )
    assert script_prelude._windows(compiled) == {1}
    table = torch.nn.Embedding(3, 2)
    assert script_prelude.legal(lambda: table, (torch.tensor([2]),))
    assert not script_prelude.legal(lambda: table, (torch.tensor([3]),))
    bag = torch.nn.EmbeddingBag(3, 2)  # says it as another error
    assert not script_prelude.legal(lambda: bag, (torch.tensor([[-1]]),))
