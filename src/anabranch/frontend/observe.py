"""One call of the model as the user would make it: what it returns, which operators it calls, and
what it changes outside of itself, which is put back.

    seen = observe(model, (x,), {}, under)
    seen.results      what the model returned
    seen.digest       the same in every process as long as the model computes the same
    seen.changed      ("calls", "a tensor that it holds"): Python state and tensors, as they were
    seen.reads        ("time.time() at model.py:7 in forward",)

`fake` tensors have no values, and cost nothing to compute with: for who has no device to run on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, ModelFailsError
from anabranch.frontend import held_tensors
from anabranch.frontend.call_profiler import watched
from anabranch.frontend.effects import attributes_of, changed, leaves_of, replaced
from anabranch.frontend.export_patches import attention_by_operators
from anabranch.frontend.global_hooks import hooks_within
from anabranch.frontend.input_queries import (
    InputQuestions,
    Question,
    as_parameter,
    first_of_type,
    in_other_containers,
)
from anabranch.frontend.process_state import switches, turn_back, turned
from anabranch.frontend.python_state import LOST, Holder, PythonState
from anabranch.frontend.recorder import CallRecorder
from anabranch.frontend.source import raised_at
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.traced import NEEDS_GRADIENTS
from anabranch.ir.trees import shapes_kept

MOST_AROUND = 64
"""An input that is a slice of memory up to so many times its size is copied with all of it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a call showed; `digest` and `written` are None where the list of operators does not
    tell all. `written`: by name the inputs that were written to, as they were left; `replaced`:
    buffers that the model has made or exchanged; `asks`: what the user's code asks torch about the
    call, `mentions`: which questions about tensors its lines may ask, where such were looked out
    for; `questions`: those about inputs that count; `distinct`: whether two inputs that are one
    tensor send it another way; `exact`: whether containers of another form do.
    `states`: what the call left in tensors that somebody asked for; `takes_gradients`: whether it
    had to be made in grad mode; `another_way`: the questions about the call for which the model
    goes another way while it is exported."""

    results: Any = field(repr=False)
    digest: str | None
    changed: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    written: Mapping[str, Tensor] | None = field(default=None, repr=False)
    replaced: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    mentions: frozenset[str] = frozenset()
    questions: tuple[Question, ...] = ()
    distinct: bool = False
    exact: bool = False
    states: tuple[Tensor, ...] = field(default=(), repr=False)
    takes_gradients: bool = False
    another_way: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InputForm:
    """How a call is given its inputs. `parameters`: tensors as parameters. `united`: inputs of one
    type with the same values, and called by one name in the list; or as one tensor.
    `containers`: in containers of another form."""

    parameters: bool = False
    united: Literal["", "names", "tensors"] = ""
    containers: bool = False


@dataclass(frozen=True, slots=True)
class Notes:
    """What is noted of a call. `watch`: clocks, and questions about the call, too; `operators`: the
    list of its operators; `asking` takes down what is asked of tensors."""

    watch: bool = False
    operators: bool = True
    asking: InputQuestions | None = None


AS_THEY_ARE, OPERATORS = InputForm(), Notes()


def observe(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
    precise: Callable[[], AbstractContextManager[None]] = nullcontext,
    fake: bool = False,
    form: InputForm = AS_THEY_ARE,
    notes: Notes = OPERATORS,
    states: Sequence[Tensor] = (),
) -> Observed:
    """Call the model on tensors of its own, in the user's surroundings and without gradients; in
    grad mode if it takes gradients in forward.

    precise: a context in which the model rounds as little as it can. states: tensors of which it is
    asked what the call leaves in them. Raises whatever the model raises.
    """
    call = partial(_observed, *(model, args, kwargs, under, precise, fake, form, notes, states))
    try:
        return call(grad=False)
    except RuntimeError as refused:
        if not NEEDS_GRADIENTS.search(str(refused)):
            raise
    return call(grad=True)


def _observed(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
    precise: Callable[[], AbstractContextManager[None]],
    fake: bool,
    form: InputForm,
    notes: Notes,
    states: Sequence[Tensor],
    grad: bool,
) -> Observed:
    recorder, reads, asks, names = None, list[str](), list[str](), set[str]()
    files = list[str]()
    try:
        with (
            unchanged(model, args, kwargs) as state,
            torch.set_grad_enabled(grad),
            FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext(),
            under.restored(),
            precise(),
            attention_by_operators(),
        ):
            args, kwargs, numbers = _formed(*own_inputs(args, kwargs), form)
            before, weights = leaves_of(args, kwargs), _weights(model)
            tensors = _tensors_of(args, kwargs)
            if form.containers:
                args = tuple(map(in_other_containers, args))
                kwargs = in_other_containers(dict(kwargs))
            recorder = CallRecorder(weights, tensors.values(), numbers, fake)
            drawn, was = _drawn(), {name: held_tensors.read(t) for name, t in tensors.items()}
            layouts = {name: _layout_of(tensor) for name, tensor in tensors.items()}
            held = {name: _form_of(tensor) for name, tensor in weights.items()}
            turns = switches()
            if not notes.operators:
                recorder.keep_all()
            listed = recorder if notes.operators else nullcontext()
            asking = notes.asking
            listening = asking.about(tensors, weights) if asking is not None else nullcontext()
            heard = watched(reads, asks, names, files) if notes.watch else nullcontext()
            with listening, listed, heard as recorder.listener:
                results = model(*args, **kwargs)
            for name, tensor in tensors.items():
                _check_same_layout(f"input {name}", layouts[name], _layout_of(tensor))
            for name, tensor in weights.items():
                _check_same_layout(f"tensor {name}", held[name], _form_of(tensor))
            if not notes.operators:
                recorder.note_changed()
            reads += _differs(drawn, _drawn())
            switched = turned(turns)
            digest = recorder.digest(results) if notes.operators else None
            inputs = [*changed(before, leaves_of(args, kwargs)), *attributes_of(tensors, was)]
            other = (*state.changes(), *switched, *inputs, *dict.fromkeys(recorder.written))
            other += tuple(f"{file}{LOST}" for file in dict.fromkeys(files))
            input_names, told = list(tensors), notes.operators and not recorder.opaque
            written = {
                input_names[i]: tensors[input_names[i]] for i in sorted(recorder.written_inputs)
            }
            results = recorder.of_its_own(results)
            return Observed(
                pytree.tree_map_only(Tensor, Tensor.detach, results) if grad else results,
                digest,
                other,
                tuple(dict.fromkeys(reads)),
                written if told else None,
                replaced(model, weights),
                tuple(dict.fromkeys(asks)),
                frozenset(names),
                states=tuple(state.detach().clone() for state in states),
                takes_gradients=grad,
            )
    finally:
        if recorder is not None:
            recorder.restore()


def _formed(
    args: tuple[Any, ...], kwargs: dict[str, Any], form: InputForm
) -> tuple[tuple[Any, ...], dict[str, Any], Sequence[int] | None]:
    """The inputs in this form, their containers as they are; and for each tensor the number of the
    first of its type, if those are united."""
    if form.parameters:
        with shapes_kept():
            args, kwargs = pytree.tree_map(as_parameter, (args, kwargs))
    if not form.united:
        return args, kwargs, None
    tensors = _tensors_of(args, kwargs)
    numbers = first_of_type(list(tensors.values()))
    return *_as_one((args, kwargs), tensors, numbers, form.united == "tensors"), numbers


def _layout_of(tensor: Tensor) -> tuple[Any, ...] | None:
    """The tensor's shape, strides and memory; None where it has none."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return tuple(tensor.shape), tensor.stride(), tensor.untyped_storage()._cdata


def _form_of(tensor: Tensor) -> tuple[Any, ...] | None:
    """The shape and strides of a tensor that a model holds; None where it has none. Memory that it
    gives one by `data` is the affair of what the model is captured by."""
    usual = type(tensor) in held_tensors.PLAIN_CLASSES and tensor.layout is torch.strided
    return (tuple(tensor.shape), tensor.stride()) if usual else None


def _check_same_layout(name: str, was: Any, now: Any) -> None:
    """CaptureError where the model gave an input, or a tensor that it holds, another shape or
    memory."""
    if now != was:
        raise CaptureError(
            f"the model gives its {name} another shape, other strides or other memory",
            "what a plan writes to a tensor are numbers, in the place and shape that it has",
            "use what makes a new tensor (x.t(), x.unsqueeze(0)) in the place of what changes x "
            "(x.t_(), x.unsqueeze_(0), x.resize_(...), x.set_(...), x.data = ...)",
        )


def _tensors_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    leaves = leaves_of(args, kwargs).items()
    return {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor)}


def from_states(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
    places: Sequence[Tensor],
    values: Sequence[Tensor],
    precise: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Observed | None:
    """A call of the model on inputs of its own, which finds these values in the `places`; None
    where it fails. The places hold what they held afterwards."""
    before = [place.clone() for place in places]
    try:
        with torch.no_grad():
            for place, value in zip(places, values, strict=True):
                place.copy_(value)
        own = own_inputs(args, kwargs)
        with unchanged(model, *own), torch.no_grad(), under.restored(), precise():
            results = pytree.tree_map_only(Tensor, torch.clone, model(*own[0], **own[1]))
        left = tuple(place.detach().clone() for place in places)
        return Observed(results, None, states=left)
    except Exception:  # whatever the model raises: it ran once, and more calls are for us alone
        return None
    finally:
        with torch.no_grad():
            for place, value in zip(places, before, strict=True):
                place.copy_(value)


def fails(model: Any, error: Exception, under: Surroundings) -> CaptureError:
    """The model's own exception, where it cannot even be called."""
    first = (str(error).strip().splitlines() or [""])[0]
    settings = "" if under == Surroundings() else f", under {under.text}"
    return ModelFailsError(
        "the model itself fails when it is called with these inputs",
        f"{type(error).__name__}: {first}",
        f"call it yourself until it runs{settings}; what runs can be compiled",
        raised_at(error),
    )


def own_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs with tensors of our own, with the same attributes: the model may write to them. A
    slice is one of a copy of its memory, for the model may count from the start of that
    (`as_strided`)."""
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = (args, dict(kwargs))

    def own(tensor: Tensor) -> Tensor:
        twin = _own(tensor)
        if type(tensor) in held_tensors.PLAIN_CLASSES:
            twin.__dict__.update(tensor.__dict__)
        return twin

    with shapes_kept():
        copied = pytree.tree_map_only(Tensor, own, inputs)
    return copied[0], copied[1]


@contextmanager
def unchanged(model: Any, *inputs: Any) -> Iterator[PythonState]:
    """Calls of the model within it change neither its attributes nor random numbers, nor torch's
    switches and the environment; global hooks see nothing that is around it."""
    with hooks_within(model):  # before the state is looked at, of which they may be a part
        state, turns = PythonState.of(model), switches()
        try:
            with random_state_kept(model, *inputs), _parametrizations_computed():
                yield state
        finally:
            state.restore()
            turn_back(turns)


@contextmanager
def _parametrizations_computed() -> Iterator[None]:
    """Within it a parametrized weight is computed where it is read, also under torch's `cached()`:
    what is held there would be a constant of which nobody knows the parameters, and what we
    compute without gradients would be held for the user."""
    module: Any = parametrize
    was = module._cache_enabled
    module._cache_enabled = 0
    try:
        yield
    finally:
        module._cache_enabled = was


def generators_kept(device: torch.device) -> AbstractContextManager[None]:
    """As `random_state_kept`, of the CPU and this device: plans that draw are run to be timed and
    compared."""
    return random_state_kept(torch.empty(0, device=device))


@contextmanager
def random_state_kept(*holders: Any) -> Iterator[None]:
    """Random numbers go on afterwards as if none had been drawn: those of torch, on the devices of
    these modules and tensors too, Python's and NumPy's."""
    cuda = {
        tensor.device.index
        for holder in holders
        for tensor in _tensors(holder)
        if tensor.device.type == "cuda"
    }
    kept, numpy = random.getstate(), _numpy_random()
    drawn = numpy.get_state() if numpy is not None else None
    with torch.random.fork_rng(sorted(cuda), device_type="cuda"):
        try:
            yield
        finally:
            random.setstate(kept)
            if numpy is not None:
                numpy.set_state(drawn)


def _tensors(holder: Any) -> Iterator[Tensor]:
    if isinstance(holder, nn.Module):
        yield from holder.parameters()
        yield from holder.buffers()
    else:
        yield from (leaf for leaf in pytree.tree_leaves(holder) if isinstance(leaf, Tensor))


def _weights(model: Any) -> Mapping[str, Tensor]:
    if isinstance(model, Holder):
        return model.tensors
    if not isinstance(model, nn.Module):
        return {}
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _own(tensor: Tensor) -> Tensor:
    held = tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else 0
    if not tensor.nbytes < held <= MOST_AROUND * tensor.nbytes:
        return tensor.detach().clone()
    if isinstance(twin := tensor.detach(), FakeTensor):
        return twin  # on a copy of the memory already, in which there are no numbers
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    memory.set_(tensor.untyped_storage().clone(), *place)  # type: ignore[no-untyped-call]
    read = memory.conj() if tensor.is_conj() else memory
    return torch._neg_view(read) if tensor.is_neg() else read


def _as_one(
    inputs: Any, by_name: Mapping[str, Tensor], numbers: Sequence[int], shared: bool
) -> tuple[Any, Any]:
    """The inputs, where each tensor has the numbers of the one that its number says: is that one
    itself if `shared`, else a copy. What a model reads of values is the same for both."""
    tensors = list(by_name.values())
    first = {
        id(tensor): tensors[number] if shared or number == place else tensors[number].clone()
        for place, (tensor, number) in enumerate(zip(tensors, numbers, strict=True))
    }
    with shapes_kept():
        united: tuple[Any, Any] = pytree.tree_map_only(Tensor, lambda x: first[id(x)], inputs)
    return united


def _numpy_random() -> Any:
    """NumPy's global generator, where somebody has imported NumPy."""
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None)


def _drawn() -> tuple[Any, ...]:
    """The states of Python's and of NumPy's generator, in a form that can be compared."""
    numpy = _numpy_random()
    # As bytes: a text of NumPy's 624 words takes 6 ms, and every call of a model is seen to.
    leaves = pytree.tree_leaves(numpy.get_state()) if numpy is not None else []
    words = [leaf.tobytes() if hasattr(leaf, "tobytes") else leaf for leaf in leaves]
    return random.getstate(), words


def _differs(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[str]:
    told = ("Python's random numbers", "NumPy's random numbers")
    return [name for name, old, new in zip(told, before, after, strict=True) if old != new]
