"""Which of a target's CUDA streams each stream of a plan is, so that few of them need cuBLAS.

    plan     0: conv   1: mm   2: relu   3: mm      for each stream that it was called on, cuBLAS
    streams  0         1       3         2          keeps 32 MiB on Hopper while the process lives

Streams of a plan say which launches may overlap, and nothing else: which is which is free. Those
that multiply matrices by the library come first, so that all plans of a process, and those that
are only tried, take them from the same few.
"""

from __future__ import annotations

from anabranch.ir.library_calls import library_streams
from anabranch.ir.plan import Plan


def stream_places(plan: Plan, urgent: bool) -> list[int]:
    """By stream of the plan its place among the target's; the first stays the first, but among
    `urgent` ones, where no graph is captured from."""
    count = 1 + max((launch.stream for launch in plan.schedule.launches), default=0)
    calls = {stream for stream, soon in library_streams(plan) if soon == urgent}
    first = () if urgent else (0,)
    ranked = sorted(range(count), key=lambda stream: (stream not in first, stream not in calls))
    places = [0] * count
    for place, stream in enumerate(ranked):
        places[stream] = place
    return places
