"""What workers promise, for processes of this machine and for those that Ray holds.

The first test starts workers as users do; in the others local ones begin as forks of this process,
in which all is imported. Of Ray there is one cluster for all tests of this file; it is no part of
the extra `dev`, because installing it and these tests take more than half a minute (make test-ray).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tuning.workers import jobs

from anabranch.cache import Cache
from anabranch.deadline import TIME, Deadline
from anabranch.errors import OptionError, WorkerError
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.workers import chosen
from anabranch.tuning.workers import pool as policy
from anabranch.tuning.workers.chosen import crew_of
from anabranch.tuning.workers.crew import WorkerCrew
from anabranch.tuning.workers.identity import Identity, identity_of
from anabranch.tuning.workers.job import (
    Done,
    Failed,
    JobRefusal,
    Undone,
    WorkerJob,
    in_order,
    value_of,
)
from anabranch.tuning.workers.local import LocalCrew, LocalLink
from anabranch.tuning.workers.pool import WorkerPool
from anabranch.tuning.workers.ray_crew import RayCrew

pytestmark = [
    pytest.mark.xdist_group("workers"),  # one cluster of Ray
    pytest.mark.usefixtures("ctrl_c_is_heard"),
]
SIM = "sim:h200"
MINE = identity_of(resolve(SIM).spec)
OTHER = Identity((*MINE.versions[:2], ("torch", "1.0"), *MINE.versions[3:]), "NVIDIA A100")

Open = Callable[..., WorkerCrew]


@pytest.fixture(params=["local", "ray"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Starts a crew of so many, whose workers say that they are `claims`."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return lambda count, claims=None, cache=None: RayCrew(SIM, False, "ray", count, claims)
    return lambda count, claims=None, cache=None: LocalCrew(
        SIM, [""] * count, cache, claims=claims, method="fork"
    )


def quiet() -> Trace:
    return Trace(quiet=True)


def appears(mark: Path, then: Callable[[], object]) -> None:
    """Do something once the file is there."""

    def wait() -> None:
        for _ in range(600):
            if mark.exists():
                then()
                return
            time.sleep(0.02)

    threading.Thread(target=wait, daemon=True).start()


def test_a_process_is_started_as_users_start_it() -> None:
    with WorkerPool(LocalCrew(SIM, [""]), MINE) as pool:
        (found,) = pool.outcomes([WorkerJob(b"\x00a", jobs.double, (4,))], quiet())
    assert isinstance(found, Done)
    assert (found.key, found.value, found.worker, found.gpu) == (
        b"\x00a",
        8,
        "worker 0",
        "NVIDIA H200",
    )


def test_workers_get_ready_ahead_of_jobs() -> None:
    """Whatever becomes of that, and once."""
    with forks() as pool:
        for _ in range(2):
            pool.start(WorkerJob("ahead", jobs.ready, ("compilers",)))
        asked = [WorkerJob(key, jobs.found_ready, ("compilers",)) for key in "ab"]
        answers = in_order(asked, pool.outcomes(asked, quiet()))
    assert [value_of(answer) for answer in answers] == [True, False]


def test_the_caller_works_in_steps_while_jobs_run() -> None:
    """And gives the next job to whoever is ready, however much is left to do."""
    asked = [WorkerJob(str(n), jobs.double, (n, 0.02)) for n in range(4)]
    steps: list[int] = []

    def endless() -> bool:
        steps.append(len(steps))
        return True

    with forks() as pool:
        answers = in_order(asked, pool.outcomes(asked, quiet(), step=endless))
        assert [value_of(answer) for answer in answers] == [0, 2, 4, 6] and steps
        few = iter([True, False, True])  # what there is to do may come with an answer
        answers = in_order(asked, pool.outcomes(asked, quiet(), step=lambda: next(few, False)))
    assert [value_of(answer) for answer in answers] == [0, 2, 4, 6]


def test_work_of_the_dead_goes_to_others_and_what_kills_two_is_refused(
    opened: Open, tmp_path: Path
) -> None:
    asked = [
        WorkerJob("slow", jobs.double, (1, 0.5)),
        WorkerJob("kills one", jobs.die, (tmp_path / "mark",)),
        WorkerJob("kills all", jobs.die),
        WorkerJob("raises", jobs.fail),
        WorkerJob("last", jobs.double, (2,)),
        WorkerJob("told", jobs.told),
    ]
    trace = quiet()
    with WorkerPool(opened(2), MINE) as pool:
        answers = list(pool.outcomes(asked, trace))
    slow, one, two, raises, last, told = in_order(asked, answers)
    assert (value_of(slow), value_of(one), value_of(last)) == (2, "lived", 4)
    assert isinstance(two, JobRefusal) and len(two.workers) == 2
    assert str(two.refused).startswith("2 workers died of it")
    assert isinstance(raises, Failed) and repr(raises.error) == "ValueError('no such thing')"
    with pytest.raises(WorkerError, match=r"'kills all'[\s\S]*2 workers died of it"):
        value_of(two)
    assert value_of(told) == {"workers": None, "cache": True}
    heard = {(e.kind, e.what) for e in trace.events}
    assert {("progress", "told tuning kernels tried"), ("warning", "a kernel")} <= heard
    seen = {dict(e.data)["worker"] for e in trace.events if e.kind == "progress"}
    assert len(seen) == 2, "progress shows each worker"


def test_a_worker_that_is_another_is_refused_with_both_versions(opened: Open) -> None:
    trace = quiet()
    asked = [WorkerJob(str(n), jobs.double, (n, 0.02)) for n in range(4)]
    with WorkerPool(opened(2, {1: OTHER}), MINE) as pool:
        found = list(pool.outcomes(asked, trace))
        while not [e for e in trace.events if e.kind == "warning"]:  # it may start late
            found += pool.outcomes([WorkerJob(f"{len(found)}", jobs.double, (0, 0.1))], trace)
    assert [value_of(one) for one in in_order(asked, found)] == [0, 2, 4, 6]
    (refused,) = [e for e in trace.events if e.kind == "warning"]
    torch = dict(MINE.versions)["torch"]
    assert f"it has torch 1.0 and this process torch {torch}" in refused.why
    assert "it has GPU NVIDIA A100 and this process GPU NVIDIA H200" in refused.why
    assert len({one.worker for one in found if isinstance(one, Done)}) == 1


def test_a_stop_is_heard_by_jobs_that_run_and_no_other_begins(opened: Open, tmp_path: Path) -> None:
    stop, mark = threading.Event(), tmp_path / "mark"
    asked = [WorkerJob("runs", jobs.until_stopped, (mark,)), WorkerJob("waits", jobs.double, (1,))]
    appears(mark, stop.set)
    with WorkerPool(opened(1), MINE) as pool:
        runs, waits = in_order(asked, pool.outcomes(asked, quiet(), Deadline(stop=stop)))
    assert value_of(runs) == ("stop", True) and waits == Undone("waits", "stop")


def test_the_first_interrupt_is_one_of_the_jobs_that_run(opened: Open, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    asked = [WorkerJob("runs", jobs.until_interrupted, (mark,)), WorkerJob("waits", jobs.fail)]
    with WorkerPool(opened(1), MINE) as pool:
        appears(mark, lambda: os.kill(os.getpid(), signal.SIGINT))
        found = pool.outcomes(asked, quiet(), first_interrupt_asks=True)
        runs, waits = in_order(asked, found)
    assert value_of(runs) == "interrupted" and waits == Undone("waits", "stop")


def forks(count: int = 1, cache: Path | None = None) -> WorkerPool:
    return WorkerPool(LocalCrew(SIM, [""] * count, cache, method="fork"), MINE, cache)


def test_an_interrupt_while_outcomes_are_read_is_noted_and_the_next_one_is_raised() -> None:
    """It may come at any moment, and not only while the pool waits for messages."""
    asked = [WorkerJob(str(number), jobs.double, (number,)) for number in range(4)]
    before, told = signal.getsignal(signal.SIGINT), []
    with forks() as pool:
        for outcome in pool.outcomes(asked, quiet(), first_interrupt_asks=True):
            told.append(outcome)
            if len(told) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        assert isinstance(told[0], Done) and told[1:] == [
            Undone(str(number), "stop") for number in (1, 2, 3)
        ]
        assert signal.getsignal(signal.SIGINT) is before
        again: Any = pool.outcomes(asked, quiet(), first_interrupt_asks=True)
        next(again)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        again.close()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_is_raised_while_the_pool_waits_is_noted_too() -> None:
    """As by a handler of somebody else's."""
    asked = [WorkerJob(str(number), jobs.double, (number,)) for number in range(3)]
    pressed: list[int] = []

    def press() -> bool:
        pressed.append(1)
        if len(pressed) == 1:
            raise KeyboardInterrupt
        return False

    with forks() as pool:
        found = list(pool.outcomes(asked, quiet(), first_interrupt_asks=True, step=press))
        assert Undone("2", "stop") in found and len(found) == 3
        pressed.clear()
        with pytest.raises(KeyboardInterrupt):
            list(pool.outcomes(asked, quiet(), step=press))


def test_an_interrupt_ends_jobs_where_nobody_said_otherwise(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with forks() as pool, pytest.raises(KeyboardInterrupt):
        appears(mark, lambda: os.kill(os.getpid(), signal.SIGINT))
        list(pool.outcomes([WorkerJob("runs", jobs.until_interrupted, (mark,))], quiet()))


def test_jobs_have_what_is_left_of_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace = {**{name: getattr(TIME, name) for name in TIME.__slots__}, "worker_grace_s": 0.1}
    monkeypatch.setattr(policy, "TIME", type(TIME)(**grace))
    asked = [WorkerJob("hears", jobs.until_stopped, (tmp_path / "a",))]
    asked += [WorkerJob("deaf", jobs.double, (1, 20.0)), WorkerJob("late", jobs.double, (1,))]
    with forks(2) as pool:
        found = in_order(asked, pool.outcomes(asked, quiet(), Deadline.after(0.8)))
    hears, deaf, late = found
    assert value_of(hears)[0] == "budget"
    assert isinstance(deaf, JobRefusal) and str(deaf.refused) == "it went on after the budget"
    assert late == Undone("late", "budget")


def test_answers_come_in_any_order_and_are_merged_by_key() -> None:
    asked = [WorkerJob(f"{n}", jobs.double, (n, 0.2 / (1 + n))) for n in range(8)]
    for count in (1, 2, 8):
        with forks(count) as pool:
            found = list(pool.outcomes(asked[::-1] if count == 2 else asked, quiet()))
        assert [value_of(one) for one in in_order(asked, found)] == [2 * n for n in range(8)]


def test_the_caller_alone_writes_the_cache_that_workers_read(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        cache.put("plans", "known", "by the caller")
    with forks(1, tmp_path) as pool:
        keys = ["known", "new", "new"]
        asked = [WorkerJob(str(n), jobs.keep, (key,)) for n, key in enumerate(keys)]
        before = [value_of(one) for one in pool.outcomes(asked, quiet())]
    assert before == ["by the caller", None, "stored by worker 0"]
    with Cache.open(tmp_path) as cache:
        assert cache.get("plans", "known") == cache.get("plans", "new") == "stored by worker 0"
    assert not list(tmp_path.glob("anabranch-worker-*"))


def test_parts_of_an_answer_come_before_it_with_what_was_stored(tmp_path: Path) -> None:
    heard: list[tuple[str, Any, bool]] = []

    def part(job: WorkerJob, value: Any) -> None:
        with Cache.open(tmp_path) as cache:
            heard.append((job.name, value, cache.get("plans", "new") == "stored"))

    with forks(1, tmp_path) as pool:
        asked = [WorkerJob("a", jobs.tell, ("new",)), WorkerJob("b", jobs.double, (1,))]
        whole = [value_of(one) for one in pool.outcomes(asked, quiet(), part=part)]
    assert heard == [("a", "a part", True), ("a", "another", True)]
    assert whole == ["the whole", 2]


def test_workers_that_are_ready_get_jobs_before_the_caller_is_busy(tmp_path: Path) -> None:
    mark, seen = tmp_path / "mark", list[bool]()

    def step() -> bool:
        end = time.monotonic() + 5.0
        while not mark.exists() and not seen and time.monotonic() < end:
            time.sleep(0.02)
        seen.append(mark.exists())
        return False

    with forks(1) as pool:
        pool.start()
        (place,) = pool._places
        assert isinstance(place.link, LocalLink) and place.link.connection.poll(30)
        asked = [WorkerJob("a", jobs.die, (mark,)), WorkerJob("b", jobs.double, (2,))]
        told = in_order(asked, pool.outcomes(asked, quiet(), step=step))
    assert seen[0] and [value_of(outcome) for outcome in told] == ["lived", 4]


def test_a_caller_that_is_busy_holds_nobody_up() -> None:
    """A worker goes on while what it has told waits, and all that waits is heard between two steps:
    a step takes seconds, and a pipe holds less than a megabyte."""
    heard: list[int] = []
    steps: list[int] = []

    def step() -> bool:
        steps.append(len(heard))
        time.sleep(0.2)
        return True

    with forks(1) as pool:
        asked = [WorkerJob("a", jobs.tell_much, (40, 200_000))]
        (whole,) = pool.outcomes(
            asked, quiet(), step=step, part=lambda job, p: heard.append(len(p))
        )
    assert value_of(whole) < 1.0
    assert heard == [200_000] * 40 and len(steps) < 20


def test_what_workers_prepare_comes_back_when_it_is_waited_for(tmp_path: Path) -> None:
    """While the caller does something else; a worker that dies has prepared nothing."""
    with forks(2, tmp_path) as pool, Cache.open(tmp_path) as cache:
        pool.prepare([WorkerJob("early", jobs.store, ("early", 0.0))])  # nobody is ready yet
        assert pool.settle(quiet())
        both = [WorkerJob(str(n), jobs.double, (n, 0.2)) for n in range(2)]
        assert len(list(pool.outcomes(both, quiet()))) == 2
        pool.prepare([WorkerJob(key, jobs.store, (key, 0.3)) for key in ("a", "b")])
        assert not pool.settle(quiet(), Deadline.after(0.0))
        assert pool.settle(quiet())
        assert {cache.get("plans", key) for key in ("a", "b")} == {"worker 0", "worker 1"}
        assert cache.get("plans", "early") is None
        pool.prepare([WorkerJob("dies", jobs.die), WorkerJob("c", jobs.store, ("c", 0.0))])
        assert pool.settle(quiet()) and cache.get("plans", "c") is not None


def test_jobs_that_cannot_be_sent_are_errors_in_words() -> None:
    with forks() as pool:
        with pytest.raises(WorkerError, match=r"the job local cannot be sent"):
            list(pool.outcomes([WorkerJob("local", lambda here: 1)], quiet()))
        twice = [WorkerJob("a", jobs.double, (1,)), WorkerJob("a", jobs.double, (2,))]
        with pytest.raises(WorkerError, match="two jobs have one key"):
            list(pool.outcomes(twice, quiet()))


def test_without_any_worker_that_fits_there_is_an_error() -> None:
    crew = LocalCrew(SIM, [""], claims={0: OTHER}, method="fork")
    with WorkerPool(crew, MINE) as pool, pytest.raises(WorkerError, match=r"torch 1\.0 and this"):
        list(pool.outcomes([WorkerJob("a", jobs.double, (1,))], quiet()))


class DeadLink:
    name = "dead"

    def send(self, message: bytes) -> None: ...

    def end(self) -> None: ...


class DeadCrew:
    """Its workers die while they start."""

    places = 1
    started = 0

    def start(self, place: int) -> DeadLink:
        self.started += 1
        return DeadLink()

    def wait(self, links: Any, seconds: float) -> list[Any]:
        return [(link, None) for link in links]

    def close(self) -> None: ...


def test_a_worker_that_has_no_target_says_why() -> None:
    """Before its process ends."""
    trace = quiet()
    crew = LocalCrew("sim:abacus", [""], method="fork")
    with WorkerPool(crew, MINE) as pool, pytest.raises(WorkerError, match="sim:abacus"):
        list(pool.outcomes([WorkerJob("a", jobs.double, (1,))], trace))
    assert [e.what for e in trace.events if e.kind == "warning"] == ["worker 0 is refused"]


def test_a_worker_that_does_not_start_is_given_up() -> None:
    crew = DeadCrew()
    with WorkerPool(crew, MINE) as pool, pytest.raises(WorkerError, match="died 2 times while"):
        list(pool.outcomes([WorkerJob("a", jobs.double, (1,))], quiet()))
    assert crew.started == 2


def test_workers_are_spread_over_gpus_and_no_more_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = ("H200 GPU-a", "H200 GPU-b")
    spec = replace(resolve("cpu").spec, kind="cuda")
    monkeypatch.setattr(chosen, "resolve", lambda target: SimpleNamespace(spec=spec))
    monkeypatch.setattr(chosen, "gpus", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def places(asked: str) -> list[str]:
        crew = crew_of(asked, "cuda")
        assert crew is None or isinstance(crew, LocalCrew)
        return [] if crew is None else [gpu.rpartition("-")[2] for gpu in crew._gpus]

    assert places("auto") == ["a", "b"]
    assert places("5") == ["a", "b", "a", "b", "a"]
    with pytest.raises(OptionError, match="9 workers were asked for, and this machine has 8 cores"):
        places("9")
    monkeypatch.setattr(chosen, "gpus", lambda: gpus[:1])
    assert places("auto") == []
    assert places("2") == ["a", "a"]


def test_what_is_asked_for_says_which_workers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crew_of(None, SIM) is None and crew_of("1", SIM) is None
    assert crew_of("auto", "cpu") is None, "others would run while one is timed"
    three = crew_of("3", SIM)
    assert three is not None and three.places == 3
    with suppress(ImportError):
        import ray

        monkeypatch.setattr(
            ray, "init", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("x"))
        )
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(WorkerError, match="no Ray cluster answers at 'ray://nowhere'"):
            crew_of("ray://nowhere", SIM)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'anabranch\[ray\]'"):
        crew_of("ray", SIM)
