"""What a search pays for a graph is what it would take once it is simplified, copies included."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from tests.rewrite.graphs import read
from torch import nn

from anabranch.costs import Roofline
from anabranch.frontend.from_torch import capture
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.models.zoo import ZOO
from anabranch.models.zoo.googlenet import Inception
from anabranch.options import Options
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import ALL
from anabranch.rewrite.simplify import simplify
from anabranch.search.cost.estimator import Appraiser
from anabranch.search.cost.layout_copies import Copies
from anabranch.search.cost.task_cuts import TaskCutter, without_constants
from anabranch.search.engine.dynamic_programme import Settings, search
from anabranch.targets import resolve
from anabranch.trace import Trace

SPEC = resolve("sim:h200").spec
MERGE = "relu(conv(x, w, b)), relu(conv(x, v, c)) -> slices of relu(conv(x, cat(w, v), cat(b, c)))"


def simplified(graph: Graph) -> Graph:
    return simplify(graph, Stepper(Trace()), Options(), "cuda")


def price_of(graph: Graph, alpha: float) -> Appraiser:
    cuts, rough = TaskCutter(SPEC, True), Roofline(SPEC)
    tasks = cuts.tasks(without_constants(graph)).tasks
    return Appraiser([(task, rough.task(task)) for task in tasks], cuts, alpha)


def twins(n: int, m: int) -> Graph:
    """Two 1x1 convolutions of one input, of so many channels, each read by a 3x3."""
    conv = (
        "{} = aten.convolution.default({}, {}, None, [1, 1], [{p}, {p}], [1, 1], False, [0, 0], 1)"
    )
    lines = [
        "graph g {",
        "  input %x: f16[1,64,14,14]",
        *(f"  const %{w}: f16[{c},64,1,1] = {w}" for w, c in (("w", n), ("v", m))),
        *(f"  const %{w}: f16[64,{c},3,3] = {w}" for w, c in (("w3", n), ("v3", m))),
    ]
    for a, w, c in (("a", "w", n), ("b", "v", m)):
        kind, wide = f"f16[1,{c},14,14]", "f16[1,64,14,14]"
        lines += [
            "  " + conv.format(f"%{a}: {kind}", "%x", f"%{w}", p=0),
            f"  %{a}r: {kind} = aten.relu.default(%{a})",
            "  " + conv.format(f"%{a}3: {wide}", f"%{a}r", f"%{w}3", p=1),
        ]
    lines += ["  %sum: f16[1,64,14,14] = aten.add.Tensor(%a3, %b3)", "  return %sum", "}"]
    return simplified(read("\n".join(lines)))


@pytest.mark.parametrize(
    ("n", "m", "copies"), [(64, 64, 0), (96, 16, 0), (44, 44, 1), (32, 20, 1), (11, 11, 1)]
)
@pytest.mark.parametrize("alpha", [0.0, 8.0])
def test_merged_convolutions_pay_for_copies_of_their_slices(
    n: int, m: int, copies: int, alpha: float
) -> None:
    graph = twins(n, m)
    rule = next(rule for rule in ALL if rule.name == MERGE)
    merged = apply(graph, rule, next(matches(graph, rule)))
    after, price = simplified(merged), price_of(graph, alpha)
    assert price(merged).us == pytest.approx(price(after).us, rel=1e-9)
    clones = [sum(node.op == "aten.clone.default" for node in g.nodes) for g in (graph, after)]
    assert clones[1] - clones[0] == copies


@pytest.mark.xdist_group("layout copies of the zoo")  # they share what is captured
@pytest.mark.parametrize(
    ("name", "alpha"), [("inception", 16.0), ("squeezenet", 0.0), ("squeezenet", 16.0)]
)
def test_what_is_searched_for_costs_what_it_costs_simplified(name: str, alpha: float) -> None:
    """All that simplification saves beyond that is a concatenation that puts together again what
    was cut apart; of the best there is none."""
    graph = of_zoo(name)
    price = price_of(graph, alpha)
    found = search(graph, ALL, price, Settings(prices=80, keep=4))
    assert found[0].steps
    for one in found:
        after = simplified(one.graph)
        assert price(one.graph).us == pytest.approx(one.price.us, rel=1e-9)
        if price(one.graph).us == pytest.approx(price(after).us, rel=1e-9):
            continue
        assert not bodies(after) - bodies(one.graph)
        saved = bodies(one.graph) - bodies(after)
        assert all(text.count(" = ") == text.count("aten.cat.default") == 1 for text in saved)
    best, simple = price(found[0].graph), price(simplified(found[0].graph))
    assert best.us == pytest.approx(simple.us, rel=1e-9)


@functools.cache
def of_zoo(name: str) -> Graph:
    net = ZOO["squeezenet"]
    model, inputs = net.build("tiny"), net.inputs("tiny", 1)
    if name == "inception":  # the last two blocks of GoogLeNet
        wide = Inception(104, 32, 20, 40, 4, 16, 16), Inception(104, 48, 24, 48, 6, 16, 16)
        model, inputs = nn.Sequential(*wide), (torch.randn(1, 104, 8, 8),)
    half = tuple(x.half() for x in inputs)
    return simplified(capture(model.eval().half(), half).graph)


def bodies(graph: Graph) -> Counter[str]:
    """What its tasks compute, copies among them."""
    return Counter(piece.text for piece in TaskCutter(SPEC, True).of(graph, arranged=True).pieces)


def test_a_copy_is_made_once_where_its_value_is() -> None:
    """And what reads the value reads the copy; what needs none stays the same object."""
    graph = twins(44, 44)
    rule = next(rule for rule in ALL if rule.name == MERGE)
    copies, merged = Copies(), apply(graph, rule, next(matches(graph, rule)))
    after = copies.into(without_constants(merged))
    (copy,) = (node for node in after.nodes if node.name.endswith(".cl"))
    at = [node.name for node in after.nodes].index(copy.name)
    assert after.nodes[at - 1].results == copy.uses
    (reader,) = (node for node in after.nodes if copy.name in node.uses)
    assert reader.op == "aten.convolution.default"
    again = copies.into(without_constants(merged)).nodes
    assert all(one is other for one, other in zip(after.nodes, again, strict=True))
    assert copies.into(graph) is graph
