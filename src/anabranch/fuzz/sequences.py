"""Steps on rows: matrix products, softmax, norms, sums, embeddings, attention, recurrences."""

from __future__ import annotations

import torch

from anabranch.fuzz.program_builder import Rejected, Sheet

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 11, 16)


def linear(sheet: Sheet) -> None:
    """A linear along the last axis, with a bias or without."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    layer = f"nn.Linear({sheet.shape(x)[-1]}, {sheet.choose(WIDTHS)}, bias={sheet.perhaps(0.7)})"
    sheet.add(f"{sheet.layer(layer)}({x})")


def linears(sheet: Sheet) -> None:
    """Several of one input, as queries, keys and values are, with something after each."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    width = sheet.choose(WIDTHS)
    names = []
    for _ in range(sheet.choose((2, 3))):
        layer = sheet.layer(f"nn.Linear({sheet.shape(x)[-1]}, {width}, bias={sheet.perhaps(0.7)})")
        after = sheet.choose(("{}", "torch.tanh({})", "F.gelu({})"))
        names.append(sheet.add(after.format(f"{layer}({x})")))
    if sheet.perhaps(0.6):
        sheet.add(f"torch.cat([{', '.join(names)}], -1)")


def matmul(sheet: Sheet) -> None:
    """Of two values, or a value and a weight on either side."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    *_, rows, inner = sheet.shape(x)
    way = sheet.choose(("left", "right", "both", "self"))
    if way == "left":
        sheet.add(f"{sheet.weight(sheet.choose(WIDTHS), rows)} @ {x} * 0.3")
    elif way == "right":
        sheet.add(f"{x} @ {sheet.weight(inner, sheet.choose(WIDTHS))} * 0.3")
    elif way == "self":
        sheet.add(f"{x} @ {x}.transpose(-1, -2) * {1 / max(1, inner)}")
    else:
        y = sheet.pick(ok=lambda value: value.dim() > 1 and value.shape[-2] == inner)
        sheet.add(f"torch.matmul({x}, {y}) * 0.3")


def bmm(sheet: Sheet) -> None:
    """Products of matrices batch by batch, at times as baddbmm, with its `beta` and `alpha`."""
    x = sheet.pick(3)
    batch, _, inner = sheet.shape(x)
    y = sheet.pick(3, lambda value: value.shape[0] == batch and inner in value.shape[1:])
    transposed = f"{y}.transpose(1, 2)" if sheet.shape(y)[1] != inner else y
    words = ("torch.bmm({0}, {1}) * 0.3", "torch.baddbmm({2}, {0}, {1}, beta=0.5, alpha=0.3)")
    sheet.add(sheet.choose(words).format(x, transposed, sheet.weight(1)))


def addmm(sheet: Sheet) -> None:
    """A product and a row: as addmm, or as mm and a sum."""
    x = sheet.pick(2)
    width = sheet.choose(WIDTHS)
    weight, bias = sheet.weight(sheet.shape(x)[1], width), sheet.weight(width)
    words = ("torch.addmm({bias}, {x}, {weight})", "torch.mm({x}, {weight}) + {bias}")
    sheet.add(f"{sheet.choose(words).format(x=x, weight=weight, bias=bias)} * 0.3")


def softmax(sheet: Sheet) -> None:
    """A softmax or its logarithm along any axis."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    sheet.add(f"F.{sheet.choose(('softmax', 'softmax', 'log_softmax'))}({x}, {sheet.axis(x)})")


def layer_norm(sheet: Sheet) -> None:
    """A layer norm over the last axis or the last two, with and without weight and bias."""
    x = sheet.pick(ok=lambda value: value.dim() > 1 and value.shape[-1] > 2)
    shape = sheet.shape(x)[-sheet.choose((1, 1, 2)) :]
    words = sheet.choose(("", ", eps=1e-3", ", elementwise_affine=False", ", bias=False"))
    sheet.add(f"{sheet.layer(f'nn.LayerNorm({shape}{words})')}({x})")


def reduce(sheet: Sheet) -> None:
    """A mean, sum, extreme or variance over one axis or two, kept as ones or dropped."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    axes = sorted({sheet.axis(x) % len(sheet.shape(x)) for _ in range(sheet.choose((1, 1, 2)))})
    word = sheet.choose(("mean", "mean", "sum", "sum", "amax", "amin", "var"))
    words = f", keepdim={sheet.perhaps(0.5)}" + (", correction=0" if word == "var" else "")
    sheet.add(f"{x}.{word}({tuple(axes)}{words})")


def reduce_all(sheet: Sheet) -> None:
    """All elements as one number."""
    sheet.add(sheet.choose(("{}.mean()", "{}.amax()", "{}.sum() * 0.1")).format(sheet.pick()))


def embedding(sheet: Sheet) -> None:
    """Rows of a table of ten, by integers that the model has."""
    whole = [name for name, value in sheet.values.items() if value.dtype == torch.int64]
    if not whole:
        raise Rejected("no integers")
    padding = ", padding_idx=0" if sheet.perhaps(0.2) else ""
    layer = sheet.layer(f"nn.Embedding(10, {sheet.choose(WIDTHS)}{padding})")
    sheet.add(f"{layer}({sheet.choose(whole)})")


def bag(sheet: Sheet) -> None:
    """Rows of a table that are summed up or averaged, those of a padding perhaps left out."""
    whole = [
        name
        for name, value in sheet.values.items()
        if value.dtype == torch.int64 and value.dim() == 2 and value.numel()
    ]
    if not whole:
        raise Rejected("no lists of integers")
    arguments = f"mode='{sheet.choose(('sum', 'mean'))}'"
    arguments += ", padding_idx=1" if sheet.perhaps(0.3) else ""
    layer = sheet.layer(f"nn.EmbeddingBag(10, {sheet.choose(WIDTHS)}, {arguments})")
    sheet.add(f"{layer}({sheet.choose(whole)})")


def positions(sheet: Sheet) -> None:
    """BERT's sum of what stands at a place and of the place."""
    x = sheet.pick(3, lambda value: value.shape[1] <= 10)
    _, length, width = sheet.shape(x)
    layer = sheet.layer(f"nn.Embedding(10, {width})")
    sheet.add(f"{x} + {layer}(torch.arange({length}, device={x}.device))")


WRITTEN = (
    "F.softmax({q} @ {k}.transpose(-1, -2) / {root}, -1)",
    "F.softmax({q} @ {k}.transpose(-1, -2) * {root}, -1)",
    "F.softmax(({q} / {root}) @ {k}.transpose(-1, -2), -1)",
    "F.softmax(({q} @ {k}.transpose(-1, -2)).float(), -1).type_as({q})",
)
"""How people write the weights of attention."""


def attention(sheet: Sheet) -> None:
    """Two heads of attention over queries, keys and values of one input, by torch's operator or as
    people write it."""
    x = sheet.pick(3, lambda value: value.shape[-1] % 2 == 0)
    batch, length, width = sheet.shape(x)
    if not batch * length * width:
        raise Rejected("empty")
    names = []
    for _ in range(3):
        layer = sheet.layer(f"nn.Linear({width}, {width})")
        names.append(sheet.add(f"{layer}({x}).view({batch}, {length}, 2, {width // 2})"))
    q, k, v = (f"{name}.transpose(1, 2)" for name in names)
    if sheet.perhaps(0.5):
        mixed = sheet.add(f"F.scaled_dot_product_attention({q}, {k}, {v})")
    else:
        text = sheet.choose(WRITTEN).format(q=q, k=k, root=(width // 2) ** 0.5)
        mixed = sheet.add(f"{sheet.add(text)} @ {v}")
    sheet.add(f"{mixed}.transpose(1, 2).reshape({batch}, {length}, {width})")


def mixer(sheet: Sheet) -> None:
    """Layers along the second axis, between transpositions."""
    x = sheet.pick(3)
    swap = sheet.choose((".transpose(1, 2)", ".permute(0, 2, 1)", ".mT"))
    width = sheet.shape(x)[1]
    layers = [sheet.layer(f"nn.Linear({width}, {width})") for _ in range(2)]
    inner = sheet.choose(("F.gelu({0})", "F.relu({0})", "{0}")).format(f"{layers[0]}({x}{swap})")
    sheet.add(f"{layers[1]}({inner}){swap}")


def recurrence(sheet: Sheet) -> None:
    """A cell unrolled over the second axis, with the same weights at every step."""
    x = sheet.pick(3, lambda value: 1 < value.shape[1] <= 6)
    batch, length, inner = sheet.shape(x)
    width = sheet.choose((1, 2, 3, 4))
    into = sheet.layer(f"nn.Linear({inner}, {width})")
    back = sheet.layer(f"nn.Linear({width}, {width}, bias=False)")
    state = sheet.add(f"{x}.new_zeros({batch}, {width})") if sheet.perhaps(0.5) else ""
    states = []
    for i in range(length):
        past = f" + {back}({state})" if state else ""
        state = sheet.add(f"torch.tanh({into}({x}[:, {i}]){past})")
        states.append(state)
    if sheet.perhaps(0.6):
        sheet.add(f"torch.stack([{', '.join(states)}], 1)")


def gated_steps(sheet: Sheet) -> None:
    """An SRU's layer over the first axis or the second: one product of all steps, a state that each
    step multiplies and adds to."""
    x = sheet.pick(3, lambda value: 3 < value.shape[0] <= 8 or 3 < value.shape[1] <= 8)
    axis = int(not 3 < sheet.shape(x)[0] <= 8)
    length, width = sheet.shape(x)[axis], sheet.choose((1, 2, 3, 4))
    into = sheet.layer(f"nn.Linear({sheet.shape(x)[2]}, {2 * width})")
    term, gate = sheet.several(f"{into}({x}).chunk(2, -1)", 2)
    by = sheet.add(f"torch.sigmoid({gate})")
    states, state, read = list[str](), "", sheet.perhaps(0.5)
    for i in range(length):
        at = f"[{i}]" if axis == 0 else f"[:, {i}]"
        state = sheet.add(f"{by}{at} * {state} + {term}{at}" if state else f"{term}{at} + 0")
        states.append(sheet.add(f"torch.tanh({state})") if read else state)
    sheet.add(f"torch.stack([{', '.join(states)}], {axis})")


def gates(sheet: Sheet) -> None:
    """An LSTM's cell, once or twice: one product, chunks of it through different functions."""
    x = sheet.pick(2)
    width = sheet.choose((1, 2, 3, 4))
    into = sheet.layer(f"nn.Linear({sheet.shape(x)[1]}, {4 * width})")
    back = sheet.layer(f"nn.Linear({width}, {4 * width})")
    cell = past = ""
    for _ in range(sheet.choose((1, 2))):
        whole = f"{into}({x})" + (f" + {back}({past})" if past else "")
        i, f, g, o = sheet.several(f"({whole}).chunk(4, 1)", 4)
        new = f"torch.sigmoid({i}) * torch.tanh({g})"
        cell = sheet.add(f"torch.sigmoid({f}) * {cell} + {new}" if cell else new)
        past = sheet.add(f"torch.sigmoid({o}) * torch.tanh({cell})")


def forget(sheet: Sheet) -> None:
    """SRU's recurrence: element by element along the first axis."""
    x = sheet.pick(3, lambda value: 1 < value.shape[0] <= 6)
    width = sheet.shape(x)[2]
    layer = sheet.layer(f"nn.Linear({width}, {2 * width})")
    u, f = sheet.several(f"{layer}({x}).chunk(2, -1)", 2)
    gate = sheet.add(f"torch.sigmoid({f})")
    state, states = "", []
    for i in range(sheet.shape(x)[0]):
        past = f"{gate}[{i}] * {state} + " if state else ""
        state = sheet.add(f"{past}(1 - {gate}[{i}]) * {u}[{i}]")
        states.append(state)
    sheet.add(f"torch.stack([{', '.join(states)}])")


def factors(sheet: Sheet) -> None:
    """DeepFM's pairs: half of the square of the sum less the sum of the squares."""
    x = sheet.pick(3)
    sheet.add(f"0.5 * ({x}.sum(1) ** 2 - ({x} ** 2).sum(1)) * 0.3")
