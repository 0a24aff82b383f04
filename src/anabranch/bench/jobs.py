"""The schedules that benchmarks compare, and what is to be compiled for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from anabranch.bench.harness import Cell
from anabranch.bench.result_rows import variant
from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.ir.protocols import Target
from anabranch.models.load import load_model
from anabranch.options import Options
from anabranch.schedule import scheduler
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job


@dataclass(frozen=True, slots=True)
class ScheduleMatrix:
    """Schedulers, and networks x dtypes x batches whose tasks each of them plans; a scheduler may
    have options of its own, "ios-paper+max_groups=3". kernels: "all", or "library" alone, chosen
    before in the time it takes. budget: the seconds after which a scheduler (`bench.schedulers`) or
    a network's delayed runs (`bench.delays`) are ended. apart: no scheduler finds in the cache what
    others have measured, so that its seconds are its own. utilisation: each plan is also run once
    under a profiler, to see what it makes of the machine."""

    models: Sequence[str]
    schedulers: Sequence[str]
    dtypes: Sequence[str] = ("fp16",)
    batches: Sequence[int] = (1,)
    target: str = "cpu"
    kernels: str = "all"
    budget: float | None = None
    trust: bool = False
    apart: bool = False
    utilisation: bool = False


def scheduler_options(name: str) -> Options:
    """What "ios-paper+max_groups=3" stands for. OptionError if it means nothing.

    >>> scheduler_options("ios-paper+max_groups=3").max_groups
    3
    """
    options = Options.read(variant(name, "scheduler"), environment=False)
    scheduler(options.scheduler)
    return options


@contextmanager
def schedule_job(matrix: ScheduleMatrix, cell: Cell, trace: Trace) -> Iterator[Job]:
    """One network of the matrix, compiled without a search while its cache is open."""
    model, dtype, batch = cell
    settings = {"tf32": dtype == "tf32", "kernels": matrix.kernels, "search": "none"}
    options = Options.read(settings)
    target = resolve(matrix.target, options.tf32)
    with Cache.open(options.cache_dir) as cache:
        yield job_of(model, dtype, batch, target, options, cache, trace, matrix.trust)


def job_of(
    model: str,
    dtype: str,
    batch: int,
    target: Target,
    options: Options,
    cache: Cache | None,
    trace: Trace,
    trust: bool = False,
) -> Job:
    """What is to be compiled: a network by name, for inputs of its own."""
    device = "cpu" if target.device.type == "meta" else target.device
    loaded, args = load_model(model, batch, dtype, device, trust=trust)
    return Job(loaded, args, {}, target, options, cache, trace)


def captured_once(job: Job) -> Job:
    """The job with its model captured, for whoever compiles it several times."""
    return replace(job, captured=compile_model(job, stop_after="capture"))
