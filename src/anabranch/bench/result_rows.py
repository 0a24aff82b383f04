"""Rows: what a benchmark runs, and what it says of each system.

    BenchmarkMatrix: networks x dtypes x batches, and the systems  ->  a BenchmarkRow each

"autograph+search_dp=false" is a published system with an option of its own.

>>> variant("autograph+search_dp=false")
{'system': 'autograph', 'search_dp': 'false'}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.errors import OptionError
from anabranch.options import Options

OURS = "anabranch"
CALL = f"{OURS}-call"
"""Our replay, and the call that users make: inputs copied in, outputs copied out."""
NAMING = ("scheduler", "system")
"""Options whose value alone names a row."""
ALPHAS = (0, 0.25, 1, 4, 16)

SETTINGS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("size_l", (8, 32)),
    ("size_u", (20, 80)),
    ("threshold", (1.0, 1.2)),
    ("pops", (4, 36)),
    ("prices", (2000, 32000)),
    ("keep", (2, 8)),
    ("measured", (1, 15)),
    ("overheads", ("false",)),
    ("cell_boundaries", ("false",)),
)
"""Of a search, what its paper gives no number for: less and more than the default."""

PUBLISHED_SYSTEMS = (
    *("cudagraph", "taso", "taso-nimble", "nimble", "ios", "autograph"),
    f"{OURS}+search=none",
)
"""Those of AutoGraph's table, and what TASO starts from. Who searches in sum is first: others begin
with what it found."""

ABLATIONS: dict[str, tuple[str, ...]] = {
    "parts": (
        *(f"{OURS}+search_dp=false", f"{OURS}+search_partition=false"),
        *(f"{OURS}+search_alpha={alpha}" for alpha in ALPHAS),
        f"{OURS}+search=none",
    ),
    "settings": (
        *(f"{OURS}+search_{name}={value}" for name, values in SETTINGS for value in values),
        f"{OURS}+search=none",
    ),
}
"""Our search with its parts left out one by one, and with other settings, beside what users get."""


@dataclass(frozen=True, slots=True)
class BenchmarkMatrix:
    """What to run. rivals: None for the usual ones of the target. schedulers, systems: ours once
    more with each of these schedulers, and as each of these published systems ("autograph", or
    with options "anabranch+search=none"). seconds: of timing per system; rival_timeout: of
    building one. cold: ours starts with an empty cache, so that its compile time is that of a
    first compilation. ours: what users get is a row, too. options: of `anabranch.Options`, for ours
    but not for `systems`, which name their own; search_seconds: for published systems, whose
    searches build whole networks alone; budget: seconds of all that each of them searches and
    measures, unless it names its own. own_batches: of training steps, the batches of networks that
    are not trained with `batches`."""

    models: Sequence[str]
    dtypes: Sequence[str] = ("fp16",)
    batches: Sequence[int] = (1,)
    rivals: Sequence[str] | None = None
    schedulers: Sequence[str] = ()
    systems: Sequence[str] = ()
    target: str = "auto"
    seconds: float = 1.0
    rival_timeout: float | None = 540.0
    cold: bool = False
    ours: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    search_seconds: float | None = None
    budget: float | None = None
    trust: bool = False
    own_batches: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundedTime:
    """The time that a published system takes once event waits are added that keep its arena within
    `arena_ratio` of the sequential plan's, as every plan of ours does; bytes that it then holds."""

    median_ms: float
    p10_ms: float | None = None
    p90_ms: float | None = None
    event_waits: int = 0
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One system on one model. Times are None where `failure` says why. source: "measured", or
    where nothing can run what the times are. ratio: how many times as long as ours takes, `beside`
    which it is: our call for what is timed as it is called, else our replay; tie: no difference.
    against: the same beside every other system, by name: ratio, low, high, tie. difference: the
    largest relative error of an output against eager's. bounded: of a published system, whose times
    and `peak_bytes` are those of its plan as published, the same within our bound on memory."""

    model: str
    dtype: str
    batch: int
    system: str
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    samples: int = 0
    source: str = "measured"
    compile_s: float | None = None
    peak_bytes: int | None = None
    beside: str = OURS
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    tie: bool = False
    against: dict[str, tuple[float, float, float, bool]] = field(default_factory=dict)
    difference: float | None = None
    note: str = ""
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    bounded: BoundedTime | None = None


def variant(text: str, kind: str = "system") -> dict[str, str]:
    """The options that "autograph+search_dp=false" stands for; `kind`: of what the first word is
    the name, a system or a scheduler. OptionError if it means nothing."""
    system, *more = text.split("+")
    pairs = [word.partition("=") for word in more]
    for word, (name, equals, _) in zip(more, pairs, strict=True):
        if not name or not equals:
            raise OptionError(
                f"{word!r} is no option",
                f"{text!r} was given",
                f"write a {kind} and options, such as anabranch+search=none",
            )
    asked = {kind: system, **{name: value for name, _, value in pairs}}
    Options.read(asked, environment=False)
    return asked


def rivals_of(
    matrix: BenchmarkMatrix, usual: Sequence[str], choices: Collection[str]
) -> tuple[str, ...]:
    """Those that are asked for, once each, or the usual ones. OptionError for an unknown one."""
    chosen = tuple(usual if matrix.rivals is None else dict.fromkeys(matrix.rivals))
    check_names("rival", chosen, choices)
    return chosen


def check_names(what: str, names: Sequence[str], choices: Collection[str]) -> None:
    """OptionError for a name that is not known."""
    for name in names:
        if name not in choices:
            raise OptionError(
                f"unknown {what} {name!r}",
                f"no {what} has this name",
                f"choose from: {', '.join(choices)}",
            )


def named(asked: dict[str, str]) -> str:
    """The row of ours with these options; without any, what users get."""
    words = "+".join(v if k in NAMING else f"{k}={v}" for k, v in asked.items())
    return f"{OURS}:{words}" if words else OURS
