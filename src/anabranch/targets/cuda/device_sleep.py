"""A kernel that does nothing for a while, so that the host gets ahead of the device.

torch's own counts the cycles of one multiprocessor; where another process has had the GPU meanwhile
it may go on with the cycles of another. This one reads the clock of the whole device, and ends
after as many readings as there were nanoseconds to wait, whatever that clock says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from anabranch.targets.cuda.driver import Driver, LaunchConfig, open_driver

LONGEST_US = 2e6
ENTRY = "device_sleep"
PTX = f"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry {ENTRY}(.param .u64 ns)
{{
    .reg .pred %early, %some;
    .reg .b64 %most, %left, %begin, %now;
    ld.param.u64 %most, [ns];
    mov.u64 %left, %most;
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    sub.u64 %left, %left, 1;
    setp.lt.u64 %early, %now, %most;
    setp.ne.and.u64 %some, %left, 0, %early;
    @%some bra again;
    ret;
}}
"""
ONE_THREAD = LaunchConfig((1, 1, 1), 1, 0, pdl=False)


def device_sleep(us: float) -> None:
    """The current stream of the current device waits for about `us` microseconds, two seconds at
    most. TargetError where there is no driver."""
    driver, function = _loaded(torch.cuda.current_device())
    ns = 1 + round(1e3 * min(max(us, 0.0), LONGEST_US))
    driver.launch(function, ONE_THREAD, torch.cuda.current_stream().cuda_stream, (ns,))


@cache
def _loaded(device: int) -> tuple[Driver, Any]:
    """The kernel on the current device, which is `device`."""
    torch.cuda.mem_get_info()  # a call of the runtime's makes the device's context current
    driver = open_driver()
    return driver, driver.load(PTX.encode() + b"\0", ENTRY)
