"""Copies the inputs of a call into the buffers that a graph reads.

ids i64[1,128]   mask i64[1,128]   types i64[1,128]      one launch
image f16[1,3,224,224]                                   a copy of its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anabranch.ir.types import copy_into, once

SMALL_ELEMENTS = 4096
"""Elements of a tensor that is copied together with others. The kernel that copies several gives
65,536 elements to a block, which takes longer for them than a copy by itself."""
TOGETHER = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)
"""Types that this kernel has in every version of torch."""


def filler(buffers: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], None]:
    """Copies tensors, one for each buffer, without waiting for it. A copy takes the host as long as
    launching a small graph, so small tensors of one type go together; those that lie elsewhere, or
    otherwise, than their buffers torch copies one by one all the same."""
    groups: dict[torch.dtype, list[int]] = {}
    for place, buffer in enumerate(buffers):
        if (
            buffer.dtype in TOGETHER
            and 0 < buffer.numel() <= SMALL_ELEMENTS
            and once(buffer) is buffer
        ):
            groups.setdefault(buffer.dtype, []).append(place)
    joint = [places for places in groups.values() if len(places) > 1]
    joined = [(places, [buffers[place] for place in places]) for places in joint]
    alone = sorted(set(range(len(buffers))).difference(*joint))
    plain = [(place, buffers[place]) for place in alone if once(buffers[place]) is buffers[place]]
    repeated = [(p, buffers[p]) for p in alone if once(buffers[p]) is not buffers[p]]

    def fill(tensors: Sequence[Tensor]) -> None:
        if len(tensors) != len(buffers):
            raise ValueError(f"{len(tensors)} tensors for {len(buffers)} inputs")
        for place, buffer in plain:
            buffer.copy_(tensors[place], non_blocking=True)
        for place, buffer in repeated:
            copy_into(buffer, tensors[place], wait=False)
        for places, group in joined:
            torch._foreach_copy_(group, [tensors[place] for place in places], non_blocking=True)

    return fill
