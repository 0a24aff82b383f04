"""What a file says in numbers and texts is within what a plan may say."""

from __future__ import annotations

import os
import resource
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from torch.utils import _pytree as pytree

from anabranch.artifact.bounds import (
    MAX_NUMBER,
    MAX_STREAMS,
    check_counts,
    check_places,
    check_signature,
    check_source,
    check_spec,
    check_texts,
    plain,
)
from anabranch.errors import VerifyError
from anabranch.ir.ambient import Ambient
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Constant, Input, Ref, State
from anabranch.ir.input_guards import InputGuard
from anabranch.ir.plan import Leaf, Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph, parse_type
from anabranch.ir.trees import tree_text

SPEC = TargetSpec("cuda", "a GPU", 8, (9, 0), (("f16", 1e15),))
TASKS = TaskGraph("net", (), (), (), (), ())


@pytest.mark.parametrize(
    "launches",
    [
        [Launch(f"t{i}", i) for i in range(MAX_STREAMS + 1)],
        [Launch("a", 0), Launch("b", 7)],
        [Launch("a", -1)],
        [Launch("a", 0), Launch("b", 1, ("a", "a"))],
    ],
)
def test_schedules_that_no_plan_has_are_refused(launches: list[Launch]) -> None:
    check_counts(TASKS, Schedule("s", (Launch("a", 0), Launch("b", 1, ("a",)))))
    with pytest.raises(VerifyError):
        check_counts(TASKS, Schedule("s", tuple(launches)))


@pytest.mark.parametrize(
    "changed",
    [
        {"sms": -1},
        {"bandwidth": float("nan")},
        {"launch_us": float("inf")},
        {"peak_flops": (("f16", 1e31),)},
        {"capability": (-9, 0)},
    ],
)
def test_machines_that_nobody_has_are_refused(changed: dict[str, Any]) -> None:
    check_spec(replace(SPEC, calibration=Calibration()))
    with pytest.raises(VerifyError):
        check_spec(replace(SPEC, **changed))


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202e", "\x08", "\x7f"])
def test_texts_that_a_terminal_obeys_are_refused(text: str) -> None:
    check_source("# conv: μ = 3\n\tx = 1\r\n".encode())
    with pytest.raises(VerifyError):
        check_source(f"x = '{text}'".encode())
    json = f'{{"a": "\\u{ord(text[0]):04x}"}}'.encode()
    with pytest.raises(VerifyError):
        check_texts(json, lambda: json)
    check_texts(json, lambda: b"{}")  # where it may have some


def test_facts_for_people_are_shown_with_such_characters_spelled_out() -> None:
    assert plain({"a\x1b": ["b\x07", 3, None]}) == {"a\\x1b": ["b\\x07", 3, None]}


def schedule(*launches: Launch) -> Schedule:
    return Schedule("s", launches)


def waiting(count: int, streams: int = 1) -> Schedule:
    """So many waits on so many streams."""
    others = (Launch(f"t{i}", i) for i in range(streams - 1))
    return schedule(*others, Launch("last", streams - 1, tuple(map(str, range(count)))))


ONE = Task("a", parse_graph("graph a {\n  return\n}"))
LEGAL_COUNTS = {
    "tasks": (replace(TASKS, tasks=(ONE,) * 20_000), schedule()),
    "launches": (TASKS, schedule(*(Launch("a", 0),) * 20_000)),
    "streams": (TASKS, schedule(*(Launch(f"t{i}", i) for i in range(256)))),
    "waits": (TASKS, waiting(200_000)),
    "steps": (TASKS, waiting(78_125, 256)),
    "a stream that no launch is on": (TASKS, schedule(Launch("a", 0), Launch("b", 2))),
}
BEYOND_COUNTS = {
    "it has 20001 tasks": (replace(TASKS, tasks=(ONE,) * 20_001), schedule()),
    "it has 20001 launches": (TASKS, schedule(*(Launch("a", 0),) * 20_001)),
    "it has 257 streams": (TASKS, schedule(*(Launch(f"t{i}", i) for i in range(257)))),
    "it has 200001 waits": (TASKS, waiting(200_001)),
    "it has 78126 waits": (TASKS, waiting(78_126, 256)),
    "b is on stream 3": (TASKS, schedule(Launch("a", 0), Launch("b", 3))),
    "a is on stream -1": (TASKS, schedule(Launch("a", -1), Launch("b", 0))),
    "b waits for one launch twice": (TASKS, schedule(Launch("a", 0), Launch("b", 1, ("a", "a")))),
}


@pytest.mark.parametrize("what", LEGAL_COUNTS)
def test_as_many_as_a_network_may_have_are_taken(what: str) -> None:
    check_counts(*LEGAL_COUNTS[what])


@pytest.mark.parametrize("said", BEYOND_COUNTS)
def test_one_more_is_refused(said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        check_counts(*BEYOND_COUNTS[said])


@pytest.mark.parametrize("number", [0, 0.0, 1, 9.9e29])
def test_numbers_of_a_machine_may_be_from_0_to_1e30(number: float) -> None:
    check_spec(replace(SPEC, bandwidth=number, peak_flops=(("f16", number), ("f32", 0.0))))


@pytest.mark.parametrize("number", [-1e-9, -1, 1e30, 1e31])
def test_numbers_of_a_machine_beyond_are_refused(number: float) -> None:
    for changed in ({"bandwidth": number}, {"peak_flops": (("f32", 1.0), ("f16", number))}):
        with pytest.raises(VerifyError, match="of something"):
            check_spec(replace(SPEC, **changed))


BIDIRECTIONAL = {0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""Characters that change the direction of a text."""


def obeyed(code: int) -> bool:
    control = unicodedata.category(chr(code)) == "Cc" and chr(code) not in "\t\n\r"
    return control or code in BIDIRECTIONAL


def refuses_text(json: bytes) -> bool:
    try:
        check_texts(json, lambda: json)
    except VerifyError:
        return True
    return False


def test_each_character_is_known_in_a_kernel_and_in_a_json_text() -> None:
    for code in range(0x2100):
        try:
            check_source(f"x = '{chr(code)}'".encode())
            told = False
        except VerifyError:
            told = True
        assert told == obeyed(code), hex(code)
        for escaped in (f"\\u{code:04x}", f"\\u{code:04X}"):
            assert refuses_text(f'"{escaped}"'.encode()) == obeyed(code), escaped
        if code >= 32:
            assert refuses_text(f'"{chr(code)}"'.encode()) == obeyed(code), hex(code)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (rb"\b", True),
        (rb"\f", True),
        (rb"\\\b", True),
        (rb"\\\\\u001b", True),
        (rb"\n\r\t", False),
        (rb"\\b", False),
        (rb"\\f", False),
        (rb"\\u001b", False),
        (rb"\\\\u001b", False),
        (rb"b f u001b", False),
    ],
)
def test_an_escape_in_a_json_text_has_an_odd_backslash(text: bytes, refused: bool) -> None:
    assert refuses_text(b'"' + text + b'"') == refused


def test_a_text_without_suspects_is_not_written_anew() -> None:
    def rest() -> bytes:
        raise AssertionError("it was asked for")

    check_texts(b'{"a": "plain"}', rest)
    check_texts('{"a": "\u03bc"}'.encode(), rest)
    check_texts(rb'{"a": "\u03bc"}', rest)


BODY = parse_graph(
    """graph a {
  input %x: f32[200]
  const %w: f32[100,2] = 3f
  %t: f32[300] = aten.zeros.default([300])
  %v: f32[100,2] = aten.view.default(%x, [100, 2])
  %u: f32[100,2] = aten.mul.Tensor(%v, %w)
  %a: f32[100,2] = aten.relu.default(%u)
  return %a
}"""
)
"""It makes %t of 1,200 B and %u of 800 B on the way; %v is a view."""
LAST = parse_graph(
    """graph b {
  input %a: f32[100,2]
  input %y: f32[10]
  %s: f32[2] = aten.sum.dim_IntList(%a, [0])
  %b: f32[10] = aten.relu.default(%y)
  return %b
}"""
)
NET = TaskGraph(
    "net",
    (Input("x", parse_type("f32[200]")), Input("y", parse_type("f32[10]"))),
    (Constant("w", parse_type("f32[100,2]"), "3f"),),
    (
        Task("a", BODY, Kernel("aten", "a", BODY)),
        Task("b", LAST, Kernel("aten", "b", LAST)),
        Task("c", parse_graph("graph c {\n  return\n}")),
    ),
    (),
    (Ref("a"), Ref("b")),
)
NEED = 800 + 40 + 800 + (1024 + 512) + 512 + (1200 + 800)
"""Bytes: two inputs, a constant, the arena, the pool, and what kernel a allocates on the way."""


def leaf(name: str) -> Leaf:
    return Leaf(Ref(name))


def tree(example: object) -> str:
    return tree_text(pytree.tree_structure(example))


SIGNATURE = Signature(
    tree(((1, 2), {"k": 3})),
    (leaf("x"), Leaf(None, 3), leaf("y")),
    tree([1, 2, 3]),
    (leaf("a"), Leaf(None), leaf("x")),
)


@pytest.fixture(name="plan")
def _plan() -> Plan:
    launches = schedule(Launch("a", 0), Launch("b", 0), Launch("c", 0))
    slots = (
        Slot("x", "input", 0, 800),
        Slot("a", "arena", 0, 1024),
        Slot("b", "pool", 0, 512),
    )
    work, cpu = (Workspace("a", 1024, 10),), TargetSpec("cpu", "a CPU")
    return Plan(NET, launches, slots, work, 1536, cpu, SIGNATURE)


def machine(monkeypatch: pytest.MonkeyPatch, nbytes: int, limit: int | None = None) -> None:
    """A machine with so much memory, of which a process may have so much."""
    pages = {"SC_PHYS_PAGES": nbytes, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    most = resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most, resource.RLIM_INFINITY))


def test_a_place_is_as_large_as_its_value(plan: Plan) -> None:
    check_places(plan)
    for i, slot in enumerate(plan.slots):
        larger = replace(slot, nbytes=-(-slot.nbytes // 512) * 512 + 1)
        slots = (*plan.slots[:i], larger, *plan.slots[i + 1 :])
        with pytest.raises(VerifyError, match=f"%{slot.value} has a place of .* not its size"):
            check_places(replace(plan, slots=slots))
    check_places(replace(plan, slots=(replace(plan.slots[0], nbytes=1024), *plan.slots[1:])))
    with pytest.raises(VerifyError, match="%q has a place of 0 B"):
        check_places(replace(plan, slots=(*plan.slots, Slot("q", "arena"))))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_an_arena_holds_no_more_than_its_values_and_workspaces(plan: Plan, kind: str) -> None:
    plan = replace(plan, spec=replace(plan.spec, kind=kind))
    check_places(replace(plan, arena_bytes=1535))
    with pytest.raises(VerifyError, match="its arena of 1537 B holds values of 1536 B"):
        check_places(replace(plan, arena_bytes=1537))


def test_a_plan_fits_the_memory_of_a_cpu(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, NEED)
    check_places(plan)
    machine(monkeypatch, 1 << 40, limit=NEED)
    check_places(plan)
    for memory in ((NEED - 1, None), (1 << 40, NEED - 1), (NEED - 1, 1 << 40)):
        machine(monkeypatch, *memory)
        with pytest.raises(VerifyError, match=f"takes {NEED:,} B of memory, and .* {NEED - 1:,} B"):
            check_places(plan)
        check_places(replace(plan, spec=replace(plan.spec, kind="cuda")))


@pytest.mark.parametrize("tasks", [NET.tasks[2:], ()])
def test_tasks_without_kernels_allocate_nothing(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, tasks: tuple[Task, ...]
) -> None:
    graph = replace(NET, tasks=tasks)
    launches = schedule(*(Launch(task.name, 0) for task in tasks))
    plan = Plan(graph, launches, plan.slots[:1], (), 0, plan.spec)
    machine(monkeypatch, 800 + 40 + 800)
    check_places(plan)
    machine(monkeypatch, 800 + 40 + 800 - 1)
    with pytest.raises(VerifyError, match="it takes 1,640 B of memory"):
        check_places(plan)


@pytest.mark.parametrize("error", [AttributeError, OSError, ValueError])
def test_a_machine_that_does_not_tell_its_memory_has_enough(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def untold(name: str) -> int:
        raise error

    monkeypatch.setattr(os, "sysconf", untold)
    large = replace(plan, tasks=replace(NET, inputs=(Input("x", parse_type(f"u8[{1 << 40}]")),)))
    large = replace(large, slots=(plan.slots[1], plan.slots[2]))
    check_places(large)
    more = replace(large.tasks, inputs=(Input("x", parse_type(f"u8[{MAX_NUMBER}]")),))
    with pytest.raises(VerifyError, match="this machine has 281,474,976,710,656 B"):
        check_places(replace(large, tasks=more))


def test_a_process_without_limits_may_have_all(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(which: int) -> tuple[int, int]:
        raise OSError

    machine(monkeypatch, NEED)
    monkeypatch.setattr(resource, "getrlimit", untold)
    check_places(plan)
    machine(monkeypatch, NEED - 1)
    monkeypatch.setattr(resource, "getrlimit", untold)
    with pytest.raises(VerifyError, match="of memory"):
        check_places(plan)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("", ""),
        ("aZ9_.:+", ""),
        ("k" * 4096, ""),
        ("x65536.w4", ""),
        ("x00065536", ""),
        ("k" * 4097, "no name"),
        ("a b", "no name"),
        ("a\n", "no name"),
        ("x65537.w4", "beyond all tiles"),
        ("w4.x65537", "beyond all tiles"),
        ("x000065536", "beyond all tiles"),
    ],
)
def test_a_variant_is_a_name_with_numbers_of_tiles(plan: Plan, variant: str, said: str) -> None:
    first, *others = NET.tasks
    task = replace(first, kernel=replace(first.kernel, variant=variant))  # type: ignore[type-var]
    plan = replace(plan, tasks=replace(NET, tasks=(task, *others)))
    if said:
        with pytest.raises(VerifyError, match=f"the variant of a's kernel is {said}"):
            check_places(plan)
    else:
        check_places(plan)


INPUTS = SIGNATURE.inputs
ASKED = InputGuard(2, "stride", "(1,)")
SIGNED: dict[str, dict[str, Any]] = {
    "an input returned": {"outputs": (leaf("y"), leaf("b"), Leaf(None))},
    "an output written to an input": {"mutations": (("y", Ref("b")),)},
    "several questions": {"asked": (InputGuard(0, "stride", "(1,)"), ASKED)},
    "several questions of one": {"asked": (InputGuard(2, "layout", "(1,)"), ASKED)},
    "settings": {
        "ambient": Ambient(
            "cpu", asked=(("torch.get_num_threads()", "4"), ("torch.get_default_device()", "cpu"))
        )
    },
}
NO_CALLS: tuple[Any, ...] = (
    ((1, 2, 3),),
    ((1, 2), {}, 3),
    [(1, 2), {"k": 3}],
    ([1, 2], {"k": 3}),
    ((1, 2), (3,)),
    ((1, 2), 3),
    ((1, 2), {7: 3}),
    ((1,), {"k": 2, 7: 3}),
    4,
)
UNSIGNED: dict[str, list[dict[str, Any]]] = {
    "its inputs are no arguments of a call": [
        {"input_tree": tree(example)} for example in NO_CALLS
    ],
    "other inputs than its tasks": [
        {"inputs": inputs}
        for inputs in (
            INPUTS[::-1],
            INPUTS[:1],
            (*INPUTS, INPUTS[0]),
            (*INPUTS, Leaf(None, 3)),
            (INPUTS[0], INPUTS[2]),
            (leaf("x"), leaf("x"), leaf("y")),
            (leaf("x"), Leaf(None), leaf("a")),
        )
    ],
    "its results are not those of its tree": [
        {"outputs": SIGNATURE.outputs[:2]},
        {"outputs": (*SIGNATURE.outputs, leaf("a"))},
    ],
    "returns a value that is no output": [
        {"outputs": (leaf("a"), leaf("w"), leaf("x"))},
        {"outputs": (leaf("a"), leaf("b"), leaf("q"))},
    ],
    "it writes to one input twice": [{"mutations": (("y", Ref("b")), ("y", Ref("b")))}],
    "not an output to an input": [
        {"mutations": (("y", Ref("x")),)},
        {"mutations": (("w", Ref("a")),)},
        {"mutations": (("y", Ref("b")), ("q", Ref("b")))},
    ],
    "which is f32": [{"mutations": (("y", Ref("a")),)}, {"mutations": (("x", Ref("a")),)}],
    "one thing is asked of an input twice": [
        {"asked": (ASKED, ASKED)},
        {"asked": (ASKED, InputGuard(0, "stride", "(1,)"), replace(ASKED, answer="(2,)"))},
    ],
    "no tensor": [{"asked": (ASKED, InputGuard(at, "stride", "(1,)"))} for at in (1, 3, -1)],
    "no setting of torch": [
        {"ambient": Ambient("cpu", asked=(("torch.get_num_threads()", "4"), ("x", "4")))}
    ],
}


@pytest.mark.parametrize("what", SIGNED)
def test_a_signature_of_what_the_tasks_have_is_taken(what: str) -> None:
    check_signature(SIGNATURE, NET)
    check_signature(replace(SIGNATURE, **SIGNED[what]), NET)


@pytest.mark.parametrize("said", UNSIGNED)
def test_a_signature_of_something_else_is_refused(said: str) -> None:
    for changed in UNSIGNED[said]:
        with pytest.raises(VerifyError, match=said):
            check_signature(replace(SIGNATURE, **changed), NET)


def test_what_is_written_to_an_input_has_its_shape_and_type() -> None:
    written = replace(SIGNATURE, mutations=(("y", Ref("b")),))
    x, _ = NET.inputs
    check_signature(written, replace(NET, inputs=(x, Input("y", parse_type("f32[10]{2}")))))
    for other in ("f16[10]", "i32[10]", "f32[11]", "f32[9]"):
        with pytest.raises(VerifyError, match=r"it writes f32\[10\] to %y, which is"):
            check_signature(written, replace(NET, inputs=(x, Input("y", parse_type(other)))))


def test_a_state_is_no_input_of_a_call() -> None:
    held = replace(NET, states=(State("y", 1),))
    with pytest.raises(VerifyError, match="other inputs than its tasks"):
        check_signature(SIGNATURE, held)
    check_signature(replace(SIGNATURE, inputs=(leaf("x"), Leaf(None), Leaf(None))), held)
