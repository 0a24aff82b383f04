"""Rewriting: from a graph to equal graphs. `simplify` does what always helps; rules (`rules`) are
found (`match`) and applied (`apply`) one by one where a search is to choose among them; both make
graphs with `build`. Nothing here knows what a graph costs or what will run it."""

from anabranch.rewrite.simplify import simplify

__all__ = ["simplify"]
