"""How a kernel walks the depth of a contraction: in steps along its fastest axis, or flat.

depth (i < 3, j < 3, c < 64), 32 a step      18 steps: i = step // 6, j = step // 2 % 3,
                                             c = step % 2 * 32 + place
depth (i < 7, j < 7, c < 3), 32 a step       one axis of 147 in 5 steps, the last one ragged
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.kernels.dfg.index_expr import Axis, Index, axis
from anabranch.kernels.dfg.traversal import substitute_index
from anabranch.kernels.triton.axis_layout import flattened
from anabranch.kernels.triton.contraction_axes import Contraction

FLAT_DEPTH_RATIO = 1.15
"""How much longer than the fastest axis of the depth its steps may be in all."""


@dataclass(frozen=True, slots=True)
class KLoopSteps:
    """How the depth is walked: `count` steps, and each of its axes in terms of the step and of the
    place within it. `at` runs along the axis that steps cut, of length `extent`."""

    count: int
    place: Mapping[Axis, Index]
    at: Index
    extent: int

    @property
    def ragged(self) -> bool:
        """Whether the last step reaches beyond the end."""
        return self.at.range[1] >= self.extent


def steps_of(contraction: Contraction, each: int, lane: str) -> KLoopSteps:
    """Steps of `each` along the fastest axis of the depth, or along all of it as one flat axis."""
    return walk(contraction.depth, each, lane)


@functools.lru_cache(maxsize=1 << 12)
def walk(
    depth: tuple[Axis, ...], each: int, lane: str, step: str = "step", flat: bool = True
) -> KLoopSteps:
    """The same of any depth. `step`: what the axis along which it walks is called; `flat`: whether
    a step may hold the end of one run along the fastest axis and the beginning of the next. Found
    out once: all tiles of a layer ask for a few depths of a step."""
    *slow, fast = depth
    chunks = -(-fast.extent // each)
    if flat and slow and chunks * each > FLAT_DEPTH_RATIO * fast.extent:
        whole, place = flattened(depth, "k")
        count = -(-whole.extent // each)
        at = axis(step, count) * each + axis(lane, each)
        place = {dim: _replaced(index, whole, at) for dim, index in place.items()}
        return KLoopSteps(count, place, at, whole.extent)
    chunk = Axis("chunk", chunks)
    along, place = flattened((*slow, chunk), step)
    at = place.pop(chunk) * each + axis(lane, each)
    return KLoopSteps(along.extent, {**place, fast: at}, at, fast.extent)


def _replaced(index: Index, old: Axis, new: Index) -> Index:
    return substitute_index(index, {old: new}, lambda expr: expr)
