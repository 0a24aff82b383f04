"""The weights of a compiled model by the names that its model has for them.

A plan has constants, and of some only what was computed of several weights. The model that it was
compiled from has the weights themselves: they are the plan's as long as nobody changed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from anabranch.compiled.entry import Entry
from anabranch.errors import OptionError
from anabranch.ir.key import digest_source, digest_tensors


def weights_of(model: Any, entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Weights by name. OptionError where they are not known, or not those of the plan any more."""
    made = entries[-1].compilation if entries else None
    if entries and not entries[-1].plan.tasks.constants and not isinstance(model, nn.Module):
        return {}
    if not isinstance(model, nn.Module) or made is None:
        raise OptionError(
            "the weights of this compiled model are not known by name",
            "it was loaded from a file, or compiled from a function",
            "ask the model that it was compiled from",
        )
    state = {
        name: tensor
        for name, tensor in getattr(model, "_orig_mod", model).state_dict().items()
        if isinstance(tensor, Tensor)
    }
    compiled = {constant.name: constant.digest for constant in made.captured.graph.constants}
    names = [(name, source) for name, source in made.captured.sources if source in state]
    digests = digest_tensors([state[source] for _, source in names])
    for (name, source), digest in zip(names, digests, strict=True):
        named = digest_source(digest, source)
        if compiled.get(name, named) != named:
            raise OptionError(
                f"the weights of the model were changed after compiling: {source}",
                "the plan has those it was compiled with, and not all of them by themselves",
                "read the model's own state_dict(), or give the plan the new weights with "
                "load_state_dict(model.state_dict())",
            )
    return state
