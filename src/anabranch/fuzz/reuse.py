"""Steps that repeat what is there: the same line again, or the same weights on another value."""

from __future__ import annotations

from anabranch.fuzz.drawing import VALUE
from anabranch.fuzz.program_builder import Rejected, Sheet


def repeated(sheet: Sheet) -> None:
    """A line once more, as it stands."""
    steps = [step for step in sheet.steps if "_(" not in step.text]
    if not steps:
        raise Rejected("nothing to repeat")
    step = sheet.choose(steps)
    sheet.several(step.text, len(step.results))


def shared(sheet: Sheet) -> None:
    """A line with layers, once more on a value of the same shape."""
    steps = [step for step in sheet.steps if step.layers and step.uses]
    if not steps:
        raise Rejected("no layer yet")
    step = sheet.choose(steps)
    old = sheet.choose(step.uses)
    new = sheet.pick(ok=lambda value: value.shape == sheet.values[old].shape)
    text = VALUE.sub(lambda match: new if match[0] == old else match[0], step.text)
    sheet.several(text, len(step.results))
