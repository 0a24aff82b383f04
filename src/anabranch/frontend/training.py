"""A training step -> Captured: forward, loss, gradients and the optimizer's update in one graph.

    record      make_fx of the step with autograd at work, on tensors without values
    functional  make_fx of what was recorded: no writes in place, backward operators decomposed
    translate   tensors that the step writes are states, others that the model holds constants

    state %weight: f32[8,3,3,3] -> %weight_1      the user's own tensors: parameters,
    state %weight_momentum_buffer: ...            moments, running statistics
    input %lr                                     0-d, as it is at each call

Nothing of the model, the optimizer or torch's global state is changed.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError
from anabranch.frontend.captured import Captured
from anabranch.frontend.operators import decompositions
from anabranch.frontend.source import raised_at
from anabranch.frontend.state import named, tensors_of
from anabranch.frontend.surroundings import Surroundings, neutral
from anabranch.frontend.translate import Translation
from anabranch.ir.graph import Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.recipe import ModelTensor
from anabranch.ir.trees import tree_text

LR = "lr"
"""The one hyperparameter that schedules change, and that calls read anew."""


@dataclass(frozen=True)
class Training:
    """What a training step consists of. `loss_fn(model, *batch)` returns the loss, a tensor of one
    element, or (loss, extras). `clip_norm`: the largest norm of all gradients together, None for no
    limit."""

    model: nn.Module
    loss_fn: Callable[..., Any]
    optimizer: Optimizer
    clip_norm: float | None = None

    def rates(self) -> list[float | Tensor]:
        """The learning rate of each group of parameters, as it is now."""
        return [group[LR] for group in self.optimizer.param_groups]

    def trained(self) -> list[Tensor]:
        """The parameters that the optimizer has, but for frozen ones."""
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]


@dataclass(frozen=True)
class EagerStep:
    """The step as eager runs it, called as the graph is: with the batch and the learning rates,
    which it takes from the optimizer all the same. `found`: torch's switches for the loss."""

    training: Training
    found: Surroundings

    def __call__(self, *given: Any) -> Any:
        """What `loss_fn` returns, detached; the model is updated."""
        training, trained = self.training, self.training.trained()
        before = [p.grad for p in trained]
        try:
            for parameter in trained:
                parameter.grad = None
            with torch.enable_grad():
                with self.found.restored():
                    returned = training.loss_fn(training.model, *given[:-1])
                loss_of(returned).backward()
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(trained, training.clip_norm)
            type(training.optimizer).step(training.optimizer)
        finally:
            for parameter, gradient in zip(trained, before, strict=True):
                parameter.grad = gradient
        return detached(returned)


def loss_of(returned: Any) -> Tensor:
    """The loss among what `loss_fn` returned; CaptureError where there is none."""
    loss = returned[0] if isinstance(returned, tuple) and returned else returned
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = (
            f"a tensor of shape {list(loss.shape)}"
            f"{'' if loss.requires_grad else ' that requires no gradient'}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise CaptureError(
            f"the loss is {what}",
            "gradients are those of one number, which depends on trainable parameters",
            "have loss_fn(model, *batch) return the loss, or (loss, extras)",
        )
    return loss


def detached(returned: Any) -> Any:
    """Without gradients, and none of them a tensor that the step holds."""
    return pytree.tree_map_only(Tensor, lambda x: x.detach(), returned)


@dataclass(frozen=True)
class Held:
    """The tensors of a step, in order, each under its first name."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    place: Mapping[int, int] = field(repr=False)
    """By the id of a tensor its number."""


def held_by(training: Training) -> Held:
    """What the model, the loss and the optimizer hold: each tensor once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in tensors_of(training.model):
        found.setdefault(id(tensor), (name, tensor))
    if isinstance(training.loss_fn, nn.Module):
        for name, tensor in tensors_of(training.loss_fn):
            found.setdefault(id(tensor), (f"loss.{name}", tensor))
    for number, group in enumerate(training.optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            found.setdefault(id(parameter), (f"parameter.{number}.{i}", parameter))
    for parameter, values in training.optimizer.state.items():
        of = found[id(parameter)][0]
        for key, value in values.items():
            if isinstance(value, Tensor):
                found.setdefault(id(value), (f"optimizer.{of}.{key}", value))
    names, tensors = zip(*found.values(), strict=True)
    return Held(names, tensors, {key: i for i, key in enumerate(found)})


def capture_training(
    training: Training, batch: tuple[Any, ...], found: Surroundings
) -> tuple[Captured, Held]:
    """The graph of one step for these shapes. Its inputs are the batch's tensors and the learning
    rates; the optimizer's state must be there (`initialised`). Raises CaptureError."""
    held = held_by(training)
    leaves, tree = pytree.tree_flatten(batch)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    rates = [torch.as_tensor(rate, dtype=torch.float32) for rate in training.rates()]
    flat = [t.detach() for t in (*held.tensors, *(leaves[i] for i in places), *rates)]
    out: list[Any] = []

    def step(*given: Tensor) -> list[Tensor]:
        tensors, rest = given[: len(held.tensors)], given[len(held.tensors) :]
        whole = list(leaves)
        for i, value in zip(places, rest, strict=False):
            whole[i] = value
        args = pytree.tree_unflatten(whole, tree)
        returned = _traced(training, held, tensors, args, rest[len(places) :], found)
        values, spec = pytree.tree_flatten(returned)
        out[:] = [values, spec]
        return [value for value in values if isinstance(value, Tensor)]

    recorded = _made(step, flat)
    constants = _closed_over(recorded)
    functional = _made(
        functionalize(_interpreted(recorded), remove="mutations"),
        [*flat, *constants],
        decompositions(),
    )
    functional.graph.eliminate_dead_code()
    return _translate(training, held, functional.graph, batch, places, rates, constants, out), held


def _made(
    function: Callable[..., Any], flat: Sequence[Tensor], table: Mapping[Any, Any] | None = None
) -> fx.GraphModule:
    try:
        # Batch norm tells torch that it writes to its statistics under this dispatcher alone.
        with enable_python_dispatcher():
            made: fx.GraphModule = make_fx(
                function,
                tracing_mode="fake",
                decomposition_table=dict(table or {}),
                _allow_non_fake_inputs=True,
            )(*flat)
    except CaptureError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise CaptureError(
            "the training step could not be captured",
            f"{type(error).__name__}: {first}",
            "check that loss_fn(model, *batch).backward() and optimizer.step() run with this batch",
            raised_at(error),
        ) from error
    return made


def _interpreted(recorded: fx.GraphModule) -> Callable[..., Any]:
    return lambda *flat: fx.Interpreter(recorded).run(*flat)


def _closed_over(recorded: fx.GraphModule) -> list[Tensor]:
    """Tensors that the step reads and nobody of it holds, as inputs of what was recorded from now
    on."""
    graph, found = recorded.graph, dict[str, tuple[Tensor, fx.Node]]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in found:
            value = getattr(recorded, str(node.target))
            with graph.inserting_after(last):
                last = graph.placeholder(str(node.target))
            found[str(node.target)] = value.detach(), last
        node.replace_all_uses_with(found[str(node.target)][1])
        graph.erase_node(node)
    recorded.recompile()
    return [tensor for tensor, _ in found.values()]


def _traced(
    training: Training,
    held: Held,
    tensors: Sequence[Tensor],
    batch: tuple[Any, ...],
    rates: Sequence[Tensor],
    found: Surroundings,
) -> Any:
    """The step on these tensors in the place of those that are held, which it writes to."""
    trained = [held.place[id(p)] for p in training.trained()]
    leaf = {i: tensors[i].detach().requires_grad_() for i in trained}
    with torch.enable_grad():
        with _exchanged(training, held, [leaf.get(i, t) for i, t in enumerate(tensors)]):
            with found.restored():
                returned = training.loss_fn(training.model, *batch)
        gradients = torch.autograd.grad(
            loss_of(returned), [leaf[i] for i in trained], allow_unused=True
        )
    with torch.no_grad():
        for i, gradient in zip(trained, gradients, strict=True):
            tensors[i].grad = gradient
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_([tensors[i] for i in trained], training.clip_norm)
        _updated(training.optimizer, held, tensors, rates)
    return detached(returned)


@contextmanager
def _exchanged(training: Training, held: Held, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Within it the model, and a loss that is a module, have these tensors."""
    with ExitStack() as stack:
        for module in (training.model, training.loss_fn):
            if isinstance(module, nn.Module):
                mine = {name: tensors[held.place[id(t)]] for name, t in tensors_of(module)}
                stack.enter_context(_reparametrize_module(module, mine))
        yield


def _updated(
    optimizer: Optimizer, held: Held, tensors: Sequence[Tensor], rates: Sequence[Tensor]
) -> None:
    """The optimizer's own step, on these tensors."""
    twin = copy.copy(optimizer)
    twin.param_groups = [
        {
            **group,
            "params": [tensors[held.place[id(p)]] for p in group["params"]],
            LR: rate,
            **{key: made for key, made in AS_GRAPH.items() if key in group},
        }
        for group, rate in zip(optimizer.param_groups, rates, strict=True)
    ]
    twin.state = defaultdict(dict)
    for parameter, values in optimizer.state.items():
        twin.state[tensors[held.place[id(parameter)]]] = {
            key: tensors[held.place[id(value)]] if isinstance(value, Tensor) else value
            for key, value in values.items()
        }
    step = type(optimizer).step
    with _compiling():
        getattr(step, "__wrapped__", step)(twin)


AS_GRAPH = {"foreach": False, "fused": False, "capturable": True}
"""Settings of optimizers under which they are written as a graph: operators that fuse, and counts of
steps that stay on the device."""


@contextmanager
def _compiling() -> Iterator[None]:
    """Within it torch's optimizers read no numbers of tensors."""
    compiler: Any = torch.compiler
    was = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = was


def _translate(
    training: Training,
    held: Held,
    graph: fx.Graph,
    batch: tuple[Any, ...],
    places: Sequence[int],
    rates: Sequence[Tensor],
    constants: Sequence[Tensor],
    out: Sequence[Any],
) -> Captured:
    translation = Translation({node.name for node in graph.nodes}, held.tensors[0].device)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written = {
        node.args[0]: node
        for node in graph.nodes
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"
    }
    count = len(held.tensors)
    for node, name, tensor in zip(placeholders, held.names, held.tensors, strict=False):
        if node in written:
            translation.bind_state(node, tensor.detach(), name)
        elif node.users:
            translation.bind_constant(node, tensor, name, source=True)
    leaves = [Leaf(None, leaf) for leaf in pytree.tree_leaves(batch)]
    for i, node in zip(places, placeholders[count:], strict=False):
        leaves[i] = Leaf(translation.bind_input(node, node.meta["val"]))
    count += len(places)
    for node in placeholders[count : count + len(rates)]:
        leaves.append(Leaf(translation.bind_input(node, node.meta["val"])))
    for node, value in zip(placeholders[count + len(rates) :], constants, strict=True):
        translation.bind_constant(node, value, node.name, source=False)
    for node in graph.nodes:
        if node in written.values():
            value = translation.value(node.args[1])
            assert isinstance(value, Ref)
            translation.becomes(node.args[0], value)
            translation.bind_literal(node, None)
        elif node.op == "call_function":
            translation.add(node)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    made = iter(output.args[0])
    results = [
        _leaf(translation, next(made)) if isinstance(value, Tensor) else Leaf(None, value)
        for value in out[0]
    ]
    in_tree = pytree.tree_flatten(((*batch, [0.0] * len(rates)), {}))[1]
    name = f"{type(training.model).__name__}_step"
    captured = Captured(
        translation.finish(name, [leaf.ref for leaf in results if leaf.ref is not None]),
        Signature(
            tree_text(in_tree),
            translation.placed(leaves),
            tree_text(out[1]),
            tuple(results),
        ),
        tuple(translation.sources),
        (in_tree, out[1]),
    )
    tensors = dict(zip(held.names, held.tensors, strict=True))
    state = (ModelTensor(n, tuple(x.shape), x.dtype, True) for n, x in tensors.items())
    return named(captured, tensors, tuple(state))


def _leaf(translation: Translation, node: fx.Node) -> Leaf:
    value = translation.value(node)
    assert isinstance(value, Ref)
    return Leaf(value)


def initialise(optimizer: Optimizer) -> None:
    """Give the optimizer the state that its first step would begin with, where it has none yet, and
    keep its counts of steps beside the parameters. CaptureError where nobody knows that state."""
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.requires_grad]
        if all(p in optimizer.state for p in trained):
            continue
        found = getattr(optimizer, "_init_group", None)
        if found is None:
            raise CaptureError(
                f"{type(optimizer).__name__} has no state yet",
                "a plan has a fixed place for each tensor of it, and this class does not say "
                "what its first step begins with",
                "run one step of it before compile_step",
            )
        if group.get("momentum") and group.get("dampening"):
            raise CaptureError(
                f"the first step of {type(optimizer).__name__} with dampening is unlike all others",
                "it takes the gradient itself as the first momentum",
                "run one step of it before compile_step",
            )
        _begin(optimizer, group, trained)


def _begin(optimizer: Optimizer, group: dict[str, Any], trained: Sequence[Tensor]) -> None:
    """The state of these parameters, as the optimizer's own code makes it."""
    init: Any = optimizer._init_group  # type: ignore[attr-defined]
    before = [p.grad for p in trained]
    lists = list(inspect.signature(init).parameters)[1:]
    try:
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        init(group, **{name: {} if name.endswith("_dict") else [] for name in lists})
    finally:
        for parameter, gradient in zip(trained, before, strict=True):
            parameter.grad = gradient
    if group.get("momentum") and isinstance(optimizer, torch.optim.SGD):
        for parameter in trained:
            buffer = optimizer.state[parameter].get("momentum_buffer")
            if buffer is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
