"""Which bytes: lifetimes under happens-before, offsets in one arena, the proof that no two launches
harm each other. Schedule -> Plan.

    lifetime --> arena --> planner --> race_check       (tighten: a few more waits for less memory)
"""

from anabranch.memory.planner import pack

__all__ = ["pack"]
