"""A process that compiles Triton texts: lines of JSON in, lines of JSON out.

    {"text": ..., "entry": "add", "types": ["*fp16", ...], "aligned": [true, ...], "options": ...}
    {"code": "f0VMRgIB...", "warps": 4, "shared": 0, "scratch": 0}
    {"refused": "CompilationError: at 7:4: ..."}

It is started as a script, by path, and imports Triton and nothing of ours: so it needs neither
torch nor a GPU, and the `__main__` of the user's program is not run again. It ends with its input,
so it does not outlive whoever started it. The text comes from the writer of that same process.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import linecache
import os
import sys
import tempfile
from types import ModuleType
from typing import Any

NICE = 5
"""There are as many of these processes as cores: who waits for what they compile, and times it, has
a core whenever it wants one."""
ALIGNED: list[list[Any]] = [["tt.divisibility", 16]]

FIRST = """
import triton
import triton.language as tl


@triton.jit
def first(out):
    tl.store(out, 0.0)
"""
CAPABILITY = 80
"""Of the GPU that the first text is compiled for, whichever is there: nobody runs it."""


def main(path: str) -> None:
    """Answer until the input ends. `path`: where to import from, as JSON."""
    # Triton prints what ptxas complains of: the pipe of answers must not see it.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path[:] = json.loads(path)
    if hasattr(os, "nice"):
        os.nice(NICE)
    import_compiler()
    with contextlib.suppress(Exception):  # whoever asks first hears of it
        compile_first()
    for line in sys.stdin.buffer:
        try:
            answer = compile_text(json.loads(line))
        except Exception as failed:
            answer = {"refused": f"{type(failed).__name__}: {failed}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def import_compiler() -> None:
    """Ahead of the first text: it takes as long as compiling five."""
    import triton
    import triton.backends.nvidia.compiler
    import triton.compiler

    knobs = triton.knobs
    knobs.runtime.interpret = False
    # Of the machine code nothing changes. Lines of the text, and PTX as text, are two thirds of a
    # cubin; what is written to files between the steps nobody reads.
    knobs.compilation.disable_line_info = True
    knobs.compilation.store_binary_only = True
    gc.collect()
    gc.freeze()


def compile_first() -> None:
    """A text of one store: the first of a process takes three times as long as the next ones, for
    Triton reads all of its own files, and its compiler is loaded."""
    request = {
        "text": FIRST,
        "entry": "first",
        "types": ["*fp32"],
        "aligned": [True],
        "capability": CAPABILITY,
        "options": {"num_warps": 1},
    }
    with tempfile.TemporaryDirectory(prefix="anabranch") as folder:
        compile_text(request | {"folder": folder})


def compile_text(request: dict[str, Any]) -> dict[str, Any]:
    """The machine code of one kernel, and what of a launch it does not say itself."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    triton.knobs.cache.dir = request["folder"]
    fn = getattr(module_of(request["text"], request["entry"]), request["entry"])
    names, types = fn.arg_names, request["types"]
    if len(names) != len(types):
        return {"refused": f"the text takes {len(names)} parameters, the program has {len(types)}"}
    attrs = {(i,): ALIGNED for i, aligned in enumerate(request["aligned"]) if aligned}
    source = ASTSource(fn, dict(zip(names, types, strict=True)), {}, attrs)
    target = GPUTarget("cuda", request["capability"], 32)
    return answer_of(triton.compile(source, target=target, options=request["options"]))


def module_of(text: str, entry: str) -> ModuleType:
    """The text as a module whose source `inspect` finds: Triton reads it from there."""
    name = f"anabranch_generated/{entry}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = ModuleType(f"anabranch_generated_{entry}")
    module.__file__ = name
    sys.modules[module.__name__] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def answer_of(built: Any) -> dict[str, Any]:
    """What the compiled kernel says of itself."""
    facts = built.metadata
    for name in ("profile_scratch_size", "launch_cooperative_grid", "tensordesc_meta"):
        if getattr(facts, name, None):
            return {"refused": f"it wants to be launched with {name}"}
    if getattr(facts, "num_ctas", 1) != 1:
        return {"refused": f"it wants clusters of {facts.num_ctas} CTAs"}
    return {
        "code": base64.b64encode(built.asm["cubin"]).decode(),
        "warps": facts.num_warps,
        "shared": facts.shared,
        "scratch": getattr(facts, "global_scratch_size", None) or 0,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
