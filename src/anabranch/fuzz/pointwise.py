"""Steps element by element: activations, sums and products, broadcast, with numbers and weights on
either side, in place, and many at once."""

from __future__ import annotations

from anabranch.fuzz.program_builder import Rejected, Sheet, broadcasts

ACTIVATIONS = (
    *("F.relu({})", "torch.sigmoid({})", "F.gelu({})", "torch.tanh({})", "F.silu({})"),
    *("F.gelu({}, approximate='tanh')", "{}.relu()", "F.relu6({})", "F.leaky_relu({}, 0.1)"),
    *("F.hardswish({})", "F.softplus({})", "F.elu({})", "torch.exp(-{}.abs())", "{}.abs()"),
    *("torch.sin({})", "torch.rsqrt({0} * {0} + 1.0)", "torch.sqrt({}.abs() + 0.5)", "-{}"),
    *("{}.clamp(-1.0, 1.0)", "{}.pow(2)", "torch.square({})", "{} ** 3", "torch.erf({})"),
)
SCALARS = (
    *("{} * 2", "2.5 * {}", "{} + 1", "1.0 + {}", "1 - {}", "{} - 0.5", "{} / 3", "{} * 0.5"),
    *("{} + 0", "{} * 1", "{} - 0.0", "{} / 1.0", "0.0 + {}", "{} * -1", "0 - {}", "{} * 0"),
    *("torch.add({}, 1.0, alpha=2)", "torch.sub(1.0, {}, alpha=0.5)", "1.0 / ({}.abs() + 1.5)"),
    *("{} * 2 * 3", "({} + 1.0) - 1.0", "{}.add(2).mul(0.25)", "torch.rsub({}, 2.0)"),
)
IN_PLACE = (
    *("{}.add_(1.0)", "{}.mul_(0.5)", "F.relu({}, inplace=True)", "{}.sub_({other})"),
    *("{}.add_({other})", "{}.add_({other}, alpha=0.5)", "{}.clamp_(min=-1.0)", "{}.neg_()"),
    *("{}.copy_({other})", "{}.tanh_()", "{}.zero_()", "{}.fill_(0.25)"),
)


def activation(sheet: Sheet) -> None:
    """One activation, a method, a function or an expression of several operators."""
    sheet.add(sheet.choose(ACTIVATIONS).format(sheet.pick()))


def scalar(sheet: Sheet) -> None:
    """Arithmetic with numbers, those that change nothing (+ 0, * 1) among them."""
    sheet.add(sheet.choose(SCALARS).format(sheet.pick()))


def binary(sheet: Sheet) -> None:
    """Two values of one shape: sums, products, quotients, maxima."""
    x = sheet.pick()
    y = sheet.pick(ok=lambda value: value.shape == sheet.values[x].shape)
    word = sheet.choose(("{} + {}", "{} * {}", "{} - {}", "torch.add({}, {}, alpha=0.5)"))
    word = sheet.choose((word, "torch.maximum({}, {})", "{} / ({}.abs() + 1.0)", "{} + {}"))
    sheet.add(word.format(x, y))


def broadcast(sheet: Sheet) -> None:
    """Two values of different shapes, one of them widened."""
    x = sheet.pick()
    shape = sheet.shape(x)
    y = sheet.pick(
        ok=lambda value: tuple(value.shape) != shape and broadcasts(tuple(value.shape), shape)
    )
    pair = (x, y) if sheet.perhaps(0.5) else (y, x)
    sheet.add(sheet.choose(("{} + {}", "{} * {}", "{} - {}")).format(*pair))


def broadcast_both(sheet: Sheet) -> None:
    """A column and a row make a table."""
    x = sheet.pick(ok=lambda value: value.dim() == 2)
    y = sheet.pick(ok=lambda value: value.dim() == 2 and value.shape[0] == sheet.shape(x)[0])
    sheet.add(f"{x}.unsqueeze(2) * {y}.unsqueeze(1)")


def constant(sheet: Sheet) -> None:
    """A weight on either side, of the whole shape, of a part of it, or a single number."""
    x = sheet.pick()
    shape = sheet.shape(x)
    kept = shape[sheet.dice.randint(0, len(shape)) :]
    if sheet.perhaps(0.4):
        kept = tuple(size if sheet.perhaps(0.5) else 1 for size in kept)
    weight = sheet.weight(*kept)
    if sheet.perhaps(0.3):
        weight = sheet.choose(("({} * 2)", "({} + 1.0)", "torch.sigmoid({})", "(-{})")).format(
            weight
        )
    pair = (x, weight) if sheet.perhaps(0.5) else (weight, x)
    sheet.add(sheet.choose(("{} + {}", "{} * {}", "{} - {}")).format(*pair))


def only_constants(sheet: Sheet) -> None:
    """A value that no input reaches."""
    size = sheet.choose((1, 2, 3, 4))
    weight = sheet.weight(size, 3)
    keywords = "dtype={w}.dtype, device={w}.device"
    words = (f"torch.full(({{size}}, 2), 0.5, {keywords})", "{w} @ {w}.transpose(0, 1)")
    more = (f"torch.arange({{size}}, {keywords}) * 0.5", "torch.ones_like({w}).tril()", "{w} * 2")
    sheet.add(sheet.choose((*words, *more)).format(size=size, w=weight))


def masked(sheet: Sheet) -> None:
    """Elements chosen by a mask that depends on a weight, so that it is constant."""
    x = sheet.pick()
    mask = f"({sheet.weight(*sheet.shape(x))} > 0)"
    forms = ("torch.where({1}, {0}, -{0})", "{0}.masked_fill({1}, 0.5)", "torch.where({1}, {0}, 0)")
    sheet.add(sheet.choose(forms).format(x, mask))


def same_twice(sheet: Sheet) -> None:
    """A value with itself."""
    words = ("{0} + {0}", "{0} * {0}", "{0} + {0} + {0}", "{0} * 2 + {0}", "{0} - {0} * 0.5")
    sheet.add(sheet.choose(words).format(sheet.pick()))


def long_sum(sheet: Sheet) -> None:
    """Four, six or nine values of one shape, added in a row, by `stack` or by Python's `sum`."""
    x = sheet.pick()
    like = [
        name
        for name, value in sheet.values.items()
        if value.shape == sheet.values[x].shape and value.is_floating_point()
    ]
    terms = [sheet.choose(like) for _ in range(sheet.choose((4, 6, 9)))]
    words = (" + ".join(terms), f"torch.stack([{', '.join(terms)}]).sum(0)")
    sheet.add(sheet.choose((*words, f"sum([{', '.join(terms)}])")))


def residual(sheet: Sheet) -> None:
    """A value and an activation of it, added, at times under a relu."""
    x = sheet.pick()
    inner = sheet.choose(ACTIVATIONS).format(x)
    sheet.add(sheet.choose(("F.relu({0} + {1})", "{0} + {1}", "{1} * 0.5 + {0}")).format(x, inner))


def in_place(sheet: Sheet) -> None:
    """Writes to a temporary of its own."""
    x = sheet.pick()
    other = sheet.pick(ok=lambda value: value.shape == sheet.values[x].shape)
    start = sheet.choose(("{}.clone()", "({} + 1)", "({} * 0.5)")).format(x)
    sheet.add(sheet.choose(IN_PLACE).format(start, other=other))


def in_place_shared(sheet: Sheet) -> None:
    """Writes to a value that others have read, and may still read, perhaps through a view."""
    x = sheet.pick()
    if not sheet.own(x):
        raise Rejected("an input, or a weight")
    other = sheet.pick(ok=lambda value: value.shape == sheet.values[x].shape)
    sheet.add(sheet.choose(IN_PLACE).format(x, other=other))


def in_place_part(sheet: Sheet) -> None:
    """Writes to a part of a temporary."""
    x = sheet.pick(ok=lambda value: value.dim() > 0 and value.shape[-1] > 1)
    whole = sheet.add(f"{x}.clone()")
    part = sheet.choose(("[..., 1:]", "[..., 0]", "[..., ::2]"))
    sheet.add(sheet.choose(("{}.mul_(0.5)", "{}.zero_()", "{}.add_(1.0)")).format(whole + part))
