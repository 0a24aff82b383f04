"""Bytes of tensors, however these lie in memory."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.contents import bytes_of
from anabranch.ir.key import digest_tensor


@pytest.mark.parametrize("kind", [torch.int64, torch.float16, torch.bool, torch.complex64])
def test_a_tensor_has_the_bytes_of_its_contiguous_copy(kind: torch.dtype) -> None:
    """A single element of a column, which torch calls contiguous with a stride of 26, too."""
    whole = torch.arange(2 * 26).reshape(2, 26).to(kind)
    for part in (
        whole,
        whole[:1, 3],
        whole[:, 3],
        whole[:1, 3:4],
        whole.t(),
        whole[:0],
        whole[1, 2],
    ):
        fresh = torch.empty(part.shape, dtype=kind).copy_(part)
        want = fresh.numpy().tobytes()
        assert bytes(bytes_of(part).numpy()) == want
        assert digest_tensor(part) == digest_tensor(fresh)


def test_what_is_read_as_conjugate_or_negative_has_the_bytes_of_what_is_read() -> None:
    z = torch.tensor([1 + 2j])
    assert torch.equal(bytes_of(z.conj()), bytes_of(torch.tensor([1 - 2j])))
    assert torch.equal(bytes_of(z.conj().imag), bytes_of(torch.tensor([-2.0])))
