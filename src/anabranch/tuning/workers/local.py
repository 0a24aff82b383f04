"""Workers that are processes of this machine, each with one GPU.

    GPU 0 (uuid) -> process, CUDA_VISIBLE_DEVICES=GPU-uuid, its share of the cores
                    and more processes, where more were asked for: they time in turns
    GPU 1 (uuid) -> process, ...
    no GPU       -> so many processes

They are started by `multiprocessing` with `spawn`: classes of the user's script are found again in
the worker, as far as its file can be run once more (`if __name__ == "__main__":`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch

from anabranch.options import own_environment
from anabranch.tuning.workers.crew import Link
from anabranch.tuning.workers.identity import Identity
from anabranch.tuning.workers.process import WorkerSetup, serve


class LocalLink:
    """A process, the pipe to it and the folder of its cache."""

    def __init__(
        self, process: BaseProcess, connection: Connection, folder: TemporaryDirectory[str]
    ) -> None:
        self.name, self.connection = process.name, connection
        self._process, self._folder = process, folder

    def send(self, message: bytes) -> None:
        """To the process, which reads on whatever it does."""
        with suppress(OSError):
            self.connection.send_bytes(message)

    def end(self) -> None:
        """Kill it. Its own processes end with their input."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._folder.cleanup()


class LocalCrew:
    """`gpus`: of each place, as `targets.cuda.gpus` names it, "" for none; several may be on one.
    `cache_dir`: the caller's, which workers read; `environment`: of all workers, this package's own
    by default. For tests: `claims`, by place, who a worker says that it is; `method`, another way
    to start."""

    def __init__(
        self,
        target: str,
        gpus: Sequence[str],
        cache_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        claims: Mapping[int, Identity] | None = None,
        named: str = "worker",
        method: Literal["spawn", "fork"] = "spawn",
    ) -> None:
        self._target, self._gpus, self._cache_dir = target, tuple(gpus), cache_dir
        self._environment = own_environment() if environment is None else environment
        self._claims, self._named, self._method = claims or {}, named, method

    @property
    def places(self) -> int:
        """One for each of the `gpus`."""
        return len(self._gpus)

    def start(self, place: int) -> Link:
        """A process that begins to start."""
        folder = TemporaryDirectory(prefix="anabranch-worker-")
        gpu = self._gpus[place]
        environment: dict[str, str | None] = {**self._environment, "ANABRANCH_WORKERS": None}
        environment["ANABRANCH_CACHE_DIR"] = folder.name
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu.rpartition(" ")[2]
        setup = WorkerSetup(
            f"{self._named} {place}",
            self._target,
            environment,
            Path(folder.name),
            self._cache_dir,
            self._cores(place) if gpu else (),
            torch.get_num_threads(),
            self._claims.get(place),
        )
        spawning = self._method == "spawn"
        spawned: SpawnContext | ForkContext = (
            get_context("spawn") if spawning else get_context("fork")
        )
        own, theirs = spawned.Pipe()
        # No daemon: a benchmark starts processes of its own there.
        process = spawned.Process(target=serve, args=(theirs, setup), name=setup.name)
        process.start()
        theirs.close()
        return LocalLink(process, own, folder)

    def wait(self, links: Sequence[Link], seconds: float) -> list[tuple[Link, bytes | None]]:
        """All messages of each process that has sent some: who waits may be away for seconds."""
        by_connection = {link.connection: link for link in links if isinstance(link, LocalLink)}
        messages: list[tuple[Link, bytes | None]] = []
        for ready in wait(list(by_connection), seconds):
            assert isinstance(ready, Connection)
            link = by_connection[ready]
            try:
                messages.append((link, ready.recv_bytes()))
                while ready.poll():
                    messages.append((link, ready.recv_bytes()))
            except (EOFError, OSError):
                messages.append((link, None))
        return messages

    def close(self) -> None:
        """Nothing is held beside the links."""

    def _cores(self, place: int) -> tuple[int, ...]:
        """Its share of the cores that this process may use: workers that compile would only wait
        for each other."""
        if not hasattr(os, "sched_getaffinity"):
            return ()
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // self.places)
        return tuple(cores[place * share : (place + 1) * share])
