"""Whose a folder is, and which file system it is on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch.cache.folder import make_folder, on_network, why_shared_file, why_untrusted

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def test_our_own_folder_is_trusted_and_those_made_on_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        make_folder(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert why_untrusted(folder) == ""


def test_a_folder_above_counts_unless_it_is_sticky(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "cache"
    make_folder(folder)
    folder.parent.chmod(0o777)
    assert why_untrusted(folder) == f"{folder.parent} is writable for everybody"
    folder.parent.chmod(0o1777)
    assert why_untrusted(folder) == ""
    folder.chmod(0o1777)
    assert why_untrusted(folder) == f"{folder} is writable for everybody"


@root
def test_another_owner(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    make_folder(folder)
    os.chown(folder, 12345, -1)
    assert f"{folder} is of user 12345" in why_untrusted(folder)


@root
def test_a_link_of_another_user(tmp_path: Path) -> None:
    folder, link = tmp_path / "cache", tmp_path / "link"
    make_folder(folder)
    link.symlink_to("cache")
    assert why_untrusted(link) == why_untrusted(link / "") == ""
    os.chown(link, 12345, -1, follow_symlinks=False)
    assert f"{link} is a link of user 12345" in why_untrusted(link)


def test_what_a_link_leads_to_counts(tmp_path: Path) -> None:
    folder, link = tmp_path / "shared" / "cache", tmp_path / "link"
    make_folder(folder)
    link.symlink_to(folder)
    assert why_untrusted(link) == ""
    folder.parent.chmod(0o777)
    assert why_untrusted(link) == f"{folder.parent} is writable for everybody"


def test_a_file_that_others_may_write(tmp_path: Path) -> None:
    file = tmp_path / "cache.sqlite"
    assert why_shared_file(file) == ""
    file.touch(0o600)
    assert why_shared_file(file) == ""
    file.chmod(0o666)
    assert why_shared_file(file) == f"{file} is writable for everybody"


def test_network_file_systems_are_told_by_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        f"server:/home {tmp_path} nfs4 rw 0 0\n"
        f"/dev/sdb1 {tmp_path}/local\\040disk xfs rw 0 0\n"
    )
    assert on_network(tmp_path / "cache", mounts)
    assert not on_network(tmp_path / "local disk" / "cache", mounts)
    assert not on_network(Path("/somewhere"), mounts)
    assert not on_network(tmp_path, tmp_path / "no such file")
