"""What cuBLAS keeps for streams is made once and given back, but for plans that live."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.targets.cuda.library_workspaces import LibraryWorkspaces

BYTES = 32 << 20


@dataclass(frozen=True)
class Stream:
    cuda_stream: int


class Run:
    """An executable, as far as it is asked whether it lives."""


@dataclass
class Library:
    """cuBLAS: what it keeps now, and for which streams it was ever asked."""

    kept: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)

    def make(self, stream: Stream) -> int:
        self.asked.append(stream.cuda_stream)
        self.kept.add(stream.cuda_stream)
        return BYTES


def test_a_plan_holds_what_its_own_streams_need() -> None:
    library = Library()
    workspaces = LibraryWorkspaces(library.make, library.kept.clear)
    a, b, c = (Stream(i) for i in range(3))
    assert workspaces.ensure([a, b, c]) == {0: BYTES, 1: BYTES, 2: BYTES}
    assert workspaces.ensure([b]) == {1: BYTES}
    assert library.asked == [0, 1, 2], "one for each stream"


def test_what_only_trials_used_is_given_back() -> None:
    library = Library()
    workspaces = LibraryWorkspaces(library.make, library.kept.clear)
    streams = [Stream(i) for i in range(4)]
    trial, plan = Run(), Run()
    trial.itself = trial  # type: ignore[attr-defined]  # garbage that is not collected at once
    workspaces.used(trial, workspaces.ensure(streams))
    workspaces.used(plan, workspaces.ensure(streams[:1]))
    assert workspaces.give_back() == 0, "the trial lives"
    del trial
    assert workspaces.give_back() == 3 * BYTES
    assert library.kept == {0}, "that of the plan is there again"
    asked = len(library.asked)
    assert workspaces.give_back() == 0
    assert len(library.asked) == asked, "nothing is cleared in vain"
