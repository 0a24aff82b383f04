"""States and endings of a dag, the two enumerations behind IOS (MLSys 2021, section 4).

A *state* is a set of nodes with all that comes before them; an *ending* of it is a part with all
that comes after it inside the state, so that it can be the last stage. Both as bit masks.

IOS's code admits fewer endings than its paper's definition: a group is one node and all that
follows it in the state, and groups must be disjoint. So a group has exactly one source, and
{b, c, d} below is no ending of {a, b, c, d}.

         +--> b --+         states   a  ab  ac  abc  abcd
    a -->|        +--> d    endings  of abcd: abcd, bd, cd, d   (by the paper: also bcd)
         +--> c --+                  of abc: abc, b, c, b|c
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.dag import Dag, bits


class TooMany(Exception):
    """More than the caller wants to see."""


def states(dag: Dag, most: int | None = None) -> list[int]:
    """All states, the empty one first, each after those it contains. TooMany if above `most`."""
    all_states = [0]
    for v, preds in enumerate(dag.preds):
        bit = 1 << v
        all_states += [state | bit for state in all_states if not preds & ~state]
        if most is not None and len(all_states) > most:
            raise TooMany
    return all_states


def reaches(dag: Dag) -> tuple[int, ...]:
    """For each node itself and all that comes after it."""
    return tuple(1 << v | mask for v, mask in enumerate(dag.descendants()))


def endings(
    reach: Sequence[int],
    state: int,
    max_group_size: int | None = None,
    max_groups: int | None = None,
    most: int | None = None,
) -> list[int]:
    """The endings of one source a group, in a fixed order. TooMany if above `most`.

    Nodes go from first to last: early ones have large groups that exclude most others, so the list
    doubles only near its end and little of it is looked at in vain. As long as one node is in all
    groups, as in a chain, a group stands alone and nothing is looked at.
    """
    levels: list[list[int]] = [[0]]
    shared = -1
    for v in bits(state):
        group = reach[v] & state
        if max_group_size is not None and group.bit_count() > max_group_size:
            continue
        shared &= group
        if max_groups is not None and len(levels) <= max_groups:
            levels.append([])
        if shared:
            levels[min(1, len(levels) - 1)].append(group)
        elif max_groups is None:
            levels[0] += [e | group for e in levels[0] if not e & group]
        else:
            for fewer, more in zip(levels[-2::-1], levels[:0:-1], strict=True):
                more += [e | group for e in fewer if not e & group]
        if most is not None and sum(map(len, levels)) > most:
            raise TooMany
    return [e for level in levels for e in level if e]


def groups_of(reach: Sequence[int], ending: int) -> tuple[int, ...]:
    """The groups of an ending of one source a group, by their sources."""
    groups: list[int] = []
    while ending:
        group = reach[(ending & -ending).bit_length() - 1] & ending
        groups.append(group)
        ending ^= group
    return tuple(groups)
