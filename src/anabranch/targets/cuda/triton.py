"""Generated kernels on the GPU: written anew, compared, compiled or read back, launched.

    kernel --write--> Program --compile or cache--> Cubin --driver--> function --> call on a stream
           body, variant      text, alignment             loaded once

The text that is compiled is always the one that the writer makes here, from the kernel's body and
variant; the text in a plan is only compared with it. Triton itself is asked for nothing but
cubins, in other processes, and for none that the cache has: launching needs the driver alone.

Sizes and strides are literals of a text. So is what a pointer is known to be a multiple of: a value
of the arena always is one of 16 bytes, a slice of another value need not be. A kernel is compiled
for the former ahead, for other addresses when a tensor with such an address is first seen, which is
before anything is captured. A text with tensor descriptors of such an address gives way to the same
kernel without them.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir import ops
from anabranch.ir.graph import Graph, types
from anabranch.ir.key import code
from anabranch.ir.protocols import Probe
from anabranch.ir.refused import Refused
from anabranch.ir.task import Kernel, Resources, Task
from anabranch.ir.types import TensorType, type_of
from anabranch.ir.variant import Variant, undescribed
from anabranch.kernels.triton import Program
from anabranch.kernels.triton.codegen import program
from anabranch.targets.cuda.compile_pool import Crew
from anabranch.targets.cuda.cubin import (
    AHEAD,
    CUBINS,
    KILLED,
    Cubin,
    CubinOrReason,
    CubinRecipe,
    compiling,
    workers,
)
from anabranch.targets.cuda.driver import Driver, LaunchConfig, open_driver
from anabranch.targets.loading import LaunchCall
from anabranch.trace import Trace

Writer = Callable[[Graph, Variant | str], Program]
ALIGNMENT = 16
"""Bytes: what Triton's widest loads and stores need."""
MOST_SAID = 400
"""Characters of a compiler's complaint that an event repeats."""
OTHERWISE = "another kernel of the task is used; compile the model again if a plan asks for it"
ALWAYS_SHARED = 48 << 10
"""Bytes of shared memory that any launch may have; for more the function must be opened."""
POINTERS: dict[torch.dtype, str] = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


def available() -> bool:
    """Whether Triton is installed; it is not imported."""
    return importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A cubin on the device, and the driver's handle of its function."""

    function: Any
    cubin: Cubin


class Triton:
    """Generated kernels of one device: what was compiled and what is loaded, for as long as the
    target lives: graphs that were captured launch from it."""

    def __init__(
        self,
        device: torch.device,
        capability: tuple[int, int],
        write: Writer = program,
        driver: Callable[[], Driver] = open_driver,
    ) -> None:
        self._device, self._capability = device, 10 * capability[0] + capability[1]
        self._write, self._open = write, driver
        self._driver: Driver | None = None
        self._crew = Crew()
        self._built: dict[CubinRecipe, CubinOrReason] = {}
        self._loaded: dict[CubinRecipe, Loaded] = {}
        self._kept: set[tuple[CubinRecipe, int]] = set()
        self.waiting = set[str]()
        """Names of the kernels loaded so far that wait by themselves for what they read."""

    def start(self, most: int = AHEAD) -> None:
        """Have compilers at hand for a batch of so many texts that is to come."""
        self._crew.start(workers(most))

    def dismiss(self) -> None:
        """Let them go: they would stay for a while, for the next batch."""
        self._crew.dismiss()

    def program(self, kernel: Kernel) -> Program:
        """What a kernel runs, written anew. TargetError if the kernel says something else."""
        try:
            written = self._write(kernel.body, kernel.variant)
        except ValueError as unknown:
            raise TargetError(
                f"kernel {kernel.name} {kernel.variant} is none that is written here",
                f"{unknown}; it comes from another version of this package, or was altered",
                "compile the model again with this version",
            ) from unknown
        if written.text != kernel.source and code(written.text) != code(kernel.source):
            raise TargetError(
                f"the source of kernel {kernel.name} {kernel.variant} is not what is written here",
                "it comes from another version of this package, or was altered; it is never run",
                "compile the model again with this version",
            )
        return written

    @contextmanager
    def building(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> Iterator[None]:
        """Compile what these kernels need while the block runs, or read it from the cache, where
        it is kept. A failure is kept as a sentence, and raised when the kernel is loaded."""
        steps = self.ready(kernels, cache, trace)
        try:
            next(steps)
            yield
            for _ in steps:
                pass
        finally:
            steps.close()

    def ready(
        self,
        kernels: Sequence[Kernel],
        cache: Cache | None = None,
        trace: Trace | None = None,
        in_turn: bool = False,
    ) -> Generator[list[int], None, None]:
        """The same, a step at a time: the positions of kernels that can be loaded, or failed. At
        first those that nobody need compile; compiling goes on between the steps. `in_turn`: about
        in their order, and not those first that take longest."""
        wanted: dict[CubinRecipe, list[int]] = {}
        others: list[int] = []
        for i, kernel in enumerate(kernels):
            try:
                if kernel.provider == "triton":
                    wanted.setdefault(self._recipe(self.program(kernel)), []).append(i)
                    continue
            except TargetError:
                pass  # heard when it is loaded
            others.append(i)
        compiler = installed() if wanted else ""
        keys = {recipe: recipe.key(compiler) for recipe in wanted}
        self._recall(keys, cache)
        missing = [recipe for recipe in wanted if recipe not in self._built]
        cached = (
            i for recipe, positions in wanted.items() if recipe in self._built for i in positions
        )
        first = sorted([*others, *cached])
        if not missing:
            yield first
        else:
            with compiling(missing, self._crew, in_turn) as compiled:
                yield first
                for done, (recipe, built) in enumerate(compiled, 1):
                    self._built[recipe] = built
                    self._keep({recipe: keys[recipe]}, cache)
                    if trace is not None:
                        kernel = kernels[wanted[recipe][0]]
                        trace.progress("tuning", done, len(missing), "kernels compiled")
                        _tell(trace, f"{kernel.name} {kernel.variant}", built)
                    yield wanted[recipe]
        self._keep(keys, cache)

    def refusal(self, kernel: Kernel) -> Refused | None:
        """Why a kernel that was got ready cannot be compiled; None if it can."""
        built = self._built.get(self._recipe(self.program(kernel)))
        return Refused(built) if isinstance(built, str) else None

    def runner(self, task: Task, values: dict[str, Tensor], workspace: Tensor | None) -> LaunchCall:
        """The call of a task whose kernel has provider "triton" (see `targets.loading.Runner`)."""
        kernel = task.kernel
        assert kernel is not None
        written, declared = self.program(kernel), types(kernel.body)
        own: list[Tensor] = []
        if written.scratch:
            fits = workspace is not None and workspace.numel() >= written.scratch
            own.append(
                workspace if workspace is not None and fits else self._bytes(written.scratch)
            )
        if written.counters:
            own.append(torch.zeros(written.counters, dtype=torch.int32, device=self._device))
        bound: list[_Bound] = []

        def bind() -> _Bound:
            tensors = [values[name] for name in written.pointers] + own
            addresses = tuple(tensor.data_ptr() for tensor in tensors)
            if not bound or bound[0].buffers != addresses:
                for name in written.pointers:
                    _agrees(task, name, values[name], declared[name])
                unfit = any(addresses[at] % ALIGNMENT for at in written.described)
                fit = self._write(kernel.body, undescribed(kernel.variant)) if unfit else written
                bound[:] = [self._bind(fit, addresses)]
            return bound[0]

        def call() -> None:
            ready, driver = bind(), self.driver()
            stream = torch.cuda.current_stream(self._device).cuda_stream
            driver.launch(ready.function, ready.launch, stream, ready.addresses)

        if all(name in values for name in written.pointers):
            bind()
        else:  # results of kernels that allocate come later: most have the usual alignment
            self.load(self._recipe(written))
        return call

    def probe(self, kernel: Kernel) -> Probe:
        """What a launch takes, without running it."""
        written = self.program(kernel)
        loaded, driver = self.load(self._recipe(written)), self.driver()
        resources = Resources(
            ctas=written.ctas,
            threads=32 * loaded.cubin.warps,
            registers=driver.attribute(loaded.function, "registers"),
            shared=loaded.cubin.shared + driver.attribute(loaded.function, "shared"),
        )
        return Probe(written.scratch, 0, 1, resources)

    def taken(self, kernel: Kernel) -> Resources | None:
        """What a launch takes of a kernel that was got ready, by its compiled code alone: no GPU is
        asked. None where it cannot be compiled."""
        written = self.program(kernel)
        built = self._built[self._recipe(written)]
        if isinstance(built, str):
            return None
        return Resources(written.ctas, 32 * built.warps, built.registers, built.shared)

    def load(self, recipe: CubinRecipe) -> Loaded:
        """A kernel on the device, compiled if need be. TargetError if that cannot be."""
        if recipe not in self._loaded:
            if recipe not in self._built:
                with compiling([recipe], self._crew) as ready:
                    self._built.update(ready)
            built = self._built[recipe]
            if isinstance(built, str):
                raise TargetError(f"kernel {recipe.entry} cannot be compiled", built, OTHERWISE)
            driver = self.driver()
            function = driver.load(built.code, built.entry)
            if built.shared > ALWAYS_SHARED:
                try:
                    driver.set(function, "most_shared", built.shared)
                except TargetError as failed:
                    raise TargetError(
                        f"kernel {recipe.entry} cannot be launched",
                        f"a CTA takes {built.shared >> 10} KiB of shared memory: {failed.why}",
                        OTHERWISE,
                    ) from None
            self._loaded[recipe] = Loaded(function, built)
            if recipe.pdl:
                self.waiting.add(built.entry)
        return self._loaded[recipe]

    def driver(self) -> Driver:
        """The door to the driver, opened at the first call."""
        if self._driver is None:
            self._driver = self._open()
        return self._driver

    def _bind(self, written: Program, addresses: tuple[int, ...]) -> _Bound:
        """A launch on these addresses, by a cubin that assumes no more of them than holds."""
        aligned = tuple(address % ALIGNMENT == 0 for address in addresses)
        loaded = self.load(self._recipe(written, aligned))
        cubin = loaded.cubin
        added = [0] * (cubin.parameters - len(addresses))
        held = self._bytes(cubin.scratch * written.ctas)
        if cubin.scratch:
            added[0] = held.data_ptr()
        launch = LaunchConfig(written.grid, 32 * cubin.warps, cubin.shared, written.pdl)
        return _Bound(addresses, (*addresses, *added), loaded.function, launch, held)

    def _recipe(self, written: Program, aligned: tuple[bool, ...] = ()) -> CubinRecipe:
        """`aligned`: of each pointer; all of them if nothing is said."""
        pointers = [POINTERS[dtype] for dtype in written.dtypes]
        pointers += ["*u8"] * bool(written.scratch) + ["*i32"] * bool(written.counters)
        return CubinRecipe(
            code(written.text),
            written.entry,
            tuple(pointers),
            aligned or (True,) * len(pointers),
            self._capability,
            written.warps,
            written.stages,
            written.pdl,
        )

    def _bytes(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def _recall(self, keys: Mapping[CubinRecipe, str], cache: Cache | None) -> None:
        unknown = {recipe: key for recipe, key in keys.items() if recipe not in self._built}
        self._built.update(CUBINS.get_many(cache, unknown))

    def _keep(self, keys: Mapping[CubinRecipe, str], cache: Cache | None) -> None:
        fresh = {
            recipe: self._built[recipe]
            for recipe in keys
            if (recipe, id(cache)) not in self._kept and self._built[recipe] != KILLED
        }
        if cache is not None:
            self._kept.update((recipe, id(cache)) for recipe in fresh)
            CUBINS.put_many(cache, {keys[recipe]: built for recipe, built in fresh.items()})


@dataclass(frozen=True, slots=True)
class _Bound:
    """A launch that is ready: the addresses it was given, all that the entry takes, and the memory
    that Triton itself wanted, which must live as long."""

    buffers: tuple[int, ...]
    addresses: tuple[int, ...]
    function: Any
    launch: LaunchConfig
    held: Tensor


def _agrees(task: Task, name: str, tensor: Tensor, declared: TensorType) -> None:
    """TargetError if a tensor is not what the text was written for: it would be read wrongly."""
    actual = type_of(tensor)
    if not ops.same_layout(actual, declared):
        raise TargetError(
            f"%{name} of task {task.name} is {actual.text}",
            f"its kernel was written for {declared.text}",
            "compile the model again",
            task.origin,
        )


def _tell(trace: Trace, name: str, built: CubinOrReason) -> None:
    if isinstance(built, str):
        trace.add("refused", "tuning", name, f"not compiled: {' '.join(built.split())[:MOST_SAID]}")
    elif built.spilled:
        why = f"{built.spilled} bytes a thread did not fit into {built.registers} registers"
        trace.add("applied", "tuning", name, f"compiled, but {why}")


@functools.cache
def installed() -> str:
    """Triton's version, by what is installed and not by importing it; nightly builds have another
    name."""
    for name in ("triton", "pytorch-triton"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
