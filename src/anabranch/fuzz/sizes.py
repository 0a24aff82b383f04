"""Drawn models with a dynamic axis: calls of five sizes, each compared with the model itself.

The seed says which axis varies, of all inputs that have one of its size. A plan is made for the
drawn size, and for a larger one if the model takes that; the other calls are padded where that is
proved harmless, and run as the model is where it is not.
"""

from __future__ import annotations

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
    model = build().eval().to(device, dtype)
    wide = build().eval().to(dtype).to(device, torch.float64)
    example = cast(inputs(0), device, dtype)
    shapes = drawn_shapes(example, dice)
    (n,) = shapes.sizes_of(example) or (1,)
    larger = shapes.resized(example, {}, (n + MORE,))[0]
    try:
        with torch.no_grad():
            model(*larger)
        sizes = [n, n + MORE]
    except Exception:  # whatever the drawn model raises for another size
        sizes = [n]
    how: dict[str, Any] = {"dynamic_shapes": shapes, "sizes": sizes, "unseen": "eager", **options}
    compiled = anabranch.compile(model, example, target=target, **how)
    keep(compiled)
    faults: list[str] = []
    if compiled.executable() is None:
        return faults
    for number, size in enumerate([n, *dice.choices(range(1, n + 2 * MORE), k=CALLS - 1)]):
        drawn = shapes.resized(inputs(number), {}, (size,))[0]
        if device.type != "cpu" and not legal(build, drawn):
            continue
        args = cast(drawn, device, dtype)
        exact = cast([tensor.clone() for tensor in args], device, torch.float64)
        try:
            right = judges(model, wide, [x.clone() for x in args], exact, opened)
        except Exception:  # a size that the model does not take
            continue
        outs = compiled(*args)
        ours, own, truth, unrounded = (pytree.tree_leaves(each) for each in (outs, *right))
        wrong = compared(ours, own, truth, opened.spec.tf32, unrounded=unrounded)
        faults += [f"with {size} rows, {why}" for why in wrong]
    return list(dict.fromkeys(faults))


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
