"""A training step -> Captured: forward, loss, gradients and the optimizer's update in one graph.

    record      make_fx of the step with autograd at work, on tensors without values
    functional  make_fx of what was recorded: no writes in place, backward operators decomposed
    translate   tensors that the step writes are states, others that the model holds constants

    state %weight: f32[8,3,3,3] -> %weight_1      the user's own tensors: parameters,
    state %optimizer_weight_momentum_buffer ...   moments, running statistics
    input %rate                                   0-d, as it is at each call

Nothing of the model, the optimizer or torch's global state is changed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.func import functionalize
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, DataDependentError
from anabranch.frontend import numbers
from anabranch.frontend.backward import prepared, training_decompositions
from anabranch.frontend.bias_corrections import without_cancellation
from anabranch.frontend.capture_warnings import warn_of_changes, warn_of_reads
from anabranch.frontend.captured import Captured
from anabranch.frontend.checks import check_results
from anabranch.frontend.draws import AttentionDropoutError, Draws, without_fused_dropout
from anabranch.frontend.export_patches import brief, keywords_as_names
from anabranch.frontend.functional_calls import write_copies
from anabranch.frontend.observe import unchanged
from anabranch.frontend.python_state import LOST
from anabranch.frontend.source import raised_at, running_stack
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.frontend.training import (
    EagerStep,
    Held,
    Training,
    roles,
)
from anabranch.frontend.training_run import (
    SeenStep,
    StepCall,
    call_of,
    eager_step,
    recurrences_by_steps,
    run_on,
)
from anabranch.frontend.translate import Translation
from anabranch.frontend.varying import StandIns
from anabranch.ir.ambient import ANY
from anabranch.ir.attention_ops import laid_as
from anabranch.ir.graph import Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.trees import tree_text
from anabranch.trace import Trace

AUTOGRAD: Any = torch.autograd
COPY: Any = torch.ops.aten.copy_.default
OF_VALUES = (
    "the training step asks for the value of a tensor",
    "a step is one graph, which goes the same way whatever the values are",
    "compute both ways and choose by torch.where (weigh by a mask in place of boolean indexing), "
    "or decide outside of loss_fn and the optimizer",
)
NO_GRADIENT = re.compile(r"Trying to backward through (\S+) but no autograd formula")
OF_ONE_SHAPE = (
    "give the result a fixed size: weigh by a mask in place of boolean indexing or nonzero()"
)


def capture_training(
    training: Training,
    held: Held,
    batch: tuple[Any, ...],
    surroundings: Surroundings,
    trace: Trace,
    ends: bool = True,
) -> tuple[Captured, EagerStep]:
    """The graph of one step for these shapes, and the step that it is compared with. Its inputs are
    the batch's tensors and the learning rates; the optimizer's state must be there
    (`optimizer.initialise`). `ends`: whether the call ends with an update. Raises CaptureError."""
    call = call_of(training, batch)
    flat = call.flat(held)
    seen = list[SeenStep]()

    def step(*tensors: Tensor) -> list[Tensor]:
        seen[:] = [run_on(training, held, call, tensors, surroundings, ends, _Recording)]
        return [v for v in pytree.tree_leaves(seen[0].returned) if isinstance(v, Tensor)]

    with unchanged(EagerStep(training, surroundings)) as state, recurrences_by_steps():
        recorded = without_fused_dropout(lambda: _traced_module(step, flat))
        changed = [*state.changes(), *(f"{file}{LOST}" for file in seen[0].files)]
    check_results(seen[0].returned, "loss_fn")
    write_copies(recorded.graph)
    warn_of_changes(trace, type(training.model).__name__, changed)
    warn_of_reads(trace, type(training.model).__name__, seen[0].reads)
    without_cancellation(recorded)
    constants = _closed_over(prepared(recorded))
    settings = len(flat) - len(call.rates) + len(training.optimizer.param_groups)

    def again(*tensors: Tensor) -> Any:
        stand_ins = StandIns(tensors[settings : len(flat)])
        return _Again(recorded, stand_ins).run(*tensors)

    whole = functionalize(again, remove="mutations")
    eager = eager_step(training, surroundings, ends, seen[0])
    try:
        with Surroundings(dtype=surroundings.dtype).restored():  # of which tensors are made
            graph = _traced_module(whole, [*flat, *constants], training_decompositions()).graph
            _unite(graph, held)
            graph.eliminate_dead_code()
            captured = _translate(training, held, graph, call, constants, seen[0], surroundings)
    except DataDependentError as error:  # a step is not cut into several plans
        raise CaptureError(error.what, error.why, OF_ONE_SHAPE, error.source) from error
    return captured, eager


class _Recording(Draws):  # type: ignore[no-untyped-call]
    """Writes on each node that is recorded within it the phase of the step, as the path of the
    module it is in, and the user's line: of the backward pass that whose gradient it is."""

    def __init__(self, random: Tensor) -> None:
        super().__init__(random)
        self._lines: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = get_proxy_mode()
        assert mode is not None
        nodes = mode.tracer.graph.nodes
        count = len(nodes)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        added = len(nodes) - count
        if added:
            line = self._line()
            for node in itertools.islice(reversed(nodes), added):
                node.meta["nn_module_stack"] = {"": (self.phase, "")}
                node.meta["stack_trace"] = line
        return result

    def _line(self) -> str:
        running: Any = torch._C._current_autograd_node()
        if running is not None:
            return self._lines.get(running._sequence_nr(), "")
        if self.phase != "forward":
            return ""
        number = AUTOGRAD._get_sequence_nr() - 1
        return self._lines.setdefault(number, running_stack())


class _Again(fx.Interpreter):
    """Runs what was recorded; what is made meanwhile has the origin of the node it is made for, and
    lies as it did then, for views of it were recorded."""

    def __init__(self, recorded: fx.GraphModule, stand_ins: StandIns) -> None:
        super().__init__(recorded)
        self._in_place = stand_ins.in_place

    def run_node(self, n: fx.Node) -> Any:
        with fx_traceback.set_current_meta(n):
            result, was = super().run_node(n), n.meta.get("val")
            if n.op != "call_function" or not isinstance(result, Tensor | tuple | list):
                return result
            if isinstance(result, Tensor):
                return _lying_as(result, was)
            if not isinstance(was, tuple | list) or len(was) != len(result):
                return result
            return type(result)(map(_lying_as, result, was))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(self._in_place, (args, kwargs))
        return numbers.call(target, args, kwargs)


def _lying_as(result: Any, was: Any) -> Any:
    if not isinstance(result, Tensor) or not isinstance(was, Tensor) or result.shape != was.shape:
        return result
    reach = sum((size - 1) * stride for size, stride in zip(was.shape, was.stride(), strict=True))
    if result.stride() == was.stride() or reach + 1 != was.numel():
        return result
    return laid_as(result, was)


def _traced_module(
    function: Callable[..., Any], flat: Sequence[Tensor], table: Mapping[Any, Any] | None = None
) -> fx.GraphModule:
    try:
        # Batch norm tells torch that it writes to its statistics under this dispatcher alone.
        with (
            own_kernels(),
            enable_python_dispatcher(),
            fx_traceback.preserve_node_meta(),
            brief(),
            keywords_as_names(),
        ):
            module: fx.GraphModule = make_fx(
                function,
                tracing_mode="fake",
                decomposition_table=dict(table or {}),
                _allow_non_fake_inputs=True,
            )(*flat)
    except (CaptureError, AttentionDropoutError):
        raise
    except Exception as error:
        if isinstance(error, DynamicOutputShapeException):
            raise CaptureError(
                f"the size of what {error.func} gives depends on values",
                "a step is one graph of fixed sizes",
                "leave it outside of the model, which torch.compile(model, backend='anabranch') "
                "trains in any loop",
                raised_at(error),
            ) from error
        if _asks_for_a_value(error):
            raise CaptureError(*OF_VALUES, raised_at(error)) from error
        if without := NO_GRADIENT.search(str(error)):
            raise _no_gradient(without[1], raised_at(error)) from error
        first = (str(error).strip().splitlines() or [""])[0]
        raise CaptureError(
            "the training step could not be captured",
            f"{type(error).__name__}: {first}",
            "check that loss_fn(model, *batch).backward() and optimizer.step() run with this batch",
            raised_at(error),
        ) from error
    return module


def _no_gradient(name: str, source: str) -> CaptureError:
    """Of a user's operator, without which autograd's own backward pass fails, too."""
    space, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    op: Any = getattr(getattr(getattr(torch.ops, space), packet), overload)
    writes = op._schema.is_mutable
    why = "torch has no formula for the gradient of an operator that writes to its arguments"
    next = "return new tensors from it (mutates_args=()), and register the gradient: "
    return CaptureError(
        f"the loss depends on weights through {space}::{packet}, which has no gradient",
        why if writes else "nobody registered one, and backward() of the model itself fails, too",
        f"{next if writes else 'register it: '}torch.library.register_autograd; or call the "
        "operator on tensors that need no gradient (detach(), torch.no_grad())",
        source,
    )


def _asks_for_a_value(error: Exception) -> bool:
    """Whether Python code wanted a number of a tensor, which has none while it is captured."""
    if isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException):
        return True
    return (
        isinstance(error, TypeError)
        and re.search(r"\b(Sym(Bool|Int|Float)|FakeTensor)\b", str(error)) is not None
    )


def _closed_over(recorded: fx.GraphModule) -> list[Tensor]:
    """Tensors that the step reads and nobody of it holds, as inputs of what was recorded from now
    on."""
    graph, inputs = recorded.graph, dict[str, tuple[Tensor, fx.Node]]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in inputs:
            value = getattr(recorded, str(node.target))
            with graph.inserting_after(last):
                last = graph.placeholder(str(node.target))
            inputs[str(node.target)] = value.detach(), last
        node.replace_all_uses_with(inputs[str(node.target)][1])
        graph.erase_node(node)
    recorded.recompile()
    return [tensor for tensor, _ in inputs.values()]


def _unite(graph: fx.Graph, held: Held) -> None:
    """Read one of the tensors that are always equal in the place of each: what is computed of the
    count of steps is then computed once, and not for each parameter. The count of a parameter
    without a gradient stays as it is."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written = {node.args[0] for node in graph.nodes if node.target is COPY}
    for alike in held.alike:
        first, *others = [i for i in alike if placeholders[i] in written] or alike
        for i in others:
            for user in list(placeholders[i].users):
                if user.target is not COPY:
                    user.replace_input_with(placeholders[i], placeholders[first])


def _translate(
    training: Training,
    held: Held,
    graph: fx.Graph,
    call: StepCall,
    constants: Sequence[Tensor],
    seen: SeenStep,
    under: Surroundings,
) -> Captured:
    translation = Translation({node.name for node in graph.nodes}, training.random.device)
    nodes = iter([node for node in graph.nodes if node.op == "placeholder"])
    writes = {n.args[0]: n for n in graph.nodes if n.target is COPY}
    updated = roles(training, lambda tensor: tensor).updated
    changing = {id(tensor) for mine in updated for tensor in mine}
    for name, tensor in zip(held.names, held.tensors, strict=True):
        node = next(nodes)
        if node in writes:
            translation.bind_state(node, tensor.detach(), name)
        elif node.users and id(tensor) in changing:
            translation.becomes(node, translation.bind_state(node, tensor.detach(), name))
        elif node.users:
            translation.bind_constant(node, tensor, name, source=True)
    leaves = [Leaf(None, None if isinstance(leaf, Tensor) else leaf) for leaf in call.leaves]
    for i in call.places:
        node = next(nodes)
        if node in writes:
            raise CaptureError(
                "the training step writes to a tensor of the batch",
                "what a step changes is the model's, the optimizer's and the loss's",
                "clone it in loss_fn first",
            )
        leaves[i] = Leaf(translation.bind_input(node, node.meta["val"]))
    for _ in call.rates:
        node = next(nodes)
        leaves.append(Leaf(translation.bind_input(node, node.meta["val"])))
    for node, value in zip(nodes, constants, strict=True):
        if node in writes:
            raise CaptureError(
                "the training step writes to a tensor that neither model, loss nor optimizer holds",
                "it is closed over, and the change would be lost",
                "register it as a buffer of the model, or make loss_fn a module that holds it",
            )
        translation.bind_constant(node, value, node.name, source=False)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    results_of: Sequence[fx.Node] = output.args[0]
    for node in graph.nodes:
        if node.target is COPY:
            after = translation.value(node.args[1])
            assert isinstance(after, Ref)
            translation.becomes(node.args[0], after)
            translation.bind_literal(node, None)
        elif node.op == "call_function":
            translation.add(node, node in results_of)
    values, out_tree = pytree.tree_flatten(seen.returned)
    result_nodes = iter(results_of)
    results = [
        _leaf(translation, next(result_nodes)) if isinstance(value, Tensor) else Leaf(None, value)
        for value in values
    ]
    batch = pytree.tree_unflatten(list(call.leaves), call.tree)
    in_tree = pytree.tree_flatten(((*batch, [0.0] * len(call.rates)), {}))[1]
    ambient = under.ambient(training.random.device, translation.by_default)
    return Captured(
        translation.finish(
            f"{type(training.model).__name__}_step",
            [leaf.ref for leaf in results if leaf.ref is not None],
        ),
        Signature(
            tree_text(in_tree),
            translation.placed(leaves),
            tree_text(out_tree),
            tuple(results),
            ambient=replace(ambient, autocast=ANY),  # that of compile time is in the graph
            checks=translation.checks,
        ),
        tuple(translation.sources),
        (in_tree, out_tree),
    )


def _leaf(translation: Translation, node: fx.Node) -> Leaf:
    value = translation.value(node)
    assert isinstance(value, Ref)
    return Leaf(value)
