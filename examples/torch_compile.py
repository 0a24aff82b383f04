"""Use Anabranch as a backend of torch.compile, which follows weight updates by itself.

python examples/torch_compile.py
"""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
)
x = torch.randn(2, 3, 16, 16)
model(x)
model.eval()

fast = torch.compile(model, backend="anabranch", options={"search": "none"})
with torch.no_grad():  # else a forward pass is compiled that keeps what a backward would read
    torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    print("compiled by the first call, found again by the second")

    model[0].weight.mul_(0.5)  # counted by torch, so the next call refits the plan
    torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    print("refitted after a weight update")

    other = torch.randn(4, 3, 16, 16)  # another batch: one more plan
    torch.testing.assert_close(fast(other), model(other), rtol=1e-3, atol=1e-4)
    print("compiled for another batch")
