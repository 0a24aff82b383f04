"""One SRU layer against its two equations, element by element."""

import math

import torch

from anabranch.models.zoo.sru import Layer


def test_layer_follows_the_recurrence() -> None:
    channels, steps = 3, 4
    layer = Layer(channels)
    x = torch.randn(steps, 1, channels, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mapped, found = layer.linear(x), layer(x)
    for j in range(channels):
        c = 0.0
        for t in range(steps):
            z, f, r = (mapped[t, 0, k * channels + j].item() for k in range(3))
            f, r = 1 / (1 + math.exp(-f)), 1 / (1 + math.exp(-r))
            c = f * c + (1 - f) * z
            h = r * math.tanh(c) + (1 - r) * x[t, 0, j].item()
            assert math.isclose(found[t, 0, j].item(), h, rel_tol=1e-4, abs_tol=1e-5)
