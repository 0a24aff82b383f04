"""Refitting: new weights for plans that are compiled, in their own memory.

    model or state dict ──names, types, ties──> new values ──conditions──> all plans at once
                                                                └ or none: the old ones stay

Nothing is compiled, and a captured CUDA graph goes on reading where it read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from anabranch.compiled.entry import Entry, job_of
from anabranch.compiled.fitting import (
    Fitting,
    Moved,
    check_conditions,
    chosen,
    memory_of,
    write,
)
from anabranch.compiled.sized import SizedCalls
from anabranch.errors import NumericsError, OptionError, WeightsError
from anabranch.frontend.attributes import other
from anabranch.frontend.observe import fails, generators_kept, observe
from anabranch.frontend.padding_proof import PaddingProof
from anabranch.frontend.program import module_of
from anabranch.frontend.state import attribute, tensors_of, unwrapped
from anabranch.frontend.surroundings import neutral
from anabranch.ir import tolerances
from anabranch.ir.eval import eval_tasks
from anabranch.ir.graph import Constant, Graph, Input, Node
from anabranch.ir.inputs import random_inputs
from anabranch.ir.key import digest_tensor
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Target
from anabranch.ir.recipe import Recipe
from anabranch.ir.reference import Evaluate, eager_and_reference
from anabranch.targets.places import kept
from anabranch.tuning.job import example_of
from anabranch.tuning.verify.plan import drawn_anew, unlike_model, without_fastpath

EXTRA = "_extra_state"
"""What a state dict may hold that is no tensor: it is of the module's code, not of its graph."""

HALF = "refit again, or compile again: until then no call is answered"

RunInputs = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


def refit(
    entries: Sequence[Entry],
    target: Target,
    weights: Any,
    check: bool = False,
    torn: Callable[[], None] = lambda: None,
) -> None:
    """Give all plans the weights of a model or of a state dict. WeightsError, the old ones in
    place, where they do not fit or a rewrite relied on what they no longer have; with `check`,
    NumericsError where a plan is then off by more than it may be when it is compiled, or is not the
    given model on the inputs that it was compiled with. `torn` is
    called where writing fails half way: the plans must not run until they are refitted."""
    fits = [entry.fit() for entry in entries]
    with neutral(), contextlib.ExitStack() as held:  # what is entered last is left first
        calls = [_held(held, entry) for entry in entries]
        news = [chosen(fit, tensors_by_name(weights, fit.recipe)) for fit in fits]
        for entry, fit in zip(entries, fits, strict=True):
            _check_attributes(entry, weights)
            _check_tables(entry.sized, tensors_by_name(weights, fit.recipe))
        values = [Moved(fit, new) for fit, new in zip(fits, news, strict=True)]
        for fit, moved in zip(fits, values, strict=True):
            check_conditions(fit, moved)
        before = [[memory.clone() for memory in memory_of(fit)] for fit in fits] if check else []
        _write(fits, values, news, torn)
        try:
            for entry, call, moved in zip(entries, calls, values, strict=True):
                if check and call is not None and entry.run is not None:
                    states = entry.run.states.values()  # which may be the model's own tensors
                    with kept(states), generators_kept(target.device):
                        _check(entry, call, moved, target)
                    if isinstance(weights, nn.Module):
                        with kept(states), generators_kept(target.device):
                            _check_model(entry, call, unwrapped(weights))
        except BaseException:
            for fit, old in zip(fits, before, strict=True):
                for memory, value in zip(memory_of(fit), old, strict=True):
                    memory.copy_(value)
            raise


def _check_attributes(entry: Entry, model: Any) -> None:
    """WeightsError for a model whose modules are others than those that the plan was made of."""
    path = other(model, entry.attributes)
    if path is None:
        return
    module = dict(unwrapped(model).named_modules()).get(path)
    said = "missing" if module is None else repr(module)
    said = said if "\n" not in said else type(module).__name__
    raise WeightsError(
        f"{path or 'the model'} is another module than when the plan was compiled: {said[:100]}",
        "a class or a plain attribute (a stride, an eps, a number) differs, and a plan has "
        "those in its operators, where new weights change nothing",
        "compile this model; or refit with model.state_dict(), to take its weights alone",
    )


def _check_tables(sized: SizedCalls | None, tensors: Mapping[str, Tensor]) -> None:
    """WeightsError where padding was proved harmless by numbers that are others now."""
    proofs = sized.proofs if sized is not None else ()
    tables = {table for p in proofs if isinstance(p, PaddingProof) for table in p.tables}
    for path, digest in sorted(tables):
        if path in tensors and digest_tensor(tensors[path].detach()) != digest:
            raise WeightsError(
                f"{path} has other numbers than when the plan was compiled",
                "padding was proved harmless by them, as by those of a causal mask",
                "compile the model with its new weights instead",
            )


def half_way() -> WeightsError:
    """What a call is told after new weights were written in part."""
    return WeightsError(
        "this compiled model has some of its new weights, and some of the old ones",
        "writing them failed half way",
        "refit again, or compile again",
    )


def _held(held: contextlib.ExitStack, entry: Entry) -> RunInputs | None:
    return None if entry.run is None else held.enter_context(entry.run.writing())


def _write(
    fits: Sequence[Fitting],
    values: Sequence[Moved],
    news: Sequence[Mapping[str, Tensor]],
    torn: Callable[[], None],
) -> None:
    """All constants of all plans. Where memory is short, that shows in the largest ones, which are
    computed before anything is written."""
    begun = threading.Event()
    try:
        for fit, moved, new in zip(fits, values, news, strict=True):
            write(fit, moved, new, begun.set)
    except BaseException as failed:
        if begun.is_set():
            torn()
        if not isinstance(failed, RuntimeError):
            raise
        raise WeightsError(
            "the new weights could not be written",
            f"{type(failed).__name__}: {str(failed).partition(chr(10))[0]}",
            HALF if begun.is_set() else "the old ones are in place; refit with more memory free",
        ) from failed


def tensors_by_name(weights: Any, recipe: Recipe) -> dict[str, Tensor]:
    """What a model or a state dict holds, by name."""
    if isinstance(weights, ExportedProgram):
        weights = module_of(weights)
    if isinstance(weights, nn.Module):
        model = unwrapped(weights)
        tensors = dict(tensors_of(model))
        for tensor in recipe.state:
            if tensor.name not in tensors and (value := attribute(model, tensor.name)) is not None:
                tensors[tensor.name] = value
        return tensors
    if not isinstance(weights, Mapping):
        raise OptionError(
            f"a {type(weights).__name__} holds no weights",
            "refit takes a model, or a state dict of names and tensors",
            "give it the model, or model.state_dict()",
        )
    extra = [name for name in weights if isinstance(name, str) and name.endswith(EXTRA)]
    for name, value in weights.items():
        if not isinstance(name, str):
            raise WeightsError(
                "these weights do not fit the plan",
                f"one of their names is a {type(name).__name__}: {name!r:.80}",
                "give it model.state_dict(), or the part of a checkpoint that is one",
            )
        if not isinstance(value, Tensor) and name not in extra:
            raise WeightsError(
                "these weights do not fit the plan",
                f"{name!r} is a {type(value).__name__}, and not a tensor",
                "give it model.state_dict(), or the part of a checkpoint that is one",
            )
    return {name: value for name, value in weights.items() if name not in extra}


def _check(entry: Entry, call: RunInputs, values: Moved, target: Target) -> None:
    """The plan beside the graph that it stands for, with the new weights: one run of each."""
    plan = entry.plan
    graph = _whole(plan)
    if entry.compilation is not None:
        graph = _captured(entry.compilation.captured.graph, plan, values)
    inputs = random_inputs(graph, 0, target.device)
    if entry.compilation is not None:
        own, reference = eager_and_reference(graph, inputs, target)
    else:  # in the order of its tasks, for a plan has no other
        own, reference = eager_and_reference(graph, inputs, target, _evaluated(plan))
    pairs = tolerances.compare(call(inputs), own, reference, target.spec.tf32)
    anew = drawn_anew(graph)
    for i, (error, allowed) in enumerate(pairs):
        if not error <= allowed and i not in anew:
            raise NumericsError(
                f"with these weights output {i} has relative error {error:.2e}",
                f"its dtype and the model's own rounding allow {allowed:.2e}",
                "the old weights are in place; compile the model with its new weights",
            )


def _evaluated(plan: Plan) -> Evaluate:
    def evaluate(_: Graph, *inputs: Any) -> tuple[Tensor, ...]:
        return eval_tasks(plan.tasks, *inputs)

    return evaluate


def _check_model(entry: Entry, call: RunInputs, model: nn.Module) -> None:
    """The plan beside the model that the weights are from, in eval mode: it may go another way than
    the one that was captured. Both begin with the states that the model has."""
    if entry.job is None or entry.compilation is None:
        return
    job, compilation = job_of(entry.job, entry.sized, entry.at), entry.compilation
    example = _with_states_of(
        model, compilation.captured.graph, example_of(job, compilation.captured)
    )
    precise = job.target.full_precision
    try:
        with _in_eval(model), without_fastpath():
            results = observe(model, job.args, job.kwargs, job.surroundings, precise).results
    except Exception as failed:
        raise fails(model, failed, job.surroundings) from failed
    allowed = [ok for _, ok in compilation.errors] or [0.0] * len(entry.plan.tasks.outputs)
    drawn = drawn_anew(compilation.captured.graph)
    if differs := unlike_model(entry.plan, call(example), example, allowed, results, drawn):
        raise NumericsError(
            f"with these weights the plan is not this model: {differs}",
            "the model has changed in more than its weights since it was compiled: in a flag, a "
            "layer, a hook, or a tensor that is none of its parameters and buffers",
            "the old weights are in place; compile the model as it is now",
        )


def _with_states_of(model: nn.Module, graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of a graph, of states copies of what the model has."""
    own = {state.name: attribute(model, state.path) for state in graph.states}

    def begun(value: Input, before: Tensor) -> Tensor:
        tensor = own.get(value.name)
        fits = tensor is not None and (tensor.shape, tensor.dtype) == (before.shape, before.dtype)
        return (
            tensor.detach().to(before.device, copy=True) if tensor is not None and fits else before
        )

    return [begun(value, before) for value, before in zip(graph.inputs, inputs, strict=True)]


@contextlib.contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    """The flags alone: what `eval()` does beside may write to the weights."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _captured(graph: Graph, plan: Plan, values: Moved) -> Graph:
    """The captured graph with the new weights, and what code made as the plan has it."""
    ours = {(c.digest, c.type): c.value for c in plan.tasks.constants}
    kept = plan.recipe.kept if plan.recipe is not None else {}

    def bound(constant: Constant) -> Constant:
        value = ours.get((constant.digest, constant.type))
        if constant.name in values:
            value = values[constant.name]
        if value is None:
            value = kept.get(constant.name, constant.value)
        return Constant(constant.name, constant.type, constant.digest, value)

    return Graph(
        graph.name,
        graph.inputs,
        tuple(map(bound, graph.constants)),
        graph.nodes,
        graph.outputs,
        states=graph.states,
    )


def _whole(plan: Plan) -> Graph:
    """All nodes of a plan, in no order in which they run: for what its inputs must be like."""
    tasks = plan.tasks
    nodes: list[Node] = [node for task in tasks.tasks for node in task.body.nodes]
    nodes += [*tasks.aliases, *tasks.elided_concats]
    return Graph(tasks.name, tasks.inputs, tasks.constants, tuple(nodes), tasks.outputs)
