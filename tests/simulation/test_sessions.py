"""Sessions of several turns and prefix caching by content in whole scenarios."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.routing import PrefixAware
from evaluator.run import simulate, sweep
from tests.scenario.build import scenario
from tests.simulation.engines import LEVELS, Designs, both_engines, outcomes
from tests.thorough import THOROUGH

LENGTHS = "workload.lengths={source: uniform, prompt_min: 20, prompt_max: 300, output_min: 1, output_max: 120}"
TALKS = (
    LENGTHS,
    "workload.requests=300",
    "workload.arrivals.rate_rps=10",
    "workload.sessions={turns: {mean: 4}, think_s: {mean: 3}, system_prompts: 2, system_tokens: 500}",
)
USERS = "workload.arrivals={process: closed_loop, users: 25, rate_rps: null}"
DRAFTS = "deployment.speculative={method: ngram, tokens: 3, acceptance: 0.5}"
FROM_ARRIVAL = "workload.sessions.think_from=arrival"
CACHING, NO_CACHE = "deployment.kv.prefix_caching=true", "deployment.kv.prefix_caching=false"
TIGHT = (
    "deployment.kv={prefix_caching: true, capacity_tokens: 9600, admission: on_demand}",
    "workload.arrivals.rate_rps=40",
)
AGENTS = (
    "workload.sessions={turns: {mean: 2}, think_s: {mean: 1}, system_prompts: 2, system_tokens: 100, "
    "agents: {fan_out: 3, share: 0.7}}"
)
DEEP = "workload.sessions={turns: 2, think_s: 0.5, system_tokens: 50, agents: {fan_out: 2, depth: 3, share: 1}}"
FOUR = ("deployment.replicas=4", "deployment.hardware=l40s")
ROUTERS = ("round_robin", "least_outstanding", "session", "prefix_aware")
BOTH_ENGINES = {
    "one replica": (CACHING,),
    "evicted and preempted": TIGHT,
    "continuous": (CACHING, "deployment.batching.policy=continuous"),
    "replicas apart": (CACHING, FROM_ARRIVAL, "deployment.replicas=3", "deployment.router=session"),
    "in turn": (CACHING, "deployment.replicas=3", "deployment.router=random"),
    "a session's own replica": (CACHING, "deployment.replicas=3", "deployment.router=session"),
    "by prefix": (CACHING, "deployment.replicas=3", "deployment.router={prefix_aware: {imbalance: 3}}"),
    "long prompts apart": (CACHING, "deployment.replicas=3", "deployment.router={heavy_light: {prompt_tokens: 900}}"),
    "least work first": (*TIGHT, "deployment.replicas=2", "deployment.batching.packing=least_work_left"),
    "a prefill side's prompts": (
        CACHING, FROM_ARRIVAL, "deployment.role=prefill", "deployment.replicas=3", "deployment.router=session"
    ),
    "a decode side's answers": (
        *TIGHT, FROM_ARRIVAL, "deployment.role=decode", "deployment.replicas=3", "deployment.router=session"
    ),
    "pools side by side": (
        CACHING, FROM_ARRIVAL, "deployment.pools={a: {role: mixed}, b: {role: mixed, hardware: l40s, replicas: 2}}",
        "deployment.router=session"
    ),
    "by load": (*TIGHT, "deployment.replicas=2", "deployment.router=least_kv"),
    "answers in pipelines": (
        NO_CACHE, "deployment.pipeline_parallel=2", "deployment.replicas=2", "deployment.router=least_work"
    ),
    "without a cache": (NO_CACHE, FROM_ARRIVAL, "deployment.replicas=2"),
    "a session's own replica, without a cache": (
        NO_CACHE, FROM_ARRIVAL, "deployment.replicas=3", "deployment.router=session"
    ),
    "users with conversations": (*TIGHT[:1], USERS),
    "users, in turn": (CACHING, USERS, "deployment.replicas=3", "deployment.router=random"),
    "users, by prefix": (CACHING, USERS, "deployment.replicas=3", "deployment.router={prefix_aware: {imbalance: 3}}"),
    "users, by load": (*TIGHT[:1], USERS, "deployment.replicas=2", "deployment.router=least_kv"),
    "agents": (*TIGHT, AGENTS),
    "agents, by prefix": (CACHING, USERS, AGENTS, "deployment.replicas=3", "deployment.router=prefix_aware"),
    "agents of agents, in turn": (*TIGHT, USERS, DEEP, "deployment.replicas=3", "deployment.router=random"),
    "agents of agents at once": (
        *TIGHT[:1], "workload.arrivals={process: all_at_once, rate_rps: null}", DEEP, "deployment.replicas=2",
        "deployment.router=least_work",
    ),
    "users who think between requests": (
        NO_CACHE, USERS, "workload.sessions.turns=1", "deployment.pipeline_parallel=2", "deployment.replicas=2"
    ),
    **{f"four of {router}": (CACHING, *FOUR, f"deployment.router={router}") for router in ROUTERS},
}  # fmt: skip
if THOROUGH:  # programs of their own, whose parts others have
    BOTH_ENGINES["answers without a cache"] = (NO_CACHE, "deployment.replicas=2", "deployment.router=least_work")
    BOTH_ENGINES["a cache in pipelines"] = (
        CACHING, "deployment.pipeline_parallel=2", "deployment.replicas=2", "deployment.router=session"
    )  # fmt: skip
    BOTH_ENGINES["drafts beside a cache"] = (*TIGHT, FROM_ARRIVAL, DRAFTS)
    BOTH_ENGINES["planned ahead"] = (*TIGHT, FROM_ARRIVAL, "deployment.batching.planning=asynchronous")
DESIGNS = Designs({name: (*TALKS, *asked) for name, asked in BOTH_ENGINES.items()})


def turns_of(*overrides):
    """The requests as the plan has them, under the first seed."""
    whole = plan(scenario(*overrides))
    return whole.jobs(whole.configurations[0])[0]


@pytest.mark.parametrize("name", ["users with conversations", "users, by load", "users who think between requests"])
def test_whoever_has_finished_a_conversation_begins_the_next(name):
    found, turns = DESIGNS.both(name), turns_of(*TALKS, *BOTH_ENGINES[name]).sharing.turns
    (sent_s, *_), (answered_s, *_) = (found.column(column)[0] for column in ("arrival_s", "last_token_s"))
    later, opens = np.flatnonzero(turns.previous >= 0), np.flatnonzero(turns.previous < 0)
    np.testing.assert_allclose(sent_s[later], (answered_s[turns.previous[later]] + turns.think_s[later]), rtol=1e-9)
    ends = np.setdiff1d(np.arange(len(sent_s)), turns.previous)
    free_s = np.sort(answered_s[ends] + turns.rest_s[ends])
    np.testing.assert_allclose(sent_s[opens], np.append(np.zeros(25), free_s)[: len(opens)], rtol=1e-9)
    # As many users as there are: at any time before they begin to leave each waits or thinks.
    assert len(opens) > 50 and (turns.rest_s[ends] > 0).all()


def test_without_a_cache_turns_are_longer_prompts_to_both_engines():
    found = DESIGNS.both("without a cache")
    np.testing.assert_array_equal(*found.column("prompt_tokens"))
    assert not any(tokens.any() for tokens in found.column("cached_tokens"))


def test_a_session_keeps_to_its_replica():
    asked = (*TALKS, FROM_ARRIVAL, "deployment.replicas=3", "deployment.router=session")
    sessions = turns_of(*asked).session
    waiting = outcomes("token", *TALKS, *asked[-2:])
    for replica in (
        *DESIGNS.both("a session's own replica, without a cache").column("replica"),
        waiting.times.replica[0],
    ):
        np.testing.assert_array_equal(replica[0], sessions % 3)


def test_routers_that_know_the_caches_save_time():
    """Long conversations of few: without affinity every replica computes what another has."""
    pairs = [DESIGNS.both(f"four of {router}") for router in ROUTERS]
    hits = np.array([pair.told("prefix_hit_rate").item() for pair in pairs])
    ttft = np.array([pair.told("ttft_s")[LEVELS.tolist().index(0.9)] for pair in pairs])
    assert (hits[2:] > hits[:2].max() + 0.1).all() and (ttft[2:] < 0.9 * ttft[:2].min()).all()
    assert hits[3] == pytest.approx(hits[2], abs=0.05)


def test_a_turn_is_sent_when_its_sender_has_read_and_thought():
    found, turns = outcomes("token", *TALKS), turns_of(*TALKS).sharing.turns
    later = np.flatnonzero(turns.previous >= 0)
    waited = found.times.arrival_s[0, 0, later] - found.times.last_token_s[0, 0, turns.previous[later]]
    np.testing.assert_allclose(waited, turns.think_s[later], rtol=1e-9, atol=1e-9)
    from_arrival = outcomes("token", *TALKS, FROM_ARRIVAL)
    assert (found.times.arrival_s >= from_arrival.times.arrival_s - 1e-9).all()
    waited = np.diff(from_arrival.times.arrival_s[0, 0][[turns.previous[later], later]], axis=0)[0]
    np.testing.assert_allclose(waited, turns.think_s[later], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
@pytest.mark.parametrize("policy", ["chunked", "continuous"])
def test_hits_are_the_closed_form_where_nothing_is_evicted(admission, policy):
    asked = (*TALKS, CACHING, f"deployment.kv.admission={admission}", f"deployment.batching.policy={policy}")
    found, jobs = outcomes("token", *asked), turns_of(*asked)
    previous, prompt, kv = jobs.sharing.turns.previous, jobs.demand.prompt_tokens, jobs.demand.kv_tokens
    hits = found.tokens.cached_tokens[0, 0]
    later = previous >= 0
    known = np.minimum(kv[previous[later]], prompt[later] - 1) // 16 * 16
    np.testing.assert_array_equal(hits[later], known)
    # Of a system prompt of 500 tokens, 31 blocks; the first request with either of the two finds nothing.
    assert sorted(set(hits[~later])) == [0, 496] and (hits[~later] == 0).sum() == 2
    assert (found.times.arrival_s[0, 0][~later] == jobs.ready_s[~later]).all()


@pytest.mark.parametrize("more", [(), ("deployment.kv.memory_fraction=0.23",)], ids=["room", "evicting"])
def test_tokens_are_either_computed_or_found(more):
    """Conservation: a prompt is what was in the cache and what chunks computed."""
    computed = np.zeros(300, dtype=int)

    def observe(slot, iteration):
        for request, tokens in iteration.chunks:
            computed[request] += tokens

    asked = (*TALKS, CACHING, *more)
    found = outcomes("token", *asked, observe=observe)
    assert not found.summed("preemptions").any()
    np.testing.assert_array_equal(computed + found.tokens.cached_tokens[0, 0], found.tokens.prompt_tokens[0, 0])
    assert (found.summed("kv_units_max") <= found.stations[0].kv_capacity_units).all()
    hits, room = found.tokens.cached_tokens.sum(), outcomes("token", *TALKS, CACHING).tokens.cached_tokens.sum()
    assert 0 < hits < room if more else hits == room


def test_caching_saves_work_and_says_how_much():
    cached, whole = (simulate(scenario(*TALKS, asked), simulator="token") for asked in (CACHING, NO_CACHE))
    rate = cached.summary["prefix_hit_rate"].item()
    measured = cached.requests[cached.requests["measured"]]
    assert rate == pytest.approx(measured["cached_tokens"].sum() / measured["prompt_tokens"].sum())
    assert 0.5 < rate < 1 and whole.summary["prefix_hit_rate"].item() == 0
    assert (cached.requests["cached_tokens"] < cached.requests["prompt_tokens"]).all()
    assert cached.requests["ttft_s"].mean() < whole.requests["ttft_s"].mean()
    # What was in the cache is no work that was done, and the same time was not spent on more of it.
    assert cached.summary["mfu"].item() < whole.summary["mfu"].item()


def test_what_is_known_before_the_run_counts_as_hits():
    ds = sweep(
        scenario("workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 5}"),
    )
    assert ds["prefix_hit_rate"].item() == 0
    known = ("workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 5}", "workload.cached_tokens=40")
    assert sweep(scenario(*known), simulator="token")["prefix_hit_rate"].item() == pytest.approx(0.4)


def test_the_reference_takes_what_the_engine_lacks_and_says_so():
    asked = (*TALKS, CACHING, "workload.requests=60", "deployment.router=vllm_ranks", "deployment.data_parallel=2")
    (configuration,) = plan(scenario(*asked)).configurations
    assert configuration.simulator == "token"
    ds = sweep(scenario(*asked))
    assert (ds["status"].item(), ds["engine"].item()) == ("ok", "token")
    assert "router vllm_ranks" in ds.attrs["engine_note"]


@pytest.mark.parametrize("name", BOTH_ENGINES)
def test_both_engines_compute_the_same(name):
    found = DESIGNS.both(name)
    for column in ("replica", "cached_tokens"):
        np.testing.assert_array_equal(*found.column(column), err_msg=column)
    for total in ("preemptions", "kv_units_max", "iterations"):
        np.testing.assert_array_equal(*found.summed(total), err_msg=total)
    if name == "evicted and preempted":
        assert found.summed("preemptions")[0].item() > 0


def test_every_key_of_sessions_and_of_the_router_can_be_swept():
    axes = {
        "workload__sessions__turns__mean": [2, 5],
        "workload__sessions__think_s__mean": ["1s", 9],
        "deployment__router": ["session", {"prefix_aware": {"threshold": 0.9}}],
    }
    whole = plan(scenario(*TALKS[:3], "workload.sessions.system_prompts=3", CACHING, "deployment.replicas=2", **axes))
    assert {configuration.status for configuration in whole.configurations} == {"ok"}
    assert [whole.configurations[at].workload.sessions.turns.mean for at in (0, -1)] == [2, 5]
    assert [whole.configurations[at].workload.sessions.think_s.mean for at in (0, -1)] == [1, 9]
    assert whole.configurations[-1].stations[0].deployment.router == PrefixAware(0.9)
    one = scenario(*TALKS[:3], workload__sessions__turns=[1, 3])
    assert [configuration.workload.sessions.continued for configuration in plan(one).configurations] == [False, True]


def test_a_run_that_lengthens_itself_has_the_same_requests_first():
    few, many = (turns_of(*TALKS, f"workload.requests={count}") for count in (300, 900))
    np.testing.assert_array_equal(many.ready_s[:300], few.ready_s)
    np.testing.assert_array_equal(many.demand.prompt_tokens[:300], few.demand.prompt_tokens)
    ds = sweep(
        scenario(*TALKS, FROM_ARRIVAL, CACHING, "workload.requests={auto: {most: 2000}}", "slo={ttft: {p90: 1s}}"),
        simulator="token",
    )
    assert ds["status"].item() == "ok" and ds["slo_met"].item()


def trace_of(tmp_path, rows):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arrivals = f"{{process: trace, file: '{path}', rate_rps: null}}"
    return f"workload={{arrivals: {arrivals}, lengths: null, requests: null, warmup_requests: 0}}"


def test_calls_of_a_trace_that_wait_for_several_others(tmp_path):
    """Tasks with any number of ends, calls that wait for one answer twice, and prompts by their hashes."""
    rng, rows = np.random.default_rng(4), []
    for number in range(120):
        task = [row for row in rows if row["session_id"] == f"{number % 9}"]
        hashes = [*([*rng.choice(task)["hash_ids"]][: rng.integers(4)] if task else []), int(rng.integers(2))]
        row = {"request_id": f"{number}", "session_id": f"{number % 9}", "hash_ids": hashes}
        row |= {"input_length": 512 * len(hashes) - int(rng.integers(512)), "output_length": int(rng.integers(1, 90))}
        waits = [str(one["request_id"]) for one in rng.choice(task, rng.integers(1, 4))] if task else []
        times = {"delay": int(rng.integers(900)), "wait_for": waits} if waits else {"timestamp": number * 50}
        rows.append(row | times)
    asked = ("workload.sessions=null", CACHING, "deployment.replicas=3", "deployment.router=prefix_aware")
    found = both_engines(trace_of(tmp_path, rows), *asked)
    np.testing.assert_array_equal(*found.column("cached_tokens"))
    assert found.column("cached_tokens")[0].any()


MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 2000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 4]},
    {"timestamp": 4000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 6000, "input_length": 600, "output_length": 5, "hash_ids": [2, 3]},
    {"timestamp": 8000, "input_length": 512, "output_length": 5, "hash_ids": [1]},
]
LATER = [
    {"timestamp": 100_000 + 5000 * number, "input_length": 512, "output_length": 120, "hash_ids": [100 + number % 140]}
    if number < 200
    else {"timestamp": 100_000 + 5000 * number, "input_length": 10, "output_length": 5, "hash_ids": [number]}
    for number in range(295)
]
"""With these there are as many requests and blocks as in the talks above, so that all share a program."""


def test_a_trace_says_what_its_prompts_share(tmp_path):
    for simulator in ("iteration", "token"):
        found = simulate(scenario(trace_of(tmp_path, MOONCAKE + LATER), CACHING), simulator=simulator).requests
        # Two blocks of 512 are 64 of 16; 1,200 tokens are 75 whole blocks, of which the last must leave one token.
        assert found["cached_tokens"][:5].tolist() == [0, 1024, 1184, 0, 496]
    assert found["arrival_s"][:5].tolist() == [0, 2, 4, 6, 8]
    apart = simulate(scenario(trace_of(tmp_path, MOONCAKE + LATER), NO_CACHE)).requests
    assert not apart["cached_tokens"].any()


def test_rows_of_a_session_continue_one_another(tmp_path):
    rows = [
        {"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 29, "session": "a"},
        {"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 29, "session": "b"},
        {"arrival_s": 9, "prompt_tokens": 200, "output_tokens": 9, "session": "a"},
        {"arrival_s": 19, "prompt_tokens": 50, "output_tokens": 9, "session": "b"},
    ]
    found = simulate(scenario(trace_of(tmp_path, rows), CACHING), simulator="token").requests
    assert found["cached_tokens"].tolist() == [0, 0, 128, 48]


BAD = {
    "session": (
        ("workload.sessions={turns: 1}", "deployment.router=session"),
        r"infeasible: router session without sessions; use workload\.sessions\.turns, a trace with a column session",
    ),
    "no cache": (
        (NO_CACHE, "deployment.router=prefix_aware"),
        r"infeasible: router prefix_aware without a prefix cache; use kv\.prefix_caching, and",
    ),
    "windows": ((CACHING, "deployment.model=gpt-oss-20b"), r"unsupported: kv\.prefix_caching with gpt-oss-20b, whose"),
    "swap": (
        (CACHING, "deployment.kv={admission: on_demand, preemption: swap, swap_bandwidth: 1e9}"),
        r"unsupported: kv\.prefix_caching with preemption swap; use preemption recompute",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), BAD.values(), ids=list(BAD))
def test_what_cannot_be_has_a_reason(overrides, message):
    with pytest.raises(InputError, match=message):
        simulate(scenario(*TALKS, *overrides))


def test_a_trace_that_does_not_fit(tmp_path):
    short = [dict(MOONCAKE[0], hash_ids=[1, 2])]
    with pytest.raises(InputError, match=r"jsonl: row 1, hash_ids: 2 blocks for a prompt of 1200 tokens, which are 3"):
        scenario(trace_of(tmp_path, short))
    with pytest.raises(InputError, match=r"row 1, hash_ids: 3 blocks for a prompt of 1200 tokens, which are 10 of 128"):
        scenario(trace_of(tmp_path, MOONCAKE), "workload.sessions.hash_block_tokens=128")
    with pytest.raises(InputError, match=r"system_tokens: .*trace\.jsonl has a column hash_ids, which says what"):
        scenario(trace_of(tmp_path, MOONCAKE), "workload.sessions={system_prompts: 1, system_tokens: 16}")
    with pytest.raises(InputError, match=r"turns: a trace says itself which requests are of one session"):
        scenario(trace_of(tmp_path, MOONCAKE), "workload.sessions.turns=2")
    with pytest.raises(InputError, match=r"hash_ids of blocks of 512 tokens do not say what is in blocks of 48; use a"):
        simulate(scenario(trace_of(tmp_path, MOONCAKE), CACHING, "deployment.kv.block_tokens=48"))
    split = ["deployment.model=qwen3-30b-a3b", "deployment.tensor_parallel=16", "deployment.decode_context_parallel=4"]
    with pytest.raises(
        InputError, match=r"1024 \(kv\.block_tokens 256 x decode_context_parallel 4\); use a .* divides 128"
    ):
        simulate(scenario(trace_of(tmp_path, MOONCAKE), CACHING, *split, "deployment.kv.block_tokens=256"))
    odd = "workload.sessions.hash_block_tokens=513"
    with pytest.raises(
        InputError, match=r"x decode_context_parallel 4\); use a decode_context_parallel that divides 513"
    ):
        simulate(scenario(trace_of(tmp_path, MOONCAKE), CACHING, *split, odd))
    cached = [dict(MOONCAKE[0], cached_tokens=5)]
    with pytest.raises(InputError, match=r"cached_tokens beside kv\.prefix_caching, which finds out itself"):
        simulate(scenario(trace_of(tmp_path, cached), CACHING))
