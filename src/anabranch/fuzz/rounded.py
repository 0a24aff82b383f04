"""Steps where one bit shows: quotients that are rounded, casts that narrow, integers of both signs.

torch.floor(x0 / x1)      of inputs alone: what was computed in another order may round otherwise
v3.to(torch.bfloat16).to(v3.dtype)
"""

from __future__ import annotations

from anabranch.fuzz.program_builder import Rejected, Sheet

QUOTIENTS = (
    *("torch.floor({0} / {1})", "torch.trunc({0} / {1})", "torch.round({0} / {1})", "{0} // {1}"),
    *("torch.div({0}, {1}, rounding_mode='trunc')", "torch.fmod({0}, {1})", "{0} % {1}"),
    *("torch.ceil({0} / 3)", "torch.floor({0} * 0.1)", "({0} / {1}).long()", "({0} / 7).int()"),
    *("({0} / {1} == 2).to({0}.dtype)", "torch.floor(torch.sqrt({0}.abs()))"),
)
SIGNS = (
    *("torch.copysign(torch.ones_like({0}), {0})", "1.0 / (-{0}).clamp(-4, 4).sign().exp()"),
    *("torch.signbit(-{0})", "torch.signbit({0} * 0.0)", "torch.signbit(torch.round({0}))"),
    *("torch.signbit(torch.tanh({0}))", "torch.atan2({0} * 0.0, -{0}.abs() - 1.0)"),
)
CASTS = (
    *("{0}.to(torch.bfloat16).to({0}.dtype)", "{0}.half().to({0}.dtype)"),
    *("{0}.to(torch.bfloat16).float().to({0}.dtype) * 2", "({0}.half() + 1).to({0}.dtype)"),
    *("{0}.clamp(-100, 100).to(torch.int8).to({0}.dtype)", "{0}.bool().to({0}.dtype)"),
)
INTEGER_TEXTS = (
    *("{0} // {1}", "{0} % {1}", "torch.fmod({0}, {1})", "{0} * {1}", "{0} - {1}", "{0}.abs()"),
    *("torch.div({0}, {1}, rounding_mode='trunc')", "{0} & {1}", "{0} ^ {1}", "{0} >> 1", "-{0}"),
    *("{0}.clamp(-5, 7)", "torch.maximum({0}, {1})", "{0}.cumsum(-1)", "{0}.sum(-1, keepdim=True)"),
    *("{0}.to(torch.int32)", "({0} > {1}).long()", "{0}.float() * 0.5", "{0} // 4", "{0} % -3"),
)


def quotient(sheet: Sheet) -> None:
    """A quotient of inputs, or of one by another of its shape, and what rounds it."""
    x = sheet.given_floats()
    like = [
        argument.name
        for argument in sheet.inputs
        if sheet.values[argument.name].is_floating_point()
        and sheet.shape(argument.name) in (sheet.shape(x), ())
    ]
    under = sheet.choose((*(f"({name}.abs() + 0.5)" for name in like), "3.0", "0.7"))
    if sheet.perhaps(0.3):
        under = sheet.weight(*sheet.shape(x)[-1:]) + ".abs().add(0.5)"
    sheet.add(sheet.choose(QUOTIENTS).format(x, under))


def signs(sheet: Sheet) -> None:
    """What shows the sign of a zero."""
    sheet.add(sheet.choose(SIGNS).format(sheet.given_floats()))


def cast(sheet: Sheet) -> None:
    """Rounds an input on purpose."""
    sheet.add(sheet.choose(CASTS).format(sheet.given_floats()))


def whole_numbers(sheet: Sheet) -> None:
    """Arithmetic on integers, dividing by none that is zero."""
    names = [
        name
        for name, value in sheet.values.items()
        if not value.is_floating_point() and value.dtype.itemsize > 1
    ]
    if not names:
        raise Rejected("no integers")
    x = sheet.choose(names)
    like = [name for name in names if sheet.shape(name) == sheet.shape(x)]
    other = sheet.choose((*(f"({name}.abs() + 1)" for name in like), "3", "-2"))
    text = sheet.choose(INTEGER_TEXTS)
    if "{1}" in text and other in ("3", "-2") and "maximum" in text:
        other = x
    sheet.add(text.format(x, other))
