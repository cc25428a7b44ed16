"""The stage that fetches the KV of contexts: where it finds them, what it takes, and what it leaves to compute."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_model
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.run.plan_figures import stage_note
from evaluator.stages import Delay, Served, StageRequests
from evaluator.stages.kv_fetch import KV_FETCH, KvFetch, Tier, work
from evaluator.tiers import Popularity, TierSize, expected_s, hit_rates
from tests.scenario.build import scenario
from tests.tiers.lru import find_contexts

MODEL = load_model("llama-3.1-8b")
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2  # K and V of 32 layers, 8 heads of 128, in bf16


def visit(requests=20_000, replicas=8, prompt=100, cached=0, seed=0) -> StageRequests:
    prompts, cached_tokens = np.full(requests, prompt), np.broadcast_to(np.asarray(cached), requests)
    return StageRequests(
        "kv_fetch", prompts, np.full(requests, 5), cached_tokens, seed, MODEL, Precision("bf16", "bf16", "bf16"), None,
        replicas=replicas,
    )  # fmt: skip


def seconds(found) -> np.ndarray:
    """Of all steps together, without waiting: (request,)."""
    return sum(np.broadcast_to(step.seconds, len(found.cached_tokens)) for step in found.steps)


TIERS = (Tier("hbm", 0.2), Tier("ddr4", 0.4, shared_by=4), Tier("nvme", 0.5, shared_by="all", transfers="any"))


def test_the_mean_is_the_expected_latency():
    """The recursion over tiers, against the draws of 20,000 requests."""
    found = work(KvFetch(TIERS, tokens=4096), visit())
    taken = seconds(found)
    figures = [tier.figures for tier in TIERS]
    lookup_s, bandwidth = (np.array([getattr(one, name) for one in figures]) for name in ("latency_s", "bandwidth"))
    expected = expected_s(4096.0 * TOKEN_BYTES, np.array([0.2, 0.4, 0.5]), lookup_s, bandwidth)
    assert taken.mean() == pytest.approx(expected, abs=4 * taken.std() / np.sqrt(len(taken)))
    assert (found.cached_tokens > 0).mean() == pytest.approx(1 - 0.8 * 0.6 * 0.5, abs=0.02)


def test_each_request_takes_the_lookups_up_to_its_tier_and_the_transfer_from_there():
    found = work(KvFetch(TIERS, tokens=4096), visit())
    lookup, hbm, ddr4, nvme = found.steps
    assert [step.name for step in found.steps] == ["lookup", "hbm", "ddr4", "nvme"]
    assert isinstance(lookup, Delay) and isinstance(ddr4, Served) and isinstance(nvme, Delay)
    size, there = 4096 * TOKEN_BYTES, [step.seconds > 0 for step in (hbm, ddr4, nvme)]
    assert sum(each.astype(int) for each in there).max() == 1
    assert np.unique(hbm.seconds[there[0]]) == pytest.approx([size / 3.35e12])
    assert np.unique(lookup.seconds[there[1]]) == pytest.approx([400e-9 + 80e-9])
    nowhere = ~(there[0] | there[1] | there[2])
    assert np.unique(lookup.seconds[nowhere]) == pytest.approx([400e-9 + 80e-9 + 50e-6])
    np.testing.assert_array_equal(found.cached_tokens, np.where(nowhere, 0, 4096))
    assert found.adds_tokens.tolist() == [4096] * len(nowhere)


def test_replicas_that_share_a_tier_share_its_queue():
    found = work(KvFetch(TIERS, tokens=4096), visit(replicas=8))
    _, hbm, ddr4, _ = found.steps
    assert set(hbm.queue[hbm.seconds > 0]) == set(range(8)) and set(hbm.queue[hbm.seconds == 0]) == {-1}
    assert set(ddr4.queue[ddr4.seconds > 0]) == {0, 1} and set(ddr4.queue[ddr4.seconds == 0]) == {-1}
    counts = np.bincount(hbm.queue[hbm.seconds > 0])
    assert counts == pytest.approx(np.full(8, counts.mean()), rel=0.15)


def test_draws_depend_on_seed_and_request_only():
    first = work(KvFetch(TIERS, tokens=4096), visit(500))
    longer = work(KvFetch(TIERS, tokens=64), visit(900, replicas=3))
    np.testing.assert_array_equal(first.cached_tokens > 0, (longer.cached_tokens > 0)[:500])
    other = work(KvFetch(TIERS, tokens=4096), visit(500, seed=1))
    assert (first.cached_tokens != other.cached_tokens).any()


def test_contexts_of_the_workload_are_found_or_computed():
    """Without tokens of its own a context is what the workload says to be cached; a request without one asks nobody."""
    cached = np.where(np.arange(1000) % 2, 60, 0)
    found = work(KvFetch((Tier("nvme", 0.5),)), visit(1000, cached=cached))
    assert set(found.cached_tokens) == {0, 60} and not found.adds_tokens.any()
    assert not seconds(found)[cached == 0].any() and (seconds(found)[cached > 0] >= 50e-6).all()


def test_a_share_of_each_prompt_is_its_context():
    prompts = np.arange(1, 1001)
    found = work(KvFetch((Tier("nvme", 1.0),), share=0.95), replace(visit(1000), prompt_tokens=prompts))
    np.testing.assert_array_equal(found.cached_tokens, np.minimum((0.95 * prompts).astype(int), prompts - 1))
    assert not found.adds_tokens.any()
    sent = found.cached_tokens * TOKEN_BYTES / 7e9
    assert seconds(found) == pytest.approx(sent + np.where(sent > 0, 50e-6, 0.0))


def test_a_context_in_front_of_a_cached_prompt_keeps_it_only_if_it_is_found():
    found = work(KvFetch((Tier("nvme", 0.5),), tokens=1000), visit(1000, cached=60))
    assert set(found.cached_tokens) == {0, 1060}


def test_hit_rates_follow_from_capacity_and_popularity():
    """One tier for four of eight replicas: 200 of 1,000 private contexts fit."""
    size = 4096 * TOKEN_BYTES
    tiers = (Tier("nvme", shared_by=4, capacity=200.5 * size),)
    found = work(KvFetch(tiers, tokens=4096, popularity=Popularity(1000)), visit())
    assert (found.cached_tokens > 0).mean() == pytest.approx(0.2, abs=0.015)
    home = work(KvFetch(tiers, tokens=4096, popularity=Popularity(1000, at_home=True)), visit())
    assert (home.cached_tokens > 0).mean() == pytest.approx(0.4, abs=0.015)
    store = KvFetch((Tier("object-store"),), tokens=4096, popularity=Popularity(10**9))
    everything = work(store, visit())
    assert (everything.cached_tokens == 4096).all()


def test_no_tiers_are_no_cache():
    found = work(KvFetch((), tokens=4096), visit(100))
    assert not found.cached_tokens.any() and not seconds(found).any()


def test_latency_of_real_caches():
    """The mean of the drawn latencies against that of contexts in caches which really keep the last ones."""
    size, sizes = 4096 * TOKEN_BYTES, (TierSize(50, 1), TierSize(800, 8))
    tiers = (Tier("ddr4", capacity=50.5 * size), Tier("nvme", shared_by=8, capacity=800.5 * size, transfers="any"))
    popularity = Popularity(5000, 0.9)
    taken = seconds(work(KvFetch(tiers, tokens=4096, popularity=popularity), visit(40_000)))
    rng, weights = np.random.default_rng(3), np.arange(1.0, 5001) ** -0.9
    context = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(120_000))
    requests = zip(context.tolist(), rng.integers(0, 8, 120_000).tolist(), strict=True)
    at = np.array(find_contexts(requests, [(50, 1), (800, 8)], 8))[60_000:]
    real = np.array([80e-9 + size / 150e9, 80e-9 + 50e-6 + size / 7e9, 80e-9 + 50e-6])[at]
    assert taken.mean() == pytest.approx(real.mean(), rel=0.03)
    assert hit_rates(popularity, sizes, 8)[0] == pytest.approx((at == 0).mean(), abs=0.01)


# --- what is refused, and what is said of it


def loaded(stage: str):
    return scenario(f"pipeline=[{{stage: kv_fetch, {stage}}}, prefill, decode]")


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("tokens: 64", "pipeline.kv_fetch.tiers: is required"),
        ("tiers: [], tokens: 64, share: 0.5", "kv_fetch.share: excludes tokens: a context is a part of its prompt"),
        (
            "tiers: nvme",
            r"kv_fetch.tiers: expected a list of tiers such as \[hbm, {storage: nvme, ",
        ),
        ("tiers: [nmve]", r"tiers\[0\].storage: unknown storage 'nmve'; did you mean nvme"),
        ("tiers: [{hit: 0.5}]", r"tiers\[0\]: needs a storage of the catalog, or a bandwidth"),
        ("tiers: [{storage: nvme, hit: 1.5}]", r"tiers\[0\].hit: must be at most 1, got 1.5"),
        ("tiers: [{storage: nvme, hit: -0.1}]", r"tiers\[0\].hit: must be at least 0, got -0.1"),
        ("tiers: [{storage: nvme, hits: 1}]", r"tiers\[0\].hits: unknown key \(did you mean hit\?\)"),
        ("tiers: [hbm]", r"tiers\[0\]: needs a hit rate, or say the popularity of the contexts beside the tiers"),
        (
            "tiers: [{storage: hbm, hit: 1}], popularity: {contexts: 9}",
            r"tiers\[0\].hit: follows from the popularity; leave one of them out",
        ),
        ("tiers: [hbm], popularity: {zipf: 1}", "popularity.contexts: is required"),
        ("tiers: [hbm], popularity: {contexts: 0}", "popularity.contexts: must be an integer from 1 to"),
        ("tiers: [{storage: hbm, hit: 1, shared_by: some}]", r"tiers\[0\].shared_by: expected an integer or all, got"),
        ("tiers: [{storage: hbm, hit: 1, transfers: 0}]", r"tiers\[0\].transfers: must be an integer from 1 to"),
        (
            "tiers: [{storage: rack-pool, hit: 0.1, shared_by: 4}, {storage: nvme, hit: 0.1}]",
            r"tiers\[1\].shared_by: 1 is less than the 4 of the tier before",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(stage, message):
    with pytest.raises(InputError, match=message):
        loaded(stage)


def test_slower_tiers_before_faster_ones_are_allowed_and_said():
    tiers = (Tier("nvme", 0.5), Tier("ddr4", 0.5), Tier("nvme", 0.5))
    assert KV_FETCH.note(KvFetch(tiers)) == (
        "nvme_1 is slower than ddr4, which is asked after it; a context that both have comes from the slower one"
    )
    assert KV_FETCH.note(KvFetch(tiers[1:])) is None
    one = loaded("tiers: [{storage: nvme, hit: 0.5}, {storage: ddr4, hit: 0.5}]")
    assert stage_note(plan(one))["stage_note"].startswith("pipeline.kv_fetch: nvme is slower than ddr4")
    assert stage_note(plan(scenario())) == {}


def test_a_context_larger_than_every_tier_is_a_status():
    (configuration,) = plan(loaded("tokens: 8192, tiers: [{storage: nvme, hit: 1, capacity: 1GB}]")).configurations
    assert configuration.status == (
        "infeasible: pipeline.kv_fetch: the KV of a context, 1.07 GB, is larger than every tier; give one of them more "
        "than the 1 GB of the largest, or say tiers: [] for no cache"
    )


def test_keys_of_the_stage_can_be_swept():
    swept = scenario(
        "pipeline=[{stage: kv_fetch, tokens: 64, tiers: [nvme], popularity: {contexts: 100}}, prefill, decode]",
        pipeline__kv_fetch__tokens=[64, 128],
        pipeline__kv_fetch__popularity__zipf=[0.0, 0.9],
    )
    found = [configuration.pipeline.stages[0].parameters for configuration in plan(swept).configurations]
    assert [(each.tokens, each.popularity.zipf) for each in found] == [(64, 0.0), (64, 0.9), (128, 0.0), (128, 0.9)]
