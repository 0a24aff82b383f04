"""Weights that a compiled model keeps beside its plans: of which these have only what was computed.

    conv.weight, norm.*  -> folded into one constant        kept, for state_dict
    head.weight          -> lies in the plan as it is       read there
    norm.num_batches_tracked, which no plan reads           kept, for state_dict

The model that a plan was compiled from has them, and so nothing is kept. A copy (deepcopy, pickle)
has no model, and weights that `load_state_dict` brought are not the model's: these keep what their
plans lack, in memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def on_host(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the weights in memory of the host; what is one tensor stays one."""
    return _once_each(weights, lambda tensor: tensor.detach().to("cpu", copy=True))


def on_device(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The weights there; what is one tensor stays one."""
    return _once_each(weights, lambda tensor: tensor.to(device))


def nbytes(weights: Mapping[str, Tensor]) -> int:
    """What they take, those that are one tensor once."""
    return sum({id(tensor): tensor.nbytes for tensor in weights.values()}.values())


def _once_each(
    weights: Mapping[str, Tensor], move: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    done: dict[tuple[Any, ...], Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        place = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        if place not in done or not tensor.numel():
            done[place] = move(tensor)
        tensors[name] = done[place]
    return tensors
