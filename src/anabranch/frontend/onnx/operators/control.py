"""If, Loop, Scan and SequenceMap: Python's own branches and loops.

Where a condition or a count is known while a model is captured, its way is taken and nothing of the
others is left. Where only values tell, they are asked for, and the model is cut there as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.graph import OnnxGraph
from anabranch.frontend.onnx.host import Host, host
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

MOST_TURNS = 1 << 20
"""Of a loop whose end nobody asks for: one of 2**63 is a mistake, or meant to be."""


def branch(call: OnnxCall, condition: Any) -> tuple[Any, ...]:
    """If."""
    name = "then_branch" if true(condition) else "else_branch"
    return tuple(call.run(call.need(name, OnnxGraph), ()))


def true(value: Any) -> bool:
    """What a condition of one element says; a tensor is asked for it."""
    if isinstance(value, Host):
        return bool(value.array.reshape(-1)[0])
    return bool(value.reshape(-1)[0] if value.numel() == 1 else value)


def loop(call: OnnxCall, most: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    """Loop: its states, and what each turn gave, stacked."""
    body = call.need("body", OnnxGraph)
    turns = None if most is None else _count(most)
    values, given = list(carried), list[list[Any]]()
    going, at = condition is None or true(condition), 0
    asked = condition is not None or not _constant(body)
    while going and (turns is None or at < turns):
        if at > MOST_TURNS:
            raise call.refused(f"its loop has more than {MOST_TURNS} turns")
        state = host(going, torch.bool)
        condition, *made = call.run(body, [host(at, torch.int64), state, *values])
        values, rest = made[: len(values)], made[len(values) :]
        given.append(rest)
        going, at = true(condition) if asked else True, at + 1
    count = len(body.outputs) - 1 - len(values)
    return *values, *(_stacked([rest[one] for rest in given], call) for one in range(count))


def _constant(body: OnnxGraph) -> bool:
    """Whether a loop's condition is passed on as it came."""
    names = {body.outputs[0]}
    for node in reversed(body.nodes):
        if node.op == "Identity" and node.outputs[0] in names:
            names.add(node.inputs[0])
    return len(body.inputs) > 1 and body.inputs[1].name in names


def _count(value: Any) -> int:
    if isinstance(value, Host):
        return int(value.array.reshape(-1)[0])
    return int(value.reshape(-1)[0])


def _stacked(parts: Sequence[Any], call: OnnxCall) -> Any:
    tensors = [one.tensor(call.device) if isinstance(one, Host) else one for one in parts]
    return torch.stack(tensors) if tensors else torch.zeros(0, device=call.device)


def scan(call: OnnxCall, *given: Any) -> tuple[Any, ...]:
    """Scan: states that go along axes of the inputs, and what each step gave, stacked."""
    body = call.need("body", OnnxGraph)
    count = call.need("num_scan_inputs", int)
    if call.node.version < 9:
        return _scan_8(call, body, count, given)
    values, scanned = list(given[: len(given) - count]), given[len(given) - count :]
    tensors = [one.tensor(call.device) if isinstance(one, Host) else one for one in scanned]
    results = len(body.outputs) - len(values)
    into = call.get("scan_input_axes", (0,) * count)
    back = call.get("scan_input_directions", (0,) * count)
    out = call.get("scan_output_axes", (0,) * results)
    turned = call.get("scan_output_directions", (0,) * results)
    steps = tensors[0].shape[into[0]]
    made: list[list[Any]] = []
    for at in range(steps):
        parts = [
            one.select(axis, steps - 1 - at if way else at)
            for one, axis, way in zip(tensors, into, back, strict=True)
        ]
        found = call.run(body, [*values, *parts])
        values = found[: len(values)]
        made.append(found[len(values) :])
    columns = []
    for one in range(results):
        rows = [row[one] for row in made]
        rows = [row.tensor(call.device) if isinstance(row, Host) else row for row in rows]
        columns.append(torch.stack(rows[::-1] if turned[one] else rows, out[one]))
    return *values, *columns


def _scan_8(call: OnnxCall, body: OnnxGraph, count: int, given: Sequence[Any]) -> tuple[Any, ...]:
    """As it was once: the first input are lengths, and examples are an axis before the steps."""
    if given[0] is not None or call.maybe("directions", tuple) not in (None, (0,) * count):
        raise call.refused("opset 8 scans sequences of several lengths, or backwards")
    states, scanned = given[1 : len(given) - count], given[len(given) - count :]
    examples = []
    for at in range(scanned[0].shape[0]):
        values, made = [one[at] for one in states], list[list[Any]]()
        for step in range(scanned[0].shape[1]):
            found = call.run(body, [*values, *(one[at, step] for one in scanned)])
            values = found[: len(values)]
            made.append(found[len(values) :])
        results = [torch.stack(rows) for rows in zip(*made, strict=True)]
        examples.append([*values, *results])
    return tuple(torch.stack(rows) for rows in zip(*examples, strict=True))


def sequence_map(call: OnnxCall, sequence: list[Any], *more: Any) -> tuple[Any, ...]:
    """SequenceMap: a graph for each element, of other sequences too."""
    body = call.need("body", OnnxGraph)
    made = [
        call.run(body, [one, *(other[at] if isinstance(other, list) else other for other in more)])
        for at, one in enumerate(sequence)
    ]
    return tuple(list(column) for column in zip(*made, strict=True))


CONTROL: OperatorTable = {
    "If": OnnxOperator(branch, as_given=True),
    "Loop": OnnxOperator(loop, as_given=True),
    "Scan": OnnxOperator(scan, as_given=True),
    "SequenceMap": OnnxOperator(sequence_map, as_given=True),
}
