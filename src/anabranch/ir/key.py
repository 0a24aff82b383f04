"""Stable keys: the same text on every machine and in every process for the same computation.

A *structure* key ignores names and the content of constants, so that equal layers share one
timing; a *content* key includes the digests of constants, so that it names one function.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

import torch

from anabranch.ir.contents import bytes_of
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, State, rename, result_name
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import text_arg, text_graph
from anabranch.ir.threads import Pool

ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""What ends a line, as `str.splitlines` has it."""
COMMENT = re.compile(rf"(?:#[^{ENDS}]*(?:\r\n|[{ENDS}]|\Z))*")
"""The lines that a text begins with, as long as they are comments."""

THREADS = 8
"""That weights are digested by, at most."""
SMALL_BYTES = 1 << 15
"""Bytes that are digested sooner than another thread hears of them."""
TOGETHER_BYTES = 8 << 20
"""Bytes that are copied from a GPU at once, where they are of several weights."""


def digest_text(text: str) -> str:
    """32 hexadecimal digits (BLAKE2b, 16 bytes) of the text; the same in every process."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_tensor(tensor: torch.Tensor) -> str:
    """Names the content: dtype, shape and every byte."""
    return _digest(tensor, bytes_of(tensor).cpu())


def digest_tensors(tensors: Iterable[torch.Tensor]) -> list[str]:
    """As `digest_tensor` of each, on several cores. Copies from a GPU are made in this thread, with
    whose stream they are in order, and few are held at once."""
    listed = list(tensors)
    asked = dict[int, Future[str] | str]()
    with Pool(THREADS, "anabranch-digest") as pool:
        busy: deque[Future[str]] = deque()
        for number, content in _contents_on_cpu(listed):
            if content.numel() < SMALL_BYTES:
                asked[number] = _digest(listed[number], content)
                continue
            if len(busy) >= THREADS:
                busy.popleft().result()
            busy.append(pool.submit(_digest, listed[number], content))
            asked[number] = busy[-1]
        digests = (asked[number] for number in range(len(listed)))
        return [digest if isinstance(digest, str) else digest.result() for digest in digests]


def digest_source(content: str, path: str) -> str:
    """Names a constant that the model holds under this path: constants of two paths stay two, even
    while their contents are equal, for they may differ later."""
    return digest_text(f"{path} {content}")


def _contents_on_cpu(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """The number and the bytes of each tensor, in any order."""
    far: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.is_cuda:
            far.setdefault(tensor.device, []).append(number)
        else:
            yield number, bytes_of(tensor).cpu()
    for numbers in far.values():
        contents = copied_together(bytes_of(tensors[number]) for number in numbers)
        yield from zip(numbers, contents, strict=True)


def copied_together(contents: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Copies on the CPU of bytes on one GPU, in order. Neighbours go as one, of about
    `TOGETHER_BYTES`: each copy is waited for, and a network has a thousand small weights."""
    waiting, held = list[torch.Tensor](), 0
    for content in contents:
        if waiting and held + content.numel() > TOGETHER_BYTES:
            yield from _as_one(waiting)
            waiting, held = [], 0
        waiting.append(content)
        held += content.numel()
    yield from _as_one(waiting)


def _as_one(contents: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    if len(contents) < 2:
        return [content.cpu() for content in contents]
    return torch.split(torch.cat(list(contents)).cpu(), [content.numel() for content in contents])


def _digest(tensor: torch.Tensor, content: torch.Tensor) -> str:
    """SHA-256, for which processors have instructions: of a large network's weights it is seen."""
    state = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    size = content.numel()
    if size:  # not by `numpy()`, from where on torch resizes the tensor's memory no more
        state.update((ctypes.c_ubyte * size).from_address(content.data_ptr()))
    return state.hexdigest()[:32]


def canonical(graph: Graph, content: bool) -> Graph:
    """The graph with names replaced by positions; without `content` constants lose their digest."""
    if content:
        return _canonical(graph, content)
    try:
        return graph.same
    except AttributeError:
        same = _canonical(graph, content)
        object.__setattr__(graph, "same", same)
        return same


def _canonical(graph: Graph, content: bool) -> Graph:
    names: dict[str, str] = {}
    for i, value in enumerate(graph.inputs):
        names[value.name] = f"i{i}"
    for i, constant in enumerate(graph.constants):
        names[constant.name] = f"c{i}"
    for i, node in enumerate(graph.nodes):
        for k, result in enumerate(node.results):
            names[result] = result_name(f"n{i}", k)
    return Graph(
        "g",
        tuple(Input(names[value.name], value.type) for value in graph.inputs),
        tuple(
            Constant(names[c.name], c.type, c.digest if content else "-") for c in graph.constants
        ),
        tuple(
            Node(
                names[node.name],
                node.op,
                tuple(rename(arg, names) for arg in node.args),
                tuple((key, rename(arg, names)) for key, arg in node.kwargs),
                node.types,
                strict=node.strict,
            )
            for node in graph.nodes
        ),
        tuple(Ref(names[ref.name]) for ref in graph.outputs),
        states=tuple(State(names[state.name], state.output) for state in graph.states),
    )


def structure_text(graph: Graph) -> str:
    """The full text behind `structure_key`, for caches that verify the whole key on a hit."""
    try:
        return graph.structure
    except AttributeError:
        text = text_graph(canonical(graph, content=False), origins=False)
        object.__setattr__(graph, "structure", text)
        return text


def structure_key(graph: Graph) -> str:
    """Digest of what the graph computes; names, origins and values of constants do not count."""
    return digest_text(structure_text(graph))


def content_key(graph: Graph) -> str:
    """Digest of the canonical graph with the values of its constants: equal keys compute the
    same."""
    return digest_text(text_graph(canonical(graph, content=True), origins=False))


def task_text(task: Task) -> str:
    """What a timing of a task depends on: its computation and the kernel that does it."""
    kernel = task.kernel
    if kernel is None:
        return structure_text(task.body)
    return (
        f"{structure_text(task.body)}{kernel.provider} {kernel.name} {kernel.variant}\n"
        f"{structure_text(kernel.body)}{code(kernel.source)}"
    )


def code(source: str) -> str:
    """A generated source without the comment it starts with, which says for which task and from
    where in the model it is: what is left is equal for equal kernels."""
    match = COMMENT.match(source)
    return source[match.end() :] if match else source


def task_key(task: Task) -> str:
    """Digest of the task as `task_text` writes it, its kernel included."""
    return digest_text(task_text(task))


def tasks_text(tasks: TaskGraph) -> str:
    """The structure of a whole task graph with names replaced by positions: equal blocks of a
    network have equal texts, in the same order of tasks."""
    names: dict[str, str] = {}
    for i, value in enumerate(tasks.inputs):
        names[value.name] = f"i{i}"
    for i, constant in enumerate(tasks.constants):
        names[constant.name] = f"c{i}"
    for i, task in enumerate(tasks.tasks):
        names.update((name, f"t{i}.{k}") for k, name in enumerate(task.writes))
    for i, node in enumerate(tasks.aliases):
        names.update((name, f"a{i}.{k}") for k, name in enumerate(node.results))
    names.update((node.name, f"j{i}") for i, node in enumerate(tasks.elided_concats))
    lines = [f"{names[value.name]}: {value.type.text}" for value in tasks.inputs]
    lines += [f"{names[constant.name]}: {constant.type.text}" for constant in tasks.constants]
    for node in (*tasks.aliases, *tasks.elided_concats):
        args = [text_arg(rename(arg, names)) for arg in node.args]
        args += [f"{key}={text_arg(rename(arg, names))}" for key, arg in node.kwargs]
        lines.append(f"{node.op}({', '.join(args)})")
    for task in tasks.tasks:
        reads = [names[name] for name in task.reads]
        reads += [names[constant.name] for constant in task.body.constants]
        lines.append(f"{task_key(task)}({', '.join(reads)})")
    lines += [f"{names[state.name]} -> {state.output}" for state in tasks.states]
    lines.append("return " + ", ".join(names[ref.name] for ref in tasks.outputs))
    return "\n".join(lines)
