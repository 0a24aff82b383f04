"""Verification of kernels: none is chosen that does not compute what its task's body does.

    kernel                              compared with its body on
    the body, operator by operator      finite numbers; if it fails there, it is not refused
    a library's for the whole body      finite numbers, and what the example gives at its place
    generated                           these, and special numbers
    generated, right in the sandbox     what the example gives at its place; finite numbers where
                                        nobody knows that

Numbers are drawn anew each time (`ir.inputs`, `ir.proof`). A kernel runs in a fresh arena, which
reads as NaN, with fences around all that it may write. A verdict is kept for a structure, with the
sets that it covers: real values are those of the first place of the structure that asked.
`tuning.verify.plan` runs whole plans on the example, with all places.

The sandbox compares finite and special numbers too, in an arena as fresh and between the same
fences, in a process of its own: what was right there is asked once more, on other numbers and with
the model's own constants, and not three times.
"""

from __future__ import annotations

import secrets

from anabranch.cache import Cache, Table
from anabranch.errors import TargetError
from anabranch.ir import tolerances
from anabranch.ir.codec import nouns
from anabranch.ir.key import task_text
from anabranch.ir.proof import Answer, answer, answered
from anabranch.ir.protocols import Target
from anabranch.ir.refused import Refused
from anabranch.ir.samples import delicate
from anabranch.ir.task import Task, runs_body
from anabranch.memory.guard_bytes import fenced
from anabranch.targets.sampled import values_of
from anabranch.tuning.verdict import Verdict

PASSED: Table[tuple[str, ...]] = Table("kernels", "check 4", nouns(tuple[str, ...]))
"""The sets of numbers on which a kernel was right."""


def verify_kernel(
    task: Task, target: Target, cache: Cache | None, screened: bool = False
) -> Refused | None:
    """How the results of a task's kernel differ from those of its body, if they do. A kernel that
    passed once on this machine, on all sets of numbers that it is asked for, is not run again: the
    whole plan always is. `screened`: it was right in the sandbox."""
    spec = target.spec
    if spec.simulated:
        return None
    key = PASSED.key(spec.fingerprint, task_text(task))
    covered = set(PASSED.get(cache, key) or ())
    once = screened and not delicate([task.body], task.reads)
    for kind in ("real", "finite") if once else _sets(task):
        if kind not in covered:
            verdict = _verdict(task, target, kind, cache)
            if verdict.refused:
                return verdict.refused
            if verdict.reached == "right":
                covered.add(kind)
        if once and kind in covered:
            break
    PASSED.put(cache, key, tuple(sorted(covered)))
    return None


def _sets(task: Task) -> tuple[str, ...]:
    """The sets of numbers that a kernel is to be right on."""
    if runs_body(task):
        return ("finite",)
    generated = task.kernel is not None and bool(task.kernel.source)
    return ("finite", "special", "real") if generated else ("finite", "real")


def _verdict(task: Task, target: Target, kind: str, cache: Cache | None) -> Verdict:
    """On one set of numbers; what is off on numbers of one draw is asked on those of others. Only
    tried, and not refused, where nothing can be said. `cache`: has kernels that other processes
    have built."""
    wrong: Refused | None = None
    for _ in range(1 if kind == "real" else tolerances.DRAWS):
        seeded_answer = _answer(task, target, kind)
        if seeded_answer is None:
            return Verdict("tried")
        seed, wanted = seeded_answer
        inputs = {v.name: x for v, x in zip(task.body.inputs, wanted.inputs, strict=True)}
        try:
            if task.kernel is not None:
                target.prepare([task.kernel], cache)
            run = target.load(fenced(task, task.body.constants, target.spec), contents=inputs)
            outs = run(wanted.inputs)
        except (TargetError, RuntimeError, IndexError, ValueError) as failed:
            if runs_body(task):
                return Verdict("right")  # eager fails there as well
            why = f"failed: {str(failed).partition(chr(10))[0]}"
            return Verdict("tried", refused=Refused(why))
        wrong = wanted.differs(outs)
        if wrong is None:
            strays = run.strays()
            return Verdict("ran", refused=Refused(strays)) if strays else Verdict("right")
        if kind != "real":
            wrong = Refused(f"{wrong}, of inputs of seed {seed}")
    return Verdict("ran", refused=wrong)


def _answer(task: Task, target: Target, kind: str) -> tuple[int, Answer] | None:
    """The body that the kernel is to compute, and the seed of its inputs; None where nobody knows
    inputs that its operators may read."""
    body, plain = task.body, runs_body(task)
    values = values_of(target, task) if kind == "real" or delicate([body], task.reads) else None
    if values is not None:
        wanted = answered(body, "real", values, target, bare=plain)
        return (0, wanted) if wanted.judged else None
    if kind == "real":
        return None
    seed = secrets.randbits(31)
    _, wanted = answer(body, "special" if kind == "special" else "finite", seed, target, bare=plain)
    return (seed, wanted) if wanted.judged else None
