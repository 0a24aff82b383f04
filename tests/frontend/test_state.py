"""What a model holds by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.frontend.state import tensors_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2))
        self.register_parameter("none", None)
        self.first = nn.BatchNorm1d(2)
        self.second = nn.Sequential(self.first, nn.Linear(2, 2))
        self.weight = nn.Parameter(torch.ones(2))


class Named(Tied):
    """Says by itself what its parameters are."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:  # type: ignore[override]
        yield "other", self.weight


def test_all_tensors_under_each_of_their_names_parameters_first() -> None:
    for model in (Tied(), Named(), nn.Linear(2, 2)):
        expected = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        found = list(tensors_of(model))
        assert [name for name, _ in found] == [name for name, _ in expected]
        assert all(one is other for (_, one), (_, other) in zip(found, expected, strict=True))
    assert [name for name, _ in tensors_of(Named())][:2] == ["other", "mask"]
