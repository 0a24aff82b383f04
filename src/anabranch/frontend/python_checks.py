"""Checks that Python code makes of values while a step is recorded, as operators.

    if torch.any(var < 0):            anabranch.check(logical_not(any), "ValueError: negative")
        raise ValueError("negative")
    assert loss.isfinite()            anabranch.check(isfinite, "AssertionError: loss.isfinite()")

The code asks for a value that nobody has yet, but one of the two answers ends the step: it goes the
way of the other one, and what was asked becomes a check of the graph (`value_checks`). So do the
checks of `torch.distributions` and of losses of torch. Which answer ends it is read in the source:
of an `if` whose one branch ends in `raise`, or of an `assert`. All else is asked as ever.
"""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from anabranch.ir import custom_ops

LONGEST_TEXT = 200
"""Characters of what a check that fails says."""
SourcePlace = tuple[int | None, int | None, int | None, int | None]
"""The first line of a piece of source, its last one, and the columns where it begins and ends."""
ENDS = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await)
"""What may leave a branch before its end."""
BRANCHES = ("POP_JUMP", "JUMP_IF", "UNARY_NOT", "TO_BOOL")
"""How instructions begin that ask whether one value is true; calls may ask it of several."""


@dataclass(frozen=True, slots=True)
class PythonCheck:
    """The answer that does not raise, and what is said of the other one."""

    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class FileChecks:
    """The checks of a file by what is asked: by a branch, and by a call of `bool` or `item`."""

    by_branch: dict[SourcePlace, PythonCheck]
    by_call: dict[SourcePlace, PythonCheck]


@contextmanager
def checks_by_operators() -> Iterator[None]:
    """Within it a tensor without values is true or false where only one of these does not raise."""
    with ExitStack() as stack:
        stack.enter_context(_asked_first("__bool__"))
        stack.enter_context(_asked_first("item"))
        yield


@contextmanager
def _asked_first(name: str) -> Iterator[None]:
    """Within it this method of tensors is a check, where it makes one."""
    kind: Any = Tensor
    own, ask = vars(kind).get(name), getattr(kind, name)

    def answer(tensor: Tensor) -> Any:
        check = _check_at(sys._getframe(1)) if _is_unknown(tensor, name) else None
        if check is None:
            return ask(tensor)
        truth = tensor.detach().reshape(()).to(torch.bool)
        custom_ops.OPS.check(truth if check.holds else truth.logical_not(), check.text)
        return check.holds

    setattr(kind, name, answer)
    try:
        yield
    finally:
        if own is None:
            delattr(kind, name)
        else:
            setattr(kind, name, own)


def _is_unknown(tensor: Tensor, name: str) -> bool:
    """Whether nobody knows the one truth that is asked for."""
    told = not isinstance(tensor, FakeTensor) or tensor.constant is not None
    return not told and tensor.numel() == 1 and (name != "item" or tensor.dtype == torch.bool)


def _check_at(frame: FrameType) -> PythonCheck | None:
    """The check that the code of a frame is about to make, if it is one."""
    code, at = frame.f_code, frame.f_lasti
    place = next(itertools.islice(code.co_positions(), at // 2, None), None)
    if place is None:
        return None
    checks = _checks(code.co_filename)
    branches = dis.opname[code.co_code[at]].startswith(BRANCHES)
    return (checks.by_branch if branches else checks.by_call).get(place)


@functools.lru_cache(maxsize=256)
def _checks(file: str) -> FileChecks:
    """The checks in a file of source; none if there is none."""
    checks = FileChecks({}, {})
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return checks
    caught = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
        for line in node.body
        for inner in ast.walk(line)
    }
    for node in ast.walk(tree):
        holds = _holds(node)
        if holds is None or not isinstance(node, ast.If | ast.Assert) or id(node) in caught:
            continue
        text, answers = _text(node, holds), set[bool]()
        for part, answer in _asked(node.test, holds):
            answers.add(answer)
            checks.by_branch[_place(part)] = PythonCheck(answer, text)
            if _is_question(part):
                checks.by_call[_place(part)] = PythonCheck(answer, text)
        if len(answers) == 1:  # the place of a branch may be that of its whole statement
            checks.by_branch[_place(node)] = PythonCheck(answers.pop(), text)
    return checks


def _holds(node: ast.AST) -> bool | None:
    """What the test of a statement must be for it not to raise; None if that is not decided."""
    match node:
        case ast.Assert():
            return True
        case ast.If(body=body, orelse=orelse):
            raises, other = _raises(body), _raises(orelse)
            return None if raises == other else other
    return None


def _raises(body: list[ast.stmt]) -> bool:
    """Whether a branch always ends in `raise`."""
    if not body or not isinstance(body[-1], ast.Raise):
        return False
    return not any(isinstance(part, ENDS) for line in body for part in ast.walk(line))


def _asked(test: ast.expr, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """The parts of a test that are true or false, with what each must be; nothing where one part
    decides for another."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _asked(operand, not holds)
        case ast.BoolOp(op=op, values=values):
            if isinstance(op, ast.And) == holds:
                for value in values:
                    yield from _asked(value, holds)
        case ast.Compare(ops=[_, _, *_]) if not holds:
            return
        case _:
            yield test, holds


def _is_question(part: ast.expr) -> bool:
    """Whether it is a call that asks for one value."""
    match part:
        case ast.Call(func=ast.Name(id="bool"), args=[_], keywords=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]):
            return True
    return False


def _place(node: Any) -> SourcePlace:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _text(node: ast.If | ast.Assert, holds: bool) -> str:
    """What is raised, and why: as the source has it where that is a plain text."""
    if isinstance(node, ast.Assert):
        kind, said = "AssertionError", node.msg
    else:
        raised = (node.orelse if holds else node.body)[-1]
        error = raised.exc if isinstance(raised, ast.Raise) else None
        call = error if isinstance(error, ast.Call) else None
        kind = ast.unparse(call.func if call else error) if error else "an error"
        said = call.args[0] if call and call.args else None
    if isinstance(said, ast.Constant) and isinstance(said.value, str):
        text = said.value
    else:
        asked = ast.unparse(node.test)
        text = asked if holds else f"not ({asked})"
    return f"{kind}: {text}"[:LONGEST_TEXT]
