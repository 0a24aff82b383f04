"""The text of each stage's noun, one file a stage in the folder of `Options.dump`.

00_capture.txt  01_rewrite.txt  02_fusion.txt ... 09_memory.txt
"""

from __future__ import annotations

import pathlib
from typing import Any

from anabranch.errors import WriteError
from anabranch.frontend.captured import Captured
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, text_plan
from anabranch.ir.schedule import text_schedule
from anabranch.ir.target_text import text_target
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import text_graph, text_tasks
from anabranch.ir.time_text import text_cost
from anabranch.schedule.best import Choice
from anabranch.tuning.select import Selection


def dump(folder: pathlib.Path, name: str, noun: Any) -> bool:
    """Write the text form of a stage's noun; whether it has one. WriteError where it cannot be
    written."""
    text = _text(noun)
    if text is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    except OSError as failed:
        raise WriteError(
            f"cannot write {folder / name}",
            failed.strerror or str(failed),
            "give `dump` a folder that can be written to, or leave it out",
        ) from failed
    return True


def _text(noun: Any) -> str | None:
    match noun:
        case Captured():
            return text_graph(noun.graph)
        case Graph():
            return text_graph(noun)
        case Selection():
            return text_tasks(noun.tasks)
        case TaskGraph():
            return text_tasks(noun)
        case Choice():
            return "\n".join(
                f"{text_cost(cost)}\n{text_schedule(schedule)}"
                for schedule, cost in noun.candidates
            )
        case Plan():
            return f"{text_plan(noun)}\n{text_target(noun.spec)}"
    return None
