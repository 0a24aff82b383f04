from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fresh
from torch import Tensor, nn

from anabranch.frontend.fingerprint import fingerprint
from anabranch.models.zoo import ZOO


@dataclass
class Config:
    width: int = 4
    act: str = "relu"


class Block(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor] = F.relu, config: Any = None) -> None:
        super().__init__()
        self.act, self.config, self.sizes = act, config or Config(), [1, (2, 3)]
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x))) * self.scale  # type: ignore[no-any-return]


X = torch.zeros(2, 4)


def changed(change: Callable[[Any], Any]) -> Block:
    block = Block().eval()
    change(block)
    return block


def test_same_model_same_name_whatever_the_weights() -> None:
    torch.manual_seed(0)
    first = fingerprint(Block().eval(), (X,))
    assert first and first == fingerprint(Block().eval(), (X + 1,))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda m: setattr(m.config, "width", 5),
    "list": lambda m: m.sizes.append(4),
    "function": lambda m: setattr(m, "act", F.gelu),
    "lambda": lambda m: setattr(m, "act", lambda x: x * 2),
    "other lambda": lambda m: setattr(m, "act", lambda x: x * 3),
    "part": lambda m: setattr(m, "b", nn.Linear(4, 4, bias=False)),
    "option of a part": lambda m: setattr(m, "a", nn.Sequential(nn.Linear(4, 4), nn.ELU(0.5))),
    "other option": lambda m: setattr(m, "a", nn.Sequential(nn.Linear(4, 4), nn.ELU(0.7))),
    "dtype": lambda m: m.double(),
    "tying": lambda m: setattr(m.b, "weight", m.a.weight),
    "shared part": lambda m: setattr(m, "b", m.a),
    "mode": lambda m: m.train(),
    "strides": lambda m: setattr(m.a, "weight", nn.Parameter(m.a.weight.detach().t())),
    "tensor attribute": lambda m: setattr(m, "extra", torch.ones(3)),
    "buffer kind": lambda m: m.register_buffer("scale", torch.ones(4), persistent=True),
    "forward": lambda m: setattr(m, "forward", lambda x: x),
}


def test_every_change_gives_another_name() -> None:
    names = [fingerprint(changed(change), (X,)) for change in CHANGES.values()]
    names.append(fingerprint(Block().eval(), (X,)))
    assert None not in names and len(set(names)) == len(names)


def test_every_call_gives_another_name() -> None:
    model = Block().eval()
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}), ((), {"x": X}), (([X],), {}), ((X, 1), {}), ((X, 1.0), {}), ((X, True), {}),
        ((X.double(),), {}), ((torch.zeros(3, 4),), {}), ((torch.zeros(4, 2).t(),), {}),
    ]  # fmt: skip
    names = [fingerprint(model, *call) for call in calls]
    assert None not in names and len(set(names)) == len(names)


class Opaque:
    """Holds who knows what."""


def _closure() -> Any:
    hidden = Opaque()
    return lambda x: (x, hidden)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.register_forward_hook(lambda *a: None),
        lambda m: m.a.register_forward_pre_hook(lambda *a: None),
        lambda m: setattr(m, "thing", Opaque()),
        lambda m: setattr(m, "act", _closure()),
        lambda m: setattr(m, "parts", [nn.Linear(1, 1)]),
        lambda m: m.sizes.append(m.sizes),
    ],
)
def test_what_cannot_be_seen_through_is_unknown(change: Callable[[Any], Any]) -> None:
    assert fingerprint(changed(change), (X,)) is None


def test_unknown_inputs_and_models() -> None:
    assert fingerprint(Block(), (Opaque(),)) is None
    assert fingerprint(lambda x: x, (X,)) is None
    space: dict[str, Any] = {"nn": nn, "__name__": "nowhere"}
    exec("class Typed(nn.Module):\n    def forward(self, x): return x", space)
    assert fingerprint(space["Typed"](), (X,)) is None


def test_source_file_of_the_class_counts(tmp_path: Path) -> None:
    def load(body: str) -> nn.Module:
        file = tmp_path / "net_of_test.py"
        head = "from torch import nn\n\nclass A(nn.Module):\n    def forward(self, x):\n"
        file.write_text(f"{head}        {body}\n")
        spec = importlib.util.spec_from_file_location("net_of_test", file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["net_of_test"] = module
        spec.loader.exec_module(module)
        made: nn.Module = module.A()
        return made

    first = fingerprint(load("return x"), (X,))
    assert first and first == fingerprint(load("return x"), (X,))
    assert first != fingerprint(load("return x + 1"), (X,))


@pytest.mark.parametrize("name", ZOO)
def test_zoo_is_known(name: str) -> None:
    network = ZOO[name]
    names = [fingerprint(network.build("tiny"), network.inputs("tiny", 1)) for _ in range(2)]
    assert names[0] and names[0] == names[1]


def test_another_process_finds_the_same_name() -> None:
    code = (
        "import torch; from anabranch.frontend.fingerprint import fingerprint;"
        "from anabranch.models.zoo import ZOO; n = ZOO['bert_base'];"
        "print(fingerprint(n.build('tiny'), n.inputs('tiny', 1)))"
    )
    told, network = fresh.run(code), ZOO["bert_base"]
    assert told.stdout.strip() == fingerprint(network.build("tiny"), network.inputs("tiny", 1))


def test_exported_programs_are_known_by_their_code() -> None:
    """Of equal weights, and of constants that the code makes."""

    def name(forward: Callable[[Any, Tensor], Any]) -> str | None:
        made = type("Made", (nn.Linear,), {"forward": forward})(4, 4).eval()
        return fingerprint(torch.export.export(made, (X,)).module(), (X,))

    def linear(m: Any, x: Tensor) -> Tensor:
        return F.linear(x, m.weight, m.bias)

    names = [
        name(linear),
        name(lambda m, x: linear(m, x).relu()),
        name(lambda m, x: linear(m, x) + torch.tensor([1.0, 2.0, 3.0, 4.0])),
        name(lambda m, x: {"y": linear(m, x)}),
    ]
    assert None not in names and len(set(names)) == len(names)
    assert name(linear) == names[0]


def test_hooks_of_users_on_exported_programs_are_not_seen_through() -> None:
    module = torch.export.export(Block().eval(), (X,)).module()
    module.register_forward_hook(lambda *a: None)
    assert fingerprint(module, (X,)) is None
