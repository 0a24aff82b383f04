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
from anabranch.compiled.padding import read_rows
from anabranch.errors import InputError, OptionError

X = torch.randn(4, 3)


def padded(model: Any, *args: Any) -> Compiled:
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "batch": "pad"}
    quick |= {"search": "none", "abreast": "none", "overlap": "none"}
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
    with pytest.raises(InputError, match=r"compiled: \(x=f32\[4,3\]\)"):
        loaded(X[:3])
    for one in (fast, pickle.loads(pickle.dumps(fast))):
        for batch in (1, 2, 3, 4):
            got, want = one(x=X[:batch]), net(X[:batch])
            assert got["n"] == want["n"] == 3
            for name in ("y", "parts", "table", "x"):
                torch.testing.assert_close(got[name], want[name])
        with pytest.raises(InputError, match="not larger than the largest"):
            one(torch.randn(5, 3))


def test_environments_cannot_make_a_plan_pad_that_was_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    anabranch.compile(lambda x: x - x.mean(0), X, **quick).save(tmp_path / "plan")
    monkeypatch.setenv("ANABRANCH_BATCH", "pad")
    fast = anabranch.load(tmp_path / "plan", target="cpu")
    with pytest.raises(InputError, match="nobody proved that rows do not mix"):
        fast(X[:3])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda x: x - x.mean(0), r"aten\.mean\.dim may mix rows of the batch"),
        (lambda x: x[:, :1].squeeze(), r"aten\.squeeze\.default may mix"),
        (lambda x: x * 2 if len(x) == 1 else x, "something else of its first 1 rows"),
        (lambda x: x.tanh() if len(x) == 3 else x.sin(), "something else of its first 3 rows"),
        (lambda x: x.view(4, 3) * 2, "with a batch of 5"),
        (lambda x: x + torch.randn(4, 1), "with a batch of 5"),
    ],
)
def test_models_that_mix_rows_are_refused(model: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        padded(model)
    assert "cannot be compiled with batch=" in refused.value.what


def test_inputs_without_a_common_first_axis_are_refused() -> None:
    with pytest.raises(OptionError, match="no first axis of one size"):
        padded(lambda x, y: x + y, X, torch.randn(3))


def test_what_a_file_says_of_rows_fits_its_results() -> None:
    assert read_rows([1, 0], 2) == (1, 0)
    for wrong in (None, [1], [1, -1], [1, True], "10", {"a": 1}):
        assert read_rows(wrong, 2) is None
