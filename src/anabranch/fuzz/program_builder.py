"""Sheet: a drawing while it is being drawn. Each line is run as it is written, so what comes next
knows shapes, and a line that torch refuses is never kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from anabranch.fuzz.drawing import DrawnInput, DrawnLayer, DrawnStep, layer_text, namespace

LARGEST, HIGHEST = 4096, 50.0
"""Elements of a value, and their size: what grows from step to step would only hide errors."""
T = TypeVar("T")


class Rejected(Exception):
    """What was about to be drawn cannot stand here."""


class Sheet:
    """Inputs, layers and steps so far, with the tensors they have at this moment."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.inputs: list[DrawnInput] = []
        self.layers: list[DrawnLayer] = []
        self.steps: list[DrawnStep] = []
        self.values: dict[str, Tensor] = {}
        self.kind = ""
        self._held = SimpleNamespace()
        self._space = namespace() | {"self": self._held}

    # -- chance ------------------------------------------------------------------------------

    def choose(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely as any other."""
        return self.dice.choice(choices)

    def perhaps(self, share: float) -> bool:
        """True in so many of all cases, from 0 to 1."""
        return self.dice.random() < share

    def seed(self) -> int:
        """A seed for the values of a weight, below 1000."""
        return self.dice.randrange(1000)

    # -- what is there -----------------------------------------------------------------------

    def pick(self, rank: int | None = None, ok: Callable[[Tensor], bool] | None = None) -> str:
        """A value of floats, more often a late one; of so many axes, and one that is `ok`."""
        names = [
            name
            for name, value in self.values.items()
            if value.is_floating_point() and rank in (None, value.dim()) and (not ok or ok(value))
        ]
        if not names:
            raise Rejected("no value like that")
        return self.choose(names[-4:] if self.perhaps(0.6) else names)

    def given_floats(self) -> str:
        """An input of floats: no two ways to compute it differ."""
        names = [argument.name for argument in self.inputs]
        floats = [name for name in names if self.values[name].is_floating_point()]
        if not floats:
            raise Rejected("no such input")
        return self.choose(floats)

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes that the value has with the inputs at hand."""
        return tuple(self.values[name].shape)

    def axis(self, name: str) -> int:
        """One of its axes, counted from either end."""
        rank = self.values[name].dim()
        if not rank:
            raise Rejected("no axes")
        return self.dice.randrange(-rank, rank)

    def own(self, name: str) -> bool:
        """Whether its memory is no input's and no layer's, so that it may be written to."""
        held = {self.values[argument.name].untyped_storage().data_ptr() for argument in self.inputs}
        held |= {v.untyped_storage().data_ptr() for v in vars(self._held).values() if _tensor(v)}
        return self.values[name].untyped_storage().data_ptr() not in held

    # -- writing -----------------------------------------------------------------------------

    def add_input(self, text: str) -> str:
        """An input; "{shift}" in its text comes after the seed."""
        name = f"x{len(self.inputs)}"
        self.values[name] = eval(text.replace("{shift}", ""), self._space, self.values)
        self.inputs.append(DrawnInput(name, text))
        return name

    def layer(self, text: str) -> str:
        """What the model holds, as its lines call it."""
        layer = DrawnLayer(f"w{len(self.layers)}", text, self.seed())
        try:
            value = eval(layer_text(layer), self._space)
        except (RuntimeError, ValueError) as refused:
            raise Rejected(str(refused)) from refused
        self.layers.append(layer)
        setattr(
            self._held, layer.name, value.eval() if isinstance(value, torch.nn.Module) else value
        )
        return f"self.{layer.name}"

    def weight(self, *shape: int) -> str:
        """A tensor that the model holds."""
        return self.layer(f"normal({shape}, {self.seed()})")

    def add(self, text: str, count: int = 1) -> str:
        """The value that a line computes; with `count`, the first of several."""
        return self.several(text, count)[0]

    def several(self, text: str, count: int) -> tuple[str, ...]:
        """The values that a line computes."""
        # Bytes, not values: what is put back must still be a view of what it was a view of.
        every = (value.untyped_storage() for value in self.values.values())
        held = {storage._cdata: storage for storage in every}.values()
        before = [(storage, storage.clone()) for storage in held]  # type: ignore[no-untyped-call]

        def take_back() -> None:
            for storage, was in before:
                storage.copy_(was)

        try:
            with torch.no_grad():
                result: Any = eval(text, self._space, self.values)
        except (RuntimeError, ValueError, IndexError, TypeError) as refused:
            take_back()
            raise Rejected(str(refused)) from refused
        results = tuple(result) if count > 1 else (result,)
        if len(results) != count or not all(map(_tame, results)):
            take_back()
            raise Rejected("too large, too many, or no numbers")
        start = sum(len(step.results) for step in self.steps)
        names = tuple(f"v{start + i}" for i in range(count))
        self.values.update(zip(names, results, strict=True))
        self.steps.append(DrawnStep(self.kind, names, text))
        return names

    def drop(self, name: str) -> NoReturn:
        """Take back the last line, which computed this."""
        del self.values[name]
        self.steps.pop()
        raise Rejected("no elements")


def broadcasts(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether a tensor of the small shape broadcasts to the large one."""
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(a in (1, b) for a, b in pairs)


def _tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _tame(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.numel() > LARGEST:
        return False
    if not value.is_floating_point() or not value.numel():
        return True
    return bool(value.isfinite().all()) and value.abs().max().item() <= HIGHEST
