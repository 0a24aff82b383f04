"""Searched: the way to an equal graph that a search found, and why it ended: a path -> lines.

Searched: 2 steps, 131 us -> 129 us estimated, 1.5% less
  stopped by the clock, with 40% of its work undone: search_seconds gives more
  steps, and what each changes in the price under which it was found: alpha times the longest path
  of the tasks that were searched and their sum, each alone
  round 1: 131 us -> 129 us estimated, 1.5% less, side by side
     price  alpha   part us
     -2.25      0  -1.39 of 9.82  conv1x1(conv(x, w, b), v, c) -> conv(x, v @ w, v @ b + c)
                                  convolution_65, convolution_64
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.autograph.path import Path
from anabranch.ir.protocols import Cost
from anabranch.report.lines import wrapped
from anabranch.report.units import count, duration, significant
from anabranch.rewrite.backtrack import Step

PRICES = (
    "steps, and what each changes in the price under which it was found: alpha times the longest "
    "path of the tasks that were searched and their sum, each alone; and in what the part takes in "
    "which it stands, run by itself, where several steps are in one part all of them"
)


def searched_lines(path: Path | None, most: int) -> list[str]:
    """At most so many steps of each round; none without a search."""
    if path is None:
        return []
    if not path.rounds:
        none = "no faster graph was found" if path.cut_short else "no equal graph is faster"
        return [f"Searched: {none}", *wrapped(ended(path))]
    whole = gained(path.rounds[0].before, path.rounds[-1].after)
    lines = [f"Searched: {count(len(path.steps), 'step')}, {whole}", *wrapped(ended(path))]
    lines += wrapped(PRICES)
    for number, done in enumerate(path.rounds, 1):
        lines += [f"  round {number}: {gained(done.before, done.after)}, side by side"]
        shown = done.steps[:most]
        wide = max((len(in_part(step)) for step in shown), default=0)
        lines += [f"     price  alpha  {'part us':{wide}}".rstrip()] if shown else []
        for step, told in zip(shown, in_parts(shown), strict=True):
            price = f"  {step.after_us - step.before_us:+8.2f}  {weighs(step.alpha):>5}  "
            price += f"{told:{wide}}  " if wide else ""
            lines += wrapped(step.rule, price, " " * len(price))
            lines += wrapped(", ".join(step.nodes), *[" " * len(price)] * 2)
        rest = len(done.steps) - most
        lines += [f"  and {count(rest, 'step')} more"] if rest > 0 else []
    return lines


def weighs(alpha: float | None) -> str:
    """What the longest path weighed in a price, "-" if that is not known."""
    return "-" if alpha is None else f"{alpha:g}"


def in_parts(steps: Sequence[Step]) -> list[str]:
    """For each step what its part took less or more; of steps in one part with the first of them.

    >>> ran = Ran(Cost(9.8, "measured"), Cost(8.4, "measured"), 2)
    >>> step = Step("x * 1 -> x", ("mul",), 2.0, 1.0, ran=ran)
    >>> in_parts([step, step])
    ['-1.40 of 9.80, 2 steps', '"']
    """
    told: list[str] = []
    while len(told) < len(steps):
        step = steps[len(told)]
        same = min(step.ran.steps if step.ran else 1, len(steps) - len(told))
        told += [in_part(step), *['"'] * (same - 1)]
    return told


def in_part(step: Step) -> str:
    """What the part took less or more by the steps in it, of how much, and how many there are."""
    if step.ran is None:
        return ""
    was, now, steps = step.ran.before.us, step.ran.after.us, step.ran.steps
    return f"{now - was:+.2f} of {was:.2f}" + (f", {count(steps, 'step')}" if steps > 1 else "")


def ended(path: Path) -> str:
    """Why the search ended before its work was done, and what may be done about it; "" if it did
    not."""
    if not path.cut_short:
        return ""
    by = "as asked" if path.cut_short == "stop" else "by the clock"
    then = "compile again to go on" if path.goes_on else "search_seconds gives more"
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
