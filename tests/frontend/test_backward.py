"""Gradients of small networks as graphs: each against fp64, with eager's own error beside it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from copy import deepcopy

import pytest
import torch
from tests.frontend.steps import exact, functional, gradients, graph_of, translated
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from anabranch.frontend.backward import prepared
from anabranch.ir import attention_ops, ops
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.rounding import strict_values
from anabranch.ir.verify import verify_graph

F = nn.functional


def squares(model: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """A loss that reaches every result, and every parameter by another way."""
    out = model(*given)
    weights = (torch.arange(out.numel()) % 5 + 2).view(out.shape).to(out) / 4
    value: Tensor = (out * weights).square().mean()
    return value


class Applied(nn.Module):
    """A function behind a linear layer of the last axis."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: int = 7) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(size, size), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x) * 4)


class Abreast(nn.Module):
    """Functions side by side, each behind a linear layer of its own: traced once for all."""

    def __init__(self, functions: Iterable[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(Applied, functions))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([squares(part, x) for part in self.parts]).sum()


class Image(nn.Module):
    """A function behind a convolution of an image."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def agree(
    model: nn.Module, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], infer: bool = True
) -> Graph:
    """The graph says in fp64 what eager does in fp64, and in fp32 errs as little: per element, by
    four times as much at most, and by norm."""
    graph, names, given = graph_of(model, loss, batch)
    verify_graph(graph, infer=infer)
    truth = exact(model, loss, batch)
    order = [ref.name for ref in graph.outputs]
    near_eager = 1e-6 if strict_values(graph) else 1e-9  # what decides is computed as in fp32
    for wide in (torch.float64, None):
        found = dict(zip(order, eval_graph(graph, given, precision=wide), strict=True))
        eager = truth if wide else gradients(deepcopy(model), loss, batch)
        for name, want, own in zip(names, truth, eager, strict=True):
            got = found[name]
            assert got.shape == want.shape
            if not want.is_floating_point():
                assert torch.equal(got, want)
                continue
            rest, beside = got.double() - want, own.double() - want
            scale = near_eager if wide else 4e-6
            largest = want.abs().max().item() if want.numel() else 0.0
            near = 4 * beside.abs().max() + scale * max(largest, 0.2)
            assert rest.abs().max() <= near, f"%{name}: {rest.abs().max()} > {near}"
            assert rest.norm() <= 2 * beside.norm() + scale * max(want.norm().item(), 0.2)
    return graph


def kinds(graph: Graph) -> list[str]:
    return [ops.packet_name(node.op).partition(".")[2] for node in graph.nodes]


def opaque(graph: Graph) -> set[str]:
    """The operators that nothing is known of."""
    return {node.op for node in graph.nodes if ops.info(node.op).kind == "opaque"}


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 6, 7)),
    "strided": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 8, 7)),
    "dilated": (nn.Conv2d(4, 6, (3, 2), dilation=(2, 1), bias=False), (2, 4, 8, 7)),
    "grouped": (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 6, 6)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4, stride=2), (2, 4, 6, 6)),
    "pointwise": (nn.Conv2d(4, 6, 1), (2, 4, 5, 5)),
    "wide padding": (nn.Conv2d(4, 6, 2, padding=3), (1, 4, 5, 5)),
    "of lines": (nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "of volumes": (nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (1, 2, 4, 4, 4)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 4, 5)),
    "transposed groups": (nn.ConvTranspose2d(4, 8, 2, groups=2, padding=1), (2, 4, 4, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_has_a_contraction_for_each_gradient(name: str) -> None:
    layer, shape = CONVOLUTIONS[name]
    first = nn.Linear(shape[-1], shape[-1])  # so that somebody asks for the gradient of the image
    graph = agree(nn.Sequential(first, layer), squares, (torch.randn(shape),))
    made = kinds(graph)
    assert made.count("conv_weight_grad") == 1 and made.count("convolution") == 2
    assert "convolution_backward" not in made


def test_gradients_keep_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=2))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 4, 7, 7).contiguous(memory_format=torch.channels_last)
    graph = agree(model, lambda model, x: model(x).square().mean(), (x,))
    images = [node for node in graph.nodes if "conv" in node.op]
    assert len(images) == 5 and all(ops.channels_last(node.type) for node in images)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky relu": F.leaky_relu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "log sigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "glu": lambda x: F.glu(torch.cat([x, x.flip(-1)], -1)),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=-1),
}


JUMPING = ("softshrink", "hardshrink")
"""Those of which the forward jumps."""


@pytest.mark.parametrize("jumps", [False, True])
def test_activations(jumps: bool) -> None:
    chosen = [ACTIVATIONS[name] for name in ACTIVATIONS if (name in JUMPING) == jumps]
    graph = agree(Abreast(chosen), lambda model, x: model(x), (torch.randn(5, 7),))
    assert opaque(graph) <= {"aten.softshrink.default", "aten.hardshrink.default"}


def test_what_an_activation_reads_is_not_taken_for_a_decision() -> None:
    """Its gradient jumps; nobody asks that its operand is rounded as eager rounds it."""
    model = Image(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    assert not strict_values(agree(model, squares, (torch.randn(2, 3, 6, 6),)))


NORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch": (nn.BatchNorm2d(5), (3, 5, 4, 4)),
    "batch of large images": (nn.BatchNorm2d(5), (2, 5, 24, 23)),
    "batch of rows": (nn.BatchNorm1d(5), (6, 5)),
    "batch without running statistics": (
        nn.BatchNorm2d(5, track_running_stats=False),
        (3, 5, 4, 4),
    ),
    "batch in eval mode": (nn.BatchNorm2d(5).eval(), (3, 5, 4, 4)),
    "layer": (nn.LayerNorm([4, 6]), (3, 4, 6)),
    "layer without weights": (nn.LayerNorm(6, elementwise_affine=False), (3, 4, 6)),
    "group": (nn.GroupNorm(2, 6), (3, 6, 4, 5)),
    "instance": (nn.InstanceNorm2d(5, affine=True), (3, 5, 4, 6)),
    "root mean square": (nn.RMSNorm(6, eps=1e-5), (3, 4, 6)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_sums_and_arithmetic(name: str) -> None:
    torch.manual_seed(0)
    norm, shape = NORMS[name]
    first = nn.Linear(shape[-1], shape[-1])
    graph = agree(nn.Sequential(first, norm), squares, (torch.randn(shape),))
    assert not opaque(graph)


@pytest.mark.parametrize(("size", "first"), [((24, 23), (24, 1)), ((200, 3), (1, 1))])
def test_large_images_are_added_up_line_by_line(
    size: tuple[int, int], first: tuple[int, int]
) -> None:
    """Whoever reads a line of many channels reads all that lies side by side; short lines give
    as many numbers as there were."""
    graph = agree(Image(nn.BatchNorm2d(8)), squares, (torch.randn(2, 3, *size),))
    shapes = {
        node.name: node.type.shape
        for node in graph.nodes
        if node.op in ("aten.var_mean.correction", "aten.sum.dim_IntList")
    }
    assert list(shapes.values()).count((2, 8, *first)) == 3, shapes


def test_batch_norm_writes_its_running_statistics() -> None:
    model = nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5) * 3 + 1
    graph, names, given = graph_of(model, squares, (x,))
    found = dict(zip([ref.name for ref in graph.outputs], eval_graph(graph, given), strict=True))
    model(x)
    for name, buffer in zip(names[3:], model.buffers(), strict=True):
        torch.testing.assert_close(found[name], buffer)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": F.cross_entropy,
    "ignored and smoothed": lambda x, t: F.cross_entropy(x, t, ignore_index=2, label_smoothing=0.1),
    "weighted": lambda x, t: F.cross_entropy(x, t, x[0].detach().square() + 1),
    "summed": lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    "each": lambda x, t: F.cross_entropy(x, t, reduction="none").square().sum(),
    "squares": lambda x, t: F.mse_loss(x, F.one_hot(t, 7).to(x)),
    "smooth l1": lambda x, t: F.smooth_l1_loss(x, F.one_hot(t, 7).to(x)),
    "huber": lambda x, t: F.huber_loss(x, F.one_hot(t, 7).to(x), delta=0.5),
    "logits": lambda x, t: F.binary_cross_entropy_with_logits(x, F.one_hot(t, 7).to(x)),
    "divergence": lambda x, t: F.kl_div(x.log_softmax(-1), F.one_hot(t, 7).to(x) / 2 + 0.1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss = LOSSES[name]
    target = torch.tensor([0, 2, 6, 3, 2])
    graph = agree(
        nn.Linear(6, 7), lambda model, x, t: loss(model(x) * 3, t), (torch.randn(5, 6), target)
    )
    assert not opaque(graph)


def test_a_loss_of_images_asks_each_class() -> None:
    target = torch.randint(0, 4, (2, 5, 5))
    agree(
        nn.Conv2d(3, 4, 3),
        lambda model, x, t: F.cross_entropy(model(x), t, ignore_index=1),
        (torch.randn(2, 3, 7, 7), target),
    )


POOLS: dict[str, nn.Module] = {
    "maxima": nn.MaxPool2d(3, 2, 1),
    "averages": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive averages": nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive maxima": nn.AdaptiveMaxPool2d((3, 2)),
    "one average": nn.AdaptiveAvgPool2d(1),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling(name: str) -> None:
    graph = agree(Image(POOLS[name]), squares, (torch.randn(2, 3, 6, 8),))
    assert not opaque(graph)


class Attention(nn.Module):
    """One layer of attention of two heads."""

    def __init__(self, mask: Tensor | None = None, causal: bool = False, width: int = 8) -> None:
        super().__init__()
        self.qkv, self.causal = nn.Linear(8, 3 * width), causal
        self.mask: Tensor | None
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).view(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        return F.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.causal)


@pytest.mark.parametrize("name", ["plain", "causal", "masked"])
@pytest.mark.parametrize("math", [False, True])
def test_attention(name: str, math: bool) -> None:
    """By the library's backward, or spelled out."""
    model = Attention(torch.randn(5, 5) if name == "masked" else None, name == "causal")
    backend = SDPBackend.MATH if math else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(backend):
        graph = agree(model, squares, (torch.randn(2, 5, 8),))
    assert opaque(graph) <= {"aten._safe_softmax.default", "aten.logical_not.default"}
    assert (attention_ops.BACKWARD in {node.op for node in graph.nodes}) != math


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda x: torch.cat([x, x * 2, x[:, :3]], 1),
    "stack": lambda x: torch.stack([x, x.sin()], 1),
    "split": lambda x: torch.mul(*x.tensor_split(2, 0)),
    "slices": lambda x: x[1:, ::2] * x[:-1, 1::2].sum(1, keepdim=True),
    "select": lambda x: x[2] * x[0],
    "index": lambda x: x[:, torch.tensor([1, 3, 3])] * 2,
    "gather": lambda x: x.gather(1, torch.tensor([[0, 1, 1]]).expand(x.shape[0], 3)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0, 2, 2])),
    "pad": lambda x: F.pad(x, (1, 2)) * F.pad(x, (-1, 4), value=2.0),
    "reflected": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "cumsum": lambda x: x.cumsum(1),
    "extreme": lambda x: x.amax(1) + x.max(0).values.sum() + x.min(1).values,
    "deviation": lambda x: x.std(1) + x.var(0).sum(),
    "product": lambda x: x.prod(1),
    "unfold": lambda x: x.unfold(1, 3, 2).sum(-1),
    "roll": lambda x: x.roll(2, 1) * x.flip(0),
    "triangle": lambda x: x.tril() * x.triu(1).sum(),
    "where": lambda x: torch.where(x > 0, x.square(), x / 3),
    "clamp": lambda x: x.clamp(-1, 0.5) * x.abs(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x.cos()),
    "matmul": lambda x: x @ x.t() @ x,
    "sort": lambda x: x.sort(1).values[:, :2] + x.topk(2, 1).values,
    "scatter": lambda x: torch.zeros_like(x).scatter(1, torch.tensor([[1], [2]]), x[:2, :1]),
    "interpolated": lambda x: F.interpolate(x[None, None], scale_factor=2)[0, 0],
    "bilinear": lambda x: F.interpolate(x[None, None], size=(7, 9), mode="bilinear")[0, 0],
}


DECIDING = ("where", "clamp", "extreme", "sort")
"""Those that compare."""


@pytest.mark.parametrize("decides", [False, True])
def test_what_moves_elements(decides: bool) -> None:
    chosen = [MOVES[name] for name in MOVES if (name in DECIDING) == decides]
    agree(Abreast(chosen), lambda model, x: model(x), (torch.randn(4, 7),))


@pytest.mark.parametrize("bags", [False, True])
def test_a_lookup_passes_its_gradients_on(bags: bool) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 5, padding_idx=0)
            self.bags = nn.EmbeddingBag(9, 5) if bags else None
            self.last = nn.Linear(5, 9)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.words(x)
            found = found if self.bags is None else found + self.bags(x)[:, None]
            last: Tensor = self.last(found)
            return last

    tokens = torch.tensor([[1, 2, 2, 0], [8, 2, 0, 1]])
    # Of bags torch's meta kernel says other sizes than the CPU's has.
    graph = agree(Words(), squares, (tokens,), infer=not bags)
    assert "embedding_dense_backward" in kinds(graph)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_step_by_step(kind: str) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(nn, kind)(4, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x)[0][:, -1]
            return found

    with torch.backends.mkldnn.flags(enabled=False):
        graph = agree(Last(), squares, (torch.randn(2, 2, 4),))
    assert not opaque(graph)


def test_lists_of_tensors_are_updated_one_by_one() -> None:
    def step(*given: Tensor) -> list[Tensor]:
        weights, grads, moments = ([t.clone() for t in given[k : k + 2]] for k in (0, 2, 4))
        norms = torch._foreach_norm(grads)
        torch._foreach_mul_(moments, 0.9)
        torch._foreach_add_(moments, grads, alpha=0.1)
        torch._foreach_lerp_(moments, grads, 0.25)
        scale = torch._foreach_pow(2.0, norms)
        torch._foreach_div_(grads, scale)
        torch._foreach_addcmul_(weights, grads, moments, [0.5, 0.25])
        far = torch._foreach_sqrt(torch._foreach_add(torch._foreach_mul(grads, grads), 1e-3))
        torch._foreach_addcdiv_(weights, moments, far, -0.1)
        return [*weights, *moments]

    given = [torch.randn(shape) for _ in range(3) for shape in ((3, 4), (5,))]
    made, inputs = functional(step, given)
    graph, names = translated(made)
    assert not opaque(graph) and not any("foreach" in node.op for node in graph.nodes)
    found = dict(zip([ref.name for ref in graph.outputs], eval_graph(graph, inputs), strict=True))
    for name, want in zip(names, step(*given), strict=True):
        torch.testing.assert_close(found[name], want)


def test_a_batch_norm_of_cudnn_becomes_one_that_says_what_it_writes() -> None:
    """As it is recorded on a GPU: with memory of its own, which its backward reads."""
    x, grad = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    weight, bias, mean, var = torch.rand(3), torch.rand(3), torch.zeros(3), torch.ones(3)
    given = (x, weight, bias, mean, var, grad)
    graph = fx.Graph()
    names = ("x", "weight", "bias", "mean", "var", "grad")
    x_, w_, b_, mean_, var_, grad_ = map(graph.placeholder, names)
    aten = torch.ops.aten
    made = graph.call_function(
        aten.cudnn_batch_norm.default, (x_, w_, b_, mean_, var_, True, 0.1, 1e-5)
    )
    y, saved, scale, memory = (graph.call_function(operator.getitem, (made, i)) for i in range(4))
    back = graph.call_function(
        aten.cudnn_batch_norm_backward.default,
        (x_, grad_, w_, mean_, var_, saved, scale, 1e-5, memory),
    )
    graph.output((y, *(graph.call_function(operator.getitem, (back, i)) for i in range(3))))
    found = prepared(fx.GraphModule(nn.Module(), graph))(*given)
    layer = nn.BatchNorm2d(3)
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    want = layer(x.requires_grad_())
    wanted = torch.autograd.grad(want, [x, layer.weight, layer.bias], grad)
    for got, expected in zip(found, (want, *wanted), strict=True):
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(mean, layer.running_mean)
    torch.testing.assert_close(var, layer.running_var)
