"""A plan as one file: Plan <-> a zip of stored members, read without running anything in it.

    manifest.json          format, version, machine, sha256 of every other member
    plan.json              tasks and graphs as text, schedule, slots, signature, extra
    plans/0001.json        another plan, for other sizes: texts and weights are those of all
    weights.safetensors    constants, each as the flat memory behind its strides
    kernels/0000.txt       generated source text, one file for each different text

A file may come from anybody. So: no pickle; members are stored, never inflated or unpacked to disk;
their names and sizes are known before they are read; what is parsed is checked as if it came from
a pass of ours, offsets included; operators are those that plans need, and compute what the file
declares. Kernel source comes back as text: whoever compiles it compares it with what is written
here. Hashes say whether the file is whole; they are compared while it is parsed, for weights are
nearly all of it. `docs/saved-plans.md` says what that promises.

Writing is atomic and repeatable: equal plans give equal bytes.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

import safetensors.torch
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from anabranch.artifact import schema
from anabranch.artifact.bounds import MAX_STEPS, check_source
from anabranch.artifact.operators import named
from anabranch.artifact.reading import Named, read
from anabranch.artifact.schema import MAX_TEXT
from anabranch.cache.whole_file import path_of, whole_file
from anabranch.errors import AnabranchError, ArtifactError, InputError, VerifyError, unwritable
from anabranch.ir.plan import Plan
from anabranch.ir.target import TargetSpec
from anabranch.ir.threads import Pool
from anabranch.memory.indices import check_indices
from anabranch.memory.race_check import check_plan

FORMAT = "anabranch plan"
VERSION = 4
"""2: task graphs have elided concats; 3: plans know how they take other weights; 4: several plans,
and states. Older files are read as before, and a file with one plan without is written as version
3."""
ONE_PLAN = 3
MAX_PLANS = 256
EPOCH = (1980, 1, 1, 0, 0, 0)
MAX_MEMBERS = 20_000
MAX_DIRECTORY = 256 * MAX_MEMBERS
"""Bytes of the zip file's directory, of which a member takes some 60."""
REQUIRED = ("plan.json", "weights.safetensors")
DAMAGED = "save the plan again, or fetch the file again and compare its size with the original's"


class Manifest(BaseModel):
    """What the file is, read before anything else; `machine` is for messages."""

    model_config = ConfigDict(extra="ignore", strict=True)

    format: str
    version: int
    machine: str = ""
    sha256: dict[str, str] = {}


def save(plan: Plan, path: str | os.PathLike[str], extra: Mapping[str, JsonValue]) -> None:
    """Write the plan, and `extra` beside it, to `path`: completely or not at all."""
    save_all([(plan, extra)], path)


def save_all(
    plans: Sequence[tuple[Plan, Mapping[str, JsonValue]]], path: str | os.PathLike[str]
) -> None:
    """As `save`, of several plans, each with what is beside it. Weights that are one in memory are
    written once. ArtifactError for more plans than a file may have."""
    target = path_of(path)
    if len(plans) > MAX_PLANS:
        raise ArtifactError(
            f"{len(plans)} plans are more than a file may hold",
            f"at most {MAX_PLANS} are read back",
            "compile for fewer sizes",
        )
    parts: schema.PlanParts | None = None
    members: dict[str, bytes] = {}
    for number, (plan, extra) in enumerate(plans):
        parts = schema.write(plan, dict(extra), parts)
        members[plan_name(number)] = parts.text.encode()
    assert parts is not None, "there is a plan"
    members["weights.safetensors"] = safetensors.torch.save(dict(parts.tensors))
    members |= {source_name(i): text.encode() for i, text in enumerate(parts.sources)}
    manifest = Manifest(
        format=FORMAT,
        version=VERSION if len(plans) > 1 or plan.tasks.states else ONE_PLAN,
        machine=plan.spec.name,
        sha256={name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    )
    members = {"manifest.json": manifest.model_dump_json(indent=1).encode(), **members}
    try:
        _write(target, members)
    except OSError as failed:
        raise unwritable(path, failed) from None


def _write(target: Path, members: Mapping[str, bytes]) -> None:
    with whole_file(target) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data)


def load(
    path: str | os.PathLike[str],
    spec: TargetSpec | None = None,
    operators: Collection[str] = (),
) -> tuple[Plan, dict[str, JsonValue]]:
    """The plan, equal to the one saved, with weights on the CPU, and what was saved beside it; of
    several the last one. As `load_all`."""
    return load_all(path, spec, operators)[-1]


def load_all(
    path: str | os.PathLike[str],
    spec: TargetSpec | None = None,
    operators: Collection[str] = (),
) -> list[tuple[Plan, dict[str, JsonValue]]]:
    """All plans of a file, each with what was saved beside it: weights that they share are one
    tensor.

    `operators`: the user's own that the plan may call, as "mylib::attend". With `spec`, a plan for
    another kind of machine is refused; one for another GPU, or for other versions, is not: compare
    `plan.spec.fingerprint` and tune again. ArtifactError for a file that is damaged, foreign, from
    a newer version, or says something that no plan may say.
    """
    asked, path = named(operators), path_of(path)
    try:
        members, manifest = _members(path)
        with Pool(1, "anabranch-check") as aside:
            whole = aside.submit(_check_whole, path, members, manifest)
            try:
                plans = _parsed(members, asked)
                for plan, _ in plans:
                    check_kind(path, plan, spec)
                    check_plan(plan, MAX_STEPS // len(plans))
                    check_indices(plan.tasks)
            finally:
                whole.result()  # that it is damaged says more than what is wrong in it
    except ArtifactError:
        raise
    except InputError as unknown:  # a class that is not imported, a tree that is none
        raise ArtifactError(f"{path}: {unknown.what}", unknown.why, unknown.next) from None
    except OSError as broken:
        raise ArtifactError(
            f"cannot read {path}", broken.strerror or str(broken), "check the path and your rights"
        ) from None
    except VerifyError as broken:
        raise ArtifactError(
            f"{path} holds a plan that would not run safely",
            str(broken).partition("\n")[0],
            "do not use this file; save the plan again from its model",
        ) from None
    except REFUSALS as broken:
        raise _damaged(path, _reason(broken)) from None
    return plans


def _parsed(
    members: Mapping[str, bytes], asked: frozenset[str]
) -> list[tuple[Plan, dict[str, JsonValue]]]:
    count = _plans_in(members)
    texts = [members[source_name(i)] for i in range(len(members) - len(REQUIRED) - count + 1)]
    for text in texts:
        check_source(text)
    tensors = safetensors.torch.load(members["weights.safetensors"])
    sources = tuple(text.decode() for text in texts)
    named, plans = Named(), []
    for number in range(count):
        plans.append(read(members[plan_name(number)], sources, tensors, asked, named))
    named.check(sources, tensors)
    return plans


def _plans_in(members: Collection[str]) -> int:
    return 1 + sum(name.startswith("plans/") for name in members)


def plan_name(number: int) -> str:
    """The name, inside the file, of a plan by its number."""
    return f"plans/{number:04}.json" if number else "plan.json"


MEMBER = b"PK\x03\x04"
"""What each member begins with."""
LOCAL = struct.Struct("<26xHH")
"""What precedes a member: 26 bytes that the directory repeats, the lengths of its name and of what
else follows."""


def source_name(number: int) -> str:
    """The name, inside the file, of a kernel's source text by its number."""
    return f"kernels/{number:04}.txt"


# What parsers raise on nonsense; ours among them, which may say it in any of these ways.
REFUSALS = (
    AnabranchError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    safetensors.SafetensorError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    NotImplementedError,
    RecursionError,
    MemoryError,
    OverflowError,
    EOFError,
    RuntimeError,
    SyntaxError,
    ArithmeticError,
    AssertionError,
)


def _members(path: Path) -> tuple[dict[str, bytes], Manifest]:
    """All members but the manifest by name, and the manifest."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise _not_ours(path, "it is no regular file")  # reading a pipe may wait for ever
    with path.open("rb") as file:
        if file.read(4) != MEMBER:
            raise _not_ours(path, "its first bytes are not those of a zip file")
        size = file.seek(0, os.SEEK_END)
        archive = zipfile.ZipFile(cast(IO[bytes], _Directory(file)))
        infos = archive.infolist()
        names = [info.filename for info in infos]
        if "manifest.json" not in names:
            raise _not_ours(path, "it is a zip file without manifest.json")
        if len(set(names)) != len(names) or len(names) > MAX_MEMBERS:
            raise _damaged(path, f"{len(names)} members, some of the same name, or too many")
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise _damaged(path, "a member is compressed; saved plans never are")
        # Stored members cannot outgrow the file unless they overlap.
        if sum(info.file_size for info in infos) > size:
            raise _damaged(path, "its members claim more bytes than the file has")
        manifest = _manifest(path, archive)
        expected = {"manifest.json", *manifest.sha256}
        plans = min(_plans_in(names), MAX_PLANS) if manifest.version >= VERSION else 1
        allowed = {*REQUIRED, *map(plan_name, range(plans))}
        allowed |= {*map(source_name, range(len(names) - 1 - len(allowed)))}
        if set(names) != expected or expected != {"manifest.json", *allowed}:
            odd = sorted((set(names) ^ expected) | (expected ^ {"manifest.json", *allowed}))
            raise _damaged(path, f"members missing, or not expected: {odd[:3]}")
        members = {info.filename: _stored(path, file, info) for info in infos}
    del members["manifest.json"]
    if sum(len(members[plan_name(number)]) for number in range(plans)) > MAX_TEXT:
        raise _damaged(path, f"plan.json is larger than {MAX_TEXT} B")
    return members, manifest


class _Directory:
    """A file whose directory is read only if it is as large as one of a plan may be: zipfile takes
    what the file says."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file = file

    def read(self, count: int = -1) -> bytes:
        if count > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {count} B")
        return self._file.read(count)


def _check_whole(path: Path, members: Mapping[str, bytes], manifest: Manifest) -> None:
    """ArtifactError for a file that is not as it was written."""
    for name, content in members.items():
        if hashlib.sha256(content).hexdigest() != manifest.sha256[name]:
            raise _damaged(path, f"{name} does not have the sha256 that the manifest says")


def _stored(path: Path, file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member that is stored as it is, which `zipfile` would copy piece by piece and
    check by a sum that is weaker than the manifest's: weights are nearly all of a file."""
    file.seek(max(info.header_offset, 0))
    header = file.read(LOCAL.size)
    if len(header) < LOCAL.size or not header.startswith(MEMBER):
        raise _damaged(path, f"{info.filename} is not where the directory says")
    file.seek(sum(LOCAL.unpack(header)), os.SEEK_CUR)
    return file.read(info.file_size)


def _manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    if archive.getinfo("manifest.json").file_size > MAX_DIRECTORY:
        raise _damaged(path, f"manifest.json is larger than {MAX_DIRECTORY} B")
    try:
        manifest = Manifest.model_validate_json(archive.read("manifest.json"))
    except ValidationError:
        raise _not_ours(path, "its manifest.json is not one of a saved plan") from None
    if manifest.format != FORMAT:
        raise _not_ours(path, f"its manifest calls it {manifest.format!r}")
    if manifest.version > VERSION:
        raise ArtifactError(
            f"{path} was saved by a newer version of Anabranch",
            f"it has format {manifest.version}, this version reads up to {VERSION}",
            "upgrade Anabranch, or save the plan again with this version",
        )
    if manifest.version < 1:
        raise _damaged(path, f"there is no format {manifest.version}")
    return manifest


def check_kind(path: str | os.PathLike[str], plan: Plan, spec: TargetSpec | None) -> None:
    """ArtifactError for a plan for another kind of machine."""
    if spec is not None and spec.kind != plan.spec.kind:
        raise ArtifactError(
            f"{path} was made for {plan.spec.name} ({plan.spec.kind})",
            f"this target is {spec.name} ({spec.kind}), which cannot run its kernels",
            f"load it on a {plan.spec.kind} machine, or compile the model for {spec.kind}",
        )


def _reason(broken: Exception) -> str:
    if isinstance(broken, ValidationError):
        first = broken.errors()[0]
        return f"plan.json: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(broken, RecursionError):
        return "it is nested too deeply"
    if isinstance(broken, MemoryError):
        return "it asks for more memory than there is"
    if isinstance(broken, KeyError):
        return f"it names {broken}, which is not known"
    return str(broken).partition("\n")[0] or type(broken).__name__


def check_signature(path: str | os.PathLike[str], plan: Plan) -> None:
    """ArtifactError for a plan without a signature, which nobody can call."""
    if plan.signature is None:
        raise _damaged(path, "it does not say how the model is called")


def unloadable(path: str | os.PathLike[str], failed: Exception) -> ArtifactError:
    """The refusal of a plan that a target does not take, whatever the target raised."""
    return ArtifactError(
        f"{path} holds a plan that does not run here",
        _reason(failed),
        "do not use this file; save the plan again from its model",
    )


def _not_ours(path: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"{path} is not a saved plan", why, "give a file that Compiled.save() wrote"
    )


def _damaged(path: str | os.PathLike[str], why: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged", why, DAMAGED)
