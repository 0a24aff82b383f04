"""Notes what the user's code asks torch about the call that it runs in, with torch.export's
answers.

    if torch.compiler.is_compiling():   eager: False   torch.export: True
    if torch.is_grad_enabled():         eager: either  torch.export: True

A model that goes another way for another answer is captured the way that export goes. Other answers
are switches of torch's, which a call may find otherwise than the capture did: they become a part of
what the graph depends on.

    x.to(torch.get_default_dtype())                     calls under another default are refused
    if torch.are_deterministic_algorithms_enabled():    calls under the other setting are refused
    if torch.is_inference_mode_enabled():               the same
    if torch.backends.cudnn.benchmark:                  the same
    if torch.backends.cuda.matmul.allow_tf32:           warned about: capturing turns it off
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from anabranch.errors import CaptureError
from anabranch.frontend.library_switches import answers
from anabranch.frontend.source import is_frame_of_users
from anabranch.frontend.surroundings import Surroundings
from anabranch.ir.ambient import ANSWERED, SWITCHES, Ambient, name_of

_COMPILER: Any = torch.compiler
TORCH_FOLDER = str(Path(torch.__file__).parent)
WRAPPERS = (
    contextlib.__file__,
    *(f"{TORCH_FOLDER}/{name}" for name in ("_compile.py", "_dynamo", "testing")),
)
"""The frames that stand between a function of torch's and the code that calls it."""
FLAGS_IN = torch.backends.__path__[0]
FLAGS = ("_is_compiling_flag", "_is_exporting_flag")
ASKED = {name: getattr(_COMPILER, name).__code__ for name in ("is_compiling", "is_exporting")}
"""By name, for a code object takes as long to hash as it is long."""
DEFAULT_DTYPE = "torch.get_default_dtype()"
DEFAULT_DEVICE = "torch.get_default_device()"
MAKES = "makes tensors"
"""In the place of a question: what the model makes may lie on the default device."""
MAKERS = frozenset(
    function for function in _device_constructors() if isinstance(function, BuiltinFunctionType)
)
DETERMINISTIC = "torch.are_deterministic_algorithms_enabled()"
MATMUL_PRECISION = "torch.get_float32_matmul_precision()"
SWITCHED: dict[str, tuple[CodeType, str]] = {
    function.__name__: (function.__code__, question)
    for function, question in (
        (torch.are_deterministic_algorithms_enabled, DETERMINISTIC),
        (torch.get_deterministic_debug_mode, "torch.get_deterministic_debug_mode()"),
        (
            torch.is_deterministic_algorithms_warn_only_enabled,
            "torch.is_deterministic_algorithms_warn_only_enabled()",
        ),
        (torch.get_default_device, DEFAULT_DEVICE),
        (torch.get_float32_matmul_precision, MATMUL_PRECISION),
        (torch.initial_seed, "torch.initial_seed()"),
        (torch.backends.mha.get_fastpath_enabled, "torch.backends.mha.get_fastpath_enabled()"),
        *((answer, question) for question, answer in answers(True, True).items()),
    )
}
TF32: dict[Any, str] = {
    torch._C._get_cublas_allow_tf32: "torch.backends.cuda.matmul.allow_tf32",
    torch._C._get_cudnn_allow_tf32: "torch.backends.cudnn.allow_tf32",
}
UNSETTLED = (MATMUL_PRECISION, *TF32.values())
"""What is captured under a setting of ours, whatever the user's is."""
SEEDED: dict[Any, str] = {
    getattr(torch.default_generator, name): f"torch.default_generator.{name}()"
    for name in ("manual_seed", "seed", "set_state")
}
BUILT_IN: dict[Any, str] = {
    **dict.fromkeys(MAKERS, MAKES),
    **SEEDED,
    **{answer: question for question, answer in ANSWERED.items()},
    **TF32,
    torch.is_grad_enabled: "torch.is_grad_enabled()",
    torch.get_default_dtype: DEFAULT_DTYPE,
    torch._C._get_deterministic_algorithms: DETERMINISTIC,
}
SEEDS: dict[str, CodeType] = {
    function.__name__: inspect.unwrap(function).__code__
    for function in (
        torch.random.manual_seed,
        torch.random.seed,
        torch.random.set_rng_state,
        torch.random.fork_rng,
    )
}
"""The functions that set torch's random numbers, whose place a plan takes as each call finds it."""
DEVICE_SEEDS = frozenset(
    ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all")
)
"""The same of one kind of device: functions of torch/cuda/random.py and its like."""
FUNCTIONS = frozenset((*ASKED, *SWITCHED, *SEEDS, *DEVICE_SEEDS))
"""The names of all functions in Python that are questions, or seed."""
OTHER_WAY = (
    "and calls other operators for another answer: what is compiled goes the way for True, as "
    "torch.export does"
)


def mode_query(frame: FrameType, called: Any = None) -> str | None:
    """The question and where it is asked, of a Python function that is entered, or of a built-in
    one that is `called`; None where it is no such question of the user's."""
    if called is not None:
        question = BUILT_IN.get(called) if isinstance(called, BuiltinFunctionType) else None
        if question and frame.f_back is not None and frame.f_code.co_filename.startswith(FLAGS_IN):
            frame = frame.f_back  # what is read as an attribute there calls a function
        return _at(frame, question) if question else None
    name, caller = frame.f_code.co_name, frame.f_back
    if seeds := _seeds(frame.f_code):
        while caller is not None and caller.f_code.co_filename.startswith(WRAPPERS):
            caller = caller.f_back
        return _at(caller, seeds) if caller is not None else None
    code, question = SWITCHED.get(name, (None, ""))
    if code is frame.f_code and caller is not None:
        return _at(caller, question)
    if ASKED.get(name) is not frame.f_code or caller is None:
        return None
    if caller.f_code.co_name == "is_compiling" and caller.f_back is not None:
        caller = caller.f_back  # torch._dynamo has a function of this name, which asks this one
    return _at(caller, f"torch.compiler.{name}()")


def _seeds(code: CodeType) -> str:
    """What the user calls a function that seeds; "" for any other."""
    if SEEDS.get(code.co_name) is code:
        return f"torch.{code.co_name}()"
    if code.co_name not in DEVICE_SEEDS:
        return ""
    file = Path(code.co_filename)
    of_device = file.name == "random.py" and str(file.parent.parent) == TORCH_FOLDER
    return f"torch.{file.parent.name}.{code.co_name}()" if of_device else ""


def of_export(questions: Iterable[str]) -> list[str]:
    """Those that torch.export answers in a way of its own, each with the first place of it."""
    first: dict[str, str] = {}
    for question in questions:
        if not question.startswith((DEFAULT_DTYPE, DETERMINISTIC, MAKES, *SWITCHES, *UNSETTLED)):
            first.setdefault(question.partition(" at ")[0], question)
    return list(first.values())


def check_seeds(questions: Iterable[str]) -> None:
    """CaptureError where the user's code seeds torch's random numbers."""
    names = {*(f"torch.{name}()" for name in SEEDS), *SEEDED.values()}
    for question in questions:
        called = question.partition(" at ")[0]
        if called in names or called.rpartition(".")[2].removesuffix("()") in DEVICE_SEEDS:
            raise CaptureError(
                f"the model sets torch's random numbers in forward: {called}",
                "a plan draws what comes next of them in each call, and would not begin anew",
                "draw these numbers once and hold them in a buffer, or give them as an input",
                question.partition(" at ")[2],
            )


def unsettled(questions: Iterable[str]) -> list[str]:
    """Those whose answer is none of the user's while the model is captured."""
    return [question for question in questions if question.startswith(UNSETTLED)]


def relied_on(ambient: Ambient, questions: Iterable[str], under: Surroundings) -> Ambient:
    """The ambient, with the switches that the model asked for as they were."""
    told = [*questions, *(question for question, _ in ambient.asked if question == DEFAULT_DEVICE)]
    questions_of = {question.partition(" at ")[0] for question in told}
    if ambient.device and any(question.startswith(DEFAULT_DTYPE) for question in told):
        ambient = replace(ambient, default_dtype=name_of(under.dtype))
    if ambient.device and any(question.startswith(DETERMINISTIC) for question in told):
        ambient = replace(ambient, asks_deterministic="on" if under.deterministic else "off")
    with under.restored():
        asked = tuple(
            (name, repr(answer()))
            for name, answer in SWITCHES.items()
            if ambient.device and name in questions_of
        )
    return replace(ambient, asked=asked)


def _at(frame: FrameType, question: str) -> str | None:
    if not is_frame_of_users(frame):
        return None
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return f"{question} at {place} in {frame.f_code.co_name}"


@contextmanager
def as_exported(grad: bool = True) -> Iterator[None]:
    """Within it the answers are those that a model has while it is exported; about gradients where
    `grad`: torch's own operators look at that, too, and choose other kernels."""
    flags = {name: getattr(_COMPILER, name) for name in FLAGS if hasattr(_COMPILER, name)}
    try:
        for name in flags:
            setattr(_COMPILER, name, True)
        with torch.set_grad_enabled(grad or torch.is_grad_enabled()):
            yield
    finally:
        for name, was in flags.items():
            setattr(_COMPILER, name, was)
