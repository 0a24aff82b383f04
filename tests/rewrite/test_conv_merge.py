"""Merged convolutions compute what the single ones do; what cannot be merged says why."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds, worst
from torch import nn

from anabranch.ir import ops, tolerances
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import random_inputs
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.rewrite.conv_merge import merge
from anabranch.rewrite.conv_siblings import siblings
from anabranch.trace import Trace

Forms = list[tuple[int, int | tuple[int, int], int, int | tuple[int, int]]]


class Branches(nn.Module):
    """Convolutions of one input, as (channels, kernel, stride, padding), each with what follows."""

    def __init__(
        self,
        forms: Forms,
        relu: bool = True,
        join: bool = True,
        bias: Sequence[bool] = (True,) * 4,
        groups: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(6, channels, kernel, stride, padding, dilation, groups, biased)
            for (channels, kernel, stride, padding), biased in zip(forms, bias, strict=False)
        )
        self.relu, self.join = relu, join

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        found = [conv(x) for conv in self.convs]
        if self.relu:
            found = [torch.relu(y) for y in found]
        if self.join:
            return torch.cat(found, 1) * 2
        return tuple(y * (i + 2) for i, y in enumerate(found))


def graph_of(model: nn.Module, batch: int = 1, size: int = 9, kind: str = "cpu") -> Graph:
    return simplified(captured(model, torch.randn(batch, 6, size, size)), kind)


def simplified(graph: Graph, kind: str) -> Graph:
    return simplify(graph, Stepper(Trace()), Options.read({"tf32": True}, environment=False), kind)


def all_merged(graph: Graph) -> Graph:
    """Every family merged: sound, equal in double precision, and in its own within rounding."""
    after = equal(graph, merge(graph, siblings(graph, Trace())))
    inputs = random_inputs(graph, 1)
    own, wide = eval_graph(graph, inputs), eval_graph(graph, inputs, precision=torch.float64)
    for error, allowed in tolerances.compare(eval_graph(after, inputs), own, wide, False):
        assert error <= allowed
    return after


MERGE: dict[str, Forms] = {
    "1x1 + 3x3": [(4, 1, 1, 0), (8, 3, 1, 1)],
    "1x3 + 3x1": [(5, (1, 3), 1, (0, 1)), (3, (3, 1), 1, (1, 0))],
    "1x1 + 3x3 + 5x5": [(1, 1, 1, 0), (8, 3, 1, 1), (3, 5, 1, 2)],
    "equal": [(4, 3, 1, 1), (4, 3, 1, 1), (4, 3, 1, 1)],
    "stride 2": [(4, 1, 2, 0), (8, 3, 2, 1)],
    "2x2 + 4x4, stride 2": [(4, 2, 2, 0), (8, 4, 2, 1)],
}


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("batch", "size"), [(1, 9), (3, 8)])
@pytest.mark.parametrize("name", MERGE)
def test_equal(name: str, batch: int, size: int, relu: bool, join: bool) -> None:
    """Any size of input, both layouts, batches above one, with and without a relu."""
    branches = captured(Branches(MERGE[name], relu, join), torch.randn(batch, 6, size, size))
    for kind in ("cpu", "cuda"):
        graph = simplified(branches, kind)
        after = all_merged(graph)
        assert kinds(after).count("convolution") == 1
        table = types(after)
        views = [n for n in after.nodes if n.op == "aten.slice.Tensor"]
        assert len(views) == (0 if join else len(MERGE[name]))
        assert all(ops.is_view(node, table) for node in views)
        assert "cat" not in kinds(after) and kinds(after).count("relu") == int(relu)
        conv = next(n for n in after.nodes if n.op == "aten.convolution.default")
        assert ops.channels_last(conv.type) == (kind == "cuda")


def test_every_part_of_a_family() -> None:
    graph = graph_of(Branches(MERGE["1x1 + 3x3 + 5x5"], join=False), batch=2)
    (family,) = siblings(graph, Trace())
    for count in (2, 3):
        for members in combinations(family, count):
            after = equal(graph, merge(graph, [members]))
            assert kinds(after).count("convolution") == 4 - count
    assert merge(graph, []) is graph


def test_biases_that_are_missing_are_zero() -> None:
    for given in ((True, False), (False, False)):
        after = all_merged(graph_of(Branches(MERGE["1x1 + 3x3"], bias=given)))
        conv = next(n for n in after.nodes if n.op == "aten.convolution.default")
        assert (conv.args[2] is not None) == any(given)


def test_weights_and_their_digests() -> None:
    """The smaller kernel in the middle of zeros; digests name the content of what was read."""
    model = Branches(MERGE["1x1 + 3x3"])
    with torch.no_grad():
        after = all_merged(graph_of(model))
        weight = next(c for c in after.constants if len(c.type.shape) == 4)
        assert weight.value is not None
        small, large = (conv.get_parameter("weight") for conv in model.convs)
        assert torch.equal(weight.value[:4], nn.functional.pad(small, (1, 1, 1, 1)))
        assert torch.equal(weight.value[4:], large)
        assert len(after.constants) == 2 and not weight.value.requires_grad
        again = all_merged(graph_of(model))
        assert {c.digest for c in again.constants} == {c.digest for c in after.constants}
        small.mul_(2)
        other = all_merged(graph_of(model))
    assert weight.digest not in {c.digest for c in other.constants}


def test_some_are_concatenated_with_others() -> None:
    """The second and third stand together in the concatenation, the first does not."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Branches(MERGE["equal"], join=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b, c = self.inner(x)
            return torch.cat([torch.relu(c), x, a.abs()], 1) + torch.cat([a, x, b], 1)

    graph = graph_of(Mixed(), batch=2)
    after = all_merged(graph)
    assert kinds(after).count("cat") == 2

    class Straight(Mixed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b, c = (torch.relu(conv(x)) for conv in self.inner.convs)
            return torch.cat([x, b, a], 1).sum(1) + c.sum(1)

    after = all_merged(graph_of(Straight(), batch=2))
    cat = next(node for node in after.nodes if node.op == "aten.cat.default")
    assert len(cat.uses) == 2, "b and a are read as one slice"


REFUSED = {
    "their strides are 1x1 and 2x2": Branches([(4, 1, 1, 0), (4, 1, 2, 0)], join=False),
    "their results are 9x9 and 7x7": Branches([(4, 3, 1, 1), (4, 3, 1, 0)], join=False),
    "the windows 1x1 padded by 0x0 and 2x2 padded by 0x0 do not": Branches(
        [(4, 1, 2, 0), (4, 2, 2, 0)], join=False
    ),
    "the windows 2x2 padded by 0x0 and 3x3 padded by 1x1 do not": Branches(
        [(4, 2, 2, 0), (4, 3, 2, 1)], join=False
    ),
    "it has 2 groups": Branches([(4, 3, 1, 1), (4, 3, 1, 1)], groups=2),
    "it is dilated": Branches([(4, 3, 1, 2), (4, 3, 1, 2)], dilation=2),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    """At stride 2 and an even size the windows of 1 and 2 give results of one size, from others'
    centres."""
    trace = Trace()
    graph = graph_of(REFUSED[why], size=8 if "windows" in why else 9)
    assert siblings(graph, trace) == []
    assert any(why in event.why for event in trace.events if event.kind == "refused")


def test_refused_for_what_follows() -> None:
    class Half(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (conv(x) for conv in self.convs)
            return torch.relu(a) + torch.sigmoid(b)

    class Returned(Branches):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.relu(conv(x)) for conv in self.convs)

    class Apart(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (conv(x + i) for i, conv in enumerate(self.convs))
            return torch.mul(a, b)

    for model, why in ((Half, "no relu of its own"), (Returned, "is returned"), (Apart, "")):
        trace = Trace()
        assert siblings(graph_of(model([(4, 1, 1, 0), (4, 3, 1, 1)])), trace) == []
        assert any(why in e.why for e in trace.events if e.kind == "refused") or not why


def test_members_that_do_not_fit() -> None:
    graph = graph_of(Branches([(4, 1, 1, 0), (4, 3, 1, 1), (4, 1, 2, 0), (4, 3, 2, 1)], join=False))
    first, second = siblings(graph, Trace())
    assert len(first) == len(second) == 2
    with pytest.raises(ValueError, match="their strides are 1x1 and 2x2"):
        merge(graph, [(first[0], second[0])])
    assert kinds(equal(graph, merge(graph, [first, second]))).count("convolution") == 2


def test_one_merge_reads_a_slice_of_another() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Branches([(6, 1, 1, 0), (4, 3, 1, 1)], join=False)
            self.second = Branches([(3, 1, 1, 0), (4, 3, 1, 1)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (torch.relu(conv(x)) for conv in self.first.convs)
            return torch.add(self.second(a).sum(), b.sum())

    for kind in ("cpu", "cuda"):
        graph = graph_of(Two(), batch=2, kind=kind)
        after = all_merged(graph)
        assert kinds(after).count("convolution") == 2


def test_a_reader_that_takes_no_slice() -> None:
    """A view of two axes as one is not possible in a slice; as a copy it is, and says so."""

    class Viewed(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (torch.relu(conv(x)) for conv in self.convs)
            return a.view(a.shape[0], -1).sum(1) + b.flatten(0, 1).sum()

    graph = graph_of(Viewed([(4, 1, 1, 0), (4, 3, 1, 1)]), batch=3)
    after = all_merged(graph)
    assert (
        worst(
            eval_graph(graph, random_inputs(graph, 0)),
            eval_graph(after, random_inputs(graph, 0)),
        )
        < 1e-5
    )


def test_who_depends_on_strides_finds_them_as_they_were() -> None:
    """Seen through a view too. At a batch of one a slice of NCHW has the strides it had."""

    class Strided(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (torch.relu(conv(x)) for conv in self.convs)
            seen = a.transpose(0, 1).view(torch.int32)
            return torch.add(seen.sum(), b.sum())

    graph = graph_of(Strided(MERGE["1x1 + 3x3"]), batch=2)
    with pytest.raises(ValueError, match=r"must find %.* as it was"):
        merge(graph, siblings(graph, Trace()))
    kept = graph_of(Strided(MERGE["1x1 + 3x3"]), batch=1)
    assert kinds(merge(kept, siblings(kept, Trace()))).count("convolution") == 1


def test_what_as_strided_reads_is_found_in_a_slice() -> None:
    """It is views of the value that owns its elements, and those follow."""

    class Strided(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (torch.relu(conv(x)) for conv in self.convs)
            seen = a.transpose(0, 1).as_strided((4, 2), (1, 8), 5)
            return torch.cat([seen.flatten(), b.flatten()])

    model, x = Strided(MERGE["1x1 + 3x3"]), torch.randn(2, 6, 9, 9)
    graph = simplified(captured(model, x), "cpu")
    (found,) = eval_graph(all_merged(graph), [x])
    assert torch.allclose(found, model(x), atol=1e-5)
