"""Random numbers of a training step as functions of two states, seed and offset.

    bernoulli_(x, 0.9)        ->   x.copy_(anabranch.uniform(seed, offset, 0, shape) < 0.9)
    native_dropout(x, 0.1)    ->   kept = anabranch.uniform(seed, offset, 1, shape) >= 0.1
                                   x * kept / 0.9, kept

A generator that counts has no state but where it stands: equal seeds give equal numbers in any
order of launches, and whoever needs a number again may compute it again. Each draw of a step has a
number of its own, each call an offset: who calls adds 1 to it. Numbers are distributed as eager's,
and not the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from anabranch.errors import CaptureError
from anabranch.frontend.operators import ATTENTION
from anabranch.frontend.source import origin
from anabranch.ir import custom_ops, ops

Draw = Callable[[Sequence[int]], Tensor]
"""The next numbers in [0, 1), so many, in fp32."""
MOST_DRAWS = 2
"""Numbers of draws that a random operator takes: a normal one is made of two."""
MOST_WHOLE = 1 << 24
"""Whole numbers that one in fp32 tells apart."""
PLACED = frozenset({"device", "pin_memory", "layout", "generator"})


def seeded(step: fx.GraphModule) -> tuple[fx.GraphModule, int]:
    """The step with two more inputs at the end, the int64 scalars seed and offset, and every draw
    as a function of them; how many draws there are. Without any it is as it was. Changes the module
    that it is given; CaptureError for a random operator that is not known here."""
    random = [node for node in step.graph.nodes if _is_random(node)]
    if not random:
        return step, 0
    last = [node for node in step.graph.nodes if node.op == "placeholder"][-1:]
    with step.graph.inserting_after(last[0]) if last else step.graph.inserting_before(None):
        seed = step.graph.placeholder("seed")
    with step.graph.inserting_after(seed):
        offset = step.graph.placeholder("offset")
    for number, node in enumerate(random):
        packet = ops.packet_name(str(node.target)).removeprefix("aten.")
        if packet not in DRAWN or node.kwargs.get("generator") is not None:
            raise _unknown(node)
        node.args = (seed, offset, number * MOST_DRAWS, packet, *node.args)
        node.kwargs = {key: arg for key, arg in node.kwargs.items() if key not in PLACED}
        node.target = drawn
    step.recompile()
    return step, len(random)


def drawn(seed: Tensor, offset: Tensor, number: int, packet: str, *given: Any, **named: Any) -> Any:
    """What the random operator gives, by the draws from this number on."""
    taken = iter(range(number, number + MOST_DRAWS))
    uniform = ops.resolve(custom_ops.UNIFORM)

    def draw(shape: Sequence[int]) -> Tensor:
        found: Tensor = uniform(seed, offset, next(taken), list(shape))
        return found

    return DRAWN[packet](draw, *given, **named)


def _is_random(node: fx.Node) -> bool:
    """Whether it draws: of attention and recurrent layers those that drop something out."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    spared = [given.get(name, 0.0) for name in ("dropout_p", "dropout") if name in names]
    return not spared or any(spared)


def _unknown(node: fx.Node) -> CaptureError:
    attends = str(node.target) in ATTENTION
    return CaptureError(
        f"the step draws random numbers by {node.target}",
        "equal seeds must give equal numbers, and no form of it that counts is known"
        if node.kwargs.get("generator") is None
        else "a generator of its own is no state of the step",
        "trace it under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        if attends
        else "draw with torch.rand_like, torch.randn_like or dropout, without a generator",
        origin(node),
    )


def _of_dtype(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of [0, 1) as a dtype has them, none of them rounded up to 1."""
    if not dtype.is_floating_point or dtype.itemsize >= 4:
        return numbers.to(dtype)
    steps = 2.0 / torch.finfo(dtype).eps
    return (torch.floor(numbers * steps) / steps).to(dtype)


def _rand(draw: Draw, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return _of_dtype(draw(shape), dtype or torch.get_default_dtype())


def _rand_like(draw: Draw, x: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _of_dtype(draw(x.shape), dtype or x.dtype)


def _normal(draw: Draw, shape: Sequence[int]) -> Tensor:
    """By Box and Muller: the logarithm is of numbers in (0, 1]."""
    far = torch.sqrt(torch.log(1.0 - draw(shape)) * -2.0)
    return far * torch.cos(draw(shape) * (2 * math.pi))


def _randn(draw: Draw, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return _normal(draw, shape).to(dtype or torch.get_default_dtype())


def _randn_like(draw: Draw, x: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _normal(draw, x.shape).to(dtype or x.dtype)


def _normal_(draw: Draw, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return x.copy_(_normal(draw, x.shape) * std + mean)


def _normal_functional(draw: Draw, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return (_normal(draw, x.shape) * std + mean).to(x.dtype)


def _bernoulli(draw: Draw, x: Tensor, p: float | Tensor | None = None) -> Tensor:
    """Of numbers that say how likely each is, or of one number for all."""
    return (draw(x.shape) < (x if p is None else p)).to(x.dtype)


def _bernoulli_(draw: Draw, x: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return x.copy_(draw(x.shape) < p)


def _uniform(draw: Draw, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return _of_dtype(draw(x.shape), x.dtype) * (high - low) + low


def _uniform_(draw: Draw, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return x.copy_(_uniform(draw, x, low, high))


def _exponential(draw: Draw, x: Tensor, rate: float = 1.0) -> Tensor:
    return (torch.log1p(-draw(x.shape)) / -rate).to(x.dtype)


def _exponential_(draw: Draw, x: Tensor, rate: float = 1.0) -> Tensor:
    return x.copy_(_exponential(draw, x, rate))


def _randint(draw: Draw, *given: Any, dtype: torch.dtype | None = None) -> Tensor:
    *bounds, shape = given
    return _whole(draw, bounds, shape, dtype or torch.int64)


def _randint_like(draw: Draw, x: Tensor, *bounds: int, dtype: Any = None, **_: Any) -> Tensor:
    return _whole(draw, bounds, x.shape, dtype or x.dtype)


def _whole(draw: Draw, bounds: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    low, high = (0, *bounds)[-2:]
    if high - low > MOST_WHOLE:
        raise CaptureError(
            f"the step draws whole numbers from {low} to {high}",
            f"more than {MOST_WHOLE} are told apart by no number in fp32",
            "draw them outside the step, and give them to it",
        )
    places = torch.floor(draw(shape) * float(high - low)).clamp_max(high - low - 1)
    return places.to(dtype) + low


def _native_dropout(
    draw: Draw, x: Tensor, p: float, train: bool | None = True
) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = draw(x.shape) >= p
    return x * kept * (1.0 / (1.0 - p)), kept


DRAWN: dict[str, Callable[..., Any]] = {
    **{"rand": _rand, "rand_like": _rand_like, "randn": _randn, "randn_like": _randn_like},
    **{"bernoulli": _bernoulli, "bernoulli_": _bernoulli_, "native_dropout": _native_dropout},
    **{"uniform": _uniform, "uniform_": _uniform_, "normal_": _normal_},
    **{"normal_functional": _normal_functional, "randint": _randint},
    **{"randint_like": _randint_like},
    **{"exponential": _exponential, "exponential_": _exponential_},
}
"""What each random operator gives, from numbers in [0, 1)."""
