"""Random numbers in generated kernels: the bits of the oracle, whatever the tiles."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import run
from tests.kernels.triton.test_codegen_compiled import compiled

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.kernels.triton.codegen import program, variants

DROPOUT = read("""
graph drop {
  input %x: f16[6,5,40]
  input %r: i64[2]
  %u: f32[6,5,40] = anabranch.uniform.default(%r, 3, [6, 5, 40])
  %kept: b1[6,5,40] = aten.ge.Scalar(%u, 0.25)
  %m: f16[6,5,40] = aten.mul.Tensor(%x, %kept)
  %y: f16[6,5,40] = aten.mul.Tensor(%m, 1.25)
  return %y, %kept
}""")
RANDOM = torch.tensor([-1234567890123, (1 << 40) + 77])


def same_bits(graph: Graph, tensors: list[torch.Tensor]) -> None:
    table = types(graph)
    given = {value.name: tensor for value, tensor in zip(graph.inputs, tensors, strict=True)}
    wanted = eval_graph(graph, tensors)
    found = variants(graph, gpu(132))
    assert found
    for variant in found:
        outs = run(program(graph, variant), given, {r.name: table[r.name] for r in graph.outputs})
        for ref, want in zip(graph.outputs, wanted, strict=True):
            assert torch.equal(outs[ref.name], want), (ref.name, variant)


def test_what_is_dropped_is_computed_where_it_is_read() -> None:
    same_bits(DROPOUT, [torch.randn(6, 5, 40).half(), RANDOM])


def test_a_number_and_numbers_of_another_layout() -> None:
    graph, tensors = body("anabranch.uniform.default", (RANDOM, 1 << 20, []))
    same_bits(graph, tensors)
    graph = read("""
    graph turned {
      input %x: f32[8,12]
      input %r: i64[2]
      %u: f32[12,8] = anabranch.uniform.default(%r, 0, [12, 8])
      %t: f32[8,12]{1,8} = aten.t.default(%u)
      %y: f32[8,12] = aten.add.Tensor(%x, %t)
      return %y
    }""")
    same_bits(graph, [torch.zeros(8, 12), RANDOM])


def test_compiles_for_a_gpu(tmp_path: Path) -> None:
    found = compiled(program(DROPOUT, variants(DROPOUT, gpu(132))[0]), 90, tmp_path)
    assert "mul.hi.u32" in found["ptx"] or "mul.wide.u32" in found["ptx"]
