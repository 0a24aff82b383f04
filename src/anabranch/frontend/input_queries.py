"""Notes what the user's code asks of tensors in one call of the model, beside their numbers.

    x.is_contiguous()      of an input: what a call is checked against       net.py:7 in forward
    (x + 1).stride()       of a value: the strides of all inputs are, for it has its own of them
    x.data_ptr()           nothing that a call could be checked against: a warning

A question is looked for only where a line of the code that ran says its name. One that is answered
by yes or no counts where the model computes something else for the opposite; whether an input is a
plain tensor or a parameter, where it does so for parameters.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec

from anabranch.errors import CaptureError
from anabranch.frontend.effects import CallInputs, leaves_of
from anabranch.frontend.source import is_frame_of_users
from anabranch.ir.input_guards import InputGuard, What, answer_of, why_broken

LAID: dict[str, What] = {
    **{"stride": "stride", "is_contiguous": "is_contiguous", "dim_order": "stride"},
    **{"storage_offset": "storage_offset"},
}
"""How a tensor lies in its memory."""
OF_AUTOGRAD: dict[str, What] = {
    **{"requires_grad": "requires_grad", "is_leaf": "is_leaf", "grad_fn": "grad_fn"},
    **{"is_inference": "is_inference", "is_conj": "is_conj", "is_neg": "is_neg"},
}
"""The other facts of a tensor that can be asked of a call's."""
NEVER = frozenset(
    ("data_ptr", "untyped_storage", "storage", "_version", "_base", "_is_view", "is_pinned")
)
"""What no call could be checked against."""
CLASS = frozenset(("type", "__class__", "Parameter"))
METHODS = frozenset(
    (
        *("stride", "is_contiguous", "dim_order", "storage_offset", "is_inference", "data_ptr"),
        *("untyped_storage", "storage", "_is_view", "is_pinned", "is_conj", "is_neg"),
    )
)
METHODS_OF = (torch.overrides.__file__, torch._tensor.__file__)
ATTRIBUTES = frozenset(("getattr", "hasattr"))
IDENTITY = frozenset(("is",))
IS, CONSTANT = dis.opmap["IS_OP"], dis.opmap["LOAD_CONST"]
NAMES = frozenset((*LAID, *OF_AUTOGRAD, *NEVER, *CLASS))

Question = tuple[str, What, str]
"""The input by its name in messages, what is asked, and where."""


def mentioned(code: CodeType) -> frozenset[str]:
    """The questions whose names the code says, and whether it compares by `is`."""
    named = NAMES.intersection(code.co_names)
    if not ATTRIBUTES.isdisjoint(code.co_names):
        named |= ATTRIBUTES | NAMES.intersection(
            constant for constant in code.co_consts if constant.__class__ is str
        )
    return named | IDENTITY if _compares(code) or "id" in code.co_names else named


def _compares(code: CodeType) -> bool:
    """Whether there is an `is` that is not about None or another constant."""
    words = code.co_code[::2]
    return any(word == IS and words[i - 1] != CONSTANT for i, word in enumerate(words) if i)


class InputQuestions(TorchFunctionMode):
    """The questions that are asked within it. `flipped`: those of yes and no are answered by the
    opposite. `answers`: of inputs; `reads`: those that no call can be checked against; `told`:
    whether one of them was of yes and no."""

    def __init__(self, flipped: bool = False) -> None:
        super().__init__()
        self.flipped = flipped
        self.answers: dict[Question, bool] = {}
        self.reads: dict[str, bool] = {}
        self._inputs: dict[int, str] = {}
        self._weights: set[int] = set()

    def about(self, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> InputQuestions:
        """Itself, for a call with these inputs of a model with these weights."""
        self._inputs = {id(tensor): name for name, tensor in inputs.items()}
        self._weights = {id(tensor) for tensor in weights.values()}
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in NAMES or not args or not isinstance(args[0], Tensor):
            return result
        frame = sys._getframe(1)
        while frame.f_code.co_filename in METHODS_OF and frame.f_back is not None:
            frame = frame.f_back  # some methods of tensors are Python
        code = frame.f_code
        if not is_frame_of_users(frame) or id(args[0]) in self._weights:
            return result
        place = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        boolean = isinstance(result, bool)
        self._note(name, args[0], bool(len(args) > 1 or kwargs), place, boolean)
        return not result if self.flipped and boolean else result

    def _note(self, name: str, tensor: Tensor, special: bool, place: str, boolean: bool) -> None:
        mine = self._inputs.get(id(tensor))
        what = LAID.get(name) or OF_AUTOGRAD.get(name)
        if what is None or (mine is None and name in OF_AUTOGRAD):
            called = f"{name}()" if name in METHODS else name
            self.reads[f"{called} of a tensor at {place}"] = boolean
        elif mine is not None:
            # Whether it is contiguous in a format that is named depends on nothing but strides.
            own: What = "stride" if special and what == "is_contiguous" else what
            self.answers[mine, own, place] = boolean
        else:
            for input in self._inputs.values():
                self.answers[input, "layout", place] = boolean
                if what == "storage_offset":
                    self.answers[input, what, place] = boolean

    @property
    def told(self) -> bool:
        """Whether there was a question of yes and no."""
        return any((*self.answers.values(), *self.reads.values()))

    def kept(self, matter: bool) -> tuple[tuple[Question, ...], tuple[str, ...]]:
        """Questions of inputs, and reads. `matter`: those of yes and no are among them."""
        return (
            tuple(question for question, boolean in self.answers.items() if matter or not boolean),
            tuple(read for read, boolean in self.reads.items() if matter or not boolean),
        )

    def of_all(self, what: What) -> tuple[Question, ...]:
        """The question for this of each input."""
        return tuple((name, what, "") for name in self._inputs.values())


def answered(
    tree: TreeSpec, inputs: CallInputs, exported: CallInputs, questions: Sequence[Question]
) -> tuple[InputGuard, ...]:
    """The questions with the answers that the graph was captured for, those of the tensors that
    were `exported`. `tree`: the structure of both. CaptureError where those that the user has given
    answer otherwise."""
    named: dict[int, list[str]] = {}
    for name, leaf in leaves_of(*inputs).items():
        named.setdefault(id(leaf), []).append(name)
    mine, theirs = (tree.flatten_up_to((a, dict(k))) for a, k in (inputs, exported))
    guards: dict[tuple[int, What], InputGuard] = {}
    for place, (own, leaf) in enumerate(zip(mine, theirs, strict=True)):
        for name, what, where in questions:
            if name in named.get(id(own), ()):
                input_guard = InputGuard(place, what, answer_of(what, leaf), where)
                if wrong := why_broken(input_guard, own, name):
                    raise CaptureError(
                        f"the model asks of its inputs what is not so in its graph: {wrong}",
                        "torch.export gives it inputs without gradients, that share no memory",
                        "give an example as calls will be: x.detach(), or x.contiguous()",
                    )
                guards.setdefault((place, what), input_guard)
    return tuple(guards.values())


def as_parameter(value: Any) -> Any:
    """A tensor as a parameter of the same numbers; anything else as it is."""
    return torch.nn.Parameter(value, requires_grad=False) if isinstance(value, Tensor) else value


def first_of_type(tensors: Sequence[Tensor]) -> list[int]:
    """For each the number of the first that has its shape, strides, dtype and device."""
    kinds = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors]
    return [kinds.index(kind) for kind in kinds]


def in_other_containers(value: Any) -> Any:
    """The value with its dicts in reverse order, lists in place of tuples and shapes, and
    tuples of lists."""
    if type(value) is dict:
        return {key: in_other_containers(value[key]) for key in reversed(value)}
    if type(value) in (list, tuple, torch.Size):
        return (tuple if type(value) is list else list)(map(in_other_containers, value))
    return value


def has_containers(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether there is a container among the inputs that a call may give in another form, such as
    what `**more` gathers."""
    if any(type(arg) in (dict, list, tuple, torch.Size) for arg in (*args, *kwargs.values())):
        return True
    try:
        named = inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):
        return len(kwargs) > 1
    return len(kwargs.keys() - named.keys()) > 1
