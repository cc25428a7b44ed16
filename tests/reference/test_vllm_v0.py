"""What vLLM v0 does, worked out by hand. Every iteration takes one second, a block holds four tokens."""

import pytest

from evaluator.reference import Limits
from tests.reference.build import SECOND, linear_cost, log_of, request


def limits(kv_units=100, *, seqs=8, tokens=64, **more):
    return Limits(seqs, tokens, kv_units, **{"admission": "on_demand", "block_tokens": 4, **more})


def work(log):
    """(chunks, decodes) of each iteration."""
    return [(iteration.chunks, iteration.decodes) for iteration in log]


def test_prompts_go_first_and_decodes_wait():
    requests = [request(0, 0.0, 6, 3), request(1, 1.5, 5, 2), request(2, 1.6, 2, 1)]
    log = log_of(SECOND, "continuous", limits(), requests)
    assert work(log) == [
        (((0, 6),), ()),
        ((), (0,)),
        (((1, 5), (2, 2)), ()),
        ((), (0, 1)),
    ]
    assert requests[0].token_s == [1.0, 2.0, 4.0]


def test_prompts_are_whole():
    requests = [request(0, 0.0, 6, 1), request(1, 0.0, 5, 1), request(2, 0.0, 2, 1)]
    log = log_of(SECOND, "continuous", limits(tokens=10), requests)
    assert [each.chunks for each in log] == [((0, 6),), ((1, 5), (2, 2))]  # nobody overtakes request 1


def test_places_bound_the_batch():
    requests = [request(index, 0.0, 2, 2) for index in range(3)]
    log = log_of(SECOND, "continuous", limits(seqs=2), requests)
    assert work(log) == [(((0, 2), (1, 2)), ()), ((), (0, 1)), (((2, 2),), ()), ((), (2,))]


@pytest.mark.parametrize(("watermark", "batches"), [(1, [((0, 20), (1, 16))]), (2, [((0, 20),), ((1, 16),)])])
def test_an_admission_leaves_the_watermark_free(watermark, batches):
    requests = [request(0, 0.0, 20, 1), request(1, 0.0, 16, 1)]  # five and four blocks of ten
    log = log_of(SECOND, "continuous", limits(10, watermark_units=watermark), requests)
    assert [each.chunks for each in log] == batches


def test_growth_may_use_the_watermark():
    requests = [request(0, 0.0, 8, 4)]
    log = log_of(SECOND, "continuous", limits(3, watermark_units=1), requests)
    assert log[-1].kv_units == 3 and requests[0].preemptions == 0


def test_preemption_by_recompute():
    requests = [request(index, 0.0, 3, 5) for index in range(4)]
    log = log_of(SECOND, "continuous", limits(4), requests)
    assert work(log) == [
        (((0, 3), (1, 3), (2, 3), (3, 3)), ()),
        ((), (0, 1, 2, 3)),
        ((), (0, 1)),  # the fifth token of each needs a second block
        ((), (0, 1)),
        ((), (0, 1)),
        (((2, 5), (3, 5)), ()),
        ((), (2, 3)),
        ((), (2, 3)),
    ]
    assert log[2].preempted == (3, 2)


def test_a_recomputed_prompt_stalls_the_decodes():
    requests = [request(0, 0.0, 4, 12), request(1, 0.0, 4, 5), request(2, 0.0, 3, 9)]
    log = log_of(SECOND, "continuous", limits(5), requests)
    assert work(log)[:7] == [
        (((0, 4), (1, 4), (2, 3)), ()),
        ((), (0, 1, 2)),  # 0 and 1 take a second block
        ((), (0, 1)),  # 2 would need one
        ((), (0, 1)),
        ((), (0, 1)),  # 1 finishes at 5 s
        (((2, 5),), ()),  # request 0 waits for it
        ((), (0, 2)),
    ]
    assert requests[0].token_s[:7] == [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0]


class TestSwap:
    def run(self, requests, kv_units, **more):
        more = {"preemption": "swap", "swap_unit_s": 0.25, **more}
        return log_of(SECOND, "continuous", limits(kv_units, **more), requests)

    def test_a_swapped_request_goes_on_where_it_was(self):
        requests = [request(index, 0.0, 3, 4) for index in range(3)]
        log = self.run(requests, 3)
        assert work(log) == [
            (((0, 3), (1, 3), (2, 3)), ()),
            ((), (0, 1, 2)),
            ((), (0,)),  # 0 takes the block of 2, and 1, needing one, is now the last itself
            ((), (0,)),
            ((), (1,)),  # back with two blocks for five tokens; 2 does not fit beside it
            ((), (1,)),
            ((), (2,)),
            ((), (2,)),
        ]
        assert log[2].preempted == (2, 1)
        durations = [each.end_s - each.start_s for each in log]
        assert durations == [1.0, 1.0, 1.5, 1.0, 1.25, 1.0, 1.25, 1.0]  # two blocks out, one in, one in
        assert [len(each.token_s) for each in requests] == [4, 4, 4]

    def test_nobody_new_comes_in_before_those_swapped_out(self):
        requests = [request(index, 0.0, 3, 4) for index in range(3)] + [request(3, 2.5, 1, 1)]
        log = self.run(requests, 4)
        assert work(log)[2:] == [
            ((), (0, 1)),  # 0 takes the free block, 1 that of 2
            ((), (0, 1)),
            ((), (2,)),  # it comes back in an iteration of decodes, before any prompt
            (((3, 1),), ()),
            ((), (2,)),
        ]

    def test_without_room_in_host_memory_it_is_recomputed(self):
        requests = [request(index, 0.0, 3, 4) for index in range(3)]
        log = self.run(requests, 3, swap_units=1)
        assert log[2].preempted == (2, 1)
        assert sum(tokens for each in log for _, tokens in each.chunks) == 9 + 5  # request 1, the second to go


def test_an_iteration_takes_as_long_as_its_batch_says():
    requests = [request(0, 0.0, 6, 3), request(1, 0.0, 2, 1)]
    log_of(linear_cost(1.0, 0.5, 0.25), "continuous", limits(), requests)
    # 8 prompt tokens; then one token that attends to 7, and one that attends to 8.
    assert requests[0].token_s == [5.0, 5.0 + 1.5 + 1.75, 8.25 + 1.5 + 2.0]
