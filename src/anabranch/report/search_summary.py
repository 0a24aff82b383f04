"""Searched: the way to an equal graph that a search found, and why it ended: a path -> lines.

Searched: 2 steps, 131 us -> 129 us estimated, 1.5% less
  stopped by the clock, with 40% of its work undone: a longer budget or search_seconds goes on
  Price: change in the sum of the tasks' times, each alone, plus alpha times their longest path. ...
  round 1: 131 us -> 129 us estimated, 1.5% less, side by side
     price  alpha   part us
     -2.25      0  -1.39 of 9.82  conv1x1(conv(x, w, b), v, c) -> conv(x, v @ w, v @ b + c)
                                  convolution_65, convolution_64
  before and after: 1 node gone (-), 0 new (+), 1 made of something else (|)
  ... 120 nodes the same
  relu_64 = relu(add_3)                           relu_64 = relu(add_3)
  convolution_64 = convol…relu_64, v[8,8,3,3])  -
  convolution_65 = convol…tion_64, w[8,8,1,1])  | convolution_65 = convol…relu_64, u[8,8,3,3])
"""

from __future__ import annotations

from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.report.graph_diff import DiffRow, folded, graphs, rows, running, side_by_side
from anabranch.report.lines import WIDTH, wrapped
from anabranch.report.units import count, duration, significant
from anabranch.search.engine.backtracking import Ran
from anabranch.search.result import Path, Round, rules_of

ALL = "explain --all shows them"
PRICES = (
    "Price: change in the sum of the tasks' times, each alone, plus alpha times their longest path."
    " Part us: change in the time of the part around the step, run by itself, by all steps in that "
    "part; where no part was run, in the time of the whole, by all steps of the round."
)
IN_ROUND = "in the round"
"""Stands at a step whose part was not run by itself, where others of its round were."""


def searched_lines(path: Path | None, most: int | None, width: int = WIDTH) -> list[str]:
    """At most so many steps of each round, and twice as many rows of the graphs before and after
    it, of at most `width` characters; if None all steps, and all nodes in full. No lines without a
    search."""
    if path is None:
        return []
    if path.beside:
        return _elsewhere(path)
    if not path.rounds:
        none = "no faster graph was found" if path.cut_short else "no equal graph is faster"
        return [f"Searched: {none}", *wrapped(ended(path))]
    whole = gained(path.rounds[0].before, path.rounds[-1].after)
    lines = [f"Searched: {count(len(path.steps), 'step')}, {whole}", *wrapped(ended(path))]
    lines += wrapped(PRICES)
    for number, (done, pair) in enumerate(zip(path.rounds, graphs(path), strict=True), 1):
        lines += [f"  round {number}: {gained(done.before, done.after)}, side by side"]
        lines += [*_steps(done, most), *_sides(*pair, most, width)]
    return lines


def _elsewhere(path: Path) -> list[str]:
    """Of a graph that was not searched itself."""
    sizes = " and ".join(f"{amount:,}" for amount in dict.fromkeys(path.beside))
    lines = [f"Searched: at the sizes {sizes} beside this one, with one result"]
    if not path.rounds:
        return [*lines, "  no equal graph is faster"]
    first, last = path.rounds[0].before, path.rounds[-1].after
    return [*lines, *wrapped(rules_of(path.steps)), f"  at the first: {gained(first, last)}"]


def _steps(done: Round, most: int | None) -> list[str]:
    told = in_parts(done)[:most]
    shown, rest = done.steps[: len(told)], len(done.steps) - len(told)
    wide = max(map(len, told), default=0)
    lines = [f"     price  alpha  {'part us':{wide}}".rstrip()] if shown else []
    for step, part in zip(shown, told, strict=True):
        change = step.after.us - step.before.us
        price = f"  {change:+8.2f}  {step.before.alpha:>5g}  {part:{wide}}  "
        lines += wrapped(step.rule, price, " " * len(price))
        lines += wrapped(", ".join(step.nodes), *[" " * len(price)] * 2)
    return lines + ([f"  and {count(rest, 'step')} more: {ALL}"] if rest else [])


def _sides(before: Graph, after: Graph, most: int | None, width: int) -> list[str]:
    """What runs of both; at most so many rows around what changes, all of them if None."""
    diff = rows(running(before), running(after))
    signs = "".join(row.sign for row in diff)
    lines = wrapped(
        f"before and after: {count(signs.count('-'), 'node')} gone (-), "
        f"{signs.count('+')} new (+), {signs.count('|')} made of something else (|)"
    )
    if most is None:
        return lines + side_by_side(diff, width, whole=True)
    around, room = folded(diff), 2 * most
    lines += side_by_side(around[:room], width)
    left = sum(isinstance(row, DiffRow) and bool(row.sign) for row in around[room:])
    return lines + ([f"  and {count(left, 'change')} more: {ALL}"] if left else [])


def in_parts(done: Round) -> list[str]:
    """For each step what its part took less or more; of steps in one part with the first of them.
    Where no part was run by itself, with the first of the round what the whole took.

    >>> from anabranch.ir.price import Price
    >>> from anabranch.search.engine.backtracking import RewriteStep
    >>> before, after = Cost(9.8, "measured"), Cost(8.4, "measured")
    >>> step = RewriteStep("x * 1 -> x", ("mul",), Price(2.0), Price(1.0), Ran(before, after, 2))
    >>> nothing = Graph("g", (), (), (), ())
    >>> in_parts(Round((step, step), before, after, nothing))
    ['-1.40 of 9.80, 2 steps', '"']
    """
    steps = done.steps
    if steps and all(step.ran is None for step in steps):
        return [in_part(Ran(done.before, done.after, len(steps))), *['"'] * (len(steps) - 1)]
    told: list[str] = []
    while len(told) < len(steps):
        ran = steps[len(told)].ran
        same = min(ran.steps if ran else 1, len(steps) - len(told))
        told += [in_part(ran) if ran else IN_ROUND, *['"'] * (same - 1)]
    return told


def in_part(ran: Ran) -> str:
    """The time that the part took less or more by the steps in it, of how much, and how many there
    are."""
    was, now, steps = ran.before.us, ran.after.us, ran.steps
    return f"{now - was:+.2f} of {was:.2f}" + (f", {count(steps, 'step')}" if steps > 1 else "")


def ended(path: Path) -> str:
    """Why the search ended before its work was done, and what may be done about it; "" if it did
    not."""
    if not path.cut_short:
        return ""
    by = "as asked" if path.cut_short == "stop" else "by the clock"
    stopped = path.cut_short == "stop"
    then = "compile again to go on" if stopped else "a longer budget or search_seconds goes on"
    return f"stopped {by}, with {100 * path.undone:.0f}% of its work undone: {then}"


def gained(before: Cost, after: Cost) -> str:
    """Both times and by how much they differ; one alone where as few digits are equal.

    >>> gained(Cost(131, "estimated"), Cost(129, "estimated"))
    '131 us -> 129 us estimated, 1.53% less'
    >>> gained(Cost(18.34, "measured"), Cost(18.31, "measured"))
    '18.3 us measured, 0.164% less than before'
    """
    part = 100 * (1 - after.us / before.us) if before.us else 0.0
    less = f"{significant(abs(part))}% {'less' if part >= 0 else 'more'}"
    was, now = duration(before.us), duration(after.us)
    if was == now:
        return f"{now} {after.source}, {less} than before"
    return f"{was} -> {now} {after.source}, {less}"
