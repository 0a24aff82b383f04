"""Every tensor is drawn, and batch norms are no identity: a wrong folding must show."""

import pytest
import torch
from torch import nn

from anabranch.models.zoo import ZOO
from anabranch.models.zoo.weights import seeded


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_tensor_is_filled(name: str) -> None:
    for key, tensor in ZOO[name].build("tiny").state_dict().items():
        assert torch.isfinite(tensor).all(), key
        if key.endswith("num_batches_tracked"):
            assert tensor.item() == 0, key
        elif tensor.numel() > 1:
            assert tensor.std() > 0, key
            assert tensor.abs().max() < 10, key


def test_batch_norm_is_no_identity() -> None:
    norm = seeded(lambda: nn.BatchNorm2d(64))
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.running_mean.abs().max() > 0.05
    assert norm.running_var.min() >= 0.5 and norm.running_var.max() <= 1.5
    assert norm.weight.min() >= 0.5 and norm.bias.abs().max() > 0.05


def test_gain_scales_convolutions() -> None:
    one, half = (seeded(lambda: nn.Conv2d(8, 8, 3), gain=gain) for gain in (1.0, 0.5))
    assert isinstance(one, nn.Conv2d) and isinstance(half, nn.Conv2d)
    torch.testing.assert_close(one.weight, 2 * half.weight)
    assert torch.equal(one.bias, half.bias)  # type: ignore[arg-type]


def test_a_cpu_network_even_where_another_device_is_the_default() -> None:
    with torch.device("meta"):
        assert next(ZOO["sru"].build("tiny").parameters()).is_meta
        assert all(x.device.type == "cpu" for x in ZOO["sru"].inputs("tiny", 1))
