"""Random numbers of a training step, made of a counter: the same for the same seed and call.

    random = i64[2]    the seed, and the number of the call
    uniform(random, 0, [4, 8])    the first draw of a call
    uniform(random, 1, [16])      the second

Operators that draw are replaced by what they draw of uniform numbers, whose distribution they have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.errors import CaptureError
from anabranch.frontend.written_by_strides import WrittenByStrides
from anabranch.ir import custom_ops

_T = TypeVar("_T")
_ATEN: Any = torch.ops.aten
MOST_WHOLE = 1 << 24
"""Whole numbers that one in fp32 tells apart."""


class AttentionDropoutError(Exception):
    """A fused attention draws by itself: the step is run without such."""


def without_fused_dropout(step: Callable[[], _T]) -> _T:
    """What the step returns: run again, with attention as products, where a fused one would draw.
    Forward finds that before anything is written."""
    try:
        return step()
    except AttentionDropoutError:
        with sdpa_kernel([SDPBackend.MATH]):
            return step()


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it operators that draw random numbers make theirs of this counter."""

    def __init__(self, random: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random, self.count, self.phase = random, 0, "forward"
        self._again = 0
        self._writes: WrittenByStrides | None = None

    def enters(self, phase: str) -> None:
        """What follows is of this phase of the step: `backward`, `update`."""
        self.phase = phase

    @contextmanager
    def told_to(self, writes: WrittenByStrides) -> Iterator[None]:
        """Within it these hear of each operator."""
        self._writes = writes
        try:
            yield
        finally:
            self._writes = None

    @contextmanager
    def again_from(self, count: int) -> Iterator[None]:
        """Within it the numbers from the one of this count on are drawn again, in backward, too."""
        end, self.count = self.count, count
        self._again += 1
        try:
            yield
        finally:
            self.count = end
            self._again -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._writes is not None:
            self._writes.wrote(func, args)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func in FUSED and not _drops(func, args, kwargs):
            return func(*args, **kwargs)
        if torch._C._current_autograd_node() is not None and not self._again:
            raise CaptureError(
                f"the backward pass draws random numbers ({func})",
                "a part that is run again for its gradients (torch.utils.checkpoint) would draw "
                "others than it drew before",
                "leave out dropout in that part, preserve_rng_state=False, or the checkpoint: what "
                "is kept is chosen anyway",
            )
        if func in FUSED:
            raise AttentionDropoutError
        _check_generator(func, (*args, *kwargs.values()))
        replacement = REPLACED.get(func)
        if replacement is None:
            raise CaptureError(
                f"the step draws random numbers by {func}",
                "those of a plan are made of a counter, and it is not known how to make these",
                "draw them outside, and give them as an input",
            )
        return replacement(self, *args, **kwargs)

    def uniform(self, shape: Any) -> Tensor:
        """The next numbers from 0 to 1, 1 excluded, in fp32."""
        self.count += 1
        drawn: Tensor = custom_ops.OPS.uniform(self.random, self.count - 1, list(shape))
        return drawn

    def normal(self, shape: Any) -> Tensor:
        """The next numbers of mean 0 and deviation 1 (Box and Muller)."""
        radius = (-2 * torch.log1p(-self.uniform(shape))).sqrt()
        return radius * torch.cos(2 * math.pi * self.uniform(shape))


def _check_generator(func: Any, values: Sequence[Any]) -> None:
    """CaptureError where one of the values is a generator."""
    if any(isinstance(value, torch.Generator) for value in values):
        raise CaptureError(
            f"the step draws random numbers by a generator that it names ({func})",
            "those of a plan are made of a counter: they would be others than this generator's, "
            "and would leave it as it is",
            "leave generator= out, or draw them outside, and give them as an input",
        )


def _native_dropout(draws: Draws, x: Tensor, p: float, train: bool | None) -> Any:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = draws.uniform(x.shape) < 1 - p  # as bernoulli_(1 - p) keeps, of which eager makes it
    return x * mask * (1 / (1 - p)), mask


def _rrelu(
    draws: Draws,
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    """A leaky ReLU, of which each number has a slope of its own while it is trained."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)
    slopes = _of_dtype(draws.uniform(x.shape), x.dtype) * (upper - lower) + lower
    noise.copy_(torch.where(x <= 0, slopes, 1.0))
    return x * noise


def _rrelu_(draws: Draws, x: Tensor, noise: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.copy_(_rrelu(draws, x, noise, *args, **kwargs))


def _bernoulli(draws: Draws, x: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    return (draws.uniform(x.shape) < (x if p is None else p)).to(x.dtype)


def _bernoulli_(draws: Draws, x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return x.copy_(draws.uniform(x.shape) < p)


def _uniform_(
    draws: Draws, x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> Tensor:
    return x.copy_(_of_dtype(draws.uniform(x.shape), x.dtype) * (high - low) + low)


def _exponential_(draws: Draws, x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    return x.copy_(torch.log1p(-draws.uniform(x.shape)) / -rate)


def _randint(draws: Draws, *args: Any, dtype: Any = None, **_: Any) -> Tensor:
    *bounds, size = args
    return _whole(draws, bounds, size, dtype or torch.int64)


def _randint_like(draws: Draws, x: Tensor, *bounds: int, dtype: Any = None, **_: Any) -> Tensor:
    return _whole(draws, bounds, x.shape, dtype or x.dtype)


def _whole(draws: Draws, bounds: Sequence[int], size: Any, dtype: torch.dtype) -> Tensor:
    low, high = (0, *bounds)[-2:]
    if high - low > MOST_WHOLE:
        raise CaptureError(
            f"the step draws whole numbers from {low} to {high}",
            f"those of a plan are made of fp32, which tells {MOST_WHOLE} apart",
            "draw them outside, and give them as an input",
        )
    places = torch.floor(draws.uniform(size) * float(high - low)).clamp_max(high - low - 1)
    return places.to(dtype) + low


def _random_(draws: Draws, x: Tensor, *bounds: int | None, generator: Any = None) -> Tensor:
    """Whole numbers from a bound on, 0 if one alone is named, up to another, which is excluded."""
    low, high = (0, *(bounds or (None,)))[-2:]
    high = _most(x.dtype) + 1 if high is None else high
    return x.copy_(_whole(draws, (low or 0, high), x.shape, x.dtype))


def _most(dtype: torch.dtype) -> int:
    """The largest number that random_() draws where none is named."""
    if dtype == torch.bool:
        return 1
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return torch.iinfo(dtype).max


def _randperm(draws: Draws, n: int, *, dtype: Any = None, **_: Any) -> Tensor:
    """The order of whole numbers with 48 bits, of which hardly two are the same."""
    high, low = (torch.floor(draws.uniform([n]) * MOST_WHOLE).to(torch.int64) for _ in range(2))
    return torch.argsort(high * MOST_WHOLE + low).to(dtype or torch.int64)


def _of_dtype(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers from 0 to 1 as a dtype has them, none of them rounded up to 1."""
    if not dtype.is_floating_point or dtype.itemsize >= numbers.dtype.itemsize:
        return numbers.to(dtype)
    steps = 2.0 / torch.finfo(dtype).eps
    return (torch.floor(numbers * steps) / steps).to(dtype)


def _normal_(
    draws: Draws, x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Tensor:
    return x.copy_(draws.normal(x.shape) * std + mean)


def _like(kind: str) -> Callable[..., Tensor]:
    def drawn(draws: Draws, x: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
        draw: Tensor = getattr(draws, kind)(x.shape)
        return _of_dtype(draw, dtype or x.dtype) if kind == "uniform" else draw.to(dtype or x.dtype)

    return drawn


def _of_shape(kind: str) -> Callable[..., Tensor]:
    def drawn(draws: Draws, size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        draw: Tensor = getattr(draws, kind)(size)
        into = dtype or torch.get_default_dtype()
        return _of_dtype(draw, into) if kind == "uniform" else draw.to(into)

    return drawn


REPLACED: dict[Any, Callable[..., Any]] = {
    _ATEN.native_dropout.default: _native_dropout,
    _ATEN.rrelu_with_noise.default: _rrelu,
    _ATEN.rrelu_with_noise_.default: _rrelu_,
    _ATEN.bernoulli.default: _bernoulli,
    _ATEN.bernoulli.p: _bernoulli,
    _ATEN.bernoulli_.float: _bernoulli_,
    _ATEN.bernoulli_.Tensor: _bernoulli_,
    _ATEN.uniform_.default: _uniform_,
    _ATEN.normal_.default: _normal_,
    _ATEN.exponential_.default: _exponential_,
    **{getattr(_ATEN.random_, kind): _random_ for kind in ("default", "to", "from")},
    _ATEN.randperm.default: _randperm,
    **{getattr(_ATEN.randint, kind): _randint for kind in ("default", "low")},
    **{getattr(_ATEN.randint_like, kind): _randint_like for kind in ("default", "low_dtype")},
    _ATEN.rand_like.default: _like("uniform"),
    _ATEN.randn_like.default: _like("normal"),
    _ATEN.rand.default: _of_shape("uniform"),
    _ATEN.randn.default: _of_shape("normal"),
}
FUSED = frozenset(
    getattr(_ATEN, f"_scaled_dot_product_{kind}{of}").default
    for kind in (
        *("flash_attention", "flash_attention_for_cpu", "efficient_attention"),
        *("cudnn_attention", "fused_attention_overrideable"),
    )
    for of in ("", "_backward")
)
"""Attention, which draws by itself where it is told a dropout."""


def _drops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    place = names.index("dropout_p")
    return bool(args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))
