"""What the tests of the search share: a few rules, prices, and a search that leaves nothing out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.costs.alpha_cost import mixed_price
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, producers
from anabranch.ir.key import content_key
from anabranch.ir.price import Price
from anabranch.ir.refused import unless
from anabranch.ir.rule import Match, Pattern, Rule, wild
from anabranch.rewrite.apply import apply
from anabranch.rewrite.build import drop_dead
from anabranch.rewrite.match import matches
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.pattern_ops import call, cat, relu, t
from anabranch.trace import Trace

x, y, w, v = wild("x y w v")


def mm(a: Pattern, b: Pattern) -> Pattern:
    return call("aten.mm.default", a, b)


def one_product(match: Match) -> tuple[Pattern, ...]:
    """Both products from one with the two matrices side by side."""
    left, right = match.w.shape[1], match.v.shape[1]
    both = mm(x, cat((w, v), 1))
    return (
        call("aten.slice.Tensor", both, 1, 0, left),
        call("aten.slice.Tensor", both, 1, left, left + right),
    )


MERGE = Rule(
    "x@w, x@v -> slices of x@[w v]",
    find=(call("aten.mm.default", x, w), call("aten.mm.default", x, v)),
    replace=one_product,
    when=unless("a matrix is not a weight", lambda match: match.w.constant and match.v.constant),
)
SHORTER = (
    Rule("neg(neg(x)) -> x", find=call("aten.neg.default", -x), replace=x),
    Rule("relu(relu(x)) -> relu(x)", find=relu(relu(x)), replace=relu(x)),
    Rule("t(t(x)) -> x", find=t(t(x)), replace=x),
    Rule("neg(x) + neg(y) -> neg(x + y)", find=-x + -y, replace=-(x + y)),
    Rule("x*w + y*w -> (x+y)*w", find=x * w + y * w, replace=(x + y) * w),
    Rule(
        "x@w + y@w -> (x+y)@w",
        find=call("aten.add.Tensor", mm(x, w), mm(y, w)),
        replace=mm(x + y, w),
    ),
)
MOVING = (
    Rule("neg(x) * y -> neg(x * y)", find=-x * y, replace=-(x * y)),
    Rule("neg(x) @ y -> neg(x @ y)", find=call("aten.mm.default", -x, y), replace=-mm(x, y)),
    Rule("x@neg(y) -> neg(x@y)", find=call("aten.mm.default", x, -y), replace=-mm(x, y)),
)
RULES = (*SHORTER, *MOVING, MERGE)


@dataclass(frozen=True)
class Beginning:
    price: Price


class Plain:
    """Prices graphs by what this says of each, beginnings of a network anew."""

    def __init__(self, us: Callable[[Graph], float], alpha: float = 0.0) -> None:
        self._us, self._alpha = us, alpha

    def __call__(self, graph: Graph) -> Price:
        return Price(self._us(graph), self._alpha)

    def carried(self, before: object, whole: Graph) -> Beginning:
        return Beginning(self(drop_dead(whole)))


nodes = Plain(lambda graph: float(len(graph.nodes)))
"""The number of nodes."""


def us(node: Node) -> float:
    """A product takes a launch and its columns, a slice nothing, all else one."""
    if node.op == "aten.mm.default":
        return 1 + node.type.shape[-1] / 2
    return 0.0 if ops.info(node.op).kind == "view" else 1.0


def weighed(alpha: float) -> Plain:
    """The mixed cost; what depends on constants alone is free."""

    def price(graph: Graph) -> float:
        fixed = {constant.name for constant in graph.constants}
        running = []
        for node in graph.nodes:
            if node.uses and fixed.issuperset(node.uses):
                fixed.update(node.results)
            else:
                running.append(node)
        place = {node.name: i for i, node in enumerate(running)}
        maker = producers(graph)
        preds = [
            {place[maker[name].name] for name in node.uses if name in maker and name not in fixed}
            for node in running
        ]
        return mixed_price([us(node) for node in running], preds, alpha).us

    return Plain(price, alpha)


def reachable(graph: Graph, rules: Sequence[Rule], most: int) -> dict[str, Graph]:
    """All graphs that the rules lead to by way of graphs of fewer nodes than `most`, in which
    every expression is computed once."""
    found = {content_key(graph): graph}
    queue = [graph]
    for parent in queue:
        for rule in rules:
            for match in matches(parent, rule):
                try:
                    after = apply(parent, rule, match)
                except ValueError:
                    continue
                if len(after.nodes) < most:
                    after = cse(after, Trace())
                    if found.setdefault(content_key(after), after) is after:
                        queue.append(after)
    return found
