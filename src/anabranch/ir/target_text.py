"""TargetSpec and Calibration <-> text: the fields that say something else than their defaults.

    target 'NVIDIA H200' {
      kind = 'cuda'
      sms = 132
      calibration {
        fork_us = 0.26
      }
    }

>>> print(text_target(TargetSpec("cpu", "a host", bandwidth=2e10)), end="")
target 'a host' {
  kind = 'cpu'
  bandwidth = 20000000000.0
}
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from anabranch.ir.calibration import Calibration
from anabranch.ir.target import TargetSpec

_INDENT = "  "


def text_target(spec: TargetSpec) -> str:
    """The machine as text, a field a line; `parse_target` gives an equal one back."""
    lines = [f"target {spec.name!r} {{", *_fields(spec, ("name", "calibration"))]
    if spec.calibration is not None:
        lines += [_INDENT + line for line in text_calibration(spec.calibration).splitlines()]
    return "\n".join([*lines, "}"]) + "\n"


def parse_target(text: str) -> TargetSpec:
    """The machine that `text_target` printed, its calibration too; ValueError for other texts."""
    head, *lines = _lines(text)
    if not head.startswith("target ") or not head.endswith(" {") or lines[-1:] != ["}"]:
        raise ValueError(f"expected 'target NAME {{ ... }}' in: {head}")
    at = lines.index("calibration {") if "calibration {" in lines else len(lines) - 1
    inner = "\n".join(lines[at:-1])
    values = _values(lines[:at], TargetSpec)
    if "kind" not in values:
        raise ValueError(f"expected 'kind = ...' in: {text}")
    calibration = parse_calibration(inner) if inner else None
    return TargetSpec(name=_literal(head[7:-2]), calibration=calibration, **values)


def text_calibration(calibration: Calibration) -> str:
    """How kernels share the machine, a number a line; `parse_calibration` gives it back."""
    return "\n".join(["calibration {", *_fields(calibration), "}"]) + "\n"


def parse_calibration(text: str) -> Calibration:
    """The calibration that `text_calibration` printed; ValueError for other texts."""
    lines = _lines(text)
    if lines[:1] != ["calibration {"] or lines[-1:] != ["}"]:
        raise ValueError(f"expected 'calibration {{ ... }}' in: {text}")
    return Calibration(**_values(lines[1:-1], Calibration))


def _fields(noun: TargetSpec | Calibration, without: Sequence[str] = ()) -> Iterator[str]:
    for field in fields(noun):
        value = getattr(noun, field.name)
        if field.name not in without and value != field.default:
            yield f"{_INDENT}{field.name} = {value!r}"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()] or [""]


def _values(lines: Sequence[str], kind: type[TargetSpec | Calibration]) -> dict[str, Any]:
    pairs = {name: value for name, _, value in (line.partition(" = ") for line in lines)}
    if unknown := pairs.keys() - {field.name for field in fields(kind)}:
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return {name: _literal(value) for name, value in pairs.items()}


def _literal(text: str) -> Any:
    """ValueError where it is no number, text or tuple of these."""
    try:
        return ast.literal_eval(text)
    except SyntaxError as wrong:
        raise ValueError(f"expected a number, a text or a tuple: {text}") from wrong
