from __future__ import annotations

from anabranch.ir.dag import Dag
from anabranch.ir.schedule import text_schedule
from anabranch.schedule.baselines.wavefront import depths, plan


def test_longest_of_a_wave_first(diamond: Dag) -> None:
    """
         +--> b 2 --+
    a -->|          +--> d
         +--> c 5 --+
    """
    assert depths(diamond) == [0, 1, 1, 2]
    assert text_schedule(plan(diamond, [1, 2, 5, 1], 8)) == (
        "schedule wavefront {\n  a @0\n  c @0\n  b @1 after a\n  d @1 after c\n}\n"
    )


def test_streams_are_limited(googlenet: Dag) -> None:
    """GoogLeNet: four branches a module."""
    us = [1.0] * len(googlenet.names)
    assert plan(googlenet, us, 16).streams == 4
    assert plan(googlenet, us, 2).streams == 2
    assert plan(googlenet, us, 1).waits == 0
