"""Sizes that a file leaves open, by the names it has for them: "batch", "sequence", "2*batch + 1".

x: [batch, 3, height, 32], sizes={"batch": 4, "height": (32, 512)}
dynamic_shapes  {"x": {2: Dim("height", min=32, max=512)}}        the batch is 4
y: [2*batch, 3]
dynamic_shapes  {"y": {0: 2*Dim("batch")}}                        8 where the batch is 4
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import Dim

from anabranch.errors import OptionError
from anabranch.frontend.onnx.graph import OnnxInput

Sizes = Mapping[str, int | tuple[int, int]]
LINEAR = re.compile(
    r"(?:(?P<factor>\d+)\s*\*\s*)?(?P<root>[A-Za-z_]\w*)(?:\s*(?P<more>[+-]\s*\d+))?"
)


@dataclass(frozen=True, slots=True)
class LinearSize:
    """A size that is `factor` times another, and `more`."""

    factor: int
    root: str
    more: int


def linear_size(symbol: str) -> LinearSize:
    """How a size is made of another, as exporters write it; any other text is a name.

    >>> linear_size("2*batch + 1"), linear_size("batch size")
    (LinearSize(factor=2, root='batch', more=1), LinearSize(factor=1, root='batch size', more=0))
    """
    match = LINEAR.fullmatch(symbol.strip())
    if match is None or match["factor"] == "0":
        return LinearSize(1, symbol, 0)
    more = int((match["more"] or "0").replace(" ", ""))
    return LinearSize(int(match["factor"] or 1), match["root"], more)


def symbols(inputs: Sequence[OnnxInput]) -> tuple[str, ...]:
    """The names of sizes that are left open, in the order of the inputs' axes; for one that is made
    of another, that one's."""
    open_sizes = (size for value in inputs for size in value.shape or () if isinstance(size, str))
    return tuple(dict.fromkeys(linear_size(size).root for size in open_sizes))


def size_of(symbol: str, sizes: Sizes) -> int | None:
    """The size of this text where its own name, or that of what it is made of, has one number."""
    linear = linear_size(symbol)
    root = sizes.get(linear.root)
    return linear.factor * root + linear.more if isinstance(root, int) else None


def check_sizes(inputs: Sequence[OnnxInput], sizes: Sizes) -> Sizes:
    """The sizes themselves; OptionError for names that the file does not have, and for no sizes."""
    names = symbols(inputs)
    for name, size in sizes.items():
        if name not in names:
            raise OptionError(
                f"the file has no size called {name!r}",
                f"those that it leaves open are {', '.join(names)}" if names else "all are numbers",
                "leave it out, or use one of these names",
            )
        least, most = size if isinstance(size, tuple) else (size, size)
        if not 1 <= least <= most:
            raise OptionError(
                f"{name} cannot be {size}", "a size is at least 1", "for example 8, or (1, 64)"
            )
    return sizes


def dynamic_shapes(
    names: Sequence[str], inputs: Sequence[OnnxInput], sizes: Sizes
) -> dict[str, Any] | None:
    """By argument the axes that vary, as torch.export takes them; None if none do."""
    dims = {root: dim for root in symbols(inputs) if (dim := _dim(root, inputs, sizes)) is not None}
    shapes = {
        name: {
            axis: _of_dim(dims[linear.root], linear)
            for axis, size in enumerate(value.shape or ())
            if isinstance(size, str) and (linear := linear_size(size)).root in dims
        }
        for name, value in zip(names, inputs, strict=True)
    }
    return shapes if any(shapes.values()) else None


def _dim(root: str, inputs: Sequence[OnnxInput], sizes: Sizes) -> Any:
    """The dimension of this name, of which no size that is made of it is less than 1; None for one
    number."""
    said = sizes.get(root)
    if isinstance(said, int) or (said is not None and said[0] == said[1]):
        return None
    plain = re.sub(r"\W", "_", root, flags=re.ASCII)
    plain = plain if plain.isidentifier() else f"d_{plain}"
    texts = (size for value in inputs for size in value.shape or () if isinstance(size, str))
    linear = [size for size in map(linear_size, texts) if size.root == root]
    least = max(1, *(-((size.more - 1) // size.factor) for size in linear))
    if said is None:
        return Dim(plain, min=least)
    return Dim(plain, min=max(said[0], least), max=said[1])


def _of_dim(dim: Any, linear: LinearSize) -> Any:
    multiple = dim * linear.factor if linear.factor != 1 else dim
    return multiple + linear.more if linear.more else multiple
