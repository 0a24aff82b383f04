"""What the driver is given, read back from memory as the driver would read it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from anabranch.errors import TargetError
from anabranch.targets.cuda.driver import PROGRAMMATIC, Config, LaunchConfig, Library, pack

LAUNCH = LaunchConfig((3, 2, 1), 128, 65536, pdl=True)


class FakeCuda:
    """libcuda, as far as a launch goes."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.seen: dict[str, Any] = {}

    def cuLaunchKernelEx(self, config: Any, function: Any, array: Any, extra: Any) -> int:
        read = ctypes.cast(config, ctypes.POINTER(Config)).contents
        self.seen = {
            "grid": tuple(read.grid),
            "block": tuple(read.block),
            "shared": read.shared,
            "stream": read.stream,
            "attributes": [
                (read.attributes[i].id, read.attributes[i].value[0]) for i in range(read.count)
            ],
            "function": function,
            "words": [ctypes.c_uint64.from_address(pointer).value for pointer in array],
        }
        return self.status

    def cuFuncSetAttribute(self, function: Any, which: Any, value: Any) -> int:
        self.seen = {"function": function, "which": which.value, "value": value.value}
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:
        ctypes.cast(version, ctypes.POINTER(ctypes.c_int))[0] = 12080
        return self.status

    def cuGetErrorName(self, status: Any, name: Any) -> int:
        ctypes.cast(name, ctypes.POINTER(ctypes.c_char_p))[0] = b"CUDA_ERROR_INVALID_VALUE"
        return 0


def test_parameters_are_pointers_to_words() -> None:
    packed = pack((0x7F0000000000, 0, 2**64 - 1))
    found = [ctypes.c_uint64.from_address(pointer or 0).value for pointer in packed.array]
    assert found == [0x7F0000000000, 0, 2**64 - 1]


def test_the_layout_is_cudas() -> None:
    """As cuda.h has it on 64-bit machines: seven words, padding, two pointers, a count."""
    assert (Config.stream.offset, Config.attributes.offset, Config.count.offset) == (32, 40, 48)
    assert ctypes.sizeof(Config) == 56


@pytest.mark.parametrize("pdl", [False, True])
def test_a_launch_by_ctypes(pdl: bool) -> None:
    cuda = FakeCuda()
    launch = LaunchConfig((3, 2, 1), 128, 65536, pdl)
    Library(cuda).launch("f", launch, 0x55, (16, 32, 0))
    assert cuda.seen == {
        "grid": (3, 2, 1),
        "block": (128, 1, 1),
        "shared": 65536,
        "stream": 0x55,
        "attributes": [(6, 1)] if pdl else [],
        "function": "f",
        "words": [16, 32, 0],
    }


def test_what_is_set_of_a_function() -> None:
    """By the number of CUfunction_attribute in cuda.h."""
    cuda = FakeCuda()
    Library(cuda).set("f", "most_shared", 65536)
    assert cuda.seen == {"function": "f", "which": 8, "value": 65536}


def test_the_version_is_what_the_driver_says() -> None:
    assert Library(FakeCuda()).version() == 12080
    with pytest.raises(TargetError, match="cuDriverGetVersion failed"):
        Library(FakeCuda(1)).version()


def test_a_refusal_names_the_call_and_the_error() -> None:
    with pytest.raises(TargetError, match="cuLaunchKernelEx failed") as failed:
        Library(FakeCuda(1)).launch("f", LAUNCH, 0, (16,))
    assert failed.value.why == "CUDA_ERROR_INVALID_VALUE (1)"


def test_the_layout_is_that_of_nvidias_own_package() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="compares with cuda-bindings")
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ = LAUNCH.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = LAUNCH.threads, 1, 1
    config.sharedMemBytes, config.hStream = LAUNCH.shared, driver.CUstream(0x55)
    attribute.id = driver.CUlaunchAttributeID(PROGRAMMATIC)
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = [attribute], 1
    ours = ctypes.cast(int(config.getPtr()), ctypes.POINTER(Config)).contents
    assert tuple(ours.grid) == (3, 2, 1) and tuple(ours.block) == (128, 1, 1)
    assert (ours.shared, ours.stream, ours.count) == (65536, 0x55, 1)
    assert (ours.attributes[0].id, ours.attributes[0].value[0]) == (6, 1)
    assert (
        int(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        == PROGRAMMATIC
    )
