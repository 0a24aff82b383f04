"""The text form of graphs and tasks: what a person reads, and what parses back to an equal object.

    graph tiny {
      input %x: f32[2,3]
      state %n: f32[3] -> %add
      const %w: f32[3] = 1f2e
      %add: f32[3] = aten.add.Tensor(%n, %w, alpha=2)    # net.py:7
      %mul: f32[2,3] = aten.mul.Tensor(%x, %add)
      return %mul, %add
    }

A state is an input and, behind the arrow, its value after a call, which is returned (a number says
as which result, if that is not the first of this name). Types are dtype, shape and, unless
row-major, strides in braces. A comment is a node's origin.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch

from anabranch.ir.graph import Arg, Constant, Graph, Input, Node, Ref, State, rename
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.types import DTYPES, TensorType


def text_graph(graph: Graph, origins: bool = True) -> str:
    """One line a value, in order; `origins` adds each node's source as a comment."""
    lines = [f"graph {graph.name} {{"]
    lines += _text_inputs(graph)
    lines += [f"  const %{c.name}: {c.type.text} = {c.digest}" for c in graph.constants]
    lines += [f"  {text_node(node, origins)}" for node in graph.nodes]
    lines += ["  return " + ", ".join(f"%{ref.name}" for ref in graph.outputs), "}"]
    return "\n".join(lines) + "\n"


def _text_inputs(graph: Graph | TaskGraph) -> list[str]:
    after: dict[str, str] = {}
    for state in graph.states:
        new = graph.outputs[state.output]
        which = "" if graph.outputs.index(new) == state.output else f" {state.output}"
        after[state.name] = f" -> %{new.name}{which}"
    return [
        f"  {'state' if value.name in after else 'input'} %{value.name}: {value.type.text}"
        f"{after.get(value.name, '')}"
        for value in graph.inputs
    ]


def text_node(node: Node, origin: bool = True) -> str:
    """One line of a graph's text; `origin`: with the user's source line as a comment."""
    left = ", ".join(
        f"%{name}: {type.text}" for name, type in zip(node.results, node.types, strict=True)
    )
    args = [text_arg(arg) for arg in node.args]
    args += [f"{key}={text_arg(arg)}" for key, arg in node.kwargs]
    comment = f"{ORIGIN}{node.origin}" if origin and node.origin else ""
    return f"{left} = {node.op}{STRICT * node.strict}({', '.join(args)}){comment}"


def text_arg(arg: Arg) -> str:
    """An argument as graphs spell it: %name for a value, infinities and NaN as float('inf')."""
    match arg:
        case Ref(name):
            return f"%{name}"
        case tuple():
            return "[" + ", ".join(map(text_arg, arg)) + "]"
        case float():
            return repr(arg) if arg == arg and abs(arg) != float("inf") else f"float({str(arg)!r})"
        case _:
            return repr(arg)


def text_task(task: Task) -> str:
    """The task as text: its body and, once selected, its kernel."""
    lines = [f"task {task.name} {{", *_indented(text_graph(task.body))]
    if task.kernel is not None:
        lines += [f"  kernel {text_kernel(task.kernel)}"]
    return "\n".join([*lines, "}"]) + "\n"


def text_kernel(kernel: Kernel) -> str:
    """The text "provider.name variant", by which traces and caches name a kernel."""
    variant = f" {kernel.variant}" if kernel.variant else ""
    return f"{kernel.provider}.{kernel.name}{variant}"


def text_tasks(tasks: TaskGraph) -> str:
    """A task graph for people: types once, bodies, aliases and elided concats line by line."""
    lines = [f"tasks {tasks.name} {{", *_text_inputs(tasks)]
    lines += [f"  const %{c.name}: {c.type.text} = {c.digest}" for c in tasks.constants]
    lines += [f"  alias {text_node(node)}" for node in tasks.aliases]
    lines += [f"  elided_concat {text_node(node)}" for node in tasks.elided_concats]
    for task in tasks.tasks:
        lines += _indented(text_task(task))
    lines += ["  return " + ", ".join(f"%{ref.name}" for ref in tasks.outputs), "}"]
    return "\n".join(lines) + "\n"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


TOKEN = re.compile(
    r"""\s*(?:
      (?P<ref>%[\w.]+)
    | (?P<float>float\('[^']*'\))
    | (?P<torch>torch\.\w+)
    | (?P<number>-?\d[\w.+-]*)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<word>[A-Za-z_][\w.]*!?)
    | (?P<punctuation>->|[\[\](),=:{}])
    )""",
    re.VERBOSE,
)


INTEGER = re.compile(r"-?\d+")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")
WORDS: dict[str, bool | torch.dtype | torch.memory_format | torch.layout | None] = {
    **{"None": None, "True": True, "False": False},
    **{
        f"torch.{name}": value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout)
    },
}
"""Arguments that are spelled as words. Other names of torch are none: asking torch for an attribute
may import a module."""
NUMBERS = r"(?:-?\d+(?:,-?\d+)*)?"
TYPE = re.compile(rf"\s*([A-Za-z_]\w*\[{NUMBERS}\](?:\{{{NUMBERS}\}})?)(?!\s*\{{)")
"""Well-formed types are most of a text, and few differ: they are read at once. Text that is spelled
in another way, or wrongly, is read token by token."""


DECLARED = re.compile(
    rf"\s*(input|const) %([\w.]+): ([A-Za-z_]\w*\[{NUMBERS}\](?:\{{{NUMBERS}\}})?)(?: = (\S+))?\s*"
)
REF = re.compile(r"%([\w.]+)")
ORIGIN = "    # "
STRICT = "!"
"""Behind the operator of a node that is strict."""
SPELLED = frozenset("'\"#")
"""What a call is read token by token for: in strings and comments, anything may stand."""


class _Tokens:
    """The tokens of one line, read one after the other."""

    def __init__(self, line: str) -> None:
        self.line, self.position = line, 0
        self._seen: tuple[int, str, int] = (-1, "", 0)
        """Of the last token that was looked at: where it begins, its text, where it ends."""

    def peek(self) -> str:
        if self._seen[0] != self.position:
            match = TOKEN.match(self.line, self.position)
            text, end = (match.group().strip(), match.end()) if match else ("", self.position)
            self._seen = self.position, text, end
        return self._seen[1]

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            pointer = " " * self.position + "^"
            raise ValueError(f"expected {expected or 'a token'} here:\n{self.line}\n{pointer}")
        self.position = self._seen[2]
        return token

    def type(self) -> str:
        """The text of a well-formed type, which is taken; "" where there is none."""
        match = TYPE.match(self.line, self.position)
        if match is None:
            return ""
        self.position = match.end()
        return match.group(1)

    def rest(self) -> str:
        return self.line[self.position :].strip()

    def list(self, close: str) -> Iterator[str]:
        """Peeks at each item of a comma-separated list until `close`, which it takes."""
        while self.peek() != close:
            yield self.peek()
            if self.peek() == ",":
                self.take()
        self.take(close)


def parse_graph(text: str) -> Graph:
    """The graph that `text_graph` printed. Raises ValueError with the line and a caret."""
    lines = [line for line in text.splitlines() if line.strip()]
    name = ""
    inputs: list[Input] = []
    constants: list[Constant] = []
    nodes: list[Node] = []
    outputs: tuple[Ref, ...] = ()
    after: dict[str, tuple[str, str]] = {}
    for line in lines:
        if told := DECLARED.fullmatch(line):
            word, value, spelled, digest = told.groups()
            if word == "const" and digest:
                constants.append(Constant(value, _known_type(spelled), digest))
                continue
            if word == "input" and digest is None:
                inputs.append(Input(value, _known_type(spelled)))
                continue
        tokens = _Tokens(line)
        word = tokens.peek()
        if word == "graph":
            tokens.take()
            name = tokens.take()
        elif word == "input":
            tokens.take()
            inputs.append(Input(*_typed(tokens)))
        elif word == "state":
            tokens.take()
            inputs.append(Input(*_typed(tokens)))
            tokens.take("->")
            after[inputs[-1].name] = tokens.take()[1:], tokens.rest()
        elif word == "const":
            tokens.take()
            value, type = _typed(tokens)
            tokens.take("=")
            constants.append(Constant(value, type, tokens.rest()))
        elif word == "return":
            tokens.take()
            outputs = tuple(Ref(ref[1:]) for ref in re.findall(r"%[\w.]+", tokens.rest()))
        elif word != "}":
            nodes.append(parse_node(line))
    place = {ref.name: i for i, ref in reversed(list(enumerate(outputs)))}
    if unknown := [name for name, _ in after.values() if name not in place]:
        raise ValueError(f"the state's new value %{unknown[0]} is not returned")
    states = tuple(
        State(name, int(number) if number else place[new]) for name, (new, number) in after.items()
    )
    values = tuple(inputs), tuple(constants), tuple(nodes)
    return Graph(name, *values, outputs, states=states)


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> TensorType:
    """A type from its `text`; ValueError for anything else.

    >>> parse_type("f16[1,8]{8,1}").shape
    (1, 8)
    """
    tokens = _Tokens(text)
    tensor_type = _parse_type(tokens)
    if tokens.rest():
        raise ValueError(f"more than a type: {text!r}")
    return tensor_type


def parse_node(text: str) -> Node:
    """A node from its `text_node`; ValueError for anything else.

    >>> parse_node("%y: f16[8] = aten.relu.default(%x)").uses
    ('x',)
    """
    call, _, origin = text.partition(ORIGIN)
    if call.endswith(")") and not SPELLED.intersection(call):
        between, names = tuple(REF.split(call)[::2]), REF.findall(call)
        with suppress(ValueError, KeyError, AttributeError):  # to be said of the text as it is
            return _named(_unnamed(between), names, origin.strip())
    return _parse_node(_Tokens(text))


@functools.lru_cache(maxsize=4096)
def _unnamed(between: tuple[str, ...]) -> Node:
    """A node with numbers in place of names, from what stands between them: few of a graph's nodes
    differ in more than names."""
    numbered = "".join(f"{text}%{i}" for i, text in enumerate(between[:-1]))
    return _parse_node(_Tokens(f"{numbered}{between[-1]}"))


def _named(node: Node, names: Sequence[str], origin: str) -> Node:
    table = {str(i): name for i, name in enumerate(names)}
    args = tuple(rename(arg, table) for arg in node.args)
    kwargs = tuple((key, rename(arg, table)) for key, arg in node.kwargs)
    return Node(table[node.name], node.op, args, kwargs, node.types, origin, node.strict)


def _typed(tokens: _Tokens) -> tuple[str, TensorType]:
    name = tokens.take()[1:]
    tokens.take(":")
    return name, _parse_type(tokens)


def _parse_type(tokens: _Tokens) -> TensorType:
    text = tokens.type()
    return _known_type(text) if text else _spelled_type(tokens)


@functools.lru_cache(maxsize=4096)
def _known_type(text: str) -> TensorType:
    return _spelled_type(_Tokens(text))


def _spelled_type(tokens: _Tokens) -> TensorType:
    dtype = DTYPES[tokens.take()]
    tokens.take("[")
    shape = tuple(int(tokens.take()) for _ in tokens.list("]"))
    if tokens.peek() != "{":
        return TensorType(shape, dtype)
    tokens.take("{")
    return TensorType(shape, dtype, tuple(int(tokens.take()) for _ in tokens.list("}")))


def _parse_node(tokens: _Tokens) -> Node:
    results = [_typed(tokens)]
    while tokens.peek() == ",":
        tokens.take()
        results.append(_typed(tokens))
    tokens.take("=")
    op = tokens.take()
    strict, op = op.endswith(STRICT), op.removesuffix(STRICT)
    tokens.take("(")
    args: list[Arg] = []
    kwargs: list[tuple[str, Arg]] = []
    for word in tokens.list(")"):
        mark = tokens.position
        if re.fullmatch(r"[A-Za-z_]\w*", word) and word not in ("True", "False", "None"):
            key = tokens.take()
            if tokens.peek() == "=":
                tokens.take("=")
                kwargs.append((key, _parse_arg(tokens)))
                continue
            tokens.position = mark
        args.append(_parse_arg(tokens))
    origin = tokens.rest().removeprefix("#").strip()
    types = tuple(type for _, type in results)
    return Node(results[0][0], op, tuple(args), tuple(kwargs), types, origin, strict)


def _parse_arg(tokens: _Tokens) -> Arg:
    word = tokens.take()
    if word.startswith("%"):
        return Ref(word[1:])
    if word == "[":
        return tuple(_parse_arg(tokens) for _ in tokens.list("]"))
    if word.startswith("float("):
        return float(word[7:-2])
    if word in WORDS:
        return WORDS[word]
    if word[:1] in "'\"":
        text: str = ast.literal_eval(word)
        return text
    if INTEGER.fullmatch(word):
        return int(word)
    if NUMBER.fullmatch(word):
        return float(word)
    raise ValueError(f"{word!r} is no argument")
