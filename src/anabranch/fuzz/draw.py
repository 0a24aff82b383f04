"""A seed -> a DrawnModel: inputs, then steps one by one, then what is returned.

    x0 (2,3,8,8) --conv--> v0 --relu--> v1 --+
                            +---------------cat--> v2 --> returned, with v0 perhaps

What nobody reads is returned, or left dead. Equal seeds give equal drawings.
"""

from __future__ import annotations

from typing import get_args

from anabranch.fuzz.drawing import DrawnInput, DrawnModel, ReturnForm
from anabranch.fuzz.kinds import KINDS
from anabranch.fuzz.program_builder import Rejected, Sheet

FEWEST_KINDS, MOST_KINDS = 3, 18
"""Kinds in a drawing; some write several lines."""
LINES = 40
"""No kind begins after this many."""
BATCHES, CHANNELS, SIDES = (1, 1, 2, 3), (1, 2, 3, 4, 6, 8), (1, 2, 5, 7, 8, 9)
ATTEMPTS = 8


def draw(seed: int) -> DrawnModel:
    """The drawing of this seed."""
    sheet = Sheet(seed)
    for _ in range(sheet.choose((1, 1, 2, 3))):
        _input(sheet)
    names, weights = list(KINDS), [weight for _, weight in KINDS.values()]
    for _ in range(sheet.dice.randint(FEWEST_KINDS, MOST_KINDS)):
        if len(sheet.steps) >= LINES:
            break
        for _ in range(ATTEMPTS):
            (sheet.kind,) = sheet.dice.choices(names, weights)
            try:
                KINDS[sheet.kind][0](sheet)
                break
            except Rejected:
                continue
    form: ReturnForm = sheet.choose(get_args(ReturnForm))
    outputs = _outputs(sheet)
    return DrawnModel(
        seed, tuple(sheet.inputs), tuple(sheet.layers), tuple(sheet.steps), outputs, form
    )


def _input(sheet: Sheet) -> None:
    """An image, a sequence, rows, a vector, a number, or integers; some lie in memory otherwise."""
    batch, seed = sheet.choose(BATCHES), sheet.seed()
    if sheet.inputs and sheet.perhaps(0.08):
        _shared(sheet)
        return
    sort = sheet.choose(
        ("image", "image", "image", "sequence", "rows", "vector", "number", "tokens")
    )
    if sort == "tokens" and sheet.perhaps(0.5):
        sheet.add_input(f"signed({(batch, sheet.choose((1, 2, 5, 7)))}, {seed}{{shift}})")
        return
    if sort == "tokens":
        sheet.add_input(f"whole({(batch, sheet.choose((1, 2, 5, 7)))}, 10, {seed}{{shift}})")
        return
    channels, side = sheet.choose(CHANNELS), sheet.choose(SIDES)
    shape: tuple[int, ...] = {
        "image": (batch, channels, side, side if sheet.perhaps(0.7) else sheet.choose(SIDES)),
        "sequence": (batch, sheet.choose((1, 2, 3, 5)), channels),
        "rows": (batch, channels),
        "vector": (channels,),
        "number": (),
    }[sort]
    text = f"{'finite' if sheet.perhaps(0.4) else 'normal'}({shape}, {seed}{{shift}})"
    if sheet.perhaps(0.1) and len(shape) > 1:
        text += sheet.choose((".transpose(-1, -2)", ".flip(0)", "[..., :1]"))
    elif sheet.perhaps(0.1) and len(shape) == 4:
        text += ".contiguous(memory_format=torch.channels_last)"
    sheet.add_input(text)


def _shared(sheet: Sheet) -> None:
    """A part of the input before, or all of it: both lie in one memory, and none is written to."""
    before = sheet.inputs[-1]
    if ":=" not in before.text and not before.name.startswith("("):
        sheet.inputs[-1] = DrawnInput(before.name, f"({before.name} := {before.text})")
    whole = sheet.values[before.name]
    parts = ["", "[...]"] + (["[:1]", ".transpose(0, -1)", "[..., :1]"] if whole.dim() else [])
    sheet.add_input(f"{before.name}{sheet.choose(parts)}")


def _outputs(sheet: Sheet) -> tuple[str, ...]:
    """Most of what nobody reads; sometimes a value in the middle, an input, or one twice."""
    read = {name for step in sheet.steps for name in step.uses}
    unread = [name for name in sheet.values if name not in read]
    chosen = [name for name in unread if sheet.perhaps(0.85)] or unread[-1:]
    if sheet.perhaps(0.3):
        chosen.append(sheet.choose(list(sheet.values)))
    if sheet.perhaps(0.1):
        chosen.append(sheet.choose(sheet.inputs).name)
    if sheet.perhaps(0.1) and chosen:
        chosen.append(sheet.choose(chosen))
    sheet.dice.shuffle(chosen)
    return tuple(chosen) or (next(reversed(sheet.values)),)
