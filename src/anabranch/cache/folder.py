"""Says who else could change the files of a folder, and whether it is on a network disk.

A cache holds kernels that are launched and plans that are run. Anybody who may write to its folder
or to a folder above it, or owns a link on the way there, could put other files in their place.

    ~/.cache/anabranch          0700, ours                     ""
    /tmp/cache                  0777                           "... is writable for everybody"
    /tmp/cache -> /home/eve/x   a link that is another user's  "... is a link of user 1001"
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

LINKS = 40
"""Followed at most, as the kernel does."""
NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "9p", "lustre", "gpfs"),
        *("beegfs", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.ceph", "orangefs", "ocfs2"),
    }
)
"""File systems that machines share: SQLite's write-ahead log needs memory that all of its users
map, which no two machines do."""
MOUNTS = Path("/proc/self/mounts")


def make_folder(folder: Path) -> None:
    """The folder exists; those that were missing on the way are ours alone."""
    missing = [directory for directory in (folder, *folder.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def why_untrusted(folder: Path) -> str:
    """Why others could change what lies there; "" if only this user and root can."""
    if not hasattr(os, "geteuid"):
        return ""
    path, links = Path(os.path.abspath(folder)), 0
    place = Path(path.anchor)
    rest = list(path.parts[1:])
    while True:
        status = place.lstat()
        if why := _why_not(place, status, last=not rest):
            return why
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > LINKS:
                return f"{folder} has more than {LINKS} links on its way"
            place, rest = place.parent, [*_parts(place), *rest]
            if rest and rest[0] == os.sep:
                place, rest = Path(os.sep), rest[1:]
        if not rest:
            return ""
        place = Path(os.path.normpath(place / rest.pop(0)))


def why_shared_file(file: Path) -> str:
    """Why others could change the file itself; "" if they cannot, or there is none."""
    if not hasattr(os, "geteuid"):
        return ""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return ""
    return _why_not(file, status, last=True)


def on_network(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Whether its file system is one that machines share; False where nobody says."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    whole, best, kind = os.path.realpath(folder), "", ""
    for line in lines:
        _, place, type, *_ = (*line.split(" "), "", "", "")
        place = place.replace("\\040", " ")
        inside = whole == place or whole.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, type
    return kind in NETWORK


def _parts(link: Path) -> tuple[str, ...]:
    return Path(os.readlink(link)).parts


def _why_not(place: Path, status: os.stat_result, last: bool) -> str:
    """`last`: what is asked about, where a sticky bit is no help: others could add files."""
    if status.st_uid not in (0, os.geteuid()):
        kind = "is a link" if stat.S_ISLNK(status.st_mode) else "is"
        return f"{place} {kind} of user {status.st_uid}, who could change what lies there"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not last):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"{place} is writable for everybody"
    if status.st_mode & stat.S_IWGRP and not _own_group(status.st_gid):
        return f"{place} is writable for its group, {status.st_gid}"
    return ""


def _own_group(group: int) -> bool:
    """Whether it has this user alone, as each user's own group has on many systems."""
    import grp
    import pwd

    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    own = group == user.pw_gid and entry.gr_name == user.pw_name
    return own and set(entry.gr_mem) <= {user.pw_name}
