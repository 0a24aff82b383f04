"""What all tests share: golden texts, no deadlines, the recorded GPU, and the skip of GPU tests
without a GPU.

A golden test compares a text with tests/golden/NAME; `--update-golden` (make golden) writes it
instead, for a reviewer to read as a diff:

    def test_captured(golden):
        golden("capture/two_branches.txt", text_graph(graph))
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.logging import catching_logs

if TYPE_CHECKING:
    from anabranch.costs.recorded import Profile

try:
    from hypothesis import settings
except ModuleNotFoundError:  # no test under tests/gpu draws its own examples
    settings = None  # type: ignore[assignment, misc]

GOLDEN = Path(__file__).parent / "golden"
LEGAL = Path(__file__).parent / "schedule" / "test_schedulers.py"
"""Asks of any schedule whether it is one, and not how good it is."""
SCHEDULED = frozenset(Path(__file__).parent / room for room in ("gpu", "schedule"))

Golden = Callable[[str, str], None]

COLLECTED = pytest.StashKey[float]()
COLLECTED_EVERY_S = 10.0
"""When garbage was collected between two files, and how often that is worth its time."""

USUAL, SELDOM = gc.get_threshold(), (50_000, 20, 50)
"""How often Python looks for garbage. Most of what 700 allocations make is none: looking after each
700 was a tenth of the time of all tests and a quarter of collecting them, and there is memory for
what waits."""

CAPTURES = "CAPTURES_OF_TESTS"
"""The environment variable that names the folder where workers of a run keep captured networks."""

# Hypothesis fails an example that takes over 0.2 s: here the first one often imports half of torch.
# 25 examples, each with a random graph: whoever needs more says so, and campaigns draw thousands.
if settings is not None:
    settings.register_profile("anabranch", settings(), deadline=None, max_examples=25)
    settings.load_profile("anabranch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")


def pytest_configure(config: pytest.Config) -> None:
    """Whoever starts the workers makes a folder that they share, and takes it away again.

    Pytest listens to loggers that pass nothing on, and torch traces for whoever listens: the stack
    at each tensor that an export sees, the text of each graph. No test asks for those."""
    setattr(logging.getLogger("torch.__trace"), "addHandler", lambda handler: None)  # noqa: B010
    gc.set_threshold(*SELDOM)
    _listen_to_the_root()
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="anabranch-captures-")
    os.environ[CAPTURES] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def _listen_to_the_root() -> None:
    """Six times a test pytest looks through all loggers, hundreds of torch and others, for those
    that pass nothing on, to hear them too. What tests ask for is heard at the root."""
    plain: Any = catching_logs.__enter__

    def enter(self: Any) -> Any:
        manager = logging.getLogger().manager
        if self.level is not None:
            return plain(self)
        every, manager.loggerDict = manager.loggerDict, {}
        try:
            return plain(self)
        finally:
            manager.loggerDict = every

    setattr(catching_logs, "__enter__", enter)  # noqa: B010


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/gpu, and whatever is marked gpu, needs a CUDA GPU."""
    folder = Path(__file__).parent / "gpu"
    needy = [i for i in items if i.get_closest_marker("gpu") or folder in i.path.parents]
    if not needy:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish() -> None:
    """What torch and thousands of collected tests hold is never garbage: a full collection takes
    three times as long where it looks through that as well. That of a GPU is returned as soon as
    outside of tests."""
    gc.collect()
    gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gc.set_threshold(*USUAL)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor is what a file leaves behind: modules it was the first to import, networks captured.
    Of short files it is looked for once every few seconds."""
    if nextitem is None or nextitem.path == item.path:
        return
    now = time.monotonic()
    if now - item.config.stash.get(COLLECTED, 0.0) > COLLECTED_EVERY_S:
        item.config.stash[COLLECTED] = now
        gc.collect()
        gc.freeze()


def _switches() -> dict[str, object]:
    """Torch's global state, which no test, and nothing of the package, changes for those after."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "autocast's dtypes": (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")),
        "oneDNN": torch._C._get_mkldnn_enabled(),
        "cuDNN": torch._C._get_cudnn_enabled(),
        "modes": (
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
        ),
    }


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """Also where the tests were started in the background, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _global_state_stays() -> Iterator[None]:
    before = _switches()
    yield
    after = _switches()
    changed = [
        f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]
    ]
    if changed:
        import torch

        torch.set_grad_enabled(bool(before["grad mode"]))
        pytest.fail(f"torch's global state was changed: {'; '.join(changed)}")


@pytest.fixture(scope="session", autouse=True)
def _shipped_profiles_are_read_once() -> Iterator[None]:
    """Megabytes of recorded times, which nobody changes and hundreds of tests begin with."""
    from anabranch.costs.recorded import load_profile
    from anabranch.targets.sim import target as sim

    shipped: dict[Path, Profile] = {}
    folder = sim.PROFILES

    def known(path: str | os.PathLike[str]) -> Profile:
        file = Path(path)
        if file.parent != folder:
            return load_profile(path)
        if file not in shipped:
            shipped[file] = load_profile(path)
        return shipped[file]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim, "load_profile", known)
        yield


@pytest.fixture(scope="session", autouse=True)
def _a_cpu_is_timed_in_few_rounds() -> Iterator[None]:
    """Thirty calls in turn tell two kernels apart by a few percent: of networks of a few elements
    nobody asks which is faster, and hundreds of tests compile some for the CPU."""
    from anabranch.targets.cpu import target as cpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "TIMED_ROUNDS", (2, 2))
        yield


@pytest.fixture(autouse=True)
def _schedules_are_searched_briefly(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for the best streams takes seconds for each network that is compiled without a word
    on how it is scheduled: what a whole one finds is asked of those folders alone."""
    if not SCHEDULED.isdisjoint(request.path.parents) and request.path != LEGAL:
        return
    from anabranch.schedule.local import scheduler as local

    for name in ("WORK", "MOST_EVALUATIONS", "RIGID_EVALUATIONS"):
        monkeypatch.setattr(local, name, getattr(local, name) // 20)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"no golden text {name} yet: make golden writes it"
        assert text == file.read_text(encoding="utf-8"), f"{name} changed; make golden accepts it"

    return check


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A cluster of Ray on this machine, of eight CPUs that need not be there."""
    ray = pytest.importorskip(
        "ray",
        reason="Ray is not installed (its wheel and these tests take over 30 s, so it is not in "
        "anabranch[dev]): make test-ray",
    )
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
