"""Steps as one recurrence: as models spell them, what is refused, whole networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.loops import written
from tests.rewrite.graphs import captured, equal, kinds
from tests.rewrite.searching import nodes
from torch import Tensor, nn

from anabranch.fusion import partition
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.rewrite.apply import apply_all
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import recurrences
from anabranch.rewrite.simplify import simplify
from anabranch.search.engine.global_scope import applied_globally
from anabranch.search.engine.global_scope import kinds as every
from anabranch.trace import Trace

RULE, OF_PARTS = recurrences.RULES
Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The next state by the state, a factor and a term."""


class Steps(nn.Module):
    """A state along the first axis, or another one, and what is read of it at each step."""

    def __init__(self, step: Step, read: Callable[[Tensor, Tensor], Tensor], axis: int = 0) -> None:
        super().__init__()
        self.step, self.read, self.axis = step, read, axis

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        c, found = torch.zeros_like(x.select(self.axis, 0)), list[Tensor]()
        for u, by in zip(x.unbind(self.axis), f.unbind(self.axis), strict=True):
            c = self.step(c, by, u)
            found.append(self.read(c, u))
        return torch.stack(found, self.axis)


def of(model: nn.Module, *args: Tensor) -> Graph:
    """Captured, or written down call by call where it has no weights, which is as good and takes a
    fifth of the time."""
    return captured(model, *args) if [*model.parameters()] else written(model, *args)


def simplified(graph: Graph) -> Graph:
    return simplify(graph, Stepper(Trace()), Options())


def rolled(model: nn.Module, *args: Tensor) -> Graph:
    graph = simplified(of(model, *args))
    return simplified(equal(graph, apply_all(graph, recurrences.RULES)))


def state(c: Tensor, u: Tensor) -> Tensor:
    return c


def gated(c: Tensor, u: Tensor) -> Tensor:
    return c.tanh() * u


SPELLED: dict[str, tuple[Step, Callable[[Tensor, Tensor], Tensor], Sequence[str]]] = {
    "factor and term": (lambda c, f, u: f * c + u, state, ["recurrence"]),
    "turned round": (lambda c, f, u: u + c * f, state, ["recurrence"]),
    "gates": (
        lambda c, f, u: f.sigmoid() * c + (1 - f.sigmoid()) * u,
        gated,
        ["sigmoid", "rsub", "mul", "recurrence", "tanh", "mul"],
    ),
    "less": (lambda c, f, u: u - f * c, state, ["mul", "recurrence"]),
    "lerp": (lambda c, f, u: torch.lerp(c, u, f), state, ["mul", "rsub", "recurrence"]),
    "lerp by a number": (lambda c, f, u: torch.lerp(u, c, 0.25), state, ["mul", "recurrence"]),
    "addcmul": (lambda c, f, u: torch.addcmul(u, f, c), state, ["recurrence"]),
    "a sum": (lambda c, f, u: c + f * u, gated, ["mul", "recurrence", "tanh", "mul"]),
    "two factors": (lambda c, f, u: f * (c + u) * 0.5, state, ["mul", "mul", "mul", "recurrence"]),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", SPELLED)
def test_as_models_spell_it(name: str, axis: int) -> None:
    step, read, left = SPELLED[name]
    x, f = torch.randn(5, 6, 4), torch.rand(5, 6, 4)
    graph = rolled(Steps(step, read, axis), x, f)
    assert kinds(graph) == list(left)


def test_two_states_that_know_nothing_of_each_other() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            a, b, found = x[0], f[0], list[Tensor]()
            for t in range(len(x)):
                a, b = a * f[t] + x[t], x[t] - b * f[t]
                found.append(a * b)
            return torch.stack(found)

    graph = rolled(Two(), torch.randn(6, 4), torch.rand(6, 4))
    assert kinds(graph).count("recurrence") == 2 and "stack" not in kinds(graph)


def test_one_decay_for_all() -> None:
    """Half of zeros is a constant, so the first step is none like the others."""
    model = Steps(lambda c, f, u: 0.5 * c + f * u, gated)
    graph = rolled(model, torch.randn(7, 4), torch.rand(7, 4))
    assert kinds(graph)[-4:] == ["recurrence", "cat", "tanh", "mul"]


def test_a_first_step_of_its_own() -> None:
    """Where there is no state before the first step, that is in front of the recurrence."""

    class Begun(nn.Module):
        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            found = [x[0]]
            for t in range(1, len(x)):
                found.append(found[-1] * f[t] + x[t])
            return torch.stack(found)

    graph = rolled(Begun(), torch.randn(6, 4), torch.rand(6, 4))
    assert "recurrence" in kinds(graph) and "cat" in kinds(graph)


class Mamba(nn.Module):
    """The scan of a mixer as transformers has it where there is no kernel for it (Gu and Dao, arXiv
    2312.00752, algorithm 2): a state of several numbers a channel, read through one column."""

    def __init__(self, channels: int, state: int, rank: int) -> None:
        super().__init__()
        self.sizes = [rank, state, state]
        self.project = nn.Linear(channels, sum(self.sizes), bias=False)
        self.times = nn.Linear(rank, channels)
        self.decay = nn.Parameter(torch.rand(channels, state))
        self.skip = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        times, into, out = torch.split(self.project(x.transpose(1, 2)), self.sizes, -1)
        times = nn.functional.softplus(self.times(times)).transpose(1, 2)[:, :, :, None]
        by = torch.exp(-torch.exp(self.decay)[None, :, None, :] * times)
        term = times * into[:, None, :, :] * x[:, :, :, None]
        state, found = x.new_zeros(len(x), x.shape[1], self.sizes[1]), list[Tensor]()
        for t in range(x.shape[2]):
            state = by[:, :, t, :] * state + term[:, :, t, :]
            found.append(torch.matmul(state, out[:, t, :].unsqueeze(-1))[:, :, 0])
        return torch.stack(found, -1) + x * self.skip[None, :, None]


def test_a_state_space_model_is_four_launches() -> None:
    """Both linears, the recurrence, and what is read of it; as spelled, some for each step."""
    graph = simplified(of(Mamba(24, 4, 3), torch.randn(2, 24, 33)))
    after = simplified(equal(graph, apply_all(graph, recurrences.RULES)))
    before, now = (
        len(partition(one, Trace(), gpu(132), True, True).tasks) for one in (graph, after)
    )
    assert before > 33 and now == 4
    assert not {"bmm", "stack"} & {*kinds(after)}


READS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Sequence[str]]] = {
    "sum": (lambda c, u: (c * u).sum(-1), ["recurrence", "mul", "sum"]),
    "mean": (lambda c, u: c.mean(0, keepdim=True), ["recurrence", "mean"]),
    "one place": (lambda c, u: c[:, 2], ["recurrence", "select"]),
    "a row": (lambda c, u: c[:1] @ u.t(), ["recurrence", "mul", "sum"]),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", READS)
def test_what_is_read_otherwise_than_element_by_element(name: str, axis: int) -> None:
    read, left = READS[name]
    model = Steps(SPELLED["factor and term"][0], read, axis)
    graph = rolled(model, torch.randn(5, 6, 4), torch.rand(5, 6, 4))
    moves = {"permute", "transpose", "unsqueeze", "reshape", "squeeze", "t", "slice", "unbind"}
    assert [kind for kind in kinds(graph) if kind not in moves] == list(left)


@pytest.mark.parametrize("order", [1, -1])
def test_the_other_direction(order: int) -> None:
    """From the last place to the first, the steps stacked as they come or as their places are."""

    class Back(nn.Module):
        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            c, found = torch.zeros_like(x[0]), list[Tensor]()
            for t in reversed(range(len(x))):
                c = f[t] * c + x[t]
                found.append(c)
            return torch.stack(found[::order])

    graph = rolled(Back(), torch.randn(6, 4), torch.rand(6, 4))
    assert sorted(kinds(graph)) == sorted(["flip", "flip", "recurrence", *["flip"] * (order < 0)])


@pytest.mark.parametrize("squeezed", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_steps_that_were_split(axis: int, squeezed: bool) -> None:
    class Split(nn.Module):
        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            steps = list(zip(*(torch.split(one, 1, axis) for one in (x, f)), strict=True))
            if squeezed:
                steps = [(u.squeeze(axis), by.squeeze(axis)) for u, by in steps]
            c, found = torch.zeros_like(steps[0][0]), list[Tensor]()
            for u, by in steps:
                c = by * c + u
                found.append(c)
            return torch.stack(found, axis) if squeezed else torch.cat(found, axis)

    graph = rolled(Split(), torch.randn(6, 5, 4), torch.rand(6, 5, 4))
    assert kinds(graph).count("recurrence") == 1 and len(kinds(graph)) <= 4, kinds(graph)


class Ends(nn.Module):
    """A loop along an axis, in one of two directions, whose last state is read as well."""

    def __init__(self, axis: int, order: int, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.axis, self.order, self.use = axis, order, use

    def forward(self, x: Tensor, f: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        found = list[Tensor]()
        for t in range(x.shape[self.axis])[:: self.order]:
            c = f.select(self.axis, t) * c + x.select(self.axis, t)
            found.append(c.tanh())
        return torch.stack(found[:: self.order], self.axis), self.use(c)


def everywhere(graph: Graph) -> Graph:
    """All steps of the graph as recurrences, as a search puts them."""
    chosen = [kind for rule in recurrences.RULES for kind in every(graph, [rule], "first")]
    found = applied_globally(graph, chosen, nodes)
    return simplified(equal(graph, found.graph))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "use", [lambda c: c, lambda c: c.view(-1), lambda c: c @ c.t()], ids=["kept", "flat", "read"]
)
def test_the_last_state_is_of_the_recurrence_too(
    axis: int, order: int, use: Callable[[Tensor], Tensor]
) -> None:
    args = torch.randn(6, 5, 4), torch.rand(6, 5, 4), torch.randn(5 if axis == 0 else 6, 4)
    graph = everywhere(simplified(of(Ends(axis, order, use), *args)))
    assert kinds(graph).count("recurrence") == 1
    assert not {"mul", "add"} & set(kinds(graph)), kinds(graph)


def test_a_last_state_that_another_loop_begins_with() -> None:
    """An encoder and a decoder."""

    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            c, there, back = torch.zeros_like(x[0]), list[Tensor](), list[Tensor]()
            for t in range(len(x)):
                c = f[t] * c + x[t]
                there.append(c)
            for t in range(len(y)):
                c = f[t] * c + y[t]
                back.append(c.tanh())
            return torch.stack(there), torch.stack(back), c

    args = torch.randn(6, 4), torch.randn(5, 4), torch.rand(6, 4)
    graph = everywhere(simplified(of(Two(), *args)))
    assert kinds(graph).count("recurrence") == 2
    assert not {"mul", "add"} & set(kinds(graph)), kinds(graph)


def test_a_state_on_the_way_keeps_its_steps() -> None:
    """Read elsewhere, it is computed as it was."""

    class Way(nn.Module):
        def forward(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
            c, found = torch.zeros_like(x[0]), list[Tensor]()
            for t in range(len(x)):
                c = f[t] * c + x[t]
                found.append(c)
            return torch.stack(found), found[2] * 2

    graph = everywhere(simplified(of(Way(), torch.randn(8, 4), torch.rand(8, 4))))
    assert kinds(graph).count("recurrence") == 1 and kinds(graph).count("add") <= 3


def test_numbers_that_meet_are_as_exact_as_python_has_them() -> None:
    model = Steps(lambda c, f, u: 0.7 * (c * -0.9) + u, gated)
    rolled(model, torch.randn(6, 4).double(), torch.rand(6, 4).double())  # equal to 1e-6 of fp64
    graph = simplified(of(model, torch.randn(6, 4).double(), torch.rand(6, 4).double()))
    equal(graph, apply_all(graph, recurrences.RULES), 1e-12)


PROMOTED: dict[str, tuple[Tensor, Tensor, Tensor]] = {
    "the state": (torch.randn(6, 4).half(), torch.rand(6, 4).half(), torch.randn(4)),
    "a number of each step": (torch.randn(6), torch.rand(6, 4).half(), torch.randn(4).half()),
    "the terms": (torch.randn(6, 4).half(), torch.rand(6, 4), torch.randn(4)),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_steps_of_several_types_are_left_alone(name: str) -> None:
    """What is promoted step by step is promoted otherwise as a whole."""

    class Promoted(nn.Module):
        def forward(self, x: Tensor, f: Tensor, c: Tensor) -> Tensor:
            found = list[Tensor]()
            for t in range(len(x)):
                c = f[t] * c + x[t]
                found.append(c)
            return torch.stack(found)

    graph = simplified(of(Promoted(), *PROMOTED[name]))
    assert not list(matches(graph, RULE))


def test_a_factor_that_is_a_number_is_not_rounded_to_half() -> None:
    model = Steps(lambda c, f, u: 0.9 * (c * 0.3) + u, state)
    args = torch.randn(6, 4).half(), torch.rand(6, 4).half()
    graph = simplified(of(model, *args))
    simplified(equal(graph, simplified(apply_all(graph, recurrences.RULES)), 1e-7))


@pytest.mark.parametrize("first", [(1,), (2, 4)])
def test_a_state_that_grows_at_its_first_step(first: tuple[int, ...]) -> None:
    class Grown(nn.Module):
        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            found = list[Tensor]()
            for t in range(len(x)):
                c = c * 0.9 + x[t]
                found.append(c)
            return torch.stack(found)

    rolled(Grown(), torch.randn(6, 4), torch.randn(first))


def test_nothing_of_nothing() -> None:
    graph = simplified(of(Steps(lambda c, f, u: f * c + u, state), *[torch.rand(6, 0)] * 2))
    assert not list(matches(graph, RULE))


def test_steps_that_are_parts_of_a_concatenation() -> None:
    class Joined(nn.Module):
        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            c, found = torch.zeros_like(x[:, 0]), list[Tensor]()
            for t in range(x.shape[1]):
                c = f[:, t] * c + x[:, t]
                found.append(c.tanh().unsqueeze(1))
            return torch.cat(found, 1)

    graph = rolled(Joined(), torch.randn(2, 7, 4), torch.rand(2, 7, 4))
    assert [kind for kind in kinds(graph) if kind != "unsqueeze"][:2] == ["recurrence", "tanh"]
    assert "cat" not in kinds(graph)


def test_outer_products_and_rows_of_a_state() -> None:
    """Linear attention, a gate for each row (Yang et al., arXiv 2312.06635, equation 3)."""

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
            c, found = q.new_zeros(len(q), q.shape[2], v.shape[2]), list[Tensor]()
            for t in range(q.shape[1]):
                c = g[:, t, :, None] * c + torch.einsum("bi,bj->bij", k[:, t], v[:, t])
                found.append(torch.einsum("bi,bij->bj", q[:, t], c))
            return torch.stack(found, 1)

    sizes = (4, 4, 6, 4)
    graph = rolled(Attention(), *(torch.rand(2, 8, n) for n in sizes))
    assert "recurrence" in kinds(graph) and not {"stack", "bmm"} & {*kinds(graph)}


def test_a_linear_of_each_step_is_one_of_all() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            c, found = torch.zeros_like(x[:, 0]), list[Tensor]()
            for t in range(x.shape[1]):
                c = f[:, t] * c + x[:, t]
                found.append(self.layer(c.tanh()))
            return torch.stack(found, 1)

    graph = rolled(Read(), torch.randn(2, 7, 4), torch.rand(2, 7, 4))
    assert kinds(graph) == ["recurrence", "tanh", "linear"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_states_that_are_no_floating_numbers(dtype: torch.dtype) -> None:
    """Floats would hold what is counted up to 2**24 alone."""
    model = Steps(lambda c, f, u: f * c + u, lambda c, u: c * 0.5)
    args = torch.ones(6, 4).to(dtype), torch.ones(6, 4).to(dtype)
    graph, said = simplified(of(model, *args)), list[str]()
    assert not list(matches(graph, RULE, lambda _, sentence: said.append(sentence)))
    assert said == ["its state is no floating number"]


REFUSED: dict[str, tuple[Step, str]] = {
    "tanh": (lambda c, f, u: torch.tanh(c) * f + u, "not multiplied and added to alone"),
    "squares": (lambda c, f, u: c * c + u, "not multiplied and added to alone"),
    "no state": (lambda c, f, u: f * u, "nothing is carried from one of its steps to the next"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_recurrence(name: str) -> None:
    step, why = REFUSED[name]
    graph = simplified(of(Steps(step, state), torch.randn(5, 3), torch.rand(5, 3)))
    said: list[str] = []
    assert not list(matches(graph, RULE, lambda _, sentence: said.append(sentence)))
    assert said and all(why in one for one in said)


def test_too_few_steps() -> None:
    step = SPELLED["factor and term"][0]
    graph = simplified(of(Steps(step, state), torch.randn(3, 4), torch.rand(3, 4)))
    assert not list(matches(graph, RULE))


def test_a_layer_of_sru_is_one_launch() -> None:
    """Its products and its steps; without the rule they are two."""
    network = ZOO["sru"]
    graph = simplified(of(network.build("tiny"), *network.inputs("tiny", 1)))
    after = simplified(equal(graph, apply_all(graph, recurrences.RULES)))
    before, now = (
        [task.name for task in partition(one, Trace(), gpu(132), True, True, 1).tasks]
        for one in (graph, after)
    )
    assert len(before) == 8 and len(now) == 5
    assert kinds(after).count("recurrence") == 4
