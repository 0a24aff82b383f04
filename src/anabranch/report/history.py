"""What happened, in groups: events -> what is worth knowing first, changes, refusals, stage times.

Refusals come by the thousand and differ in names and numbers only. They are grouped by room and by
their sentence with those left out:

    fuse   62x   … has … consumers        conv2d_4 + relu_4, conv2d_9 + relu_9, ...
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.trace import Event, stage_seconds

PARTICULAR = re.compile(r"%[\w.]+|[\w./]*\d[\w./%-]*")
"""A name of a value, or a word with a digit in it: a name or a number."""
PLAIN_WORDS = frozenset(
    {"+", "and", "at", "by", "for", "from", "in", "is", "of", "on", "or", "to", "with"}
)
"""Words of a subject that name nothing."""
GAP = "\N{HORIZONTAL ELLIPSIS}"
GAPS = re.compile(rf"[(\[]{GAP}(?:,? {GAP})*,?[)\]]|{GAP}(?: {GAP})+")
"""Names and numbers in a row, and a shape, are one gap."""


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events of one kind and room that say the same. `alike`: their sentences differ in names and
    numbers, and each is worth showing with its subject."""

    kind: str
    where: str
    events: tuple[Event, ...]

    @property
    def why(self) -> str:
        """The sentence of all events, with a gap where they differ."""
        return general(self.events[0]) if self.alike else self.events[0].why

    @property
    def told(self) -> dict[Event, int]:
        """Its events by what they say, and how often each was told: attempts tell things anew."""
        return dict(Counter(self.events))

    @property
    def alike(self) -> bool:
        """Whether sentences differ from each other, and not their subjects alone."""
        return any(event.why != self.events[0].why for event in self.events)


def concerns(events: Sequence[Event]) -> list[EventGroup]:
    """Fallbacks, then warnings: what the user did not ask for."""
    return [*grouped(events, "fallback"), *grouped(events, "warning")]


def grouped(events: Sequence[Event], kind: str) -> list[EventGroup]:
    """The events of a kind, by room and reason; the largest groups first, and last those of the
    search, which tries a hundred rules everywhere."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event.kind == kind:
            groups.setdefault((event.where, general(event)), []).append(event)
    event_groups = [
        EventGroup(kind, where, tuple(members)) for (where, _), members in groups.items()
    ]
    return sorted(
        event_groups, key=lambda group: (group.where.startswith("search"), -len(group.events))
    )


def general(event: Event) -> str:
    """The sentence with a gap for what is particular: words of its subject, names, numbers.

    >>> general(Event("refused", "fusion", "conv + relu", "relu is read by %add and 12 others"))
    '… is read by … and … others'
    """
    subject = set(event.what.split()) - PLAIN_WORDS
    words = (GAP if w in subject else PARTICULAR.sub(GAP, w) for w in event.why.split())
    return GAPS.sub(GAP, " ".join(words))


@dataclass(frozen=True, slots=True)
class Change:
    """A pass, a rule or a stage that changed something: how often, in how many milliseconds, and
    what it said the first and the last time."""

    where: str
    what: str
    times: int
    ms: float
    first: str
    last: str

    @property
    def said(self) -> str:
        """One sentence for all times: "310 -> 216 nodes" and "216 -> 189 nodes" are one way."""
        if self.times == 1 or self.first == self.last:
            return self.first
        start, _, unit = self.first.partition(" -> ")
        end = self.last.partition(" -> ")[2]
        words = unit.split()[1:]
        if end and words == end.split()[1:]:
            return f"{start} -> {end}"
        return f"{self.first} ... {self.last}"


def last_attempt(events: Sequence[Event]) -> Sequence[Event]:
    """Those since an attempt was given up, because its plan computed something else, or took more
    memory than it may."""
    given_up = [
        i
        for i, event in enumerate(events)
        if event.kind == "fallback" and event.where in ("verify", "memory")
    ]
    return events[given_up[-1] + 1 :] if given_up else events


def changes(events: Sequence[Event]) -> list[Change]:
    """What was applied, by room and subject, in order of first appearance."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event.kind == "applied":
            groups.setdefault((event.where, event.what), []).append(event)
    return [
        Change(where, what, len(members), sum(map(_ms, members)), members[0].why, members[-1].why)
        for (where, what), members in groups.items()
    ]


def stages(events: Sequence[Event]) -> list[tuple[str, float]]:
    """Seconds of each stage, without the stages inside a stage (`a.b`)."""
    return [(name, s) for name, s in stage_seconds(events).items() if "." not in name]


def _ms(event: Event) -> float:
    ms = dict(event.data).get("ms", 0.0)
    return 0.0 if isinstance(ms, str) else float(ms)
