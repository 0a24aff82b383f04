"""Targets: the only place that touches hardware. A target loads plans, runs and times them.

| name | runs | times come from |
|---|---|---|
| cuda | one multi-stream CUDA graph per plan | measurement on this GPU |
| cpu | worker threads as streams | measurement on this CPU |
| sim:h200 | nothing: plans only | a profile recorded on an H200, shipped with the package |
| sim:FILE.json | nothing: plans only | a profile that `anabranch record` wrote on another machine |
"""

from anabranch.targets.table import TARGETS, resolve

__all__ = ["TARGETS", "resolve"]
