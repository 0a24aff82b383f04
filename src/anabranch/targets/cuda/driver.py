"""The door to the CUDA driver: load a cubin, ask about a kernel, launch it on a stream.

Through ctypes on libcuda itself: package cuda-bindings takes 0.17 s to import and is no faster at a
launch. Addresses are packed as an array of pointers, each to one 64-bit parameter, which the driver
copies before the launch returns.

    addresses (0x7f00, 0x7f80)  ->  words [0x7f00, 0x7f80], array [&words[0], &words[1]]

The caller has made the device's primary context current, as any call of torch's runtime does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.errors import TargetError

NAME = "libcuda.so.1"
ATTRIBUTES = {"shared": 1, "local": 3, "registers": 4, "most_shared": 8}
"""Our names for what the driver knows of a function: static bytes of shared memory, bytes of local
memory and registers a thread, and dynamic bytes of shared memory it may be launched with, which can
be set."""
PROGRAMMATIC = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: start while the kernel before it runs."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a kernel is launched. shared: dynamic bytes; pdl: it waits for its predecessor itself."""

    grid: tuple[int, int, int]
    threads: int
    shared: int
    pdl: bool


class Driver(Protocol):
    """Functions and modules are the driver's own handles. TargetError for what it refuses."""

    def version(self) -> int:
        """The newest CUDA it knows, 12040 for 12.4."""

    def load(self, code: bytes, entry: str) -> Any:
        """The function `entry` of the cubin, loaded on the current device for as long as the
        process lives."""

    def attribute(self, function: Any, name: str) -> int:
        """An attribute of the function, by its name in `ATTRIBUTES`."""

    def set(self, function: Any, name: str, value: int) -> None:
        """Set an attribute of the function, by its name in `ATTRIBUTES`."""

    def launch(
        self, function: Any, launch: LaunchConfig, stream: int, addresses: Sequence[int]
    ) -> None:
        """Launch the function on the stream, given by its handle; `addresses`: of its parameters,
        on the device."""


def open_driver() -> Driver:
    """TargetError where there is no driver."""
    try:
        return Library(ctypes.CDLL(NAME))
    except OSError as failed:
        raise TargetError(
            "the CUDA driver cannot be opened", str(failed), "check nvidia-smi; use target='cpu'"
        ) from failed


@dataclass(frozen=True, slots=True)
class Packed:
    """Parameters in memory; `array` points into `words`, so they live and die together."""

    words: ctypes.Array[ctypes.c_uint64]
    array: ctypes.Array[ctypes.c_void_p]


def pack(addresses: Sequence[int]) -> Packed:
    """The addresses as the array of pointers to parameters that a launch takes."""
    words = (ctypes.c_uint64 * len(addresses))(*addresses)
    start, size = ctypes.addressof(words), ctypes.sizeof(ctypes.c_uint64)
    array = (ctypes.c_void_p * len(addresses))(*(start + i * size for i in range(len(words))))
    return Packed(words, array)


def refused(call: str, why: str) -> TargetError:
    """The error for a call that the driver answered with `why`."""
    return TargetError(
        f"{call} failed", why, "report the model with ANABRANCH_DEBUG=2; target='cpu' goes without"
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes of which the first word is the switch."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Library:
    """The layout of the structures has not changed since CUDA 11.8."""

    def __init__(self, library: Any) -> None:
        self._cuda = library

    def version(self) -> int:
        """The CUDA version that the driver supports: 12040 for 12.4."""
        value = ctypes.c_int()
        self.ask("cuDriverGetVersion", ctypes.byref(value))
        return value.value

    def load(self, code: bytes, entry: str) -> Any:
        """By cuModuleLoadData from memory; modules are never unloaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.ask("cuModuleLoadData", ctypes.byref(module), code)
        self.ask("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def attribute(self, function: Any, name: str) -> int:
        """By cuFuncGetAttribute, with the numbers of `ATTRIBUTES`."""
        value = ctypes.c_int()
        which = ctypes.c_int(ATTRIBUTES[name])
        self.ask("cuFuncGetAttribute", ctypes.byref(value), which, function)
        return value.value

    def set(self, function: Any, name: str, value: int) -> None:
        """By cuFuncSetAttribute, with the numbers of `ATTRIBUTES`."""
        which = ctypes.c_int(ATTRIBUTES[name])
        self.ask("cuFuncSetAttribute", function, which, ctypes.c_int(value))

    def launch(
        self, function: Any, launch: LaunchConfig, stream: int, addresses: Sequence[int]
    ) -> None:
        """By cuLaunchKernelEx, with a structure laid out as CUDA's header has it."""
        packed = pack(addresses)
        config = Config(launch.grid, (launch.threads, 1, 1), launch.shared, stream)
        if launch.pdl:
            switch = _Attribute(PROGRAMMATIC)
            switch.value[0] = 1
            config.attributes, config.count = ctypes.pointer(switch), 1
        self.ask("cuLaunchKernelEx", ctypes.byref(config), function, packed.array, None)

    def ask(self, call: str, *args: Any) -> None:
        """Call a function of the driver; TargetError with the driver's name of the error if it
        fails, or if this driver has none of this name."""
        try:
            function = getattr(self._cuda, call)
        except AttributeError as failed:
            raise refused(call, "this driver has no such function") from failed
        status = int(function(*args))
        if status != 0:
            name = ctypes.c_char_p()
            self._cuda.cuGetErrorName(ctypes.c_int(status), ctypes.byref(name))
            raise refused(call, (name.value or b"unknown error").decode() + f" ({status})")
