"""Fusing: which nodes share a launch. `legality` says whether they may, with a reason if not;
`vertical` makes vertical groups; `partition` cuts a graph into tasks; `concat_elision` writes parts
of a concatenation where they belong. What a launch costs and what runs it is decided elsewhere."""

from anabranch.fusion.partition import partition

__all__ = ["partition"]
