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
    values, gathered = list(carried), list[list[Any]]()
    going, at = condition is None or true(condition), 0
    asked = condition is not None or not _constant(body)
    while going and (turns is None or at < turns):
        if at > MOST_TURNS:
            raise call.refused(f"its loop has more than {MOST_TURNS} turns")
        state = host(going, torch.bool)
        condition, *outputs = call.run(body, [host(at, torch.int64), state, *values])
        values, rest = outputs[: len(values)], outputs[len(values) :]
        gathered.append(rest)
        going, at = true(condition) if asked else True, at + 1
    count = len(body.outputs) - 1 - len(values)
    return *values, *(_stacked([rest[place] for rest in gathered], call) for place in range(count))


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
    tensors = [part.tensor(call.device) if isinstance(part, Host) else part for part in parts]
    return torch.stack(tensors) if tensors else torch.zeros(0, device=call.device)


def scan(call: OnnxCall, *inputs: Any) -> tuple[Any, ...]:
    """Scan: states that go along axes of the inputs, and what each step gave, stacked."""
    body = call.need("body", OnnxGraph)
    count = call.need("num_scan_inputs", int)
    if call.node.version < 9:
        return _scan_8(call, body, count, inputs)
    values, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    tensors = [part.tensor(call.device) if isinstance(part, Host) else part for part in scanned]
    results = len(body.outputs) - len(values)
    into = call.get("scan_input_axes", (0,) * count)
    back = call.get("scan_input_directions", (0,) * count)
    out = call.get("scan_output_axes", (0,) * results)
    turned = call.get("scan_output_directions", (0,) * results)
    steps = tensors[0].shape[into[0]]
    gathered: list[list[Any]] = []
    for at in range(steps):
        parts = [
            tensor.select(axis, steps - 1 - at if way else at)
            for tensor, axis, way in zip(tensors, into, back, strict=True)
        ]
        outputs = call.run(body, [*values, *parts])
        values = outputs[: len(values)]
        gathered.append(outputs[len(values) :])
    columns = []
    for place in range(results):
        rows = [row[place] for row in gathered]
        rows = [row.tensor(call.device) if isinstance(row, Host) else row for row in rows]
        columns.append(torch.stack(rows[::-1] if turned[place] else rows, out[place]))
    return *values, *columns


def _scan_8(call: OnnxCall, body: OnnxGraph, count: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """As it was once: the first input are lengths, and examples are an axis before the steps."""
    if inputs[0] is not None or call.maybe("directions", tuple) not in (None, (0,) * count):
        raise call.refused("opset 8 scans sequences of several lengths, or backwards")
    states, scanned = inputs[1 : len(inputs) - count], inputs[len(inputs) - count :]
    examples = []
    for at in range(scanned[0].shape[0]):
        values, gathered = [state[at] for state in states], list[list[Any]]()
        for step in range(scanned[0].shape[1]):
            outputs = call.run(body, [*values, *(sequence[at, step] for sequence in scanned)])
            values = outputs[: len(values)]
            gathered.append(outputs[len(values) :])
        results = [torch.stack(rows) for rows in zip(*gathered, strict=True)]
        examples.append([*values, *results])
    return tuple(torch.stack(rows) for rows in zip(*examples, strict=True))


def sequence_map(call: OnnxCall, sequence: list[Any], *more: Any) -> tuple[Any, ...]:
    """SequenceMap: a graph for each element, of other sequences too."""
    body = call.need("body", OnnxGraph)
    rows = [
        call.run(body, [item, *(other[at] if isinstance(other, list) else other for other in more)])
        for at, item in enumerate(sequence)
    ]
    return tuple(list(column) for column in zip(*rows, strict=True))


CONTROL: OperatorTable = {
    "If": OnnxOperator(branch, as_given=True),
    "Loop": OnnxOperator(loop, as_given=True),
    "Scan": OnnxOperator(scan, as_given=True),
    "SequenceMap": OnnxOperator(sequence_map, as_given=True),
}
