"""Memory that torch keeps for nobody, on a device that only takes notes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from anabranch.targets.cuda.cached_memory import make_room, with_room

MIB = 1 << 20


class Memory:
    """What a call holds."""


@pytest.mark.parametrize(
    ("reserved", "allocated", "free", "emptied"),
    [
        (3 * MIB, 1 * MIB, 70_000 * MIB, False),
        (60 * MIB, 1 * MIB, 6 * MIB, True),
        (6_000 * MIB, 100 * MIB, 70_000 * MIB, True),
        (60_000 * MIB, 60_000 * MIB, 6 * MIB, False),
    ],
    ids=["little kept", "little free", "much kept", "all in use"],
)
def test_memory_is_given_back_where_much_is_kept(
    reserved: int, allocated: int, free: int, emptied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    capturing: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80_000 * MIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    make_room(torch.device("cuda", 0))
    assert bool(calls) == emptied
    calls.clear()
    capturing.append(True)
    make_room(torch.device("cuda", 0))
    assert not calls


def test_what_ran_out_of_memory_runs_again_once_its_own_is_free() -> None:
    held: list[weakref.ref[Memory]] = []
    gone: list[bool] = []

    def capture() -> str:
        memory = Memory()
        held.append(weakref.ref(memory))
        if len(held) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return "a graph"

    gc.disable()
    try:
        assert with_room(capture, lambda: gone.append(held[0]() is None)) == "a graph"
    finally:
        gc.enable()
    assert gone == [True] and len(held) == 2


@pytest.mark.parametrize(
    ("said", "times"), [("out of memory", 2), ("operation not permitted when capturing", 1)]
)
def test_what_fails_again_or_otherwise_says_so(said: str, times: int) -> None:
    calls: list[str] = []

    def capture() -> None:
        calls.append("")
        raise RuntimeError(said)

    with pytest.raises(RuntimeError, match=said):
        with_room(capture, lambda: None)
    assert len(calls) == times
