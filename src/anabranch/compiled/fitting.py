"""How a plan takes other weights: a plan -> what it reads of a model, and how it computes the rest.

conv.weight ─┐                        ┌─ direct    copied into the plan's memory
norm.*      ─┴─ names, types, ties ───┼─ program   derived constants, into the plan's memory
checked               └─ relied    values that conditions are about
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from anabranch.errors import WeightsError
from anabranch.frontend.state import same_memory
from anabranch.frontend.translate import plain_value
from anabranch.ir.conditions import broken, holds
from anabranch.ir.contents import bytes_of
from anabranch.ir.graph import Constant
from anabranch.ir.plan import Plan
from anabranch.ir.recipe import ModelTensor, Recipe, follows
from anabranch.ir.refused import Refused
from anabranch.ir.types import copy_into, laid_out, overlaps, type_of
from anabranch.rewrite.refit import RefitProgram, program

LISTED_NAMES = 3
"""Names that a message lists before it counts."""
COMPILE_AGAIN = "compile the model with its new weights instead"


@dataclass(frozen=True, slots=True)
class Fitting:
    """`direct`: the plan's memory by the name of the captured constant that lies in it as it is;
    `derived`: the plan's memory by the constant's own name; `read`: captured constants that are
    needed, by name. `relied`: what conditions are about, first what is not computed: an index is
    looked at before it is used."""

    recipe: Recipe
    read: Mapping[str, Constant]
    direct: tuple[tuple[str, Tensor], ...]
    derived: Mapping[str, Tensor]
    program: RefitProgram
    relied: tuple[RefitProgram, ...]
    device: torch.device


def fitting(plan: Plan) -> Fitting:
    """WeightsError for a plan that does not know where its constants come from."""
    recipe = plan.recipe
    if recipe is None or not recipe.state or recipe.lost:
        raise _unknown(recipe)
    captured = {constant.name: constant for constant in recipe.sources}
    named = {(c.digest, c.type): c.name for c in recipe.sources}
    ours = [c for c in plan.tasks.constants if c.value is not None and follows(c)]
    direct = [(named[c.digest, c.type], c.value) for c in ours if c.derived is None]
    computed = [c for c in ours if c.derived is not None]
    relied = [replace(c.constant, name=str(i)) for i, c in enumerate(recipe.conditions)]
    at_once, after = (
        [constant for constant in relied if (constant.derived is None) is plain]
        for plain in (True, False)
    )
    try:
        computation, *asked = (program(some, recipe.sources) for some in (computed, at_once, after))
    except ValueError as lost:
        raise _unknown(replace(recipe, lost=str(lost))) from None
    read = {name for name, _ in direct}.union(*(each.sources for each in (computation, *asked)))
    return Fitting(
        recipe,
        {name: captured[name] for name in captured if name in read},
        tuple((name, value) for name, value in direct if value is not None),
        {c.name: c.value for c in computed if c.value is not None},
        computation,
        tuple(asked),
        next((c.value.device for c in ours if c.value is not None), torch.device("cpu")),
    )


def _unknown(recipe: Recipe | None) -> WeightsError:
    why = "its constants have no names: it was compiled from a function, or saved by an earlier "
    why += "version"
    if recipe is not None and recipe.lost:
        why = recipe.lost
    return WeightsError("this plan cannot take other weights", why, COMPILE_AGAIN)


def chosen(fit: Fitting, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The new value of each captured constant that the plan reads; of those that no state dict
    brings and that are not there, none. WeightsError for what does not fit, all of it at once."""
    state = {tensor.name: tensor for tensor in fit.recipe.state}
    problems = list(_misfits(state, tensors))
    values: dict[str, Tensor] = {}
    missing: list[str] = []
    for name, constant in fit.read.items():
        there = [path for path in constant.source if path in tensors]
        if there:
            values[name] = tensors[there[0]]
            problems += _untied(there, tensors)
        elif any(state[path].persistent for path in constant.source if path in state):
            missing.append(constant.source[0])
    if missing:
        problems.insert(0, f"missing: {_listed(missing)}")
    if problems:
        more = f"; and {len(problems) - LISTED_NAMES} more" if len(problems) > LISTED_NAMES else ""
        raise WeightsError(
            "these weights do not fit the plan",
            "; ".join(problems[:LISTED_NAMES]) + more,
            _next(tensors),
        )
    return values


def _misfits(state: Mapping[str, ModelTensor], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """The arguments given under a name that the model does not have, or that are of another kind
    there."""
    unexpected = [name for name in tensors if name not in state]
    if unexpected:
        yield f"not in the model: {_listed(unexpected)}"
    for name, tensor in tensors.items():
        held = state.get(name)
        if held is None:
            continue
        if why := unreadable(tensor):
            yield f"{name} is {why}"
        elif tuple(tensor.shape) != held.shape:
            yield f"{name} has the shape {tuple(tensor.shape)}, compiled was {held.shape}"
        elif tensor.dtype != held.dtype:
            yield f"{name} is of {tensor.dtype}, compiled was {held.dtype}"


def unreadable(tensor: Tensor) -> Refused | None:
    """Why the numbers of a tensor cannot be copied, if they cannot."""
    if is_lazy(tensor):
        return Refused("a weight of a lazy layer that has not seen an input")
    if tensor.device.type == "meta" or isinstance(tensor, FakeTensor):
        return Refused("a tensor without data")
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        return Refused("a sparse, nested or quantised tensor")
    held: object = tensor  # of the class that mypy infers from the guard there can be none
    if is_traceable_wrapper_subclass(held):
        return Refused(f"a {type(tensor).__name__}, which holds its numbers in a way of its own")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return Refused("a tensor of torch.func, inside of vmap, grad or jvp")
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        return Refused("a tensor whose memory has been freed")
    return None


def _untied(paths: Sequence[str], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Arguments that were two names of one tensor, and are two tensors that differ now."""
    first = tensors[paths[0]]
    if any(unreadable(tensors[path]) for path in paths):
        return  # said of each already
    for path in paths[1:]:
        other = tensors[path]
        alike = first.shape == other.shape and first.dtype == other.dtype
        if alike and not (same_memory(first, other) or _equal(first, other)):
            yield f"{paths[0]} and {path} were one tensor when the model was compiled, and differ"


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether the contents are the same to the bit, NaN included."""
    return torch.equal(bytes_of(a), bytes_of(b.to(a.device)))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return ", ".join(names[:LISTED_NAMES]) + more


def _next(tensors: Mapping[str, Tensor]) -> str:
    for prefix in ("module.", "_orig_mod.", "model."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            return f"take the prefix {prefix!r} off the names, or give the model inside"
    return f"give weights of the model that was compiled, or {COMPILE_AGAIN}"


class Moved(Mapping[str, Tensor]):
    """New values as captured constants hold them: on the plan's device, laid out as they were. What
    is not given is what the plan has kept."""

    def __init__(self, fit: Fitting, tensors: Mapping[str, Tensor]) -> None:
        self._fit, self._tensors = fit, tensors

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            return self._fit.recipe.kept[name]
        value = tensor
        if tensor.device != self._fit.device or tensor.is_conj() or tensor.is_neg():
            value = plain_value(tensor, self._fit.device).to(self._fit.device)
        return laid_out(self._fit.read[name].type, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fit.read)

    def __len__(self) -> int:
        return len(self._fit.read)


def check_conditions(fit: Fitting, values: Moved) -> None:
    """WeightsError where a rewrite relied on what the new weights no longer have."""
    conditions = fit.recipe.conditions
    if not conditions:
        return
    for relied in fit.relied:
        asked: dict[int, Tensor] = {}
        for derived in relied.values(values, fit.device):
            asked.update((int(i), holds(conditions[int(i)], value)) for i, value in derived.items())
        truths = torch.stack(list(asked.values())).tolist() if asked else []
        wrong = [conditions[i] for i, true in zip(asked, truths, strict=True) if not true]
        if wrong:
            more = f"; and {len(wrong) - 1} more of this kind" if len(wrong) > 1 else ""
            raise WeightsError(
                "the plan is not right for these weights", broken(wrong[0]) + more, COMPILE_AGAIN
            )


def write(
    fit: Fitting, values: Moved, tensors: Mapping[str, Tensor], begin: Callable[[], None]
) -> None:
    """Every constant, in place. `tensors`: the new values as they came. `begin` is called before
    anything is written."""
    for derived in fit.program.values(values, fit.device):
        begin()
        _copied((fit.derived[name], value) for name, value in derived.items())
    begin()
    there = [(memory, tensors[name]) for name, memory in fit.direct if name in tensors]
    there += [(kept, tensors[name]) for name, kept in fit.recipe.kept.items() if name in tensors]
    _copied((memory, plain_value(value, None)) for memory, value in there)


def memory_of(fit: Fitting) -> list[Tensor]:
    """All that `write` writes to."""
    return [*(value for _, value in fit.direct), *fit.derived.values(), *fit.recipe.kept.values()]


def _copied(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Each second tensor into the first, in one call where that can be."""
    plain: list[tuple[Tensor, Tensor]] = []
    for memory, value in pairs:
        if 0 in memory.stride() and overlaps(type_of(memory)):
            copy_into(memory, value)
        else:
            plain.append((memory, value))
    if plain:
        torch._foreach_copy_([to for to, _ in plain], [of for _, of in plain])
