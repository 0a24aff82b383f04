"""Which tensors share memory: to the element, in one storage or in several."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import anabranch
from anabranch.errors import InputError
from anabranch.frontend.memory import StateSpans, check_apart, check_writable, share, sharing


def drawn(dice: random.Random, memory: torch.Tensor) -> torch.Tensor:
    """A strided part of the memory."""
    sizes = [dice.randint(1, 4) for _ in range(dice.randint(1, 3))]
    strides = [dice.choice((1, 2, 3, 4, 6, 8, 12)) for _ in sizes]
    extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return memory.as_strided(sizes, strides, dice.randrange(len(memory) - extent))


def test_parts_share_what_writing_to_one_shows_in_the_other() -> None:
    dice, memory, seen = random.Random(0), torch.zeros(120), set()
    for _ in range(400):
        one, other = drawn(dice, memory), drawn(dice, memory)
        memory.zero_()
        one.fill_(1)
        want = bool(other.any())
        assert share(one, other) == share(other, one) == want
        assert sharing([one, other]) == (frozenset({(0, 1)}) if want else frozenset())
        seen.add(want)
    assert seen == {True, False}


def test_large_tensors_that_lie_between_each_other_share_nothing() -> None:
    memory = torch.empty(4096, 1024)
    assert not share(memory[:, :512], memory[:, 512:])
    assert share(memory[:, :513], memory[:, 512:])
    assert not share(memory[:2048], memory[2048:])


def _add_to_first(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * y


def test_inputs_that_lie_between_each_other_may_be_written_to() -> None:
    """As keys and values that stand side by side: also those of the example."""

    def pair() -> tuple[Tensor, Tensor]:
        memory = torch.arange(12.0).reshape(2, 6)
        return memory[:, ::2], memory[:, 1::2]

    fast = anabranch.compile(_add_to_first, pair(), target="cpu", cache_dir=None, search="none")
    ours, theirs = pair(), pair()
    assert torch.equal(fast(*ours), _add_to_first(*theirs))
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_memory_of_others_is_seen() -> None:
    """Two tensors of one numpy array have storages of their own."""
    numpy = torch.zeros(8).numpy()
    one, other = torch.from_numpy(numpy), torch.from_numpy(numpy)[4:]
    assert share(one, other) and not share(one[:4], other)


def test_who_is_written_to_shares_with_nobody() -> None:
    x = torch.zeros(6)
    check_apart([x, x], ["a", "b"], [])
    check_apart([x[:3], x[3:]], ["a", "b"], [0])
    with pytest.raises(InputError, match="inputs b and a share memory, and the model writes to b"):
        check_apart([x, x[1:]], ["a", "b"], [1])
    with pytest.raises(InputError, match="writes to a, whose elements share memory"):
        check_apart([torch.zeros(1).expand(3)], ["a"], [0])


def test_inputs_share_nothing_with_states() -> None:
    memory = torch.zeros(8, 8)
    spans = StateSpans({"k": memory[:, :2], "v": memory[:, 2:4], "n": torch.zeros(())})
    spans.check([memory[:, 4:], torch.zeros(3), torch.zeros(0)], ["x", "y", "z"])
    for part, name in ((memory[3, 1:2], "k"), (memory[:, 3], "v"), (memory[2:3], "k")):
        with pytest.raises(InputError, match=f"input y shares memory with {name}, and the model"):
            spans.check([torch.zeros(3), part], ["x", "y"])


def test_who_may_not_be_written_to_is_told_so() -> None:
    leaf, names = torch.zeros(3, requires_grad=True), ["a", "b"]
    with torch.inference_mode():
        made = torch.zeros(3)
        check_writable([made, leaf], names, [0, 1])
    with torch.no_grad():
        check_writable([leaf, made], names, [0])
    check_writable([leaf * 1, leaf], names, [0])
    for tensor, why in ((leaf, "is a leaf"), (leaf[1:], "is a leaf"), (made, "inference mode")):
        with pytest.raises(InputError, match=f"writes to b, which .*{why}"):
            check_writable([torch.zeros(3), tensor], names, [0, 1])
