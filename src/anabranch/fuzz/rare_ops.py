"""Steps that the zoo's networks do not have, and users' do: torch's larger modules, indexing by
lists, integers, half precision left for a moment, tensors without elements."""

from __future__ import annotations

from anabranch.fuzz.program_builder import Rejected, Sheet

NORMS = (
    *("nn.GroupNorm(1, {c})", "nn.GroupNorm({c}, {c})", "nn.InstanceNorm2d({c}, affine=True)"),
    *("nn.GroupNorm(1, {c}, affine=False)", "nn.BatchNorm2d({c}, affine=False)"),
    *("nn.InstanceNorm2d({c})", "nn.LocalResponseNorm(2)"),
)
IMAGES = (
    *("nn.ConvTranspose2d({c}, 3, 3, padding=1)", "nn.ConvTranspose2d({c}, 2, 2, stride=2)"),
    *("nn.Upsample(scale_factor=2)", "nn.PReLU({c})", "nn.Dropout(0.5)", "nn.Identity()"),
    *("nn.Upsample(scale_factor=1.5, mode='bicubic')", "nn.Unfold(3, padding=1, stride=2)"),
    *("nn.ZeroPad2d((1, 0, 2, 1))", "nn.ReflectionPad2d((0, 0, 0, 0))", "nn.Softmax(1)"),
    *("nn.ReflectionPad2d((1, 0, 0, 1))", "nn.ReplicationPad2d((1, 2, 0, 1))", "nn.LPPool2d(2, 2)"),
    *("nn.CircularPad2d((1, 0, 0, 1))", "nn.ConstantPad2d((1, -1, 2, 0), 0.5)", "nn.Softmax2d()"),
    *("nn.AvgPool2d(3, 2, 1, divisor_override=4)", "nn.AvgPool2d(2, 2, 1, ceil_mode=True)"),
    *("nn.MaxPool2d(3, 2, 1, dilation=2, ceil_mode=True)", "nn.AdaptiveMaxPool2d((2, 1))"),
    *("nn.PixelUnshuffle(2)", "nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)"),
    *("nn.Sequential(nn.Conv2d({c}, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))",),
)
SEQUENCES = (
    *("{lstm}({x})[0]", "{lstm}({x})[1][0]", "{gru}({x})[0]", "{rnn}({x})[0]"),
    *("{heads}({x}, {x}, {x})[0]", "{layer}({x})"),
)
CELLS = {
    "lstm": "nn.LSTM({w}, 3, batch_first=True)",
    "gru": "nn.GRU({w}, 2, batch_first=True)",
    "rnn": "nn.RNN({w}, 3)",
    "heads": "nn.MultiheadAttention({w}, 1, batch_first=True)",
    "layer": "nn.TransformerEncoderLayer({w}, 1, 8, batch_first=True, norm_first=True)",
}
INDEXED = (
    *("{0}[..., [0, -1]]", "{0}[[0]]", "{0}[None, ..., None]", "{0}.flip(-1)", "{0}.roll(1, -1)"),
    "{0}[..., torch.tensor([0, 0], device={0}.device)]",
    "{0}.index_select(-1, torch.tensor([0, 0], device={0}.device))",
    *("{0}.cumsum(-1)", "{0}.max(-1)[0]", "{0}.min(0).values", "{0}.sort(-1)[0]"),
    *("torch.cat([{0}[..., :0], {0}], -1)", "torch.tril({0})", "{0}.triu(1)", "{0}.movedim(0, -1)"),
    *(
        "{0}.unfold(-1, 1, 1)",
        "{0}.diagonal(0, 0, -1)",
        "{0}.norm(dim=-1)",
        "F.normalize({0}, dim=-1)",
    ),
    *("{0}[..., ::2].flip(-1)", "{0}.expand(2, *{0}.shape).sum(0)", "{0}.roll((1, -1), (0, -1))"),
    *(
        "torch.diff({0}, dim=-1)",
        "{0}.repeat_interleave(2, 0)",
        "torch.var_mean({0}, -1, correction=0)[0]",
    ),
    "{0}.gather(-1, torch.zeros_like({0}, dtype=torch.int64))",
    "torch.zeros_like({0}).scatter_add(-1, torch.zeros_like({0}, dtype=torch.int64), {0}) * 0.3",
    "torch.zeros_like({0}).index_add(0, torch.tensor([0, 0], device={0}.device), {0}[[0, -1]])",
    *("F.glu({0}, -1)", "{0}.std(-1, correction=0)", "torch.logsumexp({0}, -1)", "{0}.prod(-1)"),
)
WIDENED = (
    *("F.softmax({0}.float(), -1).type_as({0})", "({0}.float() * 2 + 1).to({0}.dtype)"),
    *("{0}.double().mean(-1).to({0}.dtype)", "{0} * torch.tensor(2.0).to({0}.dtype)"),
)
PRODUCTS = (
    "torch.einsum('...i,...j->...ij', {0}, {0})",
    "torch.einsum('...i,...i->...', {0}, {0})",
    "{0}[..., :1] @ {0}[..., :1].transpose(-1, -2)",
    "{0}[..., :1, :] @ {0}.transpose(-1, -2)",
    "torch.outer({0}.flatten()[:3], {0}.flatten()[:5])",
    "torch.bilinear({0}, {0}, torch.ones(2, {0}.shape[-1], {0}.shape[-1]).to({0}), None) * 0.1",
)


def image_module(sheet: Sheet) -> None:
    """A norm or a module of images: transposed convolutions, interpolation, patches, padding."""
    x = sheet.pick(4)
    text = sheet.choose(NORMS + IMAGES).format(c=sheet.shape(x)[1])
    sheet.add(f"{sheet.layer(text)}({x})")


def patches(sheet: Sheet) -> None:
    """Each pixel as often as there are patches that it lies in, less those of the edge."""
    x = sheet.pick(4)
    window = f"3, padding=1, stride={sheet.choose((1, 2, 3))}"
    size = tuple(sheet.shape(x)[2:])
    sheet.add(f"F.fold(F.unfold({x}, {window}), {size}, {window}) * 0.3")


def sampled(sheet: Sheet) -> None:
    """An image turned and stretched a little, as networks do that straighten what they see."""
    x = sheet.pick(4, lambda value: value.numel() > 0)
    places = f"torch.tensor([[[0.9, 0.2, 0.1], [-0.3, 1.2, -0.2]]]).to({x})"
    grid = f"F.affine_grid({places}.expand({sheet.shape(x)[0]}, 2, 3), {x}.shape, False)"
    edge = sheet.choose(("zeros", "border"))
    sheet.add(f"F.grid_sample({x}, {grid}, padding_mode='{edge}', align_corners=False)")


def sequence_module(sheet: Sheet) -> None:
    """An LSTM, GRU, RNN, attention or encoder layer of torch's, its result or its state."""
    x = sheet.pick(3, lambda value: value.numel() > 0)
    text = sheet.choose(SEQUENCES)
    cell = next(name for name in CELLS if f"{{{name}}}" in text)
    layer = sheet.layer(CELLS[cell].format(w=sheet.shape(x)[-1]))
    sheet.add(text.format(x=x, **{cell: layer}))


def indexed(sheet: Sheet) -> None:
    """An element, row or running value by index, list or scan; empty results are dropped."""
    x = sheet.pick(ok=lambda value: value.dim() > 0 and value.numel() > 0)
    name = sheet.add(sheet.choose(INDEXED).format(x))
    if not sheet.values[name].numel():
        sheet.drop(name)


def widened(sheet: Sheet) -> None:
    """A higher precision for one operator, as half-precision models ask for it."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    sheet.add(sheet.choose(WIDENED).format(x))


def product(sheet: Sheet) -> None:
    """A product that is written as an equation of letters (einsum)."""
    x = sheet.pick(ok=lambda value: value.dim() > 0)
    sheet.add(f"{sheet.choose(PRODUCTS).format(x)} * 0.3")


def masked_softmax(sheet: Sheet) -> None:
    """What is masked becomes minus infinity; the first column never is."""
    x = sheet.pick(ok=lambda value: value.dim() > 1)
    mask = f"torch.ones({sheet.shape(x)[-2:]}, dtype=torch.bool, device={x}.device).triu(1)"
    sheet.add(f"F.softmax({x}.masked_fill({mask}, float('-inf')), -1)")


def integers(sheet: Sheet) -> None:
    """Arithmetic on integers, for embeddings to read or to be returned; or as floats."""
    whole = [name for name, value in sheet.values.items() if not value.is_floating_point()]
    if not whole:
        raise Rejected("no integers")
    weight = sheet.weight(1)
    words = ("({0} + 3) % 10", "({0} * 7 + 1).remainder(10)", "torch.where({0} > 4, {0}, 0)")
    text = sheet.choose(
        (*words, "{0}.flip(0)", "{0}.to({1}.dtype) * 0.1", "({0} > 4).to({1}.dtype)")
    )
    sheet.add(text.format(sheet.choose(whole), weight))
