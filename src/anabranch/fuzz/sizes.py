"""Drawn models with a dynamic axis: calls of five sizes, each compared with the model itself.

The seed says which axis varies, of all inputs that have one of its size, and whether the model has
a state, a step that no graph holds, or both (`states_and_cuts`). A plan is made for the drawn size,
and for a larger one if the model takes that; the other calls are padded where that is proved
harmless, and run as the model is where it is not. A model that is cut gets a plan for each size
before it is called. States are compared after each call.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import anabranch
from anabranch.errors import CaptureError
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.fuzz.script_prelude import Inputs, cast, compared, device_of, judges, legal
from anabranch.fuzz.states_and_cuts import with_states_and_cuts
from anabranch.targets import resolve

CALLS = 5
MORE = 4
"""Rows that the larger plan has more."""


def size_differences(
    build: Callable[[], nn.Module],
    inputs: Inputs,
    dtype: torch.dtype,
    target: str,
    seed: int,
    keep: Callable[[Any], None] = lambda compiled: None,
    **options: Any,
) -> list[str]:
    """The faults of calls of the compiled model, a sentence for each thing. `keep` is given what
    was compiled. CaptureError for a model without an axis that varies."""
    dice = random.Random(f"sizes {seed}")
    opened = resolve(target, bool(options.get("tf32")))
    device = device_of(opened)
    shapes = drawn_shapes(cast(inputs(0), device, dtype), dice)
    build, cut = with_states_and_cuts(build, random.Random(f"states and cuts {seed}"))
    example = cast(inputs(0), device, dtype)
    model, ours = (build().eval().to(device, dtype) for _ in range(2))
    wide, rounding = (build().eval().to(dtype).to(device, torch.float64) for _ in range(2))
    (n,) = shapes.sizes_of(example) or (1,)
    if cut:  # one plan a shape, as they come
        compiled = anabranch.compile(ours, example, target=target, **options)
    else:
        sizes = _taken(build().eval().to(device, dtype), shapes, example, n)
        how: dict[str, Any] = {"dynamic_shapes": shapes, "sizes": sizes, "unseen": "eager"}
        compiled = anabranch.compile(ours, example, target=target, **how, **options)
    keep(compiled)
    faults: list[str] = []
    if opened.spec.simulated:
        return faults
    for number, size in enumerate([n, *dice.choices(range(1, n + 2 * MORE), k=CALLS - 1)]):
        drawn = shapes.resized(inputs(number), {}, (size,))[0]
        if device.type != "cpu" and not legal(build, drawn):
            continue
        args = cast(drawn, device, dtype)
        exact = cast([tensor.clone() for tensor in args], device, torch.float64)
        before = [copy.deepcopy(each.state_dict()) for each in (model, wide, rounding)]
        try:
            right = judges(model, wide, [x.clone() for x in args], exact, opened, rounding)
        except Exception:  # a size that the model does not take
            for each, state in zip((model, wide, rounding), before, strict=True):
                each.load_state_dict(state)
            continue
        if cut:
            compiled.add(args)
        outs = compiled(*args)
        tf32 = opened.spec.tf32
        leaves = [pytree.tree_leaves(each) for each in (outs, *right)]
        wrong = compared(leaves[0], leaves[1], leaves[2], tf32, unrounded=leaves[3])
        faults += [f"with {size} rows, {why}" for why in wrong]
        states = [list(each.buffers()) for each in (ours, model, wide, rounding)]
        wrong = compared(states[0], states[1], states[2], tf32, unrounded=states[3])
        faults += [f"after a call with {size} rows, of the states {why}" for why in wrong]
    return list(dict.fromkeys(faults))


def _taken(model: nn.Module, shapes: DynamicShapes, example: Sequence[Tensor], n: int) -> list[int]:
    """The drawn size, and a larger one if the model takes that."""
    larger = shapes.resized(tuple(example), {}, (n + MORE,))[0]
    try:
        with torch.no_grad():
            model(*larger)
    except Exception:  # whatever the drawn model raises for another size
        return [n]
    return [n, n + MORE]


def drawn_shapes(example: Sequence[Tensor], dice: random.Random) -> DynamicShapes:
    """One axis of the inputs that varies, and all others of its number and size with it."""
    places = [(axis, x.shape[axis]) for x in example for axis in range(x.dim()) if x.shape[axis]]
    if not places:
        raise CaptureError(
            "no input has an axis", "none can vary", "draw another model, with another seed"
        )
    axis, size = dice.choice(places)
    extents = tuple(
        (Extent(axis, 0),) if x.dim() > axis and x.shape[axis] == size else () for x in example
    )
    return DynamicShapes((Dimension("rows"),), extents)
