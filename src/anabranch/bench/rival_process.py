"""Rivals in processes of their own: what their libraries make of torch is seen there alone.

    this process                        the rival's own
    "xla", the cell by its name   -->   loads the same network, builds the rival
    3                             -->   calls it three times
    [0.41, 0.40, 0.41]            <--   milliseconds, by its own clock

torchax gives torch another device and turns off fast paths of attention: whatever is built or
called after it in one process is another system. Weights and inputs are drawn by the same seed, and
results are compared as everybody's are. A call is one visit of a round as all others': nothing else
runs meanwhile, and the message that asks for it is not timed.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anabranch.bench.machine import machine
from anabranch.bench.rivals import RIVALS
from anabranch.errors import TargetError
from anabranch.models.load import load_model
from anabranch.options import write_environment
from anabranch.targets.tf32 import precision

APART = ("xla",)
"""Rivals whose libraries change torch for the whole process."""
RESULTS = 0
"""Asked for instead of a number of calls: what a call returns."""
END_S = 5.0
"""Seconds in which a process may end by itself."""
WITHOUT_POOL: dict[str, str | None] = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""jax would take three quarters of the GPU's memory at once, of which others here need some."""

TensorParts = tuple[torch.dtype, tuple[int, ...], bytes]
"""Of a result: what numbers, its shape, and all of them in order."""


@dataclass(frozen=True, slots=True)
class CellPlace:
    """What a process needs to know to load a cell as this one did."""

    name: str
    dtype: str
    batch: int
    target: str
    trust: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    """`seconds`: that building it took there, after the network was loaded."""

    seconds: float
    peak_bytes: int | None
    note: str


class RivalProcess:
    """A rival that stands in another process; a call of it, whose results are copied here."""

    def __init__(self, rival: str, place: CellPlace, seconds: float | None = None) -> None:
        """TimeoutError where it does not stand after so many seconds, ChildProcessError where its
        process dies; what its builder raises, in words."""
        self._device = machine(place.target).device
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, rival, place), daemon=True)
        self._process.start()
        theirs.close()
        self.close = weakref.finalize(self, _end, self._process, self._connection)
        try:
            ready = self._heard(seconds)
        except BaseException:
            self._process.kill()
            self.close()
            raise
        assert isinstance(ready, _Ready)
        self.seconds, self.peak_bytes, self.note = ready.seconds, ready.peak_bytes, ready.note

    def __call__(self) -> list[Tensor]:
        """One call: its results, on this process's device."""
        self._connection.send(RESULTS)
        told = self._heard()
        assert isinstance(told, list)
        return [_tensor(*parts).to(self._device) for parts in told]

    def milliseconds(self, calls: int) -> Sequence[float]:
        """Of so many calls in a row there, after one that does not count."""
        self._connection.send(calls)
        told = self._heard()
        assert isinstance(told, list)
        return told

    def _heard(self, seconds: float | None = None) -> object:
        try:
            if not self._connection.poll(seconds):
                raise TimeoutError
            told: object = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(END_S)
            code = self._process.exitcode or 0
            died = f"died of signal {-code}" if code < 0 else f"ended with status {code}"
            raise ChildProcessError(f"its process {died}") from None
        if isinstance(told, BaseException):
            raise told
        return told


def _end(process: BaseProcess, connection: Connection) -> None:
    connection.close()
    process.join(END_S)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(connection: Connection, rival: str, place: CellPlace) -> None:
    """What the process does until nobody asks any more. A Ctrl-C is for whoever asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_environment(WITHOUT_POOL)
    here = machine(place.target)
    with torch.no_grad(), precision(place.dtype == "tf32"):
        try:
            model, args = load_model(
                place.name, place.batch, place.dtype, here.device, trust=place.trust
            )
            start = time.perf_counter()
            ready = RIVALS[rival](model, args, here)
            here.synchronize()
            seconds = time.perf_counter() - start
            peak = ready.peak_bytes if ready.peak_bytes is not None else here.peak_of(ready.call)
            connection.send(_Ready(seconds, peak, ready.note))
        except Exception as failed:
            connection.send(_sendable(failed))
            return
        while True:
            try:
                asked = connection.recv()
            except (EOFError, OSError):
                return
            try:
                if asked == RESULTS:
                    leaves = tree_leaves(ready.call())
                    connection.send([_parts(x) for x in leaves if isinstance(x, Tensor)])
                    continue
                ready.call()
                here.synchronize()
                taken = []
                for _ in range(asked):
                    start = time.perf_counter()
                    ready.call()
                    here.synchronize()
                    taken.append(1e3 * (time.perf_counter() - start))
                connection.send(taken)
            except Exception as failed:
                connection.send(_sendable(failed))


def _parts(tensor: Tensor) -> TensorParts:
    plain = tensor.detach().cpu().contiguous()
    return plain.dtype, tuple(plain.shape), plain.view(-1).view(torch.uint8).numpy().tobytes()


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _sendable(failed: Exception) -> Exception:
    """What was raised there, as this project's error or in its own words: an exception of a
    library may not be known where it is read."""
    if isinstance(failed, TargetError):
        return failed
    said = str(failed).strip().partition("\n")[0]
    return RuntimeError(f"{type(failed).__name__}: {said}")
