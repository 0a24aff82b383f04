"""What went wrong in torch.export, in the user's terms.

An exception of torch goes in, a CaptureError comes out: what the model does, why it cannot be
captured, what to do instead, and the line that did it, as far as that is known.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.errors import CaptureError, DataDependentError
from anabranch.frontend.checks import COMPLEX_NUMBER, UNKNOWN_RESULT
from anabranch.frontend.source import raised_at
from anabranch.frontend.translate import CUT

OWN_GENERATOR = (
    "the model draws random numbers from a torch.Generator of its own",
    "a plan draws from torch's global generator, and would give other numbers",
    "leave generator= out, or draw these numbers outside and give them as an input",
)
UNKNOWN_CLASS = re.compile(r"Found <class '([\w.]+)'> in output")
"""What torch.export says of a class that torch's pytree does not know."""

NO_FAKE = re.compile(
    r"no fake impl|UnsupportedOperator|DynamicOutputShape|could not run .* meta", re.I
)
"""Torch's message about an operator whose result nobody has told it."""

OF_VALUES = re.compile("DataDependent|data-dependent|Unbacked|unbacked")
OF_SYMBOLS = re.compile(
    r"^(Type|Attribute|Value|Index)Error:? .*Sym(Int|Float|Bool)|Could not infer dtype of Sym"
)
"""Python's messages about symbols in the place of its own numbers."""
NO_NUMBER = (
    "the model gives a number of a tensor to code that takes Python's own numbers alone",
    "{error}",
    "give it int(number), float(number) or bool(number), for which the value is asked for and the "
    "model is cut",
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What a model does past torch.export, and the three parts of the message. `sign` reads torch's
    exception: "" if this is not the cause, else what the texts call `{sign}`; `{said}` is the first
    line of the exception, `{error}` that with its class."""

    sign: Callable[[Exception], str]
    what: str
    why: str
    next: str
    kind: type[CaptureError] = CaptureError


def explained(error: Exception) -> CaptureError:
    """What went wrong in torch.export, in the user's terms."""
    said = (str(error).strip().splitlines() or [""])[0]
    for cause in CAUSES:
        if sign := cause.sign(error):
            words = {"sign": sign, "said": said, "error": f"{type(error).__name__}: {said}"}
            what, why, next = (text.format(**words) for text in (cause.what, cause.why, cause.next))
            return cause.kind(what, why, next, raised_at(error))
    raise AssertionError("the last cause has every error's sign")


def _saying(text: str) -> Callable[[Exception], str]:
    return lambda error: text if text in str(error) else ""


def _matching(pattern: re.Pattern[str]) -> Callable[[Exception], str]:
    """Of errors whose class or text the pattern is found in."""

    def sign(error: Exception) -> str:
        match = pattern.search(f"{type(error).__name__} {error}")
        return match[0] if match else ""

    return sign


def _reads_no_memory(error: Exception) -> str:
    """Of torch's own reading of a tensor without memory: at no line of the user's."""
    return "" if raised_at(error) else _saying(NO_MEMORY)(error)


def _complex_number(error: Exception) -> str:
    name = _unknown_class(error)
    return name if name == "complex" else ""


def _unknown_class(error: Exception) -> str:
    match = UNKNOWN_CLASS.search(str(error))
    return match[1] if match else ""


def _control_flow(error: BaseException) -> str:
    """The operator for conditions or loops in which torch.compile failed; "" if in none."""
    if not type(error).__module__.startswith("torch._dynamo."):
        return ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        room, _, name = frame.f_globals.get("__name__", "").rpartition(".")
        if room == "torch._higher_order_ops":
            return str(name)
    return ""


def _packs(error: BaseException) -> str:
    """The function that packs sequences, or the layer that reads such, where the error comes of
    one; "" if it does not."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name in ("pack_padded_sequence", "pad_packed_sequence"):
            return frame.f_code.co_name
        layer = frame.f_globals.get("__name__") == "torch.nn.modules.rnn"
        if layer and frame.f_locals.get("batch_sizes") is not None:
            return "torch.nn.modules.rnn"
    return ""


NO_MEMORY = "Cannot access data pointer"
CAUSES = (
    Cause(
        _saying("User output nan is not"),
        "the model returns a NaN that is a Python number",
        "torch.export compares results with what it noted, and NaN is not equal to itself",
        "return a tensor (torch.tensor(float('nan'))), or leave the number out",
    ),
    Cause(
        _reads_no_memory,
        "torch.export reads the memory of a tensor that has none",
        "it does so for models that call torch.func (grad, jvp), and keeps a value of its own "
        "tracing as a constant",
        "compute the derivative with torch.autograd.grad, or leave this part out",
    ),
    Cause(
        _saying(NO_MEMORY),
        "the model reads where a tensor lies in memory (data_ptr())",
        "the next call's tensors lie elsewhere, and a graph is captured of tensors without memory",
        "do without the address, or put what needs it into an operator of its own "
        "(torch.library.custom_op)",
    ),
    Cause(_saying("argument of type: <class 'torch._C.Generator'>"), *OWN_GENERATOR),
    Cause(
        _saying("quantized nyi in meta tensors"),
        "the model makes a quantised tensor",
        "only dense, strided tensors of numbers can be compiled",
        "round by torch.fake_quantize_per_tensor_affine, or keep int8 numbers and their scales in "
        "tensors",
    ),
    Cause(
        _saying("tensors do not have strides"),
        "the model computes with a sparse tensor",
        "only dense, strided tensors can be compiled",
        "convert it first (to_dense()), or use torch.compile(model, backend='anabranch'), which "
        "leaves this part to eager",
    ),
    Cause(
        _saying("Expected FakeTensor, got"),
        "the model takes derivatives of a function in forward (torch.func)",
        "torch lost track of what it traces there: 2.11 does, 2.13 does not",
        "take them by torch.autograd.grad, or use a newer torch",
    ),
    Cause(
        _saying(".numpy() is not supported"),
        "the model gives a tensor to NumPy",
        "a graph holds operators of torch, and what NumPy computes is seen by none",
        "compute it with torch, or put it into an operator of its own (torch.library.custom_op)",
    ),
    Cause(
        _saying("its data is not allocated yet"),
        "the model makes a tensor of the numbers of others, one by one: torch.tensor([x[0], x[1]])",
        "Python reads these numbers, and a graph would have those of the example for ever",
        "use torch.stack, torch.cat or indexing, which copy tensors",
    ),
    Cause(
        _saying("fake tensor in the exported program constant's list"),
        "the model computes with a tensor that torch.export does not follow",
        "it goes by weight.data, by another thread, or takes gradients in forward of what reads "
        "weights",
        "leave out .data (under torch.no_grad() nobody needs it), and compile what gradients are "
        "taken of, or the part behind it",
    ),
    Cause(
        _control_flow,
        "the model uses {sign}, which runs a part of it under a condition or in a loop",
        "a graph is a straight line of operators, the same for every call",
        "unroll it, use torch.where, or compile the parts it chooses from separately",
    ),
    Cause(
        _packs,
        "the model packs sequences of several lengths",
        "how many rows each step has depends on the lengths, and a graph has one shape",
        "give the recurrent layer the padded sequence, and mask or pick results by the lengths",
    ),
    Cause(
        _matching(NO_FAKE),
        "the model calls an operator of which torch does not know what it gives without values",
        "{error}",
        f"register what it gives (torch.library.register_fake), or {CUT}",
        DataDependentError,
    ),
    Cause(_matching(OF_SYMBOLS), *NO_NUMBER, DataDependentError),
    Cause(
        _matching(OF_VALUES),
        "the model's control flow, or a shape in it, depends on the values of a tensor",
        "one graph serves every input of these shapes ({said})",
        f"use torch.where or masks instead of `if tensor:`, .item() or boolean indexing, or {CUT}",
        DataDependentError,
    ),
    Cause(
        _complex_number,
        f"the model returns {COMPLEX_NUMBER[0]}",
        *COMPLEX_NUMBER[1:],
    ),
    Cause(
        _unknown_class,
        "the model returns an object of class {sign}",
        *UNKNOWN_RESULT,
    ),
    Cause(
        lambda _: "any",
        "torch.export could not capture the model",
        "{error}",
        "check that model(*args, **kwargs) runs with these inputs; if it does, compile a smaller "
        "part of it, or use torch.compile(model, backend='anabranch')",
    ),
)
"""The first whose sign an exception has is the cause."""
