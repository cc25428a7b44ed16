"""Whole scenarios behind API servers with a capacity."""

import numpy as np
import pytest

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.metrics import summarise
from evaluator.metrics.outcomes import OK
from evaluator.plan import plan
from evaluator.simulation import chain_result, simulate_configurations
from evaluator.stations.api_servers import waits_of
from tests.scenario.build import scenario
from tests.simulation.engines import LEVELS

LOAD = (
    "workload.lengths={source: uniform, prompt_min: 20, prompt_max: 300, output_min: 1, output_max: 120}",
    "workload.requests=200",
    "workload.warmup_requests=40",
    "workload.arrivals.rate_rps=30",
    "deployment.engine_version='0.15'",
)
TIMES = "deployment.api_server_times={per_token_s: 400us, per_request_s: 1ms}"
USERS = "workload.arrivals={process: closed_loop, users: 40, rate_rps: null}"


def found(*overrides, simulator="iteration"):
    whole = plan(scenario(*LOAD, *overrides), simulator=simulator)
    assert whole.configurations[0].status == OK
    of = simulate_configurations(whole, whole.configurations)
    return of, summarise(of, LEVELS)


@pytest.fixture(scope="module")
def plain():
    return found()


def test_both_engines_compute_the_same():
    asked = "deployment.api_server_times={per_token_s: 150us, per_request_s: 1ms}"
    (fast, told), (exact, known) = found(asked), found(asked, simulator="token")
    assert fast.engine == "iteration" and exact.engine == "token"
    for name in ("first_token_s", "last_token_s", "first_wait_s", "last_wait_s"):
        np.testing.assert_allclose(getattr(fast.times, name), getattr(exact.times, name), atol=1e-9)
    assert exact.times.first_wait_s.max() > 1e-3
    for name in ("ttft_s_mean", "tpot_s_mean", "e2e_s_mean", "output_tok_per_s", "api_server_utilisation"):
        assert told[name] == pytest.approx(known[name], rel=1e-9)
    assert told["itl_s_mean"] == pytest.approx(known["itl_s_mean"], rel=5e-3)


@pytest.mark.parametrize("simulator", ["iteration", "token"])
@pytest.mark.parametrize("servers", ["deployment.api_servers=3", "deployment.api_server_times={per_token_s: 0us}"])
def test_without_a_capacity_nothing_changes(plain, servers, simulator):
    base = plain if simulator == "iteration" else found(simulator=simulator)
    of, told = found(servers, simulator=simulator)
    for name in ("first_token_s", "last_token_s"):
        np.testing.assert_array_equal(getattr(of.times, name), getattr(base[0].times, name))
    for name, values in base[1].items():
        np.testing.assert_array_equal(told[name], values, err_msg=name)
    assert np.isnan(told["api_server_utilisation"]).all()


def test_the_engine_is_not_held_up(plain):
    """The queue of an engine to its API servers has no bound: only clients have their tokens later."""
    of, told = found("deployment.api_server_times={per_token_s: 2ms}")
    np.testing.assert_array_equal(of.times.scheduled_s, plain[0].times.scheduled_s)
    assert (of.times.last_token_s >= plain[0].times.last_token_s).all()
    np.testing.assert_array_equal(of.stations[0].totals.busy_s, plain[0].stations[0].totals.busy_s)
    assert told["saturated"].item() and not plain[1]["saturated"].item()
    # All the time that it has it works, and no more comes out than it can do.
    assert told["api_server_utilisation"].item() == pytest.approx(1.0, abs=0.05)
    assert told["output_tok_per_s"].item() < 500 * 1.05 < plain[1]["output_tok_per_s"].item()


@pytest.mark.parametrize(
    ("layout", "within"),
    [
        (("deployment.replicas=3",), 1e-9),
        (("deployment.replicas=2", "deployment.data_parallel=2"), 1e-3),  # ranks that go each by itself
        (("deployment.data_parallel=2", "deployment.api_servers=3", "deployment.router=least_outstanding"), 1e-3),
        (("deployment.model=qwen3-30b-a3b", "deployment.data_parallel=2", "deployment.expert_parallel=2"), 1e-9),
        (("deployment.pipeline_parallel=2", "workload.arrivals.rate_rps=15"), 2e-3),
        (("deployment.batching.policy=continuous", "workload.arrivals.rate_rps=20"), 1e-3),
    ],
    ids=["replicas", "ranks", "ranks that are chosen", "lockstep", "pipeline", "prompts alone"],
)
def test_requests_tell_as_much_as_tokens(layout, within):
    """What the vectorised engine makes of the first and last tokens of the reference is what that has of all tokens."""
    whole = plan(scenario(*LOAD, TIMES, *layout), simulator="token")
    (configuration,) = whole.configurations
    assert configuration.status == OK
    times, pool = chain_result(whole, [configuration]).times, configuration.stations[0]
    jobs = whole.jobs(configuration)[0]
    columns = (times.arrival_s, times.first_token_s, times.last_token_s)
    arrival_s, first_s, last_s = (column[0, 0][jobs.id] for column in columns)
    found_s = waits_of(pool, arrival_s, first_s, last_s, jobs.demand.output_tokens, times.replica[0, 0][jobs.id])
    for values, expected in zip(found_s, (times.first_wait_s, times.last_wait_s), strict=True):
        assert expected.max() > 5e-4
        assert np.mean(values) == pytest.approx(expected[0, 0].mean(), abs=within)
        if within < 1e-6:
            np.testing.assert_allclose(values, expected[0, 0][jobs.id], atol=1e-9)


def test_users_wait_for_answers_that_wait_there():
    whole = plan(scenario(*LOAD, USERS, TIMES), simulator="iteration")
    (configuration,) = whole.configurations
    assert configuration.simulator == "token"
    assert configuration.lacking == ("api_server_times with users who wait for answers",)
    slow, told = found(USERS, "deployment.api_server_times={per_token_s: 2ms}", simulator="token")
    # An API server that does 500 tokens a second is what 40 users wait for; each sends when it has the answer.
    assert told["output_tok_per_s"].item() == pytest.approx(500, rel=0.1)
    assert not told["saturated"].item()
    ended_s = np.sort(slow.times.last_token_s[0, 0])
    np.testing.assert_allclose(np.sort(slow.times.arrival_s[0, 0])[40:], ended_s[: 200 - 40], atol=1e-9)
    _, with_four = found(
        USERS, "deployment.api_server_times={per_token_s: 2ms}", "deployment.api_servers=4", simulator="token"
    )
    assert with_four["output_tok_per_s"].item() > 3 * told["output_tok_per_s"].item()


def test_users_of_ranks_wait_for_all_tokens_before_theirs():
    """Of ranks that go each by itself no leap is under way whose tokens stand before an answer."""
    of, _ = found(USERS, "deployment.data_parallel=2", "deployment.api_servers=1", TIMES, simulator="token")
    ended_s = np.sort(of.times.last_token_s[0, 0])
    np.testing.assert_allclose(np.sort(of.times.arrival_s[0, 0])[40:], ended_s[: 200 - 40], atol=1e-9)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            ("deployment.speculative={method: ngram, tokens: 3, acceptance: 0.5}",),
            "with deployment.speculative; leave it out",
        ),
        (("deployment.failures={mtbf_s: 100, mttr_s: 10}",), "with deployment.failures; leave it out"),
        (("deployment.role=prefill",), "with role prefill; use role mixed"),
        (
            ("deployment.pools={a: {role: mixed}, b: {role: mixed}}",),
            "with several pools or stages; use one pool without stages",
        ),
    ],
    ids=["drafts", "failures", "a side", "pools"],
)
def test_what_is_refused_by_name(overrides, why):
    (configuration,) = plan(scenario(*LOAD, TIMES, *overrides)).configurations
    assert configuration.status.startswith("unsupported: ")
    assert f"api_server_times {why}, or leave api_server_times out" in configuration.status


def test_whole_requests_know_no_tokens():
    status = (
        plan(scenario(*LOAD, TIMES, "deployment.batching.policy=continuous"), simulator="request")
        .configurations[0]
        .status
    )
    assert (
        status
        == "unsupported: simulator request does not cover api_server_times; leave them out, or simulator iteration"
    )


def test_how_many_there_are_where_nobody_says():
    """vLLM has one for each data-parallel rank since 0.15."""
    servers = {}
    for engine, release, ranks in (("vllm", "0.14", 4), ("vllm", "0.15", 4), ("vllm", None, 2), ("sglang", None, 4)):
        asked = (f"deployment.engine={engine}", f"deployment.data_parallel={ranks}", "deployment.kv=null")
        said = f"deployment.engine_version={release!r}" if release else "deployment.engine_version=null"
        servers[engine, release, ranks] = plan(scenario(*LOAD, *asked, said)).configurations[0].stations[0].api_servers
    assert list(servers.values()) == [1, 4, 2, 1]


def test_a_faster_host_makes_faster_api_servers():
    (base,) = plan(scenario(*LOAD, TIMES)).configurations
    (fast,) = plan(scenario(*LOAD, TIMES, "deployment.host={speed: 2}")).configurations
    assert base.stations[0].api_server_times == ApiServerTimes(4e-4, 1e-3)
    assert fast.stations[0].api_server_times == ApiServerTimes(2e-4, 5e-4)
