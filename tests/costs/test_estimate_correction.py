"""Estimates on the scale of what is known: the nearest likeness counts, else the next."""

from __future__ import annotations

import pytest
from tests.rewrite.graphs import read

from anabranch.costs.estimate_correction import Corrected
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task


def convolution(taps: int, width: int, channels: int = 16) -> Task:
    pad, shape = taps // 2, f"f32[1,{width},8,8]"
    return Task(
        "c",
        read(
            f"graph c {{\n  input %x: f32[1,{channels},8,8]\n"
            f"  const %w: f32[{width},{channels},{taps},{taps}] = w\n"
            f"  %a: {shape} = aten.convolution.default(%x, %w, None, [1, 1], [{pad}, {pad}], "
            "[1, 1], False, [0, 0], 1)\n  return %a\n}"
        ),
    )


def relu() -> Task:
    text = "graph r {\n  input %x: f32[4]\n  %r: f32[4] = aten.relu.default(%x)\n  return %r\n}"
    return Task("r", read(text))


def known(task: Task, off: float) -> tuple[Task, Cost, Cost]:
    return task, Cost(off * 4, "recorded"), Cost(4.0, "estimated")


def test_the_nearest_likeness_says_how_far_an_estimate_is_off() -> None:
    seen = [known(convolution(3, 8), 1.5), known(convolution(1, 8), 1.1), known(relu(), 0.5)]
    scale, guess = Corrected(seen), Cost(10.0, "estimated", 1.0)
    assert scale.of(convolution(3, 32), guess) == Cost(15.0, "estimated", 1.5)
    assert scale.of(convolution(1, 32), guess).us == pytest.approx(11)
    # Another window: all convolutions of the input.
    assert scale.of(convolution(5, 8), guess).us == pytest.approx(13)
    assert scale.of(relu(), guess).us == 5.0


def test_what_is_alike_in_little_takes_a_few_to_say_something() -> None:
    """Of another input all convolutions tell, if there are three, else all that is known."""
    seen = [known(convolution(3, 8), 1.5), known(convolution(1, 8), 1.1)]
    other, guess = convolution(3, 8, 32), Cost(10.0, "estimated", 1.0)
    assert Corrected(seen).of(other, guess) == guess
    assert Corrected([*seen, known(relu(), 0.5)]).of(other, guess).us == pytest.approx(11)
    seen += [known(convolution(3, 8, 4), 1.2), known(relu(), 0.5)]
    assert Corrected(seen).of(other, guess).us == pytest.approx(12)


def test_without_anything_known_an_estimate_stays_what_it_is() -> None:
    guess = Cost(10.0, "estimated")
    assert Corrected([]).of(relu(), guess) == guess
    assert Corrected([known(convolution(3, 8), 1.5)]).of(relu(), guess) == guess


@pytest.mark.parametrize(
    ("off", "error"),
    [
        ((), 0.0),
        ((1.5, 1.2), 0.0),  # too few to tell
        ((1.5, 1.5, 1.5), 0.0),  # which is one task in three places
        ((1.0, 1.0, 1.1, 1.2, 1.3), 1.3 / 1.05 - 1),  # the others of 1.3 are 1.05 in the median
        ((2.0, 2.1, 2.2, 2.3), 2.3 / 2.1 - 1),  # that all take twice as long is no error
        ((2.0, 2.1, 2.2, 2.3, 9.0), 1 - 2.0 / 2.25),  # one of five is far off
        ((2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 9.0), 1 - 2.0 / 2.4),
    ],
)
def test_the_known_say_how_far_corrected_estimates_are_off(
    off: tuple[float, ...], error: float
) -> None:
    found = Corrected([known(convolution(3, 8), each) for each in off]).error
    assert found == pytest.approx(error)


def test_how_far_estimates_are_off_is_told_by_those_of_others_alone() -> None:
    """Where none of the others tells, that an estimate was corrected by nothing is no error of it;
    other tasks that are off by just as much do tell."""
    unlike = [known(convolution(3, 8, channels), 2.0 + channels / 80) for channels in (8, 16, 24)]
    assert Corrected(unlike).error == 0.0  # the two others are too few, and too unlike
    fourth = known(convolution(3, 8, 32), 2.4)
    assert Corrected([*unlike, fourth]).error == pytest.approx(2.4 / 2.2 - 1)
    equal = [
        (convolution(3, 8, 8 * n), Cost(2.0 * n, "recorded"), Cost(1.0 * n, "estimated"))
        for n in range(1, 7)
    ]
    assert Corrected(equal).error == 0.0
    assert Corrected([*equal, known(convolution(3, 8, 80), 3.0)]).error == 0.0
    assert Corrected([*equal, *unlike[1:], fourth]).error > 0.0
