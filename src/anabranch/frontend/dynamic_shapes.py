"""Which axes of a call's tensors vary: dimensions, and the axes whose sizes follow from them.

dimensions  batch 1..64, seq 1..
extents     x: axis 0 is batch, axis 1 is seq; mask: axis 1 is seq
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.errors import OptionError
from anabranch.frontend.padded_tensors import repeated
from anabranch.frontend.padding_proof import RowAxis


@dataclass(frozen=True, slots=True)
class Dimension:
    """A size that varies between calls, from `least` to `most` rows; None: without an end."""

    name: str
    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.least}..{'' if self.most is None else self.most}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of one axis of a tensor: `times` that of a dimension, by its number, and `plus`."""

    axis: int
    dimension: int
    times: int = 1
    plus: int = 0


@dataclass(frozen=True, slots=True)
class DynamicShapes:
    """`extents`: for each tensor of a call, in the order of its leaves, the axes that vary.
    `specialised`: why torch.export does not keep the dimensions, "" if it does; `uneven`: for each
    dimension an operator with a size that is no multiple of it (`n // 2`), "" if there is none; ()
    where no dimension has one; `symbols`: what torch calls the dimensions, where a graph has them
    as symbols."""

    dimensions: tuple[Dimension, ...]
    extents: tuple[tuple[Extent, ...], ...]
    specialised: str = ""
    uneven: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()

    def uneven_along(self, dimension: int) -> str:
        """An operator with a size that is no multiple of this dimension; "" if there is none."""
        return self.uneven[dimension] if self.uneven else ""

    def uneven_beside(self, dimension: int) -> str:
        """The same of all other dimensions."""
        others = (why for i, why in enumerate(self.uneven) if why and i != dimension)
        return next(others, "")

    def sizes_of(self, tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
        """The size of each dimension in a call; None if its tensors contradict each other."""
        size_of: dict[int, int] = {}
        for tensor, extents in zip(tensors, self.extents, strict=True):
            for extent in extents:
                size, rest = divmod(tensor.shape[extent.axis] - extent.plus, extent.times)
                if rest or size < 1 or size_of.setdefault(extent.dimension, size) != size:
                    return None
        return tuple(size_of[i] for i in range(len(self.dimensions)))

    def value_of(self, size: torch.SymInt, sizes: Sequence[int]) -> int | None:
        """What a symbolic size is at these sizes; None if it is no affine function of one."""
        expression = size.node.expr
        named = dict(zip(self.symbols, sizes, strict=True))
        free = {symbol: named.get(str(symbol)) for symbol in expression.free_symbols}
        if any(n is None for n in free.values()):
            return None
        return int(expression.subs(free))

    def rows(self, dimension: int) -> list[list[RowAxis]] | None:
        """For each tensor where it has rows of a dimension; None if some of its axes have more."""
        if any(
            extent.plus for at in self.extents for extent in at if extent.dimension == dimension
        ):
            return None
        return [
            [(extent.axis, 1, extent.times) for extent in at if extent.dimension == dimension]
            for at in self.extents
        ]

    def bytes_of(self, args: Any, kwargs: Any, sizes: Sequence[int]) -> int:
        """The bytes of the tensors of the call with these sizes."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        total = 0
        for tensor, extents in zip(leaves, self.extents, strict=True):
            shape = [*tensor.shape]
            for extent in extents:
                shape[extent.axis] = extent.times * sizes[extent.dimension] + extent.plus
            total += math.prod(shape) * tensor.element_size()
        return total

    def resized(self, args: Any, kwargs: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
        """The call with tensors of these sizes: cut, or with rows again and again. OptionError
        where there is no memory for them."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        extents = iter(self.extents)
        new_leaves = [
            _resized(leaf, next(extents), sizes) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        changed: tuple[Any, Any] = pytree.tree_unflatten(new_leaves, tree)
        return changed


def _resized(tensor: Tensor, extents: Sequence[Extent], sizes: Sequence[int]) -> Tensor:
    for extent in extents:
        size, want = tensor.shape[extent.axis], extent.times * sizes[extent.dimension] + extent.plus
        if size == want:
            continue
        try:
            tensor = repeated(tensor.detach(), extent.axis, want)
        except RuntimeError as refused:
            told = f"axis {extent.axis} of one has {want:,} rows: {str(refused).splitlines()[0]}"
            raise OptionError(
                "inputs of so large a size cannot be made", told, "compile for smaller sizes"
            ) from None
    return tensor


def leading_batch(args: Any, kwargs: Any) -> DynamicShapes | None:
    """The first axis of all tensors that have one is the batch; None if their sizes differ."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sizes = {leaf.shape[0] for leaf in leaves if leaf.dim()}
    if len(sizes) != 1 or min(sizes) == 0:
        return None
    extents = tuple((Extent(0, 0),) if leaf.dim() else () for leaf in leaves)
    return DynamicShapes((Dimension("batch"),), extents)
