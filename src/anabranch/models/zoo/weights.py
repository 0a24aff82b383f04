"""Reproducible random weights and images: a module's constructor in, the filled module out.

Nothing here reads or moves torch's global random state: constructors run on the meta device and
every tensor is then drawn, in order, from one private generator.

The draws are chosen for what a compiler must get right. Batch norms get running statistics, scales
and shifts away from 0 and 1, so that a wrong folding shows. Weights keep activations near one
(He et al., arXiv 1502.01852, times a network's own `gain`), so that float16 neither overflows nor
drowns in rounding however many branches are added up.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

SEED = 0


def seeded(make: Callable[[], nn.Module], gain: float = 1.0) -> nn.Module:
    """Construct, fill and set to eval; under `torch.device("meta")` only the shapes are built."""
    shapes_only = torch.get_default_device().type == "meta"
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = make().eval()
    if shapes_only:
        return model
    model = model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                _fill(module, name, parameter, gain, generator)
            for name, buffer in module.named_buffers(recurse=False):
                _fill(module, name, buffer, gain, generator)
    return model


def images(batch: int, side: int) -> tuple[Tensor]:
    """One batch of square RGB images, normally distributed as normalised photographs are."""
    return (normal(batch, 3, side, side),)


def normal(*shape: int) -> Tensor:
    """Reproducible draws from N(0, 1)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED), device="cpu")


def integers(high: int, *shape: int) -> Tensor:
    """Reproducible int64 draws from 0 .. high - 1."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(high, shape, generator=generator, device="cpu")


def _fill(module: nn.Module, name: str, x: Tensor, gain: float, generator: torch.Generator) -> None:
    is_norm = isinstance(module, (_BatchNorm, nn.LayerNorm, nn.RMSNorm))
    if name == "num_batches_tracked":
        x.zero_()
    elif name == "running_var" or (is_norm and name == "weight"):
        x.uniform_(0.5, 1.5, generator=generator)
    elif isinstance(module, nn.Conv2d) and name == "weight":
        x.normal_(0.0, gain * math.sqrt(2.0 / x[0].numel()), generator=generator)
    elif isinstance(module, nn.Linear) and name == "weight":
        x.normal_(0.0, math.sqrt(1.0 / x[0].numel()), generator=generator)
    elif name == "weight" and isinstance(fan_in := getattr(module, "fan_in", None), int):
        x.normal_(0.0, math.sqrt(1.0 / fan_in), generator=generator)
    elif isinstance(module, nn.RNNBase) and name.startswith("weight"):
        x.normal_(0.0, math.sqrt(1.0 / x[0].numel()), generator=generator)
    else:  # biases, running means, embeddings, a module's own parameters
        x.normal_(0.0, 0.1, generator=generator)
