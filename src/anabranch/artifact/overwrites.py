"""What a plan from a file writes over what it reads: Plan -> nothing, or VerifyError.

    slot %d over %x       refused unless the kernel of %d's task reads each element of %x before it
                          writes the one of its place

`memory.race_check` proves that nobody else needs what is written over.
"""

from __future__ import annotations

from anabranch.errors import VerifyError
from anabranch.ir.plan import Plan
from anabranch.ir.task import alias_roots, value_types
from anabranch.kernels.overwritable import why_not_over


def check_overwrites(plan: Plan) -> None:
    """VerifyError for a result that lies over a value that its kernel may not write over."""
    over = {slot.value: slot.over for slot in plan.slots if slot.over}
    if not over:
        return
    table, roots = value_types(plan.tasks), alias_roots(plan.tasks)
    makers = {name: task for task in plan.tasks.tasks for name in task.writes}
    for new, old in over.items():
        what = f"%{new} is written over %{old}"
        if new not in makers or old not in table:
            raise VerifyError(f"{what}, and one of them is no value of the plan")
        why = why_not_over(makers[new], new, old, table, roots)
        if why is not None:
            raise VerifyError(f"{what}: {why}")
