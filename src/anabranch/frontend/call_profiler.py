"""What the user's code asks for in a call that no list of operators shows: the time, and torch's
answers about the call that it runs in.

    with watched(reads, asks, names):
        model(x)
    reads      ["time.time() at model.py:7 in forward"]
    asks       ["torch.is_grad_enabled() at model.py:9 in forward"]
    names      {"stride"}: questions about tensors that lines of the code that ran may ask
"""

from __future__ import annotations

import datetime
import dis
import gc
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

from torch import nn

from anabranch.frontend.input_queries import mentioned
from anabranch.frontend.mode_queries import BUILT_IN, FUNCTIONS, mode_query
from anabranch.frontend.source import is_users

CLOCKS: dict[Any, str] = {
    **{
        getattr(time, f"{name}{unit}"): "time"
        for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
        for unit in ("", "_ns")
    },
    **{getattr(datetime.datetime, name): "datetime" for name in ("now", "utcnow", "today")},
    datetime.date.today: "datetime",
}
"""By each clock the module that has it."""
HEARD = frozenset((*CLOCKS, *BUILT_IN))
"""A look here is all that most calls cost."""

IMPORT: CodeType = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
"""What runs for each module that is imported."""
LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"))
READS = frozenset(("LOAD_ATTR", "LOAD_METHOD"))

Listener = Callable[[FrameType, str, Any], None]
"""A function for `sys.setprofile`."""


@contextmanager
def watched(reads: list[str], asks: list[str], names: set[str]) -> Iterator[Listener | None]:
    """Adds to these what the user's code asks for; not under a profiler of somebody else's. Gives
    what listens, that code which is none of the user's may run without. What the garbage collector
    runs meanwhile is nobody's call: callbacks, which often take the time, and finalizers. Nor are
    modules that are imported meanwhile, which torch does where it first needs them: no other call
    runs them."""
    seen: dict[int, CodeType] = {}
    of_tensors: dict[int, frozenset[str]] = {}
    collecting, imports = False, 0

    def begins(phase: str, info: Any) -> None:
        nonlocal collecting
        collecting = collecting or phase == "start"

    def ends(phase: str, info: Any) -> None:
        nonlocal collecting
        collecting = collecting and phase != "stop"

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal imports
        if event == "c_call":
            if type(called) is BuiltinFunctionType and called in HEARD and not collecting | imports:
                question = mode_query(frame, called)
                asks.extend([question] if question is not None else ())
                reads.extend(_clock(frame, called))
        elif event == "call":
            code = frame.f_code
            imports += code is IMPORT
            if collecting or imports:
                return
            if id(code) not in seen:
                seen[id(code)] = code
                if is_users(code.co_filename) and (named := mentioned(code)):
                    of_tensors[id(code)] = unless_of_module(code).intersection(named)
                    names.update(named - of_tensors[id(code)])
            if id(code) in of_tensors and not _of_module(frame):
                names.update(of_tensors.pop(id(code)))
            if code.co_name in FUNCTIONS:
                question = mode_query(frame)
                asks.extend([question] if question is not None else ())
        elif imports and event == "return" and frame.f_code is IMPORT:
            imports -= 1

    if sys.getprofile() is not None:
        yield None
        return
    gc.callbacks.insert(0, begins)
    gc.callbacks.append(ends)
    sys.setprofile(profile)
    try:
        yield profile
    finally:
        sys.setprofile(None)
        gc.callbacks.remove(begins)
        gc.callbacks.remove(ends)


def unless_of_module(code: CodeType) -> frozenset[str]:
    """Attributes of nothing but its first argument that a function reads: questions about tensors,
    unless a module is the first argument (`self.stride`)."""
    if not code.co_argcount:
        return frozenset()
    first, own, others = code.co_varnames[0], set[str](), set[Any](code.co_consts)
    for before, one in pairwise(dis.get_instructions(code)):
        named = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if "STORE_FAST" in one.opname and first in named:
            return frozenset()
        loaded = before.opname in LOADS and before.argval == first and not one.is_jump_target
        if one.opname in READS and loaded:
            own.add(one.argval)
        else:
            others.update(named)
    return frozenset(own - others)


def _of_module(frame: FrameType) -> bool:
    first = frame.f_locals.get(frame.f_code.co_varnames[0])
    return isinstance(first, nn.Module)


def _clock(frame: FrameType, called: Any) -> Iterator[str]:
    file = frame.f_code.co_filename
    if called in CLOCKS and is_users(file):
        place = f"{Path(file).name}:{frame.f_lineno}"
        yield f"{CLOCKS[called]}.{called.__name__}() at {place} in {frame.f_code.co_name}"
