"""Train a small network with a compiled step, and resume it from a checkpoint.

python examples/training_step.py
"""

import copy

import torch
from torch import nn

import anabranch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def loss_fn(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and how many were right."""
    y = model(x)
    return nn.functional.cross_entropy(y, t), (y.argmax(1) == t).float().mean()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Points of a plane, and whether each lies inside a circle."""
    x = torch.randn(128, 2, device=DEVICE)
    return x, (x.norm(dim=1) > 1.2).long()


step = anabranch.compile_step(model, loss_fn, optimizer, batch(), search="none")
for number in range(60):
    loss, right = step(*batch())
    if number % 20 == 0:
        print(f"step {number}: loss {loss.item():.3f}, {right.item():.0%} right")
assert right.item() > 0.85, right

checkpoint = [copy.deepcopy(part.state_dict()) for part in (model, optimizer, step)]
next_batch = batch()
following = step(*next_batch)[0].item()
for part, state in zip((model, optimizer, step), checkpoint, strict=True):
    part.load_state_dict(state)
assert step(*next_batch)[0].item() == following, "resumed bit for bit"
print(step.explain())
