"""Patterns from their text: the inverse of `ir.rule.text_pattern`.

The text is an expression of Python's grammar, so Python's own parser reads it; nothing of it
runs.

>>> pattern = parse_pattern("aten.convolution.default(x, aten.relu.default(w), None, *window)")
>>> print(text_pattern(pattern))
aten.convolution.default(x, aten.relu.default(w), None, *window)

People write the usual operators, and short names of others if they say which these are:

>>> print(text_pattern(parse_pattern("relu(x)*2 - y", {"relu": "aten.relu.default"})))
aten.sub.Tensor(aten.mul.Tensor(aten.relu.default(x), 2), y)

Several patterns stand side by side, with commas.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

import torch

from anabranch.ir.rule import Call, Each, Operand, Wild, text_pattern

__all__ = ["parse_pattern", "text_pattern"]


ARITHMETIC: Mapping[type[ast.operator], str] = {
    **{ast.Add: "aten.add.Tensor", ast.Sub: "aten.sub.Tensor", ast.Mult: "aten.mul.Tensor"},
    **{ast.Div: "aten.div.Tensor", ast.MatMult: "aten.matmul.default"},
}
"""The difference of a number and a tensor is another operator, `rsub`."""


def parse_pattern(text: str, words: Mapping[str, str] | None = None) -> Operand:
    """The pattern that was printed, or written with short names for operators. ValueError if the
    text is none."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as wrong:
        raise ValueError(f"no pattern: {text!r}: {wrong.msg}") from None
    return _read(tree.body, text, words or {})


def _read(node: ast.expr, text: str, words: Mapping[str, str]) -> Operand:
    match node:
        case ast.Name(id=name):
            return Wild(name)
        case ast.Constant(value=value) if isinstance(value, int | float | str | None):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(
            value, int | float
        ):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(_item(item, text, words) for item in items)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            attribute = getattr(torch, name, None)
            if isinstance(attribute, torch.dtype | torch.memory_format | torch.layout):
                return attribute
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(value))]):
            return float(value)
        case ast.BinOp(left=left, op=operator, right=right) if (
            words and type(operator) in ARITHMETIC
        ):
            sides = (_read(left, text, words), _read(right, text, words))
            if isinstance(left, ast.Constant) and isinstance(operator, ast.Sub):
                return Call("aten.rsub.Scalar", sides[::-1])
            return Call(ARITHMETIC[type(operator)], sides)
        case ast.Call(func=ast.Attribute() | ast.Name() as function, args=args, keywords=[]):
            op, rest = ast.unparse(function), ""
            if isinstance(function, ast.Name):
                if op not in words:
                    raise ValueError(f"no pattern: {op} is no operator, in {text!r}")
                op = words[op]
            if args and isinstance(args[-1], ast.Starred) and isinstance(args[-1].value, ast.Name):
                rest, args = args[-1].value.id, args[:-1]
            return Call(op, tuple(_read(arg, text, words) for arg in args), rest)
    raise ValueError(f"no pattern: {ast.unparse(node)!r} in {text!r}")


def _item(node: ast.expr, text: str, words: Mapping[str, str]) -> Operand:
    """An item of a tuple, or a call or a name that stands for several."""
    if isinstance(node, ast.Starred):
        operand = _read(node.value, text, words)
        if isinstance(operand, Call | Wild):
            return Each(operand) if isinstance(operand, Call) else Wild(f"*{operand.name}")
    return _read(node, text, words)
