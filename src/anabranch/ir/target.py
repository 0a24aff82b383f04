"""TargetSpec: what the machine is, as far as plans depend on it.

>>> h200 = TargetSpec("cuda", "NVIDIA H200", sms=132)
>>> h200.kind, len(h200.fingerprint)
('cuda', 32)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from anabranch.ir.calibration import Calibration
from anabranch.ir.key import digest_text

_NOT_THE_MACHINE = ("simulated", "calibration")
"""Fields that say how or how well a machine is known, not which it is."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Peak rates are per second; sizes in bytes; times in microseconds.

    `kind` is cuda or cpu; a simulated GPU has kind cuda and `simulated` set. `peak_flops` by dtype
    name (f16, tf32, f32, ...). `tf32`: fp32 contractions may
    run in tf32. `versions` (torch, cuda, cudnn, triton, driver) take part in the
    fingerprint: a timing made under one set is not used under another. `calibration`: what is known
    of kernels that share the machine; `fork_us`: what a branch costs where only a rule of thumb is
    wanted, or nothing else is known.
    """

    kind: str
    name: str
    sms: int = 1
    capability: tuple[int, int] = (0, 0)
    peak_flops: tuple[tuple[str, float], ...] = ()
    bandwidth: float = 1e10
    l2_bytes: int = 0
    memory_bytes: int = 0
    threads_per_sm: int = 2048
    registers_per_sm: int = 65536
    shared_per_sm: int = 233472
    ctas_per_sm: int = 32
    launch_us: float = 1.0
    fork_us: float = 0.5
    tf32: bool = False
    versions: tuple[tuple[str, str], ...] = ()
    simulated: bool = field(default=False, compare=False)
    calibration: Calibration | None = field(default=None, compare=False)

    @property
    def fingerprint(self) -> str:
        """Names this machine and its software in cache keys; equal for a GPU and its simulation."""
        return digest_text(
            repr(sorted((k, v) for k, v in asdict(self).items() if k not in _NOT_THE_MACHINE))
        )
