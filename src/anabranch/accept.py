"""Acceptance: nothing is handed out that does not compute what the model computes.

    a kernel     against its task's body, on random inputs, in a fresh arena that reads as NaN,
                 with fences around all that it may write
    a plan       against the captured graph in higher precision, on the example and on fresh inputs
    the capture  against the model itself, called as the user calls it, without short cuts

A plan that was compared before, with the very same weights (`outcome.accepted`), is compared with
the model alone. An error is judged by the dtype and by the error of the plain graph in that dtype
(`ir.numbers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from anabranch.cache import Cache
from anabranch.errors import NumericsError, TargetError
from anabranch.frontend.captured import Captured
from anabranch.frontend.structure import flatten_call
from anabranch.ir import numbers, ops
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Executable, Target
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.step import random_tensor
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.types import type_of
from anabranch.pack import pack
from anabranch.pack.fence import fence
from anabranch.trace import Trace

EAGER_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-2,
    torch.float16: 5e-2,
    torch.bfloat16: 2e-1,
}
"""A wrong capture is off by far more; rounding in a deep network, tf32 included, by less."""
FASTPATH = (
    "the results are those of torch.nn's attention layers without their fast path, which leaves "
    "zeros at padded places"
)
WRONG_CAPTURE = "the captured graph does not compute what the model computes"
Errors = tuple[tuple[float, float], ...]
"""For each output its error and the error allowed."""


def checker(target: Target, cache: Cache | None) -> Callable[[Task], str]:
    """Compares a task's kernel with its body on random inputs; "" or what differs. What passed once
    on this machine is not run again: the whole plan always is."""
    spec = target.spec

    def check(task: Task) -> str:
        if spec.simulated:
            return ""
        key = f"check 2\n{spec.fingerprint}\n{task_text(task)}"
        if cache is not None and cache.get("kernels", key) == "passed":
            return ""
        verdict = _kernel_differs(task, target)
        if cache is not None and not verdict:
            cache.put("kernels", key, "passed")
        return verdict

    return check


def verify(
    run: Executable,
    captured: Captured,
    target: Target,
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int,
    trace: Trace | None = None,
) -> Errors:
    """The worst errors of a loaded plan on the example inputs and on fresh ones. NumericsError if
    one is larger than allowed, or if the captured graph is not what the model computes."""
    graph, example = captured.graph, _example(captured, target, args, kwargs)
    worst: Errors = ((0.0, 0.0),) * len(graph.outputs)
    for inputs in (example, fresh(example, seed)):
        outs = run(inputs, clone=True)
        own, reference = _eager_and_reference(graph, inputs, target)
        pairs = numbers.compare(outs, own, reference, target.spec.tf32)
        for i, (error, allowed) in enumerate(pairs):
            if not error <= allowed:
                raise NumericsError(
                    f"output {i} has relative error {error:.2e}",
                    f"its dtype and the model's own rounding allow {allowed:.2e}",
                    "set ANABRANCH_CHECK=2 to find the pass that did it, and report the model",
                )
        worst = tuple(max(old, new) for old, new in zip(worst, pairs, strict=True))
    verify_capture(run, captured, target, model, args, kwargs, worst, trace)
    return worst


def verify_capture(
    run: Executable,
    captured: Captured,
    target: Target,
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    worst: Errors,
    trace: Trace | None = None,
) -> None:
    """The model itself, where it can be called, against a plan whose errors against the captured
    graph are known. NumericsError if they are not the same."""
    if not callable(model):
        return
    example = _example(captured, target, args, kwargs)

    def compare() -> None:
        _compare_with_model(run, example, worst, target, model, args, kwargs)

    try:
        compare()
    except NumericsError:
        if not torch.backends.mha.get_fastpath_enabled():
            raise
        with _without_fastpath():
            compare()
        if trace is not None:
            trace.add("warning", "verify", run.plan.tasks.name, FASTPATH)


def _example(
    captured: Captured, target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    inputs, (tree, _) = captured.graph.inputs, captured.trees
    given = flatten_call(captured.signature, inputs, args, kwargs, tree)
    return [tensor.to(target.device) for tensor in given]


@contextmanager
def _without_fastpath() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def own_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs with tensors of our own: the model may write to them."""
    given: tuple[tuple[Any, ...], dict[str, Any]] = (args, dict(kwargs))
    copied = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), given)
    return copied[0], copied[1]


def _kernel_differs(task: Task, target: Target) -> str:
    body = task.body
    alone = TaskGraph(task.name, body.inputs, body.constants, (task,), (), body.outputs)
    plan = fence(pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), target.spec))
    unit = ops.probabilities(body.nodes)
    inputs = [
        random_tensor(value.type, i, target.device, value.name in unit)
        for i, value in enumerate(alone.inputs)
    ]
    try:
        own, reference = _eager_and_reference(body, inputs, target)
    except (RuntimeError, IndexError, ValueError):
        return ""  # operators that refuse random content are judged in the whole plan alone
    try:
        run = target.load(plan)
        outs = run(inputs)
    except (TargetError, RuntimeError) as failed:
        return f"failed: {str(failed).partition(chr(10))[0]}"
    for error, allowed in numbers.compare(outs, own, reference, target.spec.tf32):
        if not error <= allowed:
            return f"error {error:.2e} where {allowed:.2e} is allowed"
    return run.strays()


def _eager_and_reference(
    graph: Graph, inputs: Sequence[Tensor], target: Target
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The graph op by op in its own precision, and in a higher one: fp64 for fp32, fp32 for half
    types (whose products are exact there)."""
    dtypes = {value.dtype for value in inputs} | {c.type.dtype for c in graph.constants}
    wide = bool(dtypes & {torch.float32, torch.float64})

    def evaluated(precision: torch.dtype | None, exact: bool) -> tuple[Tensor, ...]:
        try:
            with target.full_precision() if exact else target.own_precision():
                return eval_graph(graph, inputs, target.device, precision)
        except torch.OutOfMemoryError:
            with target.full_precision(lean=True):
                return eval_graph(graph, inputs, target.device, precision)

    # Short cuts that the user allowed are part of the model's own rounding.
    own = evaluated(None, exact=not (wide and target.spec.tf32))
    return own, evaluated(torch.float64 if wide else torch.float32, exact=True)


def _called(
    target: Target, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What the model returns, without short cuts. Where that takes too much memory, it is called
    once more, on inputs of its own, when what the first call held is gone."""
    with suppress(torch.OutOfMemoryError), torch.no_grad(), target.full_precision():
        own_args, own_kwargs = own_inputs(args, kwargs)
        return model(*own_args, **own_kwargs)
    own_args, own_kwargs = own_inputs(args, kwargs)
    with torch.no_grad(), target.full_precision(lean=True):
        return model(*own_args, **own_kwargs)


def _compare_with_model(
    run: Executable,
    example: Sequence[Tensor],
    worst: Errors,
    target: Target,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Both may be off by what the numbers allow."""
    returned = _called(target, model, args, kwargs)
    eager = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
    tasks, signature = run.plan.tasks, run.plan.signature
    assert signature is not None
    values = {ref.name: out for ref, out in zip(tasks.outputs, run(example), strict=True)}
    values.update((value.name, x) for value, x in zip(tasks.inputs, example, strict=True))
    rounding = {ref.name: ok for ref, (_, ok) in zip(tasks.outputs, worst, strict=True)}
    names = [leaf.ref.name for leaf in signature.outputs if leaf.ref is not None]
    for i, (want, name) in enumerate(zip(eager, names, strict=True)):
        out = values[name]
        error = numbers.relative_error(out, want.to(out.device))
        allowed = EAGER_TOLERANCE.get(out.dtype, 0.0) + 2 * rounding.get(name, 0.0)
        if not error <= allowed:
            raise NumericsError(
                f"output {i} differs from the model's own by {error:.2e}",
                WRONG_CAPTURE,
                "report the model; it may depend on state that capture cannot see",
            )


def fresh(example: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Inputs of the same kind: floats redrawn with the example's mean and deviation."""
    drawn = []
    for i, tensor in enumerate(example):
        if tensor.dtype.is_floating_point and tensor.numel() > 1:
            noise = random_tensor(type_of(tensor), seed + i, tensor.device)
            deviation, mean = torch.std_mean(tensor.float())
            tensor = (noise.float() * deviation + mean).to(tensor.dtype)
        drawn.append(tensor)
    return drawn
