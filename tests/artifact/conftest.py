"""The task graphs and schedules that tests of memory are given, as fixtures here too."""

from tests.memory.conftest import networks

__all__ = ["networks"]
