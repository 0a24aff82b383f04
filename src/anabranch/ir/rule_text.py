"""Patterns from their text: the inverse of `ir.rule.text_pattern`.

The text is an expression of Python's grammar, so Python's own parser reads it; nothing of it
runs.

>>> pattern = parse_pattern("aten.convolution.default(x, aten.relu.default(w), None, *window)")
>>> print(text_pattern(pattern))
aten.convolution.default(x, aten.relu.default(w), None, *window)
"""

from __future__ import annotations

import ast

import torch

from anabranch.ir.rule import Call, Each, Operand, Wild, text_pattern

__all__ = ["parse_pattern", "text_pattern"]


def parse_pattern(text: str) -> Operand:
    """The pattern that was printed. ValueError if the text is none."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as wrong:
        raise ValueError(f"no pattern: {text!r}: {wrong.msg}") from None
    return _read(tree.body, text)


def _read(node: ast.expr, text: str) -> Operand:
    match node:
        case ast.Name(id=name):
            return Wild(name)
        case ast.Constant(value=value) if isinstance(value, int | float | str | None):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(
            value, int | float
        ):
            return -value
        case ast.List(elts=items):
            return tuple(_item(item, text) for item in items)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            found = getattr(torch, name, None)
            if isinstance(found, torch.dtype | torch.memory_format | torch.layout):
                return found
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(value))]):
            return float(value)
        case ast.Call(func=ast.Attribute() as function, args=args, keywords=[]):
            rest = ""
            if args and isinstance(args[-1], ast.Starred) and isinstance(args[-1].value, ast.Name):
                rest, args = args[-1].value.id, args[:-1]
            return Call(ast.unparse(function), tuple(_read(arg, text) for arg in args), rest)
    raise ValueError(f"no pattern: {ast.unparse(node)!r} in {text!r}")


def _item(node: ast.expr, text: str) -> Operand:
    """An item of a tuple, or a call that stands for several."""
    if isinstance(node, ast.Starred):
        found = _read(node.value, text)
        if isinstance(found, Call):
            return Each(found)
    return _read(node, text)
