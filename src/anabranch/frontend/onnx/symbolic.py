"""Sizes that a file leaves open, by the names it has for them: "batch", "sequence".

x: [batch, 3, height, 32], sizes={"batch": 4, "height": (32, 512)}
dynamic_shapes  {"x": {2: Dim("height", min=32, max=512)}}        the batch is 4
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch.export import Dim

from anabranch.errors import OptionError
from anabranch.frontend.onnx.graph import OnnxInput

Sizes = Mapping[str, int | tuple[int, int]]


def symbols(inputs: Sequence[OnnxInput]) -> tuple[str, ...]:
    """The names of sizes that are left open, in the order of the inputs' axes."""
    open_sizes = (size for value in inputs for size in value.shape or () if isinstance(size, str))
    return tuple(dict.fromkeys(open_sizes))


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
    dims: dict[str, Any] = {}
    for symbol in symbols(inputs):
        size = sizes.get(symbol)
        if isinstance(size, int):
            continue
        plain = re.sub(r"\W", "_", symbol, flags=re.ASCII)
        plain = plain if plain.isidentifier() else f"d_{plain}"
        if size is None:
            dims[symbol] = Dim(plain, min=1)
        elif size[0] < size[1]:
            dims[symbol] = Dim(plain, min=size[0], max=size[1])
    shapes = {
        name: {axis: dims[size] for axis, size in enumerate(value.shape or ()) if size in dims}
        for name, value in zip(names, inputs, strict=True)
    }
    return shapes if any(shapes.values()) else None
