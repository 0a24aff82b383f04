"""Hears what the user's code asks for in a call that no list of operators shows: the time, the
environment, and torch's answers about the call that it runs in; and the files that it writes.

    with watched(reads, asks, names, files):
        model(x)
    reads      ["time.time() at model.py:7 in forward", "os.environ['STEP'] at ..."]
    asks       ["torch.is_grad_enabled() at model.py:9 in forward"]
    names      {"stride"}: questions about tensors that lines of the code that ran may ask
    files      ["log.txt (written to at model.py:8 in forward)"]
"""

from __future__ import annotations

import datetime
import dis
import gc
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any, Protocol

from torch import nn

from anabranch.frontend.input_queries import mentioned
from anabranch.frontend.mode_queries import BUILT_IN, FLAGS_IN, FUNCTIONS, mode_query
from anabranch.frontend.process_state import VARIABLE
from anabranch.frontend.source import is_frame_of_users, is_python
from anabranch.frontend.written_files import FILES, SAVES, opened_files, saved, written

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
TOLD = frozenset((VARIABLE.co_name, SAVES.co_name))
LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"))
READS = frozenset(("LOAD_ATTR", "LOAD_METHOD"))

MONITORING: Any = getattr(sys, "monitoring", None)
"""Of Python 3.12 and later: code that has nothing to tell is heard of once, and runs as fast as it
does without. Turning `sys.setprofile` on or off there takes as long as an operator of torch."""
TOOLS = (3, 4)
"""Numbers that it has for whoever wants to listen."""


class Listener(Protocol):
    """What listens to the code that one thread runs."""

    def pause(self) -> None:
        """What runs from here on is nobody's."""

    def resume(self) -> None:
        """Listen again."""


@contextmanager
def watched(
    reads: list[str], asks: list[str], names: set[str], files: list[str]
) -> Iterator[Listener | None]:
    """Adds to these what the user's code asks for; not under a profiler of somebody else's. Gives
    what listens, that code which is none of the user's may run without. What the garbage collector
    runs meanwhile is nobody's call: callbacks, which often take the time, and finalizers. Nor are
    modules that are imported meanwhile, which torch does where it first needs them: no other call
    runs them."""
    if sys.getprofile() is not None:
        yield None
        return
    heard = _Heard(reads, asks, names, files)
    tool, importing = _free_tool(), _imports(sys._getframe())
    listener = _Profiler(heard) if tool is None else _Monitor(heard, tool)
    gc.callbacks.insert(0, heard.begins)
    gc.callbacks.append(heard.ends)
    listener.start()
    try:
        with opened_files(files, lambda frame: heard.collecting or _imports(frame) > importing):
            yield listener
    finally:
        listener.stop()
        gc.callbacks.remove(heard.begins)
        gc.callbacks.remove(heard.ends)


class _Heard:
    """What is made of functions that are entered and called. `collecting`: the garbage collector
    runs."""

    def __init__(
        self, reads: list[str], asks: list[str], names: set[str], files: list[str]
    ) -> None:
        self._reads, self._asks, self._names, self._files = reads, asks, names, files
        self._seen: dict[int, CodeType] = {}
        self._of_tensors: dict[int, frozenset[str]] = {}
        self.collecting = False

    def begins(self, phase: str, info: Any) -> None:
        """The first of the garbage collector's callbacks."""
        self.collecting = self.collecting or phase == "start"

    def ends(self, phase: str, info: Any) -> None:
        """The last one."""
        self.collecting = self.collecting and phase != "stop"

    def enters(self, frame: FrameType) -> bool:
        """A function in Python is entered. Whether the next time may tell more."""
        code = frame.f_code
        if id(code) not in self._seen:
            self._seen[id(code)] = code
            if is_frame_of_users(frame) and (named := mentioned(code)):
                self._of_tensors[id(code)] = unless_of_module(code).intersection(named)
                self._names.update(named - self._of_tensors[id(code)])
        if id(code) in self._of_tensors and not _of_module(frame):
            self._names.update(self._of_tensors.pop(id(code)))
        if code.co_name in FUNCTIONS:
            question = mode_query(frame)
            self._asks.extend([question] if question is not None else ())
        if code is VARIABLE:
            self._reads.extend(_variable(frame))
        elif code is SAVES:
            self._files.extend(saved(frame))
        told = code is VARIABLE or code is SAVES
        return id(code) in self._of_tensors or code.co_name in FUNCTIONS or told

    def calls(self, frame: FrameType, called: Any) -> None:
        """A built-in function is called that is one of `HEARD`."""
        question = mode_query(frame, called)
        self._asks.extend([question] if question is not None else ())
        self._reads.extend(_clock(frame, called))

    def writes(self, frame: FrameType, file: Any) -> None:
        """A built-in function is called with a file of `FILES`."""
        if is_frame_of_users(frame):
            self._files.extend(written(frame, file))


class _Profiler:
    """Listens by `sys.setprofile`, to whatever runs."""

    def __init__(self, heard: _Heard) -> None:
        self._heard, self._imports = heard, 0

    def start(self) -> None:
        self.resume()

    def stop(self) -> None:
        self.pause()

    def pause(self) -> None:
        sys.setprofile(None)

    def resume(self) -> None:
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        deaf = self._heard.collecting or self._imports
        if event == "c_call":
            if type(called) is not BuiltinFunctionType or deaf:
                return
            if called in HEARD:
                self._heard.calls(frame, called)
            elif type(called.__self__) in FILES:
                self._heard.writes(frame, called.__self__)
        elif event == "call":
            self._imports += frame.f_code is IMPORT
            if not (deaf or self._imports):
                self._heard.enters(frame)
        elif self._imports and event == "return" and frame.f_code is IMPORT:
            self._imports -= 1


class _Monitor:
    """Listens by `sys.monitoring`: once to each function, to calls where the user's code makes
    them. It hears of all threads, and heeds its own."""

    def __init__(self, heard: _Heard, tool: int) -> None:
        self._heard, self._tool, self._paused = heard, tool, False
        self._thread, self._imports = threading.get_ident(), _imports(sys._getframe())
        self._listened: dict[int, CodeType] = {}

    def start(self) -> None:
        events = MONITORING.events
        for event, function in (
            (events.PY_START, self._enters),
            (events.PY_RESUME, self._enters),
            (events.PY_THROW, self._throws),
            (events.CALL, self._calls),
        ):
            MONITORING.register_callback(self._tool, event, function)
        MONITORING.restart_events()  # of functions that an earlier listener had no more use for
        entered = events.PY_START | events.PY_RESUME | events.PY_THROW
        MONITORING.set_events(self._tool, entered)

    def stop(self) -> None:
        events = MONITORING.events
        MONITORING.set_events(self._tool, 0)
        for code in self._listened.values():
            MONITORING.set_local_events(self._tool, code, 0)
        for event in (events.PY_START, events.PY_RESUME, events.PY_THROW, events.CALL):
            MONITORING.register_callback(self._tool, event, None)
        MONITORING.free_tool_id(self._tool)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def _enters(self, code: CodeType, offset: int) -> Any:
        return None if self._entered(code, sys._getframe(1)) else MONITORING.DISABLE

    def _throws(self, code: CodeType, offset: int, raised: BaseException) -> None:
        self._entered(code, sys._getframe(1))

    def _entered(self, code: CodeType, frame: FrameType) -> bool:
        """Whether the next time may tell more."""
        users = is_frame_of_users(frame)
        if users or code.co_filename.startswith(FLAGS_IN):
            self._listen_to_calls(code)
        if not users and code.co_name not in FUNCTIONS and code.co_name not in TOLD:
            return False
        return self._deaf(frame) or self._heard.enters(frame)

    def _listen_to_calls(self, code: CodeType) -> None:
        if id(code) not in self._listened:
            self._listened[id(code)] = code
            MONITORING.set_local_events(self._tool, code, MONITORING.events.CALL)

    def _calls(self, code: CodeType, offset: int, called: Any, first: Any) -> None:
        if type(called) is BuiltinFunctionType and called in HEARD:
            frame = sys._getframe(1)
            if not self._deaf(frame):
                self._heard.calls(frame, called)
            return
        bound = type(called) is BuiltinFunctionType
        file = called.__self__ if bound else first if type(called) is MethodDescriptorType else None
        if type(file) in FILES:
            frame = sys._getframe(1)
            if not self._deaf(frame):
                self._heard.writes(frame, file)

    def _deaf(self, frame: FrameType) -> bool:
        """Whether what runs now is nobody's."""
        other = threading.get_ident() != self._thread
        return self._paused or self._heard.collecting or other or _imports(frame) > self._imports


def _free_tool() -> int | None:
    for tool in TOOLS if MONITORING is not None else ():
        try:
            MONITORING.use_tool_id(tool, "anabranch")
        except ValueError:
            continue
        return tool
    return None


def _imports(frame: FrameType | None) -> int:
    """How many modules are being imported, each for another."""
    count = 0
    while frame is not None:
        count += frame.f_code is IMPORT
        frame = frame.f_back
    return count


def unless_of_module(code: CodeType) -> frozenset[str]:
    """Attributes of nothing but its first argument that a function reads: questions about tensors,
    unless a module is the first argument (`self.stride`)."""
    if not code.co_argcount:
        return frozenset()
    first, own, others = code.co_varnames[0], set[str](), set[Any](code.co_consts)
    for before, op in pairwise(dis.get_instructions(code)):
        named = op.argval if isinstance(op.argval, tuple) else (op.argval,)
        if "STORE_FAST" in op.opname and first in named:
            return frozenset()
        loaded = before.opname in LOADS and before.argval == first and not op.is_jump_target
        if op.opname in READS and loaded:
            own.add(op.argval)
        else:
            others.update(named)
    return frozenset(own - others)


def _of_module(frame: FrameType) -> bool:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return isinstance(first, nn.Module)


def _variable(frame: FrameType) -> Iterator[str]:
    key, asking = frame.f_locals.get("key"), frame.f_back
    while asking is not None and is_python(asking.f_code.co_filename):
        asking = asking.f_back
    if asking is not None and is_frame_of_users(asking):
        place = f"{Path(asking.f_code.co_filename).name}:{asking.f_lineno}"
        yield f"os.environ[{key!r}] at {place} in {asking.f_code.co_name}"


def _clock(frame: FrameType, called: Any) -> Iterator[str]:
    if called in CLOCKS and is_frame_of_users(frame):
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        yield f"{CLOCKS[called]}.{called.__name__}() at {place} in {frame.f_code.co_name}"
