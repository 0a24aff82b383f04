"""Constant indices of a saved plan lie in what they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.artifact.test_file import Members, rewrite
from torch import nn

import anabranch
from anabranch.errors import ArtifactError

PLACES = [1, 9, 3, 0]


class Looks(nn.Module):
    """Rows of what is given, by numbers that the model holds: as they are, and a part of them."""

    def __init__(self) -> None:
        super().__init__()
        self.places: torch.Tensor
        self.register_buffer("places", torch.tensor(PLACES))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[self.places] * 2, x[:4].index_select(0, self.places[2:]) + 1


def damage(file: Path, places: list[int]) -> None:
    def changed(members: Members) -> None:
        held = safetensors.torch.load(members["weights.safetensors"])
        new = {
            name: torch.tensor(places) if value.tolist() == PLACES else value
            for name, value in held.items()
        }
        assert any(value.tolist() == places for value in new.values())
        members["weights.safetensors"] = safetensors.torch.save(new)

    rewrite(file, changed)


@pytest.mark.parametrize(
    ("places", "fits"),
    [
        (PLACES, True),
        ([-10, 9, 3, 0], True),  # from the end
        ([1, 10, 3, 0], False),
        ([1, 10**9, 3, 0], False),
        ([-11, 9, 3, 0], False),
    ],
)
def test_a_place_beyond_the_end_is_refused_at_load(
    places: list[int], fits: bool, tmp_path: Path
) -> None:
    x, file = torch.randn(10, 3), tmp_path / "net"
    model = Looks().eval()
    with torch.no_grad():
        options: dict[str, Any] = {"search": "none", "target": "cpu", "cache_dir": None}
        anabranch.compile(model, (x,), **options).save(file)
        damage(file, places)
        if not fits:
            with pytest.raises(ArtifactError, match="would not run safely") as said:
                anabranch.load(file, target="cpu")
            assert "among 10 places" in said.value.why
            return
        first, _ = anabranch.load(file, target="cpu")(x)
        torch.testing.assert_close(first, x[torch.tensor(places)] * 2)
