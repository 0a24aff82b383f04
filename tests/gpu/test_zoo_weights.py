"""The zoo against the implementations it names its parameters after: same weights, same answers.

Runs on the CPU in float32; it is here because the machines with a GPU are the ones that have
torchvision, timm and transformers installed.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from anabranch.models.zoo import ZOO

Make = Callable[[ModuleType], nn.Module]

# network: package, and how to make the original without pretrained weights
ORIGINALS: dict[str, tuple[str, Make]] = {
    "squeezenet": ("torchvision.models.squeezenet", lambda m: m.squeezenet1_0()),
    "googlenet": (
        "torchvision.models.googlenet",
        lambda m: m.googlenet(aux_logits=False, init_weights=False),
    ),
    "inception_v3": (
        "torchvision.models.inception",
        lambda m: m.inception_v3(aux_logits=False, init_weights=False),
    ),
    "resnet50": ("torchvision.models.resnet", lambda m: m.resnet50()),
    "resnext50": ("torchvision.models.resnet", lambda m: m.resnext50_32x4d()),
    "nasnet_large": ("timm.models.nasnet", lambda m: m.nasnetalarge(pretrained=False)),
    "bert_base": ("transformers", lambda m: m.BertModel(m.BertConfig())),
}


@pytest.mark.parametrize("name", sorted(ORIGINALS))
def test_weights_load_and_answers_agree(name: str) -> None:
    package, make = ORIGINALS[name]
    theirs = make(load(package)).eval()
    redraw(theirs)
    network = ZOO[name]
    ours = network.build("paper")
    ours.load_state_dict(theirs.state_dict())  # strict: the same names and shapes
    inputs = network.inputs("paper", 2)
    with torch.no_grad():
        for expected, found in zip(tensors(theirs(*inputs)), tensors(ours(*inputs)), strict=True):
            assert expected.std() > 1e-3
            scale = expected.abs().max()
            assert (expected - found).abs().max() <= 1e-5 * scale


def test_bert_reads_masks_and_token_types_alike() -> None:
    transformers = load("transformers")
    theirs = ORIGINALS["bert_base"][1](transformers).eval()
    ours = ZOO["bert_base"].build("paper")
    theirs.load_state_dict(ours.state_dict())
    (ids,) = ZOO["bert_base"].inputs("paper", 2)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, 90:], types[:, 60:] = 0, 1
    with torch.no_grad():
        pairs = zip(tensors(theirs(ids, mask, types)), ours(ids, mask, types), strict=True)
        for expected, found in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def load(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as why:  # torchvision of another torch: a RuntimeError
        pytest.skip(f"needs {package}, which does not import here: {why}")


def redraw(model: nn.Module) -> None:
    """Random weights that keep signals alive, and batch norms that are no identity."""
    generator = torch.Generator().manual_seed(1)
    for key, x in model.state_dict().items():
        if not x.is_floating_point():
            continue
        if x.dim() > 1:
            x.normal_(0.0, (1.5 / x[0].numel()) ** 0.5, generator=generator)
        elif key.endswith(("running_var", "weight")):
            x.uniform_(0.5, 1.5, generator=generator)
        else:
            x.normal_(0.0, 0.1, generator=generator)


def tensors(output: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(output, torch.Tensor):
        return (output,)
    if hasattr(output, "pooler_output"):
        return output.last_hidden_state, output.pooler_output
    return tuple(output)
