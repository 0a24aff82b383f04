"""torch.compile knows the backend by its name, whether the package is installed or on the path."""

from __future__ import annotations

from tests import fresh

UNINSTALLED = """
import importlib.metadata as metadata

installed = metadata.entry_points

def found(**given):
    points = installed(**given)
    if given.get("group") != "torch_dynamo_backends":
        return points
    return metadata.EntryPoints(point for point in points if point.name != "anabranch")

metadata.entry_points = found
"""
CALL = """
import torch
import anabranch

anabranch.compile
model = torch.compile(torch.nn.Linear(3, 3).eval(), backend="anabranch")
with torch.no_grad():
    assert model(torch.ones(2, 3)).shape == (2, 3)
"""


def test_a_package_that_is_not_installed_names_its_backend() -> None:
    """As one that is installed does, which `test_dynamo` asks in this process."""
    ran = fresh.run(UNINSTALLED + CALL)
    assert ran.returncode == 0, ran.stderr
