"""What users call: compile a model or a training step, load a saved plan.

fast = anabranch.compile(model, (x,))
y = fast(x)
fast = anabranch.load("model.anabranch")
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.export import ExportedProgram
from torch.optim import Optimizer

from anabranch.artifact import file as artifact_file
from anabranch.compiled.calls import Compiled
from anabranch.compiled.cuts import CutModel
from anabranch.compiled.progress import Progress, telling
from anabranch.compiled.request import check_stop
from anabranch.compiled.saved_step import check_no_step
from anabranch.compiled.training_step import TrainingStep
from anabranch.errors import (
    AnabranchError,
    ArtifactError,
    DataDependentError,
    OptionError,
    TargetError,
)
from anabranch.frontend.capture_lock import capture_lock
from anabranch.frontend.checks import check_call
from anabranch.frontend.held_arguments import with_held, with_numbers
from anabranch.frontend.held_numbers import CountedError
from anabranch.frontend.onnx.module import OnnxModule
from anabranch.frontend.program import opened
from anabranch.frontend.state import unwrapped
from anabranch.frontend.surroundings import neutral
from anabranch.frontend.symbolic_shapes import program_shapes
from anabranch.frontend.training import MOST_SEED, NO_DRAWS, Training, with_places
from anabranch.frontend.training_checks import check_seed, check_training, parts_of
from anabranch.frontend.varying import varying_of
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Target
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.workers.chosen import open_workers
from anabranch.tuning.workers.pool import WorkerPool

ALONE = {"workers": None}


def compile(
    model: nn.Module | ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    sizes: Any = None,
    target: str = "auto",
    trace: Trace | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Compiled:
    """A callable that computes what `model` computes, faster.

    Without a trace, a compilation of more than five seconds says through the logger `anabranch`
    what it is doing: on a terminal, or as logging is configured.

    Args:
        model: A module in eval mode, a function of tensors, or an exported program, which brings
            inputs where none are given. Its weights are copied and treated as constants.
        args: Example inputs, whose shapes, dtypes and Python values the plan is made for; a lone
            tensor is one argument.
        kwargs: Example inputs that are passed by name.
        dynamic_shapes: What varies in the inputs' shapes, as torch.export takes it:
            `{"x": {0: Dim("batch", max=64)}}`. An exported program has its own, and so has a model
            of `from_onnx` whose file leaves sizes open. A few sizes are compiled, and a call runs
            the next larger one, if padding is proved harmless.
        sizes: Which sizes: a list, a histogram (a dict from size to share, or the path of a JSON
            file) from which at most `buckets` are chosen by forecast times, or None for the whole
            range, which is the example's size where it has no end. With several dimensions a size
            is a tuple. Without `dynamic_shapes` it is that of the first axis of all inputs.
        target: auto, cuda, cuda:N, cpu, sim:h200 or sim:FILE.json. "auto" is the GPU where there
            is one, and the CPU elsewhere.
        trace: Gets every event of the compilation.
        stop: Once it is set, by another thread or a signal handler, searching and measuring end,
            and the best so far is returned, as if the budget had passed; `facts["cut_short"]` says
            so.
        **options: Fields of `Options`, which are stronger than the environment's.

    Returns:
        The compiled model: an `nn.Module` in eval mode that is called as the model is, and returns
        results of the same structure, shapes and dtypes. A model that asks for values of its
        tensors (`.item()`, `nonzero`, boolean masks, an `if` on a tensor) becomes a `CutModel`,
        unless `fullgraph` is set: several plans, and steps between them that run as eager does.

    Raises:
        OptionError: An option, a target or the model's own form means nothing here.
        CaptureError: The model could not be turned into a graph, or nothing is left of it between
            the steps that ask for values.
        TargetError: The machine lacks what was asked of it.
        NumericsError: `strict` is set, and the plan's numbers differ from the model's.
        WorkerError: No worker could be started, the model cannot be sent to one, or two died of it.
    """
    chosen = Options.read(options)
    _check_watchers(trace, stop)
    check_call(model, args, kwargs)
    inputs = (args,) if isinstance(args, Tensor) else tuple(args)
    if isinstance(model, ExportedProgram) and dynamic_shapes is None:
        dynamic_shapes = program_shapes(model)
    asked = dynamic_shapes is not None or sizes is not None
    if isinstance(model, OnnxModule) and dynamic_shapes is None:
        dynamic_shapes = model.dynamic_shapes
    module, inputs, kwargs = with_held(*opened(model, inputs, kwargs))
    progress = Progress(type(module).__name__ if isinstance(module, nn.Module) else "a function")
    listened = trace or Trace(progress, level=chosen.debug)
    place = resolve(target, chosen.tf32)
    with telling(progress) if trace is None else nullcontext():
        try:
            compiled = Compiled(module, place, chosen, listened)
            if dynamic_shapes is None and sizes is None:
                # On a simulated GPU no kernel of one plan is tried.
                helped = chosen if not place.spec.simulated else chosen.model_copy(update=ALONE)
                with _workers(helped, target, listened) as pool:
                    return compiled.add(inputs, kwargs, stop=stop, workers=pool)
            with _workers(chosen, target, listened) as pool:
                return compiled.add_sizes(inputs, kwargs, dynamic_shapes, sizes, stop, pool)
        except (CountedError, DataDependentError) as not_one_plan:
            if chosen.fullgraph or asked:
                raise
            if isinstance(not_one_plan, CountedError):
                module, inputs, kwargs = with_numbers(module, inputs, kwargs, not_one_plan.groups)
        return CutModel(module, place, chosen, listened).add(inputs, kwargs, stop=stop)


@contextmanager
def _workers(chosen: Options, target: str, trace: Trace) -> Iterator[WorkerPool | None]:
    """The workers that were asked for. What they find comes back through the cache: without one,
    this process compiles alone, and says so."""
    asked = chosen.workers
    if asked is not None and chosen.cache_dir is None:
        why = "what they find is handed over through the cache, and cache_dir is None"
        trace.warn("workers", f"workers={asked!r} is not used", why)
        asked = None
    with open_workers(asked, target, chosen.cache_dir) as pool:
        yield pool


def _check_watchers(trace: Any, stop: Any) -> None:
    """OptionError for what cannot take events, or cannot be set."""
    check_stop(stop)
    if trace is not None and not isinstance(trace, Trace):
        raise OptionError(
            f"trace is a {type(trace).__name__}",
            "events of the compilation go to a Trace",
            "give anabranch.trace.Trace(), and read its events afterwards",
        )


def compile_step(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: Optimizer,
    batch: Sequence[Any] | Tensor,
    *,
    clip_norm: float | None = None,
    accumulate: int = 1,
    scaler: GradScaler | None = None,
    keep_grad: bool = False,
    changing: Sequence[str] = (),
    seed: int | None = None,
    target: str = "auto",
    trace: Trace | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> TrainingStep:
    """One step of a training loop as one plan: forward, loss, backward and update, faster.

    The step that it takes is `loss = loss_fn(model, *batch)`, `loss.backward()`,
    `optimizer.step()` and `optimizer.zero_grad()`. It writes to the tensors of the model and the
    optimizer themselves, so state dicts, checkpoints, schedules of the learning rate, averages of
    weights and evaluations of the model work as they did.

    Args:
        model: A module in training mode, whose parameters the optimizer has.
        loss_fn: Called as `loss_fn(model, *batch)`; returns the loss, a tensor of one element,
            `(loss, extras)` or `{"loss": loss, ...}`. A module may be one, with parameters of its
            own.
        optimizer: Of `torch.optim`, or a class of your own that has taken a step. On a GPU it is
            made `capturable`.
        batch: An example batch, whose shapes, dtypes and Python values the plan is made for.
        clip_norm: Scale the gradients of all parameters of the optimizer so that their norm
            together is at most this, as `torch.nn.utils.clip_grad_norm_` does.
        accumulate: Update once in so many calls, with the mean of their gradients.
        scaler: Scale the loss and divide gradients by the scale, and update nothing where one is
            not finite, as `torch.amp.GradScaler` does. Its scale is kept up to date; do not call
            its methods beside.
        keep_grad: Leave the gradients of each update (scaled back and clipped) in `.grad` of the
            parameters of the optimizer. No others are computed: a parameter that requires a
            gradient and that the optimizer has not keeps its `.grad`, where `backward()` adds to
            it.
        changing: Settings of the optimizer, beside the learning rate, that change while it trains:
            of `"momentum"`, `"betas"` and `"weight_decay"`, for SGD, RMSprop, Adam and AdamW. What
            a schedule cycles that was made before is found by itself.
        seed: Of the random numbers (dropout), which are made of it and of the number of the call;
            by default `torch.initial_seed()`. Their distribution is eager's, the numbers are not.
        target: As in `compile`.
        trace: As in `compile`.
        stop: As in `compile`.
        **options: As in `compile`.

    Returns:
        A callable that takes a batch and returns what `loss_fn` returns, without gradients.

    Raises:
        OptionError: An option, a target, the model or the optimizer means nothing here.
        CaptureError: The step could not be turned into a graph: it has hooks, sparse gradients,
            a distributed wrapper, or steps that depend on values.
        NumericsError: `strict` is set, and the plan's numbers differ from the step's.
    """
    chosen = Options.read(options)
    _check_watchers(trace, stop)
    inputs = parts_of(batch)
    check_seed(seed)
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    training = Training(model, loss_fn, optimizer, NO_DRAWS, clip_norm, accumulate, scaler)
    device = check_training(training, inputs)
    training = replace(training, varying=varying_of(optimizer, changing))
    draws = torch.tensor([(torch.initial_seed() if seed is None else seed) & MOST_SEED, 0])
    training = with_places(replace(training, random=draws.to(device)), keep_grad)
    progress = Progress(f"a step of {type(model).__name__}")
    listened = trace or Trace(progress, level=chosen.debug)
    with telling(progress) if trace is None else nullcontext():
        return TrainingStep(training, resolve(target, chosen.tf32), chosen, listened).add(
            inputs, stop
        )


def load_step(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss_fn: Callable[..., Any] | None = None,
    scaler: GradScaler | None = None,
    target: str = "auto",
    operators: Collection[str] = (),
) -> TrainingStep:
    """A saved training step, ready to run on this model and optimizer: nothing is compiled.

    Args:
        path: A file that `TrainingStep.save` wrote. The states in it are written to the
            tensors of model, optimizer and scaler, which are then as when it was saved.
        model: Of the same parameters and buffers as the one that the step was compiled for.
        optimizer: Of the same class and settings; its learning rates are those of the next call.
        loss_fn: The loss, if it is a module with tensors of its own, or refers to such modules.
        scaler: A scaler, if the step was compiled with one.
        target: As in `load`.
        operators: As in `load`; gradients that look up by indices are among these:
            `["aten::max_pool2d_with_indices_backward"]`.

    Returns:
        The step, which goes on bit for bit. It has no history: `explain` and `report` refuse, and
        no form of batches can be added.

    Raises:
        ArtifactError: The file is damaged, foreign or newer, or says more than a plan may say.
        WeightsError: Model, optimizer or scaler have other tensors than the step.
        InputError: The optimizer is of another class, or has other settings.
        TargetError: The plan is sound and cannot run here.
    """
    model = unwrapped(model)
    training = Training(model, loss_fn or _no_loss, optimizer, NO_DRAWS, scaler=scaler)
    device = check_training(training, None)
    training = replace(training, random=NO_DRAWS.clone().to(device))
    with capture_lock(), uncollected(), neutral():
        plans, opened = _plans_of(path, target, operators)
        try:
            return TrainingStep.loaded(path, plans, training, opened, Options.read())
        except artifact_file.REFUSALS as failed:
            if isinstance(failed, AnabranchError):
                raise
            raise artifact_file.unloadable(path, failed) from failed


def _no_loss(model: nn.Module, *batch: Any) -> Any:
    raise OptionError(
        "the step was loaded from a file", "its loss is a part of it", "compile the step again"
    )


def _plans_of(
    path: str | os.PathLike[str], target: str, operators: Collection[str]
) -> tuple[list[tuple[Plan, dict[str, Any]]], Target]:
    """The plans of a file, and the target that they are loaded on."""
    plans = artifact_file.load_all(path, operators=operators)
    opened = resolve(target, plans[-1][0].spec.tf32)
    for plan, _ in plans:
        artifact_file.check_signature(path, plan)
        artifact_file.check_kind(path, plan, opened.spec)
    return plans, opened


def load(
    path: str | os.PathLike[str], target: str = "auto", *, operators: Collection[str] = ()
) -> Compiled:
    """Saved plans, ready to run: no code of the file's author runs, nothing is imported or tuned.

    A result of a class that this process has not imported is plain data with its fields.

    Args:
        path: A file that `Compiled.save` wrote.
        target: As in `compile`; the plan must have been made for such a kind of machine.
        operators: Operators of your own, and of libraries, that the plan may call:
            `["mylib::attend"]`.

    Returns:
        The compiled model, with the plan's own weights. It has no history: `explain` and `report`
        refuse, and no signature can be added.

    Raises:
        ArtifactError: The file is damaged, foreign or newer, or says more than a plan may say.
        TargetError: The plan is sound and cannot run here.
    """
    with capture_lock(), uncollected(), neutral():
        plans, opened = _plans_of(path, target, operators)
        check_no_step(path, plans[-1][1])
        compiled = Compiled(None, opened, Options.read(), None)
        try:
            compiled.adopt_all(plans, str(path))
        except artifact_file.REFUSALS as failed:
            if isinstance(failed, ArtifactError | TargetError):
                raise
            raise artifact_file.unloadable(path, failed) from failed
    return compiled
