"""How far a result may lie from the truth: errors against a higher-precision reference.

    as a whole    ||out - ref|| / ||ref|| <= 2 * that of the plain model + a floor of the dtype
    each element  |out - ref| <= 2 * |plain - ref| + its slack: what rounding explains there
                  integers are those of the plain model, or of the reference
    its class     not a number, infinite with its sign, or finite: as the plain model or the
                  reference has it

Where nobody knows the slack of each element (whole models), none may be off by more than
PLAIN_ERRORS times as much as the plain model is anywhere, and a floor.

>>> relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
0.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.complex128: 1e-12,
    torch.complex64: 1e-5,
}
"""About one unit in the last place of the dtype times a small factor for reordered sums."""
TF32_FLOOR = 1e-3
FACTOR = 2.0

DRAWS = 3
"""So often a kernel must be wrong on numbers drawn anew, for where a few results outweigh all
others a right one may be further off than the plain graph is."""

FLUSHED = torch.finfo(torch.float32).tiny
"""Numbers below it are zero to the functions of CUDA's library (sin, exp, ...) in kernels, which
Triton compiles so: no error, except where fp64 was asked for."""

Errors = tuple[tuple[float, float], ...]
"""For each output its error and the error allowed."""


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def comparable(tensor: Tensor) -> Tensor:
    """The tensor in a dtype that torch compares: fp8, of which it asks no class or sign, as fp32,
    which has each of its numbers."""
    return tensor.float() if tensor.dtype in EIGHT_BITS else tensor


def relative_error(out: Tensor, reference: Tensor) -> float:
    """||out - ref|| / ||ref|| in float64; 0 for equal integers, inf for unequal ones; nan and
    infinities count as infinitely wrong unless the reference has the same in the same place, and
    what is below the smallest normal fp32 number counts as zero."""
    if out.shape != reference.shape:
        return float("inf")
    if not (out.dtype.is_floating_point or out.dtype.is_complex):
        same = torch.equal(out, reference.to(device=out.device, dtype=out.dtype))
        return 0.0 if same else float("inf")
    wide = torch.complex128 if out.dtype.is_complex else torch.float64
    a, b = out.to(wide), reference.to(device=out.device, dtype=wide)
    if out.dtype.is_complex:
        a, b = (torch.view_as_real(tensor.resolve_conj()) for tensor in (a, b))
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return float("inf")
    if not finite.all() and not torch.equal(a[~finite].nan_to_num(0.0), b[~finite].nan_to_num(0.0)):
        return float("inf")
    off = torch.where(finite, a - b, 0)
    if out.dtype != torch.float64:
        off = torch.where(off.abs() <= FLUSHED, 0, off)
    scale = torch.where(finite, b, 0).norm().item()
    return float(off.norm().item() / (scale or 1.0))


def unit(reference: Tensor) -> float:
    """What a relative error is a part of: the norm of the reference's finite numbers, or 1 where
    that is 0."""
    numbers = reference.to(torch.complex128 if reference.dtype.is_complex else torch.float64)
    if numbers.dtype.is_complex:
        numbers = torch.view_as_real(numbers.resolve_conj())
    return float(torch.where(numbers.isfinite(), numbers, 0).norm().item() or 1.0)


PLAIN_ERRORS = 16.0
"""An element may be off by so many times the largest error of the plain model. Of millions of
elements the worst of one order of sums is not more than a few times the worst of another."""
FLOORS = 64.0
"""And by so many times the floor of its dtype, of the largest magnitude."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What lets most right results pass with one look at the device: per output the plain model's
    result, the truth, the distance allowed for each element, and the norms of the whole.

    Who does not pass is not wrong yet: `mistaken` and `compare` know more, and say what it is.
    """

    own: tuple[Tensor, ...]
    truth: tuple[Tensor, ...]
    allowed: tuple[Tensor, ...]
    whole: tuple[float, ...]
    """How far each output as a whole may be off, as a norm."""
    signs: bool

    def passes(self, outs: Sequence[Tensor]) -> bool:
        """Whether all elements of all results are certainly right."""
        if not outs:
            return True
        looks = [self._look(i, out) for i, out in enumerate(outs)]
        if any(look is None for look in looks):
            return False
        seen = torch.stack([look for look in looks if look is not None]).tolist()
        return all(
            fits == 1.0 and norm <= most
            for (fits, norm), most in zip(seen, self.whole, strict=True)
        )

    def _look(self, i: int, out: Tensor) -> Tensor | None:
        """(1 if each element is right, the norm of the difference), on the device."""
        own, truth = self.own[i], self.truth[i]
        if out.shape != own.shape or out.dtype != own.dtype:
            return None
        out, own = comparable(out), comparable(own)
        same = out == own
        if out.dtype.is_floating_point:
            error = (out.to(torch.float64) - truth).abs()
            fits = (error <= self.allowed[i]) | same | (out.isnan() & own.isnan())
            if self.signs:
                fits &= ~(same & (out == 0)) | (out.signbit() == own.signbit())
            norm = error.nan_to_num(0.0, 0.0, 0.0).norm()
        else:
            fits, norm = same, torch.zeros((), dtype=torch.float64, device=out.device)
        return torch.stack([fits.all().to(torch.float64), norm])


def screen(
    own: Sequence[Tensor],
    truth: Sequence[Tensor],
    slack: Sequence[Tensor | None],
    tf32: bool,
    signs: bool,
) -> Screen | None:
    """The screen of results, given as for `mistaken`; None for complex ones."""
    if any(tensor.dtype.is_complex for tensor in own):
        return None
    wide, allowed, whole = [], [], []
    for plain, near, off in zip(own, truth, slack, strict=True):
        exact = near.to(torch.float64)
        wide.append(exact)
        allowed.append(_allowed(plain, exact, off, tf32))
        finite = exact.isfinite()
        scale = torch.where(finite, exact, 0).norm().item()
        error = relative_error(plain, near)
        error = 0.0 if math.isnan(error) or math.isinf(error) else error
        whole.append(tolerance(plain.dtype, error, tf32) * scale)
    return Screen(tuple(own), tuple(wide), tuple(allowed), tuple(whole), signs)


def _allowed(own: Tensor, truth: Tensor, slack: Tensor | None, tf32: bool) -> Tensor:
    """How far each element may lie from the truth; -1 where it must be the plain model's."""
    if not own.dtype.is_floating_point:
        return torch.full(own.shape, -1.0, dtype=torch.float64, device=own.device)
    near = comparable(truth.to(own.dtype))
    both = comparable(own).isfinite() & truth.isfinite() & near.isfinite()
    plain = torch.where(both, (own.to(torch.float64) - truth).abs(), 0)
    allowed = distance(plain, torch.where(both, truth, 0).abs(), slack, own.dtype, tf32)
    return torch.where(both & allowed.isfinite(), allowed, -1.0)


def distance(
    plain: Tensor, size: Tensor, slack: Tensor | None, dtype: torch.dtype, tf32: bool
) -> Tensor:
    """How far elements may lie from the truth, `plain` being how far the plain model's do, and
    `size` how large the truth is."""
    if slack is not None:
        return FACTOR * plain + slack.to(plain.device, torch.float64)
    largest = float(size.max()) if size.numel() else 0.0
    worst = float(plain.max()) if plain.numel() else 0.0
    return plain * FACTOR + (PLAIN_ERRORS * worst + FLOORS * tolerance(dtype, 0.0, tf32) * largest)


def mistaken(
    out: Tensor,
    own: Tensor,
    truth: Tensor,
    slack: Tensor | None = None,
    tf32: bool = False,
    signs: bool = False,
    spread: bool = False,
) -> str:
    """Which elements are wrong, each for itself; "" if none is. `own`: the plain model's, `truth`
    in higher precision; `slack`: what rounding explains, None where nobody knows. `signs`: zeros
    have the sign of the plain model's; `spread`: what is finite there is to be finite, and of the
    rest nothing is said."""
    if out.shape != own.shape or out.dtype != own.dtype:
        return f"{out.dtype}{list(out.shape)} where {own.dtype}{list(own.shape)} is expected"
    if out.dtype.is_complex:
        complex_truth = truth if truth.dtype.is_complex else truth.to(torch.complex128)
        out, own, truth = (
            torch.view_as_real(tensor.resolve_conj()) for tensor in (out, own, complex_truth)
        )
        return mistaken(out, own, truth, None, tf32, signs)
    own, truth = own.to(out.device), truth.to(out.device)
    if not out.dtype.is_floating_point:
        wrong = (out != own) & (out != truth.to(out.dtype))
        if slack is not None:
            wrong &= ~(slack > 0)
        return _told(wrong, out, own)
    near, dtype = comparable(truth.to(out.dtype)), out.dtype
    out, own, truth = comparable(out), comparable(own), comparable(truth)
    kind, mine, other = (_class(tensor) for tensor in (out, own, near))
    wrong = (kind != mine) & (kind != other)
    if slack is not None:
        wrong &= slack.isfinite()
    if spread:
        wrong &= (mine == 0) & (other == 0)
    if said := _told(wrong, out, own):
        return said
    zeros = (out == 0) & (own == 0) & (near == 0)
    if signs and (said := _told(zeros & (out.signbit() != own.signbit()), out, own)):
        return said
    both = out.isfinite() & near.isfinite() & truth.isfinite() & own.isfinite()
    wide_out, wide_own = out.to(torch.float64), own.to(torch.float64)
    wide_truth = truth.to(torch.float64)
    error = torch.where(both, (wide_out - wide_truth).abs(), 0)
    plain = torch.where(both, (wide_own - wide_truth).abs(), 0)
    allowed = distance(plain, torch.where(both, wide_truth, 0).abs(), slack, dtype, tf32)
    return _told(~(error <= allowed) & (out != own), out, own, error, allowed)


def _class(tensor: Tensor) -> Tensor:
    """0 where finite, 1 or -1 where infinite, 2 where not a number."""
    signed = torch.where(tensor.isinf(), tensor.sign(), 0)
    return torch.where(tensor.isnan(), 2, signed.nan_to_num(0.0)).to(torch.int8)


def _told(
    wrong: Tensor,
    out: Tensor,
    own: Tensor,
    error: Tensor | None = None,
    allowed: Tensor | None = None,
) -> str:
    count = int(wrong.count_nonzero())
    if not count:
        return ""
    at = tuple(int(i) for i in wrong.nonzero()[0])
    said = f"element {list(at)} is {out[at].item()} and not {own[at].item()}"
    if error is not None and allowed is not None:
        said += f", off by {error[at].item():.2e} where {allowed[at].item():.2e} is allowed"
    return f"{said}, {count} of {out.numel()} such"


def tolerance(dtype: torch.dtype, plain_error: float, tf32: bool = False) -> float:
    """The largest error accepted for an output of this dtype, given that of the plain model."""
    floor = FLOOR.get(dtype, 0.0)
    if tf32 and dtype == torch.float32:
        floor = TF32_FLOOR
    return FACTOR * plain_error + floor


def expected(
    plain: Sequence[Tensor], reference: Sequence[Tensor], tf32: bool = False
) -> list[tuple[Tensor, float]]:
    """For each output what it is to be, and the error allowed. Where the reference says nothing of
    this precision (`nan_to_num` puts the largest number of its own) the plain result stands for
    it."""
    pairs = []
    for own, truth in zip(plain, reference, strict=True):
        error = relative_error(own, truth)
        if math.isnan(error):
            truth, error = own, 0.0
        pairs.append((truth, tolerance(own.dtype, error, tf32)))
    return pairs


def compare(
    outs: Sequence[Tensor], plain: Sequence[Tensor], reference: Sequence[Tensor], tf32: bool = False
) -> list[tuple[float, float]]:
    """For each output its error and the error allowed."""
    pairs = zip(outs, expected(plain, reference, tf32), strict=True)
    return [(relative_error(out, truth), allowed) for out, (truth, allowed) in pairs]
