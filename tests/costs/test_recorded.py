"""Profiles: read, written, and honest about what they do not hold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.compiler.pipeline import compile_model
from anabranch.costs.recorded import (
    KernelFact,
    Profile,
    Provenance,
    Recorded,
    Timing,
    find_probe,
    kernel_key,
    kernel_text,
    load_profile,
    probe_of,
    save_profile,
    timing_key,
)
from anabranch.costs.roofline import Roofline
from anabranch.errors import TargetError
from anabranch.ir.calibration import Calibration
from anabranch.ir.key import digest_text
from anabranch.ir.protocols import Cost, Probe
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import Kernel, Resources
from anabranch.ir.variant import parse_variant
from anabranch.options import Options
from anabranch.targets.sim.target import open_sim
from anabranch.trace import Trace
from anabranch.tuning.job import Job


@pytest.fixture(name="profile")
def _profile(make: Any) -> Profile:
    """Knows relu of width 8, and its kernel."""
    task = make.relu("a", ctas=4)
    return Profile(
        spec=make.spec,
        provenance=Provenance(date="2026-11-20", versions={"torch": "2.11"}, command="record"),
        tasks={timing_key(task, False): Timing(us=2.5, spread=0.1, label="relu 8")},
        kernels={
            kernel_key(task.kernel): KernelFact(workspace=64, resources=Resources(1, 2, 3, 4))
        },
    )


def test_a_profile_comes_back_equal(profile: Profile, tmp_path: Path) -> None:
    save_profile(profile, tmp_path / "gpu.json")
    assert load_profile(tmp_path / "gpu.json") == profile
    assert load_profile(tmp_path / "gpu.json").spec.fingerprint == profile.spec.fingerprint


HOSTILE: tuple[Any, ...] = (
    *(None, 0, -1, 2**63, -(10**28), 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf")),
    *("", "x", "\x1b[31m", "9" * 5000, [], [[]], {}, [1], True),
)


def _places(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into what JSON has."""
    items: Iterable[tuple[Any, Any]] = found.items() if isinstance(found, dict) else ()
    items = enumerate(found) if isinstance(found, list) else items
    for key, inner in items:
        yield (*at, key)
        yield from _places(inner, (*at, key))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damaged_profiles_are_refused_in_words_or_plan(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands at any place of one; forecasts of what is taken are numbers."""
    kernel = KernelFact(workspace=64, resources=Resources(1, 2, 3, 4))
    spec = replace(open_sim("h200", False).profile.spec, calibration=Calibration())
    whole = Profile(spec=spec, tasks={"a": Timing(us=2.5)}, kernels={"b": kernel})
    found = json.loads(whole.model_dump_json())
    *outer, last = data.draw(st.sampled_from(list(_places(found))))
    inner = found
    for key in outer:
        inner = inner[key]
    inner[last] = data.draw(st.sampled_from(HOSTILE))
    path = tmp_path_factory.mktemp("profile") / "gpu.json"
    path.write_text(json.dumps(found))
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).eval(), (2, 64)
    try:
        sim = open_sim(str(path), False)
    except TargetError as said:
        assert "\x1b" not in str(said)
        assert len(str(said)) < 1000
        return
    options = Options.read({"search": "none", "budget": 1}, environment=False)
    job = Job(model, (torch.ones(x),), {}, sim, options, None, Trace(quiet=True))
    assert math.isfinite(compile_model(job).cost.us)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 2, "spec": {"kind": "cuda", "name": "x"}}']
)
def test_what_is_no_profile_says_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(text)
    for name in ("gpu.json", "absent.json", "nothing\0.json"):
        with pytest.raises(TargetError, match="cannot read the profile"):
            load_profile(tmp_path / name)
    if not text:
        with pytest.raises(TargetError, match="why:  Invalid JSON"):
            load_profile(tmp_path / "gpu.json")


def test_known_tasks_are_recorded_others_estimated(make: Any, profile: Profile) -> None:
    costs = Recorded(profile, Roofline(make.spec))
    a, b, c = make.relu("a", ctas=4), make.relu("b", ["a"], ctas=9), make.relu("c", width=9)
    assert (costs.task(a).us, costs.task(a).spread, costs.task(a).source) == (2.5, 0.1, "recorded")
    assert costs.task(b) == costs.task(a)  # names and resources do not matter
    assert costs.task(c) == Roofline(make.spec).task(c)
    graph = make.graph(a, b, c)
    assert costs.missing(graph) == 1
    assert costs.unknown == (timing_key(c, False),)


def test_a_schedule_is_recorded_only_if_all_its_tasks_are(make: Any, profile: Profile) -> None:
    costs = Recorded(profile)
    a, b, c = make.relu("a", ctas=4), make.relu("b", ["a"], ctas=4), make.relu("c", width=9)
    one_stream = Schedule("s", (Launch("a", 0), Launch("b", 0)))
    cost = costs.schedule(make.graph(a, b), one_stream)
    assert (cost.us, cost.source) == (5.0, "recorded")
    more = replace(one_stream, launches=(*one_stream.launches, Launch("c", 1)))
    assert costs.schedule(make.graph(a, b, c), more).source == "estimated"
    assert costs.rank(make.graph(a, b), [one_stream]) == [cost]
    assert costs.timeline(make.graph(a, b), one_stream).latency == 5.0


def test_plans_race_in_numbers_of_one_scale(make: Any, profile: Profile) -> None:
    costs, one = Recorded(profile), Schedule("one", (Launch("a", 0),))
    known = make.graph(make.relu("a", ctas=4)), one
    unknown = make.graph(make.relu("a", width=1024, ctas=4)), one
    assert [cost.source for cost in costs.race([known, known])] == ["recorded"] * 2
    rough = Roofline(make.spec)
    (was,), (more,) = (plan.tasks for plan, _ in (known, unknown))
    off = costs.task(was).us / rough.task(was).us
    found, *_, guessed = costs.race([known, known, known, unknown])
    assert found == Cost(2.5, "recorded")
    assert guessed.source == "estimated"
    assert guessed.us == pytest.approx(off * rough.task(more).us)
    alone = [rough.schedule(*unknown)]
    assert costs.race([unknown]) == costs.race([known, unknown])[1:] == alone


def test_what_estimates_may_be_off_by_is_the_spread_of_a_race(make: Any) -> None:
    """But for what both plans have in common: by that they are not told apart."""
    rough = Roofline(make.spec)
    off = {8: 1.0, 16: 1.1, 32: 1.2, 64: 1.4}
    tasks = {width: make.relu(f"w{width}", width=width, ctas=4) for width in (*off, 1024, 2048)}
    times = {
        timing_key(tasks[w], False): Timing(us=by * rough.task(tasks[w]).us)
        for w, by in off.items()
    }
    costs = Recorded(Profile(spec=make.spec, tasks=times))

    def plan(*widths: int) -> tuple[Any, Schedule]:
        launches = tuple(Launch(f"w{width}", 0) for width in widths)
        return make.graph(*(tasks[width] for width in widths)), Schedule("s", launches)

    known = plan(*off)
    assert [cost.spread for cost in costs.race([known, plan(8, 16)])] == [0.0, 0.0]
    first, one, same, both = costs.race([known, plan(*off, 1024), plan(1024), plan(1024, 2048)])
    assert first.spread == 0.0 < one.spread < one.us - first.us
    assert one.spread == pytest.approx(same.spread)
    assert both.spread == pytest.approx(2 * one.spread, rel=0.1)
    beside = costs.race([plan(*off, 1024), plan(8, 1024), plan(*off, 2048, 1024)])
    assert [cost.spread for cost in beside[:2]] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert beside[2].spread == pytest.approx(one.spread, rel=0.1)
    parts = [known, plan(*off, 1024), plan(1024)]  # of several graphs: the first is none of them
    assert [cost.spread for cost in costs.race(parts, in_a_row=8)] == [0.0] * 3


def test_a_part_of_a_graph_does_not_begin_like_a_run(make: Any, profile: Profile) -> None:
    """What waits for nothing there forks from what came before it."""
    spec = replace(make.spec, calibration=Calibration(split_us=6.0, root_us=1.0, fork_us=0.5))
    costs = Recorded(profile, spec=spec)
    a, b = make.relu("a", ctas=4), make.relu("b", ctas=4)
    twice = make.graph(a, b), Schedule("s", (Launch("a", 0), Launch("b", 1)))
    (run,), (part,) = costs.race([twice]), costs.race([twice], in_a_row=8)
    assert (run.us, part.us) == (2.5 + 6.0, 2.5 + 0.5)
    rough = Roofline(spec)
    assert rough.race([twice])[0].us - rough.race([twice], 8)[0].us == pytest.approx(5.5)


def test_probes_by_kernel(make: Any, profile: Profile) -> None:
    a, other = make.relu("a", ctas=4), make.relu("b", width=9, ctas=4)
    probe = Probe(64, 0, 1, Resources(1, 2, 3, 4))
    assert find_probe(profile, a.kernel) == probe
    assert probe == probe_of(profile.kernels[kernel_key(a.kernel)])
    assert find_probe(profile, other.kernel) is None
    assert Recorded(profile).probe(make.graph(a, other)) == {"a": probe}


def test_what_no_record_says_of_a_kernel_is_expected(make: Any, profile: Profile) -> None:
    """A record comes first; one without resources keeps its bytes."""
    known, unknown, library = (
        make.relu(n, width=w, ctas=4) for n, w in (("a", 8), ("b", 9), ("c", 7))
    )
    half = make.relu("d", width=10, ctas=4)
    facts = {**profile.kernels, kernel_key(half.kernel): KernelFact(workspace=32)}
    takes = Resources(98, 256, 40, 1024)

    def expected(kernel: Kernel, spec: Any) -> Resources | None:
        assert spec == make.spec
        return None if kernel == library.kernel else takes

    costs = Recorded(profile.model_copy(update={"kernels": facts}), expected=expected)
    assert costs.probe(make.graph(known, unknown, library, half)) == {
        "a": Probe(64, 0, 1, Resources(1, 2, 3, 4)),
        "b": Probe(unknown.kernel.workspace, 0, 1, takes),
        "d": Probe(32, 0, 1, takes),
    }


def test_what_a_kernel_takes_is_known_whatever_its_code(make: Any) -> None:
    """As its time is; profiles of before that have keys of the code, too."""
    task = make.relu("a", ctas=4)
    now, then = (replace(task.kernel, source=text) for text in ("# now\n", "# then\n"))
    fact = KernelFact(workspace=64)
    assert kernel_key(now) == kernel_key(then)
    known = Profile(spec=make.spec, kernels={kernel_key(then): fact})
    old = Profile(spec=make.spec, kernels={digest_text(kernel_text(then)): fact})
    assert find_probe(known, now) == find_probe(old, then) == probe_of(fact)
    assert find_probe(old, now) is None


def test_kernels_are_found_by_the_names_they_had_when_they_were_recorded(make: Any) -> None:
    tile = "64x32x32x32.k1.w8.s2"
    task = make.relu("a", ctas=4)

    def named(name: str, variant: Any) -> Any:
        source = f"# task a\n# {variant}\nimport triton\n"
        kernel = Kernel("triton", name, task.body, variant, source=source)
        return replace(task, kernel=kernel)

    then = named("pair", f"pair:{tile}")
    now = named("gemm_chain", parse_variant(f"gemm_chain:{tile}"))
    profile = Profile(
        spec=make.spec,
        tasks={timing_key(then, False): Timing(us=2.5)},
        kernels={kernel_key(then.kernel): KernelFact(workspace=64)},
    )
    costs = Recorded(profile)
    assert costs.task(now) == Cost(2.5, "recorded") and not costs.unknown
    assert costs.probe(make.graph(now)) == {"a": Probe(64, 0, 1, None)}
    other = named("gemm_chain", parse_variant(f"gemm_chain:{tile}.tf32"))
    assert costs.task(other).source == "estimated"
    assert costs.unknown == (timing_key(other, False),)


def test_an_unrecorded_kernel_does_not_compete_with_a_recorded_one(
    make: Any, profile: Profile
) -> None:
    a = make.relu("a", ctas=4)
    other = replace(a, kernel=replace(a.kernel, provider="other"))
    alone = make.relu("c", width=9)
    known, unknown, guess = Recorded(profile).trial([a, other, alone])
    assert known is not None and known.source == "recorded"
    assert unknown is None
    assert guess is not None and guess.source == "estimated"


def test_one_profile_holds_fp32_with_and_without_tf32(make: Any) -> None:
    single, half = make.conv(8, 8, 8, 3, torch.float32), make.conv(8, 8, 8, 3)
    assert timing_key(single, True) != timing_key(single, False)
    assert timing_key(half, True) == timing_key(half, False)
    profile = Profile(spec=make.spec, tasks={timing_key(single, True): Timing(us=3.0)})
    assert Recorded(profile).task(single).source == "estimated"
    assert Recorded(profile, spec=replace(make.spec, tf32=True)).task(single).us == 3.0
