"""Bodies for tests: one call of an operator, and graphs read from text with constants made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Constant, Graph, Input, Ref
from anabranch.ir.inputs import random_tensor
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph
from anabranch.ir.types import DTYPE_NAMES, TensorType, type_of


def body(op: str, given: tuple[Any, ...]) -> tuple[Graph, list[torch.Tensor]]:
    """The graph of one call whose tensors are its inputs, and those tensors; a dict at the end
    holds keyword arguments."""
    tensors: list[torch.Tensor] = []

    def ref(arg: Any) -> Arg:
        if isinstance(arg, torch.Tensor):
            tensors.append(arg)
            return Ref(f"a{len(tensors) - 1}")
        return tuple(map(ref, arg)) if isinstance(arg, list | tuple) else arg

    named = given[-1] if given and isinstance(given[-1], dict) else {}
    args = tuple(ref(arg) for arg in given if not isinstance(arg, dict))
    table = {f"a{k}": type_of(tensor) for k, tensor in enumerate(tensors)}
    node = ops.make_node("made", op, args, table, tuple(named.items()), "net.py:1 in forward")
    inputs = tuple(Input(name, type) for name, type in table.items())
    return Graph("g", inputs, (), (node,), (Ref("made"),)), tensors


def call(op: str, *given: Any) -> Graph:
    return body(op, given)[0]


def read(text: str) -> Graph:
    """The graph of this text, its types checked against what torch infers, its constants random."""
    graph = parse_graph(text)
    table: dict[str, TensorType] = {v.name: v.type for v in graph.inputs}
    table |= {c.name: c.type for c in graph.constants}
    for node in graph.nodes:
        found = ops.infer(node.op, node.args, node.kwargs, table)
        assert [t.shape for t in found] == [t.shape for t in node.types], (node.name, found)
        table.update(zip(node.results, node.types, strict=True))
    constants = tuple(
        Constant(c.name, c.type, c.digest, random_tensor(c.type, 50 + k))
        for k, c in enumerate(graph.constants)
    )
    return replace(graph, constants=constants)


def summed(lead: tuple[int, ...], k: int, n: int, block: int, dtype: torch.dtype) -> Graph:
    """A linear map with a residual, and mean and variance of every so many numbers of its rows."""
    name, dims, many = DTYPE_NAMES[dtype], "".join(f"{size}," for size in lead), n // block
    whole, cut, each = f"{dims}{n}", f"{dims}{many},{block}", f"f32[{dims}{many}]"
    widened = f"%f: f32[{cut}] = aten._to_copy.default(%b, dtype=torch.float32)"
    wide = "%b" if dtype == torch.float32 else "%f"
    return read(f"""
    graph g {{
      input %x: {name}[{dims}{k}]
      input %z: {name}[{whole}]
      const %w: {name}[{n},{k}] = w
      %p: {name}[{whole}] = aten.linear.default(%x, %w)
      %a: {name}[{whole}] = aten.add.Tensor(%p, %z)
      %b: {name}[{cut}] = aten.reshape.default(%a, [{cut}])
      {widened if wide == "%f" else ""}
      %u: {each} = aten.mean.dim({wide}, [-1])
      %uu: f32[{dims}{many},1] = aten.unsqueeze.default(%u, -1)
      %d: f32[{cut}] = aten.sub.Tensor({wide}, %uu)
      %dd: f32[{cut}] = aten.mul.Tensor(%d, %d)
      %q: {each} = aten.mean.dim(%dd, [-1])
      return %a, %u, %q
    }}""")


def renormed(
    lead: tuple[int, ...],
    k: int,
    n: int,
    many: int,
    dtype: torch.dtype,
    results: str = "%out, %r, %mr",
) -> Graph:
    """A linear map of rows, normalised after it by the means and variances of their parts."""
    name, dims = DTYPE_NAMES[dtype], "".join(f"{size}," for size in lead)
    part, each, out = f"f32[{dims}{many}]", f"f32[{dims}1]", f"{dims}{n}"
    return read(f"""
    graph g {{
      input %x: {name}[{dims}{k}]
      input %u: {part}
      input %q: {part}
      const %w: {name}[{n},{k}] = w
      const %s: f32[{n}] = s
      %m: {each} = aten.mean.dim(%u, [-1], True)
      %c: {part} = aten.sub.Tensor(%u, %m)
      %cc: {part} = aten.mul.Tensor(%c, %c)
      %qc: {part} = aten.add.Tensor(%q, %cc)
      %v: {each} = aten.mean.dim(%qc, [-1], True)
      %a: {each} = aten.abs.default(%v)
      %e: {each} = aten.add.Tensor(%a, 1e-05)
      %r: {each} = aten.rsqrt.default(%e)
      %mr: {each} = aten.mul.Tensor(%m, %r)
      %p: {name}[{out}] = aten.linear.default(%x, %w)
      %pr: f32[{out}] = aten.mul.Tensor(%p, %r)
      %ms: f32[{out}] = aten.mul.Tensor(%mr, %s)
      %d: f32[{out}] = aten.sub.Tensor(%pr, %ms)
      %out: {name}[{out}] = aten._to_copy.default(%d, dtype={dtype})
      return {results}
    }}""")


def gpu(sms: int = 132) -> TargetSpec:
    """A GPU of so many multiprocessors, else like an H200."""
    peaks = (("f16", 9.9e14), ("bf16", 9.9e14), ("tf32", 4.9e14), ("f32", 6.7e13))
    return TargetSpec(
        "cuda", "a GPU", sms=sms, capability=(9, 0), peak_flops=peaks, bandwidth=4.8e12
    )


def sru(steps: int, batch: int, depth: int, channels: int, dtype: torch.dtype, own: bool) -> Graph:
    """A layer of SRU without its residual: its own state before the first step, or zeros."""
    name = DTYPE_NAMES[dtype]
    each, wide = f"{name}[{steps},{batch},{channels}]", 3 * channels
    cut = f"{name}[{steps},{batch},{channels}]{{{batch * wide},{wide},1}}"
    state = f"input %c: {name}[{batch},{channels}]" if own else ""
    return read(
        f"""
    graph layer {{
      input %x: {name}[{steps},{batch},{depth}]
      {state}
      const %w: {name}[{wide},{depth}] = sha256:w
      const %b: {name}[{wide}] = sha256:b
      %l: {name}[{steps},{batch},{wide}] = aten.linear.default(%x, %w, %b)
      %z: {cut} = aten.slice.Tensor(%l, 2, 0, {channels})
      %f: {cut} = aten.slice.Tensor(%l, 2, {channels}, {2 * channels})
      %r: {cut} = aten.slice.Tensor(%l, 2, {2 * channels}, {wide})
      %g: {each} = aten.sigmoid.default(%f)
      %h: {each} = aten.rsub.Scalar(%g, 1)
      %u: {each} = aten.mul.Tensor(%h, %z)
      %s: {each} = anabranch.recurrence.default(%u, %g, {"%c" if own else "None"}, 0)
      %t: {each} = aten.tanh.default(%s)
      %o: {each} = aten.sigmoid.default(%r)
      %y: {each} = aten.mul.Tensor(%t, %o)
      return %y
    }}"""
    )
