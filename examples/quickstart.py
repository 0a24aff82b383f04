"""Compile a model, call it, and read what was decided.

python examples/quickstart.py
"""

import torch
from torch import nn

import anabranch


class Branches(nn.Module):
    """Two convolutions of one input, which a GPU can run at once, and their concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.narrow = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.wide(x), self.narrow(x)], 1)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
model = Branches().eval().to(DEVICE)
x = torch.randn(1, 8, 14, 14, device=DEVICE)

fast = anabranch.compile(model, (x,))  # on the GPU where there is one, on the CPU elsewhere
y = fast(x)

with torch.no_grad():
    error = (y - model(x)).abs().max().item()
assert error < 1e-4, error
print(f"{fast}\nlargest difference to eager: {error:.1e}\n")
print(fast.explain())

# A batch that was not compiled is refused with the list of those that were.
try:
    fast(torch.randn(4, 8, 14, 14, device=DEVICE))
except anabranch.InputError as refused:
    print(f"\n{refused}")
fast.add((torch.randn(4, 8, 14, 14),))
assert fast(torch.randn(4, 8, 14, 14)).shape == (4, 32, 14, 14)
