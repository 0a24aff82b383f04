"""Deadline: until when something may go on searching and measuring; TIME: how long that may take;
EFFORTS: how much is tried.

    Deadline.after(30)         in thirty seconds
    whole.within(5)            in five, or with the whole if that is over before
    Deadline(stop=event)       when somebody sets the event: a signal handler, another thread

A compilation has one deadline, and every stage and search a part of it. A worker with a deadline
asks `over()` between two steps and then answers with the best so far: that the time has passed and
that somebody wants an end is the same to them. Nobody is interrupted.

All numbers of seconds that decide how long a compilation searches, times and schedules stand in one
table, `TIME`, each with its reason. Whoever needs another one in a test replaces the table.

How much of a compilation's time a user buys is one of three settings, rows of `EFFORTS`:

    fast      one cut into launches, of this graph or of one other, chosen by predicted times; as
              many tiles of a template for each structure as make no more than 64 kernels, two to
              eight; two schedulers, one mode of dependent launch
    default   eight tiles of a template for each structure, engines of libraries where they may win;
              three modes, one for all kernels; a search stops where it is promised less than noise
    max       everything that may be faster is tried

Whatever is used was verified in all three: effort says how much is tried, not how it is judged.

>>> from threading import Event
>>> stop = Event()
>>> part = Deadline.after(60, stop).within(5)
>>> part.over(), part.left() > 4
(False, True)
>>> stop.set()
>>> part.over(), part.left(), part.cause()
(True, 0.0, 'stop')
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from types import MappingProxyType
from typing import Literal

CutShort = Literal["", "budget", "stop"]
"""Why there is no more than the best so far: nothing was cut short, the time had passed, or
somebody asked for an end."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`moment`: of `time.monotonic`, infinite if time does not matter; `stop`: once it is set, this
    and all parts of it are over."""

    moment: float = math.inf
    stop: Event | None = None

    @staticmethod
    def after(seconds: float | None, stop: Event | None = None) -> Deadline:
        """In so many seconds from now; None for as long as it takes."""
        return Deadline(stop=stop).within(seconds)

    def within(self, seconds: float | None) -> Deadline:
        """In so many seconds from now, or when this one is over if that is sooner."""
        if seconds is None:
            return self
        return Deadline(min(self.moment, time.monotonic() + seconds), self.stop)

    def earlier(self, seconds: float) -> Deadline:
        """So many seconds before this one, which what comes after may need."""
        return Deadline(self.moment - seconds, self.stop)

    def over(self) -> bool:
        """Whether the moment has come or somebody said stop."""
        return self.stopped() or time.monotonic() >= self.moment

    def left(self) -> float:
        """Seconds, infinitely many if time does not matter."""
        return 0.0 if self.stopped() else max(0.0, self.moment - time.monotonic())

    def stopped(self) -> bool:
        """Whether somebody asked for an end."""
        return self.stop is not None and self.stop.is_set()

    def cause(self) -> CutShort:
        """Why it is over, "" if it is not."""
        if self.stopped():
            return "stop"
        return "budget" if self.over() else ""


ENDLESS = Deadline()
"""As long as it takes."""


@dataclass(frozen=True, slots=True)
class TimePolicy:
    """How long searching, timing and scheduling may take, in seconds where nobody gave a budget:
    `_s` is a duration, `_end_s` a moment since the compilation began. A first compilation shall end
    within three minutes. Measured in 2026 on the GPUs and hosts that are named."""

    # Attempts after a wrong plan.
    attempt_least_s: float = 1.0
    """The least time of a further attempt, so that it can end at all."""

    # Timing one candidate.
    kernel_rough_s: float = 0.002
    """A kernel's first run in the sandbox, which only tells whether it may win."""
    kernel_s: float = 0.006
    """A candidate kernel, of which a network may have thousands: fifty samples of a kernel of 10
    us, each of which is 8 runs in a row. Medians of so many tell 2% apart."""
    kernel_alone_s: float = 0.01
    """A kernel of many that are timed one by one, without a graph."""
    schedule_s: float = 0.05
    """A schedule: whole schedules differ by little."""
    warm_up_s: float = 0.05
    """Running before anything is timed, if the time for it is no shorter."""
    eager_race_s: float = 0.5
    """Each of the two races between the plan and the eager model."""
    eager_report_s: float = 0.5
    """The model as it was, for a report."""

    # A saved plan on another machine.
    retarget_s: float = 60.0
    """Choosing kernels anew for those that do not run here: who loads a plan waits for it, once,
    for what was decided is kept. A structure has some hundred kernels, which sixteen processors
    compile and try in some ten seconds."""

    # Programmatic dependent launch.
    pdl_s: float = 0.4
    """A plan in all uniform modes together."""
    pdl_of_many_s: float = 0.06
    """Each of many plans in its mode."""
    pdl_variant_s: float = 0.02
    """One plan with one mode per kernel."""
    pdl_per_kernel_s: float = 6.0
    """The search for modes per kernel: some 220 runs of a plan of a hundred kernels. A plan of more
    than 300 launches would have far fewer runs, for more kernels; NASNet-A, at both sizes, was
    never given modes of their own by them."""
    pdl_per_kernel_least_s: float = 1.0
    """In less time a search for modes per kernel shows nothing."""
    pdl_per_kernel_enough: float = 0.9
    """Part of `pdl_per_kernel_s`: what was found in less is stored for who has no more either."""
    pdl_per_kernel_end_s: float = 160.0
    """Afterwards nobody looks for modes per kernel."""
    stop_look_s: float = 0.1
    """Between two looks at whether somebody wants an end, while kernels are compiled."""

    # Horizontal fusion.
    horizontal_s: float = 12.0
    """Trying launches for several tasks."""
    horizontal_end_s: float = 148.0
    """Afterwards nothing is tried: the last comparison comes after it."""
    horizontal_start_s: float = 5.0
    """The process that runs kernels first, whatever is tried in it."""
    horizontal_structure_s: float = 0.9
    """Each structure: two kernels, one of them in six modes of launch, at 0.4 seconds for each of
    its parts, on sixteen processors."""

    # Search of equal graphs.
    search_s: float = 45.0
    """A search, the schedule of what it finds included."""
    search_work_s: float = 30.0
    """Its work, in seconds of a usual machine: the clock is to have no say there."""
    search_end_s: float = 150.0
    """Afterwards nothing is searched."""
    search_budget_share: float = 1 / 3
    """Part of a budget for everything that the work of a search is counted by."""
    search_slack_s: float = 25.0
    """By so much the first candidate may end later: else all that was found out about parts has
    been in vain. With 12, the parts of NASNet-A Large that were up to 28% faster in another form on
    an H200, in 35 seconds, were never put together."""
    search_at_once_s: float = 10.0
    """A search that tries one candidate, for who wants to begin in seconds."""
    search_at_once_node_s: float = 0.02
    """For each node at least: a U-Net's 1,075 are looked at for 6 to 9 s before the candidate is
    built."""
    search_comparison_s: float = 15.0
    """After the search, for what was found to be compared with the graph as it was. On an H100 that
    takes 1 to 5 with a uniform mode for each, 9 to 14 where the graphs are large, and 14 to 18 with
    modes per kernel, for which a search must end some seconds early."""
    search_modes_s: float = 13.0
    """Modes per kernel for both graphs of that comparison: twice `pdl_per_kernel_s`, and a rest."""
    schedule_task_s: float = 0.035
    """Scheduling a task in earnest, where the schedule of the first graph is recalled and tells
    nothing: on an H200's host NASNet-A Large, 561 tasks, took 18 beside the wait for kernels,
    Mobile, 348, 13 to 21; on an H100's, with kernels that had been timed before, 8 and 6."""
    work_price_s: float = 0.0015
    """A price. All work is processor time for networks of 200 to 700 nodes; a GPU adds compiling
    and timing to what is built."""
    work_whole_node_s: float = 5e-5
    """A node of a whole graph that is looked at, for the places of a rule or for its price: of a
    U-Net's 1,075 to 1,900 nodes 151 looks took 8.5 s."""
    work_survey_node_s: float = 0.001
    """A node of a graph whose parts are found."""
    work_build_node_s: float = 0.008
    """A node of a graph that is built, with kernels that others do not have, and raced."""
    work_part_task_s: float = 0.4
    """A task of part timing that nobody has run."""
    work_part_run_s: float = 0.05
    """A part that is timed."""
    pace_known_s: float = 1.0
    """Work on the processor alone that tells its pace. A moment in which others had the processor
    is most of what less of it takes, and no reason to leave anything out."""

    # CP-SAT.
    exact_s: float = 10.0
    """One exact schedule, on the clock."""
    exact_work_s: float = 20.0
    """The same in deterministic seconds, CP-SAT's count of its own work, which is the same on every
    machine."""

    # Workers.
    worker_grace_s: float = 30.0
    """For how long a job may go on after the budget, before its worker is ended: what a job looks
    at the clock between takes seconds, a kernel that hangs `kernel_run_limit_s` at most, and who
    asked for a budget waits for it."""

    worker_progress_s: float = 0.2
    """Between two words of progress of a worker: a job has thousands of steps."""
    worker_take_s: float = 5.0
    """For how long an actor of Ray waits for a word of its process before it says that there is
    none: a call that waits costs nothing, and one that never ends would hold up an end."""

    workers_compile_s: float = 60.0
    """For what workers compile ahead of the schedule: all modes of a thousand kernels take some
    twenty; afterwards the caller compiles what is missing."""

    # A kernel that hangs.
    kernel_compile_limit_s: float = 120.0
    """Afterwards a text is given up that a compiler does not end with."""
    kernel_run_limit_s: float = 60.0
    """One kernel in the sandbox: building it is not among them."""
    sandbox_silence_s: float = 180.0
    """Without a word, after which the sandbox is taken for stuck: its start, which takes ten and
    more on a busy machine, and `kernel_compile_limit_s`; from then on it has something to say
    whenever a text is compiled or given up."""
    operator_wait_s: float = 10.0
    """For how long a call of one operator of the user's may keep other calls of the plan waiting:
    an operator that waits for one of them would never end."""
    operator_look_s: float = 0.001
    """Between two looks at whether a plan with such operators is free."""
    sandbox_cache_wait_s: float = 2.0
    """The sandbox's wait for whoever writes to the cache: the process that asks waits for longer,
    and once is enough."""

    @property
    def search_rate(self) -> float:
        """Work of a search for each second that was asked for."""
        return self.search_work_s / self.search_s


TIME = TimePolicy()
"""The policy that everything is compiled under."""


class Effort(StrEnum):
    """How much is tried. FAST: ready in seconds; DEFAULT: what can hardly be faster is left out;
    MAX: as fast as it can be found."""

    FAST = "fast"
    DEFAULT = "default"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class EffortSettings:
    """What a setting changes.

    options: what it sets of other options, unless they are given.
    generated: kernels of one structure and template that are generated and tried, at most, in the
        order in which they are offered; None for as many as there is room for.
    together: generated kernels of all structures that are decided together, at most, as long as
        that leaves two for each template of a structure.
    between: as `together`, of a size between others of one model that are searched.
    engines: engines of a library, which must be built, are not tried where they are predicted to
        take more than so many times what the fastest generated kernel is.
    one_cut: of the ways to cut a graph into launches one is chosen by predicted times, before any
        kernel is built, and nothing is computed again or written in place of a concatenation.
    foreseen: the part of its time that another graph must be predicted to save, to be built in
        place of the graph as it was, which then is neither built nor raced, as long as the other
        one takes about what was predicted; None where nothing is taken by predictions.
    every_scheduler: all that `scheduler="best"` has, and not the two that need no time.
    modes: of the modes of dependent launch, which are ordered by how often they win, the first so
        many are tried; None for all.
    carveouts: other parts of shared memory than all are tried.
    promise: the part of the time that a candidate of a search must be predicted to save, to be run.
    stops: a search ends where all parts of the graph together are promised to save less than that.
    own_modes: graphs that come near each other at the end of a search are compared with a mode of
        its own for each kernel.
    race: the part of the usual time in which the plan and the eager model are compared.
    """

    options: tuple[tuple[str, str], ...] = ()
    generated: int | None = None
    together: int | None = None
    between: int | None = None
    engines: float = math.inf
    one_cut: bool = False
    foreseen: float | None = None
    every_scheduler: bool = True
    modes: int | None = None
    carveouts: bool = True
    promise: float = 0.005
    stops: bool = False
    own_modes: bool = True
    race: float = 1.0


EFFORTS: Mapping[Effort, EffortSettings] = MappingProxyType(
    {
        Effort.FAST: EffortSettings(
            options=(
                ("search", "at-once"),
                ("horizontal_fusion", "none"),
                ("pdl", "uniform"),
            ),
            generated=8,
            together=64,
            between=32,
            engines=0.0,
            one_cut=True,
            foreseen=0.02,
            every_scheduler=False,
            modes=1,
            carveouts=False,
            promise=0.02,
            own_modes=False,
            race=0.2,
        ),
        Effort.DEFAULT: EffortSettings(
            options=(("pdl", "uniform"),),
            generated=8,
            engines=1.3,
            foreseen=0.02,
            modes=3,
            promise=0.02,
            stops=True,
            own_modes=False,
        ),
        Effort.MAX: EffortSettings(),
    }
)
"""By name."""
