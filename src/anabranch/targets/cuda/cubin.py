"""Triton text -> cubin, many at once, in processes of their own.

    recipes ──┬─ thread ── process: Triton, ptxas ──┐
              ├─ thread ── process                  ├── Cubin, or a sentence why there is none
              └─ thread ── process                  ┘

A process that dies, of a defect in the compiler or of a text that takes for ever, costs the text
it was at: the next text gets a new process. About 0.6 s a text and core. What takes longest is
begun first: a text that takes four seconds, begun last, would have the other cores wait for it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.cache import Codec, Table
from anabranch.deadline import TIME
from anabranch.ir.threads import Pool
from anabranch.targets.cuda.compile_pool import Crew, Process, ask, end
from anabranch.targets.cuda.elf import facts

MOST_PROCESSES, AHEAD = 32, 16
"""Processes at once, each of which holds a compiler of some 200 MB, and how many of them are
started ahead of the texts that they compile."""
DIED = "the compiler died with exit status {}"
KILLED = DIED.format(-9)
"""By somebody else, as where memory is short: it may do the next time, or on another machine."""
WINDOW = 64
"""Texts of which the longest is compiled first, where they are wanted in turn: a few for each
process, so that none waits long for the last of them."""
POINTER = 8
"""Bytes of a parameter."""
EXTENT = re.compile(r"tl\.arange\(0, (\d+)\)")


@dataclass(frozen=True, slots=True)
class CubinRecipe:
    """All that a cubin depends on but the compiler. types: the parameters, in Triton's names;
    aligned: which of them are known to point to multiples of 16 bytes; capability: 90 for 9.0."""

    text: str
    entry: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    capability: int
    warps: int
    stages: int
    pdl: bool = False

    def key(self, version: str) -> str:
        """Names the cubin in the cache; `version`: Triton's."""
        facts = asdict(self)
        text = facts.pop("text")
        return CUBINS.key(f"triton {version}", json.dumps(facts), text)

    def request(self) -> dict[str, Any]:
        """The recipe as JSON for a compile worker, options under Triton's names."""
        facts = asdict(self)
        options = {"num_warps": facts.pop("warps"), "num_stages": facts.pop("stages")}
        return facts | {"options": options | {"launch_pdl": facts.pop("pdl")}}


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled code, and how to launch it. shared: dynamic bytes; parameters: all that the entry
    takes, those that Triton adds at the end included; scratch: bytes a CTA that the first of
    those points to; registers: a thread; spilled: bytes a thread that did not fit into them."""

    code: bytes
    entry: str
    warps: int
    shared: int
    parameters: int
    scratch: int = 0
    registers: int = 0
    spilled: int = 0


CubinOrReason = Cubin | str
"""A cubin, or why there is none."""


def write_built(built: CubinOrReason) -> bytes:
    """For the cache: a line of JSON, then the code. Refusals are kept too, lest they be tried
    again by every process."""
    if isinstance(built, str):
        return json.dumps({"refused": built}).encode() + b"\n"
    facts = asdict(built)
    del facts["code"]
    return json.dumps(facts).encode() + b"\n" + built.code


def read_built(data: bytes) -> CubinOrReason:
    """The inverse of `write_built`."""
    head, _, code = data.partition(b"\n")
    facts = json.loads(head)
    return facts["refused"] if "refused" in facts else Cubin(code, **facts)


CUBINS: Table[CubinOrReason] = Table(
    "kernels",
    "cubin 2",
    Codec(lambda built, _: write_built(built), lambda data, _: read_built(data)),
)


def workers(recipes: int) -> int:
    """How many processes compile so many: all cores but one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(recipes, MOST_PROCESSES, (cores or 2) - 1))


@contextmanager
def compiling(
    recipes: Sequence[CubinRecipe], crew: Crew | None = None, in_turn: bool = False
) -> Iterator[Iterator[tuple[CubinRecipe, CubinOrReason]]]:
    """Compiles while the block runs; gives an iterator over what is ready, as it gets ready. What
    is not ready when the block is left is given up. `crew`: whose processes work, and stay.
    `in_turn`: the first ones are wanted first, WINDOW of them at a time."""
    own = crew or Crew()
    with tempfile.TemporaryDirectory(prefix="anabranch") as folder:
        batch = _Batch(own, folder)
        pool = Pool(workers(len(recipes)), "anabranch-compile")
        try:
            ordered = _longest_first(recipes, WINDOW if in_turn else len(recipes))
            waiting = {pool.submit(batch.compile, recipe): recipe for recipe in ordered}
            yield ((waiting[done], done.result()) for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            batch.give_up()
            pool.shutdown(wait=True)
            if crew is None:
                own.dismiss()


class _Batch:
    """Texts that are compiled together, by processes of one crew."""

    def __init__(self, crew: Crew, folder: str) -> None:
        self._crew, self._folder = crew, folder
        self._lock = threading.Lock()
        self._busy: set[Process] = set()
        self._given_up = threading.Event()

    def compile(self, recipe: CubinRecipe) -> CubinOrReason:
        with self._lock:
            if self._given_up.is_set():
                return "compiling was interrupted"
            process = self._crew.take()
            self._busy.add(process)
        try:
            return self._answer(process, recipe)
        finally:
            with self._lock:
                self._busy.remove(process)
                given_up = self._given_up.is_set()
            if given_up:
                end([process])  # it is dying: the next text it got would be blamed for that
            self._crew.give(process)

    def _answer(self, process: Process, recipe: CubinRecipe) -> CubinOrReason:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(TIME.kernel_compile_limit_s, give_up)
        with suppress(RuntimeError):  # no thread for it: there is no limit
            timer.start()
        try:
            answer = ask(process, recipe.request() | {"folder": self._folder})
        finally:
            timer.cancel()
        if answer is not None:
            return _built(answer, len(recipe.types))
        end([process])
        if late.is_set():
            return f"compiling took longer than {TIME.kernel_compile_limit_s:.0f} s"
        return DIED.format(process.returncode)

    def give_up(self) -> None:
        """Stop what is being compiled."""
        with self._lock:
            self._given_up.set()
            for process in self._busy:
                process.kill()


def _built(answer: dict[str, Any], declared: int) -> CubinOrReason:
    """The entry has more parameters than the text, how many depends on Triton's version: pointers
    to scratch memory, which may be null if unused."""
    if "refused" in answer:
        return str(answer["refused"])
    code = base64.b64decode(answer.pop("code"))
    try:
        cubin = facts(code)
    except ValueError as failed:
        return str(failed)
    if len(cubin.parameters) < declared or set(cubin.parameters) - {POINTER}:
        return f"its entry takes other parameters than pointers: {cubin.parameters}"
    return Cubin(
        code,
        cubin.entry,
        answer["warps"],
        answer["shared"],
        len(cubin.parameters),
        answer["scratch"],
        cubin.registers,
        cubin.local,
    )


def _longest_first(recipes: Sequence[CubinRecipe], window: int) -> list[CubinRecipe]:
    """The recipes, of so many in a row what takes longest first."""
    windows = (recipes[at : at + window] for at in range(0, len(recipes), window))
    return [recipe for some in windows for recipe in sorted(some, key=weight, reverse=True)]


def weight(recipe: CubinRecipe) -> float:
    """About what compiling it takes, in some unit."""
    return text_weight(recipe.text) / recipe.warps


def text_weight(text: str) -> float:
    """About what compiling the text takes for one warp, in some unit: the larger its tiles, which
    are products of two extents, and the longer the text, the more instructions."""
    extents = list(map(int, EXTENT.findall(text)))
    tiles = sum(extents) + sum(extents) ** 2 - sum(extent**2 for extent in extents)
    return float(len(text) * tiles)
