"""The first part of a script with a drawn model: tensors by seed, and the comparison itself.

The text of this file opens every script that reports a failure, so the script runs alone. The
model is called as it is, in fp64, and compiled, with two inputs of the same kind, and with those
of the first call again:

    |compiled - fp64|  <=  2 |as it is - fp64| + what the dtype allows          (`ir.tolerances`)

A kernel may keep in fp32 what the model computes in a narrower dtype, between casts of its own:
there fp64 in which only those casts round is as true.

Results of earlier calls are kept, and must stay as they were. Where the model is compiled exactly,
a further call has inputs with NaN and infinities: there each element is of the model's class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import anabranch
from anabranch.errors import CaptureError
from anabranch.ir import tolerances
from anabranch.ir.eval import eval_tasks
from anabranch.ir.protocols import Target
from anabranch.ir.task import value_types
from anabranch.targets import resolve

__all__ = [
    "F",
    "cast",
    "differences",
    "filled",
    "finite",
    "narrow",
    "nn",
    "normal",
    "signed",
    "sys",
    "whole",
]

Inputs = Callable[[int], tuple[Tensor, ...]]


def normal(shape: Sequence[int], seed: int) -> Tensor:
    """Normally distributed numbers, the same for the same seed."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def whole(shape: Sequence[int], limit: int, seed: int) -> Tensor:
    """Integers from 0 up to the limit."""
    return torch.randint(limit, tuple(shape), generator=torch.Generator().manual_seed(seed))


def finite(shape: Sequence[int], seed: int) -> Tensor:
    """Numbers of which half are normal, the others zeros of both signs, denormals, whole numbers
    and halves of them."""
    dice = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(tuple(shape), generator=dice)
    table = torch.tensor([0.0, -0.0, 1e-40, -1e-39, 1.0, -2.0, 3.0, 6.0, -9.0, 0.5, -1.5, 2.5])
    other = table[torch.randint(len(table), tuple(shape), generator=dice)]
    return torch.where(torch.rand(tuple(shape), generator=dice) < 0.5, gaussian, other)


def signed(shape: Sequence[int], seed: int) -> Tensor:
    """Integers of both signs, every fourth a large one."""
    dice = torch.Generator().manual_seed(seed)
    small = torch.randint(-9, 10, tuple(shape), generator=dice)
    large = torch.randint(-(1 << 30), 1 << 30, tuple(shape), generator=dice)
    return torch.where(torch.rand(tuple(shape), generator=dice) < 0.25, large, small)


def narrow(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Integers of this type, or truth values: a third of them small, a third of the full range, the
    others its ends and what lies beside."""
    dice = torch.Generator().manual_seed(seed)
    size, bits = tuple(shape), 8 * dtype.itemsize
    small = torch.randint(-3, 8, size, generator=dice)
    large = torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), size, generator=dice)
    table = torch.tensor([-(1 << (bits - 1)), (1 << (bits - 1)) - 1, -1, 0, 1, 1 << (bits - 2)])
    ends = table[torch.randint(len(table), size, generator=dice)]
    which = torch.randint(3, size, generator=dice)
    numbers = torch.where(which == 0, small, torch.where(which == 1, large, ends))
    return numbers > 0 if dtype == torch.bool else numbers.to(dtype)


def special(tensor: Tensor, seed: int) -> Tensor:
    """The tensor with one element of ten, if it is of floats, not finite; it lies as it did."""
    if not tensor.is_floating_point():
        return tensor.clone()
    dice = torch.Generator().manual_seed(seed)
    table = torch.tensor([float("inf"), float("-inf"), float("nan")])
    other = table[torch.randint(3, tensor.shape, generator=dice)].to(tensor)
    chosen = (torch.rand(tensor.shape, generator=dice) < 0.1).to(tensor.device)
    return tensor.clone().copy_(torch.where(chosen, other, tensor))


def filled(module: nn.Module, seed: int) -> nn.Module:
    """The module with weights by seed, of a size that keeps results of a layer near one; variances
    are positive."""
    dice = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0, generator=dice)
        else:
            fan = value[0].numel() if value.dim() > 1 else 1
            value.normal_(generator=dice).div_(fan**0.5)
    return module


def differences(
    build: Callable[[], nn.Module],
    inputs: Inputs,
    dtype: torch.dtype,
    target: str,
    keep: Callable[[Any], None] = lambda compiled: None,
    **options: Any,
) -> list[str]:
    """What is wrong with the compiled model, a sentence for each thing. Simulated targets run
    nothing: there the plan's tasks are evaluated one by one in fp64. `keep` is given what was
    compiled."""
    opened = resolve(target, bool(options.get("tf32")))
    device = device_of(opened)
    model = build().eval().to(device, dtype)
    wide = build().eval().to(dtype).to(device, torch.float64)
    example = cast(inputs(0), device, dtype)
    compiled = anabranch.compile(model, example, target=target, fullgraph=True, **options)
    keep(compiled)
    faults: list[str] = []
    held: list[tuple[Tensor, Tensor]] = []
    ran, exact_ones = compiled.executable() is not None, bool(options.get("exact"))
    judged, why = 0, Exception("an index is none that the model may read")
    for shift, wild in ((0, False), (1000, False), (0, False), *([(0, True)] * exact_ones)):
        drawn = inputs(shift)
        if wild:
            tame = _windows(compiled)
            drawn = tuple(
                tensor if i in tame else special(tensor, i) for i, tensor in enumerate(drawn)
            )
        if device.type != "cpu" and not legal(build, drawn):
            continue
        args = cast(drawn, device, dtype)
        kept = [tensor.clone() for tensor in args]
        eager = [tensor.clone() for tensor in args]
        exact = cast([tensor.clone() for tensor in args], device, torch.float64)
        try:
            own, truth, unrounded = judges(model, wide, eager, exact, opened)
        except (RuntimeError, IndexError, ValueError) as refused:
            why = refused
            continue  # inputs that the model does not take
        judged += 1
        if not ran:
            outs = _evaluated(compiled, args)
        else:
            outs = compiled(*args)
            if pytree.tree_structure(outs) != pytree.tree_structure(own):
                faults.append("the results are arranged otherwise")
            held += [(leaf, leaf.clone()) for leaf in pytree.tree_leaves(outs)]
        for i, (ours, plain, true, old) in enumerate(zip(args, eager, exact, kept, strict=True)):
            if torch.equal(plain.nan_to_num(), old.nan_to_num()):
                same = torch.equal(ours.nan_to_num(), old.nan_to_num())
                faults += [f"input {i} was written to"] * (not same)
            elif ran:  # the model writes to it
                wrong = compared([ours], [plain], [true], opened.spec.tf32, wild)
                faults += [f"input {i}, which is written to: {why}" for why in wrong]
        leaves = [pytree.tree_leaves(each) for each in (outs, own, truth, unrounded)]
        faults += compared(leaves[0], leaves[1], leaves[2], opened.spec.tf32, wild, leaves[3])
    if not judged:
        raise CaptureError(
            "eager itself cannot take these inputs, or not in fp64",
            (str(why).strip().splitlines() or [type(why).__name__])[0],
            "draw another model, with another seed",
        )
    changed = any(not torch.equal(now.nan_to_num(), was.nan_to_num()) for now, was in held)
    faults += ["a later call changed the results of an earlier one"] * changed
    return list(dict.fromkeys(faults))


def device_of(target: Target) -> torch.device:
    """Where tensors of a trial lie: the target's device, the CPU for one that only plans."""
    return torch.device("cpu") if target.device.type == "meta" else target.device


def legal(build: Callable[[], nn.Module], args: Sequence[Tensor]) -> bool:
    """Whether all indices are ones that the model may read, which a CPU says. A GPU ends the
    process's use of it."""
    try:
        with torch.no_grad():
            build().eval()(*(tensor.clone() for tensor in args))
    except NotImplementedError:
        return True  # an operator that a CPU lacks
    except (IndexError, RuntimeError):
        return False  # some operators say it as the one, some as the other
    return True


def _windows(compiled: Any) -> set[int]:
    """The inputs, by number, that weights of a convolution are made of: what infinity times padding
    is differs from one of torch's own algorithms to the other."""
    compilation = compiled.entries[-1].compilation
    graph = compilation.captured.graph
    read: set[str] = set()
    for node in reversed(graph.nodes):
        if read.intersection(node.results):
            read.update(node.uses)
        if node.op.startswith(("aten.convolution.", "aten.cudnn_convolution")):
            read.add(getattr(node.args[1], "name", ""))
    return {i for i, value in enumerate(graph.inputs) if value.name in read}


def judges(
    model: nn.Module,
    wide: nn.Module,
    args: Sequence[Tensor],
    exact: Sequence[Tensor],
    target: Target,
    rounding: nn.Module | None = None,
) -> tuple[Any, Any, Any]:
    """What a model's results are compared with: its own, a library's rounding among it; those of
    fp64; and those of fp64 in which casts alone round, of `rounding` where `wide` has states that
    a second call would find changed. Both inputs may be written to."""
    spare = [tensor.clone() for tensor in exact]
    with torch.no_grad(), target.own_precision():
        own = model(*args)
    with torch.no_grad(), target.full_precision():
        truth = wide(*exact)
        with UnroundedBetweenCasts():  # type: ignore[no-untyped-call]
            return own, truth, (rounding or wide)(*spare)


class UnroundedBetweenCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A cast of fp64 to a dtype of two bytes rounds, and its result is fp64 all the same, so that
    nothing computed of it rounds."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._to_copy.default or args[0].dtype != torch.float64:
            return out
        return out.double() if out.dtype in (torch.float16, torch.bfloat16) else out


def compared(
    outs: list[Any],
    own: list[Any],
    truth: list[Any],
    tf32: bool,
    wild: bool = False,
    unrounded: Sequence[Any] = (),
) -> list[str]:
    """Outputs against the model's own and the truth, or `unrounded`, which is as true. `wild`: what
    is not finite, alone."""
    if len(outs) != len(own):
        return [f"{len(outs)} outputs instead of {len(own)}"]
    faults = []
    for i, (out, plain, true) in enumerate(zip(outs, own, truth, strict=True)):
        if out.shape != plain.shape:
            faults.append(f"output {i} has shape {list(out.shape)} instead of {list(plain.shape)}")
            continue
        if out.dtype != plain.dtype:
            faults.append(f"output {i} is {out.dtype} instead of {plain.dtype}")
        if wild:
            said = (
                tolerances.mistaken(out, plain, true, None, tf32) if out.is_floating_point() else ""
            )
            faults += [f"output {i}: {said}"] * ("off by" not in said and said != "")
            continue
        ((error, allowed),) = tolerances.compare([out], [plain], [true], tf32)
        # Where the model jumps, what is the model's own is right whatever the truth is.
        same = [plain, *unrounded[i : i + 1]]
        floor = tolerances.tolerance(out.dtype, 0.0, tf32)
        near = any(tolerances.relative_error(out, right) <= floor for right in same)
        if not error <= allowed and not near:
            faults.append(f"output {i} is off by {error:.2e} where {allowed:.2e} is allowed")
    return faults


def _evaluated(compiled: Any, args: Sequence[Tensor]) -> list[Tensor]:
    """The outputs by the plan's tasks, as the kernels' bodies say, in the model's dtype."""
    plan = compiled.entries[-1].plan
    types = value_types(plan.tasks)
    outs = eval_tasks(plan.tasks, args, torch.device("cpu"), torch.float64, kernels=True)
    values = dict(zip((value.name for value in plan.tasks.inputs), args, strict=True))
    for ref, out in zip(plan.tasks.outputs, outs, strict=True):
        values[ref.name] = out.to(types[ref.name].dtype)
    return [values[leaf.ref.name] for leaf in plan.signature.outputs]


def cast(tensors: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The tensors there; of floating-point ones, in this dtype."""
    return tuple(t.to(device, dtype if t.is_floating_point() else t.dtype) for t in tensors)
