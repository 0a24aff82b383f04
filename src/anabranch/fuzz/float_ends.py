"""Steps on inputs where functions end: infinity, denormals, the largest halves, no argument left.

torch.exp(x0 * 30).clamp(max=4)                       fp32 overflows, and the clamp hides it
((x0.half() * 1e-6).float() * 1e6).to(x0.dtype)       halves without a leading digit

Of inputs alone: what was computed in another order may end up on the other side of a jump.
"""

from __future__ import annotations

from anabranch.fuzz.program_builder import Sheet

ENDS = (
    *("torch.exp({0} * 30).clamp(max=4)", "torch.log({0}.abs()).clamp(min=-3)", "{0}.abs() ** 0.5"),
    *(
        "torch.log2({0}.abs()).clamp(min=-3)",
        "({0}.abs() + 0.1) ** -1.5",
        "2.0 ** {0}.clamp(-9, 5)",
    ),
    *("torch.sigmoid({0} * 60)", "F.softplus({0} * 40).clamp(max=9)", "F.logsigmoid({0} * 9)"),
    *(
        "torch.expm1({0} * 0.001)",
        "torch.log1p({0}.abs() * 1e-4)",
        "torch.asinh({0})",
        "F.mish({0})",
    ),
    *("torch.acos({0}.clamp(-1, 1))", "torch.asin({0} * 0.1)", "F.selu({0})", "F.celu({0}, 0.5)"),
    *("F.hardtanh({0}, -0.3, 0.3)", "F.softshrink({0}, 0.3)", "F.hardshrink({0}, 0.5)"),
    *("F.tanhshrink({0})", "F.threshold({0}, 0.2, -1.0)", "F.hardsigmoid({0})", "torch.erfc({0})"),
    *(
        "F.softsign({0})",
        "torch.sinc({0})",
        "torch.logit({0}.abs() * 0.1, eps=1e-6)",
        "torch.sgn({0})",
    ),
    *("torch.xlogy({0}.abs(), {0}.abs() + 1)", "torch.heaviside({0}, {0}.abs())", "{0}.frac()"),
    *(
        "torch.logaddexp({0} * 40, {0}).clamp(-9, 9)",
        "torch.hypot({0}, {0})",
        "torch.cosh({0} * 0.5)",
    ),
    *(
        "torch.nan_to_num({0} / {0}, 0.5)",
        "(1 / {0}).clamp(-3, 3)",
        "{0}.sign() * {0}.abs().sqrt()",
    ),
    *("torch.ldexp({0}, torch.tensor(2, device={0}.device))", "torch.exp2({0} * 50).clamp(max=3)"),
    *(
        "torch.lerp({0}, -{0}, 0.3)",
        "torch.addcdiv({0}, {0}, {0}.abs() + 1, value=0.5)",
        "{0}.trunc()",
    ),
    *("torch.softmax({0} * 90, -1)", "torch.logsumexp({0} * 90, -1) * 0.01", "{0}.cumprod(-1)"),
    *("torch.logcumsumexp({0}, -1)", "{0}.cummax(-1)[0]", "{0}.renorm(2, 0, 1.0)"),
    *(
        "({0} * 1e-38 * 1e-3) * 1e38",
        "({0} * 1e30).clamp(-1e4, 1e4) * 1e-4",
        "{0}.round(decimals=1)",
    ),
)
HALF_ENDS = (
    *(
        "({0}.half() * 60000.0).clamp(-5, 5)",
        "(({0}.half() * 1e-6).float() * 1e6)",
        "{0}.half().sum(-1)",
    ),
    *("({0}.to(torch.bfloat16) * 3e38).clamp(-2, 2)", "({0}.half() + 2048).float() - 2048"),
    *(
        "{0}.to(torch.bfloat16).cumsum(-1).float()",
        "{0}.half().amax(-1)",
        "{0}.half() + {0}.to(torch.bfloat16)",
    ),
    *("{0}.half() * {0}", "{0}.half() * 2.5", "{0}.half() + torch.tensor(1.5, device={0}.device)"),
    *(
        "{0}.half().float().sum(-1)",
        "torch.where({0} > 0, {0}.half(), 0.1)",
        "{0}.to(torch.bfloat16).mean(-1)",
    ),
    *("({0} * 7).clamp(-100, 100).to(torch.int8)", "({0} * 90).clamp(-300, 300).to(torch.uint8)"),
    *("torch.cat([{0}.half(), {0}], -1)", "({0}.half() == {0})", "{0}.half().argmax(-1)"),
)
ORDERS = (
    *(
        "{0}.argmax(-1)",
        "{0}.sort(dim=-1, stable=True)[1]",
        "{0}.round().argmax(0)",
        "{0}.topk(1, -1)[0]",
    ),
    *("{0}.round().sort(dim=-1, stable=True)[1]", "{0}.round().max(-1)[1]", "{0}.median(-1)[0]"),
    *("{0}.round().min(-1)[1]", "{0} > {0}.mean()", "({0} > 0).sum(-1)", "({0} > 0).any(-1)"),
    *(
        "({0} > 0).all(0)",
        "({0} > 0) & ({0} < 1)",
        "({0} > 0).float().mean(-1)",
        "{0}.bool().sum()",
    ),
    *(
        "{0}.isfinite().all()",
        "torch.isclose({0}, {0}.round(), atol=0.2)",
        "{0}.kthvalue(1, -1)[0]",
    ),
)
COMPLEX = (
    *("torch.fft.rfft({0}).abs() * 0.1", "torch.view_as_real(torch.fft.fft({0})) * 0.1"),
    *(
        "torch.complex({0}, {0}).real",
        "torch.polar({0}.abs(), {0}).imag",
        "torch.complex({0}, {0}).conj()",
    ),
)


def ends(sheet: Sheet) -> None:
    """A function where its result or its argument ends."""
    sheet.add(sheet.choose(ENDS).format(sheet.given_floats()))


def half_ends(sheet: Sheet) -> None:
    """Numbers of two bytes that overflow, lose their digits, or meet others of another type."""
    sheet.add(sheet.choose(HALF_ENDS).format(sheet.given_floats()))


def orders(sheet: Sheet) -> None:
    """Comparisons, ties and orders of floats, as truth values and as indices."""
    sheet.add(sheet.choose(ORDERS).format(sheet.given_floats()))


def complex_numbers(sheet: Sheet) -> None:
    """A transform or a product of complex numbers, or one that is returned."""
    sheet.add(sheet.choose(COMPLEX).format(sheet.given_floats()))
