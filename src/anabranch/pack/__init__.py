"""Which bytes: lifetimes under happens-before, offsets in one arena, the proof that no two launches
harm each other, and the file that a plan travels in. Schedule -> Plan.

    lifetime --> arena --> plan --> check     (tighten: a few more waits where memory is short)
                             \\--> artifact
"""

from anabranch.pack.plan import pack

__all__ = ["pack"]
