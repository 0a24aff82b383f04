"""A file of ONNX by name, with example inputs: sizes that it leaves open are said behind its name.

    model.onnx                      a batch that varies is --batch, or 1
    model.onnx:tokens=128,beams=4   other sizes, by the file's names for them

Inputs are drawn: floats from a normal distribution, integers are 0 or 1, which are ids of any
vocabulary, and masks hide nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from anabranch.errors import OptionError
from anabranch.frontend.onnx.element_types import dtype_of
from anabranch.frontend.onnx.graph import OnnxInput
from anabranch.frontend.onnx.importer import from_onnx
from anabranch.frontend.onnx.module import OnnxModule
from anabranch.frontend.onnx.symbolic import linear_size, size_of, symbols

NAME = re.compile(r"(?P<path>.+\.onnx)(?::(?P<sizes>.*))?")


def is_onnx_name(name: str) -> bool:
    """Whether a name is that of a file of ONNX.

    >>> is_onnx_name("net.onnx"), is_onnx_name("net.onnx:tokens=8"), is_onnx_name("net.pt2")
    (True, True, False)
    """
    return NAME.fullmatch(name) is not None


def load_onnx(
    name: str, batch: int | None, dtype: torch.dtype | None
) -> tuple[OnnxModule, tuple[Tensor, ...]]:
    """The module on the CPU, all its sizes fixed, and inputs for one call of it.

    batch: of the size that comes first of all, if the file leaves it open. dtype: what 32-bit
    floats become. OptionError where there is no such file, and for sizes that nobody has
    said.
    """
    match = NAME.fullmatch(name)
    assert match is not None
    if not Path(match["path"]).is_file():
        why = "a name in .onnx is a file"
        raise OptionError(f"there is no file {match['path']}", why, "check the path")
    floats = dtype or torch.float32
    probe = from_onnx(match["path"], dtype=floats)
    sizes = {**_first(probe, batch), **_said(name, match["sizes"] or "")}
    open_sizes = [symbol for symbol in symbols(probe.inputs) if symbol not in sizes]
    if open_sizes:
        listed = ",".join(f"{symbol}=128" for symbol in open_sizes)
        raise OptionError(
            f"{name} leaves sizes open: {', '.join(open_sizes)}",
            "a plan is for inputs of some size",
            f"say which behind its name, for example {match['path']}:{listed}",
        )
    model = from_onnx(match["path"], sizes=sizes, dtype=floats)
    return model, tuple(_drawn(onnx_input, sizes, floats) for onnx_input in model.inputs)


def _first(model: OnnxModule, batch: int | None) -> dict[str, int]:
    """The batch, which is the size that the first input begins with."""
    for onnx_input in model.inputs:
        for size in (onnx_input.shape or ())[:1]:
            if isinstance(size, str):
                return {linear_size(size).root: batch or 1}
    return {}


def _said(name: str, text: str) -> dict[str, int]:
    sizes = {}
    for part in filter(None, text.split(",")):
        key, _, number = part.rpartition("=")
        if not key or not number.isdigit() or int(number) < 1:
            raise OptionError(
                f"{name} ends with {part!r}",
                "behind a file of ONNX stand sizes, as NAME=NUMBER with commas between them",
                "for example model.onnx:tokens=128,height=224",
            )
        sizes[key.strip()] = int(number)
    return sizes


def _drawn(onnx_input: OnnxInput, sizes: dict[str, int], floats: torch.dtype) -> Tensor:
    if not onnx_input.element_type or onnx_input.shape is None or None in onnx_input.shape:
        raise OptionError(
            f"no example can be made for the input {onnx_input.name}",
            "the file does not say that it is a tensor, or not of which shape",
            "use anabranch.from_onnx and anabranch.compile from Python, with inputs of your own",
        )
    sized = (size_of(s, sizes) if isinstance(s, str) else s for s in onnx_input.shape)
    shape = [int(size or 0) for size in sized]
    dtype = dtype_of(onnx_input.element_type, floats)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.float32).to(dtype)
    if "mask" in onnx_input.name.lower():
        return torch.ones(shape, dtype=dtype)
    return torch.randint(0, 2, shape).to(dtype)
