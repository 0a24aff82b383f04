"""The door to the CUDA driver: load a cubin, ask about a kernel, launch it on a stream.

Through package cuda-bindings where it is installed (torch for CUDA brings it along), else through
ctypes on libcuda itself. Both are given addresses packed the same way: an array of pointers, each
to one 64-bit parameter, which the driver copies before the launch returns.

    addresses (0x7f00, 0x7f80)  ->  words [0x7f00, 0x7f80], array [&words[0], &words[1]]

Whoever calls has made the device's primary context current, as any call of torch's runtime does.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.errors import TargetError

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
        found = importlib.util.find_spec("cuda.bindings.driver")
    except ModuleNotFoundError:
        found = None
    try:
        return Bindings() if found is not None else Library(ctypes.CDLL("libcuda.so.1"))
    except (ImportError, OSError) as failed:
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


class Bindings:
    """By package cuda-bindings."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._cuda = driver
        # Held because the driver forgets a module, and its functions, only when it is told to.
        self._modules: list[Any] = []

    def version(self) -> int:
        """The CUDA version that the driver supports: 12040 for 12.4."""
        return int(self._ask("cuDriverGetVersion"))

    def load(self, code: bytes, entry: str) -> Any:
        """By cuModuleLoadData from memory. The module is kept, or the driver would forget its
        functions."""
        module = self._ask("cuModuleLoadData", code)
        self._modules.append(module)
        return self._ask("cuModuleGetFunction", module, entry.encode())

    def attribute(self, function: Any, name: str) -> int:
        """By cuFuncGetAttribute, with the bindings' own enumeration."""
        which = self._cuda.CUfunction_attribute(ATTRIBUTES[name])
        return int(self._ask("cuFuncGetAttribute", which, function))

    def set(self, function: Any, name: str, value: int) -> None:
        """By cuFuncSetAttribute: dynamic shared memory beyond 48 KiB must be asked for before a
        launch."""
        which = self._cuda.CUfunction_attribute(ATTRIBUTES[name])
        self._ask("cuFuncSetAttribute", function, which, value)

    def launch(
        self, function: Any, launch: LaunchConfig, stream: int, addresses: Sequence[int]
    ) -> None:
        """By cuLaunchKernelEx, which copies the parameters before it returns."""
        packed = pack(addresses)
        self._ask(
            "cuLaunchKernelEx",
            self.config(launch, stream),
            function,
            ctypes.addressof(packed.array),
            0,
        )

    def config(self, launch: LaunchConfig, stream: int) -> Any:
        """The launch as CUDA's own structure, with programmatic dependent launch if asked for."""
        config = self._cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes = launch.shared
        config.hStream = self._cuda.CUstream(stream)
        config.numAttrs = 0
        if launch.pdl:
            attribute = self._cuda.CUlaunchAttribute()
            attribute.id = self._cuda.CUlaunchAttributeID(PROGRAMMATIC)
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def _ask(self, call: str, *args: Any) -> Any:
        status, *results = getattr(self._cuda, call)(*args)
        if int(status) != 0:
            raise refused(call, getattr(status, "name", str(status)))
        return results[0] if results else None


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
    """By ctypes; the layout of the structures has not changed since CUDA 11.8."""

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
        fails."""
        status = int(getattr(self._cuda, call)(*args))
        if status != 0:
            name = ctypes.c_char_p()
            self._cuda.cuGetErrorName(ctypes.c_int(status), ctypes.byref(name))
            raise refused(call, (name.value or b"unknown error").decode() + f" ({status})")
