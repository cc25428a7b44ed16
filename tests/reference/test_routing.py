"""Which replica a request goes to, worked out by hand. Every iteration takes one second."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.reference import Limits, simulate
from evaluator.reference.network import run
from evaluator.reference.replica import Replica
from evaluator.reference.routing import LOADS, chooser
from evaluator.reference.stations.pool import PoolStation
from evaluator.routing import COUNTERS, HeavyLight
from tests.reference.build import CHOICES, SECOND, linear_cost, random_scenario, request
from tests.thorough import tried

LIMITS = Limits(8, 64, 100, block_tokens=4)


def replicas_of(requests, router, replicas=2, **options):
    simulate(SECOND, "chunked", LIMITS, requests, replicas=replicas, router=router, **options)
    return [each.replica for each in requests]


def test_round_robin_takes_turns():
    assert replicas_of([request(index, 0.0, 1, 1) for index in range(5)], "round_robin", 3) == [0, 1, 2, 0, 1]


def test_random_is_fair_and_its_seed_decides():
    def chosen(seed):
        return replicas_of([request(index, 0.0, 1, 1) for index in range(3000)], "random", 3, seed=seed)

    first = chosen(1)
    assert first == chosen(1)
    assert first != chosen(2)
    assert all(abs(first.count(replica) - 1000) < 100 for replica in range(3))


def test_least_outstanding_sees_who_has_finished():
    requests = [
        request(0, 0.0, 2, 9),
        request(1, 0.0, 2, 2),
        request(2, 1.5, 2, 9),  # one each: the first replica
        request(3, 1.9, 2, 9),
        request(4, 2.0, 2, 1),  # request 1 finishes just then, request 3 is there
        request(5, 2.5, 2, 1),
    ]
    assert replicas_of(requests, "least_outstanding") == [0, 1, 0, 1, 1, 0]


def test_least_work_counts_tokens_as_of_the_arrival():
    requests = [
        request(0, 0.0, 2, 5),
        request(1, 0.0, 3, 3),
        request(2, 2.5, 1, 1),  # 3 tokens to go against 1; the third iterations have done nothing yet
        request(3, 2.9, 1, 1),  # 3 against 3
        request(4, 3.0, 1, 1),  # both have made a token: 4 against 2, those of request 2
    ]
    assert replicas_of(requests, "least_work") == [0, 1, 1, 0, 1]


def test_least_tokens_counts_what_is_to_be_generated():
    """A long prompt counts as its output alone; a token that a prompt's end gave is no more to be generated."""
    requests = [
        request(0, 0.0, 40, 3),
        request(1, 0.0, 2, 4),
        request(2, 0.5, 2, 3),  # 3 against 4, though there is more work at the first
        request(3, 1.5, 2, 1),  # 5 (2 of request 0, 3 of request 2) against 3
        request(4, 1.6, 2, 1),  # 5 against 4
        request(5, 1.7, 2, 1),  # 5 against 5
    ]
    assert replicas_of(requests, "least_tokens") == [0, 1, 0, 1, 1, 0]


def test_least_context_counts_prompts_and_outputs_so_far():
    requests = [
        request(0, 0.0, 10, 30),
        request(1, 0.0, 12, 3),
        request(2, 1.0, 1, 30),  # 11 against 13
        request(3, 1.5, 1, 9),  # 12 against 13
        request(4, 2.5, 9, 9),  # 12 + 2 + 1 against 14
        request(5, 3.0, 1, 1),  # request 1 has left: 0 + 9 and none yet of its own, against 17
    ]
    assert replicas_of(requests, "least_context") == [0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
def test_least_kv_counts_units_in_use_and_those_of_waiting_requests(admission):
    """In blocks of four: reserved, request 0 holds 10 all the time; on demand 2, and one more every 4 s."""
    requests = [
        request(0, 0.0, 8, 33),  # 10 units when finished, 2 for its prompt
        request(1, 0.0, 17, 4),  # 5 units, from the start on
        request(2, 0.0, 1, 1),  # nobody has been admitted yet, all wait: 10 against 5
        request(3, 2.5, 1, 40),  # reserved 10 against 5; on demand 3 against 5
        request(4, 3.5, 1, 1),  # request 3 waits or has just been admitted: 10 against 15, or 5 against 3 + 10 or 3 + 1
    ]
    limits = replace(LIMITS, admission=admission)
    simulate(SECOND, "chunked", limits, requests, replicas=2, router="least_kv")
    expected = [0, 1, 1, 1, 0] if admission == "reserve" else [0, 1, 1, 0, 0]
    assert [each.replica for each in requests] == expected


def test_least_kv_sees_into_a_leap():
    """On demand a decode takes a block of four tokens every four seconds, also where iterations are leapt over."""
    units = []
    for second in range(1, 40):
        replica = Replica(0, [SECOND], "chunked", replace(LIMITS, admission="on_demand"))
        run([PoolStation([replica], chooser("random", [replica]))], [request(0, 0.0, 6, 60)])
        assert replica.kv_units_max == 17
        at_work = Replica(0, [SECOND], "chunked", replace(LIMITS, admission="on_demand"))
        at_work.submit(request(0, 0.0, 6, 60), 0.0)
        for running_batch in at_work.launch(0.0):
            at_work.finish(running_batch)
        at_work.launch(1.0)  # one leap to the end
        units.append(round(LOADS["kv_units"](at_work, second + 0.5) * LIMITS.kv_units))
    assert units == [-(-(6 + second) // 4) for second in range(1, 40)]


def test_heavy_light_keeps_long_prompts_apart():
    prompts = [9, 1, 2, 10, 3, 11, 4, 5]
    requests = [request(number, 0.0, prompt, 2) for number, prompt in enumerate(prompts)]
    assert replicas_of(requests, HeavyLight(9, 2), 4) == [0, 2, 3, 1, 2, 0, 3, 2]


@pytest.mark.parametrize("router", ["least_outstanding", "least_work", "least_tokens", "least_kv", "least_context"])
def test_routers_that_look_beat_turns_where_lengths_are_skewed(router):
    """Lognormal lengths, some of them long: in turn, a replica gets several of these together, and its KV is full."""
    waits = {}
    for each in ("round_robin", router):
        found = []
        for seed in range(2):
            rng = np.random.default_rng(seed)
            prompts = np.clip(rng.lognormal(4, 1.3, 800), 1, 4000).astype(int).tolist()
            outputs = np.clip(rng.lognormal(3, 1.3, 800), 1, 2000).astype(int).tolist()
            arrival_s = np.cumsum(rng.exponential(0.05, 800)).tolist()
            columns = zip(arrival_s, prompts, outputs, strict=True)
            requests = [request(number, *column) for number, column in enumerate(columns)]
            limits = Limits(64, 256, 1600, block_tokens=4)
            simulate(linear_cost(0.02, 1e-4, 3e-6), "chunked", limits, requests, replicas=4, router=each)
            found += [one.first_token_s - one.arrival_s for one in requests[80:]]
        waits[each] = np.quantile(found, 0.99)
    assert waits[router] < 0.7 * waits["round_robin"], waits


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_leaping_changes_no_choice(choice):
    """What is counted of a replica in a leap is what single iterations would have made of it."""
    for seed in range(tried(20, 0.15)):
        scenario = random_scenario(seed, replicas=4, router=choice, pipeline_ranks=1)
        leaping, single = scenario.run(), scenario.run(leap=False)
        assert [one.replica for one in leaping.requests] == [one.replica for one in single.requests]


def test_least_work_sees_into_a_leap():
    # 0 decodes for long. Request 3 arrives when 0 has 101 - 50 tokens to go, request 2 on the other replica more.
    requests = [request(0, 0.0, 1, 101), request(1, 0.0, 1, 1), request(2, 49.5, 1, 60), request(3, 50.0, 1, 1)]
    assert replicas_of(requests, "least_work") == [0, 1, 1, 0]


def test_closed_loop_releases_a_request_when_one_finishes_anywhere():
    requests = [request(index, 0.0, 1, 1 + index) for index in range(4)]
    simulate(SECOND, "chunked", LIMITS, requests, replicas=2, users=2)
    assert [each.arrival_s for each in requests] == [0.0, 0.0, 1.0, 2.0]
    assert [each.replica for each in requests] == [0, 1, 0, 1]


def test_every_counter_is_counted():
    assert tuple(LOADS) == COUNTERS


def test_more_replicas_than_requests():
    outcome = simulate(linear_cost(), "chunked", LIMITS, [request(0, 0.0, 1, 1)], replicas=3)
    assert [replica.iterations for replica in outcome.replicas] == [1, 0, 0]


def test_replicas_by_themselves_serve_their_share_as_one_would():
    scenario = random_scenario(5, replicas=3, router="round_robin", pipeline_ranks=1)
    scenario.options["users"] = None
    together = scenario.run()
    for replica in range(3):
        columns = scenario.columns[replica::3]
        scenario_of_one = type(scenario)(scenario.cost, scenario.policy, scenario.limits, columns, scenario.options)
        alone = scenario_of_one.run(replicas=1)
        assert [each.last_token_s for each in alone.requests] == [
            each.last_token_s for each in together.requests[replica::3]
        ]
