"""What the library providers offer for a task, on which machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import anabranch
from anabranch.ir.eval import eval_graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph, text_graph
from anabranch.kernels.library import CUDNN_ENGINES, PROVIDERS, in_order

GPU = TargetSpec("cuda", "a GPU", simulated=True)
CPU = TargetSpec("cpu", "a CPU")
CONV = """
graph c {
  input %x: f16[1,8,6,6]{288,1,48,8}
  input %z: f16[1,4,6,6]{144,1,24,4}
  const %w: f16[4,8,1,1]{8,1,8,8} = 1
  const %b: f16[4] = 2
  %c: f16[1,4,6,6]{144,1,24,4} = aten.convolution.default(%x, %w, %b, [1, 1], [0, 0], [1, 1], \
False, [0, 0], 1)
"""
RELU = "  %r: f16[1,4,6,6]{144,1,24,4} = aten.relu.default(%c)\n  return %r\n}"
ADD_RELU = """  %a: f16[1,4,6,6]{144,1,24,4} = aten.add.Tensor(%z, %c)
  %r: f16[1,4,6,6]{144,1,24,4} = aten.relu.default(%a)
  return %r
}"""


def offers(text: str, spec: TargetSpec) -> list[str]:
    task = Task("t", parse_graph(text))
    return [
        f"{kernel.provider}.{kernel.name}"
        for provider in PROVIDERS
        for kernel in provider.kernels(task, spec)
    ]


def test_a_cpu_has_only_the_operators_themselves() -> None:
    assert offers(CONV + RELU, CPU) == ["aten.aten"]


def test_fused_convolutions_on_a_gpu() -> None:
    engines = ["cudnn.convolution"] * CUDNN_ENGINES
    assert offers(CONV + RELU, GPU) == ["aten.aten", "aten.cudnn_convolution_relu", *engines]
    assert offers(CONV + ADD_RELU, GPU) == [
        "aten.aten",
        "aten.cudnn_convolution_add_relu",
        *engines,
    ]
    assert offers(CONV + "  return %c\n}", GPU) == ["aten.aten", *engines]


@pytest.mark.parametrize("rest", [RELU, ADD_RELU])
def test_what_others_read_is_not_swallowed(rest: str) -> None:
    """A fused call makes one result."""
    assert offers(CONV + rest.replace("return %r", "return %c, %r"), GPU) == ["aten.aten"]


def test_the_fused_body_is_the_call() -> None:
    task = Task("t", parse_graph(CONV + ADD_RELU))
    (kernel,) = PROVIDERS[1].kernels(task, GPU)
    line = text_graph(kernel.body).splitlines()[-3].strip()
    assert line.startswith(
        "%r: f16[1,4,6,6]{144,1,24,4} = aten.cudnn_convolution_add_relu.default(%x, %w, %z, 1.0, %b"
    )
    assert not kernel.writes_out


def test_a_scaled_residual_is_not_fused() -> None:
    scaled = ADD_RELU.replace("(%z, %c)", "(%z, %c, alpha=2)")
    assert offers(CONV + scaled, GPU) == ["aten.aten"]


def test_a_convolution_is_no_residual_of_itself() -> None:
    assert offers(CONV + ADD_RELU.replace("(%z, %c)", "(%c, %c)"), GPU) == ["aten.aten"]


@pytest.mark.parametrize(
    ("after", "fused"),
    [
        ("aten.relu.default(%y)", True),
        ("aten.gelu.default(%y, approximate='tanh')", True),
        ("aten.gelu.default(%y)", False),  # which is exact, and the epilogue is not
    ],
)
def test_linear_with_its_activation_has_an_epilogue(after: str, fused: bool) -> None:
    text = f"""
graph l {{
  input %x: f16[8,16]
  const %w: f16[4,16] = 1
  const %b: f16[4] = 2
  %y: f16[8,4] = aten.linear.default(%x, %w, %b)
  %r: f16[8,4] = {after}
  return %r
}}"""
    assert offers(text, GPU) == ["aten.aten", *["aten.addmm_activation"] * fused]
    found = PROVIDERS[1].kernels(Task("t", parse_graph(text)), GPU)
    assert [kernel.writes_out for kernel in found] == [True] * fused


def test_a_linear_that_others_read_has_no_epilogue() -> None:
    text = """
graph l {
  input %x: f16[4,8]
  const %w: f16[6,8] = 1
  const %b: f16[6] = 2
  %l: f16[4,6] = aten.linear.default(%x, %w, %b)
  %r: f16[4,6] = aten.relu.default(%l)
  return RETURNED
}"""
    assert "aten.addmm_activation" in offers(text.replace("RETURNED", "%r"), GPU)
    assert offers(text.replace("RETURNED", "%l, %r"), GPU) == ["aten.aten"]


def test_a_pool_does_not_write_into_foreign_strides() -> None:
    """The kernel would ignore the strides of the memory it is given."""
    text = """
graph p {{
  input %x: f16[1,8,9,9]{x}
  %p: f16[1,8,4,4]{p} = aten.max_pool2d.default(%x, [3, 3], [2, 2])
  return %p
}}"""
    last = "{648,1,72,8}", "{128,1,32,8}"
    same = parse_graph(text.format(x=last[0], p=last[1]))
    other = parse_graph(text.format(x=last[0], p=""))
    assert PROVIDERS[0].kernels(Task("t", same), CPU)[0].writes_out
    assert not PROVIDERS[0].kernels(Task("t", other), CPU)[0].writes_out


def test_bodies_of_no_elements_are_left_to_the_plain_operators() -> None:
    """CuDNN's front end ends the process of an empty batch."""
    text = """
graph g {
  input %x: f32[N,2,4,4]
  const %w: f32[4,2,3,3] = w
  %c: f32[N,4,4,4] = @
  return %c
}"""
    call = "aten.convolution.default(%x, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)"
    spec = TargetSpec("cuda", "a GPU", simulated=True)
    for batch, providers in ((0, {"aten"}), (1, {"aten", "cudnn"})):
        body = parse_graph(text.replace("N", str(batch)).replace("@", call))
        offered = [k for p in PROVIDERS for k in p.kernels(Task("c", body), spec)]
        assert {kernel.provider for kernel in offered} == providers


ADDED = """
graph a {
  input %x: f32[9]
  input %i: i64[4]
  input %v: f32[4]
  %y: f32[9] = aten.index_add.default(%x, 0, %i, %v)
  return %y
}"""
SUMS = """
graph s {
  input %x: f32[9]
  %y: f32[9] = aten.cumsum.default(%x, 0)
  return %y
}"""


@pytest.mark.parametrize(
    ("text", "spec", "variants"),
    [(ADDED, GPU, ["in_order"]), (ADDED, CPU, [""]), (SUMS, GPU, []), (SUMS, CPU, [""])],
)
def test_only_what_gives_the_same_bits_in_each_run(
    text: str, spec: TargetSpec, variants: list[str]
) -> None:
    task = Task("t", parse_graph(text))
    offered = [k for provider in in_order(PROVIDERS) for k in provider.kernels(task, spec)]
    assert [kernel.variant for kernel in offered] == variants
    first, found = in_order(PROVIDERS)[0], PROVIDERS[0]
    assert first.version != found.version, "what was decided for one is not for the other"
    assert found.kernel(task, spec, "aten", "in_order").variant == "in_order", "of a saved plan"


def test_who_writes_in_a_roundabout_way_is_compared_with_who_does_not() -> None:
    """A gradient of an embedding is summed in the plan's memory, or in torch's own."""
    call = "aten.embedding_dense_backward.default(%g, %i, 9, 0, False)"
    body = f"  %d: f32[9,4] = {call}\n  return %d\n}}"
    task = Task("t", parse_graph(f"graph e {{\n  input %g: f32[5,4]\n  input %i: i64[5]\n{body}"))
    own, other = PROVIDERS[0].kernels(task, GPU)
    assert own.writes_out and not other.writes_out
    assert PROVIDERS[0].kernel(task, GPU, other.name, other.variant) == other
    assert [kernel.writes_out for kernel in PROVIDERS[0].kernels(task, CPU)] == [True]


UNTOLD: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "geqrf": (torch.geqrf, torch.randn(3, 3)),
    "histogram": (lambda x: torch.histogram(x, 3), torch.randn(9)),
    "argwhere": (torch.argwhere, torch.randn(3, 0)),
}


@pytest.mark.parametrize("target", ["cpu", "sim:h200"])
@pytest.mark.parametrize("name", UNTOLD)
def test_operators_of_which_torch_says_no_types_run_as_they_are(name: str, target: str) -> None:
    function, x = UNTOLD[name]
    fast = anabranch.compile(function, (x,), target=target, check=1, cache_dir=None, search="none")
    body = fast.entries[-1].plan.tasks.tasks[-1].body
    results: Any = fast(x) if target == "cpu" else eval_graph(body, [x], torch.device("cpu"))
    leaves = tree_leaves(function(x))
    torch.testing.assert_close(tree_leaves(results), leaves)


ATTENTION = """
graph a {{
  input %q: {0}[2,3,5,{1}]{{{2},{1},{3},1}}
  input %k: {0}[2,3,7,{1}]
  input %v: {0}[2,3,7,{1}]
  input %m: {4}
  %a: {0}[2,3,5,{1}]{{{2},{1},{3},1}} = aten.scaled_dot_product_attention.default({5})
  return %a
}}"""


def attends(
    dtype: str = "f16",
    head: int = 16,
    mask: str = "b1[2,1,1,7]",
    call: str = "%q, %k, %v, %m, 0.0, False",
) -> str:
    """Queries lie side by side within a token, as do results."""
    return ATTENTION.format(dtype, head, 15 * head, 3 * head, mask, call)


CUDNN_TAKES = {
    "truths": attends(),
    "numbers": attends("bf16", mask="bf16[1,3,5,7]"),
    "no mask": attends(call="%q, %k, %v"),
    "causal, scaled": attends(call="%q, %k, %v, None, 0.0, True, scale=0.5"),
}
CUDNN_LEAVES = {
    "fp32": attends("f32"),
    "heads of 12": attends(head=12),
    "dropout": attends(call="%q, %k, %v, None, 0.5"),
    "a mask of another type": attends(mask="f32[1,1,5,7]"),
}


@pytest.mark.parametrize("name", CUDNN_TAKES)
def test_attention_by_cudnn_is_what_the_model_calls(name: str) -> None:
    graph = parse_graph(CUDNN_TAKES[name])
    here = TargetSpec("cuda", "a GPU")
    kernels = [k for p in PROVIDERS for k in p.kernels(Task("t", graph), here)]
    (kernel,) = (k for k in kernels if k.name == "scaled_dot_product_cudnn")
    assert kernel.body.nodes[0].types == graph.nodes[0].types
    tensors = [random_tensor(value.type, at) for at, value in enumerate(graph.inputs)]
    if tensors[3].dtype == torch.bool:
        tensors[3][0] = False  # no query of the first image sees a key
    want, got = eval_graph(graph, tensors)[0], eval_graph(kernel.body, tensors)[0]
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    assert not any("cudnn" in offer for offer in offers(CUDNN_TAKES[name], GPU)), "none was timed"


@pytest.mark.parametrize("name", CUDNN_LEAVES)
def test_attention_that_cudnn_does_not_take(name: str) -> None:
    here = TargetSpec("cuda", "a GPU")
    assert offers(CUDNN_LEAVES[name], here) == ["aten.aten"]
