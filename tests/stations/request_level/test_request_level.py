"""The request-level engine against the plain algorithms, lane by lane."""

import numpy as np
import pytest

from evaluator.cost.eager import AsPrinted
from evaluator.cost.request_times import tabulate
from evaluator.reference import request_level as reference
from evaluator.stations.request_level import run_collocated, run_decode, run_prefill
from tests.cost.eager.paper import paper_cost
from tests.stations.request_level.build import STRUCTURE, random_case, stacked

TIMES = ("scheduled_s", "first_token_s", "last_token_s")


def check(cases, found, simulate):
    for lane, case in enumerate(cases):
        requests = case.reference_requests()
        simulate(case, requests)
        for name in (*TIMES, "instance"):
            same(found, lane, name, [getattr(each, name) for each in requests])
            if name in TIMES:
                assert np.isinf(np.asarray(getattr(found, name)[lane])[len(requests) :]).all()


def same(found, lane, name, expected, where=...):
    """The real requests of a lane, or those where a mask says so."""
    values = np.asarray(getattr(found, name)[lane])[: len(expected)]
    np.testing.assert_allclose(values[where], np.array(expected)[where], rtol=1e-12)


def collocated(case, requests):
    reference.collocated(case.sides[0], requests)


def eager_cases():
    """Four replicas of the paper, at 1 to 8 devices."""
    return [random_case(seed, paper_cost(AsPrinted(), 2**seed)) for seed in range(4)]


def tabulated_cases():
    """All requests of a lane alike."""
    cases = []
    for seed in range(4):
        case = random_case(seed)
        prompt, output = 100.0 * (seed + 1), 20.0
        same = case.requests._replace(
            prompt_tokens=np.full_like(case.requests.arrival_s, prompt),
            output_tokens=np.full_like(case.requests.arrival_s, output),
        )
        table = tabulate(case.sides[0].cost, prompt, output, 8)
        cases.append(random_case(seed, table))
        object.__setattr__(cases[-1], "requests", same)
    return cases


CASES = {
    "random": lambda: [random_case(seed) for seed in range(120)],
    "eager": eager_cases,
    "tabulated": tabulated_cases,
}


@pytest.mark.parametrize("kind", CASES)
def test_collocated_lanes_are_the_plain_algorithms(kind):
    cases = CASES[kind]()
    lanes, requests = stacked([case.lane(0) for case in cases]), stacked([case.slots() for case in cases])
    found = run_collocated(lanes, requests, STRUCTURE)
    check(cases, found, collocated)


@pytest.mark.parametrize("kind", CASES)
def test_prefill_lanes_are_the_plain_algorithm(kind):
    cases = CASES[kind]()
    lanes, requests = stacked([case.lane(0) for case in cases]), stacked([case.slots() for case in cases])
    found = run_prefill(lanes, requests, STRUCTURE)
    np.testing.assert_array_equal(found.first_token_s, found.last_token_s)
    for lane, case in enumerate(cases):
        whole = case.reference_requests()
        reference.prefill(case.sides[0], whole)
        same(found, lane, "scheduled_s", [each.scheduled_s for each in whole])
        same(found, lane, "first_token_s", [each.first_token_s for each in whole])
        same(found, lane, "instance", [each.instance for each in whole])


@pytest.mark.parametrize("kind", CASES)
def test_decode_lanes_are_the_plain_algorithm(kind):
    cases = CASES[kind]()
    lanes, requests = stacked([case.lane(1) for case in cases]), stacked([case.slots() for case in cases])
    found = run_decode(lanes, requests, STRUCTURE)
    for lane, case in enumerate(cases):
        whole = case.reference_requests()
        for each in whole:
            each.first_token_s = each.arrival_s
        reference.decode(case.sides[1], whole)
        same(found, lane, "last_token_s", [each.last_token_s for each in whole])
        longer = [each.output_tokens > 1 for each in whole]
        same(found, lane, "scheduled_s", [each.decode_scheduled_s for each in whole], longer)
        same(found, lane, "instance", [each.decode_instance for each in whole], longer)
        second = [
            each.decode_scheduled_s + (each.last_token_s - each.decode_scheduled_s) / max(each.output_tokens - 1, 1)
            for each in whole
        ]
        same(found, lane, "first_token_s", second, longer)


def test_lanes_in_step_are_the_same_lanes():
    cases = [random_case(seed) for seed in range(20)]
    lanes, requests = stacked([case.lane(0) for case in cases]), stacked([case.slots() for case in cases])
    one_by_one = run_collocated(lanes, requests, STRUCTURE)
    in_step = run_collocated(lanes, requests, STRUCTURE, vectorise=True)
    for name in TIMES:
        np.testing.assert_allclose(getattr(in_step, name), getattr(one_by_one, name), rtol=1e-13)
