"""Arguments that are objects with tensors in them, as a `StaticCache` of transformers: the model
holds such an object, and calls pass a mark in its place.

    model(ids, past_key_values=cache)
    around, _, kwargs = with_held(model, (ids,), {"past_key_values": cache})
        kwargs       {"past_key_values": "anabranch.held:past_key_values"}
        around       the model, with buffers past_key_values.layers.0.keys, .values, ..: the tensors
                     of the cache themselves, so that those that forward writes are states
        around(ids, **kwargs)    model(ids, past_key_values=cache), with marks in the results

An object is known by identity: another one of its class has other tensors. Where a call changes
numbers of Python's in it, these are passed beside its mark (`held_numbers`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, InputError
from anabranch.frontend.call_readers import Reader
from anabranch.frontend.held_containers import PLAIN_VALUES
from anabranch.frontend.held_numbers import (
    CountedResult,
    NumberGroup,
    counted,
    numbers_within,
    passed,
    write_numbers,
)
from anabranch.frontend.held_parts import (
    NO_OBJECTS,
    HeldPart,
    parts_of,
    tensors_among,
    tensors_within,
)
from anabranch.frontend.state import tensors_of, unwrapped
from anabranch.frontend.structure import MARK
from anabranch.ir.plan import Leaf, Signature

HELD, BARE = "_anabranch_held", "_anabranch_bare"
"""The attributes of a model that have what it holds, and the model without that."""
BESIDE = (tuple, list)
"""Where a mark stands with numbers: a tuple, but whoever looks whether a model minds calls it with
lists, too."""
OBJECTS = "_anabranch_objects"
"""The attribute by which what such an object holds is found, as all that a model has."""


@dataclass(frozen=True, slots=True)
class HeldArguments:
    """By their marks the objects that a model holds, all that they hold in turn, which a plan has
    as it was, and of that the tensors, each once, and the `numbers` that calls pass."""

    objects: Mapping[str, Any]
    parts: Mapping[str, tuple[HeldPart, ...]]
    tensors: Mapping[str, tuple[HeldPart, ...]]
    numbers: Mapping[str, tuple[NumberGroup, ...]] = field(default_factory=dict)

    @staticmethod
    def of(objects: Mapping[str, Any]) -> HeldArguments:
        """These objects, as they are now."""
        parts = {mark: tuple(parts_of(value)) for mark, value in objects.items()}
        tensors = {mark: tensors_among(held) for mark, held in parts.items()}
        return HeldArguments(objects, parts, tensors)

    def passing(self, numbers: Mapping[str, tuple[NumberGroup, ...]]) -> HeldArguments:
        """The same, of which calls pass these numbers."""
        of_calls = {id(part) for groups in numbers.values() for group in groups for part in group}
        rest = {
            mark: tuple(part for part in parts if id(part) not in of_calls)
            for mark, parts in self.parts.items()
        }
        return replace(self, parts=rest, numbers=numbers)

    def marked(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with marks in place of these objects, and the numbers beside them
        that are passed. InputError where one has other tensors or plain values than when it was
        compiled."""
        for mark, held in self.objects.items():
            if any(value is held for value in (*args, *kwargs.values())):
                self._check(mark)
                groups = self.numbers.get(mark, ())
                told = (mark, *passed(groups, mark.removeprefix(MARK))) if groups else mark
                args = tuple([told if value is held else value for value in args])
                kwargs = {name: told if value is held else value for name, value in kwargs.items()}
        return args, dict(kwargs)

    def check_same(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """InputError where a marked call still has an object such as those that are held."""
        kinds = {type(held) for held in self.objects.values()}
        for value in (*args, *kwargs.values()):
            if type(value) in kinds:
                raise InputError(
                    f"this call passes another {type(value).__name__} than was compiled",
                    "plans read and write the tensors of the object of the example",
                    "pass that very object, or compile the model once more for this one",
                )

    def reader(self, read: Reader) -> Reader:
        """A reader of calls that are given these objects, of one that knows their marks."""
        return lambda args, kwargs: read(*self.marked(args, kwargs))

    def restored(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with these objects in place of their marks."""
        own = {name: self.unmarked(value) for name, value in kwargs.items()}
        return tuple(map(self.unmarked, args)), own

    def unmarked(self, value: Any) -> Any:
        """The object that a mark stands for; anything else as it is."""
        mark = value[0] if type(value) in BESIDE and value else value
        return self.objects.get(mark, value) if type(mark) is str else value

    def told(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Sequence[Tensor]]:
        """By the marks among the arguments of a call the numbers beside them."""
        numbers: dict[str, Sequence[Tensor]] = {}
        for value in (*args, *kwargs.values()):
            mark, *beside = value if type(value) in BESIDE and value else (value,)
            if type(mark) is str and mark in self.objects:
                numbers[mark] = beside
        return numbers

    def taken(self, result: Any) -> Any:
        """What the user gets of a result, after the objects have the numbers that it left."""
        if not isinstance(result, CountedResult):
            return result
        for name, numbers in result.numbers:
            write_numbers(self.numbers[MARK + name], numbers)
        return result.result

    def reset_numbers(self) -> None:
        """Give numbers that calls pass the values that they had when the model was compiled."""
        for groups in self.numbers.values():
            write_numbers(groups, [part.value for group in groups for part in group])

    def _check(self, mark: str) -> None:
        for part in self.parts[mark]:
            if not part.is_there():
                name, now = mark.removeprefix(MARK), part.now()
                plain = isinstance(part.value, PLAIN_VALUES) and isinstance(now, PLAIN_VALUES)
                told = f"is {now!r:.80}, compiled for {part.value!r:.80}"
                raise InputError(
                    f"{name}.{part.path} {told if plain else 'is another one than was compiled'}",
                    f"plans read and write the tensors that {name} had then, and have the rest of "
                    "it as constants",
                    f"write into its tensors (copy_, zero_), or compile again for this {name}",
                )


def with_held(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model that holds what among these arguments are objects with tensors, and the arguments
    with marks in their places; all as they are where there are none. CaptureError where no model
    can hold one."""
    named = {**_by_place(model, args), **kwargs}
    objects = {name: value for name, value in named.items() if _is_object(value)}
    tensors = {name: tensors_within(value) for name, value in objects.items()}
    tensors = {name: held for name, held in tensors.items() if held}
    if not tensors:
        return model, args, dict(kwargs)
    first = next(iter(tensors))
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"{first} is a {type(objects[first]).__name__}, and the model is a function",
            "tensors of such an object are held by a module, as its buffers are",
            "compile a module whose forward is called so",
        )
    names = {name: _free_name(model, name) for name in tensors}
    held = HeldArguments.of({MARK + names[name]: objects[name] for name in tensors})
    return _around(model, held), *held.marked(args, kwargs)


def with_numbers(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    numbers: Mapping[str, tuple[NumberGroup, ...]],
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """What `with_held` returned, for calls that pass these numbers, too."""
    held = held_of(model)
    assert held is not None, "numbers are passed of what a model holds"
    args, kwargs = held.restored(args, kwargs)
    held = held.passing(numbers)
    return _around(bare(model), held), *held.marked(args, kwargs)


def held_of(model: Any) -> HeldArguments | None:
    """What a model of `with_held` holds; None for any other."""
    held = model.__dict__.get(HELD) if isinstance(model, nn.Module) else None
    return held if isinstance(held, HeldArguments) else None


def _forward_of(around: nn.Module, model: nn.Module, held: HeldArguments) -> Callable[..., Any]:
    """`forward` of a model that holds arguments: takes marks for them, and returns marks where it
    was called with some."""
    own = model.__dict__.get("forward")

    @functools.wraps(model.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        marks = held.told(args, kwargs)
        numbers = [mark for mark in marks if mark in held.numbers]
        args, kwargs = held.restored(args, kwargs)
        with _following(around, held), ExitStack() as stack:
            for mark in numbers:
                name, groups = mark.removeprefix(MARK), held.numbers[mark]
                stack.enter_context(numbers_within(groups, marks[mark], name))
            if own is not None:
                result = own(*args, **kwargs)
            else:
                result = type(around).forward(around, *args, **kwargs)
            left = tuple((m.removeprefix(MARK), counted(held.numbers[m])) for m in numbers)
        leaves, tree = pytree.tree_flatten(result)
        mark_of = {id(held.objects[mark]): mark for mark in marks}
        if any(id(leaf) in mark_of for leaf in leaves):
            leaves = [mark_of.get(id(leaf), leaf) for leaf in leaves]
            result = pytree.tree_unflatten(leaves, tree)
        return CountedResult(result, left) if left else result

    return forward


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model by name, but for the tensors of what it holds: of these
    none is a constant of a plan."""
    held = held_of(model)
    names = tuple(f"{mark.removeprefix(MARK)}." for mark in held.objects) if held else ()
    return {n: x for n, x in tensors_of(unwrapped(model)) if not n.startswith(names)}


def without_marks(signature: Signature) -> Signature:
    """That of a plan whose model is gone: None is passed, and returned, in place of the objects
    that it held."""

    def plain(leaf: Leaf) -> Leaf:
        marked = type(leaf.literal) is str and leaf.literal.startswith(MARK)
        return replace(leaf, literal=None) if marked else leaf

    return replace(
        signature,
        inputs=tuple(map(plain, signature.inputs)),
        outputs=tuple(map(plain, signature.outputs)),
    )


def bare(model: nn.Module) -> nn.Module:
    """The user's own object, where this is one of `with_held`."""
    own = model.__dict__.get(BARE)
    return own if isinstance(own, nn.Module) else model


@contextmanager
def _following(around: nn.Module, held: HeldArguments) -> Iterator[None]:
    """Within it the objects have the tensors that the module's buffers are now: others, where the
    module is called to be traced."""
    others = list[HeldPart]()
    try:
        for mark, tensors in held.tensors.items():
            buffers = around.get_submodule(mark.removeprefix(MARK))
            for each in tensors:
                now = buffers.get_buffer(each.path)
                if now is not each.value and not isinstance(each.holder, tuple):
                    others.append(each)
                    each.holder[each.key] = now
        yield
    finally:
        for each in others:
            each.holder[each.key] = each.value


class _Holder(nn.Module):
    """Buffers by qualified names."""

    def hold(self, path: str, tensor: Tensor) -> None:
        """Register it, with a module for each part of the path but the last."""
        first, _, rest = path.partition(".")
        if not rest:
            self.register_buffer(first, tensor, persistent=False)
            return
        if first not in self._modules:
            self.add_module(first, _Holder())
        inner = self._modules[first]
        assert isinstance(inner, _Holder)
        inner.hold(rest, tensor)


def _around(model: nn.Module, held: HeldArguments) -> nn.Module:
    """Another object with the model's own parts, which has the held tensors beside them."""
    around = object.__new__(type(model))
    around.__dict__.update(model.__dict__)
    around.__dict__["_modules"] = dict(model._modules)
    for mark, tensors in held.tensors.items():
        holder = _Holder().train(model.training)
        for tensor in tensors:
            holder.hold(tensor.path, tensor.value)
        around._modules[mark.removeprefix(MARK)] = holder.train(model.training)
    around.__dict__["forward"] = _forward_of(around, model, held)
    around.__dict__[HELD], around.__dict__[BARE] = held, model
    around.__dict__[OBJECTS] = {
        mark.removeprefix(MARK): value for mark, value in held.objects.items()
    }
    return around


def _by_place(model: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by the names that the model has for them, as far as it has any."""
    try:
        own = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [name for name, each in own.parameters.items() if each.kind in kinds]
    except (TypeError, ValueError):
        names = []
    names += [f"argument_{place}" for place in range(len(names), len(args))]
    return dict(zip(names, args, strict=False))


def _is_object(value: Any) -> bool:
    """Whether it is neither a value that graphs know, nor a container."""
    if isinstance(value, NO_OBJECTS) or type(value) in pytree.SUPPORTED_NODES:
        return False
    return hasattr(value, "__dict__") and not callable(value)


def _free_name(model: nn.Module, name: str) -> str:
    """A name for what is held that the model has not."""
    while hasattr(model, name):
        name += "_"
    return name
