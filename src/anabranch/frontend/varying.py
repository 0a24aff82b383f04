"""Settings of an optimizer that change while it trains, beside learning rates: momenta that cycle,
a weight decay that has a schedule. A graph reads them in each call, as it reads learning rates.

    record     with a number of its own for each        mul_(buf, 0.5944), add_(p, alpha=0.4056)
    run again  with a tensor where such a number stands  mul_(buf, %beta), add_(p, g * (1 - %beta))

torch's optimizers compute with these as Python's numbers, and branch by them. So the step is
recorded with numbers that stand nowhere else; in what was recorded they are found again, as they
are, with the other sign, as what they lack of one, and as their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from anabranch.errors import CaptureError, InputError, OptionError

MAY_VARY: dict[type[Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum", "weight_decay"),
    torch.optim.RMSprop: ("momentum", "weight_decay"),
    torch.optim.Adam: ("betas", "weight_decay"),
    torch.optim.AdamW: ("betas", "weight_decay"),
}
"""Settings that these compute with in the three forms alone."""
OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
"""What schedules note in the groups of an optimizer for themselves."""
GOLDEN = 0.6180339887498949
"""Of whose multiples no two end alike."""


def varying_of(optimizer: Optimizer, asked: Sequence[str]) -> tuple[str, ...]:
    """Names of settings that vary: those that the user asked for, and that a schedule which has
    been made already cycles. OptionError where this optimizer cannot vary one."""
    may = MAY_VARY.get(type(optimizer), ())
    if isinstance(asked, str) or not isinstance(asked, Sequence):
        raise OptionError(
            f"changing is a {type(asked).__name__}: {asked!r:.80}",
            "it is a list of settings of the optimizer",
            'for example changing=["momentum"]',
        )
    for name in asked:
        if name not in may:
            raise OptionError(
                f"changing has {name!r}",
                f"{type(optimizer).__name__} can have these changed: {', '.join(may) or 'none'}",
                "leave it out; the learning rate may change always",
            )
    cycled = any("max_momentum" in group for group in optimizer.param_groups)
    momenta = tuple(name for name in may if name in ("momentum", "betas")) if cycled else ()
    if cycled and not momenta:
        raise CaptureError(
            f"a schedule cycles the momentum of {type(optimizer).__name__}",
            "a step reads momenta anew of SGD, RMSprop, Adam and AdamW alone",
            "make the schedule with cycle_momentum=False, or use one of these",
        )
    return tuple(dict.fromkeys((*asked, *momenta)))


def numbers_of(optimizer: Optimizer, varying: Sequence[str]) -> list[float]:
    """What they are now, group by group. InputError for a momentum of zero, with which SGD and
    RMSprop take steps of another kind."""
    numbers = list[float]()
    for group in optimizer.param_groups:
        for name in varying:
            value = group[name]
            if name == "momentum" and not value:
                raise InputError(
                    "momentum is 0, and changes",
                    "without momentum a step is another graph, which leaves the moments alone",
                    "begin and end with a small one, or leave momentum out of changing",
                )
            numbers += map(float, value) if isinstance(value, tuple) else [float(value)]
    return numbers


def with_stand_ins(
    groups: Sequence[dict[str, Any]], varying: Sequence[str]
) -> list[dict[str, Any]]:
    """The groups, with a number of its own for each."""
    fresh, replaced = _stand_ins(), []
    for group in groups:
        own = dict(group)
        for name in varying:
            value = group[name]
            own[name] = (
                tuple(next(fresh) for _ in value) if isinstance(value, tuple) else next(fresh)
            )
        replaced.append(own)
    return replaced


def _stand_ins() -> Iterator[float]:
    """Numbers between 0.5 and 0.9 that nobody writes."""
    at = 0.1234567
    while True:
        at = (at + GOLDEN) % 1.0
        yield 0.5 + 0.4 * at


class StandIns:
    """The tensors in whose place numbers stand, each made when it is first met."""

    def __init__(self, settings: Sequence[Tensor]) -> None:
        self._forms = dict[float, Callable[[], Tensor]]()
        self._met = dict[float, Tensor]()
        for number, setting in zip(_stand_ins(), settings, strict=False):
            self._forms |= {
                number: partial(torch.positive, setting),
                -number: partial(torch.neg, setting),
                1 - number: partial(torch.rsub, setting, 1.0),
                math.log(number): partial(torch.log, setting),
            }

    def in_place(self, arg: Any) -> Any:
        """The argument, or the tensor that it stands for."""
        if type(arg) is not float or arg not in self._forms:
            return arg
        if arg not in self._met:
            # What one lacks of 0.999 is computed in fp64, which knows it, and is fp32 then.
            self._met[arg] = self._forms[arg]().to(torch.float32)
        return self._met[arg]
