"""When and on which stream each task runs.

A scheduler is a function `(tasks, costs, limits) -> Schedule`, one file per idea, one line in the
table. `anabranch.schedule.best.best` runs several and keeps the fastest. To add one: write its
file, add its line here, and the property tests take it from there.
"""

from __future__ import annotations

from anabranch.errors import OptionError
from anabranch.ir.protocols import Scheduler
from anabranch.schedule import list_scheduling, sequential
from anabranch.schedule.baselines import greedy, nimble, opara, opara_paper, wavefront
from anabranch.schedule.ios import merge_stages
from anabranch.schedule.ios import scheduler as ios
from anabranch.schedule.local import scheduler as local

SCHEDULERS: dict[str, Scheduler] = {
    "sequential": sequential.schedule,
    "greedy": greedy.schedule,
    "wavefront": wavefront.schedule,
    "nimble": nimble.schedule,
    "opara-paper": opara_paper.schedule,
    "opara-traced": opara_paper.schedule_traced,
    "opara-depth": opara_paper.schedule_depth,
    "opara": opara.schedule,
    "critical": list_scheduling.schedule,
    "local": local.schedule,
    "ios": ios.schedule,
    "ios-barrier": ios.schedule_barrier,
    "ios-measured": ios.schedule_measured,
    "ios-merge": merge_stages.schedule_merge,
    "ios-both": merge_stages.schedule_both,
    "ios-paper": ios.schedule_paper,
}


BEST = ("sequential", "wavefront", "nimble", "opara", "critical", "local", "ios")
"""What `best` tries unless told otherwise: those that never ask for more than the cost of tasks."""


def scheduler(name: str) -> Scheduler:
    """The table's entry of this name; OptionError lists the known ones."""
    if name not in SCHEDULERS:
        raise OptionError(
            f"unknown scheduler {name!r}",
            "no scheduler has this name",
            f"choose one of: best, {', '.join(SCHEDULERS)}",
        )
    return SCHEDULERS[name]
