"""Jobs: what a role asks of a station, who goes on to the next, and what configurations share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.scenario import Arrivals, Deployment, KvCache, Lengths, Sessions, Workload
from evaluator.traffic.arrivals import arrival_times
from evaluator.traffic.jobs import AT_A_TIME, Extremes, unequal_contexts
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.roles import ROLES, hands_on

MIXED, PREFILL, DECODE = (ROLES[name] for name in ("mixed", "prefill", "decode"))
FIXED = Workload(
    Arrivals("poisson", 4.0),
    Lengths("fixed", {"prompt_tokens": 100, "output_tokens": 10}),
    20,
    2,
    seeds=(0,),
    cached_tokens=30,
)
SHORT = Lengths("uniform", {"prompt_min": 5, "prompt_max": 9, "output_min": 1, "output_max": 3})


def test_jobs_of_the_roles():
    sampler = RequestSampler()
    mixed, prefill, decode = (sampler.jobs(FIXED, 0, role) for role in (MIXED, PREFILL, DECODE))
    assert (mixed.demand.compute_tokens == 70).all() and (mixed.demand.kv_tokens == 109).all()
    assert (prefill.demand.output_tokens == 1).all() and (prefill.demand.kv_tokens == 100).all()
    assert (prefill.demand.later_tokens == 9).all()
    assert not decode.demand.compute_tokens.any() and (decode.demand.kv_tokens == 110).all()
    assert decode.demand.extremes == Extremes(
        0, 10, 110, 110, cached=30, least_prompt=0, least_output=10, least_sequence=110, unequal=0.04
    )
    for jobs in (prefill, decode):
        np.testing.assert_array_equal(jobs.ready_s, mixed.ready_s)
        np.testing.assert_array_equal(jobs.id, np.arange(20))
        np.testing.assert_array_equal(jobs.measured, np.arange(20) >= 2)


def test_rates_share_demands_and_warmups_share_arrivals():
    sampler = RequestSampler()
    base, faster = sampler.jobs(FIXED, 0, MIXED), sampler.jobs(sampler.at_rate(FIXED, 8.0), 0, MIXED)
    assert faster.demand is base.demand
    np.testing.assert_array_equal(faster.ready_s, arrival_times(Arrivals("poisson", 8.0), 0, 20))
    assert sampler.at_rate(FIXED, 8.0) is sampler.at_rate(FIXED, 8.0)
    assert sampler.jobs(replace(FIXED, warmup_requests=5), 0, MIXED).ready_s is base.ready_s


@pytest.mark.parametrize("process", ["closed_loop", "all_at_once"])
def test_where_requests_have_no_rate_none_can_be_set(process):
    users = 4 if process == "closed_loop" else None
    with pytest.raises(ValueError, match=f"{process} arrivals have no rate"):
        RequestSampler().at_rate(replace(FIXED, arrivals=Arrivals(process, users=users)), 2.0)


def test_a_trace_is_sent_at_another_rate(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n2,20,6\n8,7,3\n")
    replay = Workload(Arrivals("trace", file=str(path)), Lengths("trace", file=str(path)), 3, 0, seeds=(0,))
    faster = RequestSampler().at_rate(replay, 1.5)  # three requests in 8 s become three in 2 s
    np.testing.assert_allclose(arrival_times(faster.arrivals, 0, 3), [0.0, 0.5, 2.0])


def test_the_decode_side_gives_the_tokens_after_the_first():
    sampler = RequestSampler()
    workload = replace(FIXED, lengths=SHORT, cached_tokens=0)
    whole, jobs = sampler.jobs(workload, 0, MIXED).demand, sampler.jobs(workload, 0, PREFILL)
    on, done = jobs.after_prefill(jobs.ready_s + 1.0)
    single = whole.output_tokens == 1
    assert 0 < single.sum() < 20
    np.testing.assert_array_equal(on.id, np.flatnonzero(~single))
    np.testing.assert_array_equal(done.id, np.flatnonzero(single))
    np.testing.assert_array_equal(on.demand.output_tokens, whole.output_tokens[~single] - 1)
    np.testing.assert_array_equal(on.demand.kv_tokens, (whole.prompt_tokens + whole.output_tokens)[~single] - 1)
    assert not on.demand.compute_tokens.any()
    np.testing.assert_array_equal(on.ready_s, jobs.ready_s[~single] + 1.0)
    np.testing.assert_array_equal(on.measured, on.id >= 2)
    assert jobs.after_prefill(jobs.ready_s)[0].demand is on.demand  # built once, whatever the times
    both = on.joined(done)
    assert sorted(both.id) == list(range(20)) and len(both.demand.prompt_tokens) == 20


def test_the_order_is_by_time_then_by_id():
    jobs = RequestSampler().jobs(FIXED, 0, MIXED)
    assert jobs.order == slice(0, 20)
    at = np.array([5, 3, 1, 0])
    mixed = replace(jobs, id=jobs.id[at], ready_s=np.array([2.0, 1.0, 2.0, 0.5]))
    np.testing.assert_array_equal(mixed.order, [3, 1, 2, 0])


def test_only_a_decode_side_takes_over():
    assert hands_on((PREFILL, None, DECODE), 0) and hands_on((None, PREFILL, DECODE), 1)
    assert not hands_on((PREFILL, None), 0) and not hands_on((MIXED, DECODE), 0) and not hands_on((None, DECODE), 0)


def test_a_system_prompt_comes_before_the_drawn_one():
    workload = replace(FIXED, cached_tokens=0, sessions=Sessions(3, 40))
    deployment = Deployment("llama-3.1-8b", "h100-sxm", kv=KvCache(prefix_caching=True))
    assert (shared_tokens(workload, deployment), shared_tokens(workload, replace(deployment, kv=KvCache()))) == (32, 0)
    sampler = RequestSampler()
    for shared, compute in ((0, 140), (32, 108)):
        demand = sampler.jobs(workload, 0, MIXED, shared).demand
        assert (demand.prompt_tokens == 140).all() and (demand.shared_tokens == shared).all()
        assert (demand.compute_tokens == compute).all() and (demand.kv_tokens == 149).all()


def test_contexts_are_as_unequal_as_the_longest_of_a_drawn_batch():
    """Against batches that are drawn: who decodes longer is in more of them, and its context grows meanwhile."""
    rng = np.random.default_rng(0)
    prompt, output = rng.lognormal(6, 1, 1500).astype(int) + 1, rng.lognormal(5, 0.8, 1500).astype(int) + 1
    decoded = output - 1.0
    who = rng.choice(len(prompt), (4000, AT_A_TIME), p=decoded / decoded.sum())
    contexts = prompt[who] + decoded[who] * rng.random(who.shape)
    drawn = contexts.max(axis=1).mean() / contexts.mean() - 1
    assert unequal_contexts(prompt, output) == pytest.approx(drawn, rel=0.03)


def test_the_order_of_many_jobs_says_nothing_of_how_unequal_contexts_are(monkeypatch):
    """Of many jobs some are taken: with a period in their order, and of lengths that few are much longer in."""
    rng = np.random.default_rng(0)
    short_and_long = np.tile([200, 8000], 4096), np.full(8192, 100)
    turns = np.tile([500, 1500, 2500, 3500], 4096), np.tile([300, 200, 200, 100], 4096)
    few_long = np.full(20_000, 1000), rng.lognormal(5, 1.2, 20_000).astype(int) + 1
    cases = short_and_long, turns, few_long
    of_some = [unequal_contexts(*case) for case in cases]
    order = rng.permutation(8192)
    assert unequal_contexts(*(column[order] for column in short_and_long)) == of_some[0]
    monkeypatch.setattr("evaluator.traffic.jobs._JOBS", 10**9)
    assert of_some == pytest.approx([unequal_contexts(*case) for case in cases], rel=0.02)


@pytest.mark.parametrize(
    "prompt, output, unequal",
    [
        ([1000], [1], 0.0),  # no decodes
        ([], [], 0.0),
        ([1000] * 9, [1001] * 9, 0.29),  # between 1,000 and 2,000 tokens
        ([10**6] * 100_000, [2] * 100_000, 0.0),
        ([10, 1000], [1, 101], 0.04),  # the first never decodes
    ],
)
def test_contexts_of_like_requests_are_nearly_equal(prompt, output, unequal):
    assert unequal_contexts(np.array(prompt, dtype=np.int64), np.array(output, dtype=np.int64)) == unequal


def test_several_seeds_have_the_mean_of_how_unequal_their_contexts_are():
    one = RequestSampler().jobs(FIXED, 0, MIXED).demand.extremes
    assert Extremes.of([one, replace(one, prompt=71, unequal=one.unequal + 1.0)]) == replace(
        one, prompt=71, unequal=round(one.unequal + 0.5, 2)
    )
