"""A drawing that fails -> a smaller one that fails in the same way.

    fewer outputs       one of them, all but one, or a value in the middle instead of all
    cut above           a value becomes an input of its own
    passed over         a step's reader reads what the step read
    a plainer form      a tuple

A smaller model that still fails is kept, and the same way is tried further on, all ways again and
again, until none helps or the trials are used up. What the outputs do not read is dropped each
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from anabranch.fuzz.drawing import VALUE, DrawnInput, DrawnModel, DrawnStep, values

TRIALS = 200


def shrunk(
    drawing: DrawnModel, fails: Callable[[DrawnModel], bool], trials: int = TRIALS
) -> DrawnModel:
    """The smallest drawing found for which `fails` still holds."""
    left, better = trials, True
    while better:
        better = False
        for way in (_dead, _fewer_outputs, _one_output, _cut_above, _passed_over, _plainer):
            tried = 0
            while tried < len(smaller := list(way(drawing))):
                if left == 0:
                    return drawing
                left -= 1
                if _runs(smaller[tried]) and fails(smaller[tried]):
                    drawing, better = smaller[tried], True
                else:
                    tried += 1
    return drawing


def pruned(drawing: DrawnModel) -> DrawnModel:
    """The drawing without what its outputs do not read. A line that writes in place stays while
    anybody reads what it writes to."""
    wanted, steps = set(drawing.outputs), []
    for step in reversed(drawing.steps):
        writes = "_(" in step.text or "inplace" in step.text
        if wanted & set(step.results) or (writes and wanted & set(step.uses)):
            wanted.update(step.uses)
            steps.append(step)
    layers = {name for step in steps for name in step.layers}
    return replace(
        drawing,
        inputs=tuple(g for g in drawing.inputs if g.name in wanted) or drawing.inputs[:1],
        layers=tuple(layer for layer in drawing.layers if layer.name in layers),
        steps=tuple(reversed(steps)),
    )


def _dead(drawing: DrawnModel) -> Iterator[DrawnModel]:
    whole = pruned(drawing)
    if len(whole.steps) < len(drawing.steps):
        yield whole


def _fewer_outputs(drawing: DrawnModel) -> Iterator[DrawnModel]:
    """Half of them, then all but one."""
    names = drawing.outputs
    if len(names) > 2:
        yield _returning(drawing, names[: len(names) // 2])
        yield _returning(drawing, names[len(names) // 2 :])
    for i in range(len(names) if len(names) > 1 else 0):
        yield _returning(drawing, names[:i] + names[i + 1 :])


def _one_output(drawing: DrawnModel) -> Iterator[DrawnModel]:
    """A value in the middle, where one is left that would not do to drop."""
    for step in drawing.steps if len(drawing.outputs) == 1 else ():
        for name in step.results:
            smaller = _returning(drawing, (name,))
            if len(smaller.steps) < len(drawing.steps):
                yield smaller


def _cut_above(drawing: DrawnModel) -> Iterator[DrawnModel]:
    tensors = _values_or_none(drawing)
    for step in reversed(drawing.steps) if tensors else ():
        yield from _cut(drawing, step, tensors)


def _passed_over(drawing: DrawnModel) -> Iterator[DrawnModel]:
    tensors = _values_or_none(drawing)
    for step in drawing.steps if tensors else ():
        yield from _without(drawing, step, tensors)


def _values_or_none(drawing: DrawnModel) -> dict[str, Tensor]:
    """Its values; none of a model that does not run."""
    try:
        return values(drawing)
    except RuntimeError:
        return {}


def _plainer(drawing: DrawnModel) -> Iterator[DrawnModel]:
    if drawing.form != "tuple":
        yield replace(drawing, form="tuple")


def _returning(drawing: DrawnModel, outputs: tuple[str, ...]) -> DrawnModel:
    return pruned(replace(drawing, outputs=outputs))


def _cut(drawing: DrawnModel, step: DrawnStep, tensors: dict[str, Tensor]) -> Iterator[DrawnModel]:
    """The results of a step as inputs."""
    if any(not tensors[name].is_floating_point() for name in step.results):
        return
    taken = {argument.name for argument in drawing.inputs}
    free = (f"x{i}" for i in range(1000) if f"x{i}" not in taken)
    names = dict(zip(step.results, free, strict=False))
    new_inputs = tuple(
        DrawnInput(new, f"normal({tuple(tensors[old].shape)}, {int(old[1:])}{{shift}})")
        for old, new in names.items()
    )
    steps = tuple(_reading(other, names) for other in drawing.steps if other is not step)
    outputs = tuple(names.get(name, name) for name in drawing.outputs)
    smaller = replace(drawing, inputs=drawing.inputs + new_inputs, steps=steps, outputs=outputs)
    smaller = pruned(smaller)
    if len(smaller.steps) < len(drawing.steps):
        yield smaller


def _without(
    drawing: DrawnModel, step: DrawnStep, tensors: dict[str, Tensor]
) -> Iterator[DrawnModel]:
    """Without the step, what it read in place of its result."""
    if len(step.results) != 1:
        return
    (name,) = step.results
    for used in dict.fromkeys(step.uses):
        if (
            tensors[used].shape == tensors[name].shape
            and tensors[used].dtype == tensors[name].dtype
        ):
            names = {name: used}
            steps = tuple(_reading(other, names) for other in drawing.steps if other is not step)
            outputs = tuple(names.get(output, output) for output in drawing.outputs)
            yield pruned(replace(drawing, steps=steps, outputs=outputs))


def _reading(step: DrawnStep, names: dict[str, str]) -> DrawnStep:
    return replace(step, text=VALUE.sub(lambda match: names.get(match[0], match[0]), step.text))


def _runs(drawing: DrawnModel) -> bool:
    """Whether torch itself can run it: only then is a failure ours."""
    try:
        values(drawing)
    except Exception:
        return False
    return True
