"""A model that goes another way while it is exported is warned about; one that only asks is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.cache import Cache
from anabranch.errors import InputError
from anabranch.frontend.capture_cache import Calling, capture_model
from anabranch.frontend.mode_queries import as_exported
from anabranch.frontend.surroundings import surroundings
from anabranch.trace import Trace

X = torch.ones(3)
QUESTIONS: dict[str, Callable[[], bool]] = {
    "torch.compiler.is_compiling()": lambda: torch.compiler.is_compiling(),
    "torch.compiler.is_exporting()": lambda: torch.compiler.is_exporting(),
    "torch.is_grad_enabled()": lambda: torch.is_grad_enabled(),
}
ASKS = {
    **QUESTIONS,
    "torch.compiler.is_compiling() ": lambda: torch._dynamo.is_compiling(),
}


class Asks(nn.Module):
    """What its sample does not show: another limit."""

    def __init__(self, question: Callable[[], bool], limits: tuple[float, float]) -> None:
        super().__init__()
        self.question, self.limits = question, limits

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(max=self.limits[0] if self.question() else self.limits[1])


def said(model: nn.Module, fake: bool = False, given: Tensor | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calling = Calling(surroundings(), fake=fake)
        capture_model(
            model.eval(),
            (torch.zeros(3) if given is None else given,),
            {},
            Cache(None),
            Trace(),
            calling,
        )
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("name", ASKS)
def test_another_way_while_exporting_is_told(name: str, fake: bool) -> None:
    (told,) = said(Asks(ASKS[name], (5.0, 6.0)), fake)
    assert told.startswith(f"Asks: forward asks {name.strip()} at test_mode_queries.py:")
    assert "goes the way for True" in told


def test_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """By Python's warnings, and not by the logger too, which shows its own on the same screen."""

    class Twice(Asks):
        def forward(self, x: Tensor) -> Tensor:
            again = x.clamp(max=self.limits[0] if self.question() else self.limits[1])
            return again + super().forward(x)

    (told,) = said(Twice(QUESTIONS["torch.compiler.is_compiling()"], (5.0, 6.0)))
    assert told.count("torch.compiler.is_compiling()") == 1
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize("name", ASKS)
def test_the_same_way_is_not(name: str) -> None:
    assert said(Asks(ASKS[name], (5.0, 5.0))) == []


def test_kernels_of_torchs_that_gradients_choose_are_no_other_way() -> None:
    """Attention with a mask is one operator without gradients, and several with them."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x).view(1, 2, 3, 8) if torch.compiler.is_compiling() else self.heads(x)
            return nn.functional.scaled_dot_product_attention(y, y, y, torch.zeros(3, 3))

        def heads(self, x: Tensor) -> Tensor:
            made: Tensor = self.linear(x).view(1, 2, 3, 8)
            return made

    assert said(Attends(), given=torch.randn(6, 8)) == []


def test_answers_are_those_of_an_export_and_go_back() -> None:
    answers: list[list[bool]] = []

    class Notes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            answers.append([question() for question in QUESTIONS.values()])
            return x + 1

    torch.export.export(Notes(), (torch.zeros(2),), strict=False)
    with torch.no_grad():
        before = [question() for question in QUESTIONS.values()]
        with as_exported():
            assert [question() for question in QUESTIONS.values()] == answers[0]
        assert [question() for question in QUESTIONS.values()] == before == [False] * 3


@contextmanager
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def warn_only() -> Iterator[None]:
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False)


@contextmanager
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + 1)
        yield


SETTINGS: dict[str, tuple[Callable[[], object], Callable[[], AbstractContextManager[Any]]]] = {
    "torch.is_inference_mode_enabled()": (torch.is_inference_mode_enabled, torch.inference_mode),
    "torch.get_default_device()": (torch.get_default_device, lambda: torch.device("meta")),
    "torch.get_num_threads()": (torch.get_num_threads, threads),
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        torch.is_deterministic_algorithms_warn_only_enabled,
        warn_only,
    ),
    "torch.get_deterministic_debug_mode()": (torch.get_deterministic_debug_mode, warn_only),
    "torch.initial_seed()": (torch.initial_seed, seeded),
    "torch.is_anomaly_enabled()": (
        torch.is_anomaly_enabled,
        lambda: torch.autograd.set_detect_anomaly(True),
    ),
    "torch.backends.cudnn.deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        lambda: torch.backends.cudnn.flags(deterministic=True),
    ),
    "torch.backends.cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda: torch.backends.cudnn.flags(benchmark=True),
    ),
    "torch.backends.cuda.flash_sdp_enabled()": (
        torch.backends.cuda.flash_sdp_enabled,
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ),
}


WARM = list(SETTINGS)[:3]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    ("name", "warm"), [*((name, False) for name in SETTINGS), *((n, True) for n in WARM)]
)
def test_a_setting_that_is_asked_for_is_depended_on(name: str, warm: bool, tmp_path: Path) -> None:
    question, other = SETTINGS[name]
    usual = question()

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if question() == usual else x * 3

    options: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": tmp_path}
    for _ in range(2 if warm else 1):
        fast = anabranch.compile(Looks().eval(), (X,), **options)
    assert torch.equal(fast(X), X * 2)
    with other(), pytest.raises(InputError, match="the model asks, and it was") as refused:
        fast(X)
    assert name in refused.value.why


def test_switches_that_a_capture_sets_itself_are_warned_about() -> None:
    def reads(x: Tensor) -> Tensor:
        fast = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        return x * 2 if fast or torch.get_float32_matmul_precision() == "high" else x * 3

    with pytest.warns(UserWarning) as told:
        anabranch.compile(reads, (X,), target="cpu", search="none", cache_dir=None)
    (text,) = [str(one.message) for one in told if "forward reads" in str(one.message)]
    for name in ("cuda.matmul.allow_tf32", "cudnn.allow_tf32", "get_float32_matmul_precision()"):
        assert f"{name} at test_mode_queries.py:" in text


@pytest.mark.parametrize("named", [False, True])
def test_tensors_that_a_model_makes_lie_where_they_did(named: bool, tmp_path: Path) -> None:
    """A plan has them on the default device of compile time, if they name none."""

    class Makes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            steps = torch.arange(3, device=x.device) if named else torch.arange(3)
            return x + steps + torch.zeros_like(x)

    for _ in range(2):  # the second one is recalled
        fast = anabranch.compile(
            Makes().eval(), (X,), target="cpu", search="none", cache_dir=tmp_path
        )
        assert torch.equal(fast(X), X + torch.arange(3))
        with torch.device("meta"):
            if named:
                assert torch.equal(fast(X), X + torch.arange(3, device="cpu"))
            else:
                with pytest.raises(InputError, match=r"device\(type='meta'\)"):
                    fast(X)
