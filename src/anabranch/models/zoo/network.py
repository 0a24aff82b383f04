"""What the zoo holds: a network's name, how to build it, and example inputs for it.

`build(size)` gives the module in eval mode with reproducible random weights; `inputs(size, batch)`
gives the arguments of one call, on the CPU. A size is "paper" (as published) or "tiny" (the same
topology with few channels, for tests without a GPU).

    >>> from anabranch.models.zoo import ZOO
    >>> network = ZOO["squeezenet"]
    >>> network.name
    'squeezenet'
    >>> network.build("tiny")(*network.inputs("tiny", 2)).shape
    torch.Size([2, 10])
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

SIZES = ("paper", "tiny")


@dataclass(frozen=True, slots=True)
class Network:
    """One network: a name, `build(size)` and `inputs(size, batch)`."""

    name: str
    build: Callable[[str], nn.Module]
    inputs: Callable[[str, int], tuple[Tensor, ...]]
