"""Where in the user's model something happened, as "model.py:42 in forward (layer1.0.conv1)".

The line is the deepest frame that is neither torch's nor Python's nor this package's, but for its
networks: for `self.conv1(x)` that is the call, not torch's `nn/modules/conv.py`. Of an operator,
torch.export keeps only frames of functions named `forward`; of an exception all are known.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch
import typing_extensions
from torch import fx

FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_TORCH = os.path.join(Path(torch.__file__).parent, "")
_PACKAGE = os.path.join(Path(__file__).parent.parent, "")
_NETWORKS = os.path.join(Path(__file__).parent.parent, "models", "zoo", "")
_TYPING = typing_extensions.__file__
"""Puts functions of its own in the place of Python's, which torch calls."""
_PYTHON = sysconfig.get_path("stdlib")
_OURS = __name__.partition(".")[0]
_GENERATED = (
    *("<frozen", "<eval_with_key>", "<_remote_module", "<torch_package", "<lambdifygenerated"),
    *("<__array_function__", "<attrs generated", "<decorator-gen"),
)
"""How files begin that are none, and hold code that a program wrote."""
_instead: ContextVar[str] = ContextVar("anabranch_instead", default="")


def origin(node: fx.Node) -> str:
    """Source line and module path of an FX node, as far as they are known."""
    line = _deepest(node.meta.get("stack_trace") or "")
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = _module_path(modules[-1][0]) if modules else ""
    return f"{line} ({path})".strip() if path else line


def raised_at(error: BaseException) -> str:
    """The user's line under which an exception was raised, "" if it is not among its frames."""
    for link in _chain(error):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if is_users(frame.filename):
                return _line(frame.filename, frame.lineno or 0, frame.name)
    return ""


@contextmanager
def running_instead(where: str) -> Iterator[None]:
    """Within it `running_at` is this: no line of the user's asks, but something that has a name."""
    token = _instead.set(where)
    try:
        yield
    finally:
        _instead.reset(token)


def running_at() -> str:
    """The user's line that runs now, "" if it is not among the frames of this thread."""
    if where := _instead.get():
        return where
    frame = _running()
    if frame is None:
        return ""
    return _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def running_stack() -> str:
    """The user's line that runs now, as a node's `stack_trace` says it."""
    frame = _running()
    if frame is None:
        return ""
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'


def _running() -> FrameType | None:
    """The deepest frame of this thread that is the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_frame_of_users(frame):
        frame = frame.f_back
    return frame


@functools.lru_cache(maxsize=4096)
def _deepest(stack: str) -> str:
    for file, number, function in reversed(FRAME.findall(stack)):
        if is_users(file):
            return _line(file, int(number), function)
    return ""


def is_users(file: str, space: Mapping[str, Any] | None = None) -> bool:
    """Whether code of this file is the user's own, not Python's, torch's or this package's.

    Code typed at a prompt has no file, "<stdin>", and is the user's. That of "<string>" is typed
    behind `python -c`, run by `exec`, or made by a dataclass: `space`, the globals of the code,
    says in whose module. Without them it is nobody's."""
    if file == "<string>":
        return space is not None and _is_users_module(space.get("__name__"))
    return _is_users_file(file)


@functools.lru_cache(maxsize=4096)
def _is_users_file(file: str) -> bool:
    if file.startswith(_GENERATED):
        return False
    own = file.startswith(_PACKAGE) and not file.startswith(_NETWORKS)
    return not own and not is_python(file) and not file.startswith((_TORCH, _TYPING))


@functools.lru_cache(maxsize=4096)
def _is_users_module(name: str | None) -> bool:
    """Whether a module of this name is the user's, or none: `exec` needs no name."""
    if name is None or name == "__main__":
        return True
    first = name.partition(".")[0]
    others = ("torch", _OURS, *sys.stdlib_module_names)
    return first not in others and not first.startswith("namedtuple_")


def is_code_of_users(function: FunctionType) -> bool:
    """Whether the user wrote a function."""
    return is_users(function.__code__.co_filename, function.__globals__)


def is_frame_of_users(frame: FrameType) -> bool:
    """Whether the user wrote the function that runs in a frame."""
    return is_users(frame.f_code.co_filename, frame.f_globals)


@functools.lru_cache(maxsize=4096)
def is_python(file: str) -> bool:
    """Whether the file is of Python's own library."""
    return file.startswith("<frozen") or (file.startswith(_PYTHON) and "site-packages" not in file)


def _line(file: str, number: int, function: str) -> str:
    return f"{Path(file).name}:{number} in {function}"


@functools.lru_cache(maxsize=4096)
def _module_path(path: str) -> str:
    """What export calls a module, as the user does: "L['self'].layer1" -> "layer1"."""
    return re.sub(r"^L(\['self'\]|__self__)\.?", "", path)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, the original first: its frames are the deepest."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return reversed(links)
