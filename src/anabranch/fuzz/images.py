"""Steps on images (batch, channels, height, width): convolutions, batch norms, pools, and cells
like those of Inception, NASNet and SqueezeNet.

Each function writes one or more lines on the sheet; `sheet.add` rejects what torch does.
"""

from __future__ import annotations

from anabranch.fuzz.program_builder import Sheet

KERNELS = ((1, 1), (1, 1), (3, 3), (3, 3), (1, 7), (7, 1), (5, 5), (1, 3), (3, 1), (2, 2), (7, 7))
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


def conv(sheet: Sheet) -> None:
    """A convolution of stride one, padded by half of its kernel, or by less along rows."""
    x = sheet.pick(4)
    layer = sheet.layer(
        _conv(sheet, sheet.shape(x)[1], sheet.choose(WIDTHS), sheet.choose(KERNELS))
    )
    sheet.add(f"{layer}({x})")


def conv_strided(sheet: Sheet) -> None:
    """A convolution with strides of 2 or 3, of one axis or both, and any padding up to half of the
    kernel."""
    x = sheet.pick(4)
    inner, width = sheet.shape(x)[1], sheet.choose(WIDTHS)
    kernel = sheet.choose(KERNELS)
    padding = tuple(sheet.dice.randint(0, k // 2) for k in kernel)
    stride = sheet.choose(("2", "(2, 1)", "(1, 2)", "3"))
    bias = sheet.perhaps(0.5)
    layer = f"nn.Conv2d({inner}, {width}, {kernel}, {stride}, {padding}, bias={bias})"
    sheet.add(f"{sheet.layer(layer)}({x})")


def conv_dilated(sheet: Sheet) -> None:
    """A 3x3 convolution with gaps of 2 or 3, padded to the same size, partly, or not."""
    x = sheet.pick(4)
    inner, width, dilation = sheet.shape(x)[1], sheet.choose(WIDTHS), sheet.choose((2, 3))
    padding = sheet.choose((f"{dilation}", "0", "'same'", "1"))
    layer = f"nn.Conv2d({inner}, {width}, 3, 1, {padding}, dilation={dilation})"
    sheet.add(f"{sheet.layer(layer)}({x})")


def conv_grouped(sheet: Sheet) -> None:
    """A convolution in groups: of the divisors of its channels one of the largest three."""
    x = sheet.pick(4)
    inner = sheet.shape(x)[1]
    groups = sheet.choose([g for g in range(1, inner + 1) if inner % g == 0][-3:])
    width = groups * sheet.choose((1, 2, 3))
    layer = _conv(sheet, inner, width, sheet.choose(KERNELS), groups)
    sheet.add(f"{sheet.layer(layer)}({x})")


def depthwise(sheet: Sheet) -> None:
    """NASNet's separable convolution: a filter per channel, then a pointwise one."""
    x = sheet.pick(4)
    inner = sheet.shape(x)[1]
    kernel = sheet.choose(((3, 3), (5, 5), (7, 7)))
    inside = sheet.choose(("F.relu({})", "{}"))
    deep = sheet.layer(_conv(sheet, inner, inner, kernel, inner))
    point = sheet.layer(f"nn.Conv2d({inner}, {sheet.choose(WIDTHS)}, 1, bias=False)")
    sheet.add(f"{point}({deep}({inside.format(x)}))")


def conv_functional(sheet: Sheet) -> None:
    """A convolution by a weight that is computed from another."""
    x = sheet.pick(4)
    inner, width, (high, wide) = sheet.shape(x)[1], sheet.choose(WIDTHS), sheet.choose(KERNELS)
    weight = sheet.weight(width, inner, high, wide)
    scaled = sheet.choose(("{}", "{} * 0.5", "({0} + {0})", "F.relu({})", "{}.flip(2)")).format(
        weight
    )
    bias = sheet.choose(("None", sheet.weight(width)))
    sheet.add(f"F.conv2d({x}, {scaled}, {bias}, padding=({high // 2}, {wide // 2}))")


def conv_line(sheet: Sheet) -> None:
    """A convolution along one axis, with a kernel of 1 or 3."""
    x = sheet.pick(3)
    inner = sheet.shape(x)[1]
    layer = sheet.layer(
        f"nn.Conv1d({inner}, {sheet.choose(WIDTHS)}, {sheet.choose((1, 3))}, padding=1)"
    )
    sheet.add(f"{layer}({x})")


def conv_norm(sheet: Sheet) -> None:
    """Convolution, batch norm and perhaps an activation, as most networks have them."""
    x = sheet.pick(4)
    inner, width = sheet.shape(x)[1], sheet.choose(WIDTHS)
    layer = sheet.layer(_conv(sheet, inner, width, sheet.choose(KERNELS)))
    norm = sheet.layer(
        f"nn.BatchNorm2d({width}{sheet.choose(('', ', eps=1e-3', ', affine=False'))})"
    )
    after = sheet.choose(
        ("F.relu({})", "F.relu({}, inplace=True)", "{}", "F.silu({})", "{}.relu_()")
    )
    sheet.add(after.format(f"{norm}({layer}({x}))"))


def batch_norm(sheet: Sheet) -> None:
    """A batch norm of an image that no convolution need stand before."""
    x = sheet.pick(4)
    sheet.add(f"{sheet.layer(f'nn.BatchNorm2d({sheet.shape(x)[1]})')}({x})")


def batch_norm_line(sheet: Sheet) -> None:
    """A batch norm of rows, or of sequences."""
    x = sheet.pick(ok=lambda value: value.dim() in (2, 3))
    sheet.add(f"{sheet.layer(f'nn.BatchNorm1d({sheet.shape(x)[1]})')}({x})")


def siblings(sheet: Sheet) -> None:
    """Convolutions of one input, of equal and of unequal kernels, joined, added or left apart."""
    x = sheet.pick(4)
    inner, width = sheet.shape(x)[1], sheet.choose(WIDTHS)
    same = sheet.choose(KERNELS) if sheet.perhaps(0.5) else None
    parts = []
    for _ in range(sheet.choose((2, 2, 3, 4))):
        kernel = same or sheet.choose(KERNELS[:8])
        layer = sheet.layer(_conv(sheet, inner, width, kernel, near=True))
        parts.append(sheet.add(sheet.choose(("F.relu({})", "{}")).format(f"{layer}({x})")))
    _together(sheet, parts)


def inception(sheet: Sheet) -> None:
    """Branches of one input, of convolutions and a pool, side by side."""
    x = sheet.pick(4)
    inner = sheet.shape(x)[1]
    parts = []
    for _ in range(sheet.choose((2, 3, 4))):
        part, depth = x, inner
        if sheet.perhaps(0.3):
            part = sheet.add(f"F.{sheet.choose(('avg', 'max'))}_pool2d({x}, 3, 1, 1)")
        for _ in range(sheet.choose((1, 1, 2))):
            width = sheet.choose((1, 2, 3, 4))
            layer = sheet.layer(_conv(sheet, depth, width, sheet.choose(KERNELS), near=True))
            part, depth = sheet.add(f"F.relu({layer}({part}))"), width
        parts.append(part)
    sheet.add(f"torch.cat([{', '.join(parts)}], 1)")


def nasnet_sum(sheet: Sheet) -> None:
    """A sum of pools, identities and convolutions of one or two values."""
    x = sheet.pick(4)
    shape = sheet.shape(x)
    y = sheet.pick(4, lambda value: tuple(value.shape) == shape)
    terms = []
    for _ in range(sheet.choose((3, 4, 6, 9))):
        source = sheet.choose((x, y))
        layer = _conv(sheet, shape[1], shape[1], sheet.choose(KERNELS[:6]), near=True)
        choices = (
            source,
            f"F.avg_pool2d({source}, 3, 1, 1, count_include_pad={sheet.perhaps(0.5)})",
            f"F.max_pool2d({source}, 3, 1, 1)",
            f"0.5 * {source}",
        )
        conv = sheet.perhaps(0.3)
        terms.append(f"{sheet.layer(layer)}({source})" if conv else sheet.choose(choices))
    if sheet.perhaps(0.5):
        sheet.add(" + ".join(terms))
    else:
        total = terms[0]
        for term in terms[1:]:
            total = sheet.add(f"{total} + {term}" if sheet.perhaps(0.7) else f"{term} + {total}")


def dense_layers(sheet: Sheet) -> None:
    """Each reads all before it, mostly through a norm and a function of its own."""
    x = sheet.pick(4)
    features, channels = [x], sheet.shape(x)[1]
    for _ in range(sheet.choose((2, 3))):
        whole = f"torch.cat([{', '.join(features)}], 1)" if len(features) > 1 else x
        if sheet.perhaps(0.7):
            whole = f"{sheet.layer(f'nn.BatchNorm2d({channels})')}({whole})"
        if sheet.perhaps(0.8):
            whole = f"F.relu({whole})"
        kernel = sheet.choose(("1", "3, padding=1"))
        features.append(sheet.add(f"{sheet.layer(f'nn.Conv2d({channels}, 2, {kernel})')}({whole})"))
        channels += 2
    sheet.add(f"torch.cat([{', '.join(features)}], 1)")


def squeeze_excite(sheet: Sheet) -> None:
    """Channels scaled by a sigmoid of what their means say (SENet)."""
    x = sheet.pick(4)
    width = sheet.shape(x)[1]
    layer = sheet.layer(f"nn.Conv2d({width}, {width}, 1)")
    mean = sheet.choose(("F.adaptive_avg_pool2d({}, 1)", "{}.mean((2, 3), keepdim=True)")).format(x)
    sheet.add(f"{x} * torch.sigmoid({layer}({mean}))")


def max_pool(sheet: Sheet) -> None:
    """The usual windows of max pooling, at times with `ceil_mode`, which cuts windows short."""
    kernel, stride, padding = sheet.choose(((2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 2, 0), (2, 1, 1)))
    ceil = sheet.perhaps(0.3)
    sheet.add(f"F.max_pool2d({sheet.pick(4)}, {kernel}, {stride}, {padding}, ceil_mode={ceil})")


def avg_pool(sheet: Sheet) -> None:
    """Averages with `ceil_mode` and `count_include_pad` at random, which say what is divided by."""
    kernel, stride, padding = sheet.choose(
        ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 0), ((1, 3), 1, 0))
    )
    words = f"ceil_mode={sheet.perhaps(0.3)}, count_include_pad={sheet.perhaps(0.5)}"
    sheet.add(f"F.avg_pool2d({sheet.pick(4)}, {kernel}, {stride}, {padding}, {words})")


def adaptive_pool(sheet: Sheet) -> None:
    """Averages or maxima over windows of unequal size, for a result of 1 to 3 pixels an axis."""
    size = sheet.choose(("1", "2", "(1, 2)", "3"))
    kind = sheet.choose(("avg", "avg", "max"))
    sheet.add(f"F.adaptive_{kind}_pool2d({sheet.pick(4)}, {size})")


def shuffle(sheet: Sheet) -> None:
    """ShuffleNet's permutation of channels."""
    x = sheet.pick(4, lambda value: value.shape[1] % 2 == 0 and value.shape[1] > 0)
    n, c, h, w = sheet.shape(x)
    sheet.add(
        f"{x}.reshape({n}, 2, {c // 2}, {h}, {w}).transpose(1, 2).reshape({n}, {c}, {h}, {w})"
    )


def channels_last(sheet: Sheet) -> None:
    """The same image with channels next to each other in memory."""
    sheet.add(f"{sheet.pick(4)}.contiguous(memory_format=torch.channels_last)")


def _conv(
    sheet: Sheet,
    inner: int,
    outer: int,
    kernel: tuple[int, int],
    groups: int = 1,
    near: bool = False,
) -> str:
    """A convolution; `near`: one that keeps the size of the image, for odd kernels."""
    if near:
        kernel = (kernel[0] | 1, kernel[1] | 1)
    padding = (kernel[0] // 2, kernel[1] // 2)
    if not near and sheet.perhaps(0.2):
        padding = (0, sheet.dice.randint(0, padding[1]))
    words = f", groups={groups}" if groups != 1 else ""
    words += ", bias=False" if sheet.perhaps(0.4) else ""
    return f"nn.Conv2d({inner}, {outer}, {kernel}, padding={padding}{words})"


def _together(sheet: Sheet, parts: list[str]) -> None:
    way = sheet.choose(("cat", "add", "apart", "cat some"))
    if way == "cat":
        sheet.add(f"torch.cat([{', '.join(parts)}], 1)")
    elif way == "cat some":
        sheet.add(f"torch.cat([{', '.join(parts[::-1][:2])}], 1)")
    elif way == "add":
        sheet.add(" + ".join(parts))
