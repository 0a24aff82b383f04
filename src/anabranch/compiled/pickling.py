"""Compiled models as bytes: what pickle, torch.save and deepcopy keep of one.

The plans in the form of saved ones, and how calls are answered. What comes back is as from
`anabranch.load`: it runs without the model, and cannot be compiled for other inputs. As with any
pickle, only bytes from somebody trusted may be read; `Compiled.save` and `load` are for all others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.artifact import file as artifact_file
from anabranch.compiled.entry import Entry
from anabranch.compiled.states import with_values
from anabranch.errors import OptionError
from anabranch.options import Options

Kept = tuple[str, bytes, dict[str, Any]]
"""What `calls.restored` is called with."""


def stored(
    entries: Sequence[Entry],
    options: Options,
    facts: Callable[[Entry], dict[str, Any]],
    states: Mapping[str, Tensor],
) -> Kept:
    """The kind of target, the plans, and the options that were given. `states`: as they are, by
    what the model calls them."""
    spec = entries[-1].plan.spec
    if spec.simulated:
        raise OptionError(
            "a plan for a simulated GPU cannot be copied or pickled",
            "it runs nowhere here, so the copy would have no target",
            "save it with .save(path), and load it on the GPU",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans"
        artifact_file.save_all(
            [(with_values(entry.plan, states), facts(entry)) for entry in entries], path
        )
        content = path.read_bytes()
    option_values = options.model_dump(mode="json", exclude_defaults=True, exclude={"workers"})
    return spec.kind, content, option_values
