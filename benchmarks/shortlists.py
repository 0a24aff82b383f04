"""What is lost where fewer kernels are tried: plans of a recorded H200 from shortlists of kernels.

    PYTHONPATH=src python benchmarks/shortlists.py zoo:resnet50 zoo:bert_base --json FILE   # no GPU

For each structure of a network's plan all kernels that are offered, and of these as many tiles of a
template as `EffortSettings.generated` says, and engines that `EffortSettings.engines` lets pass, by
a model of kernels that was fitted without the network. `order`: of tiles, as they are offered or as
that model predicts them. `slower`: what the fastest of the shortlist
takes beside the fastest of all, summed over the plan. The profile has precise times of the four
fastest of a structure at most, or of those within 1.3 times the fastest: a tile without a time is
counted as 1.3 times the fastest where fewer than four have one, else as 1.05 times the slowest of
these. So the numbers are estimates, and rather too high for few tiles.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anabranch
from anabranch.bench import harness
from anabranch.bench.record import considered
from anabranch.costs.kernel_model import FittedKernels, Timed, fit_factors, predicted_us
from anabranch.costs.recorded import Profile, find_timing, load_profile, timing_key
from anabranch.deadline import EffortSettings
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import KernelOffer
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task
from anabranch.kernels import ALL
from anabranch.kernels.kernel_terms import terms_of
from anabranch.models.load import load_model
from anabranch.targets import resolve
from anabranch.targets.sim.target import PROFILES
from anabranch.tuning.shortlist import Offers, shortlisted

TARGET = "sim:h200"
TILES = (1, 2, 3, 4, 6, 8, 12, None)
SETTINGS = (
    *((tiles, 1.3, "offered") for tiles in TILES),
    *((None, engines, "offered") for engines in (0.0, math.inf)),
    *((tiles, 1.3, "predicted") for tiles in (1, 2, 4, 8, 12)),
)
FINALISTS, FAR, AFTER = 4, 1.3, 1.05


@dataclass(frozen=True)
class Structure:
    """A task of it, how often the plan has it, all kernels with their keys, and microseconds."""

    task: Task
    count: int
    offers: Offers
    keys: tuple[str, ...]
    us: dict[str, float]

    def took(self, provider: str, key: str) -> float:
        """What a kernel takes, as far as that is known."""
        tiles = [self.us[k] for (_, o), k in self.each() if o.generated and k in self.us]
        if key in self.us:
            return self.us[key]
        if provider != "triton" or not tiles:
            return math.inf
        return FAR * min(tiles) if len(tiles) < FINALISTS else AFTER * max(tiles)

    def each(self) -> Any:
        """Offers and keys."""
        return zip(self.offers, self.keys, strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", help="networks that the profile was recorded of")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    profile, spec = load_profile(PROFILES / "h200.json"), replace(resolve(TARGET).spec, tf32=False)
    networks, timed = {}, dict[str, tuple[Timed, set[str]]]()
    for model in flags.models:
        networks[model] = structures(model, profile, spec)
        for structure in networks[model]:
            learn(model, structure, spec, timed)
    models = {
        name: FittedKernels(
            factors=fit_factors([t for t, users in timed.values() if name not in users])
        )
        for name in networks
    }
    rows = []
    for tiles, engines, order in SETTINGS:
        settings = EffortSettings(generated=tiles, engines=engines)
        cells = [cell(networks[name], models[name], spec, settings, order) for name in networks]
        slower = {name: c["slower"] for name, c in zip(networks, cells, strict=True)}
        mean = math.exp(sum(map(math.log1p, slower.values())) / len(slower)) - 1
        kernels = sum((Counter(c["kernels"]) for c in cells), Counter[str]())
        rows.append(
            {
                "tiles": tiles,
                "engines": str(engines),
                "order": order,
                "mean": round(mean, 4),
                **kernels,
            }
        )
        rows[-1]["slower"] = slower
        print(rows[-1], flush=True)
    if flags.json:
        harness.write(flags.json, "shortlists", TARGET, vars(flags), rows)
    return 0


def structures(model: str, profile: Profile, spec: TargetSpec) -> list[Structure]:
    """Those that are considered for a network, with all that is offered for them."""
    module, args = load_model(model, 1, "fp16", "cpu")
    options = {"search": "none", "scheduler": "sequential", "horizontal_fusion": "none"}
    options |= {"effort": "max", "cache_dir": None}
    fast = anabranch.compile(module, args, target=TARGET, verify=False, fullgraph=True, **options)
    compilation = fast.entries[-1].compilation
    assert compilation is not None
    plan = Counter(structure_text(task.body) for task in compilation.plan.tasks.tasks)
    first = {structure_text(task.body): task for task, _ in considered(fast)[0]}
    return [structure(task, plan[text], profile, spec) for text, task in first.items()]


def structure(task: Task, count: int, profile: Profile, spec: TargetSpec) -> Structure:
    offers = [(i, o) for i, p in enumerate(ALL) for o in p.kernel_offers(task, spec)]
    keys, us = [], {}
    for _, offer in offers:
        own = replace(task, kernel=offer.write())
        keys.append(timing_key(own, False))
        timing = find_timing(profile, own, False, keys[-1])
        if timing is not None and timing.us:
            us[keys[-1]] = timing.us
    return Structure(task, count, offers, tuple(keys), us)


def learn(
    model: str, structure: Structure, spec: TargetSpec, timed: dict[str, tuple[Timed, set[str]]]
) -> None:
    """Add what the model of kernels is fitted to, and which networks it is of."""
    for (_, offer), key in structure.each():
        launches = terms_of(replace(structure.task, kernel=offer.write()), spec)
        if key in structure.us and launches:
            timed.setdefault(key, (Timed(launches, structure.us[key]), set()))[1].add(model)


def cell(
    each: list[Structure],
    model: FittedKernels,
    spec: TargetSpec,
    settings: EffortSettings,
    order: str,
) -> dict[str, Any]:
    """What a network loses by these settings, and how many kernels are tried for it."""
    fastest = chosen = 0.0
    kernels: Counter[str] = Counter()
    for structure in each:
        offers = structure.offers
        if order == "predicted":
            offers = sorted(offers, key=lambda pair: predicted(structure.task, pair, model, spec))
        (few,) = shortlisted({"": structure.task}, {"": offers}, model, spec, settings).values()
        kernels.update(offer.provider for _, offer in few)
        us = {key: structure.took(offer.provider, key) for (_, offer), key in structure.each()}
        left = [us[key] for pair, key in structure.each() if pair in few]
        if structure.count and min(us.values()) < math.inf:
            fastest += structure.count * min(us.values())
            chosen += structure.count * min(left)
    return {"slower": round(chosen / fastest - 1, 4), "kernels": kernels}


def predicted(
    task: Task, pair: tuple[int, KernelOffer], model: FittedKernels, spec: TargetSpec
) -> float:
    """What the model says of a kernel, infinite where it knows nothing."""
    own = replace(task, kernel=pair[1].write())
    us = predicted_us(model.factors, terms_of(own, spec))
    return math.inf if us is None else us


if __name__ == "__main__":
    sys.exit(main())
