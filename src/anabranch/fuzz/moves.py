"""Steps that only move elements or name them anew: concatenations, slices, transposes, reshapes."""

from __future__ import annotations

from math import prod

from anabranch.fuzz.program_builder import Rejected, Sheet


def cat(sheet: Sheet) -> None:
    """A value with others of its shape but for one axis, in any order; one part alone at times."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    axis, shape = sheet.axis(x), list(sheet.shape(x))
    parts = [x]
    for _ in range(sheet.choose((1, 1, 2, 3))):
        parts.append(sheet.pick(len(shape), lambda value: _beside(list(value.shape), shape, axis)))
    sheet.dice.shuffle(parts)
    sheet.add(f"torch.cat([{', '.join(parts)}], {axis})")


def stack(sheet: Sheet) -> None:
    """Three values of one shape along a new axis, at any place."""
    x = sheet.pick()
    like = [sheet.pick(ok=lambda value: value.shape == sheet.values[x].shape) for _ in range(2)]
    axis = sheet.dice.randint(0, len(sheet.shape(x)))
    sheet.add(f"torch.stack([{', '.join([x, *like])}], {axis})")


def cut(sheet: Sheet) -> None:
    """A slice, by steps too."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    words = (":", "1:", ":1", ":-1", "::2", "1::2", "-2:", ":99", "...")
    chosen = [sheet.choose(words[:-1]) for _ in sheet.shape(x)]
    keep = sheet.dice.randrange(len(chosen))
    chosen = [word if i == keep or sheet.perhaps(0.3) else ":" for i, word in enumerate(chosen)]
    _sized(sheet, f"{x}[{', '.join(chosen)}]")


def select(sheet: Sheet) -> None:
    """One index of an axis: its first or last, or a slice of length one."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    words = ("{}.select({}, 0)", "{}.select({}, -1)", "{}.narrow({}, 0, 1)")
    sheet.add(sheet.choose(words).format(x, sheet.axis(x)))


def split(sheet: Sheet) -> None:
    """Two parts of given lengths, or equal parts with a shorter last one."""
    x = sheet.pick(ok=lambda value: value.dim() > 0 and max(value.shape) > 1)
    axis = sheet.axis(x)
    size = sheet.shape(x)[axis]
    first = sheet.dice.randint(1, max(1, size - 1))
    if size < 2:
        raise Rejected("nothing to split")
    if sheet.perhaps(0.5):
        sheet.several(f"{x}.split([{first}, {size - first}], {axis})", 2)
    else:
        sheet.several(f"{x}.split({first}, {axis})", -(-size // first))


def chunk(sheet: Sheet) -> None:
    """Up to four parts, at times joined again, in order or shuffled, with a relu on some."""
    x = sheet.pick(ok=lambda value: value.dim() > 0 and max(value.shape) > 1)
    axis = sheet.axis(x)
    parts = len(sheet.values[x].chunk(sheet.choose((2, 3, 4)), axis))
    if parts < 2:
        raise Rejected("one part")
    names = sheet.several(f"{x}.chunk({parts}, {axis})", parts)
    if sheet.perhaps(0.5):  # and back, perhaps in another order
        order = [f"F.relu({name})" if sheet.perhaps(0.4) else name for name in names]
        if sheet.perhaps(0.5):
            sheet.dice.shuffle(order)
        sheet.add(f"torch.cat([{', '.join(order)}], {axis})")


def unbind(sheet: Sheet) -> None:
    """All indices of the second axis, at times stacked again backwards."""
    x = sheet.pick(ok=lambda value: value.dim() > 1 and 1 < value.shape[1] <= 6)
    names = sheet.several(f"{x}.unbind(1)", sheet.shape(x)[1])
    if sheet.perhaps(0.5):
        sheet.add(f"torch.stack([{', '.join(reversed(names))}], 1)")


def transpose(sheet: Sheet) -> None:
    """Two axes swapped, which may be the same one."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    sheet.add(f"{x}.transpose({sheet.axis(x)}, {sheet.axis(x)})")


def permute(sheet: Sheet) -> None:
    """Axes in any order, at times made contiguous."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    order = list(range(len(sheet.shape(x))))
    sheet.dice.shuffle(order)
    permuted = sheet.add(f"{x}.permute({', '.join(map(str, order))})")
    if sheet.perhaps(0.3):
        sheet.add(f"{permuted}.contiguous()")


def reshape(sheet: Sheet) -> None:
    """The same elements in another shape; `view` where strides allow it."""
    x = sheet.pick()
    count = prod(sheet.shape(x))
    shape: list[int] = []
    rest = count
    for _ in range(sheet.dice.randint(0, 3)):
        factors = [n for n in range(1, rest + 1) if rest % n == 0] or [1]
        shape.append(sheet.choose(factors))
        rest //= max(1, shape[-1])
    shape.append(rest)
    if sheet.perhaps(0.3) and count:
        shape[sheet.dice.randrange(len(shape))] = -1
    word = sheet.choose(("view", "reshape", "reshape"))
    _sized(sheet, f"{x}.{word}({', '.join(map(str, shape))})")


def flatten(sheet: Sheet) -> None:
    """All axes from one on as one."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    start = sheet.dice.randint(0, len(sheet.shape(x)) - 1)
    sheet.add(f"torch.flatten({x}, {start})")


def squeeze(sheet: Sheet) -> None:
    """An axis of one added in front or behind, or axes of one dropped."""
    x = sheet.pick()
    words = ("{}.unsqueeze(0)", "{}.unsqueeze(-1)", "{}.squeeze()", "{}.squeeze(0)", "{}[None]")
    sheet.add(sheet.choose(words).format(x))


def expand(sheet: Sheet) -> None:
    """Axes of one widened, and perhaps a new one in front."""
    x = sheet.pick(ok=lambda value: 1 in value.shape or value.dim() < 3)
    sizes = [sheet.choose((1, 2, 3)) if size == 1 else -1 for size in sheet.shape(x)]
    if sheet.perhaps(0.4):
        sizes.insert(0, sheet.choose((1, 2, 3)))
    _sized(sheet, f"{x}.expand({', '.join(map(str, sizes))})")


def repeat(sheet: Sheet) -> None:
    """Each axis once or twice over, by copies."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    times = [sheet.choose((1, 1, 2)) for _ in sheet.shape(x)]
    sheet.add(f"{x}.repeat({', '.join(map(str, times))})")


def pad(sheet: Sheet) -> None:
    """The last two axes padded with zeros or 0.5, or cut by a negative width."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    sides = tuple(sheet.choose((0, 0, 1, 2, -1)) for _ in range(4))
    _sized(sheet, f"F.pad({x}, {sides}{sheet.choose(('', ', value=0.5'))})")


def to_image(sheet: Sheet) -> None:
    """A value of fewer axes as an image, so that convolutions follow rows as well."""
    x = sheet.pick(ok=lambda value: value.dim() in (2, 3) and value.numel() > 0)
    sheet.add(f"{x}[:, None, :, None]" if len(sheet.shape(x)) == 2 else f"{x}.unsqueeze(1)")


def _beside(shape: list[int], wanted: list[int], axis: int) -> bool:
    axis %= len(wanted)
    return shape[:axis] == wanted[:axis] and shape[axis + 1 :] == wanted[axis + 1 :]


def _sized(sheet: Sheet, text: str) -> None:
    """A line whose result must have elements: models of nothing are drawn on purpose only."""
    name = sheet.add(text)
    if not sheet.values[name].numel():
        sheet.drop(name)
