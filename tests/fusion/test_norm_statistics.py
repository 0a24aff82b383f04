"""Sums of rows run with the contraction that multiplies these rows, if nothing forbids it."""

from __future__ import annotations

import torch
from tests.rewrite.graphs import captured, equal
from tests.rewrite.samples import SAMPLES
from torch import Tensor, nn
from torch.nn import functional

from anabranch.fusion.partition import partition
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.protocols import A_LARGE_GPU
from anabranch.ir.tolerances import compare
from anabranch.options import Options
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.rules import linear_after_norm
from anabranch.rewrite.simplify import simplify
from anabranch.search.cost.task_cuts import without_constants
from anabranch.trace import Trace


class Block(nn.Module):
    """The second half of a transformer's layer, and who makes its rows; `post`: as BERT has it,
    with the normalised rows added to what is made of them."""

    def __init__(self, post: bool, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.post, self.norm = post, norm(64)
        self.first, self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        normal = self.norm(x)
        made = self.down(functional.gelu(self.up(normal)))
        return torch.add(normal if self.post else x, made)


def rewritten(graph: Graph) -> Graph:
    """With every norm before a linear as arithmetic after it."""
    for rule in linear_after_norm.RULES:
        while (match := next(matches(graph, rule), None)) is not None:
            graph = cse(apply(graph, rule, match), Trace())
    return without_constants(graph)


def tasks(graph: Graph) -> list[list[str]]:
    """The operators of each task, sorted."""
    cut = partition(graph, Trace(), A_LARGE_GPU, pointwise=True)
    return [sorted({node.op.split(".")[1] for node in task.body.nodes}) for task in cut.tasks]


MADE = ["_to_copy", "add", "linear", "mean", "mul", "reshape", "sub", "unsqueeze"]
READ = ["_to_copy", "add", "gelu", "linear", "mean", "mul", "rsqrt", "sub"]


def test_a_norm_before_a_linear_is_no_launch() -> None:
    for post, last in (
        (False, ["add", "linear"]),
        (True, ["_to_copy", "add", "linear", "mul", "sub"]),
    ):
        graph = captured(Block(post).eval().half(), torch.rand(8, 64).half())
        assert tasks(rewritten(graph)) == [MADE, READ, last]


def test_so_is_one_by_squares_alone() -> None:
    graph = captured(Block(False, nn.RMSNorm).eval(), torch.rand(8, 64))
    made, read = ["add", "linear", "mean", "mul", "reshape"], ["add", "gelu", "linear", "mean"]
    assert tasks(rewritten(graph)) == [made, [*read, "mul", "rsqrt"], ["add", "linear"]]


def test_so_is_one_that_is_written_out() -> None:
    """In half precision, as models of language have it: what the first kernel makes is summed
    there, what it is given by one before it."""
    model, args = SAMPLES["halved"]
    graph = simplify(captured(model.eval(), *args), Stepper(Trace()), Options())
    found = tasks(rewritten(graph))
    assert [sum(op in ops for op in ("linear", "mean")) for ops in found] == [1, 2, 2]


def test_what_others_read_of_rows_are_results() -> None:
    graph = captured(Block(True).eval().half(), torch.rand(8, 64).half())
    cut = partition(rewritten(graph), Trace(), A_LARGE_GPU, pointwise=True)
    shapes = [
        sorted(types(task.body)[ref.name].shape for ref in task.body.outputs) for task in cut.tasks
    ]
    assert shapes == [[(8, 2), (8, 2), (8, 64)], [(8, 1), (8, 1), (8, 128)], [(8, 64)]]


class Twice(nn.Module):
    """Means of halves of rows, and the halves themselves, which somebody wants."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept, self.first, self.second = kept, nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = torch.relu(self.first(x))
        halves = x.reshape(8, 2, 32) * 2
        means = halves.mean(-1)
        return torch.add(
            self.second(x), means.sum(-1, keepdim=True)
        ), halves if self.kept else means


def test_only_a_few_numbers_of_each_row_are_results_beside_it() -> None:
    for kept, count in ((False, 2), (True, 4)):
        graph = without_constants(captured(Twice(kept).eval(), torch.rand(8, 64)))
        assert len(tasks(graph)) == count


class Between(nn.Module):
    """What is known of the rows scales what is multiplied by them in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 16), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 0.1)
        scaled = torch.mul(self.first(x), scale)
        return torch.mul(scaled, torch.softmax(self.second(scaled), -1).sum())


class Others(nn.Module):
    """Sums of other, longer rows than those that are multiplied, and of both."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both, self.linear = both, nn.Linear(32, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        rows = x * y if self.both else y
        return torch.mul(self.linear(x), rows.mean(-1, keepdim=True))


def test_other_rows_are_summed_apart() -> None:
    for both in (False, True):
        model, y = Others(both).eval(), torch.rand(8, 32 if both else 300)
        found = tasks(without_constants(captured(model, torch.rand(8, 32), y)))
        assert sum("mean" in ops and "linear" in ops for ops in found) == 0


class Crossed(nn.Module):
    """Two products, each scaled by what is known of the rows of both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.mean(-1, keepdim=True), y.mean(-1, keepdim=True)
        first = torch.mul(torch.mul(self.first(x), a), b)
        return first, torch.mul(torch.mul(self.second(y), b), a)


def test_all_is_computed_once_and_in_order() -> None:
    x = torch.rand(8, 32)
    for model, given in ((Between(), [x]), (Crossed(), [x, x])):
        graph = without_constants(captured(model.eval(), *given))
        cut = partition(graph, Trace(), A_LARGE_GPU, pointwise=True)
        names = [node.name for task in cut.tasks for node in task.body.nodes]
        assert len(names) == len(set(names))
        there = {value.name for value in cut.inputs} | {held.name for held in cut.constants}
        for task in cut.tasks:
            assert set(task.reads) <= there | {constant.name for constant in task.body.constants}
            there |= set(task.writes)


def test_rows_far_from_0_cancel_in_no_product() -> None:
    """Where the product is rounded before the mean is taken off."""
    torch.manual_seed(0)
    x = (torch.randn(16, 64) + 100).half()
    graph, rule = captured(Block(True).eval().half(), x), linear_after_norm.RULES[0]
    after = apply(graph, rule, next(matches(graph, rule)))
    now, own = eval_graph(after, [x]), eval_graph(graph, [x])
    truth = eval_graph(graph, [x], precision=torch.float64)
    assert all(error <= allowed for error, allowed in compare(now, own, truth))


def test_nothing_changes_but_the_rounding() -> None:
    for post in (False, True):
        graph = captured(Block(post).eval().half(), torch.rand(8, 64).half())
        rule = linear_after_norm.RULES[0]
        equal(graph, apply(graph, rule, next(matches(graph, rule))), tolerance=1e-9)
