"""Saved plans as weapons: nothing is imported, run, written or reached; ArtifactError and no more.

The files are signed anew, as their author would: what refuses them is what they say.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import fresh
from tests.artifact.test_file import Members, rewrite
from torch import nn

import anabranch
from anabranch.artifact import file as artifact_file
from anabranch.artifact.argument_checks import why_not
from anabranch.errors import AnabranchError, ArtifactError
from anabranch.ir import ops
from anabranch.ir.text import parse_node, parse_type

Doc = dict[str, Any]
FAST: dict[str, Any] = {
    "search": "none",
    "horizontal_fusion": "none",
    "pdl": "off",
    "cache_dir": None,
}


class Branches(nn.Module):
    """A task of its own for each line: several streams, a view, an operator with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        left, right = self.a(x).relu(), self.b(x).tanh()
        return {"sum": (left + right).softmax(-1), "turned": left.t()}


X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(name="saved", scope="module")
def _saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("plans") / "net"
    anabranch.compile(Branches().eval(), X, target="cpu", scheduler="greedy", **FAST).save(path)
    return path.read_bytes()


@pytest.fixture(name="file")
def _file(saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "net").write_bytes(saved)
    return tmp_path / "net"


def change(file: Path, edit: Callable[[Doc], Any]) -> None:
    def changed(members: Members) -> None:
        doc = json.loads(members["plan.json"])
        edit(doc)
        members["plan.json"] = json.dumps(doc).encode()

    rewrite(file, changed)


def refused(file: Path, **how: Any) -> ArtifactError:
    with pytest.raises(ArtifactError) as found:
        anabranch.load(file, target="cpu", **how)
    assert found.value.why and found.value.next
    return found.value


def first(pattern: str, text: str) -> str:
    """What the pattern's group finds first in the text, or all of it where there is no group."""
    found = re.search(pattern, text)
    assert found is not None
    return found.group(found.re.groups)


def kernel_of(doc: Doc, lines: list[str], inputs: str = "") -> None:
    """The kernel of the first task computes this; `{x}` is its input, `{y}` its result with its
    type."""
    task = doc["tasks"][0]
    text = task["body"]["text"]
    result = first(r"return %([\w.]+)", text)
    typed = first(rf"%{re.escape(result)}: \S+", text)
    x = first(r"input %([\w.]+)", text)
    head = [line for line in text.splitlines() if line.strip().startswith(("graph", "input"))]
    body = [line.format(x=f"%{x}", y=typed) for line in lines]
    text = "\n".join([*head, inputs, *body, f"return %{result}", "}"])
    task["kernel"]["body"] = {"name": "k", "text": text}


ZERO = "{y} = aten.zeros.default([4, 16])"
OPERATORS = {
    "writes a file": "%z: f32[4,16] = aten.save.default({x}, 'written')",
    "reads a file": "%z: f32[4,16] = aten.from_file.default('/etc/passwd')",
    "reads any address": "%z: f32[4] = inductor._reinterpret_tensor.default({x}, [4], [1], 99)",
    "changes a storage": "%z: f32[4,16] = aten.resize_.default({x}, [400000])",
    "writes in place": "%z: f32[4,16] = aten.fill_.Scalar({x}, 1.0)",
    "writes out": "%z: f32[4,16] = aten.add.out({x}, {x}, out={x})",
    "shows memory": "%z: f32[4,16] = aten.empty.memory_format([4, 16])",
    "runs a profiler": "%z: f32[1] = profiler._record_function_enter_new.default('x')",
    "loads a library": "%z: f32[4,16] = load_library.__call__.__call__('x.so')",
    "is not of torch": "%z: f32[4,16] = nobody.knows.default({x})",
    "trusts indices": "%z: f32[4] = aten.embedding_dense_backward.default({x}, {x}, 9, 0, False)",
}


@pytest.mark.parametrize("what", OPERATORS)
def test_an_operator_that_no_plan_needs_is_refused(file: Path, what: str) -> None:
    change(file, lambda doc: kernel_of(doc, [OPERATORS[what], ZERO]))
    error = refused(file)
    assert error.what.startswith("the plan calls ")
    assert os.listdir(file.parent) == [file.name]


BODIES = {
    "repeats more than it declares": ("computes", ["{y} = aten.repeat.default({x}, [1000, 100])"]),
    "declares more than it makes": ("computes", ["%z: f32[9,9] = aten.relu.default({x})", ZERO]),
    "takes what is no operand": ("should be", ["{y} = aten.add.Tensor({x}, None)"]),
    "reaches beyond its operand": (
        "reaches byte",
        ["%z: f32[4,16] = aten.as_strided.default({x}, [4, 16], [16, 1], 8)", ZERO],
    ),
    "reaches before its operand": (
        "no such sizes",
        ["%z: f32[4,16] = aten.as_strided.default({x}, [4, 16], [-16, 1])", ZERO],
    ),
    "takes more memory than there is": (
        "of memory",
        ["%z: f32[99999999999] = aten.zeros.default([99999999999])", ZERO],
    ),
    "makes a thousand million results": (
        "too many results",
        [
            "%w: f32[1000000000] = aten.zeros.default([1000000000])",
            "%z: f32[1] = aten.split.Tensor(%w, 1)",
            ZERO,
        ],
    ),
    "makes a sparse tensor": (
        "never set 'layout'",
        ["%z: f32[4,16] = aten.zeros_like.default({x}, layout=torch.sparse_coo)", ZERO],
    ),
    "runs elsewhere": ("should be", ["%z: f32[4] = aten.zeros.default([4], device='meta')", ZERO]),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_body_computes_what_it_declares(file: Path, what: str) -> None:
    why, lines = BODIES[what]
    change(file, lambda doc: kernel_of(doc, lines))
    assert why in refused(file).why


def test_a_kernel_reads_no_more_than_its_task(file: Path) -> None:
    """There is no wait for what it reads in secret."""

    def secret(doc: Doc) -> None:
        other = first(r"return %([\w.]+)", doc["tasks"][-1]["body"]["text"])
        typed = first(rf"%{re.escape(other)}: \S+", doc["tasks"][-1]["body"]["text"])
        kernel_of(doc, ["{y} = aten.add.Tensor(%" + other + ", 1)"], f"input {typed}")

    change(file, secret)
    assert "otherwise than its task" in refused(file).why


def edit(path: str, value: Any) -> Callable[[Doc], Any]:
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]

    def changed(doc: Any) -> None:
        for key in keys:
            doc = doc[key]
        doc[last] = value

    return changed


SIGNATURES = {
    "none": ("how the model is called", edit("signature", None)),
    "no inputs": ("other inputs", edit("signature.inputs", [])),
    "no outputs": ("those of its tree", edit("signature.outputs", [])),
    "an output of nobody": ("no output", edit("signature.outputs.0.ref.name", "a_weight")),
    "a write to nobody": (
        "not an output to an input",
        edit("signature.mutations", [["q", {"name": "x"}]]),
    ),
    "a question about nobody": (
        "asked of leaf 9, no tensor",
        edit("signature.asked", [{"leaf": 9, "what": "stride", "answer": "(1,)", "where": ""}]),
    ),
    "a question twice": (
        "asked of an input twice",
        edit("signature.asked", [{"leaf": 0, "what": "stride", "answer": "1", "where": ""}] * 2),
    ),
    "a question of another kind": (
        "signature.asked",
        edit("signature.asked", [{"leaf": 0, "what": "data_ptr", "answer": "1", "where": ""}]),
    ),
    "a setting of nobody's": (
        "no setting of torch",
        edit("signature.ambient.asked", [["os.system('x')", "0"]]),
    ),
    "no structure": ("no structure", edit("signature.output_tree", "[1, 2]")),
    "waits without end": ("waits", edit("schedule.launches.1.waits", ["x"] * 300_000)),
    "an arena of terabytes": ("holds values of", edit("arena_bytes", (1 << 48) - 1)),
    "an escape in a name": ("control characters", edit("border.name", "a\x1b[2Jb")),
}


@pytest.mark.parametrize("what", SIGNATURES)
def test_a_plan_says_what_fits_together(file: Path, what: str) -> None:
    why, changed = SIGNATURES[what]
    change(file, changed)
    error = refused(file)
    assert why in f"{error.what} {error.why}" or why == "no structure"


def test_a_class_in_the_file_is_never_imported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "evil_module.py").write_text(f"open({str(file) + '.ran'!r}, 'w')\nf = dict\n")
    monkeypatch.syspath_prepend(file.parent)

    def factory(doc: Doc) -> None:
        tree = json.loads(doc["signature"]["output_tree"])
        told = {"default_factory_module": "evil_module", "default_factory_name": "f"}
        keys = json.loads(tree[1]["context"])
        tree[1] |= {"type": "collections.defaultdict", "context": told | {"dict_context": keys}}
        doc["signature"]["output_tree"] = json.dumps(tree)

    change(file, factory)
    assert "made with evil_module.f" in refused(file).why
    assert "evil_module" not in sys.modules and not Path(f"{file}.ran").exists()


def test_messages_are_one_short_line_that_no_terminal_obeys(file: Path) -> None:
    change(
        file,
        lambda doc: kernel_of(doc, ["%z: f32[4] = aten.n\u202eo.default({x}, 'a\\x07')", ZERO]),
    )
    error = refused(file)
    change(file, edit("schedule.launches.0.task", "x" * 9000))
    long = refused(file)
    for text in (*error.args, *long.args):
        assert text.isprintable() and len(text) <= 400


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in refused(tmp_path / "pipe").why


def test_a_directory_of_any_size_is_not_read(file: Path) -> None:
    data = file.read_bytes()
    end = data.rindex(b"PK\x05\x06")
    entry = data[data.index(b"PK\x01\x02") : end]
    many = entry * (artifact_file.MAX_DIRECTORY // len(entry) + 1)
    tail = bytearray(data[end:])
    tail[12:16] = struct.pack("<I", len(many))
    file.write_bytes(data[: data.index(b"PK\x01\x02")] + many + tail)
    assert "its directory has" in refused(file).why


OUTSIDE = """
import sys, warnings, torch, anabranch
fast = anabranch.load(sys.argv[1], target="cpu")
out = fast(torch.ones(2))
assert "hidden_module" not in sys.modules
print(type(out).__name__, sorted(out), float(out.logits.sum()), out.loss, len(out.to_tuple()))
print([event.why for event in fast.trace.events if event.kind == "warning"])
"""
CLASS = """
from collections import OrderedDict
from dataclasses import dataclass
from torch.utils import _pytree as pytree
@dataclass
class Output(OrderedDict):
    logits: object = None
    loss: object = None
    def __post_init__(self):
        if self.logits is not None: self["logits"] = self.logits
        if self.loss is not None: self["loss"] = self.loss
pytree.register_pytree_node(Output, lambda o: (list(o.values()), list(o.keys())),
    lambda v, k: Output(**dict(zip(k, v))), serialized_type_name="hidden_module.Output")
"""


def test_results_of_a_class_survive_in_a_process_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hidden_module.py").write_text(CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    import hidden_module  # type: ignore[import-not-found]

    model = lambda x: hidden_module.Output(logits=x + 1)  # noqa: E731
    fast = anabranch.compile(model, torch.ones(2), target="cpu", **FAST)
    fast.save(tmp_path / "plan")
    assert type(anabranch.load(tmp_path / "plan", target="cpu")(torch.ones(2))).__name__ == "Output"
    monkeypatch.undo()
    changed = {"ANABRANCH_CACHE_DIR": str(tmp_path / "cache")}
    done = fresh.run(OUTSIDE, str(tmp_path / "plan"), env=changed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said, warned = done.stdout.splitlines()[-2:]
    assert said == "Record ['logits'] 4.0 None 1"
    assert "import hidden_module before loading" in warned


def test_a_users_operator_is_called_when_it_is_named(tmp_path: Path) -> None:
    with torch.library._scoped_library("anabranch_attacks", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        twice = torch.ops.anabranch_attacks.twice
        fast = anabranch.compile(lambda x: twice(x) + 1, torch.ones(3), target="cpu", **FAST)
        fast.save(tmp_path / "plan")
        error = refused(tmp_path / "plan")
        assert 'operators=["anabranch_attacks::twice"]' in error.next
        for name in ("anabranch_attacks::twice", "anabranch_attacks.twice.default"):
            again = anabranch.load(tmp_path / "plan", target="cpu", operators=[name])
            assert torch.equal(again(torch.ones(3)), torch.full((3,), 3.0))
        assert "names no operator" in refused(tmp_path / "plan", operators=["twice"]).what


NASTY: list[Any] = [
    0,
    -1,
    2**31,
    2**48 - 1,
    2**63,
    10**30,
    1e308,
    None,
    True,
    "",
    "x",
    "%x",
    [],
    {},
    "\x00",
]


def test_mutants_end_in_words(file: Path, saved: bytes) -> None:
    """Fields and numbers changed at random."""
    rng = random.Random(0)

    def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if not isinstance(value, dict | list):
            return [path]
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [path] * bool(path) + [p for key, item in items for p in leaves(item, (*path, key))]

    def mutate(doc: Any) -> None:
        *keys, last = rng.choice(leaves(doc))
        for key in keys:
            doc = doc[key]
        numbers = list(re.finditer(r"\d+", doc[last])) if isinstance(doc[last], str) else []
        if numbers and rng.random() < 0.7:
            found = rng.choice(numbers)
            new = str(rng.choice((0, 2, 7, 2**20, 2**40, 2**62)))
            doc[last] = doc[last][: found.start()] + new + doc[last][found.end() :]
        else:
            doc[last] = rng.choice(NASTY)

    refusals = 0
    for _ in range(150):
        file.write_bytes(saved)
        change(file, mutate)
        try:
            anabranch.load(file, target="cpu")
        except AnabranchError:
            refusals += 1
    assert refusals > 75


TRUSTED = {
    "fewer numbers than channels": (
        "_native_batch_norm_legit_no_training.default(%x, %three, None, %four, %four, 0.1, 1e-5)",
        "_native_batch_norm_legit_no_training.default(%x, %four, None, %four, %four, 0.1, 1e-5)",
    ),
    "other groups than there are": (
        "native_group_norm.default(%x, %four, %four, 2, 4, 6400, 2, 1e-5)",
        "native_group_norm.default(%x, %four, %four, 2, 4, 64, 2, 1e-5)",
    ),
    "lengths of other slices": (
        "_weight_norm_interface.default(%x, %three)",
        "_weight_norm_interface.default(%x, %lengths)",
    ),
    "a transform of nothing": (
        "_fft_r2c.default(%none, [1], 0, True)",
        "_fft_r2c.default(%x, [1], 0, True)",
    ),
    "a scale that leads away": (
        "upsample_nearest2d.vec(%x, [16, 16], [1e-300, 2.0])",
        "upsample_nearest2d.vec(%x, None, [1.3, 2.0])",
    ),
    "a mode that is none": (
        "grid_sampler_2d.default(%x, %grid, 7, 0, False)",
        "grid_sampler_2d.default(%x, %grid, 0, 0, False)",
    ),
    "a reduction that is none": ("mse_loss.default(%x, %x, 7)", "mse_loss.default(%x, %x, 1)"),
}
TABLE = {
    name: parse_type(text)
    for name, text in {
        "x": "f32[2,4,8,8]",
        "three": "f32[3]",
        "four": "f32[4]",
        "lengths": "f32[2,1,1,1]",
        "none": "f32[0,8]",
        "grid": "f32[2,3,3,2]",
    }.items()
}


@pytest.mark.parametrize("what", TRUSTED)
def test_kernels_are_not_called_with_what_they_would_trust(what: str) -> None:
    bad, good = (parse_node(f"%z: f32[1] = aten.{call}") for call in TRUSTED[what])
    assert why_not(bad, TABLE)
    types = ops.infer(good.op, good.args, good.kwargs, TABLE)
    assert not why_not(replace(good, types=types), TABLE)


@pytest.fixture(name="several")
def _several(file: Path) -> Path:
    """A file with plans for two sizes."""
    fast = anabranch.compile(Branches().eval(), X, sizes=[4, 8], target="cpu", **FAST)
    fast.save(file)
    return file


@pytest.mark.parametrize(
    "edit",
    [
        lambda members: members.pop("plan.json"),
        lambda members: members.update({"plans/0002.json": b"{}"}),
        lambda members: members.update({"plans/0007.json": members["plan.json"]}),
        lambda members: members.update({"plans/../x.json": members["plan.json"]}),
        lambda members: members.update({"plans/0001.json": b"{}"}),
    ],
)
def test_other_plans_than_there_may_be(several: Path, edit: Any) -> None:
    assert len(anabranch.load(several, target="cpu").entries) == 2
    rewrite(several, edit)
    refused(several)


def test_a_second_plan_may_be_left_out(several: Path) -> None:
    rewrite(several, lambda members: members.pop("plans/0001.json"))
    assert len(anabranch.load(several, target="cpu").entries) == 1


def test_one_digest_is_one_content(file: Path) -> None:
    """Constants that say the same content are one in memory: one that was checked must not stand
    for another."""

    def edit(doc: Doc) -> None:
        first, second = [w for w in doc["weights"] if "f32[16,16]" in w["constant"]][:2]
        digest = first["constant"].rpartition(" ")[2]
        old = second["constant"].rpartition(" ")[2]
        text = json.dumps(doc).replace(old, digest)
        doc.clear()
        doc.update(json.loads(text))

    change(file, edit)
    assert "digest of another content" in refused(file).why
