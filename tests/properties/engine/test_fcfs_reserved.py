"""What holds for the engine on any requests, limits and policy: found and shrunk by hypothesis."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.cost.iteration import (
    AdapterGroups,
    AttentionRows,
    CostParameters,
    DeltaRuleRows,
    OperatorRows,
    RampRows,
)
from evaluator.cost.mixed_attention import BesideRows
from evaluator.stations.engine import LaneLimits, LaneResult, Requests
from evaluator.stations.engine.fcfs_reserved import Lane, Structure, run_lanes
from tests.stations.engine.compare import assert_same
from tests.stations.engine.fcfs_reserved.build import (
    LANES,
    POLICIES,
    RING,
    SLOTS,
    Case,
    build,
    lane_of,
    random_case,
    random_cost,
    requests_of,
    run_engine,
    run_reference,
)
from tests.thorough import tried

REQUESTS = 8  # at most
QUICK = settings(max_examples=tried(150, 0.5), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to eight requests, any policy and role, limits from the least that serves them all."""
    count = draw(st.integers(1, REQUESTS))

    def column(elements: st.SearchStrategy) -> np.ndarray:
        return np.array(draw(st.lists(elements, min_size=count, max_size=count)))

    gaps = column(st.sampled_from([0.0, 1e-3, 0.01, 0.1, 3.0]))
    prompt = column(st.integers(1, 60))
    output = column(st.integers(1, 40))
    users = draw(st.none() | st.integers(1, 4))
    policy = draw(st.sampled_from(sorted(POLICIES)))
    resident = draw(st.booleans())
    cached = np.minimum(column(st.sampled_from([0, 0, 1, 30])), prompt - 1)
    compute = np.where(resident, 0, prompt - cached)
    seqs = draw(st.integers(1, 6))
    whole, shared = policy != "chunked", policy in ("chunked", "mixed")  # what the budget must hold at least
    least = max(1, int(compute.max()) * whole + seqs * shared)
    case = build(
        random_cost(np.random.default_rng(draw(st.integers(0, 3))), experts=True, windowed=True),
        policy, np.zeros(count) if users else np.cumsum(gaps), prompt, output,
        cached_tokens=cached, max_num_seqs=seqs, max_num_batched_tokens=least + draw(st.integers(0, 40)),
        block_tokens=draw(st.sampled_from([1, 16])), users=users, resident=resident,
        window=draw(st.integers(2, 80)), measured_from=draw(st.integers(0, count - 1)),
    )  # fmt: skip
    capacity = int(case.kv_units.max()) + draw(st.integers(0, 100))
    return replace(case, limits=replace(case.limits, kv_units=capacity))


def run(case: Case) -> LaneResult:
    """The engine on one lane."""
    (result,) = run_engine([case], lanes=1)
    return result


@QUICK
@given(cases())
def test_the_engine_equals_the_plain_loop(case):
    assert_same(case, run(case), run_reference(case))


@QUICK
@given(cases())
def test_nothing_starts_before_it_is_there_and_no_limit_is_broken(case):
    result = run(case)
    assert (result.scheduled_s >= case.arrival_s).all()
    assert (result.first_token_s > result.scheduled_s).all()
    assert ((result.last_token_s > result.first_token_s) == (case.output_tokens > 1)).all()
    assert (np.diff(result.scheduled_s) >= 0).all(), "first come, first served"
    events = np.concatenate([result.scheduled_s, result.last_token_s])
    order = np.lexsort((np.repeat([1, 0], len(case.arrival_s)), events))  # who leaves makes room at the same instant
    for amount, limit in ((case.kv_units, case.limits.kv_units), (1 + 0 * case.kv_units, case.limits.max_num_seqs)):
        held = np.cumsum(np.concatenate([amount, -amount])[order])
        assert held.max() <= limit and held[-1] == 0
    if case.users is not None:
        held = np.cumsum(np.repeat([1, -1], len(case.arrival_s))[order])
        assert held.max() <= case.users


@QUICK
@given(cases())
def test_tokens_are_conserved(case):
    """Every token but the first of each request ends one gap, and takes part in one iteration."""
    result = run(replace(case, measured_from=0))
    assert result.itl_histogram.sum() == (case.output_tokens - 1).sum()
    assert result.totals.iterations >= case.output_tokens.max()
    assert result.totals.iterations <= case.output_tokens.sum() + case.compute_tokens.sum()
    longest = np.nanmax(result.last_token_s)
    assert result.totals.busy_s <= longest * (1 + 1e-12)
    assert result.totals.busy_s >= case.cost.iteration_s * result.totals.iterations


@pytest.mark.parametrize("policy", POLICIES)
def test_the_mean_wait_grows_with_the_load(policy):
    """The same requests sent faster wait longer, in the mean over seeds (a single run may be lucky)."""
    rates = (1.0, 3.0, 6.0, 12.0, 30.0)
    cost = random_cost(np.random.default_rng(5), experts=False, windowed=False)

    def launched_batches(seed: int, rate: float) -> Case:
        rng = np.random.default_rng(seed)
        gaps, prompt, output = rng.exponential(1, 200), rng.integers(50, 500, 200), rng.integers(1, 100, 200)
        return build(cost, policy, np.cumsum(gaps) / rate, prompt, output, max_num_seqs=8, max_num_batched_tokens=1024)

    runs = [launched_batches(seed, rate) for rate in rates for seed in range(8)]
    waits = [np.mean(result.scheduled_s - case.arrival_s) for case, result in zip(runs, run_engine(runs), strict=True)]
    means = np.reshape(waits, (len(rates), -1)).mean(axis=1)
    assert (np.diff(means) > 0).all(), means


def test_the_same_input_gives_the_same_result_to_the_bit():
    cases = [random_case(seed, True, True) for seed in range(8)]
    for one, other in zip(map(run, cases), map(run, cases), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


# --- every input moves some output


def _busy_case(name: str) -> Case:
    """Where every limit binds and every kind of work is there: windows passed, caches, whole and cut prompts.

    The decisions of a policy show where limits do not decide for it.
    """
    limits = {"max_num_batched_tokens": 24, "kv_units": 190}
    if name.startswith("policy."):
        limits = {"max_num_batched_tokens": 95, "kv_units": 1000}
    policy = "continuous" if name == "policy.drain_first" else "chunked"
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(0.05, REQUESTS))
    cost = random_cost(rng, experts=True, windowed=True)
    # Under the host's floor what the device takes does not show, and above it not what the host takes.
    waits = name in ("cost.pieces_s", "cost.between_s", "cost.captured_tokens")
    cost = cost._replace(pieces_s=0.03 * waits, between_s=0.03 * waits)
    if name.startswith("cost.adapter"):
        rows = cost.expert_rows._replace(crowded=np.zeros(2), padding=np.zeros(2), filled=np.zeros(2))
        # Three sequences name 2.3 of the four; with 2 places at most it is these that count.
        most = np.array([2.0 if name.endswith("most") else 4.0])
        cost = cost._replace(adapter_rows=rows, adapter_groups=AdapterGroups(np.array([4.0]), np.log1p([-0.25]), most))
    if name.startswith("cost.delta_rule"):
        # A prompt beside another takes a second round as soon as its heads are half as many again.
        cost = cost._replace(delta_rule_rows=DeltaRuleRows(*np.array([[1e-3], [1e-4], [1e-5], [0.7]])))
    return build(
        cost, policy, arrival * (not name.startswith("policy.")),
        [40, 90, 30, 70, 55, 20, 64, 80], [12, 3, 30, 1, 9, 25, 7, 16],
        cached_tokens=np.array([0, 20, 0, 5, 0, 0, 10, 0]), max_num_seqs=3,
        users=None if name == "arrival_s" else 4, window=50, measured_from=2, **limits,
    )  # fmt: skip


PRODUCT = ("flop", "weight", "activation", "knee")
ROW_FIELDS = {  # which of the fields of its rows a group of operators has a use for
    "token_rows": (*PRODUCT, "waves", "wave_s", "tile_pass_s"),
    "sequence_rows": PRODUCT,
    "expert_rows": (*PRODUCT, "crowd", "crowded", "padding", "filled"),
    "prefill_rows": AttentionRows._fields,
    "prefill_window_rows": AttentionRows._fields,
    "ramp_rows": RampRows._fields,
    "expert_ramp_rows": ("ramp", "half"),
    "beside_rows": BesideRows._fields,
    "adapter_rows": PRODUCT,
    "delta_rule_rows": DeltaRuleRows._fields,
}
COST_INPUTS = [
    *(f"cost.adapter_groups.{name}" for name in AdapterGroups._fields),
    *(f"cost.{name}.{field}" for name, fields in ROW_FIELDS.items() for field in fields),
    *(f"cost.{name}" for name in CostParameters._fields if not name.endswith(("_rows", "_groups"))),
]
INPUTS = {
    **{name: 1.5 for name in COST_INPUTS},
    "cost.expert_rows.crowd": 5.0,
    "policy.whole_prompts": True,
    "policy.prefill_alone": True,
    "policy.drain_first": True,
    "prompts_resident": True,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 25,
    "kv_units": 140,
    "window": 60,
    "users": 2,
    "requests": 7,
    "measured_from": 4,
    "arrival_s": 1.5,
    "compute_tokens": 1.5,
    "prompt_tokens": 1.5,
    "output_tokens": 1.5,
    "kv_units of requests": 1.5,
}


def _changed(lane: Lane, requests: Requests, name: str) -> tuple[Lane, Requests]:
    """The input times the value of INPUTS, or put to it: limits, policies and users."""
    value = INPUTS[name]
    name = name.removesuffix(" of requests")
    if name in Requests._fields and value == 1.5:
        column = getattr(requests, name)
        return lane, requests._replace(**{name: (column * 1.5).astype(column.dtype)})
    limits = lane.limits
    if "." not in name:
        changed = limits._replace(**{name: np.asarray(value, np.asarray(getattr(limits, name)).dtype)})
        return lane._replace(limits=changed), requests
    path = name.split(".")
    if path[0] == "policy":
        policy = limits.policy._replace(**{path[1]: np.bool_(value)})
        return lane._replace(limits=limits._replace(policy=policy)), requests
    inner = getattr(lane.cost, path[1])
    if len(path) == 3:
        scaled = inner._replace(**{path[2]: getattr(inner, path[2]) * value + 1e-7})
    else:
        scaled = inner * value
    return lane._replace(cost=lane.cost._replace(**{path[1]: scaled})), requests


def test_every_input_is_tried():
    assert set(ROW_FIELDS) == {name for name in CostParameters._fields if name.endswith("_rows")}
    assert {field for fields in ROW_FIELDS.values() for field in fields} == {
        *OperatorRows._fields,
        *AttentionRows._fields,
        *RampRows._fields,
        *BesideRows._fields,
        *DeltaRuleRows._fields,
    }
    names = {name.split(".")[0].removesuffix(" of requests") for name in INPUTS}
    assert names >= {"cost", *LaneLimits._fields, *Requests._fields}
    # All but the first two have tests of their own.
    assert {*Lane._fields} == {"cost", "limits", "branches", "speculation", "on_demand"}


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_moves_some_output(name):
    case = _busy_case(name)
    base = lane_of(case, SLOTS), requests_of(case, SLOTS)
    # In as many lanes as a call of the random cases has, whose compiled program this is.
    pair = [jax.tree.map(lambda value: np.stack([value] * LANES), each) for each in (base, _changed(*base, name))]
    run = partial(run_lanes, structure=Structure(RING, True), vectorise=False)
    one, other = (jax.tree.map(np.asarray, run(*inputs)) for inputs in pair)
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
