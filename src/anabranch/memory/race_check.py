"""The proof that a plan is free of races and overwrites: Plan -> nothing, or VerifyError.

It shares no code with the packer. It walks through the launches in the order in which the host
issues them, as a race detector would, and keeps for every stretch of bytes who owns them and who
has touched them since:

    write of v by t    all touches by the owner before must have ended before t starts; v owns
    read of v by t     v must still own the bytes, and its writer must have ended before t starts

The place of a state is a stretch of bytes like any other, owned by the old value at first. The
writer of the new one may have read the old one itself, at the elements that it writes; so for it
alone the first line leaves out itself. At the end what is returned must own its bytes, and the new
value of a state those of its place.

A slot may say that its value is written over another one, by the task that reads that last. The
value is in the very same bytes then, as large, and owned by the other until its writer takes them,
which alone may have touched it without having ended. That the writer's kernel reads each element
before it writes the one of its place is for those to prove who know kernels (`artifact.overwrites`
does, of what a file says).

An elided concat owns the bytes of all its parts. Each part is a write of its own: it comes after
all touches by the owner before, not after its sisters, whose elements are others. A read of a part
needs that part's writer, a read of the whole all of them.

"Ended before" is decided by clocks: each launch knows how many launches of each stream have surely
ended. Launch order is one of the legal orders of execution, and every change of owner is ordered
after all earlier touches, so by induction no other order of execution can differ.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NoReturn

from anabranch.errors import VerifyError
from anabranch.ir.plan import ALIGNMENT, Plan, Slot
from anabranch.ir.task import (
    GENERATED,
    Task,
    alias_roots,
    leaves,
    places,
    slices,
    value_types,
    wholes,
    writes_over,
)


def check_plan(plan: Plan, most: int | None = None) -> None:
    """Raises VerifyError naming both tasks and the bytes if two unordered launches may touch the
    same bytes, a read may miss its write or see another's, a place lies outside the arena, is not
    aligned or too small, or an output does not survive. `most`: steps after which the proof is
    given up, which is an error too."""
    _check_slots(plan)
    clocks = _clocks(plan)
    _check_arena(plan, clocks, most)
    _check_places(plan, clocks)
    _check_pool(plan, clocks)


@dataclass(frozen=True, slots=True)
class _Clock:
    """Where a launch stands: its stream, its number there, and per stream how many launches have
    surely ended before it starts."""

    stream: int
    number: int
    ended: dict[int, int]

    def after(self, other: _Clock) -> bool:
        return self.ended.get(other.stream, 0) > other.number


def _clocks(plan: Plan) -> dict[str, _Clock]:
    names = {task.name for task in plan.tasks.tasks}
    clocks: dict[str, _Clock] = {}
    last: dict[int, _Clock] = {}
    for launch in plan.schedule.launches:
        _unless(launch.task in names, plan, f"{launch.task} is launched, but is no task")
        _unless(launch.task not in clocks, plan, f"{launch.task} is launched twice")
        previous = last.get(launch.stream)
        ended = dict(previous.ended) if previous else {}
        if previous:
            ended[launch.stream] = previous.number + 1
        for name in launch.waits:
            _unless(name in clocks, plan, f"{launch.task} waits for {name}, launched later")
            other = clocks[name]
            for stream, count in (*other.ended.items(), (other.stream, other.number + 1)):
                ended[stream] = max(ended.get(stream, 0), count)
        clock = _Clock(launch.stream, previous.number + 1 if previous else 0, ended)
        clocks[launch.task] = last[launch.stream] = clock
    missing = sorted(names - clocks.keys())
    _unless(not missing, plan, f"never launched: {', '.join(missing[:5])}")
    return clocks


def _check_slots(plan: Plan) -> None:
    """One slot of the right sort and size for each value, a workspace for each kernel that needs
    one, all inside the arena and aligned."""
    tasks = plan.tasks
    slots = {slot.value: slot for slot in plan.slots}
    parts, types = wholes(tasks), value_types(tasks)
    _unless(len(slots) == len(plan.slots), plan, "two slots for one value")
    odd = sorted(slots.keys() ^ types.keys())
    _unless(not odd, plan, f"values without slot or slots without value: {odd[:5]}")
    spaces = {value.name: "input" for value in tasks.call_inputs}
    spaces |= {state.name: "state" for state in tasks.states}
    spaces |= {constant.name: "constant" for constant in tasks.constants}
    spaces |= {name: "alias" for node in tasks.aliases for name in node.results}
    spaces |= {
        node.name: "part" if node.name in parts else "arena" for node in tasks.elided_concats
    }
    for task in tasks.tasks:
        writes_out = task.kernel is None or task.kernel.writes_out
        spaces |= {name: "arena" if writes_out else "pool" for name in task.writes}
        spaces |= dict.fromkeys(task.overwrites, "state")
        if (kernel := task.kernel) is not None:
            asked = writes_over(kernel)
            over = asked or kernel.provider == GENERATED
            fits = over if task.overwrites else not (asked or kernel.body.states)
            if not fits or (task.overwrites and kernel.body != task.body):
                message = f"the kernel of {task.name} writes over what it reads"
                _fail(plan, f"{message}, and may not, or must")
        for name in (name for name in task.writes if name in parts):
            message = f"the kernel of {task.name} does not write into memory it is given"
            _unless(writes_out, plan, f"%{name} is a part of %{parts[name]}, but {message}")
            spaces[name] = "part"
    for slot in plan.slots:
        expected, needed = spaces[slot.value], types[slot.value].nbytes
        if slot.space != expected:
            _fail(plan, f"%{slot.value} lives in space {slot.space}, but belongs in {expected}")
        if slot.nbytes < needed:
            _fail(plan, f"%{slot.value} has {slot.nbytes} B, needs {needed} B")
        if slot.space == "arena":
            _check_region(plan, f"%{slot.value}", slot.offset, slot.nbytes)
    _check_over(plan, slots)
    for alias, base in alias_roots(tasks).items():
        message = f"alias %{alias} reaches beyond %{base}"
        _unless(types[alias].nbytes <= types[base].nbytes, plan, message)
    for name, lies in slices(tasks).items():
        end = lies.offset * types[name].dtype.itemsize + types[name].nbytes
        message = f"part %{name} reaches beyond %{lies.whole}"
        _unless(end <= types[lies.whole].nbytes, plan, message)
    _check_workspaces(plan)


def _check_over(plan: Plan, slots: dict[str, Slot]) -> None:
    """What is written over a value lies in its place, and its task reads the value."""
    over = {slot.value: slot for slot in plan.slots if slot.over}
    if not over:
        return
    bases, parts = alias_roots(plan.tasks), wholes(plan.tasks)
    whole = {*parts.values(), *(node.name for node in plan.tasks.elided_concats)}
    makers = {name: task for task in plan.tasks.tasks for name in task.writes}
    for name, slot in over.items():
        there = slots.get(slot.over)
        what = f"%{name} is written over %{slot.over}"
        if slot.space != "arena" or there is None or there.space != "arena":
            _fail(plan, f"{what}, and both must lie in the arena")
        if (slot.offset, slot.nbytes) != (there.offset, there.nbytes):
            _fail(plan, f"{what}, and lies in other bytes")
        _unless(whole.isdisjoint((name, slot.over)), plan, f"{what}, and one of them has parts")
        task = makers.get(name)
        if task is None or slot.over not in _owners_read(task, bases):
            _fail(plan, f"{what}, which its task does not read")


def _check_workspaces(plan: Plan) -> None:
    workspace_of = {item.task: item for item in plan.workspaces}
    _unless(len(workspace_of) == len(plan.workspaces), plan, "two workspaces for one task")
    needed = {task.name: task.kernel.workspace for task in plan.tasks.tasks if task.kernel}
    for name, nbytes in needed.items():
        held = workspace_of[name].nbytes if name in workspace_of else 0
        if held < nbytes:
            _fail(plan, f"the workspace of {name} has {held} B, its kernel needs {nbytes} B")
    for item in plan.workspaces:
        if item.task not in needed:
            _fail(plan, f"a workspace for {item.task}, which has no kernel")
        _check_region(plan, f"the workspace of {item.task}", item.offset, item.nbytes)


def _check_region(plan: Plan, what: str, offset: int, nbytes: int) -> None:
    where = f"at bytes {offset} to {offset + nbytes}"
    if not (offset >= 0 and offset + nbytes <= plan.arena_bytes and nbytes >= 0):
        _fail(plan, f"{what} {where} lies outside the arena of {plan.arena_bytes} B")
    if offset % ALIGNMENT:
        _fail(plan, f"{what} {where} is not aligned to {ALIGNMENT} B")


@dataclass(slots=True)
class _Bytes:
    """A stretch of bytes: the value in it; by its parts (itself, if it is no elided concat) who has
    written them; the tasks that have touched it as that value, and those that had touched it
    before."""

    owner: str = ""
    writers: dict[str, str] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)


class _Arena:
    """Who owns which bytes at a moment of the launch order."""

    def __init__(self, plan: Plan, clocks: dict[str, _Clock], most: int | None) -> None:
        self.plan, self.clocks = plan, clocks
        self.left = most
        self.slots = {slot.value: slot for slot in plan.slots if slot.space == "arena"}
        self.over = {slot.value: slot.over for slot in plan.slots if slot.over}
        regions = [(slot.offset, slot.nbytes) for slot in self.slots.values()]
        regions += [(item.offset, item.nbytes) for item in plan.workspaces]
        self.edges = sorted({edge for start, size in regions for edge in (start, start + size)})
        self.memory = [_Bytes() for _ in self.edges]
        self.parts, self.home = leaves(plan.tasks), wholes(plan.tasks)

    def stretches(self, offset: int, nbytes: int) -> range:
        return range(bisect_left(self.edges, offset), bisect_left(self.edges, offset + nbytes))

    def spend(self, steps: int) -> None:
        if self.left is not None:
            self.left -= steps
            _unless(self.left >= 0, self.plan, "its places are cut too finely to be checked")

    def read(self, reader: str, name: str) -> None:
        owner = self.home.get(name, name)
        if owner not in self.slots:
            return
        slot, parts = self.slots[owner], self.parts.get(name, (name,))
        for k in self.stretches(slot.offset, slot.nbytes):
            cell = self.memory[k]
            self.spend(len(parts))
            if cell.owner != owner:
                by = f"{', '.join(cell.writers.values())} has written {cell.owner} there"
                self.misread(reader, name, k, f"but {by if cell.owner else 'no write'}")
            for part in parts:
                by = cell.writers.get(part, "")
                if not by:
                    self.misread(reader, name, k, f"but %{part} is not written")
                if reader and not self.clocks[reader].after(self.clocks[by]):
                    self.misread(reader, name, k, f"perhaps before {by} has written it")
            cell.touched.append(reader)

    def misread(self, reader: str, name: str, k: int, why: str) -> NoReturn:
        where = f"bytes {self.edges[k]} to {self.edges[k + 1]}"
        _fail(self.plan, f"{reader} reads %{name} from {where}, {why}")

    def write(self, writer: str, name: str, offset: int, nbytes: int) -> None:
        clocks, ended = self.clocks, self.clocks[writer].ended
        owner = self.home.get(name, name)
        for k in self.stretches(offset, nbytes):
            cell = self.memory[k]
            sister = cell.owner == owner and name not in cell.writers
            self.spend(1 + len(cell.before if sister else cell.touched))
            own = not sister and bool(cell.owner) and cell.owner == self.over.get(name)
            for other in cell.before if sister else cell.touched:
                there = clocks[other]
                if own and other == writer:
                    continue
                if other == writer or ended.get(there.stream, 0) <= there.number:
                    where = f"bytes {self.edges[k]} to {self.edges[k + 1]}"
                    message = f"{writer} writes {name} to {where}, where {other} may still use"
                    _fail(self.plan, f"{message} {cell.owner}")
            if sister:
                cell.writers[name] = writer
                cell.touched.append(writer)
            else:
                self.memory[k] = _Bytes(owner, {name: writer}, [writer], cell.touched)


def _check_arena(plan: Plan, clocks: dict[str, _Clock], most: int | None) -> None:
    bases = alias_roots(plan.tasks)
    arena = _Arena(plan, clocks, most)
    scratch = {item.task: item for item in plan.workspaces}
    tasks = {task.name: task for task in plan.tasks.tasks}
    for launch in plan.schedule.launches:
        task = tasks[launch.task]
        for name in _owners_read(task, bases):
            arena.read(task.name, name)
        if task.name in scratch:
            item = scratch[task.name]
            arena.write(task.name, f"the workspace of {task.name}", item.offset, item.nbytes)
        for name in dict.fromkeys(task.writes):
            home = arena.home.get(name, name)
            if home in arena.slots:
                arena.write(task.name, name, arena.slots[home].offset, arena.slots[home].nbytes)
    for name in _kept(plan, bases):
        arena.read("", name)


def _check_places(plan: Plan, clocks: dict[str, _Clock]) -> None:
    """The new value of a state lies in its place, and is written after every reader of the old
    one."""
    home, bases = places(plan.tasks), alias_roots(plan.tasks)
    for state in plan.tasks.states:
        new = plan.tasks.outputs[state.output].name
        there = home.get(new, new) == state.name
        _unless(there, plan, f"%{new} does not lie in the place of the state %{state.name}")
    memory = {place: _Bytes(place) for place in home.values()}
    tasks = {task.name: task for task in plan.tasks.tasks}

    def read(reader: str, name: str) -> None:
        cell = memory.get(home.get(name, name))
        if cell is None:
            return
        what = f"{reader or 'the caller'} reads %{name}"
        by = f"{', '.join(cell.writers.values())} has written %{cell.owner} in its place"
        _unless(cell.owner == name, plan, f"{what}, but {by}" if cell.writers else f"{what} early")
        for writer in cell.writers.values():
            after = not reader or clocks[reader].after(clocks[writer])
            _unless(after, plan, f"{what}, perhaps before {writer} has written it")
        cell.touched.append(reader)

    for launch in plan.schedule.launches:
        task = tasks[launch.task]
        for name in _owners_read(task, bases):
            read(task.name, name)
        for new, old in task.overwrites.items():
            cell = memory[home[new]]
            what = f"{task.name} writes %{new} in the place of %{old}"
            _unless(cell.owner == old, plan, f"{what}, where %{cell.owner} is")
            for other in cell.touched:
                ordered = other == task.name or clocks[task.name].after(clocks[other])
                _unless(ordered, plan, f"{what}, which {other} may still read")
            memory[home[new]] = _Bytes(new, {new: task.name}, [task.name])
    for name in _kept(plan, bases):
        read("", name)


def _check_pool(plan: Plan, clocks: dict[str, _Clock]) -> None:
    """Reads come after writes, and a release on the writer's stream comes after all touches."""
    bases = alias_roots(plan.tasks)
    pool = {slot.value: slot for slot in plan.slots if slot.space == "pool"}
    writers = {name: task.name for task in plan.tasks.tasks for name in task.writes}
    kept = set(_kept(plan, bases))
    for task in plan.tasks.tasks:
        for name in _owners_read(task, bases):
            if name in pool:
                ordered = clocks[task.name].after(clocks[writers[name]])
                message = f"{task.name} reads %{name}, perhaps before {writers[name]} has written"
                _unless(ordered, plan, f"{message} it")
                _check_release(plan, pool[name], task.name, clocks)
    for name, slot in pool.items():
        if slot.release is None:
            continue
        _unless(name not in kept, plan, f"%{name} is an output, but released at {slot.release}")
        _unless(slot.release in clocks, plan, f"%{name} is released at no task: {slot.release}")
        same = clocks[slot.release].stream == clocks[writers[name]].stream
        message = f"%{name} of {writers[name]} is released at {slot.release} on another stream"
        _unless(same, plan, message)
        _check_release(plan, slot, writers[name], clocks)


def _check_release(plan: Plan, slot: Slot, user: str, clocks: dict[str, _Clock]) -> None:
    if slot.release is not None and slot.release in clocks:
        message = (
            f"%{slot.value} ({slot.nbytes} B of the pool) is released at {slot.release}, "
            f"where {user} may still use it"
        )
        _unless(clocks[slot.release].after(clocks[user]), plan, message)


def _owners_read(task: Task, bases: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(bases.get(name, name) for name in task.reads))


def _kept(plan: Plan, bases: dict[str, str]) -> list[str]:
    """The values that must be there at the end."""
    names = [ref.name for ref in plan.tasks.outputs]
    if plan.signature is not None:
        names += [ref.name for ref in plan.signature.read]
    return list(dict.fromkeys(bases.get(name, name) for name in names))


def _unless(condition: bool, plan: Plan, message: str) -> None:
    if not condition:
        _fail(plan, message)


def _fail(plan: Plan, message: str) -> NoReturn:
    """Where a check is made for every value, its message is written only if it fails: thousands of
    them take longer than the checks."""
    raise VerifyError(f"plan {plan.tasks.name}: {message}")
