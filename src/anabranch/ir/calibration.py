"""Calibration: what a machine does with kernels that share it, beyond what its data sheet says.

Each number has a physical meaning and a default that costs nothing; `costs.fit` finds them from
observations. Times in microseconds.

>>> Calibration(fork_us=0.2).fork_us
0.2
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """`start_us`: a run's own begin and end; `end_us`: each further launch that nothing waits for.
    `split_us`: how much later a second launch starts that waits for none; `root_us`: each further
    one. `fork_us`: how much later each further launch starts that waits for the same one.
    `launch_us`: the part of each launch in which it holds no processor, and others may run.
    `lane_us`: the part of a launch that is done ahead while the one before it runs, if it goes on
    from that one and not from another; `short_us`: nothing is done ahead behind one that takes no
    longer, and all only behind one that takes `lane_us` more. `release_us`: how much later the next
    launch of its own lane starts behind a kernel that launches of others wait for, too.
    `dispatch_us`: the least time between two launches, anywhere.
    `sharing`: how much a kernel slows down for each CTA of others that it finds on its processors,
    0 not at all, 1 to half beside one. `bandwidth`, `arithmetic`: the parts of the peak rates at
    which those that run together begin to slow down; of bandwidth more than 1, where the cache
    serves. `cold`: how long a task waits in a network for what it finds at hand when it is timed
    alone, in times of its traffic at the peak rate. `hidden_us`: a task with so much traffic waits
    for half of it, with less for more, with more for less: the rest comes while the task computes.
    No wait is longer than `cold * hidden_us`; 0 where nothing is hidden. `origin`: where the
    numbers come from."""

    start_us: float = 0.0
    end_us: float = 0.0
    split_us: float = 0.0
    root_us: float = 0.0
    fork_us: float = 0.0
    launch_us: float = 0.0
    lane_us: float = 0.0
    short_us: float = 0.0
    release_us: float = 0.0
    dispatch_us: float = 0.0
    sharing: float = 0.0
    bandwidth: float = 1.0
    arithmetic: float = 1.0
    cold: float = 0.0
    hidden_us: float = 0.0
    origin: str = ""
