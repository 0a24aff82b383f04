"""How a compiled model behaves as an nn.Module: what works, what changes nothing, what is refused.

| asked of it | answer |
|---|---|
| `model.backbone = fast` | it is a submodule like any other, without submodules of its own |
| forward hooks, hooks of state dicts, global ones | run; calls without hooks pay nothing |
| backward hooks of its own, `requires_grad_(True)`, `compile()` | refused: no backward pass |
| global backward hooks | run as for any module, up to the refusal of gradients |
| `eval()`, `train(False)`, `apply`, `zero_grad` | nothing changes |
| `train()` | stays in eval mode and warns, so that a model around it can be trained |
| `to`, `cuda`, `cpu`, `half`, ... | nothing, where device and dtype stay the same; else refused |
| `state_dict` | copies of the weights by the model's own names; ties stay ties |
| `load_state_dict` | computes with these weights from now on: refits, and keeps what plans lack |
| `parameters()`, `named_parameters()` | frozen copies of the weights, made one by one |
| `deepcopy`, `pickle`, `torch.save` | a plan of its own, in the form of a saved one, with weights |
| `fast.config` | plain data of the model; its methods, parts and tensors are at `fast.model` |
| `fast.head = nn.Linear(8, 2)`, `fast.eps = 0.1` | refused: it would not be compiled in |
| `torch.fx.symbolic_trace` of a module around it | it is a leaf; of itself: refused |
| `torch.func.functional_call(fast, ...)` | refused: `load_state_dict` gives it other weights |
| `AveragedModel(fast)` | refused: an average is written into parameters, and a plan has none |

`parameters()` of a module around it does not list its weights: they are constants, with nothing to
train. `state_dict()` of that module does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.overrides import _get_current_function_mode_stack

from anabranch.compiled.fitting import unreadable
from anabranch.errors import AnabranchError, OptionError, TargetError

COMPILE_AGAIN = "change the model it was compiled from, and compile that again"
SWAPPING = "torch.nn.utils._named_member_accessor"
"""The module in which torch.func.functional_call looks for parts of a model."""
AVERAGING = "torch.optim.swa_utils"
"""The module of AveragedModel, which writes averages into the parameters of a deep copy."""
FROZEN = "a compiled model has no backward pass"
TRAINING = (
    "a compiled model stays in eval mode: its plan computes what the model computed in eval mode, "
    "and its weights are constants. To train it, train the model it was compiled from, and give "
    "the new weights to the compiled one with load_state_dict"
)


class Fixed(nn.Module):
    """An nn.Module whose computation was decided when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    def _weights(self) -> dict[str, Tensor]:
        """The weights by the names that the model has for them."""
        raise NotImplementedError

    def _expected(self) -> dict[str, Tensor]:
        """What a state dict of the model has by name: tensors of the right shapes and dtypes."""
        raise NotImplementedError

    def _refit(self, state: dict[str, Tensor]) -> None:
        """Compute with these weights from now on; those that are missing stay as they are."""
        raise NotImplementedError

    def _kinds(self) -> list[Tensor]:
        """An empty tensor of each dtype that the weights have, or the inputs if there are none."""
        raise NotImplementedError

    def _stored(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        """A function and its arguments, which make another one of these."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return self._stored()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            raise _no_parts(name)
        if isinstance(value, Tensor) or self._is_the_models(name):
            raise OptionError(
                f"{name!r} was assigned to a compiled model",
                "its plan is decided: what is assigned to it would change no result",
                f"give it other weights with load_state_dict, or {COMPILE_AGAIN}",
            )
        super().__setattr__(name, value)

    def _is_the_models(self, name: str) -> bool:
        """Whether a name is one of the model that was compiled, and none of this object."""
        held = self.__dict__
        ours = name.startswith("_") or name in held or hasattr(type(self), name)
        return not ours and bool(held.get("entries")) and hasattr(held.get("model"), name)

    def register_module(self, name: str, module: nn.Module | None) -> None:
        """Raises OptionError: the plan is fixed, and would not run another part."""
        raise _no_parts(name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Raises OptionError: the plan is fixed, and would not run another part."""
        raise _no_parts(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Raises OptionError: the plan is fixed, and would not read another parameter."""
        raise _no_parts(name)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Raises OptionError: the plan is fixed, and would not read another buffer."""
        raise _no_parts(name)

    def train(self, mode: bool = True) -> Self:
        """Nothing changes; for training mode there is a warning that says what to do instead."""
        if mode:
            warnings.warn(TRAINING, stacklevel=2)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """False is what it is already."""
        if requires_grad:
            raise _no_gradients("requires_grad_(True) was asked of a compiled model")
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """There are no gradients."""

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises OptionError: a compiled model has no backward pass."""
        raise _no_gradients("a compiled model was given a backward hook")

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises OptionError: a compiled model has no backward pass."""
        raise _no_gradients("a compiled model was given a backward hook")

    def register_backward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises OptionError: a compiled model has no backward pass."""
        raise _no_gradients("a compiled model was given a backward hook")

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Raises OptionError: torch.compile finds nothing to work on in a plan."""
        raise OptionError(
            "compile() was asked of a compiled model",
            "torch.compile has nothing to work on here: the plan is one launch for it",
            "call it as it is, or give the original model to torch.compile",
        )

    def __prepare_scriptable__(self) -> NoReturn:
        raise not_recorded()

    def share_memory(self) -> Self:
        """Raises OptionError: kernels, streams and buffers belong to this process."""
        raise OptionError(
            "share_memory() was asked of a compiled model",
            "its plan has kernels, streams and buffers that belong to this process",
            "pickle it to the other process, or save it and load it there",
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Answers `to`, `half`, `cuda` and their kin, those of a module around it too."""
        for kind in self._kinds():
            try:
                moved = fn(kind)
            except AnabranchError:
                raise
            except Exception as failed:
                first = (str(failed).strip() or type(failed).__name__).splitlines()[0]
                raise _not_moved(kind, first) from failed
            if moved.dtype != kind.dtype or moved.device != kind.device:
                raise _not_moved(kind, f"{_kind(moved)} was asked for")
        return self

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Copies of the weights, made one by one as they are asked for: nothing that is written to
        them reaches the plan, and none requires gradients. `load_state_dict` changes weights."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As `parameters`, with the model's own names."""
        if _exporting():
            raise _not_exported()
        model = self.__dict__.get("model")
        named = model.named_buffers() if isinstance(model, nn.Module) else ()
        buffers = {name for name, _ in named}
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self._weights().items():
            tied = tensor.data_ptr(), tensor.shape
            number = tensor.is_floating_point() or tensor.is_complex()
            if number and name not in buffers and not (remove_duplicate and tied in seen):
                seen.add(tied)
                frozen = nn.Parameter(tensor.detach().clone(), requires_grad=False)
                yield f"{prefix}.{name}" if prefix else name, frozen

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Copies: of a weight that was written to in the plan's memory, the constants that were
        computed of it would still be those of the old one."""
        copies: dict[tuple[Any, ...], Tensor] = {}
        for name, tensor in self._weights().items():
            place = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            if place not in copies:
                copies[place] = tensor.detach().clone()
            destination[prefix + name] = copies[place]

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Compute with these weights from now on, without compiling again. They are cast to the
        model's dtypes, as a module's own are."""
        if assign:
            raise OptionError(
                "load_state_dict(assign=True) was asked of a compiled model",
                "a plan owns its weights, and reads nobody else's tensors",
                "leave assign=True out: the weights are copied",
            )
        return super().load_state_dict(state_dict, strict)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Of a module around it, too: the keys that begin with `prefix` are ours."""
        for hook in self._load_state_dict_pre_hooks.values():
            hook(
                state_dict,
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )
        expected = self._expected()
        state = {
            key.removeprefix(prefix): value
            for key, value in state_dict.items()
            if key.startswith(prefix)
        }
        missing = [prefix + name for name in expected if name not in state]
        extra = _EXTRA_STATE_KEY_SUFFIX  # of the model's code, which a plan does not run
        unexpected = [
            prefix + name for name in state if name not in expected and not name.endswith(extra)
        ]
        missing_keys += missing
        unexpected_keys += unexpected
        wrong = _misfits(expected, state, prefix)
        error_msgs += wrong
        if wrong:  # for this and for what is missing torch raises, or not, as it was asked
            return
        if held := {
            name: state[name].to(expected[name].dtype) for name in expected if name in state
        }:
            self._refit(held)

    def __copy__(self) -> Self:
        """Another object with the same plans."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        asking = sys._getframe(1).f_back  # behind copy.deepcopy
        if asking is not None and asking.f_globals.get("__name__") == AVERAGING:
            raise OptionError(
                "AveragedModel was given a compiled model",
                "it writes averages into parameters, and what is written to copies of a plan's "
                "weights changes no result",
                "average the original model, and give the average to the compiled one with "
                "load_state_dict(averaged.module.state_dict())",
            )
        make, args = self._stored()
        copy = make(*args)
        memo[id(self)] = copy
        return copy

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise TargetError(
            "a compiled model was given to DataParallel",
            "its plan runs on the device it was compiled for",
            "compile the model once for each device, or give DataParallel the original model",
        )

    def __getattr__(self, name: str) -> Any:
        """Plain data of the model; an AttributeError that says where to look for all else."""
        model = self.__dict__.get("model")
        if sys._getframe(1).f_globals.get("__name__") == SWAPPING:
            raise OptionError(
                f"functional_call was asked to give a compiled model other weights, in {name!r}",
                "its plan is decided, and has none of the model's parts",
                "give it other weights with load_state_dict, or functional_call the original model",
            )
        if name.startswith("_") or model is None:
            raise AttributeError(_absent(self, name, ""))
        try:
            value = getattr(model, name)
        except AttributeError:
            raise AttributeError(_absent(self, name, "")) from None
        if callable(value) or isinstance(value, (Tensor, nn.Module)):
            raise AttributeError(
                _absent(self, name, f"; the model's, which is not compiled, is at .model.{name}")
            )
        return value


def _misfits(expected: dict[str, Tensor], state: dict[str, Any], prefix: str) -> list[str]:
    """What is given of another shape, or is no tensor, in sentences."""
    wrong = []
    for name in expected.keys() & state.keys():
        want, got = expected[name], state[name]
        if not isinstance(got, Tensor):
            wrong.append(f"{prefix}{name} is a {type(got).__name__}, and not a tensor")
        elif why := unreadable(got):
            wrong.append(f"{prefix}{name} is {why}")
        elif got.shape != want.shape:
            shapes = f"{tuple(got.shape)}, the plan was compiled for {tuple(want.shape)}"
            wrong.append(f"{prefix}{name} has shape {shapes}")
    return sorted(wrong)


def _absent(self: nn.Module, name: str, more: str) -> str:
    return f"'{type(self).__name__}' object has no attribute '{name}'{more}"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def _not_moved(kind: Tensor, why: str) -> TargetError:
    return TargetError(
        f"a compiled model stays what it is: {_kind(kind)}",
        f"its kernels were chosen for that; {why}",
        "move or convert the model it was compiled from, and compile that again",
    )


def _no_parts(name: str) -> OptionError:
    return OptionError(
        f"a compiled model was given a part {name!r}",
        "its plan is decided: what is assigned to it would never run",
        COMPILE_AGAIN,
    )


def _no_gradients(what: str) -> OptionError:
    return OptionError(what, FROZEN, "train the original model, and load its weights afterwards")


def _exporting() -> bool:
    """Whether torch.export is at work; it looks at weights before it says so to a model."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(type(mode).__module__.startswith("torch._export") for mode in modes)


def _not_exported() -> OptionError:
    return OptionError(
        "a compiled model cannot be exported",
        "its kernels are launched past everything that torch.export records",
        "give torch.export the original model, or save the compiled one with .save(path)",
    )


def not_recorded() -> OptionError:
    """The error for torch.jit, which does not see kernels that a plan launches."""
    return OptionError(
        "a compiled model cannot be made TorchScript",
        "its kernels are launched past everything that torch.jit records",
        "give torch.jit the original model, or save the compiled one with .save(path)",
    )


def probe(dtype: torch.dtype, device: torch.device) -> Tensor:
    """An empty tensor, to see what a function makes of its kind."""
    return torch.empty(0, dtype=dtype, device=device)
