"""Records the operators that a model calls, as text: the same text, the same computation.

    aten.t.default(w:linear.weight) -> n0 float32(8, 4)(1, 8)
    aten.addmm.default(w:linear.bias, i:0, n0) -> n1 float32(2, 4)(4, 1)
    aten.clamp.default(n1, None, 5.0) -> n2 float32(2, 4)(4, 1)

A fingerprint of source cannot see all that a forward depends on (globals, closures, environment,
hooks, attributes of objects); whatever of it has an effect changes this list. Tensors are named by
where they come from: parameters and buffers by their path, inputs by their number, results by the
call that gave them. All others, which the code makes or holds elsewhere, are named by their
content. The model runs as it is, each operator once; what it writes to tensors of its own is
undone by `restore`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from anabranch.frontend.call_profiler import Listener
from anabranch.frontend.fake_results import FakeResults, called_by_torch
from anabranch.frontend.surroundings import leave_alone
from anabranch.ir.key import digest_tensor, digest_text

PLAIN_VALUES = (int, float, complex, bool, str, type(None))
MARKS: dict[type, str] = {kind: kind.__name__[0] for kind in PLAIN_VALUES}
"""Of values of these very classes, which most are."""
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers of tensors without values. Their texts count the calls that gave them."""
NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator)


HELD_TENSOR = "a tensor that it holds"
"""The tensor written to, where it is neither a parameter nor a buffer."""
LIFT = torch.ops.aten.lift_fresh.default


Written = tuple[int, str]
"""An argument that an operator writes to: its position and its name."""


class OpaqueError(Exception):
    """An operator was called with something that has no name."""


UNSAID: dict[Any, tuple[Written, ...]] = {
    getattr(torch.ops.aten, name).default: ((3, "running_mean"), (4, "running_var"))
    for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
}
TRAINS = 5
"""Where these are told that they are to do so."""


class CallRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The calls made within it. `weights`: tensors by the path under which the model has them;
    `inputs`: those of the call, in order; `written_inputs`: the numbers of those that are written
    to. `opaque`: why the list does not tell all, "" if it does. `numbers`: by which inputs are
    called, where two shall not be told apart. `fake`: within a FakeTensorMode. `listener`: what
    listens, if something does; it has no need to hear of the recorder's own calls."""

    supports_higher_order_operators = True

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        inputs: Iterable[Tensor],
        numbers: Sequence[int] | None = None,
        fake: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lines: list[str] = []
        self._named: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._operators: dict[Any, tuple[str, tuple[Written, ...]]] = {}
        self._own: dict[int, str] = {}
        self._fake = FakeResults() if fake else None
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}
        self._created = 0
        self.opaque = ""
        self.written: list[str] = []
        self.listener: Listener | None = None
        self._fresh = False
        self._alive: list[Any] = []
        self.written_inputs: set[int] = set()
        self._inputs: dict[int, int] = {}
        for number, tensor in enumerate(inputs):
            self._name(tensor, f"i:{number if numbers is None else numbers[number]}")
            if tensor.layout is torch.strided:
                self._inputs[tensor.untyped_storage()._cdata] = number
        for path, tensor in weights.items():
            self._name(tensor, f"w:{path}")
        self._weights = weights

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports all of torch.compile at the first operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, listener = kwargs or {}, self.listener
        if listener is None:
            return self._recorded(func, types, args, kwargs)
        listener.pause()
        try:
            return self._recorded(func, types, args, kwargs)
        finally:
            listener.resume()

    def _recorded(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The operator's result, called if it has to be, and a line for the call."""
        said = self._before(func, args, kwargs)
        if self._fake is not None and called_by_torch(func, types):
            result = (
                func(*args, **kwargs) if _unsaid(func, args) else self._fake(func, args, kwargs)
            )
        else:
            result = self._called(func, types, args, kwargs)
        if said is not None:
            try:
                self._lines.append(f"{said} -> {self._results(result)}")
            except Exception as unknown:  # a nested tensor, for one, has no sizes
                self.opaque = f"a result of {func}: {unknown}"
        return result

    def _called(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What the operator returns. It may be Python of the user's, which is listened to."""
        if self.listener is None or called_by_torch(func, types):
            return func(*args, **kwargs)
        self.listener.resume()
        try:
            return func(*args, **kwargs)
        finally:
            self.listener.pause()

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The call as text, and copies of what it writes to; None from where something has no
        text. Whatever is odd about it, the model goes on."""
        self._fresh = func is LIFT  # a tensor that `torch.tensor` has just made is nobody's
        try:
            name, written = self._operators.get(func) or self._describe(func)
            for place, named in written or _unsaid(func, args):
                self._save(args[place] if place < len(args) else kwargs.get(named))
            if self.opaque:
                return None
            return f"{name}{self._text((args, kwargs) if kwargs else args)}"
        except Exception as unknown:
            self.opaque = f"{func}: {unknown}"
            return None

    def mark(self, line: str) -> None:
        """What is called from here on is another part of the list."""
        self._lines.append(line)

    def text(self, result: Any) -> str | None:
        """The list, and what of it the model returned; None if it does not tell all."""
        if self.opaque:
            return None
        try:
            leaves, tree = pytree.tree_flatten(result)
            return "\n".join([*self._lines, self._text(leaves), str(tree)])
        except Exception:
            return None

    def digest(self, result: Any) -> str | None:
        """Digest of the calls and the result, None where the list does not tell all."""
        text = self.text(result)
        return None if text is None else digest_text(text)

    def keep_all(self) -> None:
        """Copy all that the model holds: for a call that it does not bear to be heard in."""
        for tensor in list(self._weights.values()):
            self._save(tensor)
        self.written.clear()

    def note_changed(self) -> None:
        """Note what of that is not as it was."""
        with _disable_current_modes():
            for place, (whole, copy) in self._saved.items():
                alike = whole.untyped_storage().nbytes() == copy.nbytes and torch.equal(whole, copy)
                self.written += [] if alike else [self._own[place]]

    def restore(self) -> None:
        """Give tensors that the model holds, and wrote to, the content that they had."""
        with _disable_current_modes(), torch.no_grad():
            for whole, copy in self._saved.values():
                memory = whole.untyped_storage()
                if memory.nbytes() != copy.nbytes:  # by `resize_`
                    memory.resize_(copy.nbytes)
                whole.copy_(copy)

    def of_its_own(self, results: Any) -> Any:
        """Results that keep their content when it is given back: those in the memory of a tensor
        that the model holds, and wrote to, are copied."""
        saved = self._saved.keys()

        def own(tensor: Tensor) -> Tensor:
            strided = tensor.layout is torch.strided
            held = strided and tensor.untyped_storage()._cdata in saved
            return tensor.detach().clone() if held else tensor

        return pytree.tree_map_only(Tensor, own, results) if saved else results

    def _describe(self, func: Any) -> tuple[str, tuple[Written, ...]]:
        """An operator's name, and the arguments that it writes to."""
        written: tuple[Written, ...] = ()
        if isinstance(func, torch._ops.OpOverload):
            if func._schema.is_mutable:
                told = enumerate(func._schema.arguments)
                ours = ((i, a) for i, a in told if a.alias_info and a.alias_info.is_write)
                written = tuple((i, a.name) for i, a in ours)
        else:
            self.opaque = self.opaque or f"{func} runs parts of the model by itself"
        self._operators[func] = entry = (str(func), written)
        return entry

    def _name(self, tensor: Tensor, name: str) -> str:
        self._named.setdefault(id(tensor), (weakref.ref(tensor), name))
        if self._named[id(tensor)][0]() is not tensor:  # of one that is gone
            self._named[id(tensor)] = (weakref.ref(tensor), name)
        return self._named[id(tensor)][1]

    def _results(self, result: Any) -> str:
        if isinstance(result, Tensor):
            number = len(self._lines)
            self._named[id(result)] = (weakref.ref(result), f"n{number}")
            return _type(result)
        if not isinstance(result, (tuple, list)):
            return str(result) if isinstance(result, SYMBOLS) else ""
        said = []
        for i, item in enumerate(result):
            if isinstance(item, Tensor):
                self._named[id(item)] = (weakref.ref(item), f"n{len(self._lines)}.{i}")
                said.append(_type(item))
        return " ".join(said)

    def _text(self, value: Any) -> str:
        kind = type(value)
        if kind in MARKS:
            return f"{MARKS[kind]}{value!r}"
        if kind is tuple or kind is list:
            return f"({', '.join([self._text(item) for item in value])})"
        if isinstance(value, Tensor):
            entry = self._named.get(id(value))
            return entry[1] if entry is not None and entry[0]() is value else self._content(value)
        if isinstance(value, PLAIN_VALUES):
            return f"{type(value).__name__[0]}{value!r}"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self._text, value))})"
        if isinstance(value, dict):
            return ", ".join(f"{key}={self._text(item)}" for key, item in value.items())
        if isinstance(value, torch.Generator):
            return "generator"
        if isinstance(value, (*NAMED, *SYMBOLS)):
            return str(value)
        raise OpaqueError(f"a {type(value).__name__}")

    def _content(self, tensor: Tensor) -> str:
        """A tensor that the code made without an operator, or holds in some place."""
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise OpaqueError(f"a {type(tensor).__name__} of layout {tensor.layout}")
        with _disable_current_modes(), torch.no_grad():
            digest = digest_tensor(tensor.resolve_conj().resolve_neg())
        self._created += 1
        name = f"c{self._created}:{digest}{_type(tensor)}"
        if not self._fresh:
            storage = tensor.untyped_storage()
            self._own[storage._cdata] = HELD_TENSOR
            self._alive.append(storage)  # whose place in memory no other may take meanwhile
        return self._name(tensor, name)

    def _save(self, value: Any) -> None:
        """Copy the memory that is written to, where the model holds it, before that happens."""
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
                continue
            if not self.opaque:
                try:
                    self._text(tensor)
                except OpaqueError as unknown:
                    self.opaque = str(unknown)
            storage = tensor.untyped_storage()
            if storage._cdata in self._inputs:
                self.written_inputs.add(self._inputs[storage._cdata])
            owner = self._owners().get(storage._cdata)
            if storage._cdata in self._saved or (owner is None and not self.opaque):
                continue
            if owner is not None:  # else nobody knows whether the model holds it or has made it
                self.written.append(owner)
            with _disable_current_modes(), torch.no_grad():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self._saved[storage._cdata] = whole, whole.clone()

    def _owners(self) -> dict[int, str]:
        """By the memory of a tensor that the model holds, what it is."""
        for path, tensor in self._weights.items():
            if tensor.layout is torch.strided:
                self._own.setdefault(tensor.untyped_storage()._cdata, path)
        self._weights = {}
        return self._own


def _unsaid(func: Any, args: tuple[Any, ...]) -> tuple[Written, ...]:
    """What an operator writes to without its schema saying so: running statistics."""
    training = func in UNSAID and len(args) > TRAINS and args[TRAINS]
    return UNSAID[func] if training else ()


def _type(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"{tensor.dtype}{tuple(tensor.shape)}{tensor.layout}"
    return f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}"


leave_alone(CallRecorder.__torch_dispatch__)  # torch.cond compiles itself, and what it calls
