"""What holds for queues in any order on any requests, limits and rules: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.cost.kv import KvUnits, units
from evaluator.cost.memory import KvLayout, kv_units
from evaluator.device import configure
from evaluator.reference import Limits
from evaluator.stations.engine import LaneResult, Requests
from evaluator.stations.engine.preemptive import Lane, Rules, run_lanes
from tests.properties.engine.test_fcfs_reserved import REQUESTS
from tests.properties.engine.test_fcfs_reserved import cases as in_order_cases
from tests.reference.build import random_cost
from tests.stations.engine.compare import TOLERANCE, assert_same
from tests.stations.engine.fcfs_reserved.build import LANES, build
from tests.stations.engine.preemptive.build import (
    CHUNKING,
    POLICIES,
    Case,
    Kind,
    random_case,
    run_engine,
    run_reference,
    stacked,
)
from tests.thorough import tried

QUICK = settings(max_examples=tried(100, 0.5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = {
    pipeline_ranks: Kind(windowed=True, experts=True, pipeline_ranks=pipeline_ranks, peaks=True)
    for pipeline_ranks in (1, 3)
}
"""Those of the random cases (``preemptive/test_program.py``), so that they share compiled programs."""


@st.composite
def cases(draw: st.DrawFn, ranks: tuple[int, ...] = tuple(KINDS)) -> Case:
    """The cases of the other program under any policy, KV on demand or reserved, from barely enough of it on."""
    case, pipeline_ranks = draw(in_order_cases()), draw(st.sampled_from(ranks))
    policy = draw(st.sampled_from([*POLICIES, "lightllm"]))
    on_demand = policy == "lightllm" or (policy not in ("static", "orca") and draw(st.booleans()))
    block = 1 if policy == "lightllm" else draw(st.sampled_from([1, 3, 16]))
    units = -(-(case.prompt_tokens + case.output_tokens - 1 + case.resident) // block)
    whole = int((case.prompt_tokens + case.output_tokens).max())
    seats = case.limits.max_num_seqs
    least = seats if policy in CHUNKING else whole + seats * (policy in ("mixed", "orca"))
    limits = Limits(
        seats, least + draw(st.integers(0, 40)), int(units.max()) + draw(st.integers(0, 60)),
        admission="on_demand" if on_demand else "reserve", block_tokens=block,
        long_prefill_token_threshold=draw(st.sampled_from([0, 1, 20])) if policy in CHUNKING else 0,
        packing=draw(st.sampled_from(["fcfs", "least_work_left"])), look_every=draw(st.integers(1, 5)),
    )  # fmt: skip
    watermark = draw(st.integers(0, limits.kv_units - int(units.max()))) if on_demand else 0
    limits = replace(limits, watermark_units=watermark)
    more = (
        random_cost(np.random.default_rng(number), experts=True, windowed=True) for number in range(1, pipeline_ranks)
    )
    return Case(replace(case, policy=policy, limits=limits, kv_units=units), (case.cost, *more), 0 * units)


def run(given: Case) -> LaneResult:
    """The engine, which needs as many pipeline ranks as there are costs."""
    (result,) = run_engine([given], KINDS[len(given.costs)])
    return result


@QUICK
@given(cases())
def test_the_engine_equals_the_plain_loop(given):
    result, expected = run(given), run_reference(given)
    assert_same(given.case, result, expected)
    assert result.totals.preemptions == expected.preemptions
    assert result.totals.kv_unit_s == pytest.approx(expected.kv_unit_s, rel=TOLERANCE)


@QUICK
@given(cases())
def test_causes_come_first_and_nothing_is_lost(given):
    case, result = given.case, run(replace(given, case=replace(given.case, measured_from=0)))
    assert (result.scheduled_s >= case.arrival_s).all()
    assert (result.first_token_s > result.scheduled_s).all()
    assert ((result.last_token_s > result.first_token_s) == (case.output_tokens > 1)).all()
    # Every token but the first of a request ends a gap, but those that came before the first of request 0.
    first = result.first_token_s[0]
    if first <= result.first_token_s.min():
        assert result.itl_histogram.sum() == (case.output_tokens - 1).sum()
    assert result.totals.iterations >= case.output_tokens.max()
    assert result.totals.busy_s <= result.last_token_s.max() * (1 + 1e-12)
    assert case.kv_units.max() <= result.totals.kv_units_max <= case.limits.kv_units
    if case.limits.admission == "reserve":
        held_s = result.last_token_s - result.scheduled_s
        assert result.totals.preemptions == 0
        if len(given.costs) == 1:  # in a pipeline KV is taken when a batch is put together, before its first rank
            assert result.totals.kv_unit_s == pytest.approx((case.kv_units * held_s).sum(), rel=TOLERANCE)


@QUICK
@given(cases())
def test_with_kv_for_all_it_makes_no_difference_when_it_is_given(given):
    """Nobody is preempted, and admissions are the same as if all KV were reserved."""
    case = given.case
    plenty = replace(case.limits, kv_units=int(case.kv_units.sum()) + 20, watermark_units=0)
    reserved = replace(plenty, admission="reserve")
    one, other = (run(replace(given, case=replace(case, limits=limits))) for limits in (plenty, reserved))
    assert one.totals.preemptions == 0
    if case.policy != "lightllm":
        np.testing.assert_allclose(one.last_token_s, other.last_token_s, rtol=TOLERANCE)


@QUICK
@given(cases())
def test_nobody_rests_while_there_is_work(given):
    """Sent at once, all is done after exactly the time that the iterations take."""
    costs = given.costs[:1]
    result = run(replace(given, case=replace(given.case, arrival_s=np.zeros(len(given.case.arrival_s))), costs=costs))
    assert result.totals.busy_s == pytest.approx(result.last_token_s.max(), rel=TOLERANCE)


@pytest.mark.parametrize("pipeline_ranks", KINDS)
def test_the_same_input_gives_the_same_result_to_the_bit(pipeline_ranks):
    drawn = [random_case(seed, KINDS[pipeline_ranks]) for seed in range(8)]
    runs = (run_engine(drawn, KINDS[pipeline_ranks]) for _ in range(2))
    for one, other in zip(*runs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_one_compilation_for_each_structure():
    """Rules, KV layouts, policies, limits and costs are traced: what differs only in them shares one program."""
    configure()
    for kind in KINDS.values():
        sizes = set()
        for first in range(0, 3 * LANES, LANES):
            run_engine([random_case(seed, kind) for seed in range(first, first + LANES)], kind)
            sizes.add(run_lanes._cache_size())
        assert len(sizes) == 1


RULES = {
    "on_demand": False,
    "whole_kv": True,
    "watermark_units": 8.0,
    "full_prompt": True,
    "long_prefill_tokens": 5.0,
    "least_work": True,
    "look_every": 1,
    **{f"kv.{name}": 0.75 if name == "full" else 1.5 for name in KvUnits._fields},
}


def _changed(given: Lane, requests: Requests, name: str) -> tuple[Lane, Requests]:
    """The rule put to its value of RULES, or the number of the KV layout times that, in the requests' units, too."""
    field, _, part = name.partition(".")
    old = getattr(given.rules, field)
    if part:
        new = old._replace(**{part: getattr(old, part) * RULES[name]})
        # Whoever is done gives back what the requests say: of another layout that would leave less than no KV in use.
        whole = units(KvUnits(*(number[:, None] for number in new)), requests.prompt_tokens + requests.output_tokens)
        requests = requests._replace(kv_units=whole.astype(requests.kv_units.dtype))
    else:
        new = np.full_like(old, RULES[name])
    return given._replace(rules=given.rules._replace(**{field: new})), requests


def test_every_rule_is_tried():
    around = {"frontend_s", "lookahead_steps"}  # of users, who are those of several replicas: joint/test_lockstep.py
    assert {name.partition(".")[0] for name in RULES} == {*Rules._fields} - around


@pytest.mark.parametrize("name", RULES)
def test_every_rule_moves_some_output(name):
    """KV that is far too little for all who come, in layers that keep all, in others with a window, and in states."""
    looks = name == "look_every"
    layout = KvLayout(1.0, 1.0, 40, 6.0, 1 if looks else 4, 2.0 if looks else 12.0, 0)
    case = build(
        random_cost(np.random.default_rng(3), experts=True, windowed=True), "lightllm" if looks else "chunked",
        np.zeros(REQUESTS), [40, 90, 30, 70, 55, 20, 64, 80], [12, 30, 30, 1, 9, 25, 7, 16], window=50,
    )  # fmt: skip
    tokens, kv = (200, 300) if looks else (24, 30)
    limits = Limits(4, tokens, kv, admission="on_demand", block_tokens=layout.block_tokens, look_every=4)
    units = kv_units(layout, case.prompt_tokens + case.output_tokens)
    busy = Case(replace(case, limits=limits, kv_units=units), (case.cost,), np.zeros(REQUESTS, int), layout)
    lanes, requests = stacked([busy] * LANES)
    runs = (
        run_lanes(*given, structure=KINDS[1].structure, vectorise=False)
        for given in ((lanes, requests), _changed(lanes, requests, name))
    )
    one, other = (jax.tree.map(np.asarray, found) for found in runs)
    for result in (one, other):
        assert np.isfinite(result.last_token_s[0, :REQUESTS]).all()
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
