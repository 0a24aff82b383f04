"""All options, and the only reader and writer of the environment.

Each option has a variable: ANABRANCH_ and its name in capitals (docs/options.md has the table).
What a program gives goes before what the environment says. An empty variable says nothing, but for
ANABRANCH_CACHE_DIR, where it says that nothing is kept; "none" is None.

>>> Options(scheduler="ios", budget=30).budget
30.0
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import platformdirs
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from anabranch.deadline import EFFORTS, Effort
from anabranch.errors import OptionError

_LIBRARY = {"kernels": "library", "search": "none"}
_PUBLISHED = {"effort": "max"}
_ALONE = {"horizontal_fusion": "none", "pdl": "off"}
_UNBOUNDED = {"arena_ratio": None}
_NIMBLE = {"scheduler": "nimble", "max_streams": None, **_UNBOUNDED}
SYSTEMS: dict[str, dict[str, Any]] = {
    "anabranch": {},
    "autograph": {**_PUBLISHED, "kernels": "library", **_NIMBLE, "search": "autograph-paper"},
    "deepcuts": {
        **_PUBLISHED,
        **{"fusion": "deepcuts", "pruning": "limit"},
        **{"scheduler": "sequential", **_ALONE, "search": "none"},
    },
    "ios": {**_PUBLISHED, **_LIBRARY, **_UNBOUNDED, "scheduler": "ios-paper"},
    "opara": {**_PUBLISHED, **_LIBRARY, **_UNBOUNDED, "scheduler": "opara-paper"},
    "nimble": {**_PUBLISHED, **_LIBRARY, **_NIMBLE},
    "taso": {**_PUBLISHED, "kernels": "library", "scheduler": "sequential", "search": "taso-paper"},
    "taso-nimble": {**_PUBLISHED, "kernels": "library", **_NIMBLE, "search": "taso-paper"},
    "cudagraph": {**_PUBLISHED, **_LIBRARY, "scheduler": "sequential"},
}
"""Published systems, by what each of them decides; the rest is done alike for all. AutoGraph
launches on several streams as Nimble does; DeepCuts, like TASO, runs one kernel after another: it
begins with each operator alone and merges consecutive ones while that is faster, by a generated
kernel, whose tiles are pruned by their limit, or the library's; it has no concatenations that cost
nothing, and does no work twice. Published schedulers get no waits that bound memory, and Nimble no
limit on streams. With Nimble's streams TASO's graph is the same: chosen for its sum,
whatever streams make of it."""

PruningName = Literal["time", "limit"]
SearchName = Literal["autograph", "autograph-paper", "taso", "taso-paper", "at-once", "none"]
SEARCHES: tuple[str, ...] = get_args(SearchName)
BUCKETS = 8
"""How many sizes are compiled, where sizes vary and nobody says how many."""
SEEDS = 2**63
SIZE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+) *([kmg]i?b|b|)", re.IGNORECASE)
WORKERS = re.compile(r"auto|[1-9][0-9]{0,3}|ray|ray://[^\s/]+")
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
FORMER: dict[str, tuple[str, dict[str, str]]] = {
    "abreast": ("horizontal_fusion", {}),
    "overlap": ("pdl", {"each": "per_kernel", "alike": "uniform", "none": "off"}),
    "fusion": ("fusion", {"climb": "deepcuts"}),
    "search_waists": ("search_cell_boundaries", {}),
}
"""The names of options and their words before 2026-11-26, which may be used still."""
PREFIX = "ANABRANCH_"
"""What the names of environment variables begin with."""
DEFAULT_CACHE_DIR = Path(platformdirs.user_cache_dir("anabranch"))


class Options(BaseModel):
    """What a compilation may be told: keywords of `anabranch.compile`. Frozen; unknown names are
    refused. Each field says what it does (`Options.model_fields[name].description`);
    docs/options.md is the table of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    effort: Effort = Field(
        default=Effort.DEFAULT,
        description='How much is tried: "fast" is ready in seconds, with the kernels that a model '
        'of their times chooses and one other graph; "default" leaves out what is predicted to be '
        'far off, and a search that promises less than noise; "max" tries all that may be faster. '
        "It sets the options that neither are given nor set by a system. Every kernel and plan is "
        "verified whatever it says; `budget` is the limit in seconds.",
    )
    system: str = Field(
        default="anabranch",
        description="A published system to decide as, a key of `SYSTEMS`: it sets the options that "
        "are not given.",
    )
    scheduler: str = Field(
        default="best",
        description="Who orders launches and streams: a name of `anabranch.schedule.SCHEDULERS`, "
        'or "best", which runs several and keeps the fastest.',
    )
    budget: float | None = Field(
        default=None,
        gt=0,
        description="Seconds that searching and measuring may take in all. None: as long as they "
        "need.",
    )
    outputs: Literal["clone", "view"] = Field(
        default="clone",
        description='"clone" returns tensors of the caller\'s own, "view" the plan\'s buffers, '
        "which the next call overwrites.",
    )
    batch: Literal["pad", "refuse"] = Field(
        default="refuse",
        description='"pad" says that the first axis of all inputs varies, as '
        "`dynamic_shapes` does: a batch between two compiled ones is padded up to the larger one. "
        "A model for which that is not proved harmless is refused.",
    )
    buckets: int = Field(
        default=BUCKETS,
        ge=1,
        description="How many sizes are compiled at most, where sizes vary.",
    )
    unseen: Literal["eager", "refuse"] | None = Field(
        default=None,
        description="What a call does for which nothing was compiled: its size is not proved "
        "harmless to pad, or its values lead it a way through a cut model that no example went. "
        '"eager" runs the model as it is, "refuse" raises an error that says why. None: "refuse" '
        'for sizes, "eager" for ways, since nobody knows beforehand which way values lead.',
    )
    memory_limit: int | None = Field(
        default=None,
        gt=0,
        description='Bytes that all plans may hold on the device, also as text ("2GiB"). What does '
        "not fit is made to by computing values again that are read late, as a backward pass reads "
        "them; of sizes that vary fewer are compiled. What cannot be made to fit is refused before "
        "it is loaded, with the fewest bytes that can. What tuning takes for a while does not "
        "count.",
    )
    fullgraph: bool = Field(
        default=False,
        description="A model that asks for values of its tensors (`.item()`, `nonzero`, boolean "
        "masks, an `if` on a tensor) is refused, and not cut there into several plans.",
    )
    strict: bool = Field(default=False, description="A fallback is an error.")
    verify: bool = Field(
        default=True,
        description="Compare the plan with the model in higher precision before it is accepted. A "
        "plan that was compared with the very same weights is compared with the model alone.",
    )
    kernels: Literal["all", "library"] = Field(
        default="all",
        description='"library" leaves out generated kernels, and what only they can fuse.',
    )
    deterministic: bool = Field(
        default=False,
        description="Take no library kernel that may give other bits in another run: torch's "
        "deterministic ones, and generated ones. A model of which one operator has neither is "
        "refused. `explain` names those that are used without.",
    )
    fusion: Literal["cuts", "deepcuts", "none"] = Field(
        default="cuts",
        description='How a graph is cut into launches. "cuts" compares a few cuts where they '
        "differ, with concatenations that cost nothing and cheap work that is done twice. "
        '"deepcuts" merges consecutive operators while that is faster, as DeepCuts does, by '
        'measurement; not where a scheduler merges convolutions. "none", for ablations: each '
        "operator is a launch of its own.",
    )
    pruning: PruningName = Field(
        default="time",
        description="Which of the hundreds of tiles of a product are tried: those with the "
        'shortest "time" by a fitted estimate, or those with the highest performance upper '
        '"limit", as in DeepCuts.',
    )
    horizontal_fusion: Literal["likely", "all", "none"] = Field(
        default="likely",
        description='Whether independent tasks share a launch where that is faster. "likely" tries '
        "it where tasks are few or a forecast sees more to win than timing can miss, "
        '"all" tries whatever may pay (some ten seconds more), "none" nothing.',
    )
    pdl: Literal["per_kernel", "uniform", "off"] = Field(
        default="per_kernel",
        description="Programmatic dependent launch: whether a kernel may start before the one it "
        'follows has ended, where the GPU can do that and it is faster: "per_kernel" in a mode of '
        'its own, "uniform" all in the same.',
    )
    folding: Literal["all", "exact"] = Field(
        default="all",
        description='"exact" folds no batch norm into a weight that would be rounded anew to half '
        "precision.",
    )
    exact: bool = Field(
        default=False,
        description="Leave out rules and passes that change what NaN, an infinity or the sign of a "
        "zero gives. `explain` names those that were used.",
    )
    channels_last: bool = Field(
        default=True, description="Images may be laid out with channels last."
    )
    search: SearchName = Field(
        default="autograph",
        description='Whether an equal, faster graph is sought. "autograph": priced as run in '
        "parallel, and parts of it are timed with what may stand in their place. "
        '"autograph-paper": whole graphs alone, as published. "taso": by the sum of its kernels. '
        '"taso-paper": that, run one after another and kept under any schedule. "at-once": one '
        'candidate, with siblings merged and norms taken apart at all places. "none": the graph is '
        "taken as it is.",
    )
    search_alpha: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        # The paper gives no number for this or any other setting of the search.
        description="What the critical path weighs beside the sum of all tasks. None: what a run "
        "of the graph shows, 1 to 19 for networks with many branches, next to 0 for chains.",
    )
    search_overheads: bool = Field(
        default=True,
        description="The critical path counts forks and changes of stream. False: the paper's "
        "formula.",
    )
    # The next six lie on a plateau: less and more of each changes forecasts of four networks by 2%
    # at most, in either direction (benchmarks/results, 2026-11-24-sim-h200-search-settings).
    search_threshold: float = Field(
        default=1.05,
        ge=1,
        allow_inf_nan=False,
        description="How much a step of the search may cost before the next one pays, as a factor; "
        "TASO's paper has this one, its code 1.0.",
    )
    # About half a cell of NASNet or a module of Inception, and two to three of these.
    search_size_l: int = Field(
        default=16, ge=2, description="Parts of a graph that are searched have fewer nodes."
    )
    search_size_u: int = Field(
        default=40,
        ge=2,
        validate_default=True,
        description="Neighbouring parts that are searched together have fewer nodes.",
    )
    search_pops: int = Field(
        default=12, ge=1, description="Graphs that are looked at in each part."
    )
    search_prices: int = Field(
        default=8000,
        ge=1,
        description="Graphs that are priced in all, at a millisecond or two each.",
    )
    search_keep: int = Field(default=4, ge=1, description="Graphs that are kept all along.")
    search_measured: int = Field(
        default=5,
        ge=1,
        description="Candidates near one graph that are run; each makes the next prediction "
        "better.",
    )
    search_partition: bool = Field(
        default=True, description="Cut the graph into parts. False, for ablations: one part."
    )
    search_cell_boundaries: bool = Field(
        default=True,
        description="Cut between cells first. False, for ablations: by minimum flow alone.",
    )
    search_dp: bool = Field(
        default=True,
        description="Search neighbouring parts together. False, for ablations: the parts alone.",
    )
    # The work of a search is counted, two thirds of this in seconds of a usual machine; the clock
    # only stops what is slower. A first compilation of the largest networks shall end within three
    # minutes.
    search_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Seconds that the search may take. None: 45, or fewer where the compilation "
        "has taken long by then.",
    )
    max_streams: int | None = Field(
        default=16,
        ge=1,
        le=64,
        description="Streams of a plan. None: as many as the scheduler asks for.",
    )
    arena_ratio: float | None = Field(
        default=1.25,
        ge=1,
        allow_inf_nan=False,
        description="How many times the sequential plan's arena a plan's may be: event waits are "
        "added to keep it. None: as much as the schedule takes.",
    )
    cuda_graph: bool = Field(
        default=True,
        description="A plan on a GPU is captured as one CUDA graph. False: each call launches all "
        "kernels on the caller's current stream.",
    )
    max_group_size: int | None = Field(
        default=None,
        ge=1,
        description="IOS's r, operators of a group. None: no pruning where that can be afforded, "
        "else 3.",
    )
    max_groups: int | None = Field(
        default=None,
        ge=1,
        description="IOS's s, groups of a stage. None: no pruning where that can be afforded, else "
        "8.",
    )
    tf32: bool = Field(default=False, description="Products of fp32 may run in tf32.")
    seed: int = Field(
        default=0,
        ge=-SEEDS,
        lt=SEEDS,
        description="Seeds generators of random numbers; another seed may find another graph.",
    )
    workers: str | None = Field(
        default=None,
        description="Processes that independent work is spread over, a number or a name: "
        '"auto" for one on each GPU of this machine, "ray" for those of the Ray cluster of this '
        'machine, "ray://HOST" for those of another. Of more than there are GPUs several share '
        "one, and time in turns: that pays where sizes are compiled. On a simulated GPU they are "
        "plain processes. None: this process alone. The plan is the same.",
    )
    cache_dir: Path | None = Field(
        default=DEFAULT_CACHE_DIR,
        description="Folder where timings, kernels and plans are kept. None, or an empty text: "
        "nothing is kept.",
    )
    debug: int = Field(
        default=0,
        ge=0,
        le=3,
        description="What is logged: 1 stages, 2 also chosen kernels and times, 3 also all that "
        "was applied and refused.",
    )
    dump: Path | None = Field(
        default=None,
        description="Folder for the text after each stage and pass, and the report.",
    )
    check: int = Field(
        default=0,
        ge=0,
        le=2,
        description="1: verify the graph after each pass. 2: also evaluate it, and name the pass "
        "that changed the answer.",
    )
    fuel: int | None = Field(
        default=None, ge=0, description="Stop after so many rewrites, to find a wrong one."
    )

    @field_validator("cache_dir", mode="before")
    @classmethod
    def _nowhere(cls, value: Any) -> Any:
        """An empty name is no folder, as in the environment, and not the current one."""
        return None if value == "" else value

    @field_validator("workers", mode="before")
    @classmethod
    def _workers(cls, value: Any) -> Any:
        """A form that says how many there are, as text."""
        text = str(value) if type(value) is int else value
        if text is None or (isinstance(text, str) and WORKERS.fullmatch(text)):
            return text
        raise PydanticCustomError("workers", 'give "auto", a number, "ray" or "ray://HOST"')

    @field_validator("memory_limit", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        """A number, or a number with a unit."""
        if not isinstance(value, str):
            return value
        match = SIZE.fullmatch(value.strip())
        if match is None:
            why = 'give a number of bytes, or one with a unit, such as "4 GiB"'
            raise PydanticCustomError("bytes", "{why}", {"why": why})
        return int(float(match[1]) * UNITS[match[2].lower()])

    @field_validator("search_size_u")
    @classmethod
    def _not_below_the_parts(cls, value: int, others: ValidationInfo) -> int:
        """A whole that is searched is no smaller than the parts that it is made of."""
        least = others.data.get("search_size_l", value)
        if value < least:
            why = f"Input should be greater than or equal to search_size_l, which is {least}"
            raise PydanticCustomError("size", "{why}", {"why": why})
        return value

    @staticmethod
    def read(arguments: Mapping[str, Any] | None = None, environment: bool = True) -> Options:
        """Options from keyword arguments over the environment over the defaults. Former names and
        words count, with a warning. OptionError names the option, what was wrong with it and what
        is allowed."""
        from_environment = _of_today(_from_environment() if environment else {})
        arguments = _of_today(arguments or {})
        values: dict[str, Any] = {**from_environment, **arguments}
        told = {
            name
            for name in from_environment
            if values[name] is from_environment[name] and name not in arguments
        }
        system = values.get("system", "anabranch")
        if system not in SYSTEMS:
            names = ", ".join(SYSTEMS)
            where = f", which {PREFIX}SYSTEM says" if "system" in told else ""
            raise OptionError(
                f"unknown system {system!r}{where}", "it is not in the table", f"one of {names}"
            )
        values = {**SYSTEMS[system], **values}
        if values.get("effort") in tuple(Effort):
            values = {**dict(EFFORTS[Effort(values["effort"])].options), **values}
        try:
            return Options(**values)
        except ValidationError as invalid:
            raise _invalid(invalid, told) from None


def renamed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they were saved, by the names and words that they have now.

    >>> renamed({"overlap": "each", "abreast": "all", "fusion": "cuts", "budget": 3.0})
    {'pdl': 'per_kernel', 'horizontal_fusion': 'all', 'fusion': 'cuts', 'budget': 3.0}
    """
    options = {}
    for name, value in saved.items():
        now, words = FORMER.get(name, (name, {}))
        options[now] = words.get(value, value) if isinstance(value, str) else value
    return options


def own_environment() -> dict[str, str]:
    """The variables of this package that are set, as a process elsewhere needs them."""
    return {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}


def write_environment(values: Mapping[str, str | None]) -> None:
    """Set these variables of this process, and unset those that are None: for a worker, before
    anything has asked for them."""
    for name, text in values.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def _of_today(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by the names and words that they have now; those that have others are said."""
    for name, value in options.items():
        ((now, word),) = renamed({name: value}).items()
        if now != name or word != value:
            warnings.warn(
                f"the option {name}={value!r} is called {now}={word!r} now",
                FutureWarning,
                stacklevel=4,
            )
    return renamed(options)


def _invalid(refused: ValidationError, told: Collection[str]) -> OptionError:
    """`told`: the options that the environment sets."""
    first = refused.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "options"
    what = f"option {name} = {first.get('input')!r} is not valid"
    if name in told:
        what = f"the environment variable {PREFIX}{name.upper()}={first.get('input')} is not valid"
    if name in Options.model_fields:
        return OptionError(what, first["msg"], "help(anabranch.Options) says what each may be")
    near = difflib.get_close_matches(name, Options.model_fields, 1)
    valid = f"known options: {', '.join(Options.model_fields)}"
    hint = f"did you mean {near[0]}?" if near else valid
    return OptionError(what, "no option has this name", hint)


def _from_environment() -> dict[str, Any]:
    """The options that variables set; warns of variables that set none."""
    option_of = {f"{PREFIX}{name.upper()}": name for name in (*Options.model_fields, *FORMER)}
    values: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = option_of.get(variable)
        if name is None:
            near = difflib.get_close_matches(variable, option_of, 3, 0.85)
            hint = f"did you mean {' or '.join(near)}?" if near else "docs/options.md lists all"
            warnings.warn(f"{variable} is no option of Anabranch: {hint}", stacklevel=3)
        elif text.lower() == "none" and type(None) in get_args(
            Options.model_fields[FORMER.get(name, (name, {}))[0]].annotation
        ):
            values[name] = None
        elif text or name == "cache_dir":
            values[name] = text
    return values
