"""Recurrences of any length: one or several states, any axis of time, both directions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.kernels.dfg.test_concat_stores import recurrence
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.loops import average, graph_of, hidden
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled
from torch import Tensor

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.text import parse_graph
from anabranch.kernels.dfg.recurrence import LEAST_STEPS, Recurrence
from anabranch.kernels.triton.codegen import program, variants, why_none
from anabranch.kernels.triton.recurrence import found_in

VARIANTS = (
    *("recurrence:32.u4.w1", "recurrence:64.u16.w2", "recurrence:32.u1.w1"),
    *("recurrence:32.u4.a.w1", "recurrence:64.u1.a.w2"),
)


def loop(graph: Graph) -> Recurrence:
    found = found_in(graph)
    assert isinstance(found, Recurrence), found
    return found


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(
    st.lists(st.sampled_from([1, 2, 5, 37]), min_size=0, max_size=2),
    st.integers(LEAST_STEPS, 51),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.booleans(),
    st.sampled_from(VARIANTS),
)
def test_any_axis_of_time_in_both_directions(
    rest: list[int],
    steps: int,
    dim: int,
    back: bool,
    dtype: torch.dtype,
    turned: bool,
    variant: str,
) -> None:
    dim = min(dim, len(rest))
    shape = (*rest[:dim], steps + 2, *rest[dim:])
    x = torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))) if turned else None
    x = (torch.randn(shape) if x is None else x).to(dtype)
    graph = graph_of(lambda x: average(x, dim, back), x)
    assert loop(graph).step.extent >= steps
    check(graph, [variant], [x])


@pytest.mark.parametrize(
    ("steps", "dtype"),
    [(LEAST_STEPS, torch.float32), (LEAST_STEPS + 1, torch.float16)],
)
def test_two_states(steps: int, dtype: torch.dtype) -> None:
    gates = [torch.randn(2, steps, 19).to(dtype) for _ in range(3)]
    states = [torch.randn(2, 19).to(dtype) for _ in range(2)]
    graph = graph_of(hidden, *gates, *states)
    assert len(loop(graph).states) == 2
    check(graph, VARIANTS if dtype == torch.float32 else VARIANTS[1::2], [*gates, *states])


def test_the_last_state_alone() -> None:
    """No result says where the steps are: they look alike."""

    def last(x: Tensor, a: Tensor, c: Tensor) -> Tensor:
        for t in range(x.shape[1]):
            c = torch.sigmoid(a) * c + x[:, t] * (1 - torch.sigmoid(a))
        return torch.relu(c) * 3

    x, a, c = torch.randn(3, 53, 7), torch.randn(7), torch.randn(3, 7)
    graph = graph_of(last, x, a, c)
    found = loop(graph)
    assert not found.each and len(found.after) == 1
    check(graph, VARIANTS, [x, a, c])


def test_from_zero_and_with_what_was_before() -> None:
    """First steps that differ stand in front of the loop; the last input is carried as well."""

    def shifted(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        before, c, found, sums = torch.zeros_like(x[0]), torch.zeros_like(x[0]), [], []
        for one in x.unbind(0):
            mixed = m * one + (1 - m) * before
            c, before = torch.maximum(c * 0.9, mixed), one
            found.append(c + mixed)
            sums.append(c)
        return torch.stack(found), torch.stack(sums, 1)

    x, m = torch.randn(41, 4, 6), torch.rand(6)
    graph = graph_of(shifted, x, m)
    check(graph, VARIANTS[1:4:2], [x, m])


def test_two_layers_that_follow_each_other() -> None:
    """The second reads the steps of the first as they are made."""
    x = torch.randn(40, 3, 9)
    graph = graph_of(lambda x: average(torch.tanh(average(x, 0)), 0), x)
    assert len(loop(graph).states) == 2
    check(graph, VARIANTS[::2], [x])


def test_parts_that_are_slices_and_joined_by_cat() -> None:
    def slices(x: Tensor) -> Tensor:
        c, found = x[:, :1], []
        for t in range(1, x.shape[1]):
            c = c * 0.5 + x[:, t : t + 1].abs()
            found.append(c)
        return torch.cat(found, 1)

    x = torch.randn(3, 50, 5)
    graph = graph_of(slices, x)
    check(graph, VARIANTS, [x])


def test_integers_and_truths() -> None:
    """How often something was seen without a break, and whether it ever was."""

    def counts(x: Tensor) -> tuple[Tensor, Tensor]:
        run, ever, found = torch.zeros_like(x[0]).long(), x[0] > 99, []
        for one in x:
            run = torch.where(one > 0, run + 1, 0)
            ever = ever | (run > 3)
            found.append(run)
        return torch.stack(found), ever

    x = torch.randn(45, 13)
    graph = graph_of(counts, x)
    assert {state.held.dtype for state in loop(graph).states} == {torch.int64, torch.bool}
    check(graph, VARIANTS, [x])


def test_of_two_steps_before_and_at_other_places() -> None:
    """A state of two steps ago is one more state, and so is the state at another place."""

    def mirrored(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, found = x[0], x[1], []
        for one in x[2:].unbind(0):
            a, b = b, 0.5 * b.transpose(-1, -2) + 0.3 * a + one * one[:, :1]
            found.append(b)
        return torch.stack(found), a

    x = torch.randn(40, 5, 5)
    graph = graph_of(mirrored, x)
    assert len(loop(graph).states) > 2
    check(graph, VARIANTS, [x])


def test_what_is_padded_and_states_that_are_broadcast() -> None:
    """Steps outside of what is there read nothing; a state may be smaller than what is stored."""

    def padded(x: Tensor, g: Tensor) -> Tensor:
        wide = torch.nn.functional.pad(x, (0, 0, 2, 3))
        c, found = torch.zeros_like(g[:, 0]), []
        for t in range(wide.shape[1]):
            c = c * 0.9 + g[:, t % 30]
            found.append(wide[:, t] * torch.tanh(c))
        return torch.stack(found, 1)

    def broadcast(x: Tensor, g: Tensor) -> Tensor:
        c, found = torch.zeros_like(g[:, 0]), []
        for t in range(x.shape[1]):
            c = c * 0.9 + g[:, t]
            found.append(x[:, t] * torch.tanh(c))
        return torch.stack(found, 1)

    x, g = torch.randn(2, 38, 6), torch.randn(2, 38, 1)
    graph = graph_of(broadcast, x, g)
    assert loop(graph).step.extent >= 36
    check(graph, VARIANTS, [x, g])
    assert isinstance(found_in(graph_of(padded, x, g)), Refused)


def test_text_is_no_longer_for_more_steps() -> None:
    few, many = (parse_graph(recurrence(steps, 64, "f16")) for steps in (64, 256))
    texts = [program(body, "recurrence:64.u16.w2").text for body in (few, many)]
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())
    assert any(v.template == "recurrence" for v in variants(many, gpu()))
    assert not any(v.template == "pointwise" for v in variants(many, gpu()))
    first = texts[1].index("for block in range(0, 16):")
    loop = texts[1][first:]
    assert loop.rindex("tl.load") < loop.index("tl.store"), "all is read before the first step"


def test_compiles_for_gpus_that_are_not_there(tmp_path: Path) -> None:
    """All that a block of steps reads is under way before it stores, nothing is spilled."""
    pytest.importorskip("triton")
    body = parse_graph(recurrence(128, 512, "f16"))
    for variant in variants(body, gpu())[:2]:
        found = compiled(program(body, variant), 80, tmp_path)
        stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
        assert stack <= SPILLED and not local, found["usage"]
        order = re.findall(r"\b(ld|st)\.global", found["ptx"])
        assert "".join(order).replace("ldst", "ld st").count(" ") == 1, variant


REFUSED = {
    "no equal strides": lambda x: steps_of(x[torch.arange(79) ** 2 % 79]),
    "differ": lambda x: steps_of(x, lambda t: 1.0 / (t + 1)),
    "nothing is carried": lambda x: torch.stack([torch.relu(one) for one in x.unbind(0)]),
    "different things": lambda x: steps_of(x, after=lambda c, t: c.tanh() if t % 2 else c),
    "neither the first nor the last": lambda x: steps_of(x, middle=True),
}


def steps_of(
    x: Tensor,
    factor: Callable[[int], float] = lambda t: 0.5,
    after: Callable[[Tensor, int], Tensor] = lambda c, t: c,
    middle: bool = False,
) -> object:
    c, found = torch.zeros_like(x[0]), []
    for t, one in enumerate(x.unbind(0)):
        c = after(c * factor(t) + one, t)
        found.append(c)
    return (torch.stack(found), found[75] * 2) if middle else torch.stack(found)


def test_few_steps_are_unrolled() -> None:
    body = read(recurrence(LEAST_STEPS - 1, 8))
    assert all(variant.template == "pointwise" for variant in variants(body, gpu()))
    assert found_in(body) == Refused("it has no steps")


@pytest.mark.parametrize("why", [w for w in REFUSED if w != "no equal strides"])
def test_refusals(why: str) -> None:
    found = found_in(graph_of(REFUSED[why], torch.randn(79, 5)))
    said = {"differ": "different things"}.get(why, why)
    assert isinstance(found, Refused) and said in found.sentence


def test_why_no_template_writes_a_long_body() -> None:
    graph = graph_of(lambda x: steps_of(x, lambda t: 1.0 / (t + 1)), torch.randn(320, 5))
    assert not variants(graph, gpu()) and "different things" in why_none(graph)
