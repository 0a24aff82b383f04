"""Candidate rules where they are wanted: how often each matches in networks, that it changes no
number there, and that merging twice merges three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from tests.conftest import Golden
from tests.networks import tiny
from tests.planted import planted
from tests.rewrite.graphs import captured, equal
from tests.rewrite.laws import LAWS
from tests.rewrite.samples import SAMPLES

from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.rule import Match, Rule, ValueFacts
from anabranch.options import Options
from anabranch.rewrite.apply import apply, apply_all
from anabranch.rewrite.match import matches, matches_in
from anabranch.rewrite.match_index import MatchIndex, RuleSignature
from anabranch.rewrite.rules import CANDIDATES
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

pytestmark = pytest.mark.xdist_group("candidates")  # they share graphs that take long to make
NETWORKS = ("inception_v3", "resnet50", "resnext50", "nasnet_mobile", "bert_base", "sru")
FAMILIES = tuple(family for family in CANDIDATES if family != "found")
RULES = {rule.name: rule for family in FAMILIES for rule in CANDIDATES[family]}

APART, TRANSPOSED = "conv(x, w, b) -> conv(x, w) + b", "linear(x, w, b) -> x @ t(w) + b"
LAST = "conv1x1(x, w, b) -> linear(x, w, b), channels last"
ALONG = "conv1x1(x, w, b) -> w @ x + b, space in one axis"
NAMED = "mm(x, a) -> x @ a"

AFTER = {
    "conv(x, w, b) + s -> conv(x, w, b + s)": ("resnet50", APART),
    "linear(x, w, b), channels last -> conv1x1(x, w, b)": ("resnet50", LAST),
    "w @ x, space in one axis -> conv1x1(x, w)": ("resnet50", ALONG),
    "matmul(x, w), matmul(x, v) -> slices of matmul(x, cat(w, v))": ("bert_base", TRANSPOSED),
    "matmul(x, w), matmul(y, w) -> slices of matmul(cat(x, y), w)": ("products", NAMED),
    "matmul(x, w) -> cat(matmul(x[:half], w), matmul(x[half:], w))": ("products", NAMED),
    "matmul(x, w) -> cat(matmul(x, w[:, :half]), matmul(x, w[:, half:]))": ("products", NAMED),
    "x @ a -> linear(x, t(a))": ("products", NAMED),
    "x @ a + b -> linear(x, t(a), b)": ("bert_base", TRANSPOSED),
}
"""Rules that match only after another was applied wherever it can be, in this graph. What is
captured has no matmul: it is a linear, or has become mm and bmm."""

LAWFUL = frozenset(
    {
        "conv_activation_merging",
        "matmul_algebra",
        "linearity",
        "concat_slice",
        "movement",
        "transposed_operands",
        "elementwise_algebra",
    }
)
"""Families of laws that are found in modules written for them."""
CHECKED = [rule.name for name in FAMILIES if name not in LAWFUL for rule in CANDIDATES[name]]
LATER = {"linear(x / sqrt(mean(x x) + e) g, w, b), x in fp32 -> linear(x, w g) r + b"}
"""Rules that round to a half type once, after the linear, where the model does it before, too: but
for that, the numbers are the same."""
BY_NAME = ("mm(x, a) -> x @ a", "bmm(x, a) -> x @ a")

TOGETHER = 12
"""Found rules whose left sides are written into one model."""

Graphs = Mapping[str, Graph]


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    """Networks and samples as the search gets them."""
    found = {name: tiny(name).captured.graph for name in NETWORKS}
    found |= {name: captured(model, *args) for name, (model, args) in SAMPLES.items()}
    found |= {name: captured(model, *args) for name, (model, args) in LAWS.items()}
    every = {name: simplified(graph) for name, graph in found.items()}
    named = [RULES[name] for name in BY_NAME]
    spelled = {
        f"{name}, as @": apply_all(every[name], named)
        for name in ("transposed", "products", "sums of products")
    }
    return every | spelled


@pytest.fixture(scope="module")
def indices(graphs: Graphs) -> Mapping[str, MatchIndex]:
    return {name: MatchIndex(graph) for name, graph in graphs.items()}


def simplified(graph: Graph) -> Graph:
    return simplify(graph, Stepper(Trace()), Options())


def places(graphs: Graphs, rule: Rule) -> dict[str, tuple[Graph, list[Match]]]:
    """Graphs and the rule's matches in them, after another rule if it needs one."""
    if rule.name in AFTER:
        name, before = AFTER[rule.name]
        graphs = {name: apply_all(graphs[name], [RULES[before]])}
    return {name: (graph, list(matches(graph, rule))) for name, graph in graphs.items()}


def found_in(indices: Mapping[str, MatchIndex], rule: Rule) -> dict[str, int]:
    """How often the rule matches in each of the graphs."""
    signature = RuleSignature.of(rule)
    return {name: sum(1 for _ in matches_in(index, signature)) for name, index in indices.items()}


def test_every_rule_matches_somewhere(
    graphs: Graphs, indices: Mapping[str, MatchIndex], golden: Golden
) -> None:
    """In a network of the zoo, in a sample, or after another rule; the counts are a golden."""
    width = max(map(len, RULES)) + 2
    lines = [" " * width + "".join(name[:9].rjust(11) for name in NETWORKS) + "  elsewhere"]
    nowhere = []
    for rule in RULES.values():
        after = rule.name in AFTER
        told = (
            {name: MatchIndex(g) for name, (g, _) in places(graphs, rule).items()}
            if after
            else indices
        )
        counts = found_in(told, rule)
        where = [name for name, count in counts.items() if count and name not in NETWORKS]
        row = "".join(str(counts.get(name) or ".").rjust(11) for name in NETWORKS)
        if rule.name in AFTER:
            where.append(f"after {AFTER[rule.name][1]}")
        lines.append(f"{rule.name.ljust(width)}{row}  {', '.join(where)}".rstrip())
        if not any(counts.values()):
            nowhere.append(rule.name)
    assert nowhere == []
    golden("rules/matches.txt", "\n".join(lines) + "\n")


def test_every_found_rule_matches_as_well(indices: Mapping[str, MatchIndex]) -> None:
    """In one of these graphs, or where a model is written as its left side is; what is captured as
    a product of matrices by a name of its own is called matmul first."""
    named = [RULES[name] for name in BY_NAME]
    left = [rule for rule in CANDIDATES["found"] if not any(found_in(indices, rule).values())]
    for seed in range(8):
        written, left = left, list[Rule]()
        for i in range(0, len(written), TOGETHER):
            some = written[i : i + TOGETHER]
            plain = [simplified(graph) for graph in planted(some, [seed])]
            told = [*plain, *(apply_all(graph, named) for graph in plain)]
            there = {f"{k}": MatchIndex(graph) for k, graph in enumerate(told)}
            left += [rule for rule in some if not any(found_in(there, rule).values())]
    assert [rule.name for rule in left] == []


@pytest.mark.parametrize("family", sorted(LAWFUL))
def test_no_number_changes_by_a_law(indices: Mapping[str, MatchIndex], family: str) -> None:
    """Each once, at the first place that any graph has for it."""
    for rule in CANDIDATES[family]:
        signature = RuleSignature.of(rule)
        places = (
            (f.graph, m) for f in reversed([*indices.values()]) for m in matches_in(f, signature)
        )
        graph, match = next(places)
        equal(graph, apply(graph, rule, match), tolerance=1e-9)


@pytest.mark.parametrize("name", CHECKED)
def test_no_number_changes(graphs: Graphs, name: str) -> None:
    """One match, in the middle of the first network or sample that has any. Simplifying folds all
    that was computed from weights, and does not undo the rest."""
    found = (side for side in places(graphs, RULES[name]).values() if side[1])
    graph, every = next(found)
    after = apply(graph, RULES[name], every[len(every) // 2])
    if name in LATER:
        equal(graph, after, tolerance=2 * torch.finfo(torch.float16).eps)
        equal(unrounded(graph), unrounded(after), tolerance=1e-9)
    else:
        equal(graph, after, tolerance=1e-9)
    simpler = simplified(after)
    constant = ValueFacts.of(simpler).constant
    assert [node.name for node in simpler.nodes if constant.issuperset(node.results)] == []
    assert simpler != graph


def unrounded(graph: Graph) -> Graph:
    """The graph without the marks of casts by which the model rounds."""
    return replace(graph, nodes=tuple(replace(node, strict=False) for node in graph.nodes))


TWICE = {
    "linear(x, w, b), linear(x, v, c) -> slices of linear(x, cat(w, v), cat(b, c))": "bert_base",
    "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(w, v), cat(b, c))": "inception_v3",
}


@pytest.mark.parametrize("name", TWICE)
def test_merging_twice_merges_three(graphs: Graphs, name: str) -> None:
    """Three readers of one value: two become one, and that one and the third."""
    rule, graph = RULES[name], graphs[TWICE[name]]
    first = next(matches(graph, rule))
    op, x = first.root.op, first.root.uses[0]

    def readers(of: Graph) -> list[str]:
        return [node.name for node in of.nodes if node.op == op and node.uses[0] == x]

    assert len(readers(graph)) == 3
    once = equal(graph, apply(graph, rule, first))
    second = next(match for match in matches(once, rule) if match.root.uses[0] == x)
    assert len(readers(equal(once, apply(once, rule, second)))) == 1


STACKED = "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(w, v), cat(b, c))"
PADDED = "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(pad(w), pad(v)), cat(b, c))"
SUMMED = "conv(x, w, b) + conv(y, v, c) -> conv(cat(x, y), cat(w, v), b + c)"

CHAINS = [
    # An average of an Inception block joins the 1x1 convolutions beside it: as a convolution with
    # the 1x1 behind it, or behind that 1x1.
    ("inception_v3", ("conv1x1(avg_pool(x), w, b) -> conv(x, w/n, b)", PADDED)),
    ("inception_v3", ("conv1x1(avg_pool(x), w, b) -> avg_pool(conv1x1(x, w)) + b", STACKED)),
    # A strided shortcut is summed with the branch beside it.
    ("resnet50", ("conv1x1(x, w, b) of stride s -> conv1x1(x[::s, ::s], w, b)", SUMMED)),
    # ResNeXt's groups become fewer, step by step, until there is one that can be split otherwise.
    (
        "resnext50",
        (
            *("conv(x, w, b) of g groups -> conv(x, w in pairs, b) of g/2 groups",) * 2,
            "conv(x, w, b) -> cat(conv(x, w[:half], b[:half]), conv(x, w[half:], b[half:]))",
        ),
    ),
    # A padded depthwise convolution takes in its padding and then the 1x1 behind it.
    (
        "nasnet_mobile",
        (
            "conv(pad(x), w, b) -> conv(x, pad(w), b) with padding of its own",
            "conv1x1(conv(x, w, b), v, c) -> conv(x, v @ w, v @ b + c)",
        ),
    ),
]


@pytest.mark.parametrize(("network", "chain"), CHAINS, ids=range(len(CHAINS)))
def test_rules_make_way_for_others(graphs: Graphs, network: str, chain: tuple[str, ...]) -> None:
    """Each is applied where it meets what the one before has made."""
    graph = graphs[network]
    made = set(graph.nodes)
    for name in chain:
        match = next(m for m in matches(graph, RULES[name]) if not made.isdisjoint(m.nodes))
        after = equal(graph, apply(graph, RULES[name], match), tolerance=1e-9)
        made, graph = set(after.nodes) - set(graph.nodes), after
