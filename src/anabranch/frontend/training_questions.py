"""What a training step asks of the tensors of its batch, beside their numbers.

    x = x * 2 if x.is_contiguous() else x * 3      a step of one answer takes calls of that alone

The questions are found by further calls of the step, and only where its code may ask some.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from anabranch.frontend.capture_cache import asked_of_inputs, tells_apart, tells_containers
from anabranch.frontend.captured import Captured
from anabranch.frontend.from_torch import apart
from anabranch.frontend.input_queries import answered, has_containers
from anabranch.frontend.observe import Notes, observe
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.training import EagerStep


def with_questions(
    captured: Captured, step: EagerStep, args: tuple[Any, ...], under: Surroundings
) -> Captured:
    """The step with what it asks of a call's tensors, and goes another way for. `args`: the batch
    and the learning rates. CaptureError where the example answers otherwise than was captured."""
    containers = has_containers(step, args[:-1], {})
    if not step.mentions and not containers:
        return captured
    call = partial(observe, step, args, {}, under)
    try:
        seen = call(notes=Notes(watch=True))
    except Exception:  # who compiles the step says what is wrong with it
        return captured
    questions = asked_of_inputs(seen, call)[0] if seen.mentions else ()
    inputs = args, dict[str, Any]()
    signature = replace(
        captured.signature,
        asked=answered(captured.trees[0], inputs, apart(inputs), questions),
        distinct=tells_apart(seen, call),
        exact=containers and tells_containers(seen, call),
    )
    return replace(captured, signature=signature)
