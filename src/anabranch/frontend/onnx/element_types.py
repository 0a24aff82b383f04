"""Element types of ONNX, which are numbers in files, and torch's dtypes.

Types of 2 and 4 bits are kept one to a byte, for torch computes with no smaller type. Strings, and
floats of 4 and 6 bits, have no dtype here.
"""

from __future__ import annotations

import numpy as np
import torch

from anabranch.errors import OnnxError

FLOAT, STRING = 1, 8
UINT4, INT4, UINT2, INT2 = 21, 22, 25, 26
DTYPES: dict[int, torch.dtype] = {
    FLOAT: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
    UINT4: torch.uint8,
    INT4: torch.int8,
    24: torch.float8_e8m0fnu,
    UINT2: torch.uint8,
    INT2: torch.int8,
}
NAMES = {STRING: "STRING", 23: "FLOAT4E2M1", 27: "FLOAT6E2M3", 28: "FLOAT6E3M2"}
SMALL_RANGES = {UINT4: (0, 15), INT4: (-8, 7), UINT2: (0, 3), INT2: (-2, 1)}
"""The least and largest numbers of types that are smaller than a byte."""
SMALL_BITS = {UINT4: 4, INT4: 4, UINT2: 2, INT2: 2}
LARGE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""With which torch computes little; int64 holds their numbers, those of uint64 modulo 2**64."""
FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)


def dtype_of(code: int, floats: torch.dtype = torch.float32) -> torch.dtype:
    """The dtype of a type's code. `floats`: what 32-bit floats are. OnnxError for what torch lacks.

    >>> dtype_of(7), dtype_of(1, torch.float16)
    (torch.int64, torch.float16)
    """
    if code == FLOAT:
        return floats
    if code not in DTYPES:
        name = NAMES.get(code, f"number {code}")
        raise OnnxError(
            f"the element type {name} is not supported",
            "torch has no tensors of it",
            "leave out the part of the model that uses it, text as a rule, and run it before",
        )
    return DTYPES[code]


def shortest(number: float) -> float:
    """The number with the fewest digits that a file's 32 bits stand for: the one that was written
    in the model, as far as nobody can tell them apart.

    >>> shortest(9.999999747378752e-06)
    1e-05
    """
    return float(str(np.float32(number)))
