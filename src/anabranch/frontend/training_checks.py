"""What must hold of a training step before it is captured; each failure says what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from anabranch.errors import CaptureError, OptionError
from anabranch.frontend.checks import check_devices, check_inputs
from anabranch.frontend.training import LR, Training

CLOSURES = ("LBFGS",)
"""Optimizers that call the loss as often as they like."""
SPARSE = ("SparseAdam",)
OF_NORMS = (torch.optim.Adafactor,)
"""Optimizers that ask for norms as numbers of Python's."""
WRAPPERS = {
    "DistributedDataParallel": (
        "gradients of several processes are put together while the backward pass runs, by hooks",
        "compile the step of the module inside (.module), and average what it changes yourself, or "
        "train with torch.compile",
    ),
    "FullyShardedDataParallel": (
        "weights are gathered and freed again while the step runs",
        "train it with torch.compile",
    ),
    "DataParallel": (
        "it is copied to several GPUs in each call",
        "compile the step of the module inside (.module)",
    ),
}
"""By the class of a wrapper why its step is no graph, and what to do instead."""
SHARDED = "DTensor"
SHARDED_AS = "FullyShardedDataParallel"


def parts_of(batch: Any) -> tuple[Any, ...]:
    """The parts of an example batch; OptionError for what is none. A lone tensor is one part."""
    if isinstance(batch, Tensor):
        return (batch,)
    if isinstance(batch, str | bytes | Mapping) or not isinstance(batch, Iterable):
        raise OptionError(
            f"the batch is a {type(batch).__name__}",
            "loss_fn is called as loss_fn(model, *batch)",
            "give a tuple of its parts, of one part too: (x, t), or ({'ids': ids},)",
        )
    return tuple(batch)


def check_seed(seed: Any) -> None:
    """OptionError for what is no whole number."""
    if seed is not None and not isinstance(seed, Integral):
        raise OptionError(
            f"the seed is {seed!r}", "random numbers are made of a whole number", "give seed=0"
        )


def check_training(training: Training, batch: tuple[Any, ...] | None) -> torch.device:
    """The device of the step; without a batch nothing is said of one. OptionError for what is no
    model, loss or optimizer; CaptureError for what no graph of a step can hold."""
    _check_kinds(training)
    for _, module in training.modules():
        for path, part in module.named_modules():
            _check_part(f"the module {path}" if path else "the model", part)
    _check_optimizer(training.optimizer)
    for name, parameter in _parameters(training):
        _check_parameter(name, parameter)
    if not training.trained():
        raise CaptureError(
            "the optimizer has no parameter that requires a gradient",
            "nothing would be trained",
            "unfreeze some with requires_grad_(True)",
        )
    _check_apart(training)
    mine = {id(tensor) for _, tensor in _of_modules(training)}
    if mine.isdisjoint(map(id, training.trained())):
        raise CaptureError(
            "the optimizer has no trainable parameter of the model or the loss",
            "gradients are those of what the loss depends on",
            "make it of this model's parameters: AdamW(model.parameters())",
        )
    if batch is not None:
        _check_arguments(training, batch)
        check_inputs(batch, {})
    return check_devices(iter(_parameters(training)), batch or (), {})


def _check_kinds(training: Training) -> None:
    if not isinstance(training.model, nn.Module):
        raise OptionError(
            f"the model is a {type(training.model).__name__}",
            "a step changes the weights of a torch.nn.Module",
            "give the module itself",
        )
    if not callable(training.loss_fn):
        raise OptionError(
            f"loss_fn is a {type(training.loss_fn).__name__}",
            "it is called as loss_fn(model, *batch), and returns the loss, or (loss, extras)",
            "write loss_fn = lambda model, x, t: cross_entropy(model(x), t)",
        )
    if not isinstance(training.optimizer, Optimizer):
        raise OptionError(
            f"the optimizer is a {type(training.optimizer).__name__}",
            "its step becomes a part of the graph",
            "give a torch.optim.Optimizer of the model's parameters",
        )
    if isinstance(training.model, torch.jit.ScriptModule):
        raise OptionError(
            "the model is a ScriptModule",
            "its tensors cannot be exchanged for those that a step is recorded with",
            "give the torch.nn.Module that it was made of",
        )
    calls: Any = training.accumulate
    if not isinstance(calls, Integral) or int(calls) < 1:
        raise OptionError(
            f"accumulate is {calls!r}",
            "it is the number of calls to an update",
            "give 1, or more",
        )
    limit: Any = training.clip_norm
    if limit is not None and not (isinstance(limit, Real) and float(limit) >= 0):
        raise OptionError(
            f"clip_norm is {limit!r}",
            "it is the largest norm that all gradients together may have",
            "give a positive number, 1.0 is usual, or leave it out",
        )
    scaler: Any = training.scaler
    if not isinstance(scaler, GradScaler | None):
        raise OptionError(
            f"the scaler is a {type(scaler).__name__}",
            "it scales the loss, and its scale is a state of the step",
            "give a torch.amp.GradScaler, or leave it out",
        )


def _check_arguments(training: Training, batch: tuple[Any, ...]) -> None:
    """That the loss takes the model and the batch, as far as its signature says."""
    loss_fn = training.loss_fn
    called = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        takes = inspect.signature(called)
    except (TypeError, ValueError):  # written in C, say
        return
    try:
        takes.bind(training.model, *batch)
    except TypeError as wrong:
        name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        raise OptionError(
            f"{name} cannot be called with the model and {len(batch)} parts of a batch: {wrong}",
            "loss_fn is called as loss_fn(model, *batch), and calls the model itself",
            "write loss_fn = lambda model, x, t: criterion(model(x), t), and give the batch (x, t)",
        ) from wrong


def _check_part(name: str, part: nn.Module) -> None:
    kinds = [kind.__name__ for kind in type(part).__mro__]
    for kind, (why, next) in WRAPPERS.items():
        if kind in kinds:
            raise CaptureError(f"{name} is a {kind}", why, next)
    if "FSDPModule" in kinds:
        raise CaptureError(f"{name} is sharded (fully_shard)", *WRAPPERS[SHARDED_AS])
    if "Fixed" in kinds and type(part).__module__.startswith("anabranch."):
        raise OptionError(
            f"{name} is compiled",
            "it is a plan, and has no gradients",
            "give the original model",
        )
    if part._backward_hooks or part._backward_pre_hooks:
        raise CaptureError(
            f"{name} has a backward hook",
            "it is Python code that runs amid the backward pass, which is one graph here",
            "remove it, and compute with gradients by keep_grad=True, after the step",
        )
    if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
        raise CaptureError(
            f"{name} has sparse gradients",
            "a graph computes dense tensors of fixed shapes",
            "make it with sparse=False",
        )
    if isinstance(part, _BatchNorm) and part.momentum is None and part.training:
        raise CaptureError(
            f"{name} averages its statistics over all batches (momentum=None)",
            "Python asks the device in each call how many batches there were, to weigh the next",
            "give it a momentum, 0.1 is usual, or put it into eval mode",
        )


def _check_optimizer(optimizer: Optimizer) -> None:
    name = type(optimizer).__name__
    if name in CLOSURES:
        raise CaptureError(
            f"the optimizer is {name}",
            "it calls the loss as often as the values ask for",
            "use one that takes one step for a gradient, as AdamW does",
        )
    if name in SPARSE:
        raise CaptureError(
            f"the optimizer is {name}",
            "its gradients are sparse, and a graph computes dense tensors of fixed shapes",
            "use AdamW, with sparse=False in the embeddings",
        )
    if isinstance(optimizer, OF_NORMS):
        raise CaptureError(
            f"the optimizer is torch's {name}",
            "it asks for norms of weights and of their updates as numbers, which a graph has not",
            "use AdamW, or take its step in a loop of your own, where torch.compile(model, "
            "backend='anabranch') computes the gradients",
        )
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    if any(hooks):
        raise CaptureError(
            f"{name} has a hook on its step",
            "it is Python code that runs around the update, which is a part of the graph here",
            "remove it, and call it before or after the step",
        )
    if any(LR not in group for group in optimizer.param_groups):
        raise CaptureError(
            f"{name} has no learning rate",
            "a step reads the learning rate of each group of parameters anew in each call",
            f"have its groups hold one under {LR!r}: super().__init__(params, {{'lr': 0.1}})",
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise CaptureError(
            f"{name} is differentiable",
            "a step in place has no gradients of its own",
            "make it with differentiable=False",
        )


def _parameters(training: Training) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of model and loss, and what else the optimizer has."""
    seen = set[int]()
    for name, tensor in _of_modules(training):
        seen.add(id(tensor))
        yield name, tensor
    for number, group in enumerate(training.optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            if id(parameter) not in seen:
                yield f"parameter {i} of group {number}", parameter


def _of_modules(training: Training) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of model and loss."""
    for _, module in training.modules():
        yield from module.named_parameters()
        yield from module.named_buffers()


def _check_apart(training: Training) -> None:
    """CaptureError where trained parameters, each without gaps, lie in a part of the same memory.
    Two that are the same memory are weights that are shared."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in _parameters(training):
        dense = tensor.layout is torch.strided and tensor.is_contiguous() and tensor.numel()
        if tensor.requires_grad and dense and tensor.device.type != "meta":
            begin = tensor.data_ptr()
            end = begin + tensor.numel() * tensor.element_size()
            storage = tensor.untyped_storage().data_ptr()
            spans.setdefault(storage, []).append((begin, end, name))
    for each in spans.values():
        each.sort()
        for (begin, end, name), (next_begin, next_end, other) in pairwise(each):
            if next_begin < end and (begin, end) != (next_begin, next_end):
                raise CaptureError(
                    f"{name} and {other} have a part of their memory in common",
                    "an update of one would change the other, and a plan updates each by itself",
                    "make one of them a copy (clone()), or have one parameter, and slice it in "
                    "forward",
                )


def _check_parameter(name: str, parameter: Tensor) -> None:
    if isinstance(parameter, UninitializedParameter | UninitializedBuffer):
        raise CaptureError(
            f"{name} has no shape yet",
            "a lazy module takes it from the first batch, and a plan has fixed shapes",
            "call the model once on a batch, and make the optimizer after that",
        )
    if type(parameter).__name__ == SHARDED or hasattr(parameter, "device_mesh"):
        raise CaptureError(f"{name} is sharded", *WRAPPERS[SHARDED_AS])
    hooks: Mapping[Any, Any] | None = parameter._backward_hooks
    after = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if hooks or after:
        raise CaptureError(
            f"{name} has a hook",
            "it is Python code that runs amid the backward pass, which is one graph here",
            "remove it, and compute with gradients by keep_grad=True, after the step",
        )
    if parameter.is_inference():
        raise CaptureError(
            f"{name} was made in inference mode",
            "such tensors have no gradients, and may not be written to",
            "make the model outside torch.inference_mode()",
        )
