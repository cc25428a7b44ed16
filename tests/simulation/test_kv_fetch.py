"""The stage kv_fetch in the chain: against a loop over events in which requests really ask tier after tier."""

import numpy as np
import pytest

from evaluator.device import configure
from evaluator.plan import plan
from evaluator.reference import Request
from evaluator.reference.network import run
from evaluator.reference.serve.network import run_network
from evaluator.simulation import stations_of
from evaluator.simulation.chain import chain_result_of, run_chain
from evaluator.tiers import Popularity, TierSize, expected_s, hit_rates
from tests.scenario.build import scenario
from tests.tiers.lru import Lru
from tests.tiers.tier_station import Tiers, TierStation

CONTEXT = 4096 * 131072  # bytes of the KV of 4,096 tokens of Llama-3.1-8B in bf16


def chain_of(tiers: str, before: str = "", more: str = "", rate: float = 40, requests: int = 400, replicas: int = 8):
    """(departure from the stage by request, arrivals, tokens found by request) of the chain."""
    whole = plan(
        scenario(
            f"workload.arrivals.rate_rps={rate}", f"workload.requests={requests}", f"deployment.replicas={replicas}",
            f"pipeline=[{before}{{stage: kv_fetch, tokens: 4096, tiers: {tiers}{more}}}, prefill, decode]",
        )
    )  # fmt: skip
    (configuration,) = whole.configurations
    assert configuration.status == "ok", configuration.status
    jobs = [whole.jobs(configuration)]
    for station in stations_of(whole, [configuration]):
        if station.role is not None:
            break
        times, _ = station.serve(jobs)
        jobs = [[one.at(times.last_token_s[0, seed][one.id]) for seed, one in enumerate(jobs[0])]]
    (one,) = jobs[0]
    (routes,) = whole.routes(configuration)
    return one.ready_s, whole.jobs(configuration)[0].ready_s, routes


def sent_at(arrival_s) -> list[Request]:
    return [Request(index, float(at), 4, 4, 3, 2) for index, at in enumerate(arrival_s)]


TIERS = {
    "own": ("[{storage: nvme, hit: 0.7}]", [TierStation(50e-6, 7e9)]),
    "shared": (
        "[{storage: ddr4, hit: 0.3}, {storage: nvme, hit: 0.6, shared_by: 3}, {storage: object-store, hit: 0.9, "
        "shared_by: all, transfers: any}]",
        [TierStation(80e-9, 150e9), TierStation(50e-6, 7e9, 3), TierStation(0.15, 12.5e9, 8, np.inf)],
    ),
    "several transfers": (
        "[{bandwidth: 2GB/s, latency: 1ms, hit: 0.8, shared_by: 4, transfers: 3}]", [TierStation(1e-3, 2e9, 4, 3)]
    ),
    "slower before faster": (
        "[{storage: nvme, hit: 0.5}, {storage: ddr4, hit: 0.9}]", [TierStation(50e-6, 7e9), TierStation(80e-9, 150e9)]
    ),
    "none": ("[]", []),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _configured():
    configure()


@pytest.mark.parametrize("rate", [5, 60])
@pytest.mark.parametrize("case", list(TIERS))
def test_the_chain_is_the_loop_over_events(case, rate):
    written, tiers = TIERS[case]
    left_s, arrival_s, routes = chain_of(written, rate=rate)
    draws = [step for step in routes.first[0].work.steps][1:]
    at = np.full(len(arrival_s), len(tiers))
    for number, step in enumerate(draws):
        at[np.asarray(step.seconds) > 0] = number
    replica = np.zeros(len(arrival_s), dtype=int)
    for tier, step in zip(tiers, draws, strict=True):
        replica = np.where(step.queue >= 0, step.queue * tier.sharing, replica)
    station = Tiers(tiers, [CONTEXT] * len(at), replica.tolist(), lambda request, tier, _: at[request.index] == tier)
    run([station], sent_at(arrival_s))
    wanted = [station.visits[index].left_s for index in range(len(at))]
    np.testing.assert_allclose(left_s, wanted, rtol=1e-9)
    np.testing.assert_array_equal([station.found[index] for index in range(len(at))], at)
    found = np.where(at < len(tiers), 4096, 0)
    np.testing.assert_array_equal(routes.tokens.cached_tokens, found)


TOOL = "{stage: tool, seconds: 60ms, distribution: exponential, servers: 3}, "


def test_a_prefetch_runs_beside_the_stages_before():
    """Who is through with both goes on; requests queue at the tier by when they were sent."""
    written, _ = TIERS["own"]
    alone, sent_s, _ = chain_of(written)
    behind_tool, _, _ = chain_of("[]", TOOL)
    both, _, routes = chain_of(written, TOOL, ", prefetch: true")
    np.testing.assert_allclose(both, np.maximum(alone, behind_tool), rtol=1e-12)
    assert (alone > behind_tool).any() and (alone < behind_tool).any() and routes.ahead(1)
    serial, _, _ = chain_of(written, TOOL)
    assert (serial - sent_s).mean() > (both - sent_s).mean()
    first, _, _ = chain_of(written, more=", prefetch: true")  # nothing is before it
    np.testing.assert_array_equal(first, alone)


def test_a_prefetch_needs_a_chain():
    fetch = "{stage: kv_fetch, tiers: [{storage: nvme, hit: 1}], prefetch: true}"
    stages = f"pipeline=[{{stage: tool, seconds: 1ms}}, {fetch}, prefill, decode]"
    (configuration,) = plan(scenario("workload.arrivals={process: closed_loop, users: 4}", stages)).configurations
    assert configuration.status == (
        "unsupported: pipeline.kv_fetch: prefetch with closed loop over a pipeline; use prefetch: false"
    )


@pytest.mark.parametrize("case", ["shared", "several transfers"])
def test_one_event_loop_over_all_stations_says_the_same(case):
    """The reference of whole networks, which also runs closed loops over a pipeline."""
    stages = f"pipeline=[{{stage: kv_fetch, tokens: 4096, tiers: {TIERS[case][0]}}}, prefill, decode]"
    whole = plan(scenario("workload.arrivals.rate_rps=20", "workload.requests=200", "deployment.replicas=8", stages))
    (configuration,), jobs = whole.configurations, [whole.jobs(whole.configurations[0])]
    chain = run_chain(stations_of(whole, [configuration]), jobs)
    loop = chain_result_of(run_network(whole, [configuration], jobs))
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(loop.times, name), getattr(chain.times, name), rtol=1e-9)
    for one, other in zip(chain.stages, loop.stages, strict=True):
        np.testing.assert_allclose(other.wait_s, one.wait_s, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other.service_s, one.service_s, rtol=1e-9, atol=1e-9)
    tiers = [one for one in chain.stages if one.name.startswith("kv_fetch.") and not one.name.endswith("lookup")]
    found = sum(np.isfinite(one.service_s).sum() for one in tiers)
    assert (
        found == (whole.routes(configuration)[0].tokens.cached_tokens > 0).sum()
    )  # who is served by a tier has come there


POOLS = "deployment.pools={p: {role: prefill, replicas: 2}, d: {role: decode, replicas: 2}}"


def of_sides(more: str):
    """(chain, loop over all stations, tokens found) of a prefill and a decode side behind tiers."""
    tiers = f"pipeline=[{{stage: kv_fetch, tokens: 4096, tiers: [{{storage: nvme, hit: 0.5}}]{more}}}, prefill, decode]"
    link = "deployment.transfer.link={bandwidth: 10GB/s, latency: 1ms}"
    whole = plan(scenario("workload.arrivals.rate_rps=12", "workload.requests=200", POOLS, link, tiers))
    (configuration,), jobs = whole.configurations, [whole.jobs(whole.configurations[0])]
    assert configuration.status == "ok", configuration.status
    chain = run_chain(stations_of(whole, [configuration]), jobs)
    return chain, chain_result_of(run_network(whole, [configuration], jobs)), whole.routes(configuration)[0].tokens


@pytest.mark.parametrize("more", ["", ", to_decode: true"])
def test_a_prefill_side_sends_the_rest_of_what_a_tier_sends_to_both(more):
    chain, loop, tokens = of_sides(more)
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(loop.times, name), getattr(chain.times, name), rtol=1e-9)
    transfer = next(stage for stage in chain.stages if stage.name == "transfer").service_s[0, 0]
    sent = tokens.prompt_tokens - (tokens.cached_tokens if more else 0)
    sends = np.isfinite(transfer)
    np.testing.assert_allclose(transfer[sends], (1e-3 + sent * 131072 / 10e9)[sends], rtol=1e-9)
    fetch = next(stage for stage in chain.stages if stage.name == "kv_fetch.nvme").service_s[0, 0]
    assert np.nanmin(fetch) == pytest.approx(CONTEXT / 7e9 * (2 if more else 1))


def test_there_must_be_a_decode_side_to_send_to():
    fetch = "pipeline=[{stage: kv_fetch, tiers: [{storage: nvme, hit: 1}], to_decode: true}, prefill, decode]"
    (configuration,) = plan(scenario(fetch)).configurations
    assert configuration.status == (
        "infeasible: pipeline.kv_fetch: to_decode without a decode side; leave it out, or use pools with roles"
    )


def test_waits_for_a_shared_bandwidth_are_those_of_a_queue():
    """M/D/1: a quarter of the arrivals at each of four tiers, whose waits are rho / (2 (1 - rho)) services."""
    rate, service_s = 160.0, CONTEXT / 30e9
    left_s, arrival_s, _ = chain_of(
        "[{bandwidth: 30GB/s, latency: 0s, hit: 1, shared_by: 2}]", rate=rate, requests=40_000
    )
    rho = rate / 4 * service_s
    wait_s = (left_s - arrival_s)[4000:].mean() - service_s
    assert wait_s == pytest.approx(service_s * rho / (2 * (1 - rho)), rel=0.06)


def test_the_recursion_is_the_mean_over_caches_that_keep_the_last_contexts():
    """Requests that ask real LRU caches in a loop over events, against hit rates by approximation and the recursion."""
    tiers, sizes = [TierStation(1e-3, 20e9), TierStation(5e-3, 5e9, 4, np.inf)], (TierSize(60, 1), TierSize(500, 4))
    popularity, count = Popularity(4000, 0.9), 40_000
    rng = np.random.default_rng(5)
    weights = np.arange(1.0, 4001) ** -0.9
    context = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count)).tolist()
    caches = [[Lru(int(size.contexts)) for _ in range(0, 8, size.replicas)] for size in sizes]
    station = Tiers(
        [tier._replace(transfers=np.inf) for tier in tiers],
        [CONTEXT] * count,
        rng.integers(0, 8, count).tolist(),
        lambda request, tier, group: caches[tier][group].ask(context[request.index]),
    )
    run([station], sent_at(np.cumsum(rng.exponential(10.0, count))))
    visits = [station.visits[index] for index in range(count // 2, count)]
    taken = np.array([visit.left_s - visit.arrived_s for visit in visits])
    hit = np.array(hit_rates(popularity, sizes, 8))
    expected = expected_s(CONTEXT, hit, np.array([1e-3, 5e-3]), np.array([20e9, 5e9]))
    assert expected == pytest.approx(taken.mean(), abs=4 * taken.std() / np.sqrt(len(taken)))


def test_a_tier_has_as_many_queues_as_groups_of_replicas():
    """Also beside configurations of the same chunk that have more; its utilisation is of all of them."""
    stages = (
        "pipeline=[{stage: kv_fetch, tokens: 4096, tiers: [{storage: nvme, hit: 1, shared_by: 2}]}, prefill, decode]"
    )
    whole = plan(scenario("workload.requests=400", stages, deployment__replicas=[2, 4, 8]))
    routes = [whole.routes(configuration)[0] for configuration in whole.configurations]
    jobs = [whole.jobs(configuration) for configuration in whole.configurations]
    station = stations_of(whole, whole.configurations)[1]
    times, use = station.serve(jobs)
    assert station.name == "kv_fetch.nvme" and use.replicas.tolist() == [1, 2, 4]
    assert use.totals.busy_s[:, 0] == pytest.approx([400 * CONTEXT / 7e9] * 3) and times.visited.all()
    assert [int(one.first[0].work.steps[1].queue.max()) for one in routes] == [0, 1, 3]
