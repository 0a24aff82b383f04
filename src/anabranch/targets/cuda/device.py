"""What the GPU is: its TargetSpec, read from the driver, and the peak rates of its generation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch

from anabranch.errors import TargetError
from anabranch.ir.target import TargetSpec
from anabranch.targets.calibrations import CALIBRATIONS
from anabranch.targets.cuda.driver import open_driver

DENSE_FLOPS_PER_SM_CYCLE: dict[tuple[int, int], dict[str, int]] = {
    (8, 0): {"f16": 2048, "bf16": 2048, "tf32": 1024, "f32": 128, "f64": 128},
    (8, 6): {"f16": 1024, "bf16": 1024, "tf32": 512, "f32": 256, "f64": 4},
    (8, 9): {"f16": 1024, "bf16": 1024, "tf32": 512, "f32": 256, "f64": 4},
    (9, 0): {"f16": 4096, "bf16": 4096, "tf32": 2048, "f32": 256, "f64": 256},
    (10, 0): {"f16": 8192, "bf16": 8192, "tf32": 4096, "f32": 256, "f64": 256},
}
"""Dense, a multiply-add counted as two, by compute capability; the nearest older where unknown."""


def available() -> bool:
    """Whether torch sees a CUDA GPU."""
    return torch.cuda.is_available()


def gpus() -> tuple[str, ...]:
    """The GPUs that torch sees, each by its kind and a name of its own: what comes last is what
    CUDA_VISIBLE_DEVICES may call it. Empty where there are none."""
    if not available():
        return ()
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(f"{device.name} GPU-{device.uuid}" for device in devices)


def read_spec(device: torch.device, tf32: bool) -> TargetSpec:
    """The spec of a CUDA device. TargetError below compute capability 8.0."""
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if capability < (8, 0):
        raise TargetError(
            f"{properties.name} has compute capability {capability[0]}.{capability[1]}",
            "plans need 8.0 or newer (A100, RTX 30 and later)",
            "use target='cpu', or a newer GPU",
        )
    nearest = max(c for c in DENSE_FLOPS_PER_SM_CYCLE if c <= capability)
    clock_hz = 1e3 * _clock_khz(properties)
    per_cycle = DENSE_FLOPS_PER_SM_CYCLE[nearest]
    sms = properties.multi_processor_count
    return TargetSpec(
        kind="cuda",
        name=properties.name,
        sms=sms,
        capability=capability,
        peak_flops=tuple((name, rate * sms * clock_hz) for name, rate in per_cycle.items()),
        bandwidth=_bandwidth(properties),
        l2_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        threads_per_sm=properties.max_threads_per_multi_processor,
        registers_per_sm=int(getattr(properties, "regs_per_multiprocessor", 65536)),
        shared_per_sm=properties.shared_memory_per_multiprocessor,
        tf32=tf32,
        versions=_versions(),
        calibration=CALIBRATIONS.get(capability),
    )


def _clock_khz(properties: torch._C._CudaDeviceProperties) -> float:
    return float(getattr(properties, "clock_rate", 1_755_000))


def _bandwidth(properties: torch._C._CudaDeviceProperties) -> float:
    """Bytes per second: double data rate on the bus width the driver tells, where it does."""
    khz = float(getattr(properties, "memory_clock_rate", 0))
    bits = float(getattr(properties, "memory_bus_width", 0))
    return 2e3 * khz * bits / 8 if khz and bits else 2e12


def _versions() -> tuple[tuple[str, str], ...]:
    """What kernels are made and run by. Triton is asked by its package alone: importing it takes
    longer than the whole of a start that finds everything in the cache."""
    return (
        ("torch", torch.__version__),
        ("cuda", str(torch.version.cuda)),
        ("cudnn", str(torch.backends.cudnn.version())),  # type: ignore[no-untyped-call]
        ("triton", _of_package("triton")),
        ("driver", str(open_driver().version())),
    )


def _of_package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
