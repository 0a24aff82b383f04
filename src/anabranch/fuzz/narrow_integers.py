"""Steps on integers of all sizes and on truth values: what wraps, what promotes, what has ties.

v3 = x1 * 3 // 2                  of bytes, whose product wraps
v4 = torch.where(v3 > 5, v3, 3)   a number beside them keeps their type
v5 = v4.sum(-1) + x0 * 0.01       their sum has 64 bits, and beside floats they are floats

Inputs of full range, their least and largest numbers often among them. Nothing that C leaves
undefined is drawn: no quotient by zero, no float beyond what an integer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anabranch.fuzz.program_builder import Rejected, Sheet, broadcasts

NARROW_TYPES = ("int8", "uint8", "int16", "int32", "bool")
SMALL_INTEGERS = frozenset((torch.int8, torch.uint8, torch.int16))
"""Their least number by -1 wraps; of more bits it ends the process on a CPU."""
PAIRS = (
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} & {1}", "{0} | {1}", "{0} ^ {1}"),
    *(
        "{0} // {by}",
        "{0} % {by}",
        "torch.fmod({0}, {by})",
        "{0} / {by} * 0.001",
        "{0} * {1} // {by}",
    ),
    *("torch.div({0}, {by}, rounding_mode='trunc')", "({0} + {1}) % {by}", "{0} << ({1} & 3)"),
    *("{0} >> ({1} & 3)", "torch.maximum({0}, {1}) * {0}", "torch.minimum({0}, {1}) + {1}"),
    *("torch.add({0}, {1}, alpha=3)", "torch.sub({0}, {1}, alpha=2)", "{0} > {1}", "{0} == {1}"),
    *("torch.where({0} > {1}, {0}, {1})", "torch.logical_xor({0}, {1})", "{0} * {1} > {0}"),
    *("torch.where({1} > 0, {0}, 3) * {0}", "torch.logical_and({0}, {1})", "{0} * {1} + {0}"),
    *("({0} <= {1}) + {1}", "({0} - {1}).abs()", "torch.addcmul({0}, {0}, {1}, value=2)"),
    *("torch.cat([{0}, {1}], -1)", "torch.stack([{0}, {1}])", "{0}.masked_fill({1} > 2, 9)"),
)
NUMBERS = (
    *(
        "{0} + 100",
        "3 * {0}",
        "{0} - 100",
        "100 - {0}",
        "({0} + 1.5) * 0.001",
        "{0} * 0.25 * 0.01",
        "{0} + True",
    ),
    *(
        "{0} / 4 * 0.001",
        "{0} // 3",
        "{0} // -3",
        "{0} % 5",
        "{0} % -7",
        "{0} ** 2",
        "{0} ** 3",
        "-{0}",
    ),
    *(
        "~{0}",
        "{0}.abs()",
        "{0}.sign()",
        "torch.square({0})",
        "{0}.clamp(2, 100) * {0}",
        "{0} << 2",
    ),
    *("{0}.clamp(min=3) * {0}", "{0}.clamp_max(100) + {0}", "F.relu({0}) * 2", "{0} >> 1"),
    *("{0} << 9", "{0} >> 12", "{0} > 2.5", "{0} == 7", "{0} != 0", "7 > {0}", "{0}.logical_not()"),
    *(
        "torch.where({0} > 5, {0}, 3)",
        "torch.where({0} > 5, {0}, 0.5) * 0.001",
        "{0} & 12",
        "{0} | 1",
    ),
    *(
        "torch.where({0} > 5, 1, -1)",
        "torch.where({0} > 5, 2.0, {0}) * 0.01",
        "{0}.bool()",
        "{0} ^ -1",
    ),
    *("torch.fmod({0}, 3)", "torch.remainder({0}, -4)", "2 ** ({0} & 3)", "torch.rsub({0}, 7)"),
    *("({0} + {0}.dtype.is_signed) * {0}", "{0} * {0} // 7", "({0} + {0}) >> 1", "0 - {0}"),
)
OF_FLOATS = (
    *(
        "torch.sigmoid({0})",
        "torch.tanh({0} * 0.01)",
        "torch.sqrt({0}.float().abs())",
        "torch.sin({0})",
    ),
    *("torch.exp(-{0}.float().abs())", "torch.rsqrt({0}.float().abs() + 1)", "({0} / 7).floor()"),
    *(
        "torch.log1p({0}.float().abs())",
        "F.softmax({0} * 0.01, -1)",
        "{0}.float().mean(-1) * 0.001",
    ),
    *(
        "{0}.float() / {1}.float().abs().add(1) * 0.001",
        "{0}.float().std(-1, correction=0) * 0.001",
        "{0}.half() * 0.01",
    ),
    *("({0} * 0.5).to({0}.dtype)", "({0}.float() / 3).trunc().to({0}.dtype)", "torch.atan({0})"),
    *("{0}.double() * 0.01", "{0}.to(torch.bfloat16) / 8", "torch.cos({0}) + {0} * 0"),
)
REDUCED = (
    *(".sum(-1)", ".sum()", ".sum(-1, keepdim=True)", ".sum(-1, dtype=torch.int8)", ".sum(0)"),
    *(".sum(-1, dtype=torch.int32)", ".amax(-1)", ".amin(0)", ".any(-1)", ".all(-1)", ".any()"),
    *(
        ".all(0, keepdim=True)",
        ".prod(-1)",
        ".prod()",
        ".prod(-1, dtype=torch.int8)",
        ".cumsum(-1)",
    ),
    *(
        ".cumsum(-1, dtype=torch.int8)",
        ".cumprod(-1)",
        ".cummax(-1)[0]",
        ".argmax(-1)",
        ".argmin(0)",
    ),
    *(
        ".max(-1)[0]",
        ".max(-1)[1]",
        ".min()",
        ".max()",
        ".argmax()",
        ".sort(-1)[0]",
        ".median(-1)[0]",
    ),
    *(
        ".sort(dim=-1, stable=True)[1]",
        ".topk(1, -1)[0]",
        ".argsort(dim=-1, stable=True)",
        ".count_nonzero(-1)",
    ),
    *(
        ".mean(-1, dtype=torch.float32) * 0.001",
        ".float().mean() * 0.001",
        ".logical_not().sum(-1)",
        ".min(0)[1]",
    ),
    *(".amax(-1, keepdim=True)", ".cumsum(0)", ".aminmax(dim=-1)[0]", ".diff(dim=-1)"),
)
MOVED = (
    *("{0}.flip(-1)", "{0}.roll(1, 0)", "torch.tril({0})", "torch.triu({0}, 1)", "{0}[..., ::2]"),
    *(
        "F.pad({0}, (1, 1), value=7)",
        "F.pad({0}, (1, -1), value=-3)",
        "{0}.repeat_interleave(2, -1)",
    ),
    *("{0}.unsqueeze(-1).expand(*{0}.shape, 3)", "{0}[..., [0, -1, 0]]", "{0}.transpose(0, -1)"),
    *("torch.gather({0}, -1, torch.zeros_like({0}, dtype=torch.int64))", "{0}.diagonal(0, 0, -1)"),
    *("{0}.take_along_dim({0}.argsort(dim=-1, stable=True), -1)", "F.one_hot({0}.long() & 3, 4)"),
    *("torch.isin({0}, {1})", "{0}.reshape(-1)", "{0}.flip(0) * {0}", "torch.full_like({0}, 3)"),
    "torch.bucketize({0}, torch.arange(-9, 9, 3, device={0}.device))",
    *("torch.ones_like({0}).cumsum(-1)", "{0}.narrow(-1, 0, 1) * {0}", "torch.zeros_like({0}) - 1"),
)
WRITTEN = (
    *("{0}.clone().add_(7)", "{0}.clone().mul_({1})", "{0}.clone().clamp_(2, 90).mul_(2)"),
    *(
        "{0}.clone().masked_fill_({1} > 3, 1)",
        "torch.zeros_like({0}).copy_({1})",
        "{0}.clone().neg_()",
    ),
    *("{0}.clone().index_fill_(-1, torch.tensor([0], device={0}.device), 5)",),
    "{0}.clone().scatter_add_(-1, torch.zeros_like({0}, dtype=torch.int64), {0})",
    "{0}.clone().scatter_reduce_(-1, torch.zeros_like({0}, dtype=torch.int64), {0}, 'amax')",
    "{0}.clone().index_add_(0, torch.tensor([0, 0], device={0}.device), {0}[[0, -1]])",
    *(
        "{0}.clone().floor_divide_(3)",
        "{0}.clone().bitwise_and_(6)",
        "{0}.clone()[..., ::2].add_(1)",
    ),
    *(
        "{0}.clone().sub_({1}, alpha=2)",
        "torch.zeros_like({0}, dtype=torch.float32).add_({0}) * 0.01",
    ),
)
CASTS = (
    *(".to(torch.int8)", ".to(torch.uint8)", ".to(torch.int16)", ".int()", ".long()", ".bool()"),
    *(
        ".to(torch.int8).long()",
        ".to(torch.uint8).float() * 0.01",
        ".to(torch.int16).to(torch.uint8)",
    ),
    *(
        ".bool().to(torch.int8)",
        ".bool().float()",
        ".to(torch.uint8).to(torch.int8).to(torch.int16)",
    ),
)
BESIDE = (
    *("{x} + {0} * 0.01", "{x} * ({0} > 0)", "{x} + ({0} & 1)", "torch.where({0} > 0, {x}, 0)"),
    *("torch.where({0}.bool(), {x}, -1)", "{x}.masked_fill({0} > 2, -1)", "{x} * {0}.bool()"),
    *(
        "{x} > {0}",
        "{x} == {0}",
        "torch.where({0} > 1, {x}, {0} * 0.01)",
        "{x} - {0}.float() * 0.01",
    ),
    *(
        "{x}.half() + ({0} & 3)",
        "{x} ** ({0} & 1)",
        "torch.maximum({x}, {0} * 0.01)",
        "{x} / ({0} | 1)",
    ),
)
NUMBERS_OF_TENSORS = (
    *("{0} + {0}.sum()", "{0} * {0}.amax()", "{0} - {1}.min()", "{0} > {1}.float().mean()"),
    *("{0} + torch.tensor(100)", "{0} * torch.tensor(2.5)", "torch.where({0}.any(), {0}, {1})"),
    *(
        "{0}.amax() - {0}",
        "{0} // {0}.max().clamp(min=1)",
        "torch.tensor(7, dtype=torch.int8) - {0}",
    ),
)
EMPTY = (
    *(
        "{0}[:0].sum(0)",
        "torch.cat([{0}[:0], {0}])",
        "{0}[..., :0].any(-1)",
        "{0}[..., :0].sum(-1)",
    ),
    *("{0}[..., :0].prod(-1)", "{0}[..., :0].all(-1)", "{0}[:0] * 2", "{0}[..., :0].cumsum(-1)"),
)


def small_input(sheet: Sheet) -> None:
    """Another input, of integers of few bits or of truth values, and something computed of it."""
    _new(sheet)
    pair(sheet)


def pair(sheet: Sheet) -> None:
    """Two values of integers, of two types perhaps: arithmetic, comparisons, choices."""
    x, y = _two(sheet)
    safe = {sheet.values[x].dtype, sheet.values[y].dtype} <= SMALL_INTEGERS and sheet.perhaps(0.5)
    by = f"({y} | 1)" if safe else f"{y}.clamp(min=1)"
    sheet.add(_of(sheet, PAIRS, x).format(x, y, by=by))


def number(sheet: Sheet) -> None:
    """Integers beside Python's numbers, which keep or widen their type."""
    x = _whole(sheet)
    sheet.add(_of(sheet, NUMBERS, x).format(x))


def as_floats(sheet: Sheet) -> None:
    """A function of floats of integers, some cast back."""
    sheet.add(sheet.choose(OF_FLOATS).format(*_two(sheet)))


def reduced(sheet: Sheet) -> None:
    """A sum, product, extreme, scan or order of integers; of the result at times an operator."""
    name = sheet.add(_whole(sheet, lambda value: value.numel() > 0) + sheet.choose(REDUCED))
    if sheet.perhaps(0.4):
        sheet.add(_of(sheet, NUMBERS, name).format(name))


def moved(sheet: Sheet) -> None:
    """Integers in another order, more often than once, padded, or counted."""
    sheet.add(sheet.choose(MOVED).format(*_two(sheet)))


def written(sheet: Sheet) -> None:
    """Writes to a copy of integers, those of other types and to one place twice among them."""
    sheet.add(sheet.choose(WRITTEN).format(*_two(sheet)))


def casts(sheet: Sheet) -> None:
    """Integers narrowed, widened, or as truth values."""
    sheet.add(_whole(sheet) + sheet.choose(CASTS))


def beside_floats(sheet: Sheet) -> None:
    """An input of floats with integers that broadcast to it."""
    x = sheet.given_floats()
    shape = sheet.shape(x)
    whole = _whole(sheet, lambda value: broadcasts(tuple(value.shape), shape))
    sheet.add(sheet.choose(BESIDE).format(whole, x=x))


def tensor_numbers(sheet: Sheet) -> None:
    """Tensors without axes beside others, whose type they do not change unless of another kind."""
    x, y = _two(sheet)
    text = sheet.choose(NUMBERS_OF_TENSORS).format(x, y)
    for written in ("torch.tensor(100", "torch.tensor(2.5", "torch.tensor(7, dtype=torch.int8"):
        text = text.replace(f"{written})", f"{written}, device={x}.device)")
    sheet.add(text)


def empty(sheet: Sheet) -> None:
    """Axes without elements: what a sum, a product and the question for any make of nothing."""
    x = _whole(sheet) if sheet.perhaps(0.5) else sheet.pick()
    sheet.add(sheet.choose(EMPTY).format(x))


def _whole(sheet: Sheet, ok: Callable[[Tensor], bool] = lambda value: True) -> str:
    """A value of integers or truth values, more often a late one; a new input where none is."""
    names = [
        name
        for name, value in sheet.values.items()
        if not value.is_floating_point() and not value.is_complex() and ok(value)
    ]
    if not names and sheet.perhaps(0.5):
        raise Rejected("no integers")
    return sheet.choose(names[-4:] if sheet.perhaps(0.6) else names) if names else _new(sheet)


def _of(sheet: Sheet, texts: Sequence[str], name: str) -> str:
    """One of these for this value; truth values are not shifted: a GPU refuses it."""
    text = sheet.choose(texts)
    if sheet.values[name].dtype == torch.bool and ("<<" in text or ">>" in text):
        raise Rejected("a truth value has no bits to shift")
    return text


def _two(sheet: Sheet) -> tuple[str, str]:
    """A value of integers, and one that broadcasts to it, itself perhaps."""
    x = _whole(sheet)
    shape = sheet.shape(x)
    return x, _whole(sheet, lambda value: broadcasts(tuple(value.shape), shape))


def _new(sheet: Sheet) -> str:
    """An input with the shape of a value, or of a few rows."""
    shapes = [tuple(value.shape) for value in sheet.values.values() if value.numel() <= 256]
    shape = sheet.choose([(2, 3), *shapes])
    return sheet.add_input(
        f"narrow({shape}, torch.{sheet.choose(NARROW_TYPES)}, {sheet.seed()}{{shift}})"
    )
