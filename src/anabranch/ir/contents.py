"""The bytes of a tensor, in the order of its elements, on the device where it is.

>>> import torch
>>> bytes_of(torch.tensor([1, 2], dtype=torch.int16)).tolist()
[1, 0, 2, 0]
"""

from __future__ import annotations

import torch
from torch import Tensor


def bytes_of(tensor: Tensor) -> Tensor:
    """u8[bytes]: equal for tensors that are equal to the bit, NaN and signs of zero included."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Of a single element torch takes any stride for contiguous, and views none of them as bytes.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
