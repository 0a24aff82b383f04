"""Fusing: which nodes share a launch. `legal` says whether they may, with a reason if not; `grow`
makes vertical groups; `partition` cuts a graph into tasks; `join` writes parts of a concatenation
where they belong. What a launch costs and what runs it is decided elsewhere."""

from anabranch.fuse.partition import partition

__all__ = ["partition"]
