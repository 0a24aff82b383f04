"""A PyTorch model and example inputs -> Captured, by torch.export.

    capture(model, (x,))
      check      eval mode, one device, dense tensors          checks.py
      export     torch.export, not strict, without gradients
      decompose  functional ATen, few composites left whole    direct.py, decompose.py
      translate  FX nodes to ours, with source lines           translate.py

Nothing of the model or of torch's global state is changed: not its weights, flags or attributes,
not the random number generator, not the autograd mode.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError
from anabranch.frontend.capture_warnings import warn_of_changes
from anabranch.frontend.captured import Captured
from anabranch.frontend.caught_errors import caught_errors
from anabranch.frontend.checks import LITERALS, check_devices, check_inputs, check_model
from anabranch.frontend.contiguous_calls import ContiguousByOperator, copy_contiguous
from anabranch.frontend.decompose import decompose
from anabranch.frontend.default_dtype import declare
from anabranch.frontend.direct import direct
from anabranch.frontend.export_errors import OWN_GENERATOR, explained
from anabranch.frontend.export_patches import (
    as_in_eager,
    attention_by_operators,
    brief,
    keywords_as_names,
    last_states_shaped,
    layouts_not_asked,
    numbers_kept,
    quiet,
    recurrences_of_any_length,
)
from anabranch.frontend.float_questions import floats_asked
from anabranch.frontend.idle_dropout import IdleDropout
from anabranch.frontend.kept_layouts import KeptLayouts
from anabranch.frontend.layout_aliases import layout_guards, value_guards, written_by_strides
from anabranch.frontend.memory import near
from anabranch.frontend.number_texts import texts_of_values
from anabranch.frontend.observe import unchanged
from anabranch.frontend.operators import TRAINING
from anabranch.frontend.ordered_draws import DropoutByParts
from anabranch.frontend.packed_sequences import PackedSequences
from anabranch.frontend.program import in_order, name_of, opened
from anabranch.frontend.python_numbers import python_numbers
from anabranch.frontend.python_state import PythonState
from anabranch.frontend.running_statistics import StatisticsByWrites
from anabranch.frontend.shared_operands import SharedOperands
from anabranch.frontend.source import origin
from anabranch.frontend.state import attribute, state_place, unkept, unwrapped
from anabranch.frontend.surroundings import Surroundings, neutral, surroundings
from anabranch.frontend.tensor_places import PlacesByOperators
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.frontend.traced import takes_gradients, traced
from anabranch.frontend.translate import Translation
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.ops import packet_name
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.trees import of_shapes, shapes_kept, tree_text
from anabranch.ir.types import overlaps, type_of
from anabranch.targets.tf32 import precision
from anabranch.trace import Trace

T = TypeVar("T")
Model = nn.Module | ExportedProgram | Callable[..., Any]
MUTATED = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
REFUSED_BY_AUTOGRAD = re.compile(
    r"modified inplace|requires grad is being used in an in-place|support automatic differentiation"
)
"""Autograd's messages about writes into one of several views (chunk, unbind), into a weight, and
about operators that write to out=."""


def capture(
    model: Model,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    trace: Trace | None = None,
    under: Surroundings | None = None,
    changed: Sequence[str] | None = None,
    gradients: bool = False,
) -> Captured:
    """The graph of `model(*args, **kwargs)` for these shapes, dtypes and Python values.

    An exported program brings its own example inputs where none are given. `under`: torch's
    switches that the model is captured under, those of this thread by default. `changed`: the
    Python state that a call of the model changes, where that is known. `gradients`: it is known
    to take gradients in forward. Raises CaptureError.
    """
    trace, under = trace or Trace(), under or surroundings()
    model, args, kwargs = opened(model, args, kwargs)
    module = module_for(model)
    kwargs = in_order(module, kwargs)
    name = name_of(_own(module))
    # Weights that were made in inference mode can be exported in it alone.
    inference = any(tensor.is_inference() for tensor in _state(module))
    with neutral(), under.restored(), torch.inference_mode(inference), own_kernels():
        program, device, detached, changed = _export(
            module, args, kwargs, trace, changed, gradients
        )
        line = written_by_strides(program)
        if line is None:
            copy_contiguous(program)
        with trace.stage("frontend.decompose"):
            try:
                program, graph = _functional(program, under)
            except CaptureError as refused:
                cause = refused.__cause__
                below = _below(module, args, kwargs) if cause and takes_gradients(cause) else None
                if below is None:
                    raise
                program, detached = below
                program, graph = _functional(program, under)
        with trace.stage("frontend.translate"):
            captured = _translate(program, graph, name, device, module, under)
            captured = replace(captured, detached=detached)
            if line is not None:
                lie = layout_guards(captured.graph.inputs, captured.signature.inputs, line)
                captured = replace(captured, signature=replace(captured.signature, asked=lie))
    warn_of_changes(trace, name, unkept(captured.graph, module, changed))
    _refuse_training(captured.graph)
    return captured


def export_dynamic(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: dict[str, Any],
    under: Surroundings,
) -> ExportedProgram:
    """The program of a `module_for` whose sizes vary as `dynamic_shapes` says, by the names of its
    arguments. CaptureError, in torch's words, where torch.export does not keep them."""
    kwargs = in_order(module, kwargs)
    inference = any(tensor.is_inference() for tensor in _state(module))
    with neutral(), under.restored(), torch.inference_mode(inference), own_kernels():
        check(module, args, kwargs)
        args, kwargs = apart((args, dict(kwargs)))
        with recurrences_of_any_length(), layouts_not_asked():
            return _exported(module, args, kwargs, dynamic_shapes)[0]


def check(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """The device of the model's weights and inputs. CaptureError for what cannot be captured."""
    module = module_for(model)
    check_model(module)
    check_inputs(args, kwargs)
    state = itertools.chain(module.named_parameters(), module.named_buffers())
    return check_devices(state, args, kwargs)


def _export(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    trace: Trace,
    changed: Sequence[str] | None,
    gradients: bool,
) -> tuple[ExportedProgram, torch.device, tuple[int, ...] | None, Sequence[str]]:
    """The program, the device of its weights and inputs, results without a history, and what a call
    changes beside its results."""
    device = check(module, args, kwargs)
    args, kwargs = apart((args, dict(kwargs)))
    with trace.stage("frontend.export"):
        below = _below(module, args, kwargs) if gradients else None
        if below is not None and changed is not None:
            return below[0], device, below[1], changed
        program, detached, seen = _exported(module, args, kwargs)
    return program, device, detached, seen if changed is None else changed


def _exported(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: dict[str, Any] | None = None,
) -> tuple[ExportedProgram, tuple[int, ...] | None, Sequence[str]]:
    """The program, which of its results have no history though they are computed of weights, and
    the Python state that the export changed, which is as it was again."""
    with _recording(module, args, kwargs, texts=dynamic_shapes is None) as state:
        try:
            program = _whatever_autograd_says(
                lambda: torch.export.export(
                    module, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False
                )
            )
        except CaptureError:  # of a mode of ours, which says what the model does
            raise
        except Exception as error:
            below = _below(module, args, kwargs) if takes_gradients(error) else None
            if below is None or dynamic_shapes is not None:
                raise explained(error) from error
            return *below, state.changes()
        return program, None, state.changes()


@contextmanager
def _recording(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], texts: bool = True
) -> Iterator[PythonState]:
    """Within it torch records what eager does; the model is as it was again at the end. `texts`:
    text made of a number of a tensor asks for its value, which a size that varies has none of."""
    with (
        quiet(),
        brief(),
        keywords_as_names(),
        precision(tf32=False),  # torch.export reads switches, resets some, reads them again
        shapes_kept(),
        own_kernels(),
        unchanged(_own(module), args, kwargs) as state,
        as_in_eager(),
        attention_by_operators(),
        last_states_shaped(),
        _by_operators(),
        numbers_kept(module),
        texts_of_values() if texts else nullcontext(),
        python_numbers() if texts else nullcontext(),
        caught_errors() as note,
        floats_asked(note) if texts else nullcontext(),
    ):
        yield state


@contextmanager
def _by_operators() -> Iterator[None]:
    """Within it the model calls the operators that say all of what it does."""
    with (
        KeptLayouts(),
        PlacesByOperators(),
        SharedOperands(),
        ContiguousByOperator(),
        IdleDropout(),
        DropoutByParts(),
        StatisticsByWrites(),
        PackedSequences(),
    ):
        yield


def _below(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[ExportedProgram, tuple[int, ...]] | None:
    """The program of a model that takes gradients in forward, and which of its results have no
    history; None where it cannot be had either."""
    args, kwargs = apart((args, dict(kwargs)))
    try:
        with _recording(module, args, kwargs):
            below = traced(module, args, kwargs)
            if below is None:
                return None
            return torch.export.export(below, args, dict(kwargs), strict=False), below.detached
    except Exception:  # the first error is of what the user wrote
        return None


def _whatever_autograd_says(call: Callable[[], T]) -> T:
    """What the call gives: a trace in grad mode, in which torch.export has models; without
    gradients where autograd refuses what a model may do that nobody takes gradients of."""
    try:
        return call()
    except RuntimeError as refused:
        if not REFUSED_BY_AUTOGRAD.search(str(refused)):
            raise
    with torch.no_grad():
        return call()


def _own(module: nn.Module) -> Any:
    """The user's function or module."""
    return module.function if isinstance(module, _Function) else module


def _state(module: nn.Module) -> Iterator[torch.Tensor]:
    return itertools.chain(module.parameters(), module.buffers())


def apart(inputs: Any) -> Any:
    """The example inputs, each element in memory of its own: of the next call's nobody knows that
    they repeat each other, or are the same as those of another input. And of inputs that lie
    between each other torch.export cannot tell that a write to one is none to the other."""
    seen: list[torch.Tensor] = []

    def own(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if overlaps(type_of(tensor)):
            return tensor.clone(memory_format=torch.contiguous_format)
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            return _moved(tensor)  # autograd refuses it, under which torch.export traces
        if any(tensor.device == other.device and near(tensor, other) for other in seen):
            return _moved(tensor)
        seen.append(tensor)
        return tensor

    with shapes_kept():
        return pytree.tree_map_only(torch.Tensor, own, inputs)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own, in which it begins where it began."""
    begin, type = tensor.storage_offset(), type_of(tensor)
    extent = begin + type.nbytes // tensor.element_size()
    memory = torch.empty(extent, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(type.shape, type.strides, begin).copy_(tensor)


def _functional(program: ExportedProgram, under: Surroundings) -> tuple[ExportedProgram, fx.Graph]:
    """The program in functional ATen, and its graph."""
    with quiet(), brief(), keywords_as_names(), last_states_shaped():
        declare(program.graph)
        # Casts of autocast are part of the graph only once it is traced below autocast.
        graph = None if under.autocast else direct(program)
        if graph is None:
            program = _decompose(program)
            graph = program.graph
        return program, graph


def _decompose(program: ExportedProgram) -> ExportedProgram:
    try:
        return _whatever_autograd_says(lambda: decompose(program))
    except Exception as error:
        raise explained(error) from error


def _translate(
    program: ExportedProgram,
    graph: fx.Graph,
    name: str,
    device: torch.device,
    holder: nn.Module,
    under: Surroundings,
) -> Captured:
    """`graph`: of the program, in functional ATen."""
    declared = program.graph_signature
    translation = Translation({node.name for node in graph.nodes}, device)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written = _written(program)
    held: dict[str, fx.Node] = {}
    leaves: list[Leaf] = []
    for node, spec in zip(placeholders, declared.input_specs, strict=True):
        match spec.kind:
            case InputKind.USER_INPUT if isinstance(spec.arg, ConstantArgument):
                translation.bind_literal(node, spec.arg.value)
                leaves.append(Leaf(None, spec.arg.value))
            case InputKind.USER_INPUT:
                leaves.append(Leaf(translation.bind_input(node, node.meta["val"])))
            case InputKind.PARAMETER | InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                assert spec.target is not None
                if spec.target in written:
                    tensor = attribute(holder, spec.target)
                    translation.bind_state(node, state_place(tensor, spec.target), spec.target)
                    held[spec.target] = node
                elif node.users:
                    value = _held_value(program, spec.target)
                    of_model = attribute(holder, spec.target) is not None
                    translation.bind_constant(node, value, spec.target, source=of_model)
            case InputKind.TOKEN:
                translation.bind_literal(node, None)
            case InputKind.CUSTOM_OBJ if _is_generator(program, spec.target):
                raise CaptureError(*OWN_GENERATOR)
            case _:
                raise CaptureError(
                    f"the model holds {spec.target}, which is neither a tensor nor a number",
                    "an operator reads it at run time, and a graph has no place for it",
                    "compile the part of the model that does without it",
                )
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    returned = {node for node in output.args[0] if isinstance(node, fx.Node)}
    for node in graph.nodes:
        if node.op == "call_function":
            translation.add(node, node in returned)
    outputs = _outputs(program, output, translation, held)
    in_tree, out_tree = program.call_spec.in_spec, program.call_spec.out_spec
    assert in_tree is not None and out_tree is not None
    in_tree = of_shapes(in_tree)
    whole = translation.finish(name, [leaf.ref for leaf in outputs if leaf.ref is not None])
    placed = translation.placed(leaves)
    return Captured(
        whole,
        Signature(
            tree_text(in_tree),
            placed,
            tree_text(out_tree),
            tuple(outputs),
            tuple(translation.mutations),
            under.ambient(device, translation.by_default),
            asked=value_guards(whole, placed, translation.counted, device),
            checks=translation.checks,
        ),
        tuple(translation.sources),
        (in_tree, out_tree),
    )


def _written(program: ExportedProgram) -> set[str]:
    """The names under which the model holds what it writes to."""
    specs = program.graph_signature.output_specs
    return {spec.target for spec in specs if spec.kind in MUTATED and spec.target is not None}


def _is_generator(program: ExportedProgram, target: str | None) -> bool:
    held = program.constants.get(target or "")
    return isinstance(getattr(held, "real_obj", held), torch.Generator)


def _outputs(
    program: ExportedProgram,
    output: fx.Node,
    translation: Translation,
    held: Mapping[str, fx.Node],
) -> list[Leaf]:
    """The leaves of the result; notes what inputs and states are overwritten with. `held`: the
    states by the names that the model has for them."""
    leaves: list[Leaf] = []
    values: Any = output.args[0]
    for node, spec in zip(values, program.graph_signature.output_specs, strict=True):
        value = translation.value(node) if isinstance(node, fx.Node) else node
        if spec.kind is OutputKind.USER_OUTPUT:
            if not isinstance(value, (Ref, *LITERALS)):
                raise CaptureError(
                    f"the model returns a {type(value).__name__}: {value!r}",
                    "results are tensors, numbers, strings and None",
                    "return tensors only",
                )
            leaves.append(Leaf(value) if isinstance(value, Ref) else Leaf(None, value))
        elif spec.kind is OutputKind.TOKEN:
            continue
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            assert spec.target is not None and isinstance(value, Ref)
            translation.mutations.append((spec.target, value))
        elif spec.kind in MUTATED:
            assert spec.target is not None and isinstance(value, Ref)
            translation.becomes(held[spec.target], value)
        else:
            raise CaptureError(
                f"the exported program has an output of kind {spec.kind.name}",
                "it is neither a result nor the new value of an input, buffer or parameter",
                "compile the model itself, and not a program that was exported for training",
                origin(node) if isinstance(node, fx.Node) else "",
            )
    return leaves


def module_for(model: nn.Module | Callable[..., Any]) -> nn.Module:
    """The module itself, without the wrapper of torch.compile; a function becomes a module."""
    return unwrapped(model) if isinstance(model, nn.Module) else _Function(model)


class _Function(nn.Module):
    """A plain function as a module without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _held_value(program: ExportedProgram, path: str) -> torch.Tensor:
    value = program.state_dict.get(path)
    if value is None:
        value = program.constants[path]
    assert isinstance(value, torch.Tensor)
    return value


def _refuse_training(graph: Graph) -> None:
    for node in graph.nodes:
        if packet_name(node.op) in TRAINING:
            raise CaptureError(
                f"the model runs {node.op}, as in training mode",
                "this norm does not say which statistics it writes",
                "export it after model.eval(); functional.batch_norm writes running statistics to "
                "buffers of the model",
                node.origin,
            )
