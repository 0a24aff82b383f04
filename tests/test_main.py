"""The command before it is one: Ctrl-C while modules are imported, and what is imported when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests import fresh

import anabranch
from anabranch.tuning.sandbox.process import SERVE

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
"""Seconds that importing may take, however busy the machine is."""


def words(way: str) -> list[str]:
    """The command as a module, or as the script that installing the package writes."""
    if way == "module":
        return ["-m", "anabranch"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    place, _, name = scripts["anabranch"].partition(":")
    return ["-c", f"import sys; from {place} import {name} as main; sys.exit(main())"]


@pytest.mark.parametrize("way", ["module", "script"])
def test_ctrl_c_while_modules_are_imported(way: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *words(way), "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        # Whoever runs the tests in the background may have Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stderr is not None
        began = next((line for line in process.stderr if " torch." in line), "")
        assert began, "torch was not imported"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, said, out) == (130, ["interrupted"], "")


COUNTED = (
    "import gc, sys\n"
    "counts = [0, 0, 0]\n"
    "def count(phase, told):\n"
    "    counts[told['generation']] += phase == 'start'\n"
    "gc.callbacks.append(count)\n"
)
"""Counts collections from here on, by generation."""


def test_no_garbage_is_looked_for_while_the_command_is_imported() -> None:
    """It took a quarter of the time, and whatever is imported is never looked at again."""
    code = (
        f"{COUNTED}"
        "from anabranch import __main__\n"
        "sys.argv[1:] = ['--version']\n"
        "assert __main__.main() == 0\n"
        "print(counts[2], gc.get_freeze_count() > 100_000, gc.isenabled())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 True True"


def test_no_garbage_is_looked_for_while_the_sandbox_is_imported() -> None:
    served = SERVE.replace("main(*sys.argv[2:])", "print(counts[2], gc.isenabled())")
    assert served != SERVE
    done = subprocess.run(
        [sys.executable, "-c", f"{COUNTED}\n{served}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 True\n"


def test_the_names_are_there_when_they_are_asked_for() -> None:
    """And not before: who starts as a part of the package need not import all of it."""
    before = (
        "import sys, anabranch\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(anabranch.__all__) <= set(dir(anabranch))\n"
        "assert anabranch.errors.OptionError is anabranch.OptionError\n"
        "assert not hasattr(anabranch, 'nothing')\n"
    )
    after = (
        "import sys, anabranch.api\n"
        "assert 'torch._dynamo' not in sys.modules, 'nothing is traced yet'\n"
        "from anabranch import *\n"
        "assert compile is anabranch.compile is anabranch.api.compile\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", before],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    done = fresh.run(after)
    assert done.returncode == 0, done.stderr


def test_a_warm_start_imports_no_compiler_of_torchs(tmp_path: Path) -> None:
    """It takes a third of a second, and more."""
    code = (
        "import sys, anabranch, torch\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "model = nn.Sequential(*layers, nn.Linear(4, 2)).eval()\n"
        "options = {'kernels': 'library', 'search': 'none', 'cache_dir': sys.argv[1]}\n"
        "x = torch.ones(1, 3, 5, 5)\n"
        "fast = anabranch.compile(model, (x,), target='cpu', **options)\n"
        "assert torch.allclose(fast(x), model(x), atol=1e-6)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    told = [fresh.run(code, str(tmp_path)) for _ in range(2)]
    assert all(done.returncode == 0 for done in told), told[0].stderr + told[1].stderr
    assert told[1].stdout == "False\n"


@pytest.mark.parametrize("name", anabranch.__all__)
def test_every_name_means_something(name: str) -> None:
    assert getattr(anabranch, name).__name__ == name
