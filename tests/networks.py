"""Tiny networks of the zoo, each built and captured once in a process: capturing takes seconds.

For a batch of two, whose halves are easily confused if one thinks of one, and with batch norms as
after training."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from tests.rewrite.graphs import as_trained
from torch import nn

from anabranch.frontend.captured import Captured
from anabranch.frontend.from_torch import capture
from anabranch.zoo import ZOO


@dataclass(frozen=True)
class Network:
    """Neither changed by a test: whoever wants another model builds one."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    captured: Captured


@functools.cache
def tiny(name: str) -> Network:
    model, inputs = ZOO[name].build("tiny"), ZOO[name].inputs("tiny", 2)
    as_trained(model)
    return Network(model, inputs, capture(model, inputs))
