"""What a cubin says of its kernel: registers, local memory and parameters, read from its ELF.

    code --> CubinFacts(entry="add", registers=30, local=0, parameters=(8, 8, 8, 8, 8))

The same numbers as `cuobjdump --dump-resource-usage` prints, without a process for each kernel.
They stand in sections .nv.info and .nv.info.ENTRY, as a list of attributes:

    format  attribute  size        payload
    04      2f         08 00       symbol, registers of a thread
    04      11         08 00       symbol, bytes of its frame in local memory
    04      17         0c 00       one parameter: index, ordinal, offset, size << 18
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

INFO, TEXT = ".nv.info", ".text."
VALUE = 4
"""The format with a size and a payload; all others are a byte or two, in place of the size."""
REGISTERS, FRAME, PARAMETER = 0x2F, 0x11, 0x17


@dataclass(frozen=True, slots=True)
class CubinFacts:
    """Of the one kernel in a cubin. registers: a thread; local: bytes a thread, of its frame;
    parameters: bytes of each."""

    entry: str
    registers: int
    local: int
    parameters: tuple[int, ...]


def facts(code: bytes) -> CubinFacts:
    """ValueError for what is no cubin of one kernel."""
    try:
        sections = dict(_sections(code))
        (entry,) = (name.removeprefix(TEXT) for name in sections if name.startswith(TEXT))
        whole = list(_attributes(sections[INFO]))
        own = list(_attributes(sections[f"{INFO}.{entry}"]))
        sizes = dict(_parameter(payload) for kind, payload in own if kind == PARAMETER)
        return CubinFacts(
            entry,
            sum(_second(payload) for kind, payload in whole if kind == REGISTERS),
            sum(_second(payload) for kind, payload in whole if kind == FRAME),
            tuple(sizes[i] for i in range(len(sizes))),
        )
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as failed:
        raise ValueError(f"not a cubin of one kernel: {failed!r}") from failed


def _sections(code: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of a 64-bit little-endian ELF."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF of 64 bits")
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count, names_at = struct.unpack_from("<HHH", code, 58)
    heads = [struct.unpack_from("<IIQQQQ", code, start + i * size) for i in range(count)]
    names = heads[names_at][4]
    for name, _, _, _, offset, length in heads:
        begin = names + name
        yield code[begin : code.index(b"\0", begin)].decode(), code[offset : offset + length]


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(section):
        form, kind, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == VALUE:
            yield kind, section[at : at + size]
            at += size


def _second(payload: bytes) -> int:
    return int(struct.unpack_from("<II", payload)[1])


def _parameter(payload: bytes) -> tuple[int, int]:
    """Its position and its bytes."""
    _, position, _, packed = struct.unpack_from("<IHHI", payload)
    return position, packed >> 18
