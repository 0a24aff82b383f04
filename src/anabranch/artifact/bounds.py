"""Bounds of what a file may say, checked before anything is allocated or walked through.

counts      tasks, streams, waits, results: as many as a network may have
places      a slot is as large as its value, the arena no larger than all of them in a row
memory      values, weights and workspaces together fit the machine
signature   one leaf for each place of the trees, inputs in order, results that exist
texts       no control characters, which a terminal would obey
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from pydantic import JsonValue

from anabranch.errors import VerifyError, shown
from anabranch.ir import ops
from anabranch.ir.ambient import SWITCHES
from anabranch.ir.graph import types
from anabranch.ir.plan import Plan, Signature, ValueCheck, aligned
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph, value_types
from anabranch.ir.trees import read_tree
from anabranch.ir.types import TensorType

MAX_TASKS = 20_000
MAX_STREAMS = 256
MAX_WAITS = 200_000
MAX_STEPS = 20_000_000
"""Of the proof that no two launches touch the same bytes, some 10 s; a plan of 1,500 tasks takes
fewer than a million."""
MAX_NUMBER = 1 << 48
MAX_NAME = 4096
VARIANT = re.compile(r"[A-Za-z0-9_.:+]*")
MAX_EXTENT = 1 << 16
"""Of a number in a kernel's variant: tiles, warps, stages, splits."""
CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
PRINTED = bytes((9, 10, 13, *range(32, 127)))
ESCAPED = re.compile(
    rb"(?<!\\)(?:\\\\)*\\(?:[bf]|u00(?:0[0-8bcef]|1[0-9a-f]|7f|[89][0-9a-f])|u20(?:0[ef]|2[a-e]|6[6-9]))"
    rb"|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]",
    re.IGNORECASE,
)
"""The same in a JSON text."""


def check_counts(tasks: TaskGraph, schedule: Schedule) -> None:
    """VerifyError for more tasks, streams or waits than any plan has."""
    launches = schedule.launches
    _unless(len(tasks.tasks) <= MAX_TASKS, f"it has {len(tasks.tasks)} tasks")
    _unless(len(launches) <= MAX_TASKS, f"it has {len(launches)} launches")
    streams = schedule.streams
    _unless(streams <= MAX_STREAMS, f"it has {streams} streams")
    waits = schedule.waits
    _unless(waits <= MAX_WAITS and waits * streams <= MAX_STEPS, f"it has {waits} waits")
    for launch in launches:
        _unless(0 <= launch.stream <= streams, f"{launch.task} is on stream {launch.stream}")
        once = len(set(launch.waits)) == len(launch.waits)
        _unless(once, f"{launch.task} waits for one launch twice")


def check_places(plan: Plan) -> None:
    """VerifyError for a slot larger than its value, an arena larger than all slots in a row, and
    for types that would take more memory than the machine has."""
    table = value_types(plan.tasks)
    for slot in plan.slots:
        fits = slot.value in table and slot.nbytes <= aligned(table[slot.value].nbytes)
        _unless(fits, f"%{slot.value} has a place of {slot.nbytes} B, which is not its size")
    row = sum(aligned(slot.nbytes) for slot in plan.slots if slot.space == "arena")
    row += sum(aligned(item.nbytes) for item in plan.workspaces)
    _unless(plan.arena_bytes <= row, f"its arena of {plan.arena_bytes} B holds values of {row} B")
    for task in plan.tasks.tasks:
        if task.kernel is not None:
            _check_variant(str(task.kernel.variant), task.name)
    if plan.spec.kind == "cpu":
        need, most = _need(plan, table), _memory()
        _unless(need <= most, f"it takes {need:,} B of memory, and this machine has {most:,} B")


def _check_variant(variant: str, task: str) -> None:
    legal = VARIANT.fullmatch(variant) is not None and len(variant) <= MAX_NAME
    _unless(legal, f"the variant of {task}'s kernel is no name")
    sane = all(len(n) < 9 and int(n) <= MAX_EXTENT for n in re.findall(r"\d+", variant))
    _unless(sane, f"the variant of {task}'s kernel is beyond all tiles")


def _need(plan: Plan, table: dict[str, TensorType]) -> int:
    """Bytes: inputs, constants, the arena, and what kernels allocate while they run."""
    held = sum(table[value.name].nbytes for value in plan.tasks.inputs)
    held += sum(table[constant.name].nbytes for constant in plan.tasks.constants)
    own = max((_temporary(task) for task in plan.tasks.tasks), default=0)
    return held + plan.arena_bytes + plan.pool_bytes + own


def _temporary(task: Task) -> int:
    if task.kernel is None:
        return 0
    body, table = task.kernel.body, types(task.kernel.body)
    returned = {ref.name for ref in body.outputs}
    return sum(
        result_type.nbytes
        for node in body.nodes
        if not ops.is_view(node, table)
        for name, result_type in zip(node.results, node.types, strict=True)
        if name not in returned
    )


def _memory() -> int:
    """Bytes that a process may have here."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return MAX_NUMBER
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError):
        return total
    return total if limit == resource.RLIM_INFINITY else min(total, limit)


def check_spec(spec: TargetSpec) -> None:
    """VerifyError for numbers that no machine has."""
    for number in _numbers([getattr(spec, field.name) for field in fields(spec)]):
        _unless(
            math.isfinite(number) and 0 <= number < 1e30, f"its machine has {number} of something"
        )


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _numbers(item)


def check_signature(signature: Signature, tasks: TaskGraph) -> None:
    """VerifyError for a signature whose leaves are not those of its trees, or that names other
    values than the tasks have. InputError for a class of an argument that is not imported."""
    arguments = read_tree(signature.input_tree)
    call = arguments.num_children == 2 and arguments.type is tuple
    kinds = [child.type for child in arguments.children()] if call else []
    keys = arguments.child(1).context if kinds == [tuple, dict] else [None]
    _unless(all(isinstance(key, str) for key in keys), "its inputs are no arguments of a call")
    input_names = [leaf.ref.name for leaf in signature.inputs if leaf.ref is not None]
    inputs = {value.name: value.type for value in tasks.call_inputs}
    fits = len(signature.inputs) == arguments.num_leaves and input_names == list(inputs)
    _unless(fits, "its signature has other inputs than its tasks")
    results = read_tree(signature.output_tree, plain=True)
    _unless(len(signature.outputs) == results.num_leaves, "its results are not those of its tree")
    outputs, table = {ref.name for ref in tasks.outputs}, value_types(tasks)
    most = len(signature.mutations) + len(signature.outputs)
    for leaf in signature.outputs:
        valid = leaf.ref is None or leaf.ref.name in outputs or leaf.ref.name in inputs
        _unless(valid, "its signature returns a value that is no output")
        _unless(0 <= leaf.number < most, f"it returns tensor {leaf.number} of one value")
    changed = [name for name, _ in signature.mutations]
    _unless(len(set(changed)) == len(changed), "it writes to one input twice")
    for name, ref in signature.mutations:
        valid = name in inputs and ref.name in outputs
        _unless(valid, f"it writes %{ref.name} to %{name}, which is not an output to an input")
        old, new = inputs[name], table[ref.name]
        same = (old.shape, old.dtype) == (new.shape, new.dtype)
        _unless(same, f"it writes {new.text} to %{name}, which is {old.text}")
    for check in signature.checks:
        _check_check(check, inputs, outputs, table)
    _check_asked(signature)


def _check_check(
    check: ValueCheck,
    inputs: Mapping[str, TensorType],
    outputs: Collection[str],
    table: Mapping[str, TensorType],
) -> None:
    """That a call can make the check: of a value that it has, of a dtype that torch takes."""
    if check.ref is None:
        return
    name = check.ref.name
    _unless(name in outputs or name in inputs, f"it checks %{name}, which is no output")
    type = table[name]
    told = type.dtype == torch.int32 if check.kind == "linalg" else type.numel == 1
    _unless(told and not type.dtype.is_complex, f"it checks {type.text} by {check.kind}")


def _check_asked(signature: Signature) -> None:
    tensors = {place for place, leaf in enumerate(signature.inputs) if leaf.ref is not None}
    once = len({(asked.leaf, asked.what) for asked in signature.asked}) == len(signature.asked)
    _unless(once, "one thing is asked of an input twice")
    for asked in signature.asked:
        _unless(asked.leaf in tensors, f"{asked.what} is asked of leaf {asked.leaf}, no tensor")
    for question, _ in signature.ambient.asked:
        _unless(question in SWITCHES, f"{question!r} is no setting of torch that a model asks for")


def check_texts(json: bytes, rest: Callable[[], bytes]) -> None:
    """VerifyError for a JSON text with control characters that `rest`, the text without what may
    have some, has as well."""
    suspect = any(mark in json for mark in (rb"\u", rb"\b", rb"\f", b"\x7f")) or not json.isascii()
    if suspect and ESCAPED.search(json):
        _unless(ESCAPED.search(rest()) is None, "a text of it holds control characters")


def check_source(source: bytes) -> None:
    """VerifyError for the text of a kernel that a terminal would obey."""
    if source.isascii() and not source.translate(None, PRINTED):
        return
    match = CONTROLS.search(source.decode())
    _unless(match is None, "the text of a kernel holds control characters")


def plain(value: JsonValue) -> JsonValue:
    """The value with control characters in its texts escaped."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {shown(key): plain(item) for key, item in value.items()}
    return value


def _unless(condition: bool, message: str) -> None:
    if not condition:
        raise VerifyError(message)
