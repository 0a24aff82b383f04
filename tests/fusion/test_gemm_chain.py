"""Which groups become GEMM chains, the reasons where they do not, and that a chain computes
what its parts do."""

from __future__ import annotations

import pytest
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check

from anabranch.fusion import partition
from anabranch.fusion.gemm_chain import is_gemm_chain, with_gemm_chains
from anabranch.fusion.legality import FusionFacts
from anabranch.fusion.merge_cuts import choose
from anabranch.fusion.vertical import grow
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.triton.codegen import variants
from anabranch.trace import Trace


def network(lines: str, size: int = 28, dtype: str = "f16", returned: str = "") -> Graph:
    """Lines such as `a = conv3 x 64`, `p = conv1 a 128`, `d = depth a 64`, `m = pool a 64`,
    `r = relu a 64`, `s = add a b 64`: what is made, of what, and its channels."""
    channels, nodes, weights = {"x": 64}, list[str](), list[str]()

    def image(c: int) -> str:
        return f"{dtype}[1,{c},{size},{size}]{{{c * size * size},1,{c * size},{c}}}"

    for line in lines.strip().splitlines():
        name, _, op, *args, out = line.split()
        c, k = channels[args[0]], int(out)
        channels[name] = k
        taps, groups = (3, k) if op == "depth" else (int(op[-1]) if op[-1].isdigit() else 0, 1)
        rest = f"[1, 1], [{taps // 2}, {taps // 2}], [1, 1], False, [0, 0], {groups}"
        calls = {
            "relu": f"aten.relu.default(%{args[0]})",
            "add": f"aten.add.Tensor(%{args[0]}, %{args[-1]})",
            "pool": f"aten.max_pool2d.default(%{args[0]}, [3, 3], [1, 1], [1, 1])",
        }
        if op not in calls:
            each = c // groups
            strides = f"{{{each * taps * taps},1,{each * taps},{each}}}"
            strides = f"{{1,1,{3 * k},{k}}}" if op == "depth" else strides
            weights.append(f"const %w{name}: {dtype}[{k},{each},{taps},{taps}]{strides} = w{name}")
        call = calls.get(op, f"aten.convolution.default(%{args[0]}, %w{name}, None, {rest})")
        nodes.append(f"%{name}: {image(k)} = {call}")
    last = returned or f"%{nodes[-1][1:].split(':')[0]}"
    lines_of = [f"input %x: {image(64)}", *weights, *nodes, f"return {last}"]
    return read("\n".join(["graph net {", *lines_of, "}"]))


def chained(graph: Graph) -> tuple[list[str], list[str]]:
    """Groups as "a+b", and refusals as "what: why"."""
    trace = Trace()
    groups = with_gemm_chains(grow(graph, Trace(), True), FusionFacts.of(graph), gpu(), trace, 3)
    refused = [f"{e.what}: {e.why}" for e in trace.events if e.kind == "refused"]
    return ["+".join(node.name for node in group) for group in groups], refused


def test_a_convolution_and_the_one_of_single_pixels_behind_it() -> None:
    graph = network("a = conv3 x 64\nr = relu a 64\np = conv1 r 128\ns = relu p 128", 56)
    assert chained(graph) == (["a+r+p+s"], [])


def test_a_depthwise_convolution_and_a_pooling() -> None:
    for op in ("depth", "pool"):
        graph = network(f"a = {op} x 64\np = conv1 a 32\ns = relu p 32")
        assert chained(graph) == (["a+p+s"], [])


def test_a_group_is_in_one_chain_and_in_the_one_that_gains_most() -> None:
    """Either chain alone is legal: the middle one of three convolutions is asked for twice."""
    groups, refused = chained(network("a = conv1 x 64\nb = conv1 a 64\nc = conv1 b 64\n", 56))
    assert sorted(len(group.split("+")) for group in groups) == [1, 2]
    assert len(refused) == 1 and refused[0].endswith("another chain of one of them gains more")


def test_a_residual_is_read_behind_the_chain() -> None:
    graph = network("a = conv3 x 64\nb = conv1 a 64\ns = add b x 64\nr = relu s 64", 56)
    assert chained(graph) == (["a+b+s+r"], [])


@pytest.mark.parametrize(
    ("lines", "returned", "why"),
    [
        ("a = conv1 x 64\nb = conv1 a 64\nc = pool a 64", "%b, %c", "%a is also read by %c"),
        ("a = conv1 x 64\nb = conv1 a 64", "%a, %b", "%a is returned"),
        ("a = conv1 x 64\nb = conv1 x 64\ns = add b a 64\nr = relu s 64", "", "otherwise than"),
        (
            "a = conv1 x 64\nq = conv1 x 64\nb = conv1 a 64\ns = add b q 64\nr = relu s 64",
            "",
            "%a would wait for %q, which can run beside it",
        ),
        ("a = conv1 x 64\nb = depth a 64", "", "its first product has 0 axes"),
        ("a = conv3 x 512\nb = conv1 a 512", "", "us expected in one launch"),
    ],
)
def test_refusals_are_sentences(lines: str, returned: str, why: str) -> None:
    graph = network(lines, returned=returned)
    groups, refused = chained(graph)
    assert groups == unchained(graph)
    assert any(why in said for said in refused), refused


def unchained(graph: Graph) -> list[str]:
    return ["+".join(node.name for node in group) for group in grow(graph, Trace(), True)]


NET = """
a = conv3 x 32
r = relu a 32
b = conv1 r 64
s = add b x 64
t = relu s 64
d = depth t 64
p = conv1 d 32
q = pool t 64
u = conv1 q 32
v = add p u 32
"""


def test_a_graph_cut_into_chains_computes_the_same() -> None:
    graph = network(NET, 9, "f32")
    spec = gpu()
    tasks = partition(graph, Trace(), spec, True, False, True)
    verify_tasks(tasks)
    dag_of(tasks)
    assert [is_gemm_chain(task) for task in tasks.tasks].count(True) >= 2
    inputs = random_inputs(graph, 0)
    assert graph.constants[0].value is not None
    for ours, theirs in zip(eval_tasks(tasks, inputs), eval_graph(graph, inputs), strict=True):
        assert bool((ours == theirs).all())


@pytest.mark.parametrize(
    ("whole", "source", "chain"),
    [(2.0, "measured", True), (4.0, "measured", False), (2.0, "estimated", False)],
)
def test_a_chain_stays_where_it_is_known_to_be_faster(
    whole: float, source: CostSource, chain: bool
) -> None:
    """Even where of its parts there is only an estimate too."""
    graph = network("a = conv3 x 64\nr = relu a 64\np = conv1 r 128\ns = relu p 128", 56)
    fine = partition(graph, Trace(), gpu(), True)
    coarse = partition(graph, Trace(), gpu(), True, False, True)
    assert (len(fine.tasks), len(coarse.tasks)) == (2, 1)

    def cost(task: Task) -> Cost:
        return Cost(whole if is_gemm_chain(task) else 1.5, source)

    found = choose(coarse, fine, cost, Trace(), sure=is_gemm_chain)
    assert [is_gemm_chain(task) for task in found.tasks] == ([True] if chain else [False, False])


def test_no_chain_of_what_is_empty() -> None:
    text = """
    graph g {
      input %x: f32[0,8]
      const %w: f32[8,8] = w
      %a: f32[0,8] = aten.linear.default(%x, %w)
      %b: f32[0,8] = aten.linear.default(%a, %w)
      return %b
    }"""
    groups, refused = chained(parse_graph(text))
    assert groups == ["a", "b"] and "is empty" in refused[0]


def around(taps: int, before: str, returned: str = "%last") -> Graph:
    """Light work before a convolution of 64 channels, and its result in the order of the shape."""
    image = "f16[1,64,7,7]{3136,1,448,64}"
    rest = f"[1, 1], [{taps // 2}, {taps // 2}], [1, 1], False, [0, 0], 1"
    return read(f"""
    graph net {{
      input %x: {image}
      input %s: f16[1,64,1,1]
      const %w: f16[64,64,{taps},{taps}]{{{64 * taps * taps},1,{64 * taps},64}} = w
      %light: {image} = {before}
      %conv: {image} = aten.convolution.default(%light, %w, None, {rest})
      %sum: {image} = aten.add.Tensor(%conv, %x)
      %last: f16[1,64,7,7] = aten.clone.default(%sum)
      return {returned}
    }}""")


def test_light_work_runs_where_a_contraction_reads() -> None:
    graph = around(1, "aten.mul.Tensor(%x, %s)")
    assert chained(graph) == (["light+conv+sum+last"], [])


def test_a_change_of_layout_is_how_a_contraction_stores() -> None:
    """What is before the convolution is returned too, so it stays."""
    groups, refused = chained(around(1, "aten.mul.Tensor(%x, %s)", "%light, %last"))
    assert groups == ["light", "conv+sum+last"]
    assert refused == ["%light + %conv: %light is returned"]


def test_views_between_are_read_through() -> None:
    """The end of a block of ConvNeXt, which multiplies pixels and is added to as an image."""
    graph = read("""
    graph net {
      input %a: f16[1,7,7,256]
      input %x: f16[1,7,7,64]
      const %w: f16[64,256] = w
      const %g: f16[64] = g
      %lin: f16[1,7,7,64] = aten.linear.default(%a, %w, None)
      %mul: f16[1,7,7,64] = aten.mul.Tensor(%lin, %g)
      %sum: f16[1,7,7,64] = aten.add.Tensor(%mul, %x)
      %image: f16[1,64,7,7]{3136,1,448,64} = aten.permute.default(%sum, [0, 3, 1, 2])
      %last: f16[1,64,7,7] = aten.clone.default(%image, memory_format=torch.contiguous_format)
      return %last
    }""")
    assert chained(graph) == (["lin+mul+sum+image+last"], [])
    (task,) = partition(graph, Trace(), gpu(), True, True, 3).tasks
    check(task.body, variants(task.body, gpu())[:3])


def test_what_is_dear_is_not_computed_for_each_tap() -> None:
    groups, refused = chained(around(3, "aten.sigmoid.default(%x)"))
    assert groups == ["light", "conv+sum+last"]
    assert refused == ["%light + %conv: %light would be computed again for each window it lies in"]
    assert chained(around(3, "aten.relu.default(%x)"))[0] == ["light+conv+sum+last"]
    assert chained(around(1, "aten.sigmoid.default(%x)"))[0] == ["light+conv+sum+last"]


def test_a_concatenation_alone_is_left_to_joins() -> None:
    graph = read("""
    graph net {
      input %x: f16[1,32,7,7]{1568,1,224,32}
      input %y: f16[1,32,7,7]{1568,1,224,32}
      const %w: f16[64,64,1,1] = w
      %cat: f16[1,64,7,7]{3136,1,448,64} = aten.cat.default([%x, %y], 1)
      %conv: f16[1,64,7,7]{3136,1,448,64} = aten.convolution.default(%cat, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      return %conv
    }""")  # noqa: E501
    assert chained(graph) == (["cat", "conv"], [])


def rotated(heads: int, kept: str = "") -> Graph:
    """Queries and keys turned by their places, as decoders with rotary embeddings have it; the keys
    have half as many heads. `kept`: what is returned as well, as a cache of keys is."""

    def turn(name: str, count: int) -> list[str]:
        whole, half = f"f16[1,{count},24,16]", f"f16[1,{count},24,8]"
        strides = f"{{{count * 384},384,16,1}}"
        return [
            f"%{name}c: {whole} = aten.mul.Tensor(%{name}, %cos)",
            f"%{name}a: {half}{strides} = aten.slice.Tensor(%{name}, -1, 0, 8)",
            f"%{name}b: {half}{strides} = aten.slice.Tensor(%{name}, -1, 8, 16)",
            f"%{name}m: {half} = aten.neg.default(%{name}b)",
            f"%{name}r: {whole} = aten.cat.default([%{name}m, %{name}a], -1)",
            f"%{name}s: {whole} = aten.mul.Tensor(%{name}r, %sin)",
            f"%{name}t: {whole} = aten.add.Tensor(%{name}c, %{name}s)",
        ]

    keys = heads // 2
    lines = [
        f"input %q: f16[1,{heads},24,16]",
        f"input %k: f16[1,{keys},24,16]",
        f"input %v: f16[1,{keys},24,16]",
        "const %cos: f16[24,16] = cos",
        "const %sin: f16[24,16] = sin",
        *turn("q", heads),
        *turn("k", keys),
        f"%o: f16[1,{heads},24,16] = aten.scaled_dot_product_attention.default"
        "(%qt, %kt, %v, None, 0.0, True, enable_gqa=True)",
        f"return %o{kept}",
    ]
    return read("\n".join(["graph net {", *lines, "}"]))


@pytest.mark.parametrize("heads", [2, 4])
def test_queries_and_keys_are_turned_where_attention_reads_them(heads: int) -> None:
    graph = rotated(heads)
    apart = partition(graph, Trace(), gpu(), True, True)
    assert len(apart.tasks) == 3
    (task,) = partition(graph, Trace(), gpu(), True, True, 3).tasks
    assert task.reads == ("q", "k", "v")
    check(task.body, variants(task.body, gpu()))


def test_a_view_of_what_is_read_may_be_read_by_others_too() -> None:
    """Halves of the queries and of the keys are slices of slices of one product."""
    text = """
    graph net {
      input %x: f16[1,48,64]
      const %w: f16[96,64] = w
      const %v: f16[64,64] = v
      %all: f16[1,48,96] = aten.linear.default(%x, %w, None)
      %one: f16[1,48,64]{4608,96,1} = aten.slice.Tensor(%all, -1, 0, 64)
      %two: f16[1,48,32]{4608,96,1} = aten.slice.Tensor(%one, -1, 32, 64)
      %neg: f16[1,48,64] = aten.neg.default(%one)
      %out: f16[1,48,64] = aten.linear.default(%neg, %v, None)
      %exp: f16[1,48,32] = aten.exp.default(%two)
      return %out, %exp
    }"""
    graph = read(text)
    groups = [tuple(graph.nodes[i] for i in at) for at in ((0,), (1, 3), (4,), (2, 5))]
    found = with_gemm_chains(groups, FusionFacts.of(graph), gpu(), Trace(), 3)
    assert ["+".join(node.name for node in group) for group in found] == [
        "all",
        "one+neg+out",
        "two+exp",
    ]


def test_keys_that_are_kept_are_turned_before() -> None:
    trace = Trace()
    tasks = partition(rotated(4, ", %kt"), trace, gpu(), True, True, 3).tasks
    assert [" ".join(task.writes) for task in tasks] == ["kt", "o"]
    assert any(e.kind == "refused" and e.why == "%kt is returned" for e in trace.events)
