"""Errors have three parts, and what they repeat of others is harmless to a terminal."""

from __future__ import annotations

import pytest

from anabranch import errors
from anabranch.errors import MAX_TOLD, AnabranchError, ArtifactError, WriteError, unwritable


def test_a_message_says_what_where_why_and_what_to_do() -> None:
    error = AnabranchError("it broke", "a reason", "mend it", "net.py:3 in forward")
    assert str(error) == "it broke\n  at:   net.py:3 in forward\n  why:  a reason\n  next: mend it"
    assert (error.what, error.why, error.next) == ("it broke", "a reason", "mend it")


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    error = AnabranchError("a\x1b[2Jb", "c\u202ed", "two\nlines\tand a tab")
    assert error.what == "a\\x1b[2Jb" and error.why == "c\\u202ed"
    assert error.next == "two\nlines\tand a tab"


def test_what_a_file_says_is_repeated_in_one_short_line() -> None:
    error = ArtifactError("one\ntwo", "x" * 2 * MAX_TOLD, "next")
    assert error.what == "one two" and len(error.why) == MAX_TOLD and error.why.endswith("...")


@pytest.mark.parametrize(
    ("ours", "pythons"),
    [
        ("OptionError", ValueError),
        ("WeightsError", ValueError),
        ("InputError", TypeError),
        ("WriteError", OSError),
        ("DataDependentError", errors.CaptureError),
    ],
)
def test_whoever_expects_pythons_error_catches_ours(ours: str, pythons: type[Exception]) -> None:
    kind = getattr(errors, ours)
    assert issubclass(kind, pythons) and issubclass(kind, AnabranchError)


def test_a_file_that_cannot_be_written_is_named_as_the_user_did() -> None:
    error = unwritable("plan.anabranch", PermissionError(13, "Permission denied", "/tmp/.x"))
    assert isinstance(error, WriteError)
    assert (error.what, error.why) == ("cannot write plan.anabranch", "Permission denied")
