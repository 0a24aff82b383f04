"""A process that compiles Triton texts: lines of JSON in, lines of JSON out.

    {"text": ..., "entry": "add", "types": ["*fp16", ...], "aligned": [true, ...], "options": ...}
    {"code": "f0VMRgIB...", "shared": 0, "parameters": 5, "registers": 30, ...}
    {"refused": "CompilationError: at 7:4: ..."}

It is started as a script, by path, and imports Triton and nothing of ours: so it needs neither
torch nor a GPU, and the `__main__` of the user's program is not run again. It ends with its input,
so it does not outlive whoever started it. The text comes from the writer of that same process.
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)")
USED = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:\d+\s+LOCAL:(\d+)")
ALIGNED: list[list[Any]] = [["tt.divisibility", 16]]


def main(path: str, folder: str) -> None:
    """Answer until the input ends. `path`: where to import from, as JSON; `folder`: for files."""
    # Triton prints what ptxas complains of: the pipe of answers must not see it.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path[:] = json.loads(path)
    for line in sys.stdin.buffer:
        try:
            answer = compile_text(json.loads(line), Path(folder))
        except Exception as failed:
            answer = {"refused": f"{type(failed).__name__}: {failed}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def compile_text(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The cubin of one kernel, and what must be known to launch it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    triton.knobs.cache.dir = str(folder)
    triton.knobs.runtime.interpret = False
    fn = getattr(module_of(request["text"], request["entry"]), request["entry"])
    names, types = fn.arg_names, request["types"]
    if len(names) != len(types):
        return {"refused": f"the text takes {len(names)} parameters, the program has {len(types)}"}
    attrs = {(i,): ALIGNED for i, aligned in enumerate(request["aligned"]) if aligned}
    source = ASTSource(fn, dict(zip(names, types, strict=True)), {}, attrs)
    target = GPUTarget("cuda", request["capability"], 32)
    built = triton.compile(source, target=target, options=request["options"])
    return answer_of(built, len(types)) | used(built.asm["cubin"], folder)


def module_of(text: str, entry: str) -> ModuleType:
    """The text as a module whose source `inspect` finds: Triton reads it from there."""
    name = f"anabranch_generated/{entry}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = ModuleType(f"anabranch_generated_{entry}")
    module.__file__ = name
    sys.modules[module.__name__] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def answer_of(built: Any, given: int) -> dict[str, Any]:
    """What the compiled kernel says of itself. Its entry has more parameters than the text, how
    many depends on Triton's version: pointers to scratch memory, which may be null if unused."""
    facts = built.metadata
    found = ENTRY.search(built.asm["ptx"])
    if found is None:
        return {"refused": "its PTX has no entry"}
    parameters = [line for line in found[2].split(",") if line.strip()]
    odd = [line for line in parameters if ".u64" not in line]
    if odd or len(parameters) < given:
        return {"refused": f"its entry takes other parameters than pointers: {found[2]}"}
    for name in ("profile_scratch_size", "launch_cooperative_grid", "tensordesc_meta"):
        if getattr(facts, name, None):
            return {"refused": f"it wants to be launched with {name}"}
    if getattr(facts, "num_ctas", 1) != 1:
        return {"refused": f"it wants clusters of {facts.num_ctas} CTAs"}
    return {
        "code": base64.b64encode(built.asm["cubin"]).decode(),
        "entry": found[1],
        "warps": facts.num_warps,
        "shared": facts.shared,
        "parameters": len(parameters),
        "scratch": getattr(facts, "global_scratch_size", None) or 0,
    }


def used(code: bytes, folder: Path) -> dict[str, int]:
    """Registers a thread, and bytes that did not fit into them, as cuobjdump tells; 0 where it is
    missing: the driver knows them too, once the kernel is loaded."""
    import triton

    tool = getattr(getattr(triton.knobs.nvidia, "cuobjdump", None), "path", None)
    found = None
    if tool is not None:
        file = folder / f"{os.getpid()}.cubin"
        file.write_bytes(code)
        command = [tool, "--dump-resource-usage", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = USED.search(done.stdout)
    registers, stack, local = map(int, found.groups()) if found else (0, 0, 0)
    return {"registers": registers, "spilled": stack + local}


if __name__ == "__main__":
    main(*sys.argv[1:])
