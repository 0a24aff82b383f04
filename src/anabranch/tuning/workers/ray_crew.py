"""Workers on the machines of a Ray cluster: an actor holds a process as `local` starts it.

    pool --send--> actor (on its machine) --pipe--> process        take: what it has said since
                   one GPU of the cluster each, which Ray sets CUDA_VISIBLE_DEVICES for

An actor that is lost, with its machine or without, is a worker that died. The process and not the
actor runs jobs, so that a job is alone in a main thread, hears Ctrl-C, and may die of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from anabranch.deadline import TIME
from anabranch.errors import WorkerError
from anabranch.options import own_environment, write_environment
from anabranch.tuning.workers.crew import Link
from anabranch.tuning.workers.identity import Identity
from anabranch.tuning.workers.local import LocalCrew, LocalLink
from anabranch.tuning.workers.ray_door import ray_package

ADDRESS = "ray://"
PORT = 10001
"""Of Ray's own, where an address names none."""
NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}


class HeldWorker:
    """What an actor is: a process of its machine, and the way to it. `named`: how it is called."""

    def __init__(
        self, target: str, named: str, environment: Mapping[str, str], claims: Identity | None
    ) -> None:
        held = {} if claims is None else {0: claims}
        self._crew = LocalCrew(target, [""], None, environment, held, named)
        self._link = self._crew.start(0)

    def send(self, message: bytes) -> None:
        """To the process."""
        self._link.send(message)

    def take(self, seconds: float) -> list[bytes | None]:
        """What the process has said, None as the last word of one that died."""
        return [message for _, message in self._crew.wait([self._link], seconds)]

    def end(self) -> None:
        """Kill the process."""
        if isinstance(self._link, LocalLink):
            self._link.end()


class RayLink:
    """An actor and what was asked of it."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self.name, self.actor, self._ray = name, actor, ray
        self.asked = actor.take.remote(TIME.worker_take_s)

    def send(self, message: bytes) -> None:
        """To the process that the actor holds."""
        with suppress(self._ray.exceptions.RayError):
            self.actor.send.remote(message)

    def end(self) -> None:
        """End its process, and the actor."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self.actor.end.remote(), timeout=TIME.worker_take_s)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self.actor)


class RayCrew:
    """`address`: "ray" for the cluster of this machine, which is started if there is none, or
    "ray://HOST". One place for each GPU of the cluster, for each CPU where the target is none;
    `places`: another number."""

    def __init__(
        self,
        target: str,
        on_gpus: bool,
        address: str = "ray",
        places: int | None = None,
        claims: Mapping[int, Identity] | None = None,
    ) -> None:
        self._ray = ray_package()
        self._target, self._claims = target, claims or {}
        self._own = not self._ray.is_initialized()
        if self._own:
            write_environment(NO_STATISTICS)
            self._connect(address)
        resource = "GPU" if on_gpus else "CPU"
        self._needs = {"num_gpus": 1 if on_gpus else 0, "num_cpus": 0 if on_gpus else 1}
        held = int(self._ray.cluster_resources().get(resource, 0))
        self._places = places if places is not None else held
        if not self._places:
            self.close()
            raise WorkerError(
                f"the Ray cluster at {address!r} has no {resource}",
                "each worker needs one",
                "add machines to it, or use workers='auto' for this machine alone",
            )

    @property
    def places(self) -> int:
        """One for each GPU."""
        return self._places

    def start(self, place: int) -> Link:
        """An actor, which Ray places where a GPU is free."""
        kind = self._ray.remote(HeldWorker)
        # Two threads: one waits for a word of the process while the other sends.
        options = {**self._needs, "max_concurrency": 2, "max_restarts": 0}
        name = f"ray {place}"
        held = (self._target, name, own_environment(), self._claims.get(place))
        return RayLink(self._ray, kind.options(**options).remote(*held), name)

    def wait(self, links: Sequence[Link], seconds: float) -> list[tuple[Link, bytes | None]]:
        """What the actors have taken."""
        asked = {link.asked: link for link in links if isinstance(link, RayLink)}
        messages: list[tuple[Link, bytes | None]] = []
        ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=max(0.0, seconds))
        for reference in ready:
            link = asked[reference]
            try:
                messages += [(link, message) for message in self._ray.get(reference)]
                link.asked = link.actor.take.remote(TIME.worker_take_s)
            except self._ray.exceptions.RayError:
                messages.append((link, None))
        return messages

    def close(self) -> None:
        """Disconnect; a cluster that was started for this ends."""
        if self._own:
            self._ray.shutdown()

    def _connect(self, address: str) -> None:
        quiet = {"log_to_driver": False, "configure_logging": False}
        try:
            if address.startswith(ADDRESS):
                host = address.removeprefix(ADDRESS)
                self._ray.init(address if ":" in host else f"{address}:{PORT}", **quiet)
            else:
                self._ray.init(include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as failed:
            raise WorkerError(
                f"no Ray cluster answers at {address!r}",
                str(failed).partition("\n")[0] or type(failed).__name__,
                "start one with `ray start --head`, or give the address that it told",
            ) from failed
