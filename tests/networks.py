"""Tiny networks of the zoo, each built once in a process and captured once in a run, which takes
seconds: what one worker has captured the others read from a folder of the run.

    @pytest.mark.parametrize("name", each())     tests of one network run in one process

For a batch of two, whose halves are easily confused if one thinks of one, and with batch norms as
after training."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.conftest import CAPTURES
from torch import nn

from anabranch.frontend.captured import Captured
from anabranch.frontend.from_torch import capture
from anabranch.models.zoo import ZOO


@dataclass(frozen=True)
class Network:
    """Neither changed by a test: whoever wants another model builds one."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    captured: Captured


ALIKE = {
    **{"nasnet_large": "nasnet_ios", "nasnet_mobile": "nasnet_ios", "randwire": "randwire_ios"},
    **{"densenet121": "googlenet", "mobilenet_v2": "resnext50", "gpt2": "bert_base"},
    **{"mlp": "deepfm", "dlrm": "deepfm", "lstm": "sru", "gru": "sru", "attention_rnn": "sru"},
    **{"t5": "bert_base", "deepspeech2": "sru", "nasnet_cell": "nasnet_ios"},
}
"""Networks of the operators and blocks of another one, which stands for them here."""
UNLIKE = tuple(name for name in ZOO if name not in ALIKE)


def each(names: Iterable[str] = UNLIKE) -> list[object]:
    return [pytest.param(name, marks=with_tiny(name)) for name in names]


def with_tiny(name: str) -> pytest.MarkDecorator:
    return pytest.mark.xdist_group(f"tiny-{name}")


def as_trained(model: nn.Module) -> None:
    """Gives batch norms random statistics, weights and biases."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)


@functools.cache
def tiny(name: str) -> Network:
    model, inputs = ZOO[name].build("tiny"), ZOO[name].inputs("tiny", 2)
    as_trained(model)
    file = Path(os.environ[CAPTURES]) / name
    if file.exists():
        return Network(model, inputs, torch.load(file, weights_only=False))
    captured = capture(model, inputs)
    written = file.with_name(f"{name}.{os.getpid()}")
    torch.save(captured, written)
    written.rename(file)  # whole, or not there
    return Network(model, inputs, captured)


class Fire(nn.Module):
    """What SqueezeNet is made of, once."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(3, 4, 3)
        self.one, self.three = nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 3, padding=1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        x = torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], dim=1)
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


@functools.cache
def fire() -> Network:
    """For tests of what is done with a network, whichever it is."""
    torch.manual_seed(0)
    model, inputs = Fire().eval(), (torch.randn(2, 3, 9, 9),)
    return Network(model, inputs, capture(model, inputs))
