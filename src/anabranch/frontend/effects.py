"""Holds the effects of a call of the model on its arguments against those of the captured graph.

    def forward(self, pair, out):
        pair.append(pair[0] + 1)          changed    "args[0][1]": told, and not done by a plan
        pair[0].seen = True               changed    "args[0][0].seen": the same
        out.add_(1)                       written    "args[1]": an output of the graph, too
        self.cos = torch.ones(8)          replaced   "cos": a buffer that torch.export has as it was

A graph that writes to another input than the model does would spoil what is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError
from anabranch.frontend import held_tensors
from anabranch.frontend.captured import Captured
from anabranch.frontend.checks import name_of_leaf
from anabranch.frontend.held_containers import same
from anabranch.ir.contents import bytes_of

CallInputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The inputs of a call, by position and by name."""
Leaves = Mapping[str, Any]
"""Inputs by the names that a person has for them."""


def leaves_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All leaves of a call's arguments by the path that names them in messages."""
    leaves, _ = pytree.tree_flatten_with_path((args, dict(kwargs)))
    return {name_of_leaf(path): leaf for path, leaf in leaves}


def changed(before: Leaves, now: Leaves) -> list[str]:
    """Where containers among the inputs hold another thing than they did."""
    names = dict.fromkeys([*before, *now])
    return [n for n in names if n not in before or n not in now or not same(now[n], before[n])]


def attributes_of(inputs: Mapping[str, Tensor], was: Mapping[str, Any]) -> list[str]:
    """The changes of a call to tensors among the inputs, as they `were` read, that no operator
    shows: attributes, and whether they require gradients."""
    told = [held_tensors.differences(tensor, name, was[name]) for name, tensor in inputs.items()]
    return [name for names in told for name in names]


def replaced(model: Any, before: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The buffers that the model has now, and did not have `before`."""
    if not isinstance(model, nn.Module):
        return ()
    return tuple(name for name, now in model.named_buffers() if now is not before.get(name))


def check_writes(captured: Captured, inputs: CallInputs, written: Mapping[str, Tensor]) -> None:
    """CaptureError where the graph writes to an input that the model does not write to. `written`:
    the inputs that a call of the model wrote to, by name."""
    for names in mutated(captured, inputs):
        if names.isdisjoint(written):
            raise CaptureError(
                f"torch.export could not capture the model: its graph writes to {min(names)}",
                "the model itself does not",
                "compile a smaller part of the model, or report it",
            )


def check_values(captured: Captured, inputs: CallInputs, after: Mapping[str, Tensor]) -> None:
    """CaptureError where the model changes an input that the graph leaves as it is. `after`: the
    inputs that a call of the model wrote to, as it left them."""
    before, written = leaves_of(*inputs), set[str]().union(*mutated(captured, inputs))
    for name, tensor in after.items():
        if name not in written and not _alike(tensor, before[name]):
            raise CaptureError(
                f"the model changes {name}, and the graph that torch.export captured does not",
                "it writes past what torch.export follows",
                "have the model return the new value instead of writing to its input",
            )


def left_in_inputs(
    captured: Captured, inputs: CallInputs, after: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """By the graph's names of inputs what a call of the model left in those that it wrote to, as
    `check_values` is given it."""
    if not captured.signature.mutations:
        return {}
    names = {id(leaf): name for name, leaf in leaves_of(*inputs).items() if name in after}
    leaves = captured.trees[0].flatten_up_to((inputs[0], dict(inputs[1])))
    told = zip(leaves, captured.signature.inputs, strict=True)
    return {leaf.ref.name: after[names[id(x)]] for x, leaf in told if leaf.ref and id(x) in names}


def mutated(captured: Captured, inputs: CallInputs) -> list[frozenset[str]]:
    """The inputs that the graph writes to: a tensor that is given twice has two names."""
    names: dict[int, list[str]] = {}
    for name, leaf in leaves_of(*inputs).items():
        names.setdefault(id(leaf), []).append(name)
    leaves = captured.trees[0].flatten_up_to((inputs[0], dict(inputs[1])))
    written = {name for name, _ in captured.signature.mutations}
    told = zip(leaves, captured.signature.inputs, strict=True)
    return [frozenset(names[id(x)]) for x, leaf in told if leaf.ref and leaf.ref.name in written]


def rebuilt(name: str) -> CaptureError:
    """The error of a model that makes a buffer anew in forward, which torch.export mistakes."""
    return CaptureError(
        f"the model makes its buffer {name} in forward",
        "torch.export has the buffers that were there before, and takes one for another",
        "call the model once with these inputs, then compile it; a buffer that every call makes "
        "anew is an input and a result instead",
    )


def check_assigned(captured: Captured, names: Sequence[str]) -> None:
    """CaptureError where the model assigns another tensor to a buffer that it also reads: a plan
    leaves the new value in the tensor that is there. `names`: buffers that a call exchanged."""
    for state in captured.graph.states:
        if state.path in names:
            raise assigned(state.path)


def assigned(name: str) -> CaptureError:
    """The error of a model that assigns another tensor to a buffer."""
    return CaptureError(
        f"the model assigns another tensor to its buffer {name} in forward",
        "a plan reads the tensor that was there when it was compiled, and leaves the new value in "
        "it",
        f"write the new value into it: self.{name.rpartition('.')[2]}.copy_(...)",
    )


def _alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether nobody can tell one from the other."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    return torch.equal(bytes_of(tensor), bytes_of(other))
