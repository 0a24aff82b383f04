"""Requests for a plan: inputs as users write them."""

from __future__ import annotations

import torch

from anabranch.compiled.request import request
from anabranch.frontend.surroundings import Surroundings

X = torch.ones(2)


def test_a_lone_tensor_is_one_argument() -> None:
    assert request(X).args == (X,) and request([X, 3]).args == (X, 3)
    assert request((X,)).kwargs == {} and request((X,), {"n": 1}).kwargs == {"n": 1}


def test_switches_are_those_of_now_unless_they_are_given() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        within = request(X).around
    assert within != request(X).around
    assert request(X, around=within).around is within and within != Surroundings()
