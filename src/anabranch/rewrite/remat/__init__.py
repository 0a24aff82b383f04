"""Rematerialisation: values that are read long after they are made are computed again shortly
before, so that fewer bytes live at once. `remat` chooses which, by times under a limit."""

from anabranch.rewrite.remat.remat import Recomputed, remat

__all__ = ["Recomputed", "remat"]
