"""The node tests that ship with the package onnx: one small model an operator, inputs and answers.

They are run as the package's own runner runs them, within its tolerances: 1e-3 relative, and two
units in the last place of bfloat16.
"""

from __future__ import annotations

import tempfile
import tomllib
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx.backend.test.loader import load_model_tests
from torch import Tensor

from anabranch.frontend.onnx.importer import from_onnx
from anabranch.frontend.onnx.module import OnnxModule

LISTED = Path(__file__).with_name("node_tests.toml")
AS_BYTES = {
    ml_dtypes.bfloat16: torch.bfloat16,
    ml_dtypes.float8_e4m3fn: torch.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz: torch.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2: torch.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz: torch.float8_e5m2fnuz,
    ml_dtypes.float8_e8m0fnu: torch.float8_e8m0fnu,
}
WIDENED = {
    ml_dtypes.int4: np.int8,
    ml_dtypes.uint4: np.uint8,
    ml_dtypes.int2: np.int8,
    ml_dtypes.uint2: np.uint8,
}
BFLOAT16_TOLERANCE = 2**-6
ROUNDED = 2**-9, 1e-6
"""Relative and absolute, of tests that are listed because they differ by rounding."""


@dataclass(frozen=True)
class NodeTest:
    """A test of the package, and what came of it: "" or what was wrong."""

    name: str
    wrong: str
    by_rounding: bool


@cache
def cases() -> tuple[Any, ...]:
    np.random.seed(0)  # of which most inputs are made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


@cache
def listed() -> dict[str, str]:
    """Tests that do not pass, and why, as the data file has them."""
    found: dict[str, str] = {}
    for part in tomllib.loads(LISTED.read_text(encoding="utf-8"))["reasons"]:
        for name in part["tests"]:
            assert name not in found, f"{name} is listed twice"
            found[name] = part["why"]
    return found


@cache
def outside() -> set[str]:
    """Tests that the share of passes does not count: no inference, or no tensors torch has."""
    parts = tomllib.loads(LISTED.read_text(encoding="utf-8"))["reasons"]
    return {name for part in parts if part.get("outside") for name in part["tests"]}


def imported(case: Any, folder: Path) -> OnnxModule:
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    return from_onnx(path)


@cache
def outcomes() -> tuple[NodeTest, ...]:
    with tempfile.TemporaryDirectory() as folder:
        return tuple(_outcome(case, Path(folder)) for case in cases())


def _outcome(case: Any, folder: Path) -> NodeTest:
    torch.manual_seed(0)
    try:
        model = imported(case, folder)
        made = []
        for inputs, answers in case.data_sets:
            with torch.no_grad():
                results = model(*map(tensor, inputs))
            results = results if isinstance(results, tuple) else (results,)
            assert len(results) == len(answers)
            made += list(zip(results, answers, strict=True))
    except Exception as failed:
        return NodeTest(case.name, f"{type(failed).__name__}: {failed}", False)
    try:
        for ours, theirs in made:
            same(ours, theirs, case.rtol, case.atol)
    except AssertionError as differs:
        return NodeTest(case.name, str(differs), _nearly(made))
    return NodeTest(case.name, "", False)


def _nearly(made: list[tuple[Any, Any]]) -> bool:
    try:
        for ours, theirs in made:
            same(ours, theirs, *ROUNDED)
    except AssertionError:
        return False
    return True


def tensor(value: Any) -> Any:
    """An array of the tests as a tensor, a sequence of them as a list."""
    if value is None:
        return None
    if isinstance(value, list):
        return [tensor(one) for one in value]
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    array = np.asarray(value)
    if array.dtype.kind in "UOS":
        raise TypeError("torch has no strings")
    for kind, dtype in AS_BYTES.items():
        if array.dtype == np.dtype(kind):
            plain = np.uint16 if array.dtype.itemsize == 2 else np.uint8
            flat = torch.from_numpy(array.copy().reshape(-1).view(plain))
            return flat.view(dtype).reshape(array.shape)
    for kind, wide in WIDENED.items():
        if array.dtype == np.dtype(kind):
            return torch.from_numpy(array.astype(wide))
    return torch.from_numpy(array.copy())


def same(ours: Any, theirs: Any, relative: float, absolute: float) -> None:
    if theirs is None:
        assert ours is None
    elif isinstance(theirs, list):
        assert isinstance(ours, list) and len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, relative, absolute)
    else:
        expected = tensor(theirs)
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        if ours.dtype == torch.bfloat16:
            relative = max(relative, BFLOAT16_TOLERANCE)
        torch.testing.assert_close(
            _exact(ours), _exact(expected), rtol=relative, atol=absolute, equal_nan=True
        )


def _exact(x: Tensor) -> Tensor:
    if x.dtype == torch.uint64:  # as int64 of the same bits, which compare as well
        return x.view(torch.int64)
    if x.dtype in (torch.int64, torch.bool) or x.is_complex():
        return x
    return x.to(torch.float64)
