from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.frontend.onnx.files import linear, make_node, model, value, written

from anabranch.errors import OptionError
from anabranch.models.load import batch_of, load_model


def test_a_file_by_name_in_any_batch_and_type(tmp_path: Path) -> None:
    path = str(written(tmp_path, linear()))
    net, args = load_model(path)
    assert args[0].shape == (1, 3) and batch_of(path, args, None) == 1
    half, args = load_model(path, batch=4, dtype="fp16")
    assert args[0].shape == (4, 3) and half(*args).dtype == torch.float16
    torch.testing.assert_close(half(*args).float(), net(args[0].float()), rtol=1e-2, atol=1e-2)
    assert torch.equal(load_model(path, seed=1)[1][0], load_model(path, seed=1)[1][0])
    assert torch.equal(load_model(f"{path}:batch=3")[1][0], load_model(path, batch=3)[1][0])


def test_sizes_that_nobody_says_are_named(tmp_path: Path) -> None:
    node = make_node("Where", ["mask", "x", "x"], ["y"])
    inputs = [value("x", "n", "tokens", 3), value("mask", "n", "tokens", 1, kind=9)]
    path = str(written(tmp_path, model([node], inputs, [value("y", "n", "tokens", 3)])))
    with pytest.raises(OptionError, match=r"tokens(.|\n)*model\.onnx:tokens=128"):
        load_model(path)
    net, args = load_model(f"{path}:tokens=5", batch=2)
    assert [tuple(one.shape) for one in args] == [(2, 5, 3), (2, 5, 1)]
    assert args[1].all() and torch.equal(net(*args), args[0])
    for wrong in ("tokens", "tokens=0", "tokens=x", "words=3"):
        with pytest.raises(OptionError):
            load_model(f"{path}:{wrong}")


def test_sizes_that_are_made_of_others_need_not_be_said(tmp_path: Path) -> None:
    node = make_node("MatMul", ["x", "y"], ["z"])
    inputs = [value("x", "n", "2*t"), value("y", "2*t", 3)]
    path = str(written(tmp_path, model([node], inputs, [value("z", "n", 3)])))
    _, args = load_model(f"{path}:t=5", batch=2)
    assert [tuple(x.shape) for x in args] == [(2, 10), (10, 3)]


def test_what_a_file_fixes_stays(tmp_path: Path) -> None:
    node = make_node("Relu", ["x"], ["y"])
    half = model([node], [value("x", 2, 3, kind=10)], [value("y", 2, 3, kind=10)])
    path = str(written(tmp_path, half))
    assert load_model(path)[1][0].dtype == torch.float16
    with pytest.raises(OptionError, match="no batch of 4"):
        load_model(path, batch=4)
    with pytest.raises(OptionError, match="not fp32"):
        load_model(path, dtype="fp32")
    with pytest.raises(OptionError, match="there is no file"):
        load_model(str(tmp_path / "nowhere.onnx"))
