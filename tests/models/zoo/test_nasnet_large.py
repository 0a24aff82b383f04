"""NASNet's image sizes: 331 -> 165 -> 83 -> 42 -> 21 -> 11, and the depth of its three stages."""

import pytest
import torch
from torch import Tensor, nn

from anabranch.models.zoo import ZOO

SIDES = {
    ("nasnet_large", "paper"): [83, 42] + 6 * [42] + 6 * [21] + 6 * [11],
    ("nasnet_mobile", "paper"): [56, 28] + 4 * [28] + 4 * [14] + 4 * [7],
    ("nasnet_large", "tiny"): [19, 10] + 2 * [10] + 2 * [5] + 2 * [3],
}


@pytest.mark.parametrize(("name", "size"), sorted(SIDES))
def test_image_sides(name: str, size: str) -> None:
    with torch.device("meta"):
        model = ZOO[name].build(size)
    sides = []

    def note(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        sides.append(output.shape[-1])

    for key, cell in model.named_children():
        if key.startswith("cell_"):
            cell.register_forward_hook(note)
    model(*(x.to("meta") for x in ZOO[name].inputs(size, 1)))
    assert sides == SIDES[name, size]
