"""Which replica a request goes to, worked out by hand. Every iteration takes one second."""

from evaluator.reference import Limits, simulate
from tests.reference.build import SECOND, linear_cost, random_scenario, request

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


def test_least_work_sees_into_a_leap():
    # 0 decodes for long. Request 3 arrives when 0 has 101 - 50 tokens to go, request 2 on the other replica more.
    requests = [request(0, 0.0, 1, 101), request(1, 0.0, 1, 1), request(2, 49.5, 1, 60), request(3, 50.0, 1, 1)]
    assert replicas_of(requests, "least_work") == [0, 1, 1, 0]


def test_closed_loop_releases_a_request_when_one_finishes_anywhere():
    requests = [request(index, 0.0, 1, 1 + index) for index in range(4)]
    simulate(SECOND, "chunked", LIMITS, requests, replicas=2, users=2)
    assert [each.arrival_s for each in requests] == [0.0, 0.0, 1.0, 2.0]
    assert [each.replica for each in requests] == [0, 1, 0, 1]


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
