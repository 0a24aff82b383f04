"""The decoder of the benchmark: its plan writes the keys and values that the model would."""

from __future__ import annotations

import copy

import torch
from benchmarks.decoding import tiny

import anabranch


def test_steps_are_the_models() -> None:
    model, args = tiny(2)
    alone = copy.deepcopy(model)
    fast = anabranch.compile(
        model, args, target="cpu", search="none", scheduler="sequential", cache_dir=None
    )
    for place in (3, 4, 7):
        word, at = torch.randint(0, 50, (2, 1)), torch.tensor([place])
        with torch.no_grad():
            torch.testing.assert_close(fast(word, at), alone(word, at))
    for (name, ours), (_, theirs) in zip(model.named_buffers(), alone.named_buffers(), strict=True):
        assert ours.equal(theirs), name
