"""Compilers of other houses as rivals, where their packages are installed.

| name | is | needs |
|---|---|---|
| xla | jax.jit of the module as torchax gives it to jax, its weights constants | jax, torchax |
| tvm | Relax with the default schedules of dlight, not tuned | apache-tvm |
| tensorrt | torch.compile(backend="tensorrt") | torch-tensorrt |

Where one is missing its row says so, and what to install. XLA and TVM run on streams of their own,
so calls wait for their results, and are timed with the host, as a user's are. Results are torch's
tensors on the same memory. XLA has a process of its own (`rival_process`), where jax takes memory
as it needs it, and not three quarters of the GPU's at once.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends.cuda import matmul
from torch.utils import _pytree as pytree
from torch.utils.dlpack import from_dlpack

from anabranch.bench.machine import Machine, TimedCall
from anabranch.errors import TargetError

Args = tuple[Any, ...]


def xla(model: nn.Module, args: Args, machine: Machine) -> tuple[TimedCall, int]:
    """A call compiled by XLA for jax's default device, and the bytes of its temporaries and
    results. Products in fp32 are tf32 where torch's are."""
    jax, torchax = _package("jax", "jax"), _package("torchax", "torchax")
    if machine.device.type == "cuda" and jax.default_backend() != "gpu":
        raise TargetError(
            "jax sees no GPU here",
            "it would run on the CPU beside systems that run on the GPU",
            "pip install 'jax[cuda13]', or the one for this CUDA",
        )
    to_jax = importlib.import_module("torchax.ops.mappings").t2j
    model, args = model.to("cpu"), pytree.tree_map_only(Tensor, lambda x: x.cpu(), args)
    products = "default" if matmul.allow_tf32 else "highest"
    with warnings.catch_warnings(), jax.default_matmul_precision(products):
        warnings.simplefilter("ignore")  # that int64 is int32 there
        weights, function = torchax.extract_jax(model)
        # An array that comes from a tensor on the CPU stays there, and XLA runs where its inputs
        # are.
        place = jax.devices()[0]
        weights = jax.device_put(weights, place)
        inputs = [jax.device_put(to_jax(x), place) for x in args]
        compiled = jax.jit(lambda *xs: function(weights, xs)).lower(*inputs).compile()
    taken = compiled.memory_analysis()

    def call() -> Any:
        outputs = jax.block_until_ready(compiled(*inputs))
        return [from_dlpack(x) for x in jax.tree_util.tree_leaves(outputs)]

    off = {d for x in jax.tree_util.tree_leaves(compiled(*inputs)) for d in x.devices()} - {place}
    if off:
        raise TargetError(
            f"XLA runs on {', '.join(map(str, sorted(off, key=str)))}, and not on {place}",
            "it would be timed elsewhere than the systems beside it",
            "report the model",
        )
    return call, int(taken.temp_size_in_bytes + taken.output_size_in_bytes)


def tvm(model: nn.Module, args: Args, machine: Machine) -> tuple[TimedCall, None]:
    """A call compiled by TVM as it comes, for the machine's device."""
    tvm = _package("tvm", "apache-tvm")
    relax = importlib.import_module("tvm.relax")
    translated = importlib.import_module("tvm.relax.frontend.torch").from_exported_program
    on_gpu = machine.device.type == "cuda"
    target = tvm.target.Target.from_device("cuda") if on_gpu else tvm.target.Target("llvm")
    with torch.no_grad(), warnings.catch_warnings(), target:
        warnings.simplefilter("ignore")
        program = torch.export.export(model, args)
        module = translated(program, keep_params_as_input=False, unwrap_unit_return_tuple=True)
        if on_gpu:
            module = _scheduled(relax.get_pipeline("zero")(module))
        compiled = tvm.compile(module, target=target)
    device = tvm.cuda(0) if on_gpu else tvm.cpu()
    run = relax.VirtualMachine(compiled, device)["main"]
    inputs = [tvm.runtime.from_dlpack(x.contiguous()) for x in args]

    def call() -> Any:
        outputs = run(*inputs)
        device.sync()
        several = not hasattr(outputs, "numpy")
        return [from_dlpack(x) for x in (outputs if several else [outputs])]

    return call, None


def tensorrt(model: nn.Module, args: Args, machine: Machine) -> tuple[TimedCall, None]:
    """torch.compile with TensorRT's engines."""
    _package("torch_tensorrt", "torch-tensorrt")
    compiled = torch.compile(model, backend="tensorrt")
    compiled(*args)
    return lambda: compiled(*args), None


def _scheduled(module: Any) -> Any:
    """With TVM's rules for each sort of loop nest on a GPU."""
    dl = importlib.import_module("tvm.s_tir.dlight")
    rules = dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()
    return dl.ApplyDefaultSchedule(*rules, dl.gpu.Fallback())(module)


def _package(name: str, distribution: str) -> Any:
    """TargetError where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as failed:  # of a package for another torch anything
        why = f"{type(failed).__name__}: {str(failed).partition(chr(10))[0]}"
        raise TargetError(
            f"{distribution} cannot be used here: {why}",
            "this rival needs it",
            f"pip install {distribution}, in a version for torch {torch.__version__}",
        ) from failed
