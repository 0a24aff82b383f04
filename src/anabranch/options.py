"""All options, and the only reader of the environment.

Each option has a variable: ANABRANCH_ and its name in capitals (docs/options.md has the table).
What a program gives goes before what the environment says. An empty variable says nothing, but for
ANABRANCH_CACHE_DIR, where it says that nothing is kept; "none" is None.

>>> Options(scheduler="ios", budget=30).budget
30.0
"""

from __future__ import annotations

import difflib
import os
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

from anabranch.errors import OptionError

_LIBRARY = {"kernels": "library", "search": "none"}
_ALONE = {"abreast": "none", "overlap": "none"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "anabranch": {},
    "autograph": {"kernels": "library", "scheduler": "nimble", "search": "autograph-paper"},
    "deepcuts": {
        **{"fusion": "climb", "pruning": "limit"},
        **{"scheduler": "sequential", **_ALONE, "search": "none"},
    },
    "ios": {**_LIBRARY, "scheduler": "ios-both"},
    "opara": {**_LIBRARY, "scheduler": "opara-paper"},
    "nimble": {**_LIBRARY, "scheduler": "nimble"},
    "taso": {"kernels": "library", "scheduler": "sequential", "search": "taso-paper"},
    "taso-nimble": {"kernels": "library", "scheduler": "nimble", "search": "taso-paper"},
    "cudagraph": {**_LIBRARY, "scheduler": "sequential"},
}
"""Published systems, by what each of them decides; the rest is done alike for all. AutoGraph
launches on several streams as Nimble does; DeepCuts, like TASO, runs one kernel after another: it
begins with each operator alone and merges consecutive ones while that is faster, by a generated
kernel, whose tiles are pruned by their limit, or the library's; it has no concatenations that cost
nothing, and does no work twice. With Nimble's streams TASO's graph is the same: chosen for its sum,
whatever streams make of it."""

Pruning = Literal["time", "limit"]
Search = Literal["autograph", "autograph-paper", "taso", "taso-paper", "none"]
SEARCHES: tuple[str, ...] = get_args(Search)
SEEDS = 2**63
PUBLISHED = frozenset({"autograph-paper", "taso-paper"})
"""Searches that do as their papers say."""
PREFIX = "ANABRANCH_"
"""What the names of environment variables begin with."""
DEFAULT_CACHE_DIR = Path(platformdirs.user_cache_dir("anabranch"))


class Options(BaseModel):
    """What a compilation may be told. Frozen; unknown names are refused.

    system: a published system to be like, a key of `SYSTEMS`; it sets the options that are not
    given. scheduler: a name of `anabranch.schedule.SCHEDULERS` or "best". budget: seconds that
    search and measurement may take in all (None: as long as they need). outputs: "clone" hands out
    tensors of the caller's own, "view" the plan's buffers, overwritten by the next call. batch:
    what happens to a batch between two compiled ones: "pad" up, for models that treat each of a
    batch alone, or "refuse" it. strict: a fallback is an error. verify: compare with the model in
    higher precision before the plan is accepted; a plan that was, with the very same weights, with
    the model as it is. kernels: "library" leaves generated kernels, and what only they can fuse,
    out. fusion: how a graph is cut into launches: "cuts" compares a few cuts where they differ,
    with concatenations that cost nothing and work that is done twice; "climb" merges consecutive
    operators while that is faster, as DeepCuts does, in rounds of measurement, by what their
    schedule is expected to take, and finds groups that no cut has; not where a scheduler merges
    convolutions, for it asks for these alone.
    pruning: which of the hundreds of tiles of a product are tried: those expected to be fastest, by
    a time fitted to measurements, or those with the highest performance "limit", as in DeepCuts.
    folding: "exact" rounds no weight anew to half precision, where a batch norm would go into it.
    exact: leaves out all that changes what NaN, infinities or the sign of a zero give: rules of the
    search that are found to (`explain` names those that were used), and passes.
    cuda_graph: whether a plan on a GPU is captured as one CUDA graph.
    abreast: whether independent tasks share a launch where that is faster: "likely" tries it where
    tasks are few or a forecast sees more to win than timing can miss, "all" whatever may pay, some
    ten seconds more, "none" never. overlap: whether kernels start before those they follow have
    ended, where a GPU can do that and it is faster: "each" in a way of its own, "alike" all in the
    same, or "none". search: whether an equal graph is sought that is faster
    ("autograph": when run in parallel, and parts of it are run with what may stand in their place;
    "autograph-paper": whole graphs alone, as published, TASO's among them; "taso": in sum;
    "taso-paper": in sum, one kernel after another, and taken as it is however it is scheduled then;
    "none": the graph is taken as it is); fields that begin with it say how. As published a search
    has TASO's rules, flows alone to cut by, a path that costs nothing more than its tasks, and runs
    all candidates that it ends with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str = "anabranch"
    scheduler: str = "best"
    budget: float | None = Field(default=None, gt=0)
    outputs: Literal["clone", "view"] = "clone"
    batch: Literal["pad", "refuse"] = "refuse"
    strict: bool = False
    verify: bool = True
    kernels: Literal["all", "library"] = "all"
    fusion: Literal["cuts", "climb"] = "cuts"
    pruning: Pruning = "time"
    abreast: Literal["likely", "all", "none"] = "likely"
    overlap: Literal["each", "alike", "none"] = "each"
    folding: Literal["all", "exact"] = "all"
    exact: bool = False
    channels_last: bool = True
    search: Search = "autograph"
    # The paper gives no number for any of these. alpha: what the critical path weighs beside the
    # sum; at 1 a longer path counts as much as as much more work. None: what the run of the graph
    # itself shows, 1 to 19 for networks with many branches, next to 0 for chains.
    search_alpha: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    # The path counts what the model of kernels that share the machine has for forks and changes of
    # lane; without it is the formula of the paper, as "autograph-paper" has it.
    search_overheads: bool = True
    # All of these lie on a plateau: less and more of each changes forecasts of four networks by 2%
    # at most, in either direction (benchmarks/results, 2026-11-24-sim-h200-search-settings).
    # What TASO's authors used: a step may cost a twentieth before the next one pays.
    search_threshold: float = Field(default=1.05, ge=1, allow_inf_nan=False)
    # Parts have fewer nodes than size_l, neighbours searched together fewer than size_u: about half
    # a cell of NASNet or a module of Inception, and two to three of these.
    search_size_l: int = Field(default=16, ge=2)
    search_size_u: int = Field(default=40, ge=2, validate_default=True)
    # Graphs that are looked at in each part: it is done after a few steps. Graphs priced in all, at
    # a millisecond or two each. Graphs kept all along: as many as can be run afterwards in a few
    # seconds each. Candidates near one graph that are run: what one of them shows makes the next
    # prediction better.
    search_pops: int = Field(default=12, ge=1)
    search_prices: int = Field(default=8000, ge=1)
    search_keep: int = Field(default=4, ge=1)
    search_measured: int = Field(default=5, ge=1)
    # Without them: one part (partition), parts cut by flows alone and not between cells first
    # (waists), the minimal parts alone (dp). For ablations.
    search_partition: bool = True
    search_waists: bool = True
    search_dp: bool = True
    # What the search may take. Its work is counted, two thirds of this in seconds of a usual
    # machine: the clock only stops what is slower. None: 45 seconds, or fewer where the compilation
    # has taken long by then: a first one of the largest networks shall end within three minutes.
    search_seconds: float | None = Field(default=None, gt=0)
    max_streams: int = Field(default=16, ge=1, le=64)
    # Without it every launch is made anew by each call, on the caller's current stream.
    cuda_graph: bool = True
    # IOS's r and s. None: no pruning where that can be afforded, else 3 and 8.
    max_group_size: int | None = Field(default=None, ge=1)
    max_groups: int | None = Field(default=None, ge=1)
    tf32: bool = False
    # What generators of random numbers take, with room to count on from it.
    seed: int = Field(default=0, ge=-SEEDS, lt=SEEDS)
    cache_dir: Path | None = DEFAULT_CACHE_DIR
    debug: int = Field(default=0, ge=0, le=3)
    dump: Path | None = None
    check: int = Field(default=0, ge=0, le=2)
    fuel: int | None = Field(default=None, ge=0)

    @field_validator("cache_dir", mode="before")
    @classmethod
    def _nowhere(cls, given: Any) -> Any:
        """An empty name is no folder, as in the environment, and not the current one."""
        return None if given == "" else given

    @field_validator("search_size_u")
    @classmethod
    def _not_below_the_parts(cls, given: int, others: ValidationInfo) -> int:
        """What is searched together is no smaller than the parts that it is made of."""
        least = others.data.get("search_size_l", given)
        if given < least:
            why = f"Input should be greater than or equal to search_size_l, which is {least}"
            raise PydanticCustomError("size", "{why}", {"why": why})
        return given

    @staticmethod
    def read(given: Mapping[str, Any] | None = None, environment: bool = True) -> Options:
        """Options from keyword arguments over the environment over the defaults.
        OptionError names the option, what was wrong with it and what is allowed."""
        found = _from_environment() if environment else {}
        values: dict[str, Any] = {**found, **(given or {})}
        told = {name for name in found if values[name] is found[name] and name not in (given or {})}
        system = values.get("system", "anabranch")
        if system not in SYSTEMS:
            known = ", ".join(SYSTEMS)
            where = f", which {PREFIX}SYSTEM says" if "system" in told else ""
            raise OptionError(
                f"unknown system {system!r}{where}", "it is not in the table", f"one of {known}"
            )
        values = {**SYSTEMS[system], **values}
        try:
            return Options(**values)
        except ValidationError as invalid:
            raise _invalid(invalid, told) from None


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
    known = f"known options: {', '.join(Options.model_fields)}"
    hint = f"did you mean {near[0]}?" if near else known
    return OptionError(what, "no option has this name", hint)


def _from_environment() -> dict[str, Any]:
    """The options that variables set; warns of variables that set none."""
    known = {f"{PREFIX}{name.upper()}": name for name in Options.model_fields}
    values: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = known.get(variable)
        if name is None:
            near = difflib.get_close_matches(variable, known, 3, 0.85)
            hint = f"did you mean {' or '.join(near)}?" if near else "docs/options.md lists all"
            warnings.warn(f"{variable} is no option of Anabranch: {hint}", stacklevel=3)
        elif text.lower() == "none" and type(None) in get_args(
            Options.model_fields[name].annotation
        ):
            values[name] = None
        elif text or name == "cache_dir":
            values[name] = text
    return values
