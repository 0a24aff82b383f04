"""Models by name: a word of the command line -> (module in eval mode, example arguments).

| name | is |
|---|---|
| zoo:NAME, zoo:NAME/tiny | a network of the zoo, in its paper's size or a tiny one |
| torchvision:NAME, timm:NAME | what these packages build, random, batch norms as after a batch |
| FILE.pt2 | a torch.export archive, with the inputs it was exported with |
| FILE.onnx, FILE.onnx:tokens=128 | a file of ONNX, with inputs of the sizes it leaves open |
| module:callable, FILE.py:callable | returns a module, or (module, args); the file may lie here |

    load_model("zoo:resnet50", batch=8, dtype="fp16", device="cuda")

A callable with a parameter `batch` gets the batch that is asked for; another one has its own.
Reading an archive may run code of its author, so that only happens if `trust` is set; importing a
module obviously runs it. Layout (channels last) is left to the compiler.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from anabranch.errors import AnabranchError, CaptureError, OptionError
from anabranch.frontend.export_patches import quiet
from anabranch.frontend.program import module_of
from anabranch.models.onnx_file import is_onnx_name, load_onnx
from anabranch.models.zoo import ZOO

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""What `dtype` may be. tf32 is fp32 here: that its contractions may run in tf32 is an option."""

MOST_LISTED = 40
"""Names that an error lists in full: all networks of the zoo, and not those of timm."""
FORMS = "zoo:NAME, torchvision:NAME, timm:NAME, FILE.pt2, FILE.onnx or module:callable"
IMAGE_SIZES = {"inception_v3": 299}
"""Pixels a side where torchvision's networks want other than 224."""

SAMPLES = 8
"""Inputs of which networks with random weights have the statistics. Of two, a channel of one number
may have hardly any variance: ReXNet in fp32 was off by 2e-3 of its results then, now by 3e-6."""

ModelAndArgs = tuple[nn.Module, tuple[Any, ...]]
PLAN = ".anabranch"
WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def load_model(
    name: str,
    batch: int | None = None,
    dtype: str | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    trust: bool = False,
) -> ModelAndArgs:
    """The model of this name on `device`, and arguments for one call of it.

    batch, dtype: None for 1 and fp32, or for what the archive holds. Floating-point weights and
    inputs are cast to dtype. OptionError for a name that means nothing, with those that are near.
    """
    if dtype is not None and dtype not in DTYPES:
        raise _unknown("dtype", dtype, DTYPES)
    if batch is not None and batch < 1:
        raise OptionError(f"a batch of {batch} is empty", "a batch is at least 1", "use --batch 1")
    if name.endswith(".pt2"):
        return _archive(name, batch, dtype, torch.device(device), trust)
    if is_onnx_name(name):
        return _onnx(name, batch, dtype, torch.device(device), seed)
    kind, colon, rest = name.rpartition(":") if ".py:" in name else name.partition(":")
    if not kind or not colon or not rest:
        raise _no_form(name)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        if kind in SOURCES:
            model, args = SOURCES[kind](rest, batch or 1)
        else:
            model, args = _callable(kind, rest, batch)
    return _placed(model.eval(), args, DTYPES[dtype or "fp32"], torch.device(device))


def size_of(name: str) -> float | None:
    """By how much a network by name takes longer to be compiled and timed than others, roughly: the
    geometric mean of its parameters, in millions, and its modules without parts. It is built
    without its weights. None for other models, and for names that mean nothing."""
    kind, _, rest = name.partition(":")
    if kind not in SOURCES or is_onnx_name(name) or ".py:" in name:
        return None
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
            model, _ = SOURCES[kind](rest, 1)
    except Exception:  # whoever compiles it will say so
        return None
    modules = sum(next(module.children(), None) is None for module in model.modules())
    return math.sqrt(modules * sum(p.numel() for p in model.parameters()) / 1e6)


def batch_of(name: str, args: tuple[Any, ...], batch: int | None) -> int | None:
    """The inputs per call: of networks by name what was asked for, of others what they bring."""
    if name.partition(":")[0] in SOURCES:
        return batch or 1
    sizes = [
        leaf.shape[0] for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor) and leaf.ndim
    ]
    return sizes[0] if sizes else batch


def _zoo(name: str, batch: int) -> ModelAndArgs:
    name, slash, size = name.partition("/")
    if name not in ZOO:
        raise _unknown("network of the zoo", name, ZOO)
    size = size if slash else "paper"
    if size not in ("paper", "tiny"):
        raise _unknown("size", size, ("paper", "tiny"))
    return ZOO[name].build(size), ZOO[name].inputs(size, batch)


def _torchvision(name: str, batch: int) -> ModelAndArgs:
    models = _package("torchvision.models")
    if name not in models.list_models():
        raise _unknown("network of torchvision", name, models.list_models())
    quiet = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model = models.get_model(name, weights=None, **quiet)
    side = IMAGE_SIZES.get(name, 224)
    return _with_statistics(model, torch.randn(batch, 3, side, side))


def _timm(name: str, batch: int) -> ModelAndArgs:
    timm = _package("timm")
    if not timm.is_model(name):
        raise _unknown("network of timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False)
    return _with_statistics(model, torch.randn(batch, *model.default_cfg["input_size"]))


def _with_statistics(model: nn.Module, x: Tensor) -> ModelAndArgs:
    """The model with batch norms as they are once a batch has passed, x among it, and those that
    begin by giving nothing switched on. As it is built, what it computes of x fades to zero along
    the way or grows beyond what fp16 holds, and comparing results would say nothing."""
    every = (m for m in model.eval().modules() if isinstance(m, _BatchNorm))
    norms = [norm for norm in every if norm.running_var is not None]
    kept = [(norm.momentum, copy.deepcopy(norm.state_dict())) for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = None  # the average of all batches, of which there is one
        if norm.weight is not None and not norm.weight.any():
            norm.weight.fill_(1.0)
    try:
        if norms:
            model(torch.cat([x[:1], torch.randn(SAMPLES - 1, *x.shape[1:])]))
    except Exception:  # it takes something else than images, or has norms of a single number
        for norm, (_, state) in zip(norms, kept, strict=True):
            norm.load_state_dict(state)
    for norm, (momentum, _) in zip(norms, kept, strict=True):
        norm.momentum = momentum
    return model.eval(), (x,)


SOURCES: dict[str, Callable[[str, int], ModelAndArgs]] = {
    "zoo": _zoo,
    "torchvision": _torchvision,
    "timm": _timm,
}


def _callable(place: str, name: str, batch: int | None) -> ModelAndArgs:
    """What the callable of a module or a Python file returns; it gets nothing but the batch."""
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_here(place)
    except Exception as failed:
        prefixes = [f"{source}:" for source in SOURCES]
        near = difflib.get_close_matches(f"{place}:", prefixes, 1)
        hint = f"did you mean {near[0]}{name}?" if near else "run it with python to see all of it"
        raise OptionError(
            f"cannot import {place}", f"{type(failed).__name__}: {failed}", hint
        ) from failed
    make = getattr(module, name, None)
    if not callable(make):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise _unknown(f"callable of {place}", name, callables)
    kwargs = {"batch": batch} if batch is not None and _takes(make, "batch") else {}
    try:
        result = make(**kwargs)
    except AnabranchError:
        raise
    except Exception as failed:
        raise CaptureError(
            f"{place}:{name} failed", f"{type(failed).__name__}: {failed}", "correct the callable"
        ) from failed
    model, args = result if isinstance(result, tuple) and len(result) == 2 else (result, ())
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"{place}:{name} returned a {type(model).__name__}",
            "a module is needed, and for a module with inputs their example",
            "return a torch.nn.Module, or a pair (module, args)",
        )
    args = tuple(args) if isinstance(args, list | tuple) else (args,)
    if batch != 1:  # what is asked for where nothing is
        _same_batch(f"{place}:{name}", args, batch, "gives inputs")
    try:
        inspect.signature(model.forward).bind(*args)
    except TypeError as differs:
        raise OptionError(
            f"{place}:{name} returned a {type(model).__name__} and {len(args)} inputs for it",
            str(differs),
            "return a pair (module, args) with the inputs of one call",
        ) from None
    return model, args


def _takes(make: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return False


def _from_here(name: str) -> ModuleType:
    """The module, looked for in the working directory as well, as `python -m` does."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _archive(
    name: str, batch: int | None, dtype: str | None, device: torch.device, trust: bool
) -> ModelAndArgs:
    """The module and inputs of a torch.export archive; its shapes and dtypes are its own."""
    if not Path(name).is_file():
        raise OptionError(f"there is no file {name}", "a name in .pt2 is a file", "check the path")
    if not trust:
        raise OptionError(
            f"{name} was not read",
            "torch.export archives hold pickled data: reading one may run code of its author",
            "use --trust if you know where it comes from",
        )
    try:
        with quiet():
            program = torch.export.load(name)
        if device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        args, kwargs = program.example_inputs
        module = module_of(program)
    except Exception as failed:
        raise CaptureError(
            f"cannot read {name}",
            str(failed).partition("\n")[0] or type(failed).__name__,
            "export the model again with torch.export.save, under this version of torch",
        ) from failed
    if kwargs:
        raise CaptureError(
            f"the program of {name} takes keyword arguments: {', '.join(kwargs)}",
            "calls of models given by name have positional ones only",
            "export it with positional arguments, or use anabranch.compile from Python",
        )
    _same_as_exported(name, args, batch, dtype)
    args = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), tuple(args))
    return module, args


def _onnx(
    name: str, batch: int | None, dtype: str | None, device: torch.device, seed: int
) -> ModelAndArgs:
    """The module and drawn inputs of a file of ONNX; floats that are not of 32 bits stay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, args = load_onnx(name, batch, DTYPES[dtype] if dtype else None)
    _same_as_exported(name, args, batch, dtype)
    return model.to(device), tuple(tensor.to(device) for tensor in args)


def _same_as_exported(
    name: str, args: tuple[Any, ...], batch: int | None, dtype: str | None
) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    floats = {tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point}
    if dtype is not None and floats and floats != {DTYPES[dtype]}:
        held = ", ".join(str(kind).removeprefix("torch.") for kind in floats)
        raise OptionError(
            f"{name} is not {dtype}",
            f"it was exported with {held}",
            f"use --dtype {' or '.join(key for key, kind in DTYPES.items() if kind in floats)}",
        )
    _same_batch(name, args, batch, "was exported")


def _same_batch(name: str, args: tuple[Any, ...], batch: int | None, verb: str) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    sizes = sorted({tensor.shape[0] for tensor in tensors if tensor.ndim})
    if batch is not None and sizes and batch not in sizes:
        raise OptionError(
            f"{name} has no batch of {batch}",
            f"it {verb} with leading sizes {', '.join(map(str, sizes))}",
            f"use --batch {sizes[0]}, or make it with the batch you want",
        )


def _placed(
    model: nn.Module, args: tuple[Any, ...], dtype: torch.dtype, device: torch.device
) -> ModelAndArgs:
    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.dtype.is_floating_point else None)

    return model.to(device=device, dtype=dtype), pytree.tree_map_only(Tensor, move, args)


def _package(name: str) -> Any:
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as failed:
        raise OptionError(
            f"models of {package} need that package",
            f"{type(failed).__name__}: {str(failed).partition(chr(10))[0]}",
            f"pip install {package}, in a version for this torch",
        ) from failed


def _unknown(what: str, name: str, names: Collection[str]) -> OptionError:
    near = difflib.get_close_matches(name, names, 5, 0.5)
    said = [f"did you mean {' or '.join(near)}?"] if near else []
    if len(names) <= MOST_LISTED:
        said.append(f"choose one of: {', '.join(names)}")
    elif not near:
        said.append(f"there are {len(names)}, for example {', '.join(sorted(names)[:5])}")
    return OptionError(f"unknown {what} {name!r}", "nothing has this name", " ".join(said))


def _no_form(name: str) -> OptionError:
    if name and Path(name).exists():
        raise _other_file(Path(name))
    near = [f"zoo:{match}" for match in difflib.get_close_matches(name, ZOO, 3, 0.5)]
    return OptionError(
        f"{name!r} does not name a model",
        f"a model is {FORMS}",
        f"did you mean {' or '.join(near)}?" if near else "for example zoo:resnet50",
    )


def _other_file(path: Path) -> OptionError:
    """For what is there, and is no model."""
    what, advice = "a file of another kind", "name a .pt2, an .onnx, or module:callable"
    if path.is_dir():
        what, advice = "a folder", "name a file in it"
    elif path.suffix == PLAN:
        what = "a saved plan, which is compiled already"
        advice = f"look at it with `anabranch explain {path}`, or run it by anabranch.load"
    elif path.suffix in WEIGHTS:
        what = "a file of weights, without the code of a model"
        advice = "write a function that makes the model and loads them, and name it module:callable"
    elif path.suffix == ".py":
        what = "a file of Python"
        advice = f"name the function in it that makes the model: {path}:make"
    return OptionError(f"{path} does not name a model", f"it is {what}", advice)
