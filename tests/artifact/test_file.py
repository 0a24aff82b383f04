"""Saved plans: equal when they come back; when they are bad, ArtifactError and nothing else."""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import JsonValue
from torch.utils import _pytree as pytree

from anabranch.artifact.file import load, save
from anabranch.errors import ArtifactError
from anabranch.ir.graph import Constant, Graph, Node, Ref
from anabranch.ir.key import digest_tensor
from anabranch.ir.plan import Leaf, Plan, Signature
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.text import parse_graph, parse_type
from anabranch.ir.trees import tree_text
from anabranch.ir.types import type_of
from anabranch.memory import pack

EXTRA: dict[str, JsonValue] = {
    "tolerance": 1e-3,
    "notes": ["naïve", None, {"deep": [1, 2.5, True]}],
}
Members = dict[str, bytes]


CONV = """
graph a {
  input %x: f16[2,3,8,8]
  const %w: f16[4,3,3,3]{27,1,9,3} = WEIGHT
  const %none: f32[0,3] = NONE
  %a: f16[2,4,6,6] = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0], 1)
  return %a
}"""
KERNEL = """
graph a {
  input %x: f16[2,3,8,8]
  const %w: f16[4,3,3,3]{27,1,9,3} = WEIGHT
  %a: f16[2,4,6,6] = aten.conv2d.default(%x, %w, None, [1, 1])
  return %a
}"""
ROWS = """
graph b {
  input %v: f16[8,36]
  %c: f16[8,36] = aten.clamp.default(%v, float('-inf'), 6.0)
  %d: f32[8,36] = aten._to_copy.default(%c, dtype=torch.float32)
  %b: f32[8,36] = aten.softmax.int(%d, dim=-1)
  return %b
}"""
CHANGED = """
graph m {
  input %x: f16[2,3,8,8]
  %m: f16[2,3,8,8] = aten.relu.default(%x)
  return %m
}"""


@pytest.fixture(name="plan", scope="module")
def _plan(networks: Any) -> Plan:
    """Weights in channels_last and tied, a kernel of each kind, an alias, a signature."""
    weight = torch.randn(4, 3, 3, 3).half().to(memory_format=torch.channels_last)
    w = Constant("w", type_of(weight), digest_tensor(weight), weight)
    tied = replace(w, name="tied")
    empty = torch.empty(0, 3)
    none = Constant("none", type_of(empty), digest_tensor(empty), empty)

    def body(text: str) -> Graph:
        text = text.replace("WEIGHT", w.digest).replace("NONE", none.digest)
        graph = parse_graph(text)
        held = {"w": w, "none": none}
        return replace(graph, constants=tuple(held[c.name] for c in graph.constants))

    conv = body(CONV)
    conv = replace(conv, nodes=(replace(conv.nodes[0], origin="net.py:7 in\n forward"),))
    kernel = Kernel(
        "triton",
        "conv",
        body(KERNEL),
        variant="64x64",
        writes_out=True,
        workspace=2048,
        temporary=3,
        launches=2,
        resources=Resources(12, 128, 64, 4096),
        source="# grüße\nkernel\r\n\u2028code",
    )
    library = Kernel("library", "softmax", body(ROWS), writes_out=False)
    view = Node("v", "aten.view.default", (Ref("a"), (8, 36)), (), (parse_type("f16[8,36]"),))
    tasks = TaskGraph(
        "τ 1",
        conv.inputs,
        (w, tied, none),
        (Task("a", conv, kernel), Task("b", body(ROWS), library), Task("m", body(CHANGED))),
        (view,),
        (Ref("b"), Ref("m")),
    )
    signature = Signature(
        tree_text(pytree.tree_structure(((0, 1, 1.0, True, "s"), {}))),
        (Leaf(Ref("x")), Leaf(None, 1), Leaf(None, 1.0), Leaf(None, True), Leaf(None, "s")),
        tree_text(pytree.tree_structure({"b": 0, "more": [0, 0]})),
        (Leaf(Ref("b")), Leaf(None, float("inf")), Leaf(None)),
        (("x", Ref("m")),),
    )
    spec = replace(networks.spec, versions=(("torch", "2.11"),), peak_flops=(("f16", 9e14),))
    plan: Plan = pack(tasks, networks.sequential(tasks), spec, signature)
    return plan


@pytest.fixture(name="file")
def _file(plan: Plan, tmp_path: Path) -> Path:
    save(plan, tmp_path / "net.anabranch", EXTRA)
    return tmp_path / "net.anabranch"


def test_round_trip_gives_an_equal_plan(plan: Plan, file: Path) -> None:
    found, extra = load(file)
    assert found == plan
    assert extra == EXTRA
    assert found.tasks.name == "τ 1"
    assert found.tasks.tasks[0].kernel == plan.tasks.tasks[0].kernel
    assert found.signature is not None
    literals = [type(leaf.literal) for leaf in found.signature.inputs]
    assert literals == [type(None), int, float, bool, str]
    assert found.tasks.tasks[0].origin == "net.py:7 in forward"


def test_weights_come_back_with_their_strides_and_ties(plan: Plan, file: Path) -> None:
    found, _ = load(file)
    for old, new in zip(plan.tasks.constants, found.tasks.constants, strict=True):
        assert old.value is not None and new.value is not None
        assert new.value.stride() == old.value.stride()
        assert torch.equal(new.value, old.value)
        assert digest_tensor(new.value) == new.digest
    w, tied, _none = found.tasks.constants
    body = found.tasks.tasks[0].body
    assert w.value is not None and tied.value is not None
    assert tied.value.data_ptr() == w.value.data_ptr()
    assert body.constants[0].value is w.value
    kernel = found.tasks.tasks[0].kernel
    assert kernel is not None and kernel.body.constants[0].value is w.value


def test_a_plan_without_weights_can_be_saved(networks: Any, tmp_path: Path) -> None:
    tasks = networks.tasks([("a", ("x",), 1024), ("b", ("a",), 1024)], ["b"])
    plan = pack(tasks, networks.shuffled(tasks, 3, 2), networks.spec)
    save(plan, tmp_path / "p", {})
    assert load(tmp_path / "p") == (plan, {})


def test_equal_plans_give_equal_bytes_and_no_litter(plan: Plan, file: Path) -> None:
    first = file.read_bytes()
    save(plan, file, EXTRA)
    assert file.read_bytes() == first
    assert os.listdir(file.parent) == [file.name]


def test_a_failed_save_leaves_the_old_file(
    plan: Plan, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save(plan, file, {})
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_members_are_readable_text_and_no_pickle(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == [
            "manifest.json",
            "plan.json",
            "weights.safetensors",
            "kernels/0000.txt",
        ]
        assert "grüße" in archive.read("kernels/0000.txt").decode()
        json.loads(archive.read("plan.json"))


def test_what_has_no_text_form_is_refused_when_saving(plan: Plan, tmp_path: Path) -> None:
    task = plan.tasks.tasks[1]
    odd: Any = b"bytes"
    node = replace(task.body.nodes[0], kwargs=(("dim", odd),))
    body = replace(task.body, nodes=(node,))
    tasks = replace(
        plan.tasks, tasks=(plan.tasks.tasks[0], replace(task, body=body), plan.tasks.tasks[2])
    )
    with pytest.raises(ArtifactError, match="cannot be saved"):
        save(replace(plan, tasks=tasks), tmp_path / "p", {})
    assert not os.listdir(tmp_path)


def test_another_kind_of_machine_is_refused_another_gpu_is_not(plan: Plan, file: Path) -> None:
    assert load(file, replace(plan.spec, name="Other GPU"))[0] == plan
    with pytest.raises(ArtifactError) as refused:
        load(file, replace(plan.spec, kind="cpu", name="this CPU"))
    assert "made for Test GPU (cuda)" in refused.value.what
    assert "compile the model for cpu" in refused.value.next


def test_any_flipped_bit_is_noticed_or_changes_nothing(plan: Plan, file: Path) -> None:
    data = file.read_bytes()
    rng = random.Random(0)
    places = [*range(60), *range(len(data) - 400, len(data))]
    places += [rng.randrange(len(data)) for _ in range(400)]
    refused = 0
    for at in places:
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        file.write_bytes(broken)
        try:
            found = load(file)
        except ArtifactError:
            refused += 1
        else:
            assert found == (plan, EXTRA)
    assert refused > 600


def test_any_truncation_is_refused(file: Path) -> None:
    data = file.read_bytes()
    for length in (0, 1, 3, 4, 30, *range(100, len(data), len(data) // 40), len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            load(file)


def test_other_files_are_not_saved_plans(file: Path, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "model.pt")
    (tmp_path / "text").write_text("hello")
    rewrite(file, lambda members: members.update({"manifest.json": b"[]"}), sign=False)
    for path in (tmp_path / "model.pt", tmp_path / "text", file):
        with pytest.raises(ArtifactError, match="is not a saved plan"):
            load(path)
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ArtifactError, match="cannot read"):
            load(path)


def rewrite(file: Path, change: Callable[[Members], Any], sign: bool = True, **how: Any) -> None:
    """The file again with its members changed; hashes made to fit, as an attacker would."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    if sign:
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"] = {
            name: sha256(data).hexdigest()
            for name, data in members.items()
            if name != "manifest.json"
        }
        members["manifest.json"] = json.dumps(manifest).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    file.write_bytes(stream.getvalue())


def in_manifest(**fields: Any) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        manifest = {**json.loads(members["manifest.json"]), **fields}
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def in_plan(old: str, new: str, times: int = -1) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        text = members["plan.json"].decode()
        assert old in text
        members["plan.json"] = text.replace(old, new, times).encode()

    return change


def test_a_rewritten_file_loads_if_nothing_is_wrong(plan: Plan, file: Path) -> None:
    rewrite(file, lambda members: None)
    assert load(file) == (plan, EXTRA)


def test_a_newer_version_says_so(file: Path) -> None:
    rewrite(file, in_manifest(version=99, another="field"))
    with pytest.raises(ArtifactError, match="newer version of Anabranch") as refused:
        load(file)
    assert "upgrade" in refused.value.next


DEEP = "[" * 5000 + "]" * 5000
ATTACKS: dict[str, tuple[str, Callable[[Members], Any]]] = {
    "a name outside": ("not expected", lambda members: members.update({"../../evil": b"x"})),
    "an absolute name": ("not expected", lambda members: members.update({"/etc/evil": b"x"})),
    "a member too many": (
        "not expected",
        lambda members: members.update({"kernels/0007.txt": b"x"}),
    ),
    "no weights": ("missing", lambda members: members.pop("weights.safetensors")),
    "no plan": ("missing", lambda members: members.pop("plan.json")),
    "other weights": (
        "eader",
        lambda members: members.update({"weights.safetensors": b"\x08" + bytes(15)}),
    ),
    "deep JSON": ("recursion", lambda members: members.update({"plan.json": DEEP.encode()})),
    "deep extra": ("recursion", in_plan('"notes":[', f'"notes":[{DEEP},')),
    "deep graph": ("nested", in_plan("dim=-1", f"dim={DEEP}")),
    "JSON of another kind": (
        "Field required",
        lambda members: members.update({"plan.json": b'{"a": 1}'}),
    ),
    "version 0": ("no format 0", in_manifest(version=0)),
    "a function as argument": ("no argument", in_plan("torch.float32", "torch.load")),
    "a lazy module as argument": ("no argument", in_plan("torch.float32", "torch.onnx")),
    "a complex argument": ("no argument", in_plan("dim=-1", "dim=1+2j")),
    "a huge number": ("digits", in_plan("dim=-1", "dim=" + "9" * 6000)),
    "a name as argument": ("no argument", in_plan("dim=-1", "dim=__import__")),
    "a value that is not there": (
        "%ghost is not defined",
        in_plan("return %a", "return %ghost"),
    ),
    "an unknown dtype": ("'f99', which is not known", in_plan("%a: f16[2,", "%a: f99[2,")),
    "a negative size": ("no tensor has type", in_plan("%m: f16[2,", "%m: f16[-2,")),
    "a huge size": ("no tensor has type", in_plan("%m: f16[2,", "%m: f16[9999999999999999,")),
    "an offset beyond the arena": (
        "outside the arena",
        in_plan('"offset":0,"nbytes":2048', '"offset":99840,"nbytes":2048'),
    ),
    "an arena of negative size": ("arena_bytes", in_plan('"arena_bytes":', '"arena_bytes":-')),
    "an arena larger than all places": (
        "holds values of",
        in_plan('"arena_bytes":', '"arena_bytes":9'),
    ),
    "a task launched nowhere": (
        "does not launch every task",
        in_plan('{"task":"b","stream":0', '{"task":"c","stream":0'),
    ),
    "a stream that is not there": ("on stream 7", in_plan('"stream":0', '"stream":7', 1)),
    "a source that is not there": ("names source 7", in_plan('"source":0', '"source":7')),
    "a number as text": ("valid integer", in_plan('"workspace":2048', '"workspace":"2048"')),
    "a variant of huge tiles": ("beyond all tiles", in_plan('"64x64"', '"64x6400000"')),
    "a variant that is code": ("is no name", in_plan('"64x64"', '"64;import os"')),
    "a terminal's escape": ("control characters", in_plan('"name":"conv"', '"name":"\\u001b[2J"')),
    "a machine without a number": ("nan of something", in_plan("900000000000000.0", "NaN")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_signed_nonsense_is_refused(file: Path, attack: str) -> None:
    why, change = ATTACKS[attack]
    rewrite(file, change)
    with pytest.raises(ArtifactError) as refused:
        load(file)
    assert why in refused.value.why
    assert refused.value.next


def test_a_zip_bomb_is_never_inflated(file: Path) -> None:
    rewrite(
        file,
        lambda members: members.update({"plan.json": bytes(1 << 26)}),
        compression=zipfile.ZIP_DEFLATED,
    )
    assert file.stat().st_size < 1 << 18
    with pytest.raises(ArtifactError, match="damaged") as refused:
        load(file)
    assert "compressed" in refused.value.why


def test_overlapping_members_are_refused(file: Path) -> None:
    """A "quine" bomb lets many directory entries point at the same bytes."""
    data = bytearray(file.read_bytes())
    size = (1 << 30).to_bytes(4, "little")
    at = data.rindex(b"PK\x01\x02")
    data[at + 20 : at + 28] = size + size
    file.write_bytes(data)
    with pytest.raises(ArtifactError):
        load(file)
