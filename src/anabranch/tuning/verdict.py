"""Verdict: how far a kernel came that was tried for a task.

    tried --> ran --> right --> chosen
      |        |        +-- it is slower than another, or came after one as fast (`why_lost`)
      |        +-- it computes something else, or nobody compared it with the body yet
      +-- it fails where its body does not, or there was no time for it

The sandbox, the comparison of a kernel with its body and the selector all answer in these words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused

Reached = Literal["tried", "ran", "right", "chosen"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cost`: what the kernel takes, None where nobody timed it; `refused`: why it must not be
    used, None where nothing is known against it, or nobody said what.

    >>> Verdict("ran", Cost(9.4, "measured")).usable
    Cost(us=9.4, source='measured', spread=0.0)
    >>> print(Verdict("ran", Cost(9.4, "measured"), Refused("error 3e-2")).usable)
    None
    """

    reached: Reached
    cost: Cost | None = None
    refused: Refused | None = None

    @property
    def chosen(self) -> bool:
        """Whether plans run it."""
        return self.reached == "chosen"

    @property
    def usable(self) -> Cost | None:
        """What it takes; None where it must not be used, or nobody knows."""
        return None if self.refused else self.cost
