"""Batches between compiled ones: padded where rows are proved apart, refused elsewhere."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.compiled.saved_sizes import read_back, written
from anabranch.errors import InputError, OptionError, WeightsError

X, TABLE = torch.randn(4, 3), torch.randn(10, 3)


def padded(model: Any, *args: Any) -> Compiled:
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "batch": "pad"}
    quick |= {"search": "none", "horizontal_fusion": "none", "pdl": "off"}
    return anabranch.compile(model, args or (X,), **quick)


class Net(nn.Module):
    """Results with the batch, with four indices for each row, and without it, but of its size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 8)
        self.table = nn.Buffer(torch.randn(4, 2))

    def forward(self, x: torch.Tensor, more: Any = None) -> dict[str, Any]:
        y = self.linear(x)
        return {"y": y, "parts": y.view(-1, 2), "table": self.table * 2, "x": x, "n": 3}


def test_rows_are_added_and_cut_off_again(tmp_path: Path) -> None:
    net = Net().eval()
    fast = padded(net)
    fast.save(tmp_path / "plan")
    loaded = anabranch.load(tmp_path / "plan", target="cpu")
    for one in (fast, loaded, pickle.loads(pickle.dumps(fast))):
        for batch in (1, 2, 3, 4):
            got, want = one(x=X[:batch]), net(X[:batch])
            assert got["n"] == want["n"] == 3
            for name in ("y", "parts", "table", "x"):
                torch.testing.assert_close(got[name], want[name])
        x = torch.randn(9, 3)  # in pieces of four rows, and one
        torch.testing.assert_close(one(x)["parts"], net(x)["parts"])
        assert one(x)["table"].shape == (4, 2)


def test_results_lie_as_in_eager_whatever_the_batch() -> None:
    def model(x: torch.Tensor) -> Any:
        filled = x.clone().masked_fill_(x > 7, 1.0)
        return x * 2, filled, torch.empty(x.shape).copy_(x), x.t() + 1

    fast = padded(model, torch.randn(8, 6))
    for batch in (8, 5, 19):  # as it was compiled, padded, and in pieces
        rows = torch.randn(batch, 6)
        gaps = torch.zeros(batch, 13)[:, 1::2].copy_(rows)
        expanded = rows[:, :1].expand(batch, 6), rows[:1].expand(batch, 6)
        for x in (rows, rows.t().contiguous().t(), gaps, *expanded):
            for got, want in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(got, want)
                assert got.stride() == want.stride(), (batch, x.stride())


def test_a_padded_call_returns_the_callers_own_tensor() -> None:
    fast = padded(Net().eval())
    for batch in (4, 2, 1):
        x = torch.randn(batch, 3)
        assert fast(x=x)["x"] is x


def test_padded_calls_in_grad_mode_say_that_there_are_no_gradients() -> None:
    net = Net().eval()
    fast = padded(net)
    with pytest.raises(RuntimeError, match="gradients were asked for"):
        fast(torch.randn(2, 3))["y"].sum().backward()
    with pytest.warns(UserWarning, match="gradient"):
        y = fast(torch.randn(3, 3, requires_grad=True))["y"]
    with pytest.raises(RuntimeError, match="gradients were asked for"):
        y.sum().backward()


def test_plans_of_all_sizes_take_inputs_as_the_example_lay() -> None:
    x = torch.randn(6, 4, 5, 5).to(memory_format=torch.channels_last)
    fast = anabranch.compile(
        torch.nn.Conv2d(4, 4, 3).eval(),
        x,
        target="cpu",
        search="none",
        cache_dir=None,
        sizes=[1, 3, 6],
    )
    for entry in fast.entries:
        (value,) = entry.plan.tasks.call_inputs
        assert value.type.strides == (100, 1, 20, 4), entry.at


def test_environments_cannot_make_a_plan_pad_that_was_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    anabranch.compile(lambda x: x - x.mean(0), X, **quick).save(tmp_path / "plan")
    monkeypatch.setenv("ANABRANCH_BATCH", "pad")
    fast = anabranch.load(tmp_path / "plan", target="cpu")
    with pytest.raises(InputError, match=r"compiled for f32\[4,3\]"):
        fast(X[:3])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            lambda x: x - x.mean(0),
            r"aten\.mean\.dim: it works along the padded axis",
        ),
        (lambda x: x[:, :1].squeeze(), r"aten\.squeeze\.default: it works along"),
        (lambda x: x.tanh() if len(x) < 3 else x.sin(), "makes a constant of the size"),
        (lambda x: x.view(4, 3) * 2, "does not keep the dimension"),
        (lambda x: x + torch.randn(4, 1), "does not keep the dimension"),
    ],
)
def test_models_that_mix_rows_are_refused(model: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        padded(model)
    assert "cannot be compiled with batch=" in refused.value.what


def test_inputs_without_a_common_first_axis_are_refused() -> None:
    with pytest.raises(OptionError, match="no first axis of one size"):
        padded(lambda x, y: x + y, X, torch.randn(3))


def test_a_model_that_does_something_else_with_one_row_is_not_padded_from_it() -> None:
    fast = padded(lambda x: x * 2 if x.shape[0] == 1 else x + 1)
    assert torch.equal(fast(X[:2]), X[:2] + 1)
    with pytest.raises(InputError, match="batch is 1, and calls with fewer than 2 are not padded"):
        fast(X[:1])


def test_what_a_file_says_of_sizes_fits_its_plan() -> None:
    entry = padded(lambda x: (x, 3)).entries[0]
    told = written(entry.sized, entry.at)
    assert told is not None and read_back(told, [2], 2) == (entry.sized, (4,))
    wrong: list[Any] = [None, [], "sizes", {}, {**told, "at": [4, 4]}, {**told, "at": [-1]}]
    wrong += [{**told, "extents": [[{"axis": 2, "dimension": 0}]]}, {**told, "at": ["4"]}]
    wrong += [{**told, "extents": [[{"axis": 0, "dimension": 1}]]}, {**told, "at": [True]}]
    wrong += [{**told, "extents": [[{"axis": 0, "dimension": 0, "plus": -(1 << 41)}]]}]
    wrong += [{**told, "dimensions": [{"name": "batch", "least": 0}]}, {**told, "more": 1}]
    wrong += [{**told, "proofs": [{**told["proofs"][0], "zeros": []}]}]
    wrong += [{**told, "proofs": ["refused"]}, {**told, "proofs": [{"sentence": ""}]}]
    wrong += [{**told, "proofs": [{**told["proofs"][0], "results": [[[0, 0, 0]], []]}]}]
    for one in wrong:
        assert read_back(one, [2], 2) == (None, ())
    assert read_back(told, [2], 3) == (None, ()) == read_back(told, [2, 2], 2)


def test_the_model_answers_no_call_with_other_weights_than_plans_have() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            return y - x.mean()

    model, other, x = Mean().eval(), Mean().eval(), torch.randn(5, 3)
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    fast = anabranch.compile(model, (X,), sizes=[4], unseen="eager", **quick)
    torch.testing.assert_close(fast(x), model(x))
    fast.refit(other)
    torch.testing.assert_close(fast(X), other(X))
    with pytest.raises(WeightsError, match=r"the model has another linear\.weight"):
        fast(x)
    model.load_state_dict(other.state_dict())
    fast.refit(model)
    torch.testing.assert_close(fast(x), other(x))


def test_sizes_of_what_torch_export_fixes_are_refused() -> None:
    spec = {"x": {0: torch.export.Dim.AUTO}}

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    with pytest.raises(OptionError, match="no dimension varies"):
        anabranch.compile(double, (X[:1],), dynamic_shapes=spec, sizes=[1, 8], **quick)


def test_a_plan_of_the_size_answers_no_call_that_lies_otherwise() -> None:
    """A reader of all sizes knows what the model was answered for one of them."""

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.stride(0)

    fast = anabranch.compile(
        Asking().eval(),
        (torch.ones(3, 8),),
        dynamic_shapes=({1: torch.export.Dim("n", min=2, max=8)},),
        sizes=[4, 8],
        unseen="refuse",
        debug=0,
    )
    assert fast(torch.ones(3, 4)).unique() == 4
    assert fast(torch.ones(3, 8)).unique() == 8
    with pytest.raises(InputError, match=r"x.stride\(\) is \(8, 1\), compiled for \(4, 1\)"):
        fast(torch.ones(3, 8)[:, :4])


@pytest.mark.parametrize("sizes", [[2, 4, 8], range(2, 21, 2)], ids=["few", "many"])
def test_padding_a_call_takes_no_look_at_the_model(
    monkeypatch: pytest.MonkeyPatch, sizes: Any
) -> None:
    """Finding all parameters of a ResNet-50 took more than a millisecond in each padded call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    quick: dict[str, Any] = {"search": "none", "horizontal_fusion": "none", "pdl": "off"}
    fast = anabranch.compile(model, (torch.randn(8, 8),), sizes=list(sizes), buckets=10, **quick)
    assert len(fast.entries) == len(sizes)
    calls = {n: torch.randn(n, 8) for n in (3, 5, 25, 2, 8)}
    want = {n: model(x) for n, x in calls.items()}

    def looked(*_: Any, **__: Any) -> Any:
        raise AssertionError("a padded call looked at the model, or bound its arguments by name")

    for name in ("named_parameters", "named_buffers", "named_modules"):
        monkeypatch.setattr(nn.Module, name, looked)
    monkeypatch.setattr("anabranch.compiled.calls.bind", looked)
    for n, x in calls.items():
        result = fast(x)
        torch.testing.assert_close(result, want[n])
        if n in sizes:  # its own plan answered, and nothing was cut off
            assert result.untyped_storage().nbytes() == result.nbytes


def test_a_call_is_padded_to_as_many_rows_as_a_table_has_for_it() -> None:
    def counting(x: torch.Tensor) -> torch.Tensor:
        return x + TABLE[(x[:, 0] >= 0).cumsum(0)]

    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    calls = []
    for rows in (4, 3, 5, 9):
        x = torch.randn(rows, 3)
        x[-1] = 1.0  # copies of it count on
        calls.append(x)
    fast = anabranch.compile(counting, (X.neg().abs().neg(),), sizes=[4, 20], **quick)
    for x in calls[:2]:
        torch.testing.assert_close(fast(x), counting(x))
    for x in calls[2:]:
        with pytest.raises(InputError, match="no call is padded to more than 9"):
            fast(x)
    assert read_back(written(fast.entries[0].sized, (20,)), [2], 1)[0] == fast.entries[0].sized


def test_a_table_is_not_read_behind_its_end_for_padding() -> None:
    def positions(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return x + TABLE[start + torch.arange(x.shape[0])]

    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    fast = anabranch.compile(positions, (X, torch.tensor(0)), sizes=[2, 4], unseen="eager", **quick)
    for rows, start in ((4, 6), (3, 7), (2, 8), (1, 9)):
        got = fast(X[:rows], torch.tensor(start))
        torch.testing.assert_close(got, positions(X[:rows], torch.tensor(start)))
