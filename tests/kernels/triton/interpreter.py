"""Runs generated kernels without a GPU, in a child process: Triton interprets only what was
imported under TRITON_INTERPRET=1, and compiles only what was not.

Results lie in memory that reads as nan, with a margin behind it that must stay as it was, and so
must what lies between the elements of a result. A kernel that is launched while the one before it
runs finds nan (or 0) in what that one may still write, until it has waited.
"""

from __future__ import annotations

import dis
import functools
import inspect
import io
import itertools
import linecache
import math
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch
from tests import fresh

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import random_tensor
from anabranch.ir.tolerances import compare
from anabranch.ir.types import TensorType
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.program import Program

MARGIN = 64
_numbers = itertools.count()


def check(
    body: Graph,
    variants: Sequence[Variant | str],
    inputs: Sequence[torch.Tensor] = (),
    over: Mapping[str, str] | None = None,
) -> None:
    """Every variant computes what the body does, as exactly as the plain operators do. `over`:
    results that it writes where an input lies, by the result the input."""
    assert variants, "no variant to check"
    given = list(inputs) or [random_tensor(v.type, i) for i, v in enumerate(body.inputs)]
    values = {v.name: tensor for v, tensor in zip(body.inputs, given, strict=True)}
    held = [c.value for c in body.constants]
    assert all(value is not None for value in held)
    values.update((c.name, c.value) for c in body.constants if c.value is not None)
    own, truth = eval_graph(body, given), eval_graph(body, given, precision=torch.float64)
    table = types(body)
    wanted = [(ref.name, table[ref.name]) for ref in body.outputs]
    for variant in variants:
        written = program(body, variant)
        late = frozenset(v.name for v in body.inputs)
        found = run(written, values, dict(wanted), late, over)
        outs = [found[name] for name, _ in wanted]
        for (error, allowed), (name, type) in zip(compare(outs, own, truth), wanted, strict=True):
            assert error <= allowed, (
                f"%{name} {type.text} {variant}: {error} > {allowed}\n{written.text}"
            )


def run(
    written: Program,
    values: Mapping[str, torch.Tensor],
    outs: Mapping[str, TensorType],
    late: frozenset[str] = frozenset(),
    over: Mapping[str, str] | None = None,
) -> dict[str, torch.Tensor]:
    """The results of one launch, by name. `late`: what is there only after the wait; `over`:
    results in the memory of inputs."""
    args = (
        written,
        {n: values[n] for n in (*written.pointers, *(over or {}).values()) if n in values},
        dict(outs),
        late if written.pdl else frozenset(),
        dict(over or {}),
    )
    end = _process()
    end.send_bytes(_packed(args))
    assert end.poll(120), "no end"
    answer: dict[str, torch.Tensor] | Exception = pickle.loads(end.recv_bytes())
    if isinstance(answer, Exception):
        raise answer
    return answer


@functools.cache
def _process() -> Connection:
    return fresh.converse("from tests.kernels.triton.interpreter import serve; serve()")


def serve() -> None:
    """In the process that interprets: answers until nobody asks any more."""
    _interpret()
    end = Connection(os.dup(0))
    with suppress(EOFError):
        while True:
            args = pickle.loads(end.recv_bytes())
            try:
                answer: Any = _launch(*args)
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = error
            end.send_bytes(_packed(answer))


class _Pickler(pickle.Pickler):
    """Small tensors with their memory: torch would share each with a file of its own."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        memory = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        place = value.storage_offset(), tuple(value.shape), value.stride()
        return _unpacked, (memory.numpy().tobytes(), value.dtype, *place)


def _packed(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _unpacked(data: bytes, dtype: torch.dtype, *place: Any) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype)
    memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else empty
    return empty.set_(memory.untyped_storage(), *place)


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    import triton.language as tl
    from triton.language.extra import cuda

    cuda.gdc_wait, cuda.gdc_launch_dependents = _wait, lambda: None
    tl.inline_asm_elementwise = _instruction
    _multiply_bfloat16()
    _round_bfloat16()
    _convert_to_integers()
    _choose_zeros()
    _invert_unsigned()
    _spread_comparisons()
    _library()
    _flush()
    _waste_nothing()


def _waste_nothing() -> None:
    """The interpreter computes each sum of integers a second time to see whether it overflows, and
    tells nobody, as it does not debug; for each call of a function it looks anew through all of the
    language for what it has to replace, and for each dtype it writes a table anew. That was half of
    its time."""
    import triton.language as tl
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)
    parts = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    names = {
        part: [name for name, member in inspect.getmembers(part) if tl.core.is_builtin(member)]
        for part in parts
    }

    def patch_builtin(part: Any, builder: Any, scope: Any) -> None:
        for name in names[part]:
            member = getattr(part, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(part, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
    plain, dtypes = interpreter._get_np_dtype, {}

    def numpy_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = plain(dtype)
        return dtypes[name]

    interpreter._get_np_dtype = numpy_dtype
    _know_shapes()
    _know_sources()
    _combine_blocks()


def _know_sources() -> None:
    """The lines of a function are looked for twice; and the language, in which a kernel's functions
    are called, is prepared for each of their calls as for the kernel itself."""
    import triton.language as tl
    from triton.runtime import interpreter

    setattr(inspect, "getsourcelines", functools.cache(inspect.getsourcelines))  # noqa: B010
    plain = interpreter._patch_lang
    prepared: set[int] = set()

    @functools.cache
    def langs(function: Any) -> frozenset[int]:
        named = function.__globals__.values()
        return frozenset(id(part) for part in named if part is tl or part is tl.core)

    def patch_lang(function: Any) -> Any:
        if langs(function) <= prepared:
            return interpreter._LangPatchScope()
        scope, outermost = plain(function), not prepared
        prepared.update(langs(function))
        if outermost:
            restore = scope.restore

            def restored() -> None:
                prepared.clear()
                restore()

            scope.restore = restored
        return scope

    interpreter._patch_lang = patch_lang


def _combine_blocks() -> None:
    """What a function combines along an axis it is asked for element by element. Here it combines
    neighbours, then pairs of them and so on, all at once, as a device does."""
    import numpy as np
    from triton.runtime.interpreter import ReduceOps, ScanOps

    def combined(of: Any, left: Any, right: Any, like: Any) -> list[Any]:
        operands = (
            of.to_tensor(np.ascontiguousarray(data), one.dtype)
            for side in (left, right)
            for data, one in zip(side, like, strict=True)
        )
        found = of.combine_fn.fn(*operands)
        made = found if isinstance(found, tuple) else (found,)
        datas = (one.handle.data if hasattr(one, "handle") else one for one in made)
        return [
            np.broadcast_to(np.asarray(data), half.shape).astype(half.dtype)
            for data, half in zip(datas, left, strict=True)
        ]

    def reduce(self: Any, plain: Any, given: Any) -> Any:
        if self.axis is None and len(given) > 1:
            return plain(self, given)
        tensors, axis = self.unravel(given, self.axis)
        datas = [np.moveaxis(one.handle.data, axis, 0) for one in tensors]
        while len(datas[0]) > 1:
            left, right = ([data[first::2] for data in datas] for first in (0, 1))
            datas = combined(self, left, right, tensors)
        if not self.keep_dims:
            datas = [data[0] if self.axis is not None else data[0].item() for data in datas]
        elif self.axis is not None:
            datas = [np.moveaxis(data, 0, axis) for data in datas]
        else:
            datas = [data.reshape((1,) * given[0].handle.data.ndim) for data in datas]
        return [self.to_tensor(data, one.dtype) for data, one in zip(datas, tensors, strict=True)]

    def scan(self: Any, plain: Any, given: Any) -> Any:
        datas = [np.moveaxis(one.handle.data, self.axis, 0) for one in given]
        size, step = len(datas[0]), 1
        while step < size:
            before = [np.roll(data, step, 0) for data in datas]
            made = combined(self, before, datas, given)
            datas = [
                np.concatenate([data[:step], new[step:]])
                for data, new in zip(datas, made, strict=True)
            ]
            step *= 2
        datas = [np.moveaxis(data, 0, self.axis) for data in datas]
        return [self.to_tensor(data, one.dtype) for data, one in zip(datas, given, strict=True)]

    def in_blocks(combine: Any, plain: Any) -> Any:
        def called(self: Any, given: Any) -> Any:
            if _branches(self.combine_fn.fn):  # on what one element is
                return plain(self, given)
            return combine(self, plain, given)

        return called

    ReduceOps.generic_reduce = in_blocks(reduce, ReduceOps.generic_reduce)
    ScanOps.generic_scan = in_blocks(scan, ScanOps.generic_scan)


@functools.cache
def _branches(function: Any) -> bool:
    """Whether Python decides in it which way to go."""
    return any(
        "JUMP" in one.opname or "FOR" in one.opname for one in dis.get_instructions(function)
    )


def _know_shapes() -> None:
    """Every result has its type and its shape written anew, number by number: here types of blocks
    that are equal share what says so. A builtin is called through two functions less."""
    import triton.language as tl
    from triton.runtime import interpreter

    core: Any = tl.core
    of_types: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    of_shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    plain_type, plain_tensor = core.block_type.__init__, core.tensor.__init__

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([s.value if type(s) is core.constexpr else s for s in shape])
        key = element_ty.name, sizes
        known = of_types.get(key)
        if known is None:
            plain_type(self, element_ty, shape)
            self.sizes = sizes
            of_types[key] = dict(self.__dict__)
        else:
            self.__dict__.update(known)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = getattr(type, "sizes", ()) if type.is_block() else ()
        known = of_shapes.get(sizes)
        if known is None:
            plain_tensor(self, handle, type)
            of_shapes[sizes] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        inner = getattr(member, "__wrapped__", member)
        semantic = interpreter.interpreter_semantic

        def called(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(obj, name, called)

    interpreter._patch_attr = patch_attr
    _know_operands()


def _know_operands() -> None:
    """For each sum and product the interpreter finds out anew to which type and shape the operands
    are brought, and makes a block of each number: half of the rest. Here two operands of types that
    once stayed as they were do so again, and a number beside a type is the same block."""
    from triton.runtime import interpreter

    semantic: Any = interpreter.interpreter_semantic

    def remembering(plain: Any) -> Any:
        stay: set[object] = set()
        numbers: dict[object, Any] = {}

        def brought(lhs: Any, rhs: Any, *how: Any, **named: Any) -> tuple[Any, Any]:
            left, right = _operand(lhs), _operand(rhs)
            key = (left, right, how, *named.items())
            if key in stay:
                return lhs, rhs
            if key in numbers:
                block = numbers[key]
                return (block, rhs) if isinstance(left, tuple) else (lhs, block)
            made = plain(lhs, rhs, *how, **named)
            if made[0] is lhs and made[1] is rhs:
                stay.add(key)
            elif isinstance(left, tuple) and made[1] is rhs:
                numbers[key] = made[0]
            elif isinstance(right, tuple) and made[0] is lhs:
                numbers[key] = made[1]
            return made  # type: ignore[no-any-return]

        return brought

    for name in ("binary_op_type_checking_impl", "broadcast_impl_value"):
        setattr(semantic, name, remembering(getattr(semantic, name)))


def _operand(value: Any) -> object:
    """Of a block its type, of a number itself, with its sign also where it is zero."""
    return (type(value), repr(value)) if isinstance(value, (int, float)) else value.type.name


def _round_bfloat16() -> None:
    """The interpreter cuts digits off where a device rounds to the nearest."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.cast_impl

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == tl.bfloat16 and dst_type.scalar != tl.bfloat16:
            wide = (src.data.astype("uint32") << 16).view("float32")
            return plain(builder, TensorHandle(wide, tl.float32), dst_type)
        if dst_type.scalar != tl.bfloat16 or src.dtype.scalar == tl.bfloat16:
            return plain(builder, src, dst_type)
        data = np.ascontiguousarray(src.data, dtype="float32")
        bits = data.view("uint32")
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        near = np.where(np.isnan(data), 0x7FC0, near).astype("uint16")
        return TensorHandle(near, dst_type.scalar)

    InterpreterBuilder.cast_impl = cast_impl


def _convert_to_integers() -> None:
    """A number that an integer cannot hold becomes the nearest that it can, and nan 0, or the least
    one of 64 bits: so PTX's `cvt` has it (ISA, 9.7.9.21), where numpy does what its CPU does. There
    is none for a byte: that is the lower half of 16 bits."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

    plain = InterpreterBuilder.cast_impl

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        scalar = dst_type.scalar
        if not (src.dtype.scalar.is_floating() and scalar.is_int()) or scalar.is_bool():
            return plain(builder, src, dst_type)
        data, kind = np.asarray(src.data), np.dtype(_get_np_dtype(scalar))
        if data.dtype.kind != "f":
            return plain(builder, src, dst_type)
        if kind.itemsize == 1:
            kind = np.dtype(f"{kind.kind}2")
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        whole = np.trunc(data.astype("float64"))
        low, high = whole <= least, whole >= float(most)
        kept = np.where(low | high | np.isnan(whole), 0, whole).astype(kind)
        of_nan = least if kind.itemsize == 8 else 0
        found = np.select([np.isnan(whole), low, high], [of_nan, least, most], kept)
        return TensorHandle(found.astype(kind).astype(_get_np_dtype(scalar)), scalar)

    InterpreterBuilder.cast_impl = cast_impl


def _choose_zeros() -> None:
    """Of a zero and a number that is zero, the maximum and the minimum are numpy's second: eager's
    on a CPU is the operand, and not the number that it is compared with. A device orders zeros by
    their signs, whichever comes first."""
    from triton.runtime.interpreter import InterpreterBuilder

    def chosen(plain: Any) -> Any:
        def called(builder: Any, lhs: Any, rhs: Any, *rest: Any) -> Any:
            turned = not rhs.data.any() and rhs.data.dtype.kind == "f"
            return plain(builder, rhs, lhs, *rest) if turned else plain(builder, lhs, rhs, *rest)

        return called

    for name in ("create_maximumf", "create_minimumf"):
        setattr(InterpreterBuilder, name, chosen(getattr(InterpreterBuilder, name)))


def _invert_unsigned() -> None:
    """The interpreter asks numpy for -1 of every type, which refuses it of those without signs."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

    def get_all_ones_value(builder: Any, type: Any) -> Any:
        scalar = type.scalar
        ones = np.full(1, -1, np.int64).astype(_get_np_dtype(scalar))
        return TensorHandle(ones, scalar)

    InterpreterBuilder.get_all_ones_value = get_all_ones_value


def _spread_comparisons() -> None:
    """The interpreter takes a comparison for one of the type of what is compared, and as such it
    spreads that of two numbers over a block: truth values became floats there."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_splat

    def create_splat(builder: Any, type: Any, arg: Any) -> Any:
        data = np.asarray(arg.data)
        if data.dtype != np.bool_:
            return plain(builder, type, arg)
        return TensorHandle(np.full(type.shape, data.reshape(-1)[0]), arg.dtype.scalar)

    InterpreterBuilder.create_splat = create_splat


def _library() -> None:
    """Functions of numpy in place of the device's mathematical library."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def of(function: Any) -> Any:
        def called(*args: Any, **rest: Any) -> Any:
            tensors = [arg for arg in args if isinstance(arg, tl.tensor)]
            like = tensors[0].handle.data.dtype
            held = (a.handle.data if isinstance(a, tl.tensor) else like.type(a) for a in args)
            data, dtype = function(*held).astype(like), tensors[0].dtype.scalar
            block = any(tensor.type.is_block() for tensor in tensors)
            type = tl.block_type(dtype, list(data.shape)) if block else dtype
            return tl.tensor(TensorHandle(data, dtype), type)

        return called

    erf = np.vectorize(math.erf, otypes=[np.float64])
    table = {name: getattr(np, name) for name in ("exp", "log", "log2", "cos")}
    table |= {"tanh": np.tanh, "expm1": np.expm1, "log1p": np.log1p}
    table |= {"fmod": np.fmod}
    table["erf"] = lambda x: erf(x).astype(x.dtype)
    table["pow"] = lambda x, y: _flushed(np.power(_flushed(x), y))
    for name, function in table.items():
        setattr(libdevice, name, of(function))


def _flush() -> None:
    """A device's instructions for roots and their like take fp32 that is not normal for 0."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def flushing(plain: Any) -> Any:
        def called(builder: Any, arg: Any) -> Any:
            found = plain(builder, TensorHandle(_flushed(arg.data), arg.dtype))
            return TensorHandle(_flushed(found.data), found.dtype)

        return called

    for name in ("sqrt", "rsqrt", "exp2", "sin", "cos", "erf", "floor", "ceil"):
        plain = getattr(InterpreterBuilder, f"create_{name}")
        setattr(InterpreterBuilder, f"create_{name}", flushing(plain))


def _flushed(data: Any) -> Any:
    import numpy as np

    if data.dtype != np.float32:
        return data
    zero = np.copysign(np.float32(0), data)
    return np.where(np.abs(data) < np.finfo(np.float32).tiny, zero, data)


def _multiply_bfloat16() -> None:
    """The interpreter keeps bfloat16 as bits, and its dot multiplies them: so they are widened."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    narrow = InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype("uint32") << 16
        return TensorHandle(bits.view("float32"), tl.float32)

    def create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return narrow(builder, widened(a), widened(b), *rest)

    InterpreterBuilder.create_dot = create_dot


class _Before:
    """What stands in memory before the kernel has waited, and what it may ask for ahead."""

    def __init__(self, values: Mapping[str, torch.Tensor], late: frozenset[str]) -> None:
        self.late = [(values[name], values[name].clone()) for name in sorted(late & values.keys())]
        for tensor, _ in self.late:
            tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 0)
        constants = [values[name] for name in values if name not in late]
        self.spans = [
            (c.data_ptr(), c.data_ptr() + c.untyped_storage().nbytes()) for c in constants
        ]
        self.fetched = 0


_before: list[_Before] = []


def _wait() -> None:
    for tensor, value in _before[-1].late:
        tensor.copy_(value)


def _instruction(asm: str, constraints: str, args: Sequence[Any], **rest: Any) -> Any:
    """In place of an instruction that the interpreter does not know: a product, or what asks for
    constants only."""
    if asm.startswith("mul.rn"):
        return args[0] * args[1]
    assert asm.startswith("prefetch.global.L2"), asm
    for address in args[0].handle.data.flatten().tolist():
        assert any(start <= address < end for start, end in _before[-1].spans)
        _before[-1].fetched += 1


def _launch(
    written: Program,
    values: dict[str, torch.Tensor],
    outs: dict[str, TensorType],
    late: frozenset[str],
    over: dict[str, str],
) -> dict[str, torch.Tensor]:
    made = {name: _memory(type) for name, type in outs.items()}
    for new, old in over.items():
        made[new][0].copy_(values[old])
        values[old] = made[new][0]
    _before[:] = [_Before(values, late)]
    between = {name: _between(type, made[name][1]) for name, type in outs.items()}
    kept = {name: made[name][1][gaps].view(torch.uint8) for name, gaps in between.items()}
    pointers = [values[name] if name in values else made[name][0] for name in written.pointers]
    assert [p.dtype for p in pointers] == list(written.dtypes)
    scratch = torch.full((written.scratch,), 0xFF, dtype=torch.uint8)
    counters = torch.zeros(written.counters, dtype=torch.int32)
    pointers += [scratch] * bool(written.scratch) + [counters] * bool(written.counters)
    module = load_module(written.text)
    getattr(module, written.entry)[written.grid](*pointers)
    assert not counters.any(), "counters are not 0 again"
    assert bool(_before[-1].fetched) == ("prefetch" in written.text)
    for name, (_, whole) in made.items():
        assert bool((whole[-MARGIN:] == 77).all()), f"%{name} was written beyond its end"
        same = torch.equal(whole[between[name]].view(torch.uint8), kept[name])
        assert same, f"between the elements of %{name} something was written"
    return {name: view for name, (view, _) in made.items()}


def _memory(type: TensorType) -> tuple[torch.Tensor, torch.Tensor]:
    size = type.nbytes // type.dtype.itemsize
    whole = torch.full((size + MARGIN,), 77).to(type.dtype)
    if type.dtype.is_floating_point:
        whole[:size] = float("nan")
    if type.dtype == torch.bool:
        whole = torch.full((size + MARGIN,), 77, dtype=torch.uint8)
        return whole.view(torch.bool).as_strided(type.shape, type.strides), whole
    return whole.as_strided(type.shape, type.strides), whole


def _between(type: TensorType, whole: torch.Tensor) -> torch.Tensor:
    """Which elements of the memory are none of the result's."""
    own = torch.zeros(whole.shape, dtype=torch.bool)
    own.as_strided(type.shape, type.strides).fill_(True)
    return ~own


def load_module(text: str) -> ModuleType:
    """The module of this text. Triton asks `inspect` for its source, which also looks among the
    lines that are cached: so no file is written that somebody would have to remove."""
    name = f"anabranch_kernel_{next(_numbers)}"
    file = f"{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module
