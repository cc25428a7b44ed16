"""Batches in flight in a pipeline, worked out by hand: two ranks of one second each."""

from evaluator.reference import Limits, simulate
from tests.reference.build import SECOND, linear_cost, log_of, request

LIMITS = Limits(8, 16, 100, block_tokens=4)
TWO = [SECOND, SECOND]


def spans(log):
    return [(each.start_s, each.end_s, each.chunks, each.decodes) for each in log]


def test_as_many_batches_are_in_flight_as_stages():
    requests = [request(0, 0.0, 2, 3), request(1, 0.5, 2, 2), request(2, 0.6, 2, 1)]
    log = log_of(TWO, "chunked", LIMITS, requests)
    assert spans(log) == [
        (0.0, 2.0, ((0, 2),), ()),
        (1.0, 3.0, ((1, 2),), ()),  # put together at 0.5 s, while the first rank was busy: without request 2
        (2.0, 4.0, ((2, 2),), (0,)),
        (3.0, 5.0, (), (1,)),
        (4.0, 6.0, (), (0,)),
    ]
    assert requests[1].scheduled_s == 1.0


def test_a_sequence_in_flight_is_in_no_other_batch():
    requests = [request(0, 0.0, 2, 3)]
    log = log_of(TWO, "chunked", LIMITS, requests)
    assert [each.start_s for each in log] == [0.0, 2.0, 4.0]


def test_chunks_of_a_prompt_follow_each_other_through_the_stages():
    requests = [request(0, 0.0, 40, 1)]
    log = log_of(TWO, "chunked", LIMITS, requests)
    assert spans(log) == [(0.0, 2.0, ((0, 16),), ()), (1.0, 3.0, ((0, 16),), ()), (2.0, 4.0, ((0, 8),), ())]
    assert requests[0].token_s == [4.0]


def test_a_slow_stage_holds_up_those_behind():
    pipeline_ranks = [SECOND, linear_cost(0.0, 1.0), SECOND]
    requests = [request(0, 0.0, 5, 1), request(1, 0.1, 2, 1)]
    log = log_of(pipeline_ranks, "continuous", LIMITS, requests)
    assert [(each.start_s, each.end_s) for each in log] == [(0.0, 7.0), (1.0, 9.0)]


def test_busy_time_is_the_mean_of_the_stages():
    requests = [request(0, 0.0, 2, 3)]
    assert simulate([SECOND, linear_cost(3.0)], "chunked", LIMITS, requests).busy_s == 6.0


def test_a_sequence_in_flight_is_not_preempted():
    # Request 1, in flight, is left alone; request 0, which needs a second block, goes itself.
    limits = Limits(8, 16, 2, admission="on_demand", block_tokens=4)
    requests = [request(0, 0.0, 4, 3), request(1, 0.5, 3, 2)]
    log = log_of(TWO, "chunked", limits, requests)
    assert spans(log)[:4] == [
        (0.0, 2.0, ((0, 4),), ()),
        (1.0, 3.0, ((1, 3),), ()),
        (3.0, 5.0, (), (1,)),
        (5.0, 7.0, ((0, 5),), ()),
    ]
    assert log[2].preempted == (0,)  # at 2 s, and told with the next batch
