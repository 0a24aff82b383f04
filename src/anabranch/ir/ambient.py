"""Ambient: which of torch's global switches a captured graph depends on, and whether they still
stand as they did.

A model computes something else under `torch.autocast`, and one that makes tensors without a dtype
something else under another default dtype. A graph is captured under one setting of both; a plan of
it answers calls under the same setting alone:

    Ambient("cpu")                       captured without autocast; the default dtype is not asked
    Ambient("cuda", "float16")           captured under torch.autocast("cuda", torch.float16)
    Ambient("cpu", "", "float64")        the model makes tensors of the default dtype, float64 then
    Ambient("cpu", asked=(("torch.get_num_threads()", "4"),))      the model asked, and heard that
    Ambient("cpu", "any")                 has its casts in it: a training step
    Ambient()                            depends on nothing: a graph that torch.compile made

Under `torch.use_deterministic_algorithms(True)` torch's operators on a GPU choose other kernels, or
refuse. A plan has chosen when it was made: one that was made without the switch answers no call
under it. On a CPU the operators look at the switch in every call, as eager's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from anabranch.ir.refused import Refused

without_autocast: Any = torch._C._DisableAutocast
"""A context in which operators run as they are called: of what is captured, casts are a part."""
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms

ANSWERED: Mapping[str, Callable[[], object]] = {
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
    "torch.is_anomaly_check_nan_enabled()": torch.is_anomaly_check_nan_enabled,
    **{
        f"torch.backends.{name}": getattr(torch._C, f"_get_{getter}")
        for name, getter in (
            ("cudnn.enabled", "cudnn_enabled"),
            ("cudnn.benchmark", "cudnn_benchmark"),
            ("cudnn.deterministic", "cudnn_deterministic"),
            ("mkldnn.enabled", "mkldnn_enabled"),
            ("mkldnn.deterministic", "mkldnn_deterministic"),
            ("cuda.flash_sdp_enabled()", "flash_sdp_enabled"),
            ("cuda.mem_efficient_sdp_enabled()", "mem_efficient_sdp_enabled"),
            ("cuda.math_sdp_enabled()", "math_sdp_enabled"),
            ("cuda.cudnn_sdp_enabled()", "cudnn_sdp_enabled"),
            (
                "cuda.fp16_bf16_reduction_math_sdp_allowed()",
                "math_sdp_allow_fp16_bf16_reduction",
            ),
            (
                "cuda.matmul.allow_fp16_reduced_precision_reduction",
                "cublas_allow_fp16_reduced_precision_reduction",
            ),
            (
                "cuda.matmul.allow_bf16_reduced_precision_reduction",
                "cublas_allow_bf16_reduced_precision_reduction",
            ),
        )
        if hasattr(torch._C, f"_get_{getter}")
    },
}
"""Flags that a built-in function of torch's answers, by how a model asks for them."""
SWITCHES: Mapping[str, Callable[[], object]] = {
    **ANSWERED,
    "torch.get_default_device()": torch.get_default_device,
    "torch.get_deterministic_debug_mode()": torch.get_deterministic_debug_mode,
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        torch.is_deterministic_algorithms_warn_only_enabled
    ),
    "torch.initial_seed()": torch.initial_seed,
    "torch.backends.mha.get_fastpath_enabled()": torch.backends.mha.get_fastpath_enabled,
}
"""All that a model may ask beside dtypes, and whether algorithms are deterministic."""

ON_CPU = ("torch.get_default_device()", repr(torch.device("cpu")))
"""What most models rely on that make tensors: without a mode there is no other default device."""
ANY: Literal["any"] = "any"
"""Autocast of a graph that computes the same under each."""
_modes: Callable[[], int] = torch._C._len_torch_function_stack
MODES_IN = ("torch", "anabranch")
"""Whose function modes change no numbers: default devices, and listeners."""


@dataclass(frozen=True, slots=True)
class Ambient:
    """`device`: the kind of device that the model is on, "" where nothing is depended on;
    `autocast`: the dtype that autocast computes in there, "" if it is off, "any" where the graph
    does not depend on it; `default_dtype`: torch's default dtype, "" where the graph does not
    depend on it. Dtypes are named without "torch.".
    `deterministic`: under torch.use_deterministic_algorithms; `asks_deterministic`: what the model
    heard when it asked whether it is on, "" if it did not ask; `asked`: of `SWITCHES`, those that
    it asked for, and what it heard, as Python writes it."""

    device: Literal["", "cpu", "cuda"] = ""
    autocast: Literal["", "float16", "bfloat16", "any"] = ""
    default_dtype: Literal["", "float16", "bfloat16", "float32", "float64"] = ""
    deterministic: bool = False
    asks_deterministic: Literal["", "on", "off"] = ""
    asked: tuple[tuple[str, str], ...] = ()


def name_of(dtype: torch.dtype) -> Any:
    """The dtype as torch spells it after `torch.`: "float16"."""
    return str(dtype).removeprefix("torch.")


def autocast_now(device: str) -> Any:
    """The name of the dtype that autocast computes in on this kind of device, "" if it is off."""
    if not (device and torch.is_autocast_enabled(device)):
        return ""
    return name_of(torch.get_autocast_dtype(device))


def holds(ambient: Ambient) -> Callable[[], bool]:
    """Whether a call is made under this ambient: a few flags are read, 0.1 us of a call; 0.3 us for
    each that the model asked for."""
    device, wanted = ambient.device, ambient.autocast
    if not device:
        return lambda: True
    if ambient.asked:
        told = [(SWITCHES[question], was) for question, was in ambient.asked]
        other, on_cpu = holds(replace(ambient, asked=())), ON_CPU[1]
        if ambient.asked == (ON_CPU,):
            return lambda: other() and (not _modes() or repr(torch.get_default_device()) == on_cpu)
        return lambda: other() and all(repr(answer()) == was for answer, was in told)
    if ambient.default_dtype or ambient.asks_deterministic:
        return lambda: not differs(ambient)
    free = not _chosen_without(ambient)
    if wanted == ANY:
        return lambda: free or not _deterministic()
    if wanted:
        return lambda: autocast_now(device) == wanted and (free or not _deterministic())
    if free:
        return lambda: not _any_autocast() or not torch.is_autocast_enabled(device)
    return lambda: (
        (not _any_autocast() or not torch.is_autocast_enabled(device)) and not _deterministic()
    )


def foreign_modes() -> list[str]:
    """The function modes that are on around the calling thread, and none of torch's or ours: their
    classes' names."""
    modes: Any = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    kinds = (type(mode) for mode in modes if mode is not None)
    return [k.__name__ for k in kinds if k.__module__.partition(".")[0] not in MODES_IN]


def _chosen_without(ambient: Ambient) -> bool:
    """Whether its kernels were chosen once, and perhaps not deterministic ones."""
    return ambient.device == "cuda" and not ambient.deterministic


def differs(ambient: Ambient) -> Refused | None:
    """The difference between the calling thread's ambient and the captured one, None if there is
    none."""
    if not ambient.device:
        return None
    now = autocast_now(ambient.device)
    if ambient.autocast not in (now, ANY):
        return Refused(f"{_cast(ambient.device, now)}, and the model was compiled {_was(ambient)}")
    default = name_of(_dtype())
    if ambient.default_dtype and default != ambient.default_dtype:
        makes = f"the model makes tensors of torch's default dtype, {ambient.default_dtype}"
        return Refused(f"torch's default dtype is {default}, and {makes} when it was compiled")
    if ambient.asks_deterministic not in ("", on := "on" if _deterministic() else "off"):
        asks = (
            f"the model asks for it, and it was {ambient.asks_deterministic} when it was compiled"
        )
        return Refused(f"torch.use_deterministic_algorithms is {on}: {asks}")
    for question, was in ambient.asked:
        answer = repr(SWITCHES[question]())
        if answer != was:
            return Refused(
                f"{question} is {answer}: the model asks, and it was {was} when it was compiled"
            )
    if _chosen_without(ambient) and _deterministic():
        chosen = "the kernels of the plan were chosen while it was off; compile under it"
        return Refused(f"torch.use_deterministic_algorithms(True) is on, and {chosen}")
    return None


def _cast(device: str, dtype: str) -> str:
    return f"torch.autocast({device!r}, torch.{dtype}) is on" if dtype else "autocast is off"


def _was(ambient: Ambient) -> str:
    if not ambient.autocast:
        return "without autocast"
    return f"under torch.autocast({ambient.device!r}, torch.{ambient.autocast})"
